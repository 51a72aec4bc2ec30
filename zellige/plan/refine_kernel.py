"""The local search over all sequences as loops over integers, for a compiler; runs uncompiled on lists too."""

from __future__ import annotations

from typing import NamedTuple

from zellige.plan.held_kernel import WHOLE, Held, sort_ranks, take_off
from zellige.plan.layout import Ints
from zellige.plan.pair_kernel import divide_pair

NEVER = 2**62


class Limits(NamedTuple):
    """The room of a rank, the time that is good enough, how many steps are made at most, and whether ranks that have no
    room are passed over when the least loaded are chosen; else nothing goes there."""

    room: int
    goal: int
    steps: int
    passing: bool


class Step(NamedTuple):
    """What leaves the slowest rank (a place of :class:`Ways`, and the bucket), and the rung that it runs under then."""

    way: int
    bucket: int
    rung: int


Entry = tuple[int, int, int]
"""What a step leaves (the time of the slowest rank at least), the work that it adds, the slowest of its new ranks."""


def refine(held: Held, split: int, limits: Limits) -> int:
    """Run sequences of the slowest rank otherwise; ``split`` of all are split at first, and as many as it returns then.

    Places of new ways follow those of the first ones.
    """
    time, choosing = held.loads.time, limits.room if limits.passing else NEVER
    free = split + 1
    _sort_nodes(held)
    for number in range(1, limits.steps + 1):
        slowest, least = _slowest(time, limits.goal)
        if time[slowest] <= limits.goal:
            break
        step = _best_step(held, split, number, (choosing, limits.room), (slowest, least))
        if step.rung >= 0:
            split, free = _apply(held, step, slowest, choosing, split, free)
            continue
        split, found = divide_pair(held, split, free, slowest, limits.room)
        if not found:
            break
        free = found
        _sort_nodes(held)
    return split


def _sort_nodes(held: Held) -> None:
    """Put the ranks of each node in order of (time, rank)."""
    for first in range(0, len(held.loads.time), held.per_node):
        sort_ranks(held.order, first, first + held.per_node, held.loads.time)


def _best_step(held: Held, split: int, number: int, rooms: tuple[int, int], slowest_and_least: tuple[int, int]) -> Step:
    """The best step off the slowest rank; rung -1 for none. ``number`` marks the rungs that were tried, ``rooms`` are
    those of :func:`_best_rung`."""
    ways, tried, (slowest, least) = held.ways, held.tried, slowest_and_least
    step, best, limit = Step(-1, -1, -1), (NEVER, 0, 0), held.loads.time[slowest]
    for index in range(split + len(held.counts)):
        way, bucket = WHOLE, index - split
        if index < split:
            way = ways.listed[split - 1 - index]
            bucket = ways.bucket[way]
            if tried[ways.rung[way]] == number or _find(held, way, slowest) < 0:
                continue
            tried[ways.rung[way]] = number
        elif held.counts[bucket][slowest]:
            _write_whole(held, bucket, slowest)
        else:
            continue
        rung, best = _best_rung(held, way, rooms, limit, least, best)
        if rung >= 0:
            step = Step(way, bucket, rung)
    return step


def _slowest(time: Ints, goal: int) -> tuple[int, int]:
    """The slowest rank (of equal ones the lowest), and the time of the next or the goal, whichever is later."""
    slowest, least = 0, goal
    for rank in range(1, len(time)):
        if time[rank] > time[slowest]:
            least = max(least, time[slowest])
            slowest = rank
        else:
            least = max(least, time[rank])
    return slowest, least


def _find(held: Held, way: int, rank: int) -> int:
    """Where a rank is among those of a way; -1 where it is not."""
    first = held.ways.first[way]
    for place in range(first, first + held.table.degree[held.ways.rung[way]]):
        if held.ways.ranks[place] == rank:
            return place
    return -1


def _write_whole(held: Held, bucket: int, rank: int) -> None:
    """Write a bucket's whole sequence on a rank as a way."""
    held.ways.bucket[WHOLE], held.ways.rung[WHOLE] = bucket, held.table.alone[bucket]
    held.ways.ranks[held.ways.first[WHOLE]] = rank


