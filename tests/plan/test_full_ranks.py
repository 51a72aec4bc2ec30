"""B8: against exhaustive search, its integer programmes against trying all, and where memory keeps ranks idle."""

from __future__ import annotations

import dataclasses
from itertools import product

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle.batches import make_problem
from oracle.bound_checks import never_above_the_optimum
from oracle.brute_force import make_price, optimum, small_cluster, synthetic_problem

from zellige.errors import NoRoomError
from zellige.placement import ENGINES, Engine, Problem, plan_digest
from zellige.plan import plan_batch
from zellige.plan.bounds import best_bound
from zellige.plan.full_ranks import FINE, NAME, STEPS, Shard, full_ranks_bound, worth_most
from zellige.plan.whole_fillers import certify, whole_fillers_bound
from zellige.shards import ParallelConfig

WHOLE = ParallelConfig()


@pytest.mark.parametrize("engine", ENGINES)
def test_no_bound_exceeds_the_optimum_over_any_rank_sets_where_memory_binds(engine: Engine) -> None:
    assert never_above_the_optimum(full_ranks_bound, engine, 1, 25, tight=1) or engine == "group"


def long_and_short(room: int) -> Problem:
    """A sequence of 60 ms that keeps 90 bytes and five of 20 ms that keep 20, whole, on two ranks."""
    return synthetic_problem(
        {
            "16x16x1": {(WHOLE, 1): make_price(60_000_000, kept=90)},
            "32x16x1": {(WHOLE, 1): make_price(20_000_000, kept=20)},
        },
        {"16x16x1": 1, "32x16x1": 5},
        small_cluster(2),
        "per_sequence",
        room,
    )


@pytest.mark.parametrize("reached", [100_000_000, 150_000_000])
def test_where_memory_keeps_a_rank_idle_the_bound_is_the_optimum(reached: int) -> None:
    problem = long_and_short(100)
    best = optimum(problem)
    assert best is not None
    assert best.makespan_ns == 100_000_000
    known, _ = best_bound(problem)
    assert known == whole_fillers_bound(problem, known, reached) == 80_000_000, "none of the others sees memory"
    found = full_ranks_bound(problem, known, reached)
    assert best.makespan_ns - reached // STEPS <= found <= best.makespan_ns


def test_where_memory_is_loose_nothing_is_looked_for() -> None:
    assert full_ranks_bound(long_and_short(1000), 80_000_000, 100_000_000) == 80_000_000


def test_the_certified_plan_says_whose_bound_it_is() -> None:
    problem = long_and_short(100)
    plan = plan_batch(problem, "zellige", "per_sequence")
    certified = certify(dataclasses.replace(problem, engine="per_sequence"), plan)
    assert plan.bound_ns < certified.bound_ns <= plan.makespan_ns == 100_000_000
    assert certified.bound == NAME
    assert certified.gap < 0.001
    assert certified.blocks_bound_ns is not None
    assert certified.blocks_bound_ns >= certified.bound_ns
    assert certified.digest == plan_digest(certified)
    assert certify(problem, certified) == certified


def test_plans_in_parts_are_not_bound_by_the_memory_of_one_step() -> None:
    """One step has no room for this batch, so that B8 would refute whatever a plan in several parts takes."""
    problem = dataclasses.replace(make_problem([(832, 480, 81)] * 9 + [(1280, 720, 33)] * 5), engine="coalesced")
    usable = problem.memory.usable_bytes - 66_982_687_968
    problem = dataclasses.replace(problem, memory=msgspec.structs.replace(problem.memory, usable_bytes=usable))
    with pytest.raises(NoRoomError):
        plan_batch(problem, "zellige")
    policies = ("flexsp", "hydraulis", "hotspa", "bytescale-hdp", "megatron-hybrid-cp")
    plans = [plan_batch(problem, policy, "coalesced") for policy in policies]
    fastest = min(plan.makespan_ns for plan in plans)
    for plan in plans:
        assert plan.fits
        assert len(plan.parts) > 1
        refuted = full_ranks_bound(problem, plan.bound_ns, plan.makespan_ns)
        assert refuted > fastest or plan.makespan_ns == fastest, "not a bound of plans in parts"
        assert certify(problem, plan).bound_ns <= fastest


shards = st.builds(Shard, st.integers(0, 2), st.integers(1, 3), st.integers(1, 9), st.integers(0, 9))


@settings(deadline=None, max_examples=60)
@given(
    st.lists(shards, min_size=1, max_size=5),
    st.lists(st.integers(0, 3), min_size=3, max_size=3),
    st.lists(st.integers(0, 50), min_size=3, max_size=3),
    st.integers(1, 30),
    st.integers(1, 30),
)
def test_a_rank_takes_what_the_best_set_of_shards_is_worth(
    held: list[Shard], numbers: list[int], prices: list[int], target: int, room: int
) -> None:
    values = [-(-prices[shard.bucket] // shard.degree) for shard in held]
    best = 0
    for counts in product(range(4), repeat=len(held)):
        taken = [0, 0, 0]
        for shard, count in zip(held, counts, strict=True):
            taken[shard.bucket] += count
        time = sum(shard.time * count for shard, count in zip(held, counts, strict=True))
        kept = sum(shard.kept * count for shard, count in zip(held, counts, strict=True))
        if time <= target and kept <= room and all(one <= most for one, most in zip(taken, numbers, strict=True)):
            best = max(best, sum(value * count for value, count in zip(values, counts, strict=True)))
    found = worth_most(prices, numbers, held, target, room)
    assert found.most == best
    assert sum(value * count for value, count in zip(values, found.counts, strict=True)) == best


@settings(deadline=None, max_examples=20)
@given(st.lists(shards, min_size=1, max_size=4), st.integers(1, 30), st.integers(1, 30), st.integers(1, 10**6))
def test_large_figures_never_take_less(held: list[Shard], target: int, room: int, more: int) -> None:
    """Beyond :data:`FINE` figures are rounded down, so that a rank takes no less than it can."""
    numbers, prices, scale = [3, 3, 3], [5, 7, 11], FINE + more
    large = [Shard(each.bucket, each.degree, each.time * scale, each.kept * scale) for each in held]
    least = worth_most(prices, numbers, held, target, room).most
    assert worth_most(prices, numbers, large, target * scale, room * scale).most >= least
