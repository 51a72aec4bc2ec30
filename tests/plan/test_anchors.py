"""Anchor placement: decoding counts into rank sets, and the two solves against trying everything."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations, combinations_with_replacement, product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle.brute_force import LOOSE, MIB, make_price, small_cluster, synthetic_problem

from zellige.cluster import Cluster
from zellige.errors import InfeasibleError
from zellige.placement import Option, Problem
from zellige.plan import plan_batch
from zellige.plan.anchors import EPSILON_PER_MILLE, TIE, AnchorGroup, Assignment, candidate_options, deal, place_anchors
from zellige.shards import ParallelConfig

WHOLE = ParallelConfig()


@st.composite
def counts_of_sets(draw: st.DrawFn) -> tuple[list[tuple[int, int]], int, int]:
    """Any counts of ranks with 0 <= c <= z that sum to z * degree: (rank, count) pairs, z, and the degree."""
    members = draw(st.integers(1, 9))
    ranks = draw(st.lists(st.integers(0, 99), min_size=1, max_size=12, unique=True))
    degree = draw(st.integers(0, len(ranks)))
    counts, left = [], members * degree
    for position, rank in enumerate(ranks):
        after = len(ranks) - position - 1
        count = draw(st.integers(max(0, left - members * after), min(members, left)))
        counts.append((rank, count))
        left -= count
    return counts, members, degree


@given(counts_of_sets())
def test_counts_always_decompose(case: tuple[list[tuple[int, int]], int, int]) -> None:
    check_deal(*case)


def check_deal(counts: Sequence[tuple[int, int]], members: int, degree: int) -> None:
    hands = deal(counts, members)
    assert len(hands) == members
    assert all(len(hand) == len(set(hand)) == degree for hand in hands)
    used = Counter(rank for hand in hands for rank in hand)
    assert used == Counter({rank: count for rank, count in counts if count})
    assert hands == deal(list(reversed(counts)), members), "depends on the order in which the counts come"


def test_all_small_count_vectors() -> None:
    """Every vector for up to 4 ranks and 4 members: Gale and Ryser leave no exception."""
    seen = 0
    for num_ranks, members in product(range(1, 5), range(1, 5)):
        for vector in product(range(members + 1), repeat=num_ranks):
            if sum(vector) % members == 0:
                check_deal(list(enumerate(vector)), members, sum(vector) // members)
                seen += 1
    assert seen > 300


@pytest.mark.parametrize(("counts", "members"), [([(0, 3), (1, 1)], 2), ([(0, 1)], 2), ([(0, 2), (1, 1)], 2)])
def test_counts_that_are_none_of_sets(counts: list[tuple[int, int]], members: int) -> None:
    with pytest.raises(ValueError, match="decompose"):
        deal(counts, members)


def rank_sets(cluster: Cluster, option: Option) -> Iterator[tuple[int, ...]]:
    """As many ranks on each of an aligned run of nodes: the sets that Anchor Placement considers."""
    for ranks in combinations(range(cluster.num_ranks), option.config.degree):
        by_node = Counter(rank // cluster.ranks_per_node for rank in ranks)
        first = min(by_node)
        run = set(range(first, first + option.num_nodes))
        if set(by_node) == run and first % option.num_nodes == 0 and len(set(by_node.values())) == 1:
            yield ranks


Spread = list[tuple[Option, tuple[int, ...]]]


def everything(problem: Problem, groups: Sequence[AnchorGroup]) -> Iterator[Spread]:
    """All placements of all members that memory allows; equal members are not told apart."""
    by_group = []
    for group in groups:
        ways = [(option, ranks) for option in group.options for ranks in rank_sets(problem.cluster, option)]
        by_group.append(list(combinations_with_replacement(ways, group.count)))
    for parts in product(*by_group):
        chosen = [way for part in parts for way in part]
        if fits(problem, chosen):
            yield chosen


def load(problem: Problem, chosen: Spread) -> int:
    times = Counter(dict.fromkeys(range(problem.cluster.num_ranks), 0))
    for option, ranks in chosen:
        times.update(dict.fromkeys(ranks, option.time_ns))
    return max(times.values())


def fits(problem: Problem, chosen: Spread) -> bool:
    for rank in range(problem.cluster.num_ranks):
        here = [option for option, ranks in chosen if rank in ranks]
        kept, live = sum(o.kept_bytes for o in here), max((o.live_bytes for o in here), default=0)
        if kept + live > problem.memory.room_bytes:
            return False
    return True


def num_split(chosen: Spread) -> int:
    return sum(option.config.degree > 1 for option, _ in chosen)


def as_spread(assignments: Sequence[Assignment]) -> Spread:
    return [(assignment.option, assignment.ranks) for assignment in assignments]


def random_anchors(chance: random.Random, *, tight: bool) -> tuple[Problem, list[AnchorGroup]]:
    """2 to 4 ranks, up to 4 anchors in 1 or 2 buckets; times of some thousands, so that epsilon allows a few units."""
    cluster = chance.choice([small_cluster(2), small_cluster(3), small_cluster(4), small_cluster(4, 2)])
    groups = []
    left = 4 if cluster.num_ranks < 4 else 3
    for bucket in range(chance.randint(1, 2)):
        work, kept = chance.randint(500, 9000), chance.randint(4, 40)
        options = []
        for degree in range(1, cluster.num_ranks + 1):
            for nodes in range(1, cluster.num_nodes + 1):
                if degree % nodes or degree // nodes > cluster.ranks_per_node or (degree > 1 and chance.random() < 0.2):
                    continue
                slower = chance.choice([0.6, 1, 1, 1.0005, 1.1, 1.6]) if degree > 1 else 1
                options.append(
                    Option(
                        config=ParallelConfig(q=degree),
                        num_nodes=nodes,
                        time_ns=round(work * slower / degree),
                        floor_ns=round(work * slower / degree),
                        compute_ns=0,
                        kept_bytes=max(1, kept // degree) * MIB,
                        live_bytes=chance.randint(0, 8) * MIB,
                        comm_bytes=0,
                    )
                )
        count = chance.randint(1, left - 1) if bucket == 0 else left
        left -= count
        groups.append(AnchorGroup(f"b{bucket}", count, tuple(options)))
    room = LOOSE
    if tight:
        total = sum(group.count * group.options[0].kept_bytes for group in groups)
        room = round(total / cluster.num_ranks * chance.uniform(1.0, 1.8)) // MIB * MIB + 6 * MIB
    return synthetic_problem({}, {}, cluster, "per_sequence", room), groups


def check_against_everything(problem: Problem, groups: Sequence[AnchorGroup]) -> bool:
    """Least makespan, then the fewest splits within epsilon of it; whether memory decided anything."""
    feasible = list(everything(problem, groups))
    if not feasible:
        with pytest.raises(InfeasibleError):
            place_anchors(problem, groups)
        return True
    assignments, status = place_anchors(problem, groups)
    assert status == "optimal"
    counted = Counter(assignment.bucket for assignment in assignments)
    assert counted == Counter({group.bucket: group.count for group in groups})
    allowed = {group.bucket: group.options for group in groups}
    assert all(a.option in allowed[a.bucket] and a.ranks in rank_sets(problem.cluster, a.option) for a in assignments)
    found = as_spread(assignments)
    assert fits(problem, found)
    least = min(load(problem, chosen) for chosen in feasible)
    limit = least * (1000 + EPSILON_PER_MILLE) // 1000
    assert least <= load(problem, found) <= limit
    fewest = min(num_split(chosen) for chosen in feasible if load(problem, chosen) <= limit)
    assert num_split(found) == fewest
    return problem.memory.room_bytes < LOOSE


@pytest.mark.parametrize("seed", range(8))
def test_two_solves_against_everything(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(6):
        check_against_everything(*random_anchors(chance, tight=False))


@pytest.mark.parametrize("seed", range(8))
def test_two_solves_within_memory_against_everything(seed: int) -> None:
    chance = random.Random(100 + seed)
    bound = [check_against_everything(*random_anchors(chance, tight=True)) for _ in range(6)]
    assert any(bound)


def option(degree: int, time_ns: int, kept: int = 0, live: int = 0, comm: int = 0, **axes: int) -> Option:
    config = ParallelConfig(**axes) if axes else ParallelConfig(q=degree)
    return Option(
        config=config, num_nodes=1, time_ns=time_ns, floor_ns=time_ns, compute_ns=time_ns, kept_bytes=kept * MIB,
        live_bytes=live * MIB, comm_bytes=comm,
    )  # fmt: skip


def test_fewer_splits_are_worth_epsilon_and_no_more() -> None:
    """Two anchors on two ranks. Split both: 10,000 on each rank. Whole, one each: 10,009, or 10,011."""
    problem = synthetic_problem({}, {}, small_cluster(2), "per_sequence")
    for whole, expected in ((10_009, 0), (10_011, 2)):
        group = AnchorGroup("b", 2, (option(1, whole), option(2, 5000)))
        assignments, status = place_anchors(problem, [group])
        assert status == "optimal"
        assert num_split(as_spread(assignments)) == expected


def test_overlapping_pairs_on_three_ranks() -> None:
    problem = synthetic_problem({}, {}, small_cluster(3), "per_sequence")
    assignments, _ = place_anchors(problem, [AnchorGroup("b", 3, (option(2, 100),))])
    assert sorted(assignment.ranks for assignment in assignments) == [(0, 1), (0, 2), (1, 2)]


def test_the_parts_of_an_anchor_are_on_distinct_ranks() -> None:
    """Both halves of one B beside a whole B, on the rank without an A, would take 160; legal placements take 165."""
    problem = synthetic_problem({}, {}, small_cluster(3), "per_sequence")
    groups = [AnchorGroup("A", 2, (option(1, 135),)), AnchorGroup("B", 2, (option(1, 100), option(2, 30)))]
    assignments, _ = place_anchors(problem, groups)
    assert load(problem, as_spread(assignments)) == 165
    check_against_everything(problem, groups)


def test_large_times_lose_a_few_parts_per_million() -> None:
    """Nanoseconds of a real step do not fit the solver's integers one to one."""
    chance = random.Random(4)
    for _ in range(4):
        problem, groups = random_anchors(chance, tight=False)
        big = 10**9 + 7
        scaled = [
            AnchorGroup(g.bucket, g.count, tuple(_stretched(o, big + chance.randint(0, 99)) for o in g.options))
            for g in groups
        ]
        found = load(problem, as_spread(place_anchors(problem, scaled)[0]))
        least = min(load(problem, chosen) for chosen in everything(problem, scaled))
        assert least <= found <= least * (1 + EPSILON_PER_MILLE / 1000 + 2e-5)


