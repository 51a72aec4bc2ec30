"""Which of the drafts becomes the plan: the one whose step is expected to end first, then the one that moves least."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from zellige.plan.chain import calls_ns
from zellige.plan.compiled import compiled, is_compiled
from zellige.plan.layout import int_array, int_table, zeros
from zellige.plan.packing import Split
from zellige.plan.search_kernel import NEVER
from zellige.plan.task import Draft
from zellige.problem import Problem
from zellige.waits import AS_THEY_ARE, LARGEST, Loops, Way, best_cut

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
        step = expected_step_ns(problem, draft, makespan)
        least = step if least is None else min(least, step)
        expected.append((step, makespan, draft))
    assert least is not None
    close = [(makespan, draft) for step, makespan, draft in expected if step <= least + (least >> CLOSE)]
    return min(close, key=_preference)[1]


def least_step_ns(problem: Problem, drafts: Iterable[Scored]) -> int:
    """The least expected step of some drafts, :data:`NEVER` of none, in nanoseconds."""
    least = NEVER
    for makespan, draft in sorted(drafts, key=_makespan):
        if makespan >= least:
            break
        least = min(least, expected_step_ns(problem, draft, makespan))
    return least


def makespan_ns(problem: Problem, draft: Draft) -> int:
    """The time of a draft's slowest rank with the calls that the engine adds, in nanoseconds."""
    return draft.longest + calls_ns(problem, draft.rounds)


def expected_step_ns(problem: Problem, draft: Draft, makespan: int) -> int:
    """What a draft's step may be expected to take with its waits, in nanoseconds: no less than its makespan, and what
    :func:`zellige.waits.best_cut` finds."""
    ways = split_ways(draft)
    if problem.engine != "coalesced" or not ways:
        return makespan
    if draft.expected is None:
        draft.expected = _followed(problem, draft, ways, makespan)
    return max(makespan, draft.expected)


def _followed(problem: Problem, draft: Draft, ways: Sequence[Split], makespan: int) -> int:
    placed = [Way(way.bucket, way.rung.option, way.ranks) for way in ways]
    whole = {name: counts for name, counts in draft.whole.items() if any(counts)}
    may_compile = is_compiled() and makespan * problem.cluster.num_ranks < LARGEST
    loops = compiled_loops() if may_compile else AS_THEY_ARE
    return best_cut(problem, placed, whole, makespan, loops).step_ns


def compiled_loops() -> Loops:
    """The loops that follow a step, compiled."""
    return Loops(compiled("zellige.waits_kernel", "best_cut"), int_array, int_table, zeros)


def split_ways(draft: Draft) -> Sequence[Split]:
    """The sequences of a draft that run on several ranks."""
    return [way for way in draft.split if way.rung.degree > 1]


def _preference(scored: Scored) -> tuple[int, int]:
    makespan, draft = scored
    return sum(way.rung.option.comm_bytes for way in draft.split), makespan


def _makespan(scored: Scored) -> int:
    return scored[0]
