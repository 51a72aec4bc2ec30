"""Micro-steps: every sequence once, no more of them than brute force needs, and errors that say what would help."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle.batches import SHAPES, make_problem

from zellige.errors import IllegalSplitError, InfeasibleError, NoRoomError, SequenceTooLargeError, UsageError
from zellige.files import canonical_json
from zellige.placement import Plan, Problem, Setup
from zellige.plan import micro_steps
from zellige.plan.bounds import best_bound
from zellige.plan.micro_cuts import Planner, all_cuts
from zellige.plan.micro_steps import (
    micro_steps_advice,
    plan_in_steps,
    plan_micro_steps,
    plan_one_step,
    policy_planner,
)
from zellige.plan.room import room_need, without_plan
from zellige.schedule import Schedule, schedule_digest

SHORT = [(256, 256, 1), (832, 480, 33), (480, 832, 33), (832, 480, 81), (1280, 720, 81)]
POLICIES = ("dp", "static", "knapformer-oracle", "zellige-paper")


def tight(problem: Problem, room_share: float) -> Problem:
    """The problem where a rank's room is a share of what the batch's largest sequence needs whole."""
    largest = max(o.kept_bytes + o.live_bytes for o in (problem.whole(b) for b in problem.counts))
    usable = problem.memory.base_bytes + int(largest * room_share)
    return dataclasses.replace(problem, memory=msgspec.structs.replace(problem.memory, usable_bytes=usable))


def fitting(planner: Planner, problem: Problem) -> int | None:
    """The makespan of a plan that fits."""
    try:
        plan = planner(problem)
    except InfeasibleError:
        return None
    return plan.makespan_ns if plan.fits else None


def partitions(items: list[int]) -> Iterator[list[list[int]]]:
    """Every way to put items into groups (set partitions)."""
    if not items:
        yield []
        return
    for rest in partitions(items[1:]):
        yield [[items[0]], *rest]
        for index in range(len(rest)):
            yield [*rest[:index], [items[0], *rest[index]], *rest[index + 1 :]]


def brute_force(problem: Problem, planner: Planner) -> tuple[int, int] | None:
    """The fewest micro-steps whose every plan fits, and the least sum of makespans in so many; None where none do."""
    sequences = problem.batch.sequences
    times: dict[tuple[str, ...], int | None] = {}
    best: tuple[int, int] | None = None
    for groups in partitions(list(range(len(sequences)))):
        total: int | None = 0
        for group in groups:
            chosen = tuple(sequences[index] for index in sorted(group))
            key = tuple(sorted(sequence.bucket.name for sequence in chosen))
            if key not in times:
                batch = msgspec.structs.replace(problem.batch, sequences=chosen)
                times[key] = fitting(planner, dataclasses.replace(problem, batch=batch))
            time = times[key]
            total = None if time is None or total is None else total + time
        if total is not None and (best is None or (len(groups), total) < best):
            best = (len(groups), total)
    return best


@settings(max_examples=20)
@given(
    shapes=st.lists(st.sampled_from(SHORT), min_size=1, max_size=5),
    policy=st.sampled_from(POLICIES),
    room_share=st.sampled_from([0.3, 0.7, 1.0, 1.3, 2.1]),
)
def test_no_fewer_and_no_shorter_than_brute_force(
    shapes: list[tuple[int, int, int]], policy: str, room_share: float
) -> None:
    problem, planner = policy_planner(tight(make_problem(shapes), room_share), policy)
    best = brute_force(problem, planner)
    if best is None:
        with pytest.raises(InfeasibleError):
            plan_micro_steps(problem, planner)
        return
    schedule = plan_micro_steps(problem, planner)
    check(schedule, problem)
    assert (schedule.num_micro_steps, schedule.step_time_ns) == best
    assert schedule.solver.status == "fewest"
    single = fitting(planner, problem)
    assert (single is not None) == (schedule.num_micro_steps == 1)


def check(schedule: Schedule, problem: Problem) -> None:
    """Conservation, totals and bounds, recomputed."""
    placed = Counter(p.sequence for plan in schedule.plans for p in plan.placements)
    assert placed == Counter(sequence.id for sequence in problem.batch.sequences)
    buckets = {sequence.id: sequence.bucket.name for sequence in problem.batch.sequences}
    assert all(p.bucket == buckets[p.sequence] for plan in schedule.plans for p in plan.placements)
    assert all(plan.placements and plan.fits for plan in schedule.plans)
    assert schedule.num_micro_steps == len(schedule.plans) >= schedule.least_micro_steps
    assert schedule.step_time_ns == sum(plan.makespan_ns for plan in schedule.plans)
    assert schedule.num_tokens == problem.batch.num_tokens
    assert (schedule.bound_ns, schedule.bound) == best_bound(problem)
    assert schedule.gap >= 0
    assert schedule.digest == schedule_digest(schedule)


def each_alone(problem: Problem) -> list[Problem]:
    """A batch of one sequence for every bucket."""
    first = {sequence.bucket: sequence for sequence in problem.batch.sequences}
    batches = [msgspec.structs.replace(problem.batch, sequences=(sequence,)) for sequence in first.values()]
    return [dataclasses.replace(problem, batch=batch) for batch in batches]


@settings(max_examples=8)
@given(
    shapes=st.lists(st.tuples(st.sampled_from(SHAPES[:9]), st.integers(1, 40)), min_size=1, max_size=5),
    policy=st.sampled_from(("dp", "static", "knapformer-oracle")),
    room_share=st.sampled_from([0.6, 1.1, 3.0]),
)
def test_larger_batches_are_conserved_and_do_not_depend_on_chance(
    shapes: list[tuple[tuple[int, int, int], int]], policy: str, room_share: float
) -> None:
    batch = [shape for shape, count in shapes for _ in range(count)]
    problem, planner = policy_planner(tight(make_problem(batch, "a800x8"), room_share), policy)
    if any(fitting(planner, alone) is None for alone in each_alone(problem)):
        with pytest.raises(InfeasibleError):
            plan_micro_steps(problem, planner)
        return
    schedule = plan_micro_steps(problem, planner)
    check(schedule, problem)
    again = plan_micro_steps(problem, planner)
    assert again.digest == schedule.digest
    assert room_need(problem).least_micro_steps <= schedule.num_micro_steps <= len(batch)


def test_a_memory_bound_batch_loses_little_to_its_micro_steps() -> None:
    """The bound is for any number of micro-steps, so the gap says what cutting costs, parameter gathers aside."""
    mixture = [(1280, 720, 81)] * 30 + [(832, 480, 81)] * 30 + [(512, 512, 1)] * 100
    problem, planner = policy_planner(make_problem(mixture), "zellige-paper-coalesced")
    schedule = plan_micro_steps(problem, planner)
    assert schedule.num_micro_steps == schedule.least_micro_steps > 1
    assert schedule.gap < 0.01
    times = [plan.makespan_ns for plan in schedule.plans]
    assert times == sorted(times, reverse=True)
    assert min(times) > 0.8 * max(times), "balanced"


def test_one_step_is_used_where_it_fits_and_as_many_as_asked_for() -> None:
    problem, planner = policy_planner(make_problem([(832, 480, 33)] * 6), "static")
    assert isinstance(plan_in_steps(problem, planner), Plan)
    assert isinstance(plan_in_steps(problem, planner, 1), Plan)
    for number in (2, 3, 6):
        schedule = plan_in_steps(problem, planner, number)
        assert isinstance(schedule, Schedule)
        assert schedule.num_micro_steps == number
        check(schedule, problem)
        assert schedule.solver.status == "feasible", "one step would do"
    for number in (0, 7):
        with pytest.raises(UsageError):
            plan_micro_steps(problem, planner, number)


def test_the_order_of_the_batch_decides_only_who_of_equals_goes_first() -> None:
    problem, planner = policy_planner(tight(make_problem([(832, 480, 33)] * 4 + [(832, 480, 81)] * 3), 1.1), "dp")
    turned = msgspec.structs.replace(problem.batch, sequences=problem.batch.sequences[::-1])
    there = plan_micro_steps(problem, planner)
    back = plan_micro_steps(dataclasses.replace(problem, batch=turned), planner)
    assert [plan.predicted for plan in there.plans] == [plan.predicted for plan in back.plans]


def test_memory_proves_how_many_at_least_and_says_what_is_missing() -> None:
    problem, planner = policy_planner(make_problem([(832, 480, 81)] * 120), "portfolio")
    need = room_need(problem)
    assert need.least_micro_steps == 3
    with pytest.raises(NoRoomError, match="one step cannot hold") as caught:
        plan_one_step(problem, planner, planner)
    error = caught.value
    assert "494 GB missing" in "".join(error.details)
    assert "832x480x81" in "".join(error.details)
    assert "v0" in "".join(error.details)
    assert "--micro-steps auto, which would need 3 micro-steps" in error.fix
    assert "ranks" in error.fix
    with pytest.raises(NoRoomError, match="2 micro-steps cannot hold") as caught:
        plan_micro_steps(problem, planner, 2)
    assert "at least 3 micro-steps" in caught.value.fix
    assert plan_micro_steps(problem, planner).num_micro_steps == 3


def test_a_policy_without_a_plan_says_what_memory_proves_and_no_more() -> None:
    """Nothing is called impossible that memory does not prove so: the policy's own words, and the figures."""
    proven = without_plan(make_problem([(832, 480, 81)] * 120), "nothing was found", "another policy")
    assert "494 GB missing" in proven.details[0]
    open_still = without_plan(make_problem([(832, 480, 81)] * 10), "nothing was found", "another policy")
    assert (open_still.message, open_still.fix) == ("nothing was found", "another policy")
    assert open_still.details == (room_need(make_problem([(832, 480, 81)] * 10)).proof,)