def _stretched(old: Option, factor: int) -> Option:
    time = old.time_ns * factor
    return Option(
        config=old.config, num_nodes=old.num_nodes, time_ns=time, floor_ns=time, compute_ns=time,
        kept_bytes=old.kept_bytes, live_bytes=old.live_bytes, comm_bytes=0,
    )  # fmt: skip


def test_memory_makes_an_anchor_split() -> None:
    """Whole on one rank each is fastest; with room for half of one a rank, each takes two ranks, and all four."""
    group = AnchorGroup("b", 2, (option(1, 100, kept=8, live=2), option(2, 110, kept=4, live=1), option(4, 60, kept=2)))
    for room, degrees in ((10, [1, 1]), (9, [2, 2]), (4, [4, 4])):
        problem = synthetic_problem({}, {}, small_cluster(4), "per_sequence", room * MIB)
        assignments, _ = place_anchors(problem, [group])
        assert [assignment.option.config.degree for assignment in assignments] == degrees
    with pytest.raises(InfeasibleError):
        place_anchors(synthetic_problem({}, {}, small_cluster(4), "per_sequence", 3 * MIB), [group])


def candidates(*options: Option, num_ranks: int = 4, room: int = LOOSE) -> list[ParallelConfig]:
    problem = synthetic_problem({}, {}, small_cluster(num_ranks), "per_sequence", room)
    vars(problem)["options"] = {"b": options}
    return [chosen.config for chosen in candidate_options(problem, "b")]


