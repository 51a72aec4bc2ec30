"""How good and how fast planners are: makespans, gaps and planning times on fixed seeded suites.

    python benchmarks/planner.py [--suite NAME ...] [--policies NAME ...] [--repeat N] [--seed N] [--most-ranks N]
        [--fidelity event] [--interpreted] [--json]

Suites: ``paper`` (the 24 batches of arXiv 2608.01150, inferred), ``random16`` and ``random32`` (4, 8 or 12 videos with
50, 200 or 400 images, light to heavy), ``slow`` (the same 16 ranks with an eighth of the link and network bandwidth),
``memory`` (usable memory scaled until whole sequences fill 70 to 95 % of it), ``alike`` (8, 16 or 32 ranks, one to
three shapes of clips, up to eight a rank of each), ``scale`` (64 to 4,096 ranks), ``curve`` (1,024 ranks, 4,000 to
64,000 images). Seed 0 is the one on which the planner's settings were chosen; any other draws clips that it has not
seen (all suites but ``paper``, which has none to draw).

``zellige`` runs in compiled loops where numba is installed (``--interpreted``: without; the plans are the same).

Gaps are to B3, a bound for any rank sets, to the one that the plan states (which may be a better one for any rank
sets), and to the bound within aligned blocks where a plan states one. Times are minima over repeats; beside them they
stand in calibration loops (20,000 rounds of integer work, timed just before and after), for comparison between machines
and on busy ones.

``--fidelity event`` simulates every plan that fits (the coalesced engine, no noise, no gathers of state: what the
makespan is a sum for) and states by how much the step exceeds the makespan. Above 3 % it follows the chain of work that
the step waited for, and simulates the other drafts that ``zellige`` chose among.

Where a policy's plan runs in several parts, its batch is also planned by ``zellige`` in its best micro-steps.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import random
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
from planner_parts import in_parts, print_losses, waited_ns

from zellige.catalog import load_cluster, load_model
from zellige.cluster import Cluster
from zellige.errors import ZelligeError
from zellige.placement import Plan, Problem, make_plan
from zellige.plan import is_compiled, plan_batch, prefer_compiled
from zellige.plan import zellige as planner
from zellige.plan.any_sets import Certificate
from zellige.plan.bounds import best_bound
from zellige.plan.chain import calls_ns, chain_ns, ways_of
from zellige.plan.search_kernel import NEVER
from zellige.program import lower
from zellige.sim import SimOptions, Simulation, simulate
from zellige.sim.what_if import apply_setting
from zellige.sources import Options, batches_of, build_problem, load_setting, read_source
from zellige.workload import Clip, build_batch

MODEL = "wan2.1-t2v-1.3b"
IMAGES = [(256, 256), (512, 512), (832, 480), (1024, 1024), (1280, 720), (1920, 1080)]
VIDEOS = {
    "light": [(832, 480, 33), (832, 480, 81), (1280, 720, 33)],
    "mixed": [(832, 480, 81), (1280, 720, 81), (1280, 720, 161), (1920, 1080, 81)],
    "heavy": [(1280, 720, 161), (1920, 1080, 161), (1920, 1080, 241)],
}
ALIKE = [(512, 512, 1), (1024, 1024, 1), *dict.fromkeys(VIDEOS["light"] + VIDEOS["mixed"])]
ALIKE_DRAWS = 8
PAPER = ("paper-10s-low", "paper-10s-high", "paper-15s-a800x16", "paper-15s-a6000x32")
SHARES = (35, 40, 45, 50, 55, 60)
USES = (0.70, 0.80, 0.85, 0.90, 0.95)
SCALES = (64, 256, 1024, 4096)
CURVE = (4000, 8000, 16_000, 32_000, 64_000)
CALIBRATION = 20_000
ADDITIVE_WITHIN = 0.03
"""A simulated step may exceed the makespan by so much before the report says what it waited for."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--suite", nargs="+", default=["paper", "random16", "random32", "slow", "memory"])
    parser.add_argument("--policies", nargs="+", default=["zellige", "static-coalesced", "dp"])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help="0: the batches that settings were chosen on")
    parser.add_argument("--most-ranks", type=int, default=SCALES[-1], help="leave out larger clusters")
    parser.add_argument("--fidelity", choices=["additive", "event"], default="additive", help="event: simulate plans")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--interpreted", action="store_true", help="without compiled loops")
    arguments = parser.parse_args()
    policies = arguments.policies
    prefer_compiled(not arguments.interpreted)
    compiled = is_compiled()
    if compiled:
        load_compiled_loops()
    rows, own = [], {}
    for suite in arguments.suite:
        for name, problem in suite_problems(suite, arguments.seed):
            if problem.cluster.num_ranks > arguments.most_ranks:
                continue
            simulated = arguments.fidelity == "event"
            found = [measure(suite, name, problem, each, arguments.repeat, simulated=simulated) for each in policies]
            rows += found
            if any(row.get("parts", 1) > 1 for row in found):
                own[suite, name] = in_parts(problem)
    unit = calibrate()
    if arguments.json:
        in_several = [{"suite": suite, "batch": batch, **figures} for (suite, batch), figures in own.items()]
        told = {"calibration_ms": unit, "compiled": compiled, "rows": rows, "zellige_in_parts": in_several}
        print(json.dumps(told, indent=2))
        return
    for row in rows:
        print(as_line(row))
    print(f"\ncalibration loop: {unit:.1f} ms; {'compiled' if compiled else 'interpreted'} loops")
    for suite in arguments.suite:
        for policy in policies:
            print_summary(suite, policy, rows)
            print_excess(suite, policy, rows)
        print_losses(suite, rows, own)


