"""All drafts on rank sets that need not nest, for ranks that are searched as one, until one is near."""

from __future__ import annotations

from zellige.plan.any_sets import Certificate
from zellige.plan.attempt_kernel import NEAR
from zellige.plan.attempts import free_draft
from zellige.plan.by_nodes import nodes_draft
from zellige.plan.choice import makespan_ns
from zellige.plan.laid import laid_draft
from zellige.plan.leftover import leftover_draft
from zellige.plan.search import Budget
from zellige.plan.task import Draft, Task
from zellige.problem import Problem, Rung

WAITING = 8
"""A draft that is expected to wait for more than 2**-8 (0.4 %) of its makespan does not end the planning; one around a
placement that the bound met counts up to 2**-8 above the other."""

LAX = 7
"""Placements of a draft's long sequences may end 2**-7 (0.8 %) after another draft: the local search levels them."""


def free_drafts(
    problem: Problem, least: int, rungs: dict[str, tuple[Rung, ...]], known: Certificate | None, *, by_nodes: bool
) -> tuple[list[Draft], bool]:
    """Drafts on rank sets that need not nest, and whether memory binds.

    Until one is near, also one node by node (where ``by_nodes``), those that split what is left over when sequences are
    dealt out evenly, and those around placements that the bound met. Without a certificate the first draft will do.
    Other arguments as of :func:`zellige.plan.attempts.free_draft`.
    """
    free, binds = free_draft(problem, least, rungs)
    if free is None or known is None:
        return [] if free is None else [free], binds
    drafts = [free]

    def is_near() -> bool:
        return known.is_near(min([makespan_ns(problem, draft) for draft in drafts]), NEAR)

    if not is_near() and by_nodes and not binds:
        drafts += _some(nodes_draft(problem, least, rungs, binds=False))
    if not is_near():
        drafts += _some(leftover_draft(problem, least, rungs))
    if not binds and not is_near():
        known.search(makespan_ns(problem, free))
        drafts += _laid(problem, least, rungs, known, free)
    return drafts, binds


def _some(draft: Draft | None) -> list[Draft]:
    return [] if draft is None else [draft]


def _laid(
    problem: Problem, least: int, rungs: dict[str, tuple[Rung, ...]], known: Certificate, free: Draft
) -> list[Draft]:
    """Drafts around placements that the bound met, until one is near, that are faster than a draft or hardly slower."""
    task = Task(problem, rungs, problem.numbers, least, frozenset(), Budget(0))
    most = makespan_ns(problem, free) + (makespan_ns(problem, free) >> WAITING)
    found = []
    for laid in known.take_laid():
        draft = laid_draft(task, laid, free.longest + (free.longest >> LAX))
        if draft is not None and makespan_ns(problem, draft) <= most:
            found.append(draft)
            if known.is_near(makespan_ns(problem, draft), NEAR):
                break
    return found
