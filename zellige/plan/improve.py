"""Local search over whole sequences: move one off the slowest rank, or swap it for a shorter one of another rank."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from zellige.plan.packing import Ranks
from zellige.problem import Rung

PARTNERS = 4
"""How many of the least loaded ranks a change is tried with where memory is loose."""


class Change(NamedTuple):
    """What leaves the slowest rank (a kind), what comes back (a kind, -1 for nothing), and the time that this takes off
    it."""

    saves: int
    leaves: int
    comes: int


def improve(
    ranks: Ranks,
    kinds: Sequence[Rung],
    counts: Sequence[list[int]],
    room: int,
    goal: int,
    limit: int,
    partners: int = PARTNERS,
) -> None:
    """Take time off the slowest rank until it is within ``goal``, no change helps, or ``limit`` changes are made.

    ``counts[kind][rank]`` whole sequences under ``kinds[kind]``; changes it and ``ranks``. Largest live segments are
    not lowered when their sequence leaves, so that memory is never under-counted.
    """
    changes = sorted(
        Change(rung.time - (kinds[other].time if other >= 0 else 0), kind, other)
        for kind, rung in enumerate(kinds)
        for other in range(-1, len(kinds))
        if other < 0 or kinds[other].time < rung.time
    )
    time = ranks.time
    for _ in range(limit):
        slowest = max(range(len(time)), key=time.__getitem__)
        if time[slowest] <= goal:
            return
        best: tuple[int, int, Change] | None = None
        for rank in heapq.nsmallest(partners, range(len(time)), key=time.__getitem__):
            found = _best_change(ranks, kinds, counts, changes, slowest, rank, room)
            if found is not None and (best is None or found[0] < best[0]):
                best = found[0], rank, found[1]
        if best is None:
            return
        _apply(ranks, kinds, counts, slowest, best[1], best[2])


def _best_change(
    ranks: Ranks,
    kinds: Sequence[Rung],
    counts: Sequence[list[int]],
    changes: Sequence[Change],
    slowest: int,
    rank: int,
    room: int,
) -> tuple[int, Change] | None:
    """The change between two ranks that leaves the lesser maximum of both, if it is below the slowest rank's time."""
    gap = ranks.time[slowest] - ranks.time[rank]
    middle = bisect_left(changes, (gap + 1) // 2, key=_saves)
    best: tuple[int, Change] | None = None
    for sweep in (range(middle, len(changes)), range(middle - 1, -1, -1)):
        for index in sweep:
            change = changes[index]
            if change.saves >= gap:
                break
            if _possible(ranks, kinds, counts, change, slowest, rank, room):
                reached = max(ranks.time[slowest] - change.saves, ranks.time[rank] + change.saves)
                if best is None or reached < best[0]:
                    best = reached, change
                break
    return best


def _saves(change: Change) -> int:
    return change.saves


def _possible(
    ranks: Ranks,
    kinds: Sequence[Rung],
    counts: Sequence[list[int]],
    change: Change,
    slowest: int,
    rank: int,
    room: int,
) -> bool:
    leaves, comes = kinds[change.leaves], change.comes
    if not counts[change.leaves][slowest]:
        return False
    if comes < 0:
        return ranks.kept[rank] + leaves.kept + max(ranks.live[rank], leaves.live) <= room
    if not counts[comes][rank]:
        return False
    other = kinds[comes]
    grown = ranks.kept[rank] + leaves.kept - other.kept + max(ranks.live[rank], leaves.live)
    shrunk = ranks.kept[slowest] + other.kept - leaves.kept + max(ranks.live[slowest], other.live)
    return grown <= room and shrunk <= room


def _apply(
    ranks: Ranks, kinds: Sequence[Rung], counts: Sequence[list[int]], slowest: int, rank: int, change: Change
) -> None:
    for kind, source, target in ((change.leaves, slowest, rank), (change.comes, rank, slowest)):
        if kind < 0:
            continue
        rung = kinds[kind]
        counts[kind][source] -= 1
        counts[kind][target] += 1
        ranks.time[source] -= rung.time
        ranks.kept[source] -= rung.kept
        ranks.add((target,), rung)
