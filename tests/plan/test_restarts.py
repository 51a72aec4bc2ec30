"""The local search started anew: what a changed draft holds, and that it only gets better."""

from __future__ import annotations

import random

from oracle.brute_force import random_problem
from oracle.drafts import assert_complete, drafted

from zellige.plan.compiled import is_compiled, prefer_compiled
from zellige.plan.restarts import changes, restarted, with_change


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
