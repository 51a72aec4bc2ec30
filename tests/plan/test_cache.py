"""Kept plans are the plans that would be made afresh, whatever the batch's names and order and whatever came before."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle.batches import BATCHES, make_problem, problem_of

from zellige.errors import InternalError, NoRoomError, UnknownNameError, UsageError
from zellige.files import canonical_json
from zellige.placement import Plan, Problem, Setup, plan_digest
from zellige.plan import POLICIES, plan_batch
from zellige.plan.cache import PlanCache, plan_key
from zellige.plan.deal import by_bucket, deal
from zellige.workload import Batch, Sequence

FAST = (
    "dp", "dp-kk", "adaptive-load", "usp", "static", "knapformer", "knapformer-oracle", "zellige", "zellige-paper",
    "megatron-hybrid-cp", "bytescale-hdp", "hydraulis", "hotspa", "loongtrain-2d",
)  # fmt: skip
SHARED = PlanCache(64)
"""One cache for all examples: what it holds by then must not show."""


def line(plan: Plan) -> bytes:
    """A plan's bytes without wall-clock time."""
    return canonical_json(msgspec.structs.replace(plan, solver=msgspec.structs.replace(plan.solver, planning_ns=0)))


def reordered(problem: Problem, chance: random.Random, name: str = "other") -> Problem:
    """The same counts under other names, in another order."""
    sequences = [Sequence(f"{chance.randrange(10**6)}-{n}", s.bucket) for n, s in enumerate(problem.batch.sequences)]
    chance.shuffle(sequences)
    batch = Batch(name=name, sequences=tuple(sequences), buckets=problem.batch.buckets)
    return dataclasses.replace(problem, batch=batch)


def shape_of(plan: Plan) -> Counter[tuple[object, ...]]:
    return Counter((p.bucket, p.config, p.ranks) for p in plan.placements)


@settings(max_examples=30)
@given(index=st.integers(0, len(BATCHES) - 1), policy=st.sampled_from(FAST), seed=st.integers(0, 10**6))
def test_a_kept_plan_is_the_plan_made_afresh(index: int, policy: str, seed: int) -> None:
    original = problem_of(index)
    other = reordered(original, random.Random(seed))
    first = SHARED.plan(original, policy)
    before = SHARED.hits
    kept = SHARED.plan(other, policy)
    assert SHARED.hits == before + 1
    assert line(kept) == line(plan_batch(other, policy))
    assert kept.digest == plan_digest(kept)
    assert shape_of(kept) == shape_of(first)
    assert [p.sequence for p in kept.placements] == [s.id for s in other.batch.sequences]
    assert all(p.bucket == s.bucket.name for p, s in zip(kept.placements, other.batch.sequences, strict=True))


@pytest.mark.parametrize("policy", FAST)
def test_equal_lengths_in_two_orientations_do_not_depend_on_their_mixture(policy: str) -> None:
    """Portrait and landscape clips cost the same; which of them is met first must not matter."""
    shapes = [(832, 480, 33), (480, 832, 33), (480, 832, 33), (832, 480, 33), (832, 480, 33), (512, 512, 1)]
    problem = make_problem(shapes)
    plans = [plan_batch(problem, policy)]
    for seed in range(4):
        plans.append(plan_batch(reordered(problem, random.Random(seed)), policy))
    assert len({frozenset(shape_of(plan).items()) for plan in plans}) == 1


def test_settings_are_told_apart() -> None:
    problem = problem_of(0)
    prices = msgspec.structs.replace(problem.prices, rows=problem.prices.rows[:-1])
    roomier = msgspec.structs.replace(problem.memory, usable_bytes=problem.memory.usable_bytes + 1)
    catalog = (*problem.batch.buckets, *make_problem([(1920, 1088, 1)]).batch.buckets)
    variants = [
        (problem, "dp", None),
        (problem, "static", None),
        (problem, "dp", "group"),
        (dataclasses.replace(problem, setup=Setup(usp="h4")), "dp", None),
        (dataclasses.replace(problem, prices=prices), "dp", None),
        (dataclasses.replace(problem, memory=roomier), "dp", None),
        (dataclasses.replace(problem, batch=msgspec.structs.replace(problem.batch, buckets=catalog)), "dp", None),
    ]
    keys = {plan_key(posed, policy, engine) for posed, policy, engine in variants}
    assert len(keys) == len(variants)
    posed = dataclasses.replace(problem, engine="group")
    assert plan_key(posed, "dp") == plan_key(problem, "dp"), "a policy has its own engine"
    fewer = msgspec.structs.replace(problem.batch, sequences=problem.batch.sequences[:-1])
    assert plan_key(dataclasses.replace(problem, batch=fewer), "dp") not in keys


def test_the_plan_used_longest_ago_goes_first() -> None:
    cache = PlanCache(2)
    for index in (0, 1, 0, 2, 0, 1):
        assert line(cache.plan(problem_of(index), "dp")) == line(plan_batch(problem_of(index), "dp"))
    assert (cache.hits, cache.misses) == (2, 4)


def test_a_batch_without_a_plan_names_its_own_sequence() -> None:
    """Errors are not kept: the second batch hears of its own sequences."""
    cache = PlanCache()
    heavy = make_problem([(832, 480, 81)] * 120)
    for number in range(2):
        posed = reordered(heavy, random.Random(number), name=f"heavy-{number}")
        with pytest.raises(NoRoomError) as caught:
            cache.plan(posed, "zellige-paper")
        assert any(sequence.id in caught.value.message for sequence in posed.batch.sequences)
    assert (cache.hits, cache.misses) == (0, 0)


def test_what_cannot_be_dealt_is_refused() -> None:
    problem = problem_of(0)
    plan = plan_batch(problem, "dp")
    with pytest.raises(InternalError):
        deal(plan, problem_of(1))
    fewer = msgspec.structs.replace(problem.batch, sequences=problem.batch.sequences[:-1])
    with pytest.raises(InternalError):
        deal(plan, dataclasses.replace(problem, batch=fewer))
    with pytest.raises(UnknownNameError):
        PlanCache().plan(problem, "dpp")
    with pytest.raises(UsageError):
        PlanCache(0)


def test_a_batch_in_bucket_order_is_left_as_it_is() -> None:
    posed = by_bucket(reordered(problem_of(1), random.Random(3)))
    assert by_bucket(posed) is posed
    buckets = [sequence.bucket for sequence in posed.batch.sequences]
    assert buckets == sorted(buckets, key=posed.batch.buckets.index)


def test_the_policies_tried_are_policies() -> None:
    assert set(FAST) <= set(POLICIES)
