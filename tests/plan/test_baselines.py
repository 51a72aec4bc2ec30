"""The baselines by their definitions: longest first, USP, the best static split, KnapFormer's bags."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections import Counter

import msgspec
import pytest
from oracle.batches import BATCHES, make_problem, problem_of
from oracle.brute_force import Way, costs

from zellige.catalog import load_model
from zellige.compare import compare
from zellige.errors import BagSpecError, IllegalSplitError
from zellige.placement import Problem, Setup
from zellige.plan import POLICIES, plan_batch
from zellige.prices import Price
from zellige.shards import ParallelConfig
from zellige.sources import build_problem

WHOLE = ParallelConfig()
KNAPFORMER = ("knapformer-oracle", "knapformer-best", "knapformer")


def longest_first(problem: Problem, time_of: dict[str, int], num_groups: int) -> list[int]:
    """The group of each sequence: the longest first (equal ones by bucket), to the group with the least so far."""
    loads = [0] * num_groups
    group_of = {}
    by_bucket = sorted(problem.batch.sequences, key=lambda s: problem.batch.buckets.index(s.bucket))
    for sequence in sorted(by_bucket, key=lambda s: time_of[s.bucket.name], reverse=True):
        least = loads.index(min(loads))
        loads[least] += time_of[sequence.bucket.name]
        group_of[sequence.id] = least
    return [group_of[sequence.id] for sequence in problem.batch.sequences]


def test_dp_puts_the_longest_first_on_the_least_loaded_rank() -> None:
    for index in range(len(BATCHES)):
        problem = problem_of(index)
        plan = plan_batch(problem, "dp")
        whole = {row.bucket: row.price.time_ns for row in problem.prices.rows if row.config == WHOLE}
        assert {p.config for p in plan.placements} == {WHOLE}
        assert [p.ranks[0] for p in plan.placements] == longest_first(problem, whole, problem.cluster.num_ranks)
        assert plan.comm_bytes == plan.num_split == 0


@pytest.mark.parametrize(
    ("cluster", "model", "expected"),
    [
        ("a800x8", "wan2.1-t2v-1.3b", ParallelConfig(h=4, k=2)),
        ("a800x16", "wan2.1-t2v-1.3b", ParallelConfig(h=4, k=4)),
        ("a6000x32", "wan2.1-t2v-1.3b", ParallelConfig(h=4, k=8)),
        ("h200x8", "wan2.1-t2v-14b", ParallelConfig(h=8)),
        ("a800x16", "wan2.2-ti2v-5b", ParallelConfig(h=8, k=2)),
    ],
)
def test_usp_runs_everything_on_all_ranks(cluster: str, model: str, expected: ParallelConfig) -> None:
    """12 heads on nodes of 8 leave h = 4; 24 and 40 heads allow 8."""
    problem = make_problem([(832, 480, 81), (256, 256, 1), (256, 256, 1)], cluster, model)
    plan = plan_batch(problem, "usp")
    every = tuple(range(problem.cluster.num_ranks))
    assert {(p.config, p.ranks) for p in plan.placements} == {(expected, every)}
    assert len({p.time_ns for p in plan.predicted}) == 1


def test_usp_as_it_is_told() -> None:
    for text, config in (("h2k4", ParallelConfig(h=2, k=4)), ("q8", ParallelConfig(q=8))):
        plan = plan_batch(make_problem([(832, 480, 81)], "a800x8", setup=Setup(usp=text)), "usp")
        assert {p.config for p in plan.placements} == {config}
    for text in ("h4", "h8", "h3k3"):
        with pytest.raises(IllegalSplitError, match=text):
            plan_batch(make_problem([(832, 480, 81)], "a800x8", setup=Setup(usp=text)), "usp")


@pytest.mark.parametrize("policy", ["static", "static-coalesced"])
def test_static_is_the_best_of_all_group_sizes_and_configurations(policy: str) -> None:
    over_memory = make_problem([(1920, 1080, 161)] * 30, "a800x4")
    for problem in [*map(problem_of, range(6)), over_memory]:
        problem = dataclasses.replace(problem, engine=POLICIES[policy].engine)
        plan = plan_batch(problem, policy)
        tried = [outcome for config in configurations(problem) for outcome in static_outcomes(problem, config)]
        fitting = [time for time, memory in tried if memory <= problem.memory.usable_bytes]
        assert plan.fits == bool(fitting)
        assert plan.makespan_ns == min(fitting) if fitting else plan.peak_memory_bytes == min(m for _, m in tried)
        assert len({p.config for p in plan.placements}) == 1
        groups = {p.ranks for p in plan.placements}
        assert sum(len(ranks) for ranks in groups) == len({rank for ranks in groups for rank in ranks}), "overlap"
    assert not plan.fits, "the last batch fits under no split"


def configurations(problem: Problem) -> list[ParallelConfig]:
    num_ranks = problem.cluster.num_ranks
    return sorted({row.config for row in problem.prices.rows if num_ranks % row.config.degree == 0})


def static_outcomes(problem: Problem, config: ParallelConfig) -> list[tuple[int, int]]:
    """Step time and fullest rank with equal groups under one configuration, sequences longest first."""
    size = config.degree
    groups = [tuple(range(start, start + size)) for start in range(0, problem.cluster.num_ranks, size)]
    nodes = problem.cluster.footprint(groups[0])
    rows = {row.bucket: row.price for row in problem.prices.rows if (row.config, row.num_nodes) == (config, nodes)}
    alone = {name: own_time(problem, config, nodes, price) for name, price in rows.items()}
    chosen = longest_first(problem, alone, len(groups))
    ways = [
        Way(config, groups[group], nodes, rows[s.bucket.name])
        for s, group in zip(problem.batch.sequences, chosen, strict=True)
    ]
    spent = costs(problem, ways)
    return [(max(spent.times_ns), max(spent.memory_bytes))]


def own_time(problem: Problem, config: ParallelConfig, nodes: int, price: Price) -> int:
    """A sequence's time beside others of its kind: what it takes alone, or without calls where all share them."""
    return price.packed_ns if problem.engine == "coalesced" else price.time_ns


