"""What the default planner owes, checked: against exhaustive search, on batches short of memory, and run after run.

    python benchmarks/planner_oracle.py [--instances N] [--poor N] [--repeat N] [--cp-sat UNITS] [--jobs N] [--json]

``--instances``: 2 to 6 sequences on 4 to 8 ranks of 1, 2 or 4 nodes, prices analytic or made up, both engines, memory
tight in a third. Bound <= optimum over **any** rank sets <= plan, and no plan on aligned blocks is below their bound.
``--poor``: batches of ``planner.py`` on 16 ranks that, whole, fill 93 to 115 % of the memory. Each gets a plan or
micro-steps; CP-SAT tries what gets no plan though memory does not rule one out. ``--repeat``: so many plans of a batch
from four processes, two compiled, with hash seeds of their own; renamed; with prices doubled. Exits 1 on any failure.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import random
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import combinations, islice, product
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from oracle import brute_force
from oracle.brute_force import LOOSE, MIB, MILLISECOND, Way, make_price, packed_exchange_ns, small_cluster
from planner import IMAGES, MODEL, VIDEOS, mixed_problem, suite_problems, with_use

from zellige.catalog import load_cluster, load_model
from zellige.cluster import Cluster
from zellige.errors import InfeasibleError, NoRoomError, SequenceTooLargeError, TimeLimitError
from zellige.placement import ENGINES, Plan, Problem
from zellige.plan import is_compiled, plan_batch, prefer_compiled
from zellige.plan.bounds import best_bound
from zellige.plan.joint import Limits, solve_joint
from zellige.plan.micro_steps import plan_in_steps, policy_planner
from zellige.plan.room import room_need
from zellige.prices import Price, PriceRow
from zellige.shards import ParallelConfig
from zellige.sim.what_if import apply_setting
from zellige.sources import build_problem
from zellige.workload import Clip, build_batch

CLUSTERS = ((4, 1), (4, 2), (5, 1), (6, 1), (6, 2), (7, 1), (8, 1), (8, 2), (8, 4))
Row = dict[str, Any]
RankSets = dict[tuple[int, int], list[tuple[int, ...]]]
State = tuple[tuple[int, int, int], ...]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--instances", type=int, default=300, help="small batches against exhaustive search")
    parser.add_argument("--poor", type=int, default=100, help="batches short of memory")
    parser.add_argument("--repeat", type=int, default=100, help="plans of each batch and process")
    parser.add_argument("--cp-sat", type=float, default=10.0, help="deterministic limit of CP-SAT on a poor batch")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--digests", choices=("compiled", "interpreted"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.digests:
        print(json.dumps(digests(arguments.repeat, compiled=arguments.digests == "compiled")))
        return
    parts: dict[str, Row] = {}
    with ProcessPoolExecutor(arguments.jobs, initializer=prefer_compiled) as pool:
        if arguments.instances:
            parts["instances"] = sum_up_instances(list(pool.map(check_instance, range(arguments.instances))))
        if arguments.poor:
            check = functools.partial(check_poor, limit=arguments.cp_sat)
            parts["poor"] = sum_up_poor(list(pool.map(check, range(arguments.poor))))
    if arguments.repeat:
        parts["repeat"] = check_repeats(arguments.repeat)
    if arguments.json:
        print(json.dumps(parts, indent=2))
    for key, value in [] if arguments.json else [pair for part in parts.values() for pair in part.items()]:
        print(key, *(value if isinstance(value, list) else [value]), sep="\n  ")
    sys.exit(any(part["broken"] for part in parts.values()))


class Use(NamedTuple):
    """What a sequence takes of each of ``degree`` ranks on ``span`` nodes."""

    time: int
    kept: int
    live: int
    rounds: int
    degree: int
    span: int


def check_instance(number: int) -> Row:
    """A small batch's optimum, bounds and plan, and what of them is broken."""
    problem, kind = small_problem(number)
    cluster = problem.cluster
    everywhere, blocks = rank_sets(cluster), rank_sets(cluster, blocks=True)
    row: Row = {"number": number, "kind": kind, "size": f"{len(problem.batch.sequences)} on {cluster.name}"}
    try:
        plan = plan_batch(problem, "zellige", problem.engine)
    except (NoRoomError, SequenceTooLargeError) as error:
        best = least_makespan(problem, everywhere, LOOSE)
        on_blocks = least_makespan(problem, blocks, LOOSE, alike=False) if best else None
        row |= {"planned": False, "error": error.message, "optimum_ns": best, "on_blocks_ns": on_blocks}
        return row | {"broken": ["bound <= optimum"] if best is not None and best_bound(problem)[0] > best else []}
    spans = [(p, cluster.footprint(p.ranks)) for p in plan.placements]
    ways = [Way(p.config, p.ranks, n, price_on(problem.prices.rows, p.bucket, p.config, n)) for p, n in spans]
    times, _, needs = brute_force.costs(problem, ways)
    # the search starts just above the plan, so it must find something at least as good, or one of the two is wrong
    best = least_makespan(problem, everywhere, max(times) + 1)
    predicted = [(p.time_ns, p.memory_bytes) for p in plan.predicted]
    owed = {
        "costs": predicted == list(zip(times, needs, strict=True)) and plan.makespan_ns == max(times),
        "memory": plan.fits and max(needs) <= problem.memory.usable_bytes,
        "every sequence once": [p.sequence for p in plan.placements] == [s.id for s in problem.batch.sequences],
        "bound <= optimum <= plan": best is not None and plan.bound_ns <= best,
        "bound on blocks": least_makespan(problem, blocks, plan.blocks_bound_ns or 0, alike=False) is None,
    }
    row |= {"planned": True, "makespan_ns": plan.makespan_ns, "bound_ns": plan.bound_ns, "optimum_ns": best}
    return row | {"broken": [what for what, holds in owed.items() if not holds]}