def test_candidates_prefer_fewer_bytes_among_equal_times() -> None:
    slower = round(1_000_000 * (1 + TIE)) - 1
    ring, ulysses = option(2, 1_000_000, comm=9, k=2), option(2, slower, comm=5, h=2)
    assert candidates(option(1, 2_000_000), ring, ulysses) == [WHOLE, ulysses.config]
    worse = option(2, slower + 10, comm=5, h=2)
    assert candidates(option(1, 2_000_000), ring, worse) == [WHOLE, ring.config]


def test_candidates_keep_what_needs_less_memory() -> None:
    fast, lean, both = option(2, 100, kept=8, live=8, q=2), option(2, 150, kept=4, live=8, h=2), option(2, 200, k=2)
    assert candidates(fast, lean, both) == [fast.config, lean.config, both.config]
    dominated = option(2, 300, kept=8, live=8, k=2)
    assert candidates(fast, lean, dominated) == [fast.config, lean.config]


def test_candidates_fit_and_have_degrees_of_powers_of_two() -> None:
    options = [option(1, 400, kept=9), option(2, 200, kept=5), option(3, 130, kept=3), option(4, 100, kept=2)]
    assert candidates(*options, room=5 * MIB) == [ParallelConfig(q=2), ParallelConfig(q=4)]
    assert candidates(*options, room=4 * MIB) == [ParallelConfig(q=4)]


