"""The local search started anew: what a changed draft holds, and that it only gets better."""

from __future__ import annotations

import random
from collections import Counter

from oracle.brute_force import random_problem

from zellige.placement import Problem
from zellige.plan import zellige as planner
from zellige.plan.any_sets import Certificate
from zellige.plan.bounds import best_bound
from zellige.plan.compiled import is_compiled, prefer_compiled
from zellige.plan.packing import Ranks
from zellige.plan.restarts import changes, restarted, with_change, with_loads
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


def check(task: Task, draft: Draft) -> None:
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


def test_restarts_keep_all_sequences_and_slow_nothing() -> None:
    chance, changed, better = random.Random(3), 0, 0
    for index in range(80):
        problem = random_problem(chance, "coalesced", tight=index % 2 == 0)
        task, drafts = drafted(problem)
        for draft in drafts:
            for change in changes(task, draft):
                found = with_change(task, draft, change)
                if found is not None:
                    changed += 1
                    check(task, found)
            after = restarted(task, draft, 0, 20)
            check(task, after)
            assert after.longest <= draft.longest
            better += after.longest < draft.longest
    assert changed > 50
    assert better > 0


def test_compiled_restarts_are_the_same() -> None:
    chance, was = random.Random(4), is_compiled()
    for _ in range(20):
        problem, found = random_problem(chance, "coalesced", tight=True), []
        for how in (False, True):
            prefer_compiled(how)
            task, drafts = drafted(problem)
            after = [restarted(task, draft, 0, 10) for draft in drafts]
            found.append([(draft.split, draft.whole, draft.longest) for draft in after])
        prefer_compiled(was)
        assert found[0] == found[1]
