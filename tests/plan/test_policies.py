"""Every policy: valid plans, never below the exhaustive optimum nor the bound, and what each promises by its name."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from fractions import Fraction
from functools import cache

import msgspec
import pytest
from oracle.batches import BATCHES, make_problem, problem_of
from oracle.brute_force import (
    LOOSE,
    MIB,
    Way,
    costs,
    make_price,
    optimum,
    random_problem,
    small_cluster,
    synthetic_problem,
)

from zellige.errors import InfeasibleError, NoRoomError, SequenceTooLargeError, UnknownNameError
from zellige.placement import ENGINES, Engine, Plan, Problem, plan_digest, rank_costs
from zellige.plan import POLICIES, plan_batch
from zellige.plan.bounds import best_bound
from zellige.plan.fillers import RankLoads, pack_fillers
from zellige.plan.two_stage import anchor_buckets
from zellige.plan_check import check_plan
from zellige.shards import ParallelConfig
from zellige.sources import Options

WHOLE = ParallelConfig()
NAMES = (
    "dp", "usp", "static", "static-coalesced", "knapformer", "knapformer-best", "knapformer-oracle", "zellige-paper",
    "zellige-paper-coalesced",
)  # fmt: skip
FOR_ANY_TABLE = ("dp", "static", "static-coalesced", "zellige-paper", "zellige-paper-coalesced")
"""Policies that need no particular configuration in the price table."""

SMALL = [(256, 256, 1), (832, 480, 1), (480, 272, 33), (832, 480, 17), (640, 368, 81), (1280, 720, 1)]


@pytest.mark.parametrize("policy", NAMES)
def test_plans_are_complete_priced_and_certified(policy: str) -> None:
    for index in range(len(BATCHES)):
        problem = dataclasses.replace(problem_of(index), engine=POLICIES[policy].engine)
        plan = plan_of(index, policy)
        num_ranks = problem.cluster.num_ranks
        assert [p.sequence for p in plan.placements] == [s.id for s in problem.batch.sequences]
        assert [p.bucket for p in plan.placements] == [s.bucket.name for s in problem.batch.sequences]
        for placement in plan.placements:
            assert len(set(placement.ranks)) == placement.config.degree
            assert set(placement.ranks) <= set(range(num_ranks))
        found = rank_costs(problem, plan.placements)
        assert [p.time_ns for p in plan.predicted] == list(found.times_ns)
        assert [p.memory_bytes for p in plan.predicted] == list(found.memory_bytes)
        assert plan.makespan_ns == max(found.times_ns)
        assert plan.fits == (max(found.memory_bytes) <= problem.memory.usable_bytes)
        assert (plan.bound_ns, plan.bound) == best_bound(problem)
        assert plan.makespan_ns >= plan.bound_ns
        assert plan.gap == plan.makespan_ns / plan.bound_ns - 1 >= 0
        assert plan.policy == policy
        if index < 3:
            findings = check_plan(plan, "plan.json", Options())
            assert {finding.code for finding in findings} == (set() if plan.fits else {"ZL204"}), findings


@cache
def plan_of(index: int, policy: str) -> Plan:
    return plan_batch(problem_of(index), policy)


def way_of(problem: Problem, sequence: str, plan: Plan) -> Way:
    placement = next(p for p in plan.placements if p.sequence == sequence)
    nodes = problem.cluster.footprint(placement.ranks)
    row = next(
        row
        for row in problem.prices.rows
        if (row.bucket, row.config, row.num_nodes) == (placement.bucket, placement.config, nodes)
    )
    return Way(placement.config, placement.ranks, nodes, row.price)


@pytest.mark.parametrize("seed", range(6))
def test_no_plan_beats_the_optimum_of_its_engine(seed: int) -> None:
    """On four ranks with every legal configuration and rank set of a real model."""
    chance = random.Random(seed)
    problem = make_problem(chance.choices(SMALL, k=3))
    best = {}
    for policy in NAMES:
        engine = POLICIES[policy].engine
        posed = dataclasses.replace(problem, engine=engine)
        plan = plan_batch(problem, policy)
        assert (
            max(costs(posed, [way_of(posed, s.id, plan) for s in posed.batch.sequences]).times_ns) == plan.makespan_ns
        )
        if engine not in best:
            best[engine] = optimum(posed)
        found = best[engine]
        assert found is not None
        assert plan.bound_ns <= found.makespan_ns <= plan.makespan_ns, policy


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("engine", ENGINES)
def test_no_plan_beats_the_optimum_under_arbitrary_prices(engine: Engine, seed: int) -> None:
    """Smooth and arbitrary tables, memory that binds; a plan that fits is no better than the best that fits."""
    chance = random.Random(1000 + seed)
    for index in range(8):
        problem = random_problem(chance, engine, tight=index % 2 == 0)
        limited, loose = optimum(problem), optimum(problem, with_memory=False)
        assert loose is not None
        for policy in FOR_ANY_TABLE:
            plan = attempt(problem, policy, engine)
            if plan is not None:
                assert plan.makespan_ns >= loose.makespan_ns
                assert not plan.fits or (limited is not None and plan.makespan_ns >= limited.makespan_ns), policy
                assert plan.fits or not policy.startswith("zellige"), "this planner looks at memory"


def attempt(problem: Problem, policy: str, engine: Engine | None = None) -> Plan | None:
    """A plan, or None where the policy says that memory allows none."""
    try:
        return plan_batch(problem, policy, engine)
    except InfeasibleError:
        return None


@pytest.mark.parametrize("policy", NAMES)
def test_a_permuted_batch_gives_the_same_plan_up_to_names(policy: str) -> None:
    chance = random.Random(policy)
    for index in range(3):
        problem = problem_of(index)
        mixed = chance.sample(problem.batch.sequences, len(problem.batch.sequences))
        batch = msgspec.structs.replace(problem.batch, sequences=tuple(mixed))
        plans = [plan_of(index, policy), plan_batch(dataclasses.replace(problem, batch=batch), policy)]
        tokens = {bucket.name: bucket.num_tokens for bucket in batch.buckets}
        first, second = (Counter((tokens[p.bucket], p.config, p.ranks) for p in plan.placements) for plan in plans)
        assert first == second
        assert plans[0].predicted == plans[1].predicted
        assert plans[0].makespan_ns == plans[1].makespan_ns


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_says_what_it_does(policy: str) -> None:
    assert POLICIES[policy].engine in ENGINES
    assert len(POLICIES[policy].summary) > 10


def test_unknown_policies_are_named_with_a_suggestion() -> None:
    with pytest.raises(UnknownNameError) as caught:
        plan_batch(make_problem(SMALL), "zellige-papier")
    assert "zellige-papier" in str(caught.value)
    assert "did you mean zellige-paper?" in caught.value.fix


def test_only_anchors_are_split() -> None:
    for index in range(len(BATCHES)):
        split = {p.bucket for p in plan_of(index, "zellige-paper").placements if p.config.is_split}
        assert split <= anchor_buckets(dataclasses.replace(problem_of(index), engine="group"))


def test_fillers_go_where_equation_8_says() -> None:
    """Recomputed in fractions: the rank with the most of its tighter slack left, the first of equals."""
    tighter = set()
    for seed in range(12):
        chance = random.Random(seed)
        problem = random_fillers(chance)
        loads, kept, live = ([chance.randint(0, top) for _ in range(problem.cluster.num_ranks)] for top in (60, 15, 5))
        given = RankLoads(problem.cluster.num_ranks)
        given.time_ns, given.kept, given.live = list(loads), list(kept), list(live)
        placed = {p.sequence: p.ranks for p in pack_fillers(problem, problem.batch.sequences, given)}
        price = {row.bucket: row.price for row in problem.prices.rows}
        budget = Fraction(sum(price[s.bucket.name].time_ns for s in problem.batch.sequences), problem.cluster.num_ranks)
        room = problem.memory.room_bytes
        for sequence in sorted(problem.batch.sequences, key=lambda s: -price[s.bucket.name].time_ns):
            own = price[sequence.bucket.name]
            scores = {}
            for rank in range(problem.cluster.num_ranks):
                left = room - kept[rank] - own.kept_bytes - max(live[rank], own.live_bytes)
                slack = (budget - loads[rank] - own.time_ns) / budget
                if left >= 0:
                    scores[rank] = min(slack, Fraction(left, room))
                    tighter.add("memory" if Fraction(left, room) < slack else "time")
            (rank,) = placed[sequence.id]
            assert rank == max(scores, key=lambda rank: (scores[rank], -rank))
            loads[rank] += own.time_ns
            kept[rank] += own.kept_bytes
            live[rank] = max(live[rank], own.live_bytes)
        assert (given.time_ns, given.kept, given.live) == (loads, kept, live)
    assert tighter == {"memory", "time"}


def random_fillers(chance: random.Random) -> Problem:
    """Four kinds of whole sequences; ranks hold little more than they need, so that memory often decides."""
    num_ranks = chance.randint(2, 4)
    prices, counts = {}, {}
    for index in range(1, 5):
        name = f"{16 * index}x16x1"
        prices[name] = {(WHOLE, 1): make_price(chance.randint(1, 200), 0, chance.randint(1, 9), chance.randint(0, 9))}
        counts[name] = chance.randint(1, 6)
    kept = sum(count * prices[name][WHOLE, 1].kept_bytes for name, count in counts.items())
    return synthetic_problem(prices, counts, small_cluster(num_ranks), "group", kept // num_ranks + 35)


def test_no_room_names_the_sequence_and_the_bytes() -> None:
    """Two ranks with room for two each; the fifth item lacks 7 of its 12 MiB on both."""
    prices = {"16x16x1": {(WHOLE, 1): make_price(10, 0, 10 * MIB, 2 * MIB)}}
    problem = synthetic_problem(prices, {"16x16x1": 5}, small_cluster(2), "group", 25 * MIB)
    with pytest.raises(NoRoomError) as caught:
        plan_batch(problem, "zellige-paper")
    error = caught.value
    assert (error.code, error.exit_code) == ("ZL204", 3)
    assert "16x16x1-4" in error.message
    assert "7.34 MB missing" in str(error), "7 MiB"
    assert error.fix


@pytest.mark.parametrize("policy", ["zellige-paper", "zellige-paper-coalesced"])
def test_a_sequence_that_no_split_fits_is_named_with_its_bytes(policy: str) -> None:
    problem = make_problem([(256, 256, 1), (1920, 1080, 1001)], "a800x4")
    options = dataclasses.replace(problem, engine=POLICIES[policy].engine).options["1920x1088x1001"]
    least = min(option.kept_bytes + option.live_bytes for option in options)
    assert least > problem.memory.room_bytes
    with pytest.raises(SequenceTooLargeError) as caught:
        plan_batch(problem, policy)
    error = caught.value
    assert (error.code, error.exit_code) == ("ZL202", 3)
    assert "v1" in error.message
    assert "2,048,160 tokens" in error.where
    assert f"{least / 1e9:.0f}" in str(error)
    assert f"{(least - problem.memory.room_bytes) / 1e9:.1f} GB missing" in str(error)
    assert "ranks" in error.fix


def test_a_plan_over_memory_keeps_its_time_and_says_so() -> None:
    """dp does not look at memory: its plan is a plan, and does not fit."""
    plan = plan_batch(make_problem([(1920, 1080, 161)] * 8, "a800x4"), "dp")
    assert not plan.fits
    assert plan.makespan_ns > 0
    assert plan.peak_memory_bytes > plan.memory_limit_bytes
    assert [finding.code for finding in check_plan(plan, "plan.json", Options())] == ["ZL204"]


def test_the_digest_is_of_the_plan_and_not_of_the_clock() -> None:
    problem = make_problem(BATCHES[0][0])
    plan, again = plan_batch(problem, "zellige-paper"), plan_batch(problem, "zellige-paper")
    assert plan.digest == again.digest == plan_digest(plan)
    slower = msgspec.structs.replace(plan.solver, planning_ns=plan.solver.planning_ns + 10**9)
    assert plan_digest(msgspec.structs.replace(plan, solver=slower)) == plan.digest
    digests = {plan.digest}
    for index, placement in enumerate(plan.placements):
        if placement.config == WHOLE:
            moved = msgspec.structs.replace(placement, ranks=((placement.ranks[0] + 1) % 4,))
            others = (*plan.placements[:index], moved, *plan.placements[index + 1 :])
            digests.add(plan_digest(msgspec.structs.replace(plan, placements=others)))
    assert len(digests) == 1 + sum(p.config == WHOLE for p in plan.placements) > 2
    assert plan_batch(problem, "dp").digest not in digests
    assert plan_digest(msgspec.structs.replace(plan, engine="coalesced")) not in digests


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_may_be_forced_on_any_policy(engine: Engine) -> None:
    problem = make_problem([(832, 480, 81), (832, 480, 1)] * 2)
    for policy in NAMES:
        assert plan_batch(problem, policy, engine).engine == engine


@pytest.mark.parametrize("policy", ["zellige-paper", "zellige-paper-coalesced"])
def test_more_memory_never_takes_a_plan_away(policy: str) -> None:
    """On batches of real shapes. With arbitrary prices a greedy packer cannot promise it: freed from memory, anchors
    may stay whole where they leave no room for a filler."""
    for index in range(4):
        problem = problem_of(index)
        total = sum(row.price.memory_bytes for row in problem.prices.rows if row.config == WHOLE)
        feasible = [
            attempt(with_room(problem, round(total * share)), policy) is not None for share in (0.03, 0.1, 0.4, 1, 8)
        ]
        assert feasible == sorted(feasible), (index, feasible)
        assert feasible[-1] > feasible[0]


def with_room(problem: Problem, room_bytes: int) -> Problem:
    memory = msgspec.structs.replace(problem.memory, usable_bytes=problem.memory.base_bytes + max(room_bytes, 1))
    return dataclasses.replace(problem, memory=memory)


def test_loose_memory_always_has_a_plan() -> None:
    chance = random.Random(2)
    for _ in range(40):
        problem = with_room(random_problem(chance, "group", tight=True), LOOSE)
        assert attempt(problem, "zellige-paper") is not None