def _best_rung(held: Held, way: int, rooms: tuple[int, int], limit: int, least: int, best: Entry) -> tuple[int, Entry]:
    """The rung under which a way is better than the best step so far, with all ranks below a limit; -1 for none.
    ``rooms``: what ranks must have to be chosen, and what the chosen ones must have."""
    choosing, room = rooms
    table, bucket, old, found = held.table, held.ways.bucket[way], held.ways.rung[way], -1
    times, works = table.time, table.work
    take_off(held, way, 1)
    lowest = NEVER
    for first in range(0, len(held.order), held.per_node):
        lowest = min(lowest, held.loads.time[held.order[first]])
    for rung in range(table.first[bucket], table.last[bucket]):
        peak, added = lowest + times[rung], works[rung] - works[old]
        if peak >= limit or (max(peak, least), added, peak) >= best:
            continue
        peak = _choose_nodes(held, rung, choosing, min(limit - 1, best[0]) - times[rung]) + times[rung]
        entry = (max(peak, least), added, peak)
        if peak < limit and entry < best and (choosing <= room or _have_room(held, rung, room)):
            found, best = rung, entry
    take_off(held, way, -1)
    return found, best


def _choose_nodes(held: Held, rung: int, room: int, most: int) -> int:
    """The nodes on which as many ranks with room for a rung as it takes are free first, and when all of these are;
    never where that is later than ``most``."""
    width, wanted, found = held.table.degree[rung] // held.table.nodes[rung], held.table.nodes[rung], 0
    for node in range(len(held.order) // held.per_node):
        load = _free_at(held, node, rung, width, room)
        place = min(found, wanted - 1)
        if load > most or (found == wanted and load >= held.free[place]):
            continue
        while place and held.free[place - 1] > load:
            held.free[place], held.chosen[place] = held.free[place - 1], held.chosen[place - 1]
            place -= 1
        held.free[place], held.chosen[place] = load, node
        found = min(found + 1, wanted)
    return int(held.free[wanted - 1]) if found == wanted else NEVER


def _free_at(held: Held, node: int, rung: int, width: int, room: int) -> int:
    """When as many of a node's ranks that have room for a rung are free; never where there are too few."""
    if room >= NEVER:
        return int(held.loads.time[held.order[node * held.per_node + width - 1]])
    taken = 0
    for place in range(node * held.per_node, (node + 1) * held.per_node):
        rank = held.order[place]
        if _has_room(held, rank, rung, room):
            taken += 1
            if taken == width:
                return int(held.loads.time[rank])
    return NEVER


def _have_room(held: Held, rung: int, room: int) -> bool:
    """Whether the chosen nodes' first ranks have room for a rung."""
    width = held.table.degree[rung] // held.table.nodes[rung]
    for number in range(held.table.nodes[rung]):
        first = held.chosen[number] * held.per_node
        for place in range(first, first + width):
            if not _has_room(held, held.order[place], rung, room):
                return False
    return True


def _has_room(held: Held, rank: int, rung: int, room: int) -> bool:
    """Whether a rank has room for a rung."""
    loads, table = held.loads, held.table
    return bool(loads.kept[rank] + table.kept[rung] + max(loads.live[rank], table.live[rung]) <= room)


def _apply(held: Held, step: Step, slowest: int, room: int, split: int, free: int) -> tuple[int, int]:
    """Take a step, with the next free place for what is split; how many are, and the next free place.

    Largest live segments are not lowered when their sequence leaves, so that memory is never under-counted.
    """
    ways, counts, live = held.ways, held.counts, held.loads.live
    if step.way == WHOLE:
        _write_whole(held, step.bucket, slowest)
        counts[step.bucket][slowest] -= 1
    else:
        split -= 1
        place = 0
        while ways.listed[place] != step.way:
            place += 1
        for after in range(place, split):
            ways.listed[after] = ways.listed[after + 1]
    take_off(held, step.way, 1)
    _choose_nodes(held, step.rung, room, NEVER - 1)
    _write_split(held, free, step.bucket, step.rung, room)
    take_off(held, free, -1)
    for place in range(ways.first[free], ways.first[free + 1]):
        live[ways.ranks[place]] = max(live[ways.ranks[place]], held.table.live[step.rung])
    if held.table.degree[step.rung] == 1:
        counts[step.bucket][ways.ranks[ways.first[free]]] += 1
        return split, free
    ways.listed[split] = free
    return split + 1, free + 1


def _write_split(held: Held, way: int, bucket: int, rung: int, room: int) -> None:
    """Write a way on the chosen nodes' first ranks that have room, these in ascending order."""
    ways, width = held.ways, held.table.degree[rung] // held.table.nodes[rung]
    ways.bucket[way], ways.rung[way] = bucket, rung
    stop = ways.first[way]
    for number in range(held.table.nodes[rung]):
        place, last = held.chosen[number] * held.per_node, stop + width
        while stop < last:
            rank = held.order[place]
            if _has_room(held, rank, rung, room):
                at = stop
                while at > ways.first[way] and ways.ranks[at - 1] > rank:
                    ways.ranks[at] = ways.ranks[at - 1]
                    at -= 1
                ways.ranks[at] = rank
                stop += 1
            place += 1
    ways.first[way + 1] = stop
