"""Traces of simulated steps: spans, arrivals and counters say what the report says."""

from __future__ import annotations

import itertools
from collections import Counter as Count

import msgspec
import pytest
from builders import NODE, TWO_NODES, model_of, problem_of, program_of
from oracle.trace_format import violations

from zellige.chrome_trace import chrome_events
from zellige.cluster import Cluster
from zellige.op_prices import OpPricer
from zellige.placement import Engine, Problem
from zellige.program import Program
from zellige.sim import FIDELITIES, Fidelity, SimOptions, simulate
from zellige.sim.network import Ports
from zellige.sim.simulate import Simulation
from zellige.sim.state import state_traffic
from zellige.trace import Counter, Span

MIXED = (
    (30_000, "h4", (0, 1, 2, 3)),
    (9_000, "h2k2", (2, 3, 4, 5)),
    (6_000, "q2", (6, 7)),
    (4_000, "whole", (0,)),
    (8_000, "whole", (5,)),
)
ACROSS = (*MIXED, (40_000, "h4k2", (4, 5, 6, 7, 8, 9, 10, 11)), (3_000, "whole", (12,)))


def run(
    cluster: Cluster = NODE, fidelity: Fidelity = "event", engine: Engine = "coalesced", *, layers: int = 30
) -> Simulation:
    problem = problem_of(cluster, model_of(layers), engine=engine)
    program = program_of(MIXED if cluster is NODE else ACROSS, problem)
    return simulate(program, problem, fidelity, SimOptions(trace=True))


def counters(done: Simulation, word: str) -> dict[str, Counter]:
    return {counter.name: counter for counter in done.trace.counters if word in counter.name}


@pytest.mark.parametrize("engine", ["coalesced", "group", "per_sequence"])
@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_traces_keep_the_rules_of_the_format(fidelity: Fidelity, engine: Engine) -> None:
    done = run(fidelity=fidelity, engine=engine, layers=12)
    document = chrome_events(done.trace)
    assert violations(document) == []
    phases = Count(event["ph"] for event in document["traceEvents"])
    assert phases["X"] == len(done.trace.spans)
    assert (phases["s"] > 0) == (fidelity != "additive")
    assert max(span.stop_ns for span in done.trace.spans) == done.report.step_time_ns


@pytest.mark.parametrize("cluster", [NODE, TWO_NODES], ids=lambda cluster: cluster.name)
@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_memory_counters_peak_where_the_report_does(fidelity: Fidelity, cluster: Cluster) -> None:
    done = run(cluster, fidelity)
    memory = counters(done, "memory")
    assert list(memory) == [f"rank {rank} memory" for rank in range(cluster.num_ranks)]
    for time, (name, counter) in zip(done.report.ranks, memory.items(), strict=True):
        assert max(point.value for point in counter.points) == time.peak_memory_bytes, name
        assert (counter.points[0].value < time.peak_memory_bytes) == (time.compute_ns > 0)
        assert counter.node == cluster.node_of(time.rank)
        assert [p.time_ns for p in counter.points] == sorted(p.time_ns for p in counter.points)
        assert counter.points[-1].time_ns <= done.report.step_time_ns
    fullest = max(memory.values(), key=lambda counter: max(p.value for p in counter.points))
    assert [tuple(msgspec.structs.astuple(p)) for p in fullest.points] == [
        tuple(msgspec.structs.astuple(p)) for p in done.report.memory
    ]


@pytest.mark.parametrize("cluster", [NODE, TWO_NODES], ids=lambda cluster: cluster.name)
def test_links_carry_what_the_step_sends_and_no_more_than_they_can(cluster: Cluster) -> None:
    done = run(cluster, "flow")
    problem = problem_of(cluster, model_of(30))
    program = program_of(MIXED if cluster is NODE else ACROSS, problem)
    ports = Ports(cluster)
    links = {name: counter for name, counter in counters(done, "").items() if "memory" not in name}
    assert set(links) <= set(ports.labels)
    capacities = dict(zip(ports.labels, ports.capacities, strict=True))
    for name, counter in links.items():
        assert counter.points[-1].value == 0
        assert 0 < max(point.value for point in counter.points) <= capacities[name] / 1e6 * (1 + 1e-6)
    sent = sent_inside(cluster, problem, program)
    checked = 0
    for rank, size in enumerate(sent):
        points = links[f"rank {rank} link out"].points
        carried = sum(here.value * (there.time_ns - here.time_ns) for here, there in itertools.pairwise(points))
        assert carried == pytest.approx(size, rel=0.001)
        checked += size > 0
    assert checked == cluster.num_ranks


def sent_inside(cluster: Cluster, problem: Problem, program: Program) -> list[int]:
    """Bytes that every rank sends over its link inside the node in a step, counted from messages and collectives."""
    state = state_traffic(problem.model, cluster, "zero3")
    assert state.gather is not None
    layers = program.num_layers
    moved = [(2 * layers, state.transfers(state.gather, True)), (layers, state.transfers(state.reduce, False))]
    prices = OpPricer(problem.model, cluster).price(program)
    for exchange, price in zip(program.exchanges, prices.exchanges, strict=True):
        moved.append((layers * (2 if exchange.phase == "forward" else 1), list(price.transfers)))
    sent = [0] * cluster.num_ranks
    for times, transfers in moved:
        for source, destination, size in transfers:
            if cluster.node_of(source) == cluster.node_of(destination):
                sent[source] += times * size
    return sent


def by_exchange(spans: tuple[Span, ...], suffix: str) -> dict[tuple[str, int, int], Span]:
    return {
        (span.name.removesuffix(suffix), span.layer, span.rank): span
        for span in spans
        if span.name.endswith(suffix) and "fsdp" not in span.name
    }


@pytest.mark.parametrize("fidelity", ["event", "flow"])
@pytest.mark.parametrize("engine", ["coalesced", "per_sequence"])
def test_exchanges_know_who_came_last_and_how_long_others_waited(fidelity: Fidelity, engine: Engine) -> None:
    done = run(fidelity=fidelity, engine=engine)
    calls = by_exchange(done.trace.spans, ".call")
    exchanges = [s for s in done.trace.spans if s.lane == "network" and not s.name.startswith("fsdp")]
    assert len(exchanges) > 300
    waited = 0
    for span in exchanges:
        mine, last = (calls[span.name, span.layer, rank] for rank in (span.rank, span.last_rank))
        assert last.stop_ns <= span.start_ns
        assert mine.stop_ns <= span.start_ns - span.waited_ns
        assert span.last_rank != span.rank or span.waited_ns == 0
        waited += span.waited_ns > 0
    assert waited > 100


def test_repeated_layers_have_the_trace_of_all_layers() -> None:
    problem = problem_of(NODE, model_of(20))
    program = program_of(MIXED, problem)
    short, full = (
        simulate(program, problem, "flow", SimOptions(trace=True, repeat_layers=repeat)) for repeat in (True, False)
    )
    assert short.report.layers_simulated < full.report.layers_simulated
    assert short.trace.spans == full.trace.spans
    for ours, theirs in zip(short.trace.counters, full.trace.counters, strict=True):
        assert (ours.name, ours.points[-1].time_ns) == (theirs.name, theirs.points[-1].time_ns)
        if ours.unit == "bytes":
            assert ours == theirs


def test_nothing_is_recorded_unless_asked_for() -> None:
    problem = problem_of(NODE, model_of(12))
    done = simulate(program_of(MIXED, problem), problem, "flow")
    assert (done.trace.spans, done.trace.counters) == ((), ())
