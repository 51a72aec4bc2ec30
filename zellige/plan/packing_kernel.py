"""Filler packing as loops over integers, for a compiler; runs uncompiled on lists too.

By time alone, by time and memory, and by Eq. 8: :func:`pack` tries them in this order. Shares and densities are floats;
each is made by single additions, products and quotients of IEEE doubles in a fixed order, so that it is the same
everywhere.
"""

from __future__ import annotations

import heapq
from typing import Any, NamedTuple

from zellige.plan.layout import Ints

Reals = Any
"""A list of floats."""

LOOSE, BLENDED, TIGHT = range(3)
"""How fillers were packed: by time alone, by time and memory, by Eq. 8."""

HALVINGS = 12
"""The reserve of room is told to 2**-12 of it."""


class Loads(NamedTuple):
    """Ranks' loads: time, kept bytes and the largest live segment, by rank."""

    time: Ints
    kept: Ints
    live: Ints


class Fillers(NamedTuple):
    """By kind of filler, the longest first: time, kept and live bytes of a sequence, and how many there are."""

    time: Ints
    kept: Ints
    live: Ints
    number: Ints


def pack(loads: Loads, fillers: Fillers, room: int, target: int, counts: Ints, left: Ints) -> int:
    """Place fillers whole: ``counts[kind][rank]`` of them, and ``left[kind]`` that no rank has room for; says how."""
    before = list(loads.time), list(loads.kept), list(loads.live)
    for kind in range(len(fillers.number)):
        if fillers.number[kind]:
            pour(loads.time, fillers.time[kind], fillers.number[kind], counts[kind])
            _add(loads, fillers, kind, counts[kind])
    if _fullest(loads) <= room:
        return LOOSE
    _reset(loads, before)
    if blend(loads, fillers, room, counts):
        return BLENDED
    _reset(loads, before)
    for kind in range(len(fillers.number)):
        left[kind] = pack_tight(loads, fillers, kind, room, target, counts[kind])
    return TIGHT


def _fullest(loads: Loads) -> int:
    """The most that a rank holds, in bytes."""
    fullest = 0
    for rank in range(len(loads.kept)):
        fullest = max(fullest, loads.kept[rank] + loads.live[rank])
    return fullest


def _reset(loads: Loads, before: tuple[list[int], list[int], list[int]]) -> None:
    for rank in range(len(loads.time)):
        loads.time[rank], loads.kept[rank], loads.live[rank] = before[0][rank], before[1][rank], before[2][rank]


def _add(loads: Loads, fillers: Fillers, kind: int, counts: Ints) -> None:
    """Put as many fillers of a kind on each rank as ``counts`` says."""
    time, kept, live = fillers.time[kind], fillers.kept[kind], fillers.live[kind]
    for rank in range(len(counts)):
        count = counts[rank]
        if count:
            loads.time[rank] += count * time
            loads.kept[rank] += count * kept
            if live > loads.live[rank]:
                loads.live[rank] = live


