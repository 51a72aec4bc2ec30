"""The local search over whole sequences as loops over integers, for a compiler; runs uncompiled on lists too."""

from __future__ import annotations

from typing import NamedTuple

from zellige.plan.divide_kernel import NEAREST, Pool, divide, gather, give
from zellige.plan.layout import Ints
from zellige.plan.packing_kernel import Loads

PARTNERS = 4
"""How many of the least loaded ranks a change is tried with where memory is loose."""

MOST_DIVIDED = 256
"""Up to so many ranks, what two ranks hold is divided anew; with more there are fillers enough to level them."""


class Changes(NamedTuple):
    """What leaves the slowest rank (a kind), what comes back (a kind, -1 for nothing), and the time that this takes
    off it; in ascending order of that time."""

    saves: Ints
    leaves: Ints
    comes: Ints


class Whole(NamedTuple):
    """Whole sequences on ranks: ``counts[kind][rank]`` of them, and the ranks by (time, rank); ``pool`` for what two
    ranks divide."""

    loads: Loads
    pool: Pool
    changes: Changes
    counts: Ints
    order: Ints


def improve(whole: Whole, room: int, goal: int, limit: int, partners: int) -> int:
    """Change sequences between the slowest rank and one of the ``partners`` least loaded ones until the slowest is
    within ``goal``, no change helps, or ``limit`` changes are made; returns how many."""
    time, order, changes = whole.loads.time, whole.order, whole.changes
    last = len(order) - 1
    for made in range(limit):
        place = last
        while place > 0 and time[order[place - 1]] == time[order[last]]:
            place -= 1
        slowest = order[place]
        if time[slowest] <= goal:
            return made
        best, partner, below = -1, -1, time[slowest]
        for near in range(min(partners, last + 1)):
            rank = order[near]
            if (time[slowest] + time[rank] + 1) // 2 >= below:
                break
            found = _best_change(whole, slowest, rank, room, below)
            if found >= 0:
                best, partner = found, near
                below = max(time[slowest] - changes.saves[best], time[rank] + changes.saves[best])
        if best >= 0:
            rank = order[partner]
            _move_one(whole, changes.leaves[best], slowest, rank)
            if changes.comes[best] >= 0:
                _move_one(whole, changes.comes[best], rank, slowest)
        else:
            partner = _divide(whole, slowest, room)
            if partner < 0:
                return made
        if _settle(order, partner, time) >= place:
            place -= 1
        _settle(order, place, time)
    return limit


def _best_change(whole: Whole, slowest: int, rank: int, room: int, below: int) -> int:
    """The change between two ranks that leaves the lesser maximum of both, if that is below a limit; -1 for none."""
    saves, time = whole.changes.saves, whole.loads.time
    half = (time[slowest] - time[rank] + 1) // 2
    low, high = 0, len(saves)
    while low < high:
        middle = (low + high) // 2
        if saves[middle] < half:
            low = middle + 1
        else:
            high = middle
    best = -1
    for change in range(low, len(saves)):
        reached = time[rank] + saves[change]
        if reached >= below:
            break
        if _possible(whole, change, slowest, rank, room):
            best, below = change, reached
            break
    for change in range(low - 1, -1, -1):
        if time[slowest] - saves[change] >= below:
            break
        if _possible(whole, change, slowest, rank, room):
            return change
    return best


def _possible(whole: Whole, change: int, slowest: int, rank: int, room: int) -> bool:
    """Whether the ranks hold what a change moves and have room for it."""
    loads, kinds, counts = whole.loads, whole.pool.kinds, whole.counts
    leaves, comes = whole.changes.leaves[change], whole.changes.comes[change]
    if not counts[leaves][slowest]:
        return False
    moved = kinds.kept[leaves]
    if comes >= 0:
        if not counts[comes][rank]:
            return False
        moved -= kinds.kept[comes]
        if loads.kept[slowest] - moved + max(loads.live[slowest], kinds.live[comes]) > room:
            return False
    return bool(loads.kept[rank] + moved + max(loads.live[rank], kinds.live[leaves]) <= room)


def _divide(whole: Whole, slowest: int, room: int) -> int:
    """Divide what the slowest rank and the least loaded one that allows it run whole, so that both are below the
    slowest's time; the partner's place in ``order``, or -1."""
    loads, pool, counts = whole.loads, whole.pool, whole.counts
    limit = loads.time[slowest]
    for near in range(min(NEAREST, len(whole.order)) if len(whole.order) <= MOST_DIVIDED else 0):
        rank = whole.order[near]
        if loads.time[rank] >= limit:
            break
        if divide(pool, gather(pool, counts, loads, slowest, rank), room, limit) < limit:
            give(pool, counts, loads, slowest, rank)
            return near
    return -1


def _move_one(whole: Whole, kind: int, source: int, target: int) -> None:
    """Largest live segments are not lowered when their sequence leaves, so that memory is never under-counted."""
    loads, kinds, counts = whole.loads, whole.pool.kinds, whole.counts
    counts[kind][source] -= 1
    counts[kind][target] += 1
    loads.time[source] -= kinds.time[kind]
    loads.kept[source] -= kinds.kept[kind]
    loads.time[target] += kinds.time[kind]
    loads.kept[target] += kinds.kept[kind]
    loads.live[target] = max(loads.live[target], kinds.live[kind])


def _settle(order: Ints, place: int, time: Ints) -> int:
    """Move one rank to where it belongs among ranks that are in order of (time, rank); returns where."""
    rank = order[place]
    entry = time[rank], rank
    while place > 0 and (time[order[place - 1]], order[place - 1]) > entry:
        order[place] = order[place - 1]
        place -= 1
    while place + 1 < len(order) and (time[order[place + 1]], order[place + 1]) < entry:
        order[place] = order[place + 1]
        place += 1
    order[place] = rank
    return place
