"""Drafts of which only what is left over is split when whole sequences are dealt out evenly.

Where many sequences are alike and none is short, whole ones fill no rank evenly: of 60 equal clips on 8 ranks, four
ranks run eight. Then each rank runs seven, and the four clips that are left over are split.
"""

from __future__ import annotations

from collections.abc import Sequence

from zellige.plan.attempt_kernel import SHORT
from zellige.plan.attempts import best_attempt, may_cross
from zellige.plan.chain import calls_ns
from zellige.plan.drafts import draft
from zellige.plan.search import Budget
from zellige.plan.task import MAX_ANCHORS, Draft, Floors, Task, anchors_of
from zellige.problem import Problem, Rung

KINDS = 3
"""So many buckets are dealt out, the longest ones."""

FLOORS = (4, 8)
"""Least degrees of what is left over."""

ONE_FLOOR = 4
"""Least degree of a single sequence, with which the local search may split others."""


def leftover_draft(problem: Problem, least: int, rungs: dict[str, tuple[Rung, ...]]) -> Draft | None:
    """The best draft that splits, beside long sequences, one of the longest bucket that is dealt out, or what is left
    over of several; none where nothing is dealt out, rank sets must nest, or memory binds. Arguments as of
    :func:`zellige.plan.attempts.free_draft`."""
    if not may_cross(problem):
        return None
    task = Task(problem, rungs, problem.numbers, least, frozenset(), Budget(0))
    dealt = _dealt(task)
    if not dealt:
        return None
    rest = _rest(task, dealt)
    one = {**{name: number for name, number in rest.items() if name not in dealt}, dealt[0]: 1}
    trials = [(one, Floors(1, 1, ONE_FLOOR)), *[(rest, Floors(1, 1, floor)) for floor in FLOORS]]
    found = [each for trial in trials if (each := best_attempt(task, [trial], 1)[0]) is not None]
    return min(found, key=lambda each: each.longest + calls_ns(problem, each.rounds), default=None)


def leftover_in_pods(task: Task) -> list[Draft]:
    """Drafts of many ranks that split what is left over, in pods, under each least degree."""
    dealt = _dealt(task)
    rest = _rest(task, dealt)
    if not dealt or not rest:
        return []
    found = [draft(task, rest, binds=False, floor=floor) for floor in FLOORS]
    return [each for each in found if each is not None]


def _rest(task: Task, dealt: Sequence[str]) -> dict[str, int]:
    """Long sequences, and those that are left over when a number that all ranks can have is dealt out."""
    num_ranks = task.problem.cluster.num_ranks
    most = MAX_ANCHORS * max(1, num_ranks // 32)
    rest = {name: number for name, number in anchors_of(task, SHORT).items() if name not in dealt}
    for name in dealt:
        left = min(task.numbers[name] % num_ranks, most)
        most -= left
        if left:
            rest[name] = left
    return rest


def _dealt(task: Task) -> list[str]:
    """The buckets that are dealt out: those that fit whole and of which each rank can have one, or that are short."""
    anchors, num_ranks = anchors_of(task, SHORT), task.problem.cluster.num_ranks
    return [
        name
        for name, whole in task.whole.items()
        if whole.time <= task.start and (name not in anchors or task.numbers[name] >= num_ranks)
    ][:KINDS]
