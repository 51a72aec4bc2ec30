"""Micro-steps of the least time: never worse than one step or the fewest, level with a peer that runs in parts."""

from __future__ import annotations

import dataclasses
import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle.batches import SHAPES, make_problem

from zellige.errors import InfeasibleError
from zellige.placement import Engine, Placement, Plan, Problem, rank_costs
from zellige.plan import plan_batch
from zellige.plan.bounds import best_bound, bound_of_some
from zellige.plan.length_cuts import LEAST_GAIN
from zellige.plan.micro_cuts import AtLeast, Cutter
from zellige.plan.micro_steps import BEST, plan_in_steps, plan_micro_steps, policy_planner
from zellige.schedule import Schedule
from zellige.sources import Options, batches_of, build_problem, load_setting, read_source


def tight(problem: Problem, room_share: float) -> Problem:
    """The problem where a rank's room is a share of what the batch's largest sequence needs whole."""
    largest = max(o.kept_bytes + o.live_bytes for o in (problem.whole(b) for b in problem.counts))
    usable = problem.memory.base_bytes + int(largest * room_share)
    return dataclasses.replace(problem, memory=msgspec.structs.replace(problem.memory, usable_bytes=usable))


def time_of(result: Plan | Schedule) -> int:
    return result.step_time_ns if isinstance(result, Schedule) else result.makespan_ns


def placed(result: Plan | Schedule) -> list[str]:
    plans = result.plans if isinstance(result, Schedule) else (result,)
    return sorted(placement.sequence for plan in plans for placement in plan.placements)


BATCHES = st.lists(st.tuples(st.sampled_from(SHAPES[:9]), st.integers(1, 40)), min_size=1, max_size=5)


@settings(max_examples=6)
@given(
    shapes=BATCHES,
    policy=st.sampled_from(("dp", "static", "knapformer-oracle")),
    room_share=st.sampled_from([1.1, 1.6, 3.0]),
)
def test_the_best_is_no_worse_than_one_step_or_the_fewest(
    shapes: list[tuple[tuple[int, int, int], int]], policy: str, room_share: float
) -> None:
    batch = [shape for shape, count in shapes for _ in range(count)]
    problem, planner = policy_planner(tight(make_problem(batch, "a800x8"), room_share), policy)
    try:
        fewest = plan_in_steps(problem, planner)
    except InfeasibleError:
        with pytest.raises(InfeasibleError):
            plan_in_steps(problem, planner, BEST)
        return
    best = plan_in_steps(problem, planner, BEST)
    assert best.fits
    assert placed(best) == sorted(sequence.id for sequence in problem.batch.sequences)
    assert time_of(best) <= time_of(fewest) / (1 - LEAST_GAIN)
    assert time_of(best) >= best_bound(problem)[0]
    if isinstance(fewest, Plan):
        assert isinstance(best, Schedule) or best.digest == fewest.digest
        assert isinstance(best, Plan) or best.step_time_ns < fewest.makespan_ns
    assert plan_in_steps(problem, planner, BEST).digest == best.digest


@given(BATCHES, st.sampled_from(("coalesced", "group")), st.data())
@settings(max_examples=25)
def test_bounds_of_some_sequences_are_those_of_their_batch(
    shapes: list[tuple[tuple[int, int, int], int]], engine: Engine, data: st.DataObject
) -> None:
    whole = make_problem([shape for shape, count in shapes for _ in range(count)], "a800x8")
    problem = dataclasses.replace(whole, engine=engine)
    numbers = {name: data.draw(st.integers(0, count)) for name, count in problem.numbers.items()}
    some = {name: count for name, count in numbers.items() if count}
    if not some:
        return
    left = dict(some)
    chosen = []
    for sequence in problem.batch.sequences:
        if left.get(sequence.bucket.name, 0):
            left[sequence.bucket.name] -= 1
            chosen.append(sequence)
    batch = msgspec.structs.replace(problem.batch, sequences=tuple(chosen))
    assert bound_of_some(problem, some) == best_bound(dataclasses.replace(problem, batch=batch))[0]


@settings(max_examples=10)
@given(shapes=BATCHES, number=st.integers(2, 5))
def test_cuts_by_length_hold_every_sequence(shapes: list[tuple[tuple[int, int, int], int]], number: int) -> None:
    batch = [shape for shape, count in shapes for _ in range(count)]
    problem, planner = policy_planner(tight(make_problem(batch, "a800x8"), 1.2), "dp")
    cutter = Cutter(problem, planner)
    cut = cutter.by_length(None, range(number, number + 1), 30)
    if cut is None:
        assert len(batch) < number or cutter.best_cut(number)[0] is None
        return
    assert len(cut.parts) == number
    assert all(any(part) for part in cut.parts)
    assert tuple(map(sum, zip(*cut.parts, strict=True))) == cutter.counts
    assert cut.time_ns == sum(plan.makespan_ns for part in cut.parts if (plan := cutter.plan_of(part)) is not None)


def paper_problem(name: str) -> Problem:
    source = read_source(name, Options())
    cluster, model = load_setting(source, Options())
    batch, _ = next(iter(batches_of(source, model, Options())))
    return build_problem(batch, cluster=cluster, model=model)


def waited_ns(problem: Problem, plan: Plan) -> int:
    """What a plan's parts take where all ranks end each of them together, as micro-steps do."""

    def alone(placement: Placement) -> Placement:
        return msgspec.structs.replace(placement, stage=0, micro_batch=0)

    return sum(rank_costs(problem, [alone(each) for each in part]).makespan_ns for part in plan.parts)


