"""Drafts of small problems, and whether a draft is what it says."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from oracle.brute_force import random_problem
from zellige.placement import Problem
from zellige.plan import zellige as planner
from zellige.plan.any_sets import Certificate
from zellige.plan.bounds import best_bound
from zellige.plan.compiled import is_compiled, prefer_compiled
from zellige.plan.packing import Ranks
from zellige.plan.restarts import with_loads
from zellige.plan.search import Budget
from zellige.plan.task import Draft, Task


def drafted(problem: Problem) -> tuple[Task, list[Draft]]:
    """Drafts of a problem that split something, and the task of their local search."""
    families = planner._families(problem)
    if not families:
        return Task(problem, {}, {}, 0, frozenset(), Budget(0)), []
    scored = planner._drafts(problem, families, {}, Certificate(problem, *best_bound(problem)))
    widest = planner._rungs_of(problem, families[-1])
    task = Task(problem, widest, problem.numbers, families[-1].least, frozenset(), Budget(0))
    return task, [with_loads(task, draft) for _, draft in scored if draft.split]


def assert_complete(task: Task, draft: Draft) -> None:
    """All sequences are there, on as many ranks as their rung says; loads are theirs and fit."""
    ranks = Ranks(task.problem.cluster.num_ranks)
    for name, counts in draft.whole.items():
        ranks.add_counts(counts, task.whole[name])
    for way in draft.split:
        assert len(set(way.ranks)) == way.rung.degree
        ranks.add(way.ranks, way.rung)
    number = Counter(way.bucket for way in draft.split)
    number.update({name: sum(counts) for name, counts in draft.whole.items()})
    assert draft.ranks is not None
    assert +number == Counter(task.numbers)
    assert (ranks.time, ranks.kept) == (draft.ranks.time, draft.ranks.kept)
    assert draft.ranks.fit(task.problem.memory.room_bytes)
    assert draft.longest == max(ranks.time)


def assert_alike_compiled(found: Callable[[Task, Draft], object], number: int) -> None:
    """What is found from the drafts of so many random problems, memory tight, is the same compiled and interpreted."""
    chance, was = random.Random(4), is_compiled()
    for _ in range(number):
        problem, both = random_problem(chance, "coalesced", tight=True), []
        for how in (False, True):
            prefer_compiled(how)
            task, drafts = drafted(problem)
            both.append([found(task, draft) for draft in drafts])
        prefer_compiled(was)
        assert both[0] == both[1]
