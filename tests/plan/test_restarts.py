"""The local search started anew: what a changed draft holds, and that it only gets better."""

from __future__ import annotations

import random

from oracle.brute_force import random_problem
from oracle.drafts import assert_alike_compiled, assert_complete, drafted

from zellige.plan.restarts import changes, restarted, with_change
from zellige.plan.task import Draft, Task


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
                    assert_complete(task, found)
            after = restarted(task, draft, 0, 20)
            assert_complete(task, after)
            assert after.longest <= draft.longest
            better += after.longest < draft.longest
    assert changed > 50
    assert better > 0


def test_compiled_restarts_are_the_same() -> None:
    assert_alike_compiled(outcome, 20)


def outcome(task: Task, draft: Draft) -> object:
    after = restarted(task, draft, 0, 10)
    return after.split, after.whole, after.longest
