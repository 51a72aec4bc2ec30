"""All attempts at a draft on free rank sets in one compiled call, against the same attempts one after another."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator

import msgspec
import pytest
from oracle.brute_force import random_problem

from zellige.catalog import load_cluster, load_model
from zellige.placement import Problem
from zellige.plan.attempts import ATTEMPTS, MORE_ATTEMPTS, best_interpreted, free_draft
from zellige.plan.bounds import least_time_of
from zellige.plan.compiled import LARGEST, is_compiled, prefer_compiled
from zellige.plan.search import Budget
from zellige.plan.task import Draft, Task, anchors_of
from zellige.sources import build_problem
from zellige.workload import Clip, build_batch

pytest.importorskip("numba", reason="compiled loops need numba (extra fast)")

IMAGES = [(256, 256, 1), (512, 512, 1), (1280, 720, 1), (1920, 1080, 1)]
VIDEOS = [(832, 480, 33), (1280, 720, 81), (1920, 1080, 161)]
MODEL = "wan2.1-t2v-1.3b"


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    was = is_compiled()
    yield
    prefer_compiled(was)


def both_ways(problem: Problem, limit: int, start: int) -> list[tuple[object, ...]]:
    """What is found compiled, and interpreted."""
    found = []
    for wanted in (True, False):
        prefer_compiled(wanted)
        draft, binds = free_draft(problem, start, problem.rungs_within[limit])
        found.append((*_figures(draft), binds))
    return found


def _figures(draft: Draft | None) -> tuple[object, ...]:
    return () if draft is None else (draft.split, draft.whole, draft.longest, draft.origin, draft.lower, draft.rounds)


def limits(problem: Problem) -> Iterator[tuple[int, int]]:
    """Limits on ring rounds under which every bucket has a rung, and the time that no plan is below."""
    for limit in problem.ring_limits:
        fronts = problem.fronts_within[limit]
        if all(fronts[name].times for name in problem.numbers):
            yield limit, least_time_of(problem, fronts)


@pytest.mark.parametrize("tight", [False, True])
def test_small_problems_are_drafted_alike(tight: bool) -> None:
    chance, kinds = random.Random(f"attempts {tight}"), set()
    for _ in range(150):
        problem = random_problem(chance, "coalesced", tight=tight)
        for limit, least in limits(problem):
            compiled, interpreted = both_ways(problem, limit, least)
            assert compiled == interpreted
            kinds.add((len(compiled) > 1, compiled[-1]))
    assert (True, False) in kinds
    assert ((False, True) in kinds) == tight


def video_problem(chance: random.Random) -> Problem:
    """A dozen videos and up to 150 images on two nodes, with more or less memory than they need."""
    shapes = chance.choices(VIDEOS, k=chance.randint(0, 14)) + chance.choices(IMAGES, k=chance.randint(1, 150))
    clips = [Clip(id=f"c{i}", width=w, height=h, num_frames=frames) for i, (w, h, frames) in enumerate(shapes)]
    batch, _ = build_batch("mixed", clips, load_model(MODEL))
    problem = dataclasses.replace(
        build_problem(batch, cluster=load_cluster("a800x16"), model=MODEL), engine="coalesced"
    )
    if chance.random() < 0.5:
        return problem
    need = sum(problem.whole(bucket).kept_bytes * count for bucket, count in problem.counts.items()) // 16
    usable = problem.memory.base_bytes + int(need * chance.uniform(1.05, 2.0))
    return dataclasses.replace(problem, memory=msgspec.structs.replace(problem.memory, usable_bytes=usable))


def test_batches_of_videos_and_images_are_drafted_alike() -> None:
    chance, split = random.Random("videos"), 0
    for _ in range(25):
        problem = video_problem(chance)
        for limit, least in limits(problem):
            compiled, interpreted = both_ways(problem, limit, least)
            assert compiled == interpreted
            split += len(compiled) > 1 and bool(compiled[0])
    assert split > 10


def test_figures_too_large_for_compiled_loops_are_drafted_all_the_same() -> None:
    from zellige.plan.attempt_arrays import may_compile

    problem = random_problem(random.Random("large"), "coalesced")
    (limit, least), *_ = limits(problem)
    task = Task(problem, problem.rungs_within[limit], problem.numbers, least, frozenset(), Budget(0))
    huge = dataclasses.replace(task, start=LARGEST)
    prefer_compiled()
    assert may_compile(task)
    assert not may_compile(huge)
    found, binds = free_draft(problem, LARGEST, problem.rungs_within[limit])
    trials = [(anchors_of(huge, share), floors) for share, floors in ATTEMPTS + MORE_ATTEMPTS]
    expected, expected_binds = best_interpreted(huge, trials, len(ATTEMPTS))
    assert (_figures(found), binds) == (_figures(expected), expected_binds)
