"""Which of the drafts becomes the plan: the one that is expected to wait least, then the one that moves least."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from zellige.plan.chain import expected_step_ns
from zellige.plan.packing import Split
from zellige.plan.task import Draft
from zellige.problem import Problem

CLOSE = 11
"""Steps within 2**-11 (0.05 %) of the least expected one are told apart by the bytes that they move."""

Scored = tuple[int, Draft]
"""A makespan and its draft."""


def choose(problem: Problem, drafts: Iterable[Scored]) -> Draft:
    """Of drafts whose expected step is within 2**-11 of the least, the one that moves the fewest bytes, then the
    fastest. Drafts are looked at by makespan, as far as they may count."""
    expected: list[tuple[int, int, Draft]] = []
    least = None
    ordered = sorted(drafts, key=_makespan)
    if len(ordered) == 1:
        return ordered[0][1]
    for makespan, draft in ordered:
        if least is not None and makespan > least + (least >> CLOSE):
            break
        step = expected_step_ns(problem, split_ways(draft), makespan, draft.rounds)
        least = step if least is None else min(least, step)
        expected.append((step, makespan, draft))
    assert least is not None
    close = [(makespan, draft) for step, makespan, draft in expected if step <= least + (least >> CLOSE)]
    return min(close, key=_preference)[1]


def split_ways(draft: Draft) -> Sequence[Split]:
    """The sequences of a draft that run on several ranks."""
    return [way for way in draft.split if way.rung.degree > 1]


def _preference(scored: Scored) -> tuple[int, int]:
    makespan, draft = scored
    return sum(way.rung.option.comm_bytes for way in draft.split), makespan


def _makespan(scored: Scored) -> int:
    return scored[0]
