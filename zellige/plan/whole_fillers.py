"""B7: a bound on any rank sets that sees whether whole sequences fill ranks evenly; seconds, and only when asked for.

B3 and B6 divide what they do not place. Where few sequences fill a rank, whole ones leave gaps that nothing is small
enough to fill, and these bounds are low. For a time T and any prices of the buckets, no rank takes shards worth more
than fit into T (:mod:`zellige.plan.patterns`); if all ranks together can't take what all sequences are worth, no plan
reaches T. With the least work for prices this is the area bound made sharper; the prices that refute most come from
linear programmes. Where none refutes, the longest sequences are placed (:mod:`zellige.plan.whole_search`).

Makespans are refuted as :mod:`zellige.plan.by_kinds` says.
"""

from __future__ import annotations

from functools import partial

import msgspec

from zellige.placement import Plan, Problem, plan_digest
from zellige.plan.bounds import best_bound
from zellige.plan.by_kinds import Effort, Kinds
from zellige.plan.compiled import LARGEST
from zellige.plan.full_ranks import NAME as FULL_RANKS
from zellige.plan.full_ranks import full_ranks_bound
from zellige.plan.whole_search import MOST_ANCHORS, WholeSearch

NAME = "B7 whole fillers, any rank sets"

MOST_RANKS = 64
"""Beyond, placements are too many, and sequences short against the step."""

NEAR = 500
"""Of the first makespans that are tried one is a 500-th, 0.2 %, below the plan's: all lower ones are then needless."""

FINE = 10_000
"""The bound is known to a 10,000-th of the makespan, where there are programmes enough for that."""

EFFORT = Effort(1000, 4000)
"""Linear programmes that are solved for one makespan, and for all; a hundred take about a second."""


def certify(problem: Problem, plan: Plan) -> Plan:
    """The plan with B7 or B8 for its bound where that is higher; else the plan itself, as of one over the memory.

    Not B8 for one in several parts: each has the memory for itself.
    ``problem`` is posed under the plan's engine.
    """
    if not plan.fits:
        return plan
    told = plan.bound_ns if plan.bound.startswith(("B1", "B2", "B3", "B6")) else 0
    known = max(told, best_bound(problem)[0])
    whole = whole_fillers_bound(problem, known, plan.makespan_ns)
    found = max(known, whole)
    if len(plan.parts) == 1:
        found = full_ranks_bound(problem, found, plan.makespan_ns)
    if found <= plan.bound_ns:
        return plan
    blocks = None if plan.blocks_bound_ns is None else max(plan.blocks_bound_ns, found)
    certified = msgspec.structs.replace(
        plan,
        bound_ns=found,
        bound=FULL_RANKS if found > whole else NAME,
        gap=plan.makespan_ns / found - 1,
        blocks_bound_ns=blocks,
    )
    return msgspec.structs.replace(certified, digest=plan_digest(certified))


def whole_fillers_bound(problem: Problem, known: int, reached: int) -> int:
    """The bound in ns, between ``known``, which is one, and ``reached``, a plan's makespan.

    It holds for plans whose sequences each fit into a rank's memory alone, which all do that fit. Makespans are tried
    with nothing placed, which takes a linear programme or some dozens, and then with placements.
    """
    cluster = problem.cluster
    if cluster.num_ranks > MOST_RANKS or cluster.num_ranks * reached >= LARGEST:
        return known
    kinds = Kinds(problem, reached, lambda kind, longest: WholeSearch(problem, kind, longest), EFFORT)
    low, near = known, reached - reached // NEAR
    for placed, first in ((0, reached - 1), (MOST_ANCHORS, near)):
        high, target = reached, first
        while high - low > reached // FINE:
            target = target if low <= target < high else (low + high) // 2
            if kinds.refute(target, partial(WholeSearch.refute, placed=placed)):
                low, target = target + 1, low
            else:
                high, target = target, near
    return low