def pour(loads: Ints, time: int, number: int, counts: Ints) -> None:
    """How many of ``number`` equal fillers each rank gets when each goes to the least loaded rank (ties: the lowest).

    A level that all fillers would reach as a liquid, less one filler, bounds a prefix of the places in order; the
    remaining fillers, at most two a rank, are placed one by one.
    """
    low = _level(loads, time * number) - time
    left = number
    heap = []
    for rank in range(len(loads)):
        taken = -((loads[rank] - low) // time) if loads[rank] < low else 0
        counts[rank] = taken
        left -= taken
        heap.append((loads[rank] + time * taken, rank))
    heapq.heapify(heap)
    for _ in range(left):
        load, rank = heap[0]
        counts[rank] += 1
        heapq.heapreplace(heap, (load + time, rank))


def _level(loads: Ints, volume: int) -> int:
    """The height, rounded down, to which a volume of liquid rises over the loads."""
    total, filled = volume, len(loads)
    for load in loads:
        total += load
    while True:
        level = total // filled
        total, wet = volume, 0
        for load in loads:
            if load <= level:
                total += load
                wet += 1
        if wet == filled:
            return int(level)
        filled = wet


def blend(loads: Loads, fillers: Fillers, room: int, counts: Ints) -> bool:
    """Fill every rank to one level of time and equal room to spare; False where some filler has no room.

    Fillers differ in bytes per nanosecond. Rank r has a share of every filler in proportion to its time left, tilted by
    ``theta_r (density - mean density)``, which keeps its time and sets its bytes: ``theta_r`` is chosen so that they
    are what it has left less an equal reserve. Filler by filler, the longest first, shares are rounded and the rest is
    shared out anew, so that later ones even out the rounding.
    """
    for kind in range(len(fillers.number)):
        if fillers.number[kind]:
            if not _blend_first(loads, fillers, kind, room, counts[kind]):
                return False
            _add(loads, fillers, kind, counts[kind])
    return True


def _blend_first(loads: Loads, fillers: Fillers, first: int, room: int, counts: Ints) -> bool:
    """Counts of the first of the kinds that are still to be placed; False where its fillers have no room."""
    work, need = 0, 0
    for kind in range(first, len(fillers.number)):
        work += fillers.number[kind] * fillers.time[kind]
        need += fillers.number[kind] * fillers.kept[kind]
    rooms, caps, total = [0 for _ in loads.time], [0 for _ in loads.time], 0
    for rank in range(len(loads.time)):
        rooms[rank] = room - loads.kept[rank] - max(loads.live[rank], fillers.live[first])
        caps[rank] = max(0, rooms[rank]) // max(1, fillers.kept[first])
        total += caps[rank]
    if total < fillers.number[first]:
        return False
    level = _level(loads.time, work)
    times = [max(0, level - load) for load in loads.time]
    mean = need / work
    own, least, most, spread = _densities(fillers, first, work, mean)
    tilt = (own - mean) / spread if spread > 0 else 0.0
    reserve = _reserve(times, rooms, need, least, most)
    wanted = []
    for rank in range(len(times)):
        share = 0.0
        if times[rank]:
            density = min(max((rooms[rank] - reserve) / times[rank], least), most)
            share = times[rank] * max(0.0, 1.0 + tilt * (density - mean))
        wanted.append(share)
    _round_to(wanted, caps, fillers.number[first], counts)
    return True


def _densities(fillers: Fillers, first: int, work: int, mean: float) -> tuple[float, float, float, float]:
    """Bytes per nanosecond of the first kind, the least and the most of all from it on, and their variance by time."""
    own = fillers.kept[first] / fillers.time[first]
    least, most, spread = own, own, 0.0
    for kind in range(first, len(fillers.number)):
        if fillers.number[kind]:
            density = fillers.kept[kind] / fillers.time[kind]
            least, most = min(least, density), max(most, density)
            spread += fillers.number[kind] * fillers.time[kind] * ((density - mean) * (density - mean))
    return own, least, most, spread / work


def _reserve(times: Ints, rooms: Ints, need: int, least: float, most: float) -> float:
    """The equal reserve of room that ranks keep where ``need`` bytes fill their times at densities within limits."""
    lows, highs = [least * time for time in times], [most * time for time in times]
    high = float(max(rooms))
    low = -high
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        filled = 0.0
        for rank in range(len(rooms)):
            part = rooms[rank] - middle
            if part < lows[rank]:
                part = lows[rank]
            if part > highs[rank]:
                part = highs[rank]
            filled += part
        if filled > need:
            low = middle
        else:
            high = middle
    return (low + high) / 2.0


def _round_to(wanted: Reals, caps: Ints, number: int, counts: Ints) -> None:
    """Integers in proportion to ``wanted``, each at most its cap, summing to ``number`` (no more than the caps do)."""
    total, left = 0.0, number
    for value in wanted:
        total += value
    heap = []
    for rank in range(len(wanted)):
        part = number * wanted[rank] / total if total > 0 else 0.0
        counts[rank] = min(int(part), caps[rank])
        left -= counts[rank]
        if counts[rank] < caps[rank]:
            heap.append((counts[rank] - part, rank))
    heapq.heapify(heap)
    for _ in range(left):
        behind, rank = heap[0]
        counts[rank] += 1
        if counts[rank] < caps[rank]:
            heapq.heapreplace(heap, (behind + 1.0, rank))
        else:
            heapq.heappop(heap)


def pack_tight(loads: Loads, fillers: Fillers, kind: int, room: int, target: int, counts: Ints) -> int:
    """Eq. 8: each filler to the rank with the most left of its tighter slack; returns how many no rank has room for.

    A rank's score changes only when it is chosen, so a heap finds the same ranks as a scan.
    """
    time, kept, live = fillers.time[kind], fillers.kept[kind], fillers.live[kind]
    heap = []
    for rank in range(len(counts)):
        counts[rank] = 0
        left = room - loads.kept[rank] - kept - max(loads.live[rank], live)
        if left >= 0:
            heap.append((-share_left(target - loads.time[rank] - time, target, left, room), rank))
    heapq.heapify(heap)
    for placed in range(fillers.number[kind]):
        if not heap:
            return int(fillers.number[kind] - placed)
        rank = heap[0][1]
        counts[rank] += 1
        loads.time[rank] += time
        loads.kept[rank] += kept
        loads.live[rank] = max(loads.live[rank], live)
        left = room - loads.kept[rank] - kept - loads.live[rank]
        if left >= 0:
            heapq.heapreplace(heap, (-share_left(target - loads.time[rank] - time, target, left, room), rank))
        else:
            heapq.heappop(heap)
    return 0


def share_left(time_left: int, target: int, bytes_left: int, room: int) -> float:
    """Eq. 8's score: what a rank has left of the time or of the memory, whichever is the smaller part of all."""
    return min(time_left / max(1, target), bytes_left / max(1, room))
