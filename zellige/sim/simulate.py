"""Simulate a program: price its operations, step through it at one of three fidelities, and report."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from zellige.cluster import Cluster
from zellige.collectives import link_sources
from zellige.measured_ops import measured_op_prices
from zellige.op_prices import OpPricer, OpPrices
from zellige.placement import Problem
from zellige.program import Program
from zellige.sim.additive import RankWalk
from zellige.sim.machine import Machine, Record
from zellige.sim.network import Network
from zellige.sim.noise import Factors
from zellige.sim.options import DEFAULTS, Fidelity, SimOptions
from zellige.sim.planned_work import at_planned_work
from zellige.sim.results import MemoryPoint, SimReport, rank_time
from zellige.sim.scripts import BACKWARD, FORWARD, Scripts, check_collectives, make_scripts
from zellige.sim.spans import additive_trace, machine_trace
from zellige.sim.state import StateTraffic, state_traffic
from zellige.sim.steady import Repetition, find_repetition, forward_repeats, layers_needed
from zellige.trace import Counter, CounterPoint, Trace, no_collection

MORE_LAYERS = 4
"""Layers by which a step that does not repeat yet is made longer before the next look."""


class Simulation(msgspec.Struct, frozen=True):
    """A report, and the spans where they were asked for."""

    report: SimReport
    trace: Trace


class Outcome(msgspec.Struct, kw_only=True):
    """A finished step: when each rank was done with each stage, and its metrics at the end."""

    scripts: Scripts
    finished: list[list[int]]
    metrics: list[list[int]]
    records: list[Record]
    events: int
    repetition: Repetition | None = None
    network: Network | None = None


def simulate(
    program: Program,
    problem: Problem,
    fidelity: Fidelity = "event",
    options: SimOptions = DEFAULTS,
    *,
    prices: OpPrices | None = None,
    state: StateTraffic | None = None,
) -> Simulation:
    """Simulate one step of a program on a problem's cluster and model.

    ``prices`` and ``state`` are made here unless given. Raises :class:`zellige.errors.OtherClusterError` for a program
    made for something else, :class:`zellige.errors.DeadLinkError`, and :class:`zellige.errors.StuckError` for an order
    that stops.
    """
    if prices is None:
        prices = program_prices(program, problem, options)
    if not options.state_traffic or fidelity == "additive":
        state = None
    elif state is None:
        state = state_traffic(problem.model, problem.cluster, problem.memory.sharding)
    with no_collection():
        if fidelity == "additive":
            outcome = _walk(prices, options)
            trace = additive_trace(prices, outcome.scripts, outcome.records, outcome.finished)
        else:
            outcome = _run(prices, options, state, shared_links=fidelity == "flow")
            trace = machine_trace(prices, outcome.scripts, outcome.records, outcome.repetition, outcome.network)
        if options.trace:
            counters = (*_memory_counters(prices, problem, outcome), *trace.counters)
            trace = msgspec.structs.replace(trace, counters=counters)
        return Simulation(_report(prices, problem, fidelity, outcome, state), trace)


def program_prices(
    program: Program, problem: Problem, options: SimOptions = DEFAULTS, pricer: OpPricer | None = None
) -> OpPrices:
    """What a program's operations take: by measured laws where the problem's prices have them, else by formulas.

    With interference in the table the ranks' work is as planned (:mod:`zellige.sim.planned_work`).

    ``pricer`` keeps equal shards from being priced again, for many programs of one model and cluster.
    """
    calibration = problem.prices.header.calibration
    if calibration is not None:
        return at_planned_work(measured_op_prices(program, problem.model, problem.cluster, calibration), problem)
    return (pricer or OpPricer(problem.model, problem.cluster, all_to_all=options.all_to_all)).price(program)


def _walk(prices: OpPrices, options: SimOptions) -> Outcome:
    layers = prices.program.num_layers
    scripts = make_scripts(prices, options, None, layers)
    finished, metrics, records = [], [], []
    for rank in range(scripts.num_ranks):
        walks = [RankWalk(scripts, rank, kind, options) for kind in (FORWARD, BACKWARD)]
        forward, backward = walks
        times = [forward.time * (layer + 1) for layer in range(layers)]
        times += [times[-1] + backward.time * (layer + 1) for layer in range(layers)]
        finished.append([*times, times[-1]])
        metrics.append([layers * (a + b) for a, b in zip(forward.metrics, backward.metrics, strict=True)])
        if options.trace:
            for stage, walk in ((0, forward), (layers, backward)):
                records += [(k, r, n, stage, a, b, waited, last) for k, r, n, _, a, b, waited, last in walk.records]
    return Outcome(scripts=scripts, finished=finished, metrics=metrics, records=records, events=0)


def _run(prices: OpPrices, options: SimOptions, state: StateTraffic | None, *, shared_links: bool) -> Outcome:
    """Step through as few layers as repeat, or through all of them."""
    layers = prices.program.num_layers
    scripts = make_scripts(prices, options, state, layers)
    check_collectives(scripts)
    simulated = layers
    if options.repeat_layers and options.noise.repeats:
        simulated = min(layers, layers_needed(options.prefetch))
    while True:
        scripts = msgspec.structs.replace(scripts, num_layers=simulated)
        noise = options.noise
        factors = None if noise.is_silent else Factors(noise, prices.cluster, scripts.num_stages)
        network = Network(prices.cluster, scripts.channels, recorded=options.trace) if shared_links else None
        machine = Machine(scripts, options, factors, network)
        while simulated < layers:
            pause = simulated - options.prefetch - 2
            machine.run(pause)
            longer = min(layers, simulated + MORE_LAYERS)
            if forward_repeats(machine, pause, options.prefetch) or not machine.grow(longer):
                break
            simulated = longer
        machine.run()
        repetition = find_repetition(machine, layers, options.prefetch) if simulated < layers else None
        if simulated == layers or repetition is not None:
            return _outcome(machine, repetition)
        # What does not repeat by now drifts: ranks of different pace, until one is as far ahead as it can be.
        simulated = layers


def _outcome(machine: Machine, repetition: Repetition | None) -> Outcome:
    finished = [[stage[0] for stage in rows] for rows in machine.finished]
    if repetition is not None:
        for rank, times in enumerate(finished):
            machine.metrics[rank] = [
                value + repetition.count * (forward + backward)
                for value, forward, backward in zip(
                    machine.metrics[rank], repetition.forward[rank][1:], repetition.backward[rank][1:], strict=True
                )
            ]
            finished[rank] = repetition.extend(rank, times)
    return Outcome(
        scripts=machine.scripts,
        finished=finished,
        metrics=machine.metrics,
        records=[*(machine.records or []), *machine.link_records()],
        events=machine.events,
        repetition=repetition,
        network=machine.network,
    )


def _report(
    prices: OpPrices, problem: Problem, fidelity: Fidelity, outcome: Outcome, state: StateTraffic | None
) -> SimReport:
    program, base = prices.program, problem.memory.base_bytes
    step = max(times[-1] for times in outcome.finished)
    peaks = [
        base + kept * program.num_layers + live for kept, live in zip(prices.kept_bytes, prices.live_bytes, strict=True)
    ]
    fullest = max(range(program.num_ranks), key=lambda rank: (peaks[rank], -rank))
    return SimReport(
        fidelity=fidelity,
        program=program.digest,
        engine=program.engine,
        cluster=prices.cluster.name,
        model=problem.model.name,
        step_time_ns=step,
        num_layers=program.num_layers,
        layers_simulated=outcome.scripts.num_layers,
        events=outcome.events,
        ranks=tuple(
            rank_time(rank, outcome.metrics[rank], outcome.finished[rank][-1], step, peaks[rank])
            for rank in range(program.num_ranks)
        ),
        memory=_memory(prices, base, fullest, outcome.finished[fullest]),
        memory_limit_bytes=problem.memory.usable_bytes,
        sources=constant_sources(prices.cluster, state),
    )


def _memory(prices: OpPrices, base: int, rank: int, finished: list[int]) -> tuple[MemoryPoint, ...]:
    """A layer's live memory while it runs; what it keeps from its forward to its backward."""
    kept, live, layers = prices.kept_bytes[rank], prices.live_bytes[rank], prices.program.num_layers
    points = [MemoryPoint(0, base + kept + live)]
    for stage, time in enumerate(finished[:-1], start=1):
        stored = min(stage + 1, layers) if stage < layers else 2 * layers - stage
        points.append(MemoryPoint(time, base + kept * stored + (live if stage < 2 * layers else 0)))
    return tuple(points)


def _memory_counters(prices: OpPrices, problem: Problem, outcome: Outcome) -> Iterator[Counter]:
    for rank, finished in enumerate(outcome.finished):
        points = _memory(prices, problem.memory.base_bytes, rank, finished)
        yield Counter(
            name=f"rank {rank} memory",
            node=prices.cluster.node_of(rank),
            unit="bytes",
            points=tuple(CounterPoint(point.time_ns, point.used_bytes) for point in points),
        )


def constant_sources(cluster: Cluster, state: StateTraffic | None) -> tuple[str, ...]:
    """Where the constants of a simulation come from, a line each."""
    lines = list(link_sources(cluster))
    if cluster.network is not None:
        lines.append(f"exchanges between nodes: {cluster.network.origin}: {cluster.network.source}")
    lines.append(f"calls: {cluster.host.source}")
    if state is not None:
        for what, time in (("parameter gathers", state.gather), ("gradient reductions", state.reduce)):
            if time is not None:
                lines.append(f"{what}: {time.algorithm}, {time.source}")
    return tuple(lines)
