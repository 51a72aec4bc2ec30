"""The local search started anew: one long sequence of a draft runs otherwise, though that takes longer at first.

Where memory binds, the local search stops at plans whose slow ranks have no partner: ranks that are free first have no
room, and what would level both time and memory takes two steps, of which the first makes the slowest rank slower. Here
that first step is made whatever it costs: a split sequence goes to another degree, or a whole one is split, on the
least loaded ranks that have room; then :func:`zellige.plan.drafts.polish` takes over. What adds the least work comes
first, and a draft that is better is gone on from.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from zellige.plan.drafts import polish
from zellige.plan.packing import Ranks, Split
from zellige.plan.task import Draft, Task
from zellige.problem import Rung

LONG = 20
"""Sequences whose work is more than this part of the slowest rank's time (a twentieth) are run otherwise."""

MOST_WAYS = 4
"""A sequence that ran whole is split at most so many ways."""


class Change(NamedTuple):
    """A sequence of a bucket that is to run under another rung: the place of its way among those that are split, or -1
    and the rank on which it runs whole; and the work that this adds."""

    added: int
    bucket: str
    way: int
    rank: int
    rung: Rung


def restarted(task: Task, draft: Draft, goal: int, limit: int) -> Draft:
    """The best draft of local searches from up to ``limit`` changed drafts, until its slowest rank is within a goal."""
    draft, left = with_loads(task, draft), limit
    moved = polish(task, draft, passing=True)
    draft = moved if moved.longest < draft.longest else draft
    while draft.longest > goal:
        better = None
        for change in changes(task, draft)[:left]:
            left -= 1
            changed = with_change(task, draft, change)
            found = polish(task, changed, passing=True) if changed is not None else None
            if found is not None and found.longest < draft.longest:
                better = found
                break
        if better is None:
            break
        draft = better
    return draft


def with_loads(task: Task, draft: Draft) -> Draft:
    """A draft with the loads of its ranks, which not all have, and with counts of all buckets that fit whole."""
    num_ranks = task.problem.cluster.num_ranks
    ranks, whole = Ranks(num_ranks), {name: [0] * num_ranks for name in task.whole} | draft.whole
    for name, counts in draft.whole.items():
        ranks.add_counts(counts, task.whole[name])
    for way in draft.split:
        ranks.add(way.ranks, way.rung)
    return Draft(split=draft.split, whole=whole, longest=draft.longest, origin=draft.origin, ranks=ranks)


def changes(task: Task, draft: Draft) -> list[Change]:
    """What may run otherwise, that which adds the least work first: of the split ones of each bucket and degree one on
    the slowest rank and one that isn't there, of whole ones those on the slowest and the least loaded rank with one."""
    return sorted([*_of_split(task, draft), *_of_whole(task, draft)], key=lambda change: change.added)


def _of_split(task: Task, draft: Draft) -> Iterator[Change]:
    slowest, seen = _by_load(draft)[-1], set()
    for place, (bucket, rung, ranks) in enumerate(draft.split):
        key = (bucket, rung.degree, slowest in ranks)
        if rung.work * LONG < draft.longest or key in seen:
            continue
        seen.add(key)
        for other in task.front(bucket, rounds=draft.rounds):
            if other.degree != rung.degree and other.time < draft.longest:
                yield Change(other.work - rung.work, bucket, place, -1, other)


def _of_whole(task: Task, draft: Draft) -> Iterator[Change]:
    order = _by_load(draft)
    for bucket, counts in draft.whole.items():
        whole, held = task.whole[bucket], [rank for rank in order if counts[rank]]
        if whole.time * LONG < draft.longest or not held:
            continue
        for rank in dict.fromkeys((held[-1], held[0])):
            for other in task.front(bucket, rounds=draft.rounds):
                if 1 < other.degree <= MOST_WAYS:
                    yield Change(other.work - whole.work, bucket, -1, rank, other)


def _by_load(draft: Draft) -> list[int]:
    """The ranks by (time, rank)."""
    assert draft.ranks is not None
    return sorted(range(len(draft.ranks.time)), key=draft.ranks.time.__getitem__)


def with_change(task: Task, draft: Draft, change: Change) -> Draft | None:
    """The draft with a change made on the least loaded ranks that have room; None where there are too few.

    Largest live segments are not lowered when their sequence leaves, so that memory is never under-counted.
    """
    assert draft.ranks is not None
    ranks, split = draft.ranks.copy(), list(draft.split)
    whole = {name: counts[:] for name, counts in draft.whole.items()}
    if change.way >= 0:
        _, rung, off = split.pop(change.way)
    else:
        rung, off = task.whole[change.bucket], (change.rank,)
        whole[change.bucket][change.rank] -= 1
    for rank in off:
        ranks.time[rank] -= rung.time
        ranks.kept[rank] -= rung.kept
    where = least_loaded(ranks, change.rung, task.problem.cluster.ranks_per_node, task.problem.memory.room_bytes)
    if where is None:
        return None
    ranks.add(where, change.rung)
    if change.rung.degree == 1:
        whole[change.bucket][where[0]] += 1
    else:
        split.append(Split(change.bucket, change.rung, where))
    return Draft(split=split, whole=whole, longest=ranks.longest, origin=draft.origin, ranks=ranks)


def least_loaded(ranks: Ranks, rung: Rung, per_node: int, room: int) -> tuple[int, ...] | None:
    """The ranks that are free first of those that have room for a rung, as many on each of its nodes; None for none."""
    width, nodes = rung.degree // rung.nodes, []
    for first in range(0, len(ranks.time), per_node):
        able = [
            (ranks.time[rank], rank)
            for rank in range(first, first + per_node)
            if ranks.kept[rank] + rung.kept + max(ranks.live[rank], rung.live) <= room
        ]
        if len(able) >= width:
            chosen = sorted(able)[:width]
            nodes.append((chosen[-1][0], first, [rank for _, rank in chosen]))
    if len(nodes) < rung.nodes:
        return None
    return tuple(sorted([rank for _, _, chosen in sorted(nodes)[: rung.nodes] for rank in chosen]))
