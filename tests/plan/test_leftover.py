"""What is left over when whole sequences are dealt out evenly: split where it pays, compiled and interpreted alike."""

from __future__ import annotations

import random

import pytest
from oracle.batches import on_nodes

from zellige.placement import Engine, Problem
from zellige.plan import plan_batch, prefer_compiled
from zellige.plan.bounds import least_time_of
from zellige.plan.leftover import leftover_draft, leftover_in_pods
from zellige.plan.search import Budget
from zellige.plan.task import Draft, block_choices, make_task
from zellige.plan_check import placement_findings

CLIP, LONGER, IMAGE = (832, 480, 81), (1280, 720, 81), (1024, 1024, 1)


def drafted(problem: Problem) -> Draft | None:
    limit = problem.ring_limits[0]
    return leftover_draft(problem, least_time_of(problem, problem.fronts_within[limit]), problem.rungs_within[limit])


@pytest.mark.parametrize("number", [58, 60, 63])
def test_each_rank_runs_as_many_whole_clips_and_a_part_of_the_others(number: int) -> None:
    problem = on_nodes(1, (CLIP, number))
    plan = plan_batch(problem, "zellige", "coalesced")
    whole = [0] * 8
    for placement in plan.placements:
        if not placement.config.is_split:
            whole[placement.ranks[0]] += 1
    assert min(whole) == 7
    assert sum(whole) < number
    assert plan.gap < 0.008
    alone = plan_batch(problem, "dp", "coalesced")
    assert plan.makespan_ns < alone.makespan_ns * (1 - 0.6 * (1 - number / 64))


def test_what_fills_all_ranks_is_not_split() -> None:
    plan = plan_batch(on_nodes(1, (CLIP, 64)), "zellige", "coalesced")
    assert not any(placement.config.is_split for placement in plan.placements)
    assert plan.gap == 0


def test_few_kinds_are_drafted_alike_compiled_and_interpreted() -> None:
    chance, found = random.Random("few kinds"), 0
    for _ in range(20):
        shapes = chance.sample([CLIP, LONGER, IMAGE, (832, 480, 33)], chance.randint(1, 3))
        problem = on_nodes(chance.choice([1, 2]), *[(shape, chance.randint(1, 70)) for shape in shapes])
        figures = []
        for wanted in (True, False):
            prefer_compiled(wanted)
            draft = drafted(problem)
            figures.append(draft and (draft.split, draft.whole, draft.longest, draft.rounds))
        assert figures[0] == figures[1]
        found += figures[0] is not None
    assert found > 10


@pytest.mark.parametrize("engine", ["per_sequence", "group"])
def test_engines_that_wait_for_crossing_rank_sets_get_no_such_draft(engine: Engine) -> None:
    assert drafted(on_nodes(1, (CLIP, 60), engine=engine)) is None


def test_many_ranks_split_what_is_left_over_in_pods() -> None:
    """1,000 clips on 128 ranks: whole, some rank runs eight, 2.4 % more than the mean."""
    problem = on_nodes(16, (CLIP, 1000))
    plan = plan_batch(problem, "zellige", "coalesced")
    alone = plan_batch(problem, "dp", "coalesced")
    assert plan.makespan_ns < alone.makespan_ns * 0.99
    assert not placement_findings(plan, problem, "the plan")


def test_pods_of_nothing_left_over_have_no_draft() -> None:
    problem = on_nodes(16, (CLIP, 256))
    rungs = problem.rungs_within[problem.ring_limits[0]]
    start = least_time_of(problem, problem.fronts_within[problem.ring_limits[0]])
    task = make_task(problem, rungs, start, block_choices(problem, rungs, start)[0], Budget(100))
    assert leftover_in_pods(task) == []