def load_compiled_loops() -> None:
    """Plan until every kind of loop was used: with and without memory that binds."""
    for suite, wanted in (("random16", "8v50i-mixed"), ("memory", "8v50i-mixed@0.85"), ("scale", "64-heavy")):
        problem = next(problem for name, problem in suite_problems(suite) if name == wanted)
        plan_batch(problem, "zellige", "coalesced")


def suite_problems(suite: str, seed: int = 0) -> Iterator[tuple[str, Problem]]:
    """The named batches of a suite, priced."""
    if suite == "paper":
        for name in [f"{prefix}-v{share}" for prefix in PAPER for share in SHARES]:
            source = read_source(name, Options())
            cluster, model = load_setting(source, Options())
            batch, _ = next(iter(batches_of(source, model, Options())))
            yield name, build_problem(batch, cluster=cluster, model=model)
    elif suite in ("random16", "slow", "memory"):
        yield from random_problems(suite, load_cluster("a800x16"), seed)
    elif suite == "random32":
        yield from random_problems(suite, sized(load_cluster("a800x16"), 32), seed)
    elif suite == "alike":
        yield from alike_problems(seed)
    elif suite == "scale":
        for num_ranks in SCALES:
            cluster = sized(load_cluster("a800x16"), num_ranks)
            for kind in ("mixed", "heavy"):
                parts = num_ranks // 16
                yield f"{num_ranks}-{kind}", mixed_problem(cluster, 12 * parts, 250 * parts, kind, seed)
    elif suite == "curve":
        cluster = sized(load_cluster("a800x16"), 1024)
        for images in CURVE:
            yield f"{images} images", mixed_problem(cluster, 768, images, "mixed", seed)
    else:
        raise SystemExit(f"no suite {suite!r}")


def random_problems(suite: str, cluster: Cluster, seed: int) -> Iterator[tuple[str, Problem]]:
    if suite == "slow":
        for setting in ("link.bandwidth=0.125x", "nic.bandwidth=0.125x"):
            cluster = apply_setting(cluster, setting)
    for videos in (4, 8, 12):
        for images in (50, 200, 400):
            for kind in VIDEOS:
                name = f"{videos}v{images}i-{kind}"
                parts = cluster.num_ranks // 16
                problem = mixed_problem(cluster, videos * parts, images * parts, kind, seed)
                if suite != "memory":
                    yield name, problem
                    continue
                for use in USES:
                    yield f"{name}@{use:.2f}", with_use(problem, use)


