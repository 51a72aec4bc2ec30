"""The best draft on rank sets that need not nest, of several attempts with more and less split anchors."""

from __future__ import annotations

from zellige.plan.attempt_kernel import GOOD, MAX_FULL, NEAR
from zellige.plan.compiled import is_compiled
from zellige.plan.drafts import draft_freely, faster, floored, polish
from zellige.plan.search import Budget
from zellige.plan.search_kernel import NEVER
from zellige.plan.task import ONE_POD, Draft, Floors, Task, Trials, anchors_of
from zellige.problem import Problem, Rung

ATTEMPTS = (
    (5, Floors(1, 1)), (20, Floors(8, 1)), (20, Floors(4, 1)), (20, Floors(1, 1)), (20, Floors(2, 1)),
    (20, Floors(4, 4)), (20, Floors(8, 2)),
)  # fmt: skip
"""What is tried until a draft is good: the part of the bound from which on sequences are anchors (a fifth, 5 %), and
their least degrees."""

MORE_ATTEMPTS = ((20, Floors(16, 1)), (20, Floors(12, 1)), (20, Floors(6, 1)), (20, Floors(3, 1)))
"""What is tried then where no draft is near what it may reach."""


def free_draft(problem: Problem, least: int, rungs: dict[str, tuple[Rung, ...]]) -> tuple[Draft | None, bool]:
    """The best draft on rank sets that need not nest, for the engine that never waits for them; and whether memory
    binds: the first attempts left a rank no room.

    The more ways the anchors are split, the more work and the more evenly they lie; each degree is tried as their
    least. No rank's time is below ``least`` under the ``rungs``.
    """
    if not may_cross(problem):
        return None, False
    task = Task(problem, rungs, problem.numbers, least, frozenset(), Budget(0))
    attempts = ATTEMPTS + MORE_ATTEMPTS
    cuts = {share: anchors_of(task, share) for share in dict(attempts)}
    trials = [(cuts[share], floors) for share, floors in attempts]
    return best_attempt(task, trials, len(ATTEMPTS))


def may_cross(problem: Problem) -> bool:
    """Whether rank sets need not nest, and ranks are few enough to be searched as one."""
    return problem.engine == "coalesced" and problem.cluster.num_ranks <= ONE_POD


def best_attempt(task: Task, trials: Trials, usual: int) -> tuple[Draft | None, bool]:
    """The best of some attempts, and whether memory binds; those after the ``usual`` ones are made where none of these
    is near."""
    if is_compiled():
        from zellige.plan.attempt_arrays import best_compiled, may_compile

        if may_compile(task):
            return best_compiled(task, trials, usual)
    return best_interpreted(task, trials, usual)


def best_interpreted(task: Task, trials: Trials, usual: int) -> tuple[Draft | None, bool]:
    """The best of the attempts, one after another, until one is good or, after the ``usual`` ones, near."""
    good = task.start + (task.start >> GOOD)
    best: Draft | None = None
    full = 0
    seen: list[tuple[dict[str, int], dict[str, tuple[Rung, ...]]]] = []
    for number, (anchors, floors) in enumerate(trials):
        if number >= usual and best is not None and best.longest <= task.start + (task.start >> NEAR):
            break
        fronts = floored(task, anchors, floors)
        if (anchors, fronts) in seen:
            continue
        seen.append((anchors, fronts))
        found, binds = draft_freely(task, anchors, fronts, best.longest if best else NEVER)
        full += binds and best is None
        if full == MAX_FULL:
            break
        if found is None:
            continue
        if found.longest > good and (best is None or found.longest <= best.longest + (best.longest >> NEAR)):
            found = polish(task, found)
        best = faster(best, found)
        if found.longest <= good:
            break
    return best, full > 0
