"""The adaptive cut: drafts with more and more sequences placed by the search, and fewer packed around them."""

from __future__ import annotations

from typing import NamedTuple

from zellige.plan.attempt_kernel import GOOD, NEAR
from zellige.plan.drafts import draft
from zellige.plan.task import ONE_POD, Draft, Task, anchors_of
from zellige.problem import Problem, Rung

FAIR = 6
"""Beyond one pod, a draft within 2**-6 (1.6 %) of the bound that left memory to the packing is not searched anew."""


class Attempt(NamedTuple):
    """The drafts so far, a lower bound on the longest rank, and whether memory binds."""

    drafts: list[Draft]
    lower: int
    binds: bool


def adapt(task: Task, before: Attempt, shares: tuple[int, ...], *, any_will_do: bool = False) -> Attempt:
    """Drafts with more and more fillers as anchors, until one comes close to what its anchors allow, or there is one
    and ``any_will_do``. ``shares``: fillers longer than these parts of the bound become anchors, round by round."""
    in_pods = task.problem.engine == "coalesced" and task.problem.cluster.num_ranks > ONE_POD
    near = task.start + (task.start >> (FAIR if in_pods else NEAR))
    drafts, binds = list(before.drafts), before.binds or (memory_may_bind(task.problem, task.rungs) and not in_pods)
    lower = task.start
    seen: list[dict[str, int]] = []
    for share in shares[1:] if binds else shares:
        anchors = anchors_of(task, share)
        if anchors in seen:
            continue
        seen.append(anchors)
        found = draft(task, anchors, binds=binds)
        if not binds and (found is None or not (any_will_do or found.loose or found.longest <= near)):
            binds = True
            drafts += [found] if found else []
            found = draft(task, anchors, binds=True)
        if found is None:
            continue
        lower = max(lower, found.lower)
        drafts.append(found)
        if any_will_do or found.longest <= max(found.target, lower) + (lower >> GOOD) or task.budget.nodes <= 0:
            break
    return Attempt(drafts, min(before.lower, lower), binds)


def memory_may_bind(problem: Problem, rungs: dict[str, tuple[Rung, ...]]) -> bool:
    """Whether sequences at their least work fill more than 60 % of the memory."""
    needed = 0
    for name, count in problem.numbers.items():
        for rung in rungs[name][:1]:
            needed += count * (rung.kept + rung.live) * rung.degree
    return 5 * needed > 3 * problem.cluster.num_ranks * problem.memory.room_bytes