def alike_problems(seed: int) -> Iterator[tuple[str, Problem]]:
    """Batches of few shapes, whose whole clips fill ranks unevenly; what no memory holds is left out."""
    for num_ranks, number in itertools.product((8, 16, 32), (1, 2, 3)):
        for draw in range(ALIKE_DRAWS):
            chance = random.Random(f"alike/{num_ranks}/{number}/{draw}" + (f"/{seed}" if seed else ""))
            clips = [
                Clip(id=f"{width}x{height}x{frames}-{index}", width=width, height=height, num_frames=frames)
                for width, height, frames in chance.sample(ALIKE, number)
                for index in range(chance.randint(1, chance.choice((num_ranks // 2, 2 * num_ranks, 8 * num_ranks))))
            ]
            batch, _ = build_batch("alike", clips, load_model(MODEL))
            problem = build_problem(batch, cluster=sized(load_cluster("a800x16"), num_ranks), model=MODEL)
            counts = "+".join(f"{count}x{bucket.name}" for bucket, count in problem.counts.items())
            needed = sum(problem.whole(bucket).kept_bytes * count for bucket, count in problem.counts.items())
            if needed < 0.7 * num_ranks * problem.memory.room_bytes:
                yield f"{num_ranks}:{counts}", problem


def mixed_problem(cluster: Cluster, videos: int, images: int, kind: str, seed: int) -> Problem:
    """Clips drawn by a seed that the sizes make, and the given one."""
    chance = random.Random(f"{videos}/{images}/{kind}" + (f"/{seed}" if seed else ""))
    clips = [
        Clip(id=f"v{index}", width=w, height=h, num_frames=frames)
        for index, (w, h, frames) in enumerate(chance.choices(VIDEOS[kind], k=videos))
    ]
    clips += [
        Clip(id=f"i{index}", width=w, height=h, num_frames=1)
        for index, (w, h) in enumerate(chance.choices(IMAGES, k=images))
    ]
    batch, _ = build_batch(kind, clips, load_model(MODEL))
    return build_problem(batch, cluster=cluster, model=MODEL)


def sized(cluster: Cluster, num_ranks: int) -> Cluster:
    """The cluster with another number of nodes."""
    nodes = num_ranks // cluster.ranks_per_node
    return msgspec.structs.replace(cluster, name=f"{cluster.name}-as-{num_ranks}", num_nodes=nodes)


def with_use(problem: Problem, use: float) -> Problem:
    """The problem with as much memory as lets all sequences, whole, fill a part of it (and the longest fit split)."""
    need = (
        sum(problem.whole(bucket).kept_bytes * count for bucket, count in problem.counts.items())
        / problem.cluster.num_ranks
    )
    memory = msgspec.structs.replace(problem.memory, usable_bytes=problem.memory.base_bytes + int(need / use))
    return dataclasses.replace(problem, memory=memory)


def measure(
    suite: str, name: str, problem: Problem, policy: str, repeat: int, *, simulated: bool = False
) -> dict[str, Any]:
    """A plan's figures, and the least of its planning times."""
    plans: list[Plan] = []
    row: dict[str, Any] = {"suite": suite, "batch": name, "policy": policy}
    row["sequences"], row["ranks"] = len(problem.batch.sequences), problem.cluster.num_ranks
    units = []
    try:
        for _ in range(repeat):
            before = calibrate()
            plans.append(plan_batch(problem, policy, "coalesced"))
            units.append((before + calibrate()) / 2)
    except ZelligeError as error:
        return {**row, "error": str(error).splitlines()[0]}
    plan = plans[0]
    blocks = plan.makespan_ns / plan.blocks_bound_ns - 1 if plan.blocks_bound_ns else None
    return {
        **row,
        "seconds": plan.makespan_ns / 1e9,
        "fits": plan.fits,
        "parts": len(plan.parts),
        "waited_seconds": waited_ns(problem, plan) / 1e9,
        "gap": plan.gap,
        "b3_gap": plan.makespan_ns / best_bound(dataclasses.replace(problem, engine="coalesced"))[0] - 1,
        "blocks_gap": blocks,
        "planning_ms": min(p.solver.planning_ns for p in plans) / 1e6,
        "loops": min(p.solver.planning_ns / 1e6 / unit for p, unit in zip(plans, units, strict=True)),
        **(in_simulator(plan, problem) if simulated and plan.fits else {}),
    }


def in_simulator(plan: Plan, problem: Problem) -> dict[str, Any]:
    """The simulated step, its excess over the makespan and, where that is large, why, and whether a draft avoids it."""
    problem = dataclasses.replace(problem, engine=plan.engine)
    step = simulated_step(plan, problem).report.step_time_ns
    excess = step / plan.makespan_ns - 1
    row: dict[str, Any] = {"simulated_seconds": step / 1e9, "excess": excess}
    if excess > ADDITIVE_WITHIN:
        row["chain"] = chain_over_makespan(plan, problem)
        row["crossing_sets"] = crossing_sets(plan)
        row["waits_for"] = critical_path(simulated_step(plan, problem, trace=True))
        row["drafts"] = simulated_drafts(plan, problem, step) if plan.policy == "zellige" else []
    return row


def simulated_step(plan: Plan, problem: Problem, *, trace: bool = False) -> Simulation:
    """A step without noise and without gathers; with a trace every layer is stepped through."""
    options = SimOptions(state_traffic=False, trace=trace, repeat_layers=not trace)
    return simulate(lower(plan, problem), problem, "event", options)


def chain_over_makespan(plan: Plan, problem: Problem) -> float:
    """The chain of the split sequences, with the engine's calls, over the makespan."""
    ways = ways_of(problem, plan.placements)
    rounds = max((way.rung.option.config.k for way in ways), default=0)
    return (chain_ns(problem, ways) + calls_ns(problem, rounds)) / plan.makespan_ns


def crossing_sets(plan: Plan) -> int:
    """Pairs of rank sets of split sequences that overlap and do not nest."""
    sets = {frozenset(placement.ranks) for placement in plan.placements if placement.config.is_split}
    pairs = itertools.combinations(sets, 2)
    return sum(1 for one, other in pairs if one & other and one & other not in (one, other))


def critical_path(done: Simulation) -> dict[str, float]:
    """Shares of the step, by operation and rank, of the chain that ends it, the largest first: back from the rank that
    ends last and, through every exchange that it waited for, on to the rank that came last to it."""
    ends = {}
    transfers = {}
    for span in done.trace.spans:
        if span.lane == "network":
            transfers[span.rank, span.name, span.stop_ns] = span
        elif span.duration_ns:
            ends[span.rank, span.stop_ns] = span
    time_ns = done.report.step_time_ns
    rank = next(each.rank for each in done.report.ranks if each.idle_ns == 0)
    shares: Counter[str] = Counter()
    while time_ns:
        span = ends[rank, time_ns]
        name = span.name
        if name.endswith(".wait"):
            span = transfers[rank, name.removesuffix(".wait"), time_ns]
            rank, label = span.last_rank, "exchanges"
        else:
            label = "calls" if span.lane == "wait" else f"{name.split('.')[-1]} on {rank}"
        shares[label] += span.duration_ns
        time_ns = span.start_ns
    return {label: total / done.report.step_time_ns for label, total in shares.most_common()}


def simulated_drafts(plan: Plan, problem: Problem, step: int) -> list[dict[str, Any]]:
    """The other drafts that the planner chose among, by their simulated step over the plan's."""
    known = Certificate(problem, *best_bound(problem))
    drafts = planner._drafts(problem, planner._families(problem), {}, known)
    drafts += planner._uniform(problem, min((makespan for makespan, _ in drafts), default=NEVER))
    found = {}
    for _, draft in drafts:
        placements = planner._placements(problem, draft)
        other = make_plan(problem, "zellige", placements, bound=(plan.bound_ns, plan.bound), solver=plan.solver)
        if other.placements != plan.placements and other.fits:
            found[other.placements] = other
    rows = []
    for other in found.values():
        reached = simulated_step(other, problem).report.step_time_ns
        over = {"makespan": other.makespan_ns / plan.makespan_ns - 1, "simulated": reached / step - 1}
        rows.append({**over, "excess": reached / other.makespan_ns - 1, "chain": chain_over_makespan(other, problem)})
    return sorted(rows, key=lambda row: row["simulated"])


def as_line(row: dict[str, Any]) -> str:
    head = f"{row['suite']:9} {row['batch']:26} {row['policy']:24} {row['sequences']:6} "
    if "error" in row:
        return head + str(row["error"])
    blocks = "      -" if row["blocks_gap"] is None else f"{row['blocks_gap']:7.2%}"
    full = "" if row["fits"] else "  over memory"
    times = f"{row['planning_ms']:8.2f} ms {row['loops']:7.2f} loops"
    excess = f"  simulated {row['excess']:+7.2%}" if "excess" in row else ""
    gaps = f"B3 {row['b3_gap']:7.2%}  stated {row['gap']:7.2%}  blocks {blocks}"
    return head + f"{row['seconds']:10.2f} s  {gaps} {times}{excess}{full}"


def print_summary(suite: str, policy: str, rows: list[dict[str, Any]]) -> None:
    mine = [row for row in rows if (row["suite"], row["policy"]) == (suite, policy)]
    good = [row for row in mine if row.get("fits")]
    print(f"{suite:9} {policy:24} {len(good)} of {len(mine)} fit", end="")
    if good:
        for label, values in (
            ("B3", [float(row["b3_gap"]) for row in good]),
            ("stated", [float(row["gap"]) for row in good]),
            ("blocks", [float(row["blocks_gap"]) for row in good if row["blocks_gap"] is not None]),
        ):
            if values:
                print(f"; {label} mean {statistics.fmean(values):.2%} max {max(values):.2%}", end="")
        times = sorted(row["planning_ms"] for row in good)
        print(f"; ms median {statistics.median(times):.2f} p99 {times[int(0.99 * (len(times) - 1))]:.2f}", end="")
        loops = sorted(row["loops"] for row in good)
        print(f"; loops median {statistics.median(loops):.2f} p99 {loops[int(0.99 * (len(loops) - 1))]:.2f}", end="")
    print()


def print_excess(suite: str, policy: str, rows: list[dict[str, Any]]) -> None:
    """By how much simulated steps exceed makespans, and why where by much."""
    mine = [row for row in rows if (row["suite"], row["policy"]) == (suite, policy) and "excess" in row]
    if not mine:
        return
    values = [float(row["excess"]) for row in mine]
    above = [row for row in mine if "chain" in row]
    print(
        f"  simulated over makespan, {len(mine)} plans: mean {statistics.fmean(values):+.2%} min {min(values):+.2%}"
        f" max {max(values):+.2%}; above {ADDITIVE_WITHIN:.0%}: {len(above)}"
    )
    for row in above:
        path = ", ".join(f"{label} {share:.0%}" for label, share in row["waits_for"].items() if share >= 0.05)
        print(f"  {row['batch']}: {row['excess']:+.2%}, stated gap {row['gap']:.2%}; binding chain: {path}")
        tried = f"other drafts: {len(row['drafts'])}" if policy == "zellige" else "no other plan was tried"
        sets = f"{row['crossing_sets']} pairs of rank sets cross" if row["crossing_sets"] else "rank sets nest"
        print(f"    chain of split work {row['chain']:.2%} of the makespan; {sets}; {tried}")
        for draft in row["drafts"]:
            print(
                f"      makespan {draft['makespan']:+.2%}, simulated {draft['simulated']:+.2%} against the plan's;"
                f" excess {draft['excess']:+.2%}, chain {draft['chain']:.2%}"
            )


def calibrate() -> float:
    """Milliseconds of a fixed loop of integer work: the machine's speed at this moment."""
    best = float("inf")
    for _ in range(3):
        started, total = time.perf_counter(), 0
        for value in range(CALIBRATION):
            total += value * value % 7
        best = min(best, time.perf_counter() - started)
    return best * 1e3


if __name__ == "__main__":
    main()