def test_a_bucket_that_fits_in_three_parts_only_is_placed_in_three() -> None:
    """On three ranks no power of two is fine enough: not to plan at all would be wrong."""
    prices = {
        "16x16x1": {
            (WHOLE, 1): make_price(900, kept=9 * MIB),
            (ParallelConfig(q=2), 1): make_price(450, kept=5 * MIB),
            (ParallelConfig(q=3), 1): make_price(300, kept=3 * MIB),
        }
    }
    problem = synthetic_problem(prices, {"16x16x1": 1}, small_cluster(3), "per_sequence", 4 * MIB)
    groups = [AnchorGroup("16x16x1", 1, candidate_options(problem, "16x16x1"))]
    assignments, _ = place_anchors(problem, groups)
    assert [assignment.ranks for assignment in assignments] == [(0, 1, 2)]


def test_a_bucket_that_fits_in_uneven_parts_only_has_no_plan() -> None:
    """Three parts on two nodes of two are spread unevenly, which Anchor Placement does not consider: it says so."""
    prices = {
        "16x16x1": {
            (WHOLE, 1): make_price(900, kept=9 * MIB),
            (ParallelConfig(q=3), 2): make_price(300, kept=3 * MIB),
        }
    }
    problem = synthetic_problem(prices, {"16x16x1": 1}, small_cluster(4, 2), "per_sequence", 4 * MIB)
    with pytest.raises(InfeasibleError):
        plan_batch(problem, "zellige-paper")


def test_a_slow_candidate_is_better_than_none() -> None:
    """Only powers of two are candidates: a far faster split in three must not rule the whole sequence out."""
    prices = {
        "16x16x1": {(WHOLE, 1): make_price(10)},
        "32x16x1": {(WHOLE, 1): make_price(10**9), (ParallelConfig(q=3), 1): make_price(1000)},
    }
    problem = synthetic_problem(prices, {"16x16x1": 1, "32x16x1": 1}, small_cluster(3), "per_sequence")
    assert plan_batch(problem, "zellige-paper").makespan_ns == 10**9


DIGEST = """
from zellige.plan import plan_batch
from zellige.sources import Options, build_problems, read_source
options = Options()
for name in ("paper-10s-high-v45", "motivation"):
    (problem,) = build_problems(read_source(name, options), options, print)
    print(plan_batch(problem, "zellige-paper").digest)
"""


def test_two_processes_make_the_same_plans() -> None:
    """With different hash seeds, and each in a process of its own."""
    root = str(Path(__file__).parent.parent.parent)
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", DIGEST],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=root,
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("1", "77")
    ]
    printed = [run.communicate(timeout=120)[0].split() for run in runs]
    assert [run.returncode for run in runs] == [0, 0]
    assert printed[0] == printed[1]
    assert len(set(printed[0])) == 2