@pytest.mark.parametrize("spec", ["g2n1+g6n1", "g6n1+g2n1", "g4n2", "g1n8", "g1n2+g2n1+g4n1"])
def test_knapformer_keeps_to_its_bags_in_every_node(spec: str) -> None:
    """Sizes ascend within a node; inside a bag all heads are shared by all of its ranks."""
    sizes = [int(size) for term in spec.split("+") for size in term[1 : term.index("n")] * int(term.split("n")[1])]
    bags = set()
    start = 0
    for size in sorted(sizes) * 2:
        bags.add(tuple(range(start, start + size)))
        start += size
    assert start == 16
    shapes = [shape for shapes, _ in BATCHES[:4] for shape in shapes]
    plan = plan_batch(make_problem(shapes, "a800x16", setup=Setup(knapformer=spec)), "knapformer")
    used = {p.ranks for p in plan.placements}
    assert used <= bags
    assert all(p.config == ParallelConfig(h=len(p.ranks)) for p in plan.placements)
    assert used & {ranks for ranks in bags if max(ranks) < 8}, "the first node has bags"
    assert used & {ranks for ranks in bags if max(ranks) >= 8}, "so has the second"


def test_knapformer_kinds_in_order() -> None:
    """Over a run, per batch the oracle's bags are the best that fit; one spec for all cannot beat them on any batch."""
    chance = random.Random(8)
    videos = [(832, 480, 81), (1280, 720, 81), (1920, 1080, 81)]
    runs = [chance.choices(videos, k=chance.randint(2, 5)) + [(512, 512, 1)] * 30 for _ in range(4)]
    problems = [make_problem(shapes, "a800x8", setup=Setup(knapformer="g2n1+g6n1")) for shapes in runs]
    rows = {row.policy: row for row in compare(problems, KNAPFORMER).rows}
    oracle, best, fixed = (rows[name] for name in ("knapformer-oracle", "knapformer-best", "knapformer"))
    assert oracle.fits
    assert best.fits
    assert fixed.fits
    times = [row.step_time_ns for row in (oracle, best, fixed)]
    assert all(time is not None for time in times)
    assert times == sorted(times, key=lambda time: time or 0)
    spec = next(note for note in best.notes if note.startswith("bags")).removeprefix("bags ")
    for problem in problems:
        told = dataclasses.replace(problem, setup=Setup(knapformer_run=spec))
        assert plan_batch(problem, "knapformer-oracle").makespan_ns <= plan_batch(told, "knapformer-best").makespan_ns


def test_the_oracle_bags_are_the_best_of_all_partitions_of_a_node() -> None:
    """Sizes 1, 2, 3, 4 and 6 share 12 heads; every multiset of them that makes up 8 ranks is tried here."""
    problem = make_problem([(1280, 720, 81)] * 2 + [(832, 480, 81)] * 3 + [(512, 512, 1)] * 20, "a800x8")
    specs = set()
    for count in range(1, 9):
        for sizes in itertools.combinations_with_replacement((1, 2, 3, 4, 6), count):
            if sum(sizes) == 8:
                specs.add("+".join(f"g{size}n{number}" for size, number in sorted(Counter(sizes).items())))
    plans = [
        plan_batch(dataclasses.replace(problem, setup=Setup(knapformer=spec)), "knapformer") for spec in sorted(specs)
    ]
    fastest = min(plans, key=lambda plan: plan.makespan_ns)
    for limit in (problem.memory.usable_bytes, fastest.peak_memory_bytes - 1):
        fitting = [plan.makespan_ns for plan in plans if plan.peak_memory_bytes <= limit]
        memory = msgspec.structs.replace(problem.memory, usable_bytes=limit)
        posed = dataclasses.replace(problem, memory=memory)
        for policy in ("knapformer-oracle", "knapformer-best"):
            assert plan_batch(posed, policy).makespan_ns == min(fitting)
    assert min(fitting) > fastest.makespan_ns, "the fastest bags are over the second limit"


@pytest.mark.parametrize(("spec", "sizes"), [("g5n1+g3n1", "5"), ("g8n1", "8"), ("g4n1+g3n1", "7")])
def test_bags_that_cannot_work(spec: str, sizes: str) -> None:
    """12 heads are not shared by 5 or 8 ranks; 7 ranks are no divisor of 8."""
    problem = make_problem([(832, 480, 81)], "a800x8", setup=Setup(knapformer=spec))
    with pytest.raises(BagSpecError, match=sizes):
        plan_batch(problem, "knapformer")


def test_bags_that_the_key_value_heads_do_not_allow() -> None:
    """6 ranks share 12 query heads, but not 4 K/V heads."""
    model = load_model("wan2.1-t2v-1.3b")
    grouped = msgspec.structs.replace(model.geometry, num_kv_heads=4)
    pattern = make_problem([(832, 480, 81)], "a800x8")
    problem = build_problem(
        pattern.batch,
        cluster="a800x8",
        model=msgspec.structs.replace(model, geometry=grouped),
        setup=Setup(knapformer="g6n1+g2n1"),
    )
    with pytest.raises((BagSpecError, IllegalSplitError), match="6"):
        plan_batch(problem, "knapformer")
    assert {p.config.h for p in plan_batch(dataclasses.replace(problem, setup=Setup()), "knapformer").placements} <= {
        1,
        2,
        4,
    }