def small_problem(number: int) -> tuple[Problem, str]:
    """2 to 6 clips, two in three of them videos, split over 1, 2, 4 or 8 ranks; and of which kind they are."""
    chance, tight = random.Random(f"small/{number}"), number % 3 == 0
    cluster = small_cluster(*chance.choice(CLUSTERS))
    videos = [clip for kind in VIDEOS.values() for clip in kind]
    images = [(width, height, 1) for width, height in IMAGES]
    shapes = [chance.choice(videos if chance.random() < 0.67 else images) for _ in range(chance.randint(2, 6))]
    clips = [Clip(id=f"c{n}", width=w, height=h, num_frames=f) for n, (w, h, f) in enumerate(shapes)]
    problem = build_problem(build_batch("small", clips, load_model(MODEL))[0], cluster=cluster, model=MODEL)
    rows = [row for row in problem.prices.rows if row.config.degree in (1, 2, 4, 8)]
    made_up = made_up_prices(chance, rows) if number // 6 % 2 else rows
    prices = msgspec.structs.replace(problem.prices, rows=tuple(made_up))
    problem = dataclasses.replace(problem, engine=ENGINES[number % 2], prices=prices)
    kind = f"{problem.engine}, {'made-up' if number // 6 % 2 else 'analytic'}, {'tight' if tight else 'loose'}"
    return (with_use(problem, chance.uniform(0.4, 1.05)) if tight else problem), kind