def test_a_policy_that_splits_nothing_is_told_which_sequence_and_rank() -> None:
    problem, planner = policy_planner(tight(make_problem([(832, 480, 33)] * 3 + [(832, 480, 81)]), 0.9), "dp")
    with pytest.raises(NoRoomError, match="v3 does not fit alone") as caught:
        plan_micro_steps(problem, planner)
    assert "missing on rank" in caught.value.details[0]
    assert "do not help" in micro_steps_advice(problem, planner)
    with pytest.raises(NoRoomError):
        plan_micro_steps(problem, planner, 2)


def test_advice_does_not_take_longer_than_it_is_worth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the first cuts have no plans, the error says how many are needed at least."""
    problem, planner = policy_planner(tight(make_problem([(832, 480, 81)] * 9 + [(832, 480, 33)] * 9), 1.02), "dp")
    calls = 0

    def planned(posed: Problem) -> Plan:
        nonlocal calls
        calls += 1
        plan = planner(posed)
        return msgspec.structs.replace(plan, fits=len(posed.batch.sequences) < 3)

    assert "would need 9 micro-steps" in micro_steps_advice(problem, planned)
    monkeypatch.setattr(micro_steps, "MAX_ADVICE_PLANS", 3)
    calls = 0
    assert "would need 2 or more micro-steps" in micro_steps_advice(problem, planned)
    assert calls == 3
    schedule = plan_micro_steps(problem, planned)
    check(schedule, problem)
    assert schedule.num_micro_steps >= 9
    assert schedule.solver.status == "feasible"


def test_what_micro_steps_cannot_mend_is_said_as_it_is() -> None:
    problem, planner = policy_planner(tight(make_problem([(832, 480, 81)] * 2), 0.05), "static")
    for plan in (plan_micro_steps, plan_in_steps):
        with pytest.raises(SequenceTooLargeError):
            plan(problem, planner)
    wrong = make_problem([(832, 480, 81)] * 2, setup=Setup(usp="h4k2"))
    problem, planner = policy_planner(wrong, "usp")
    with pytest.raises(IllegalSplitError):
        plan_in_steps(problem, planner)
    with pytest.raises(IllegalSplitError):
        plan_one_step(problem, planner, planner)


@given(counts=st.lists(st.integers(0, 3), min_size=1, max_size=3), number=st.integers(1, 3))
def test_all_cuts_are_all_cuts(counts: list[int], number: int) -> None:
    """Against labelled assignments of single items, with the labels and the order of equals forgotten."""
    items = [index for index, count in enumerate(counts) for _ in range(count)]
    found = set()
    for labels in itertools.product(range(number), repeat=len(items)):
        parts = [[0] * len(counts) for _ in range(number)]
        for item, label in zip(items, labels, strict=True):
            parts[label][item] += 1
        if all(any(part) for part in parts):
            found.add(tuple(sorted(map(tuple, parts), reverse=True)))
    cuts = list(all_cuts(tuple(counts), number))
    assert len(cuts) == len(set(cuts))
    assert set(cuts) == found


def test_a_schedule_survives_its_file() -> None:
    problem, planner = policy_planner(tight(make_problem([(832, 480, 33)] * 4), 1.1), "dp")
    schedule = plan_micro_steps(problem, planner)
    assert msgspec.json.decode(canonical_json(schedule), type=Schedule) == schedule
