"""Local search over all sequences on rank sets that need not nest: take one off the slowest rank and run it otherwise.

Any sequence of the slowest rank, split or whole, may go to any other of its rungs, on the least loaded ranks of any
nodes. A step is taken where it leaves every rank that it touches below the slowest; of such steps the one after which
the slowest is fastest, then the one that adds the least work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from zellige.plan.packing import Ranks, Split
from zellige.problem import Rung

Loads = Sequence[tuple[int, int]]
"""(time, rank) of a node's ranks, ascending."""


class Step(NamedTuple):
    """What leaves the slowest rank, and how it runs then; ``peak`` is the slowest of its new ranks."""

    reached: int
    added: int
    peak: int
    old: Split
    new: Split


def refine(
    ranks: Ranks,
    split: list[Split],
    whole: Mapping[str, list[int]],
    alone: Mapping[str, Rung],
    rungs: Mapping[str, Sequence[Rung]],
    per_node: int,
    room: int,
    goal: int,
    limit: int,
) -> None:
    """Take time off the slowest rank until it is within ``goal``, no step helps, or ``limit`` steps are made.

    ``alone`` is how the whole ones run, ``rungs`` are the ways that sequences may run, those of least work first.
    Changes ``ranks``, ``split`` and ``whole`` (counts by bucket and rank).
    """
    for _ in range(limit):
        slowest = max(range(len(ranks.time)), key=ranks.time.__getitem__)
        if ranks.time[slowest] <= goal:
            return
        held = {(way.bucket, id(way.rung)): way for way in split if slowest in way.ranks}
        for bucket, counts in whole.items():
            if counts[slowest]:
                held[bucket, 1] = Split(bucket, alone[bucket], (slowest,))
        least = max(goal, *(time for rank, time in enumerate(ranks.time) if rank != slowest))
        best: Step | None = None
        for way in held.values():
            step = _best_step(ranks, way, rungs[way.bucket], per_node, room, slowest, least)
            if step is not None and (best is None or step[:3] < best[:3]):
                best = step
        if best is None:
            return
        _apply(ranks, split, whole, best)


def _best_step(
    ranks: Ranks, old: Split, rungs: Sequence[Rung], per_node: int, room: int, slowest: int, least: int
) -> Step | None:
    time, limit = ranks.time[:], ranks.time[slowest]
    for rank in old.ranks:
        time[rank] -= old.rung.time
    nodes = [
        sorted([(time[rank], rank) for rank in range(first, first + per_node)])
        for first in range(0, len(time), per_node)
    ]
    best: Step | None = None
    for rung in rungs:
        width = rung.degree // rung.nodes
        if rung.nodes == 1:
            chosen = [min(nodes, key=lambda node: node[width - 1])]
        else:
            chosen = sorted(nodes, key=lambda node: node[width - 1])[: rung.nodes]
        peak = max([node[width - 1][0] for node in chosen]) + rung.time
        if peak >= limit:
            continue
        entry = max(peak, least), rung.work - old.rung.work, peak
        if best is None or entry < best[:3]:
            taken = tuple(sorted([rank for node in chosen for _, rank in node[:width]]))
            if _has_room(ranks, old, rung, taken, room):
                best = Step(*entry, old, Split(old.bucket, rung, taken))
    return best


def _has_room(ranks: Ranks, old: Split, rung: Rung, taken: Sequence[int], room: int) -> bool:
    for rank in taken:
        kept = ranks.kept[rank] - (old.rung.kept if rank in old.ranks else 0)
        if kept + rung.kept + max(ranks.live[rank], rung.live) > room:
            return False
    return True


def _apply(ranks: Ranks, split: list[Split], whole: Mapping[str, list[int]], step: Step) -> None:
    """Largest live segments are not lowered when their sequence leaves, so that memory is never under-counted."""
    for rank in step.old.ranks:
        ranks.time[rank] -= step.old.rung.time
        ranks.kept[rank] -= step.old.rung.kept
    if step.old.rung.degree == 1:
        whole[step.old.bucket][step.old.ranks[0]] -= 1
    else:
        split.remove(step.old)
    ranks.add(step.new.ranks, step.new.rung)
    if step.new.rung.degree == 1:
        whole[step.new.bucket][step.new.ranks[0]] += 1
    else:
        split.append(step.new)