def made_up_prices(chance: random.Random, rows: list[PriceRow]) -> list[PriceRow]:
    """Up to five configurations, at prices from smooth to arbitrary."""
    splits = sorted({row.config for row in rows if row.config.is_split})
    kept = {ParallelConfig(), *chance.sample(splits, min(len(splits), chance.randint(1, 4)))}
    smooth, made_up, whole = chance.random() < 0.6, [], dict[str, tuple[float, int]]()
    for row in [row for row in rows if row.config in kept]:
        time, bytes_kept = whole.setdefault(row.bucket, (10 ** chance.uniform(0.5, 3.3), chance.randint(8, 64)))
        degree, split = row.config.degree, row.config.is_split
        spread = 1 if not split else chance.uniform(1, 1.4) if smooth else chance.uniform(0.3, degree * 1.5)
        taken = max(1, round(time / degree * spread)) * MILLISECOND
        launch = chance.randint(0, 90) * MILLISECOND if split else 0
        needed, live = max(1, round(bytes_kept / degree * chance.uniform(1, 1.5))) * MIB, chance.randint(0, 12) * MIB
        price = make_price(taken, launch, needed, live, exchange=taken // chance.randint(2, 9) if split else 0)
        made_up.append(msgspec.structs.replace(row, price=price))
    return made_up


def rank_sets(cluster: Cluster, *, blocks: bool = False) -> RankSets:
    """Rank sets by size and nodes touched: all, or equal runs at multiples of their length on an aligned run of the
    fewest nodes."""
    sets, per_node = RankSets(), cluster.ranks_per_node
    for ranks in (ranks for n in range(cluster.num_ranks) for ranks in combinations(range(cluster.num_ranks), n + 1)):
        span, first = cluster.footprint(ranks), ranks[0]
        starts, width = range(first, first + span * per_node, per_node), len(ranks) // span
        even = ranks == tuple(start + offset for start in starts for offset in range(width))
        aligned = first // per_node % span == 0 and first % per_node % width == 0
        if not blocks or (even and aligned and span == cluster.smallest_even_footprint(len(ranks))):
            sets.setdefault((len(ranks), span), []).append(ranks)
    return sets


def price_on(rows: Iterable[PriceRow], bucket: str, config: ParallelConfig, span: int) -> Price:
    """A split's price on so many nodes; where the table has none, that on the next more (on the most it has)."""
    prices = {row.num_nodes: row.price for row in rows if (row.bucket, row.config) == (bucket, config)}
    return prices[min((nodes for nodes in prices if nodes >= span), default=max(prices))]


def uses_of(problem: Problem, bucket: str, sets: RankSets) -> list[Use]:
    """What a bucket's splits take, by the engines' definitions."""
    uses, rows = [], [row for row in problem.prices.rows if row.bucket == bucket]
    configs = sorted({row.config for row in rows})
    for config, (degree, span) in (pair for pair in product(configs, sets) if pair[0].degree == pair[1][0]):
        price, rounds = price_on(rows, bucket, config, span), config.k if degree > 1 else 0
        kept, live, time = price.kept_bytes, price.live_bytes, price.exchange_ns + price.launch_ns
        if problem.engine == "coalesced":
            kept, live, time = kept + live, 0, packed_exchange_ns(price)
        time += price.linear_ns + price.attention_ns + price.recompute_ns
        uses.append(Use(time, kept, live, rounds, degree, span))
    return uses


def least_makespan(problem: Problem, sets: RankSets, below: int, *, alike: bool = True) -> int | None:
    """The least step on these rank sets if that is less than ``below``; None if not, or if memory allows no plan.

    ``alike``: ranks of a node, and nodes, may be exchanged. Coalesced plans pay for their most ring rounds on all
    ranks, so each number of rounds is searched on its own.
    """
    uses = {bucket.name: uses_of(problem, bucket.name, sets) for bucket in problem.counts}
    cluster, found, coalesced = problem.cluster, None, problem.engine == "coalesced"
    for most in sorted({use.rounds for several in uses.values() for use in several}) if coalesced else [99]:
        calls = brute_force.calls_ns(problem, cluster.num_ranks, cluster.num_nodes, most) if coalesced and most else 0
        limit = below - calls
        within = {n: undominated(u for u in us if u.rounds <= most and u.time < limit) for n, us in uses.items()}
        if all(within.values()):
            search = Search(problem, within, sets, limit, alike)
            search.extend(0, 0, ((0, 0, 0),) * cluster.num_ranks, 0)
            if search.below < limit:
                found = below = search.below + calls
    return found


class Search:
    """Depth first over all ways of all sequences, those of most work first, for a slowest rank below ``below``.

    A state is what every rank takes, keeps and needs live. One that was left is not entered again: ``below`` falls.
    """

    def __init__(self, problem: Problem, uses: dict[str, list[Use]], sets: RankSets, below: int, alike: bool) -> None:
        self.uses, self.sets, self.below, self.room = uses, sets, below, problem.memory.room_bytes
        self.num_ranks = problem.cluster.num_ranks
        self.per_node = problem.cluster.ranks_per_node if alike else 0
        least = {name: several[0].time * several[0].degree for name, several in uses.items()}
        self.names = sorted((s.bucket.name for s in problem.batch.sequences), key=lambda name: (-least[name], name))
        self.rest = [sum(least[name] for name in self.names[index:]) for index in range(len(self.names) + 1)]
        longest = max(min(use.time for use in several) for several in uses.values())
        self.floor = max(longest, -(-self.rest[0] // self.num_ranks))
        self.seen: set[tuple[int, int, State]] = set()

    def extend(self, index: int, first: int, state: State, work: int) -> None:
        """Place what follows ``index``; of equal sequences, each takes a use no earlier than ``first``."""
        if index == len(self.names):
            self.below = min(self.below, max(time for time, _, _ in state))
            return
        if (index, first, state) in self.seen:
            return
        self.seen.add((index, first, state))
        same = self.names[index + 1 : index + 2] == [self.names[index]]
        for position, use in enumerate(self.uses[self.names[index]][first:], first):
            spent = work + use.time * use.degree
            children = dict.fromkeys(self._children(state, use))
            for child in sorted(children, key=lambda child: sorted(child, reverse=True)):
                if self.below <= self.floor or spent + self.rest[index + 1] > self.num_ranks * (self.below - 1):
                    break
                self.extend(index + 1, position if same else 0, child, spent)

    def _children(self, state: State, use: Use) -> Iterator[State]:
        for ranks in self.sets[use.degree, use.span]:
            child = list(state)
            for rank in ranks:
                time, kept, live = state[rank]
                child[rank] = after = (time + use.time, kept + use.kept, max(live, use.live))
                if after[0] >= self.below or after[1] + after[2] > self.room:
                    break
            else:
                if size := self.per_node:
                    nodes = sorted(sorted(child[start : start + size]) for start in range(0, self.num_ranks, size))
                    child = [rank for node in nodes for rank in node]
                yield tuple(child)


def undominated(uses: Iterable[Use]) -> list[Use]:
    """Uses that no other of as many ranks and nodes beats in time and memory, the least work first."""
    kept: list[Use] = []
    for use in sorted(uses, key=lambda use: (use.time * use.degree, use)):
        alike = (other for other in kept if (other.degree, other.span) == (use.degree, use.span))
        if not any(other.kept <= use.kept and other.live <= use.live for other in alike):
            kept.append(use)
    return kept


def sum_up_instances(rows: list[Row]) -> Row:
    """Gaps by engine, prices and memory, and the instances that need a look."""
    part: Row = {}
    for kind in sorted({row["kind"] for row in rows}):
        mine = [row for row in rows if row["kind"] == kind]
        planned = [row for row in mine if row["planned"] and row["optimum_ns"]]
        gaps = [(row["makespan_ns"] / row["optimum_ns"] - 1, row["number"]) for row in planned] or [(0.0, -1)]
        part[kind] = {
            "batches": len(mine),
            "planned": sum(row["planned"] for row in mine),
            "none exists": sum(not row["planned"] and not row["optimum_ns"] for row in mine),
            "optimal": sum(row["makespan_ns"] == row["optimum_ns"] for row in planned),
            "mean": f"{statistics.fmean(gap for gap, _ in gaps):.2%}",
            "max": "{:.2%} (number {})".format(*max(gaps)),
        }
    part["missed"] = [row for row in rows if not row["planned"] and row["optimum_ns"]]
    return part | {"broken": [row for row in rows if row["broken"]]}


def check_poor(number: int, limit: float) -> Row:
    """How many micro-steps a batch short of memory takes; 0: it is not solved."""
    chance = random.Random(f"poor/{number}")
    videos, images, kind = chance.choice((4, 8, 12)), chance.choice((50, 200, 400)), chance.choice(list(VIDEOS))
    problem, use = (
        mixed_problem(load_cluster("a800x16"), videos, images, kind, 1000 + number),
        chance.uniform(0.93, 1.15),
    )
    posed, planner = policy_planner(with_use(problem, use), "zellige")
    least = room_need(posed).least_micro_steps
    row: Row = {"batch": f"{number}: {videos}v{images}i-{kind}@{use:.3f}", "least": least, "cp_sat": ""}
    try:
        found = plan_in_steps(posed, planner)
    except (InfeasibleError, TimeLimitError) as error:
        return row | {"steps": 0, "broken": [str(error)]}
    plans = [found] if isinstance(found, Plan) else found.plans
    if len(plans) > least == 1:
        try:  # within so wide a gap, the first solution ends the search
            row["cp_sat"] = solve_joint(posed, limits=Limits(deterministic=limit, relative_gap=1e6)).status
        except InfeasibleError:
            row["cp_sat"] = "none exists"
    placed = sorted(placement.sequence for plan in plans for placement in plan.placements if plan.fits)
    holds = placed == sorted(s.id for s in posed.batch.sequences)
    return row | {"steps": len(plans), "broken": [] if holds and len(plans) >= least else ["plans"]}


def sum_up_poor(rows: list[Row]) -> Row:
    """How many batches took how many steps, and those that CP-SAT solves in fewer."""
    return {
        "ruled out by memory": sum(row["least"] > 1 for row in rows),
        "batches by micro-steps": dict(sorted(Counter(row["steps"] for row in rows).items())),
        "CP-SAT finds, of those it tried": dict(Counter(row["cp_sat"] for row in rows if row["cp_sat"])),
        "tried": [row for row in rows if row["cp_sat"]],
        "broken": [row for row in rows if row["broken"]],
    }


def repeated_problems() -> Iterator[tuple[str, Problem]]:
    """Two batches of ``random16`` and their like in ``memory`` at 0.85, two of ``paper``, under both engines."""
    cluster, problems = load_cluster("a800x16"), dict(islice(suite_problems("paper"), 7, 15, 6))
    for videos, images, kind in ((8, 50, "mixed"), (12, 200, "heavy")):
        name, problem = f"{videos}v{images}i-{kind}", mixed_problem(cluster, videos, images, kind, 0)
        problems |= {name: problem, f"{name}@0.85": with_use(problem, 0.85)}
    for name, problem in problems.items():
        yield f"{name}, coalesced", dataclasses.replace(problem, engine="coalesced")
        yield f"{name}, per_sequence", dataclasses.replace(problem, engine="per_sequence")


def digests(repeat: int, *, compiled: bool) -> dict[str, list[str]]:
    """The distinct digests of every batch under both engines, each plan of a problem that knows nothing yet."""
    prefer_compiled(compiled)
    if compiled and not is_compiled():
        raise SystemExit("there are no compiled loops: install the extra fast")
    found: dict[str, list[str]] = {}
    for name, problem in repeated_problems():
        fresh = [dataclasses.replace(problem) for _ in range(repeat)]
        found[name] = sorted({plan_batch(each, "zellige", problem.engine).digest for each in fresh})
    return found


def check_repeats(repeat: int) -> Row:
    """Digests from four processes, and plans of the same batches in other orders, names and units."""
    command = [sys.executable, __file__, "--repeat", str(repeat), "--digests"]
    kinds = enumerate(("compiled", "compiled", "interpreted", "interpreted"))
    envs = [(kind, {**os.environ, "PYTHONHASHSEED": str(seed)}) for seed, kind in kinds]
    runs = [subprocess.Popen([*command, kind], env=env, stdout=subprocess.PIPE, text=True) for kind, env in envs]
    outputs = [json.loads(run.communicate()[0]) for run in runs]
    broken = []
    for name, problem in repeated_problems():
        plan = nameless(plan_batch(problem, "zellige", problem.engine))
        if len({digest for output in outputs for digest in output[name]}) != 1:
            broken.append(f"{name}: several digests")
        shuffled = random.Random(1).sample(problem.batch.sequences, len(problem.batch.sequences))
        renamed = tuple(msgspec.structs.replace(s, id=f"other-{n}") for n, s in enumerate(shuffled))
        other = dataclasses.replace(problem, batch=msgspec.structs.replace(problem.batch, sequences=renamed))
        if plan != nameless(plan_batch(other, "zellige", problem.engine)):
            broken.append(f"{name}: order or names matter")
        if plan[0] != nameless(plan_batch(with_prices_doubled(problem), "zellige", problem.engine))[0]:
            broken.append(f"{name}: doubled prices give another plan")
    return {"batches and engines": len(outputs[0]), "plans": 4 * repeat * len(outputs[0]), "broken": broken}


def nameless(plan: Plan) -> tuple[dict[str, list[tuple[ParallelConfig, tuple[int, ...]]]], Plan]:
    """Every bucket's places in batch order, and what else the plan says."""
    places: dict[str, list[tuple[ParallelConfig, tuple[int, ...]]]] = {}
    for placement in plan.placements:
        places.setdefault(placement.bucket, []).append((placement.config, placement.ranks))
    solver, inputs = msgspec.structs.replace(plan.solver, planning_ns=0), msgspec.structs.replace(plan.inputs, batch="")
    return places, msgspec.structs.replace(plan, placements=(), digest="", inputs=inputs, solver=solver)


def with_prices_doubled(problem: Problem) -> Problem:
    """All components doubled, and the latencies that the engine's shared calls are made of."""
    cluster = problem.cluster
    for knob in ("link.latency", "host.calls", *(["nic.latency"] if cluster.network else [])):
        cluster = apply_setting(cluster, f"{knob}=2x")
    rows = []
    for row in problem.prices.rows:
        parts = {n: 2 * v for n, v in msgspec.structs.asdict(row.price).items() if n.endswith("_ns") and v is not None}
        rows.append(msgspec.structs.replace(row, price=msgspec.structs.replace(row.price, **parts)))
    prices = msgspec.structs.replace(problem.prices, rows=tuple(rows))
    return dataclasses.replace(problem, cluster=cluster, prices=prices)


if __name__ == "__main__":
    main()