def test_hotspa_is_not_ahead_where_memory_binds() -> None:
    """On 16 ranks not even as priced, with ranks that go on to their next micro-batch without waiting for others."""
    problem, planner = policy_planner(paper_problem("paper-15s-a800x16-v50"), "zellige")
    peer = plan_batch(problem, "hotspa", "coalesced")
    single = planner(problem)
    assert peer.makespan_ns * 1.002 < single.makespan_ns, "it is ahead of one step"
    best = plan_in_steps(problem, planner, BEST)
    assert isinstance(best, Schedule)
    assert best.step_time_ns <= peer.makespan_ns * 1.002
    assert best.step_time_ns < waited_ns(problem, peer)


def test_hotspa_is_not_ahead_where_ranks_wait_for_each_other() -> None:
    """On 32 ranks two micro-steps: what it is ahead by, as priced, are ranks that do not wait."""
    problem, planner = policy_planner(paper_problem("paper-15s-a6000x32-v45"), "zellige")
    peer = plan_batch(problem, "hotspa", "coalesced")
    schedule = plan_micro_steps(problem, planner, 2)
    assert schedule.step_time_ns < planner(problem).makespan_ns
    assert schedule.step_time_ns <= waited_ns(problem, peer) * 1.002


def test_more_than_the_fewest_are_looked_for_where_these_are_many() -> None:
    """Of 18 micro-steps as well as of two: parts that are not full split less."""
    shapes = [(832, 480, 81)] * 90 + [(1280, 720, 81)] * 60 + [(1280, 720, 161)] * 30
    problem, planner = policy_planner(tight(make_problem(shapes, "a800x4"), 1.05), "static-coalesced")
    fewest = plan_micro_steps(problem, planner)
    best = plan_in_steps(problem, planner, BEST)
    assert isinstance(best, Schedule)
    assert fewest.num_micro_steps > 16
    assert best.num_micro_steps > fewest.num_micro_steps
    assert best.step_time_ns < fewest.step_time_ns * (1 - LEAST_GAIN)


def test_the_best_is_no_worse_than_the_fewest_cut_by_length() -> None:
    """60 clips of 720p, 4 of 1080p and 200 images: the fewest, cut by length, take less than more of them do."""
    shapes = [(1280, 720, 81)] * 60 + [(1920, 1080, 161)] * 4 + [(1024, 1024, 1)] * 200
    problem, planner = policy_planner(make_problem(shapes, "a800x8"), "zellige")
    fewest = plan_in_steps(problem, planner)
    assert time_of(plan_in_steps(problem, planner, BEST)) <= time_of(fewest)


MANY_SHAPES = [(16 * w, 16 * h, frames) for w, h in ((32, 32), (52, 30), (40, 40)) for frames in (1, 17, 33, 49)]


@pytest.mark.parametrize("policy", ["zellige", "static", "knapformer-oracle"])
@pytest.mark.parametrize("steps", [None, BEST, 3])
def test_what_parts_share_changes_no_plan(policy: str, steps: int | str | None) -> None:
    """The same schedule as from a planner that prepares every part anew."""
    chance = random.Random(7)
    shapes = [shape for shape in MANY_SHAPES for _ in range(chance.randint(1, 4))]
    problem, planner = policy_planner(tight(make_problem(shapes, "a800x4"), 2.5), policy)
    anew = plan_in_steps(problem, lambda posed: planner(dataclasses.replace(posed)), steps)
    assert plan_in_steps(problem, planner, steps).digest == anew.digest
    assert isinstance(anew, Schedule) or steps != 3


@settings(max_examples=40)
@given(st.floats(0.9, 1.1), st.data())
def test_a_cut_that_is_not_below_a_limit_takes_no_less(share: float, data: st.DataObject) -> None:
    shapes = [(832, 480, 81)] * 5 + [(1280, 720, 33)] * 4 + [(512, 512, 1)] * 6
    problem, planner = policy_planner(tight(make_problem(shapes, "a800x4"), 3.0), "static-coalesced")
    cutter = Cutter(problem, planner)
    first = tuple(data.draw(st.integers(0, count)) for count in cutter.counts)
    rest = tuple(count - taken for count, taken in zip(cutter.counts, first, strict=True))
    if not (any(first) and any(rest)):
        return
    whole = Cutter(problem, planner).cut_of((first, rest))
    below = int(share * (10**11 if whole is None else whole.time_ns))
    found = cutter.cut_of((first, rest), below)
    if isinstance(found, AtLeast):
        assert below <= found.time_ns
        assert whole is None or found.time_ns <= whole.time_ns
    else:
        assert found == whole
        assert found is None or found.time_ns < below


def test_parts_that_bounds_rule_out_are_not_planned() -> None:
    """Fewer parts are planned than the ways hold that were tried, and progress tells of each."""
    chance = random.Random(3)
    shapes = [shape for shape in MANY_SHAPES for _ in range(chance.randint(4, 12))]
    problem, planner = policy_planner(tight(make_problem(shapes, "a800x4"), 2.0), "static-coalesced")
    told: list[tuple[int, int | None]] = []
    result = plan_in_steps(
        problem, planner, BEST, lambda plans, best: told.append((plans, None if best is None else best.time_ns))
    )
    assert [plans for plans, _ in told] == sorted({plans for plans, _ in told})
    times = [time for _, time in told if time is not None]
    assert times == sorted(times, reverse=True)
    assert times[-1] >= time_of(result)
    assert len(told) < 200, "398 where runs are planned to the end"
