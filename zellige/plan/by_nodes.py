"""Drafts whose long sequences go node by node, for ranks that are searched as one.

The search over free rank sets goes by decreasing work to the emptiest node, so that every node gets the same mix of
long sequences; where no mix fills ranks evenly, it splits sequences over several nodes to level them. Nodes that are
each full of other sequences need no such splits (:mod:`zellige.plan.node_cover`).
"""

from __future__ import annotations

from collections.abc import Mapping

from zellige.plan.attempt_kernel import GOOD
from zellige.plan.attempts import may_cross
from zellige.plan.drafts import Placed, faster, fill, polish
from zellige.plan.node_cover import BRIEF, THOROUGH, Field, NodeCover
from zellige.plan.search import Budget, Found
from zellige.plan.task import Draft, Task, anchors_of, fillers_of, members_of, sand_of
from zellige.problem import Problem, Rung

CUTS, TIGHT_CUTS = (5, 10), (4, 5, 10)
"""Parts of the bound from which on sequences are placed node by node: where memory is loose, and where it binds."""

UNITS, TIGHT_UNITS = (1, 2), (1,)
"""So many nodes together, where memory is loose, and where it binds."""

ROOM, TIGHT_ROOM = 7, 8
"""Nodes are filled up to 2**-7 (0.8 %) above the bound, or 2**-8 where memory binds; the local search levels them."""


def nodes_draft(problem: Problem, least: int, rungs: Mapping[str, tuple[Rung, ...]], *, binds: bool) -> Draft | None:
    """The best draft node by node; none where a cluster is a single node, rank sets must nest, or nothing fits.

    Where memory ``binds``, fillers go where there is room; else time alone decides. Other arguments as of
    :func:`zellige.plan.attempts.free_draft`.
    """
    if not may_cross(problem) or problem.cluster.num_nodes == 1:
        return None
    task = Task(problem, dict(rungs), problem.numbers, least, frozenset(), Budget(0))
    good = least + (least >> GOOD)
    best: Draft | None = None
    cuts: list[dict[str, int]] = []
    for cut in TIGHT_CUTS if binds else CUTS:
        anchors = anchors_of(task, cut)
        cuts += [] if anchors in cuts else [anchors]
    for unit in TIGHT_UNITS if binds else UNITS:
        for anchors in cuts:
            best = faster(best, _draft(task, anchors, unit, binds=binds))
            if best is not None and best.longest <= good:
                return best
    return best


def _draft(task: Task, anchors: dict[str, int], unit: int, *, binds: bool) -> Draft | None:
    """The draft of some anchors by so many nodes together."""
    cluster, sand = task.problem.cluster, sand_of(task, anchors, ())
    if not anchors:
        return None
    kept = sum([filler.number * filler.whole.kept for filler in fillers_of(task, anchors)])
    target = task.start + (task.start >> (TIGHT_ROOM if binds else ROOM))
    field = Field(cluster.ranks_per_node, target, task.problem.memory.room_bytes, sand.work, kept)
    names = tuple([anchor.bucket for anchor in members_of(task, anchors)])
    cover = NodeCover({name: task.rungs[name] for name in anchors}, field, unit, THOROUGH if binds else BRIEF)
    chosen = cover.place(cluster.num_nodes, names)
    if chosen is None:
        return None
    placed = Placed(0, names, Found(chosen, target, task.start))
    found = fill(task, anchors, [], [placed], sand, loose_only=not binds)
    return None if found is None else polish(task, found)
