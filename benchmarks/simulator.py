"""How fast the simulator is: events a second, batches a second, one very large step, and a simpy model as a peer.

    python benchmarks/simulator.py [--quick] [--json]

Plans are made by a fixed rule here, so that planning takes no part; figures with a target say whether they meet it.
Times are of this process (CPU seconds, one core).
simpy is optional (``pip install simpy``).
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from zellige.analytic import analytic_table
from zellige.catalog import load_cluster, load_model
from zellige.chrome_trace import chrome_events
from zellige.memory import memory_model
from zellige.op_prices import OpPricer, OpPrices
from zellige.placement import Engine, Placement, Problem, rank_costs
from zellige.program import Program, lower
from zellige.shards import parse_config
from zellige.sim import SimOptions, simulate
from zellige.sim.machine import Machine
from zellige.sim.scripts import COMPUTE, ENTER, WAIT, Scripts, make_scripts
from zellige.sim.sweep import PlanSums
from zellige.sources import Options, batches_of, build_problem, load_setting, price_book, read_source
from zellige.workload import Batch, Sequence, make_bucket

SHAPES = ((256, 256, 1), (832, 480, 1), (1280, 720, 1), (832, 480, 81), (1280, 720, 81))
SEQUENCES_A_RANK = 4
FULL = SimOptions(repeat_layers=False)

TARGETS = {
    "event_events_per_s": (">=", 150_000),
    "additive_10000x2_s": ("<=", 10),
    "event_1000x2_s": ("<=", 60),
    "with_trace_s": ("<=", 10),
}
"""What is asked of a 2-core machine; ``with_trace_s`` is one step of 1,024 ranks and 40 layers with all spans."""


def problem_for(cluster_name: str, model_name: str, engine: Engine, seed: int) -> Problem:
    """A batch of four sequences a rank, in random shapes; prices without configurations that the rule never uses."""
    cluster, model = load_cluster(cluster_name), load_model(model_name)
    buckets = tuple(make_bucket(model, *shape) for shape in SHAPES)
    draw = random.Random(seed)
    count = SEQUENCES_A_RANK * cluster.num_ranks
    sequences = tuple(Sequence(f"s{index}", draw.choices(buckets, (4, 4, 4, 2, 1))[0]) for index in range(count))
    batch = Batch(name=f"random-{seed}", sequences=sequences, buckets=buckets)
    prices = analytic_table(model, cluster, buckets, "full", max_degree=8)
    return Problem(batch, cluster, model, prices, memory_model(model, cluster, "zero3", "full"), engine)


def place(problem: Problem) -> list[Placement]:
    """Videos over the four or two least loaded neighbours, images whole to the least loaded rank, longest first."""
    load = [0] * problem.cluster.num_ranks
    placements = []
    for sequence in sorted(problem.batch.sequences, key=lambda s: -s.bucket.num_tokens):
        tokens = sequence.bucket.num_tokens
        config = parse_config("h4" if tokens > 60_000 else "h2" if tokens > 20_000 else "whole")
        width = config.degree
        start = min(range(0, len(load), width), key=lambda first: sum(load[first : first + width]))
        ranks = tuple(range(start, start + width))
        work = problem.option_on(sequence.bucket.name, config, ranks)
        for rank in ranks:
            load[rank] += work.time_ns if work is not None else 0
        placements.append(Placement(sequence=sequence.id, bucket=sequence.bucket.name, config=config, ranks=ranks))
    return placements


def seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    started = time.process_time()
    result = call()
    return time.process_time() - started, result


def events_a_second(quick: bool) -> dict[str, float]:
    problem = problem_for("h100x64", "wan2.1-t2v-14b", "coalesced", 0)
    program = lower(place(problem), problem)
    prices = OpPricer(problem.model, problem.cluster).price(program)
    rates = {}
    for fidelity in ("event", "flow"):
        best = min(
            seconds(lambda fidelity=fidelity: simulate(program, problem, fidelity, FULL, prices=prices).report.events)
            for _ in range(1 if quick else 3)
        )
        rates[f"{fidelity}_events_per_s"] = round(best[1] / best[0])
    return rates


def batches_a_second(quick: bool) -> dict[str, float]:
    """16 ranks, 64 sequences, two policies: a mixed plan under our engine, and the same placements one by one."""
    base = problem_for("a800x16", "wan2.1-t2v-1.3b", "coalesced", 0)
    count = 20 if quick else 100
    cases: list[tuple[Problem, list[Placement]]] = []
    for seed in range(count):
        batch = dataclasses.replace(base, batch=problem_for_batch(base, seed))
        for engine in ("coalesced", "group"):
            posed = dataclasses.replace(batch, engine=engine)
            _ = posed.options
            cases.append((posed, place(posed)))
    figures: dict[str, float] = {}
    sums = {engine: PlanSums(dataclasses.replace(base, engine=engine)) for engine in ("coalesced", "group")}
    costs, times = seconds(lambda: [sums[problem.engine].times_ns(plan) for problem, plan in cases])
    assert tuple(times[0]) == rank_costs(*cases[0]).times_ns
    figures["additive_from_prices_ms"] = 1e3 * costs / len(cases)
    lowering, programs = seconds(lambda: [lower(plan, problem) for problem, plan in cases])
    pricer = OpPricer(base.model, base.cluster)
    pricing, priced = seconds(lambda: [pricer.price(program) for program in programs])
    figures["lower_ms"], figures["price_ms"] = 1e3 * lowering / len(cases), 1e3 * pricing / len(cases)
    for fidelity in ("additive", "event", "flow"):
        took, _ = seconds(
            lambda fidelity=fidelity: [
                simulate(program, problem, fidelity, prices=prices)
                for (problem, _), program, prices in zip(cases, programs, priced, strict=True)
            ]
        )
        figures[f"{fidelity}_ms"] = 1e3 * took / len(cases)
    figures["additive_10000x2_s"] = 20 * figures["additive_from_prices_ms"]
    figures["additive_programs_10000x2_s"] = 20 * sum(figures[f"{part}_ms"] for part in ("lower", "price", "additive"))
    figures["event_1000x2_s"] = 2 * sum(figures[f"{part}_ms"] for part in ("lower", "price", "event"))
    return {name: round(value, 3) for name, value in figures.items()}


def problem_for_batch(base: Problem, seed: int) -> Batch:
    draw = random.Random(seed)
    buckets = base.batch.buckets
    count = SEQUENCES_A_RANK * base.cluster.num_ranks
    return Batch(
        name=f"random-{seed}",
        sequences=tuple(Sequence(f"s{i}", draw.choices(buckets, (4, 4, 4, 2, 1))[0]) for i in range(count)),
        buckets=buckets,
    )


def one_large_step(quick: bool) -> dict[str, float]:
    """1,024 ranks, 40 layers, 4,096 sequences, with its trace as JSON."""
    problem = problem_for("h100x64" if quick else "h100x1024", "wan2.1-t2v-14b", "coalesced", 0)
    plan = place(problem)
    figures: dict[str, float] = {}
    figures["lower_s"], program = seconds(lambda: lower(plan, problem))
    figures["price_s"], prices = seconds(lambda: OpPricer(problem.model, problem.cluster).price(program))
    figures["simulate_s"], done = seconds(lambda: simulate(program, problem, prices=prices))
    figures["simulate_all_layers_s"], full = seconds(lambda: simulate(program, problem, "event", FULL, prices=prices))
    assert full.report.step_time_ns == done.report.step_time_ns
    figures["events_per_s"] = full.report.events / figures["simulate_all_layers_s"]
    figures["with_trace_s"], traced = seconds(
        lambda: simulate(program, problem, "event", SimOptions(trace=True), prices=prices)
    )
    figures["spans"] = len(traced.trace.spans)
    figures["chrome_json_s"], text = seconds(lambda: msgspec.json.encode(chrome_events(traced.trace)))
    figures["chrome_json_mb"] = len(text) / 1e6
    return {name: round(value, 3) for name, value in figures.items()}


def building(quick: bool) -> dict[str, float]:
    """Problems of generated batches: drawn, priced one by one or from one book of prices, and their options."""
    options = Options(batches=10 if quick else 100)
    source = read_source("gen:openvid", options)
    cluster, model = load_setting(source, options)
    drawing, batches = seconds(lambda: [batch for batch, _ in batches_of(source, model, options)])
    few = batches[: max(1, len(batches) // 10)]
    alone, _ = seconds(lambda: [build_problem(batch, cluster=cluster, model=model) for batch in few])
    book = price_book(model, cluster, "full")
    shared, problems = seconds(
        lambda: [build_problem(batch, cluster=cluster, model=model, prices=book) for batch in batches]
    )
    again, _ = seconds(lambda: [build_problem(batch, cluster=cluster, model=model, prices=book) for batch in batches])
    ready, _ = seconds(lambda: [problem.options for problem in problems])
    return {
        "draw_ms": round(1e3 * drawing / len(batches), 3),
        "problem_alone_ms": round(1e3 * alone / len(few), 3),
        "problem_shared_ms": round(1e3 * shared / len(batches), 3),
        "problem_all_buckets_known_ms": round(1e3 * again / len(batches), 3),
        "options_ms": round(1e3 * ready / len(batches), 3),
    }


def simpy_step(scripts: Scripts) -> tuple[int, int]:
    """The same scripts as simpy processes: step time, and events that simpy processed."""
    import simpy

    env = simpy.Environment()
    visits: dict[int, list[tuple[list[int], Any]]] = {}
    events = 0

    def meet(channel: int, stage: int, rank: int) -> Any:
        nonlocal events
        key = stage * len(scripts.channels) + channel
        meetings = scripts.channels[channel].meetings
        if key not in visits:
            visits[key] = [([len(meeting.peers)], env.event()) for meeting in meetings]
        for index in scripts.channels[channel].needed_by[rank]:
            missing, over = visits[key][index]
            missing[0] -= 1
            if not missing[0]:
                events += 2
                over.succeed(delay=0) if not meetings[index].transfer_ns else env.process(
                    transfer(meetings[index].transfer_ns, over)
                )
        return visits[key][scripts.channels[channel].freed_by[rank]][1]

    def transfer(duration: int, over: Any) -> Iterator[Any]:
        yield env.timeout(duration)
        over.succeed()

    spent: list[dict[str, float]] = [{"work": 0, "wait": 0} for _ in range(scripts.num_ranks)]

    def rank_process(rank: int) -> Iterator[Any]:
        nonlocal events
        for stage in range(scripts.num_stages):
            entered: dict[int, Any] = {}
            for code, first, second, _, call, _ in scripts.parts[scripts.kind(stage)][rank]:
                if code == COMPUTE:
                    events += 1
                    spent[rank]["work"] += first + call
                    yield env.timeout(first + call)
                elif code == ENTER:
                    entered[second] = meet(second, stage, rank)
                elif code == WAIT:
                    events += 1
                    since = env.now
                    yield entered[second]
                    spent[rank]["wait"] += env.now - since

    for rank in range(scripts.num_ranks):
        env.process(rank_process(rank))
    env.run()
    return int(env.now), events


def simpy_peer(quick: bool) -> dict[str, float]:
    """The instructions of a 64-rank step, without gathers and slow-down, in both; ours also counts every cause."""
    if importlib.util.find_spec("simpy") is None:
        return {}
    problem = problem_for("h100x64", "wan2.1-t2v-14b", "coalesced", 0)
    program: Program = lower(place(problem), problem)
    prices: OpPrices = OpPricer(problem.model, problem.cluster).price(program)
    options = SimOptions(repeat_layers=False, state_traffic=False, slowdown=0.0)
    scripts = make_scripts(prices, options, None, program.num_layers)
    theirs, ours = [], []
    for _ in range(1 if quick else 5):
        took, (step, events) = seconds(lambda: simpy_step(scripts))
        theirs.append(took)
        machine = Machine(scripts, options)
        ours.append(seconds(machine.run)[0])
        assert step == max(finished[-1][0] for finished in machine.finished)
    return {
        "simpy_s": round(min(theirs), 3),
        "ours_s": round(min(ours), 3),
        "simpy_events_per_s": round(events / min(theirs)),
        "our_events_per_s": round(machine.events / min(ours)),
        "times_faster": round(min(theirs) / min(ours), 2),
    }


def verdict(label: str, value: float) -> str:
    """Whether a figure meets its target, where it has one."""
    if label not in TARGETS:
        return ""
    sign, target = TARGETS[label]
    met = value >= target if sign == ">=" else value <= target
    return f"  {'ok' if met else 'MISSED'}: target {sign} {target:,}"


def main() -> None:
    quick = "--quick" in sys.argv
    parts: dict[str, Callable[[bool], dict[str, float]]] = {
        "events": events_a_second,
        "batches of 64 sequences on 16 ranks (each)": batches_a_second,
        "one step of 1,024 ranks and 40 layers": one_large_step,
        "problems of generated batches of 300 sequences on 8 ranks (each)": building,
        "the same 64-rank step in simpy": simpy_peer,
    }
    report = {name: part(quick) for name, part in parts.items()}
    if "--json" in sys.argv:
        print(json.dumps(report, indent=1))
        return
    for name, figures in report.items():
        print(name)
        for label, value in figures.items():
            print(f"  {label:<32} {value:>14,}{verdict(label, value)}")


if __name__ == "__main__":
    main()
