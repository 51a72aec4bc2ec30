"""What the slowest rank and another hold is divided anew, as loops over integers, for a compiler.

All that either runs alone and all that only both share; one sequence may be split over both.
"""

from __future__ import annotations

from zellige.plan.divide_kernel import NEAREST, Rest, divide, gather, give
from zellige.plan.held_kernel import Held, take_off

BOTH = 2
"""The ranks of a pair."""


def divide_pair(held: Held, split: int, free: int, slowest: int, room: int) -> tuple[int, int]:
    """Divide what the slowest rank and the least loaded one that allows it have, so that both are below its time.

    Returns how many sequences are split then, and the next free place (as in
    :func:`zellige.plan.refine_kernel.refine`), which is 0 where nothing is found.
    """
    time, kinds = held.loads.time, len(held.counts)
    limit, partner = time[slowest], -1
    for _ in range(min(NEAREST, len(time))):
        partner = _next_by_load(held, partner)
        if partner < 0 or time[partner] >= limit:
            break
        rest = _gather(held, split, slowest, partner)
        best, halved = divide(held.pool, rest, room, limit), -1
        for kind in range(kinds):
            rung = _rung_of_pair(held, kind, slowest, partner) if held.pool.number[kind] else -1
            if rung >= 0:
                held.pool.number[kind] -= 1
                reached = divide(held.pool, _with_rung(held, rest, rung), room, best)
                held.pool.number[kind] += 1
                if reached < best:
                    best, halved = reached, kind
        if best < limit:
            return _apply(held, split, free, slowest, partner, halved)
    return split, 0


def _next_by_load(held: Held, before: int) -> int:
    """The rank that comes after another by (time, rank); the first after -1, and -1 after the last."""
    time, found = held.loads.time, -1
    for rank in range(len(time)):
        if before >= 0 and (time[rank] < time[before] or (time[rank] == time[before] and rank <= before)):
            continue
        if found < 0 or time[rank] < time[found]:
            found = rank
    return found


def _is_shared(held: Held, way: int, one: int, other: int) -> bool:
    """Whether a way of a sequence that fits whole is on just these two ranks."""
    ways = held.ways
    if held.table.degree[ways.rung[way]] != BOTH or ways.bucket[way] >= len(held.counts):
        return False
    first = ways.first[way]
    return bool(ways.ranks[first] == min(one, other) and ways.ranks[first + 1] == max(one, other))


def _gather(held: Held, split: int, one: int, other: int) -> Rest:
    """Write how many sequences of each kind two ranks have to divide; what they have besides."""
    table, number = held.table, held.pool.number
    rest = gather(held.pool, held.counts, held.loads, one, other)
    mine, others, my_kept, others_kept = rest.one, rest.other, rest.one_kept, rest.other_kept
    for index in range(split):
        way = held.ways.listed[index]
        if _is_shared(held, way, one, other):
            number[held.ways.bucket[way]] += 1
            time, kept = table.time[held.ways.rung[way]], table.kept[held.ways.rung[way]]
            mine, others, my_kept, others_kept = mine - time, others - time, my_kept - kept, others_kept - kept
    return Rest(mine, others, my_kept, others_kept, rest.one_live, rest.other_live)


def _with_rung(held: Held, rest: Rest, rung: int) -> Rest:
    """What two ranks have besides, and a rung on both."""
    time, kept, live = held.table.time[rung], held.table.kept[rung], held.table.live[rung]
    return Rest(
        rest.one + time,
        rest.other + time,
        rest.one_kept + kept,
        rest.other_kept + kept,
        max(rest.one_live, live),
        max(rest.other_live, live),
    )


def _rung_of_pair(held: Held, kind: int, one: int, other: int) -> int:
    """The fastest rung of a kind on two ranks; -1 for none."""
    table, found = held.table, -1
    nodes = 1 if one // held.per_node == other // held.per_node else BOTH
    for rung in range(table.first[kind], table.last[kind]):
        fits = table.degree[rung] == BOTH and table.nodes[rung] == nodes
        if fits and (found < 0 or table.time[rung] < table.time[found]):
            found = rung
    return found


def _apply(held: Held, split: int, free: int, one: int, other: int, halved: int) -> tuple[int, int]:
    """Divide two ranks' sequences as the pool says, one of a kind split (-1: none); how many are split then, and the
    next free place."""
    ways, table, loads, pool = held.ways, held.table, held.loads, held.pool
    kept = 0
    for index in range(split):
        way = ways.listed[index]
        if _is_shared(held, way, one, other):
            take_off(held, way, 1)
        else:
            ways.listed[kept] = way
            kept += 1
    if halved >= 0:
        pool.number[halved] -= 1
        rung, first = _rung_of_pair(held, halved, one, other), ways.first[free]
        ways.bucket[free], ways.rung[free] = halved, rung
        ways.ranks[first], ways.ranks[first + 1], ways.first[free + 1] = min(one, other), max(one, other), first + BOTH
        ways.listed[kept] = free
        take_off(held, free, -1)
        loads.live[one] = max(loads.live[one], table.live[rung])
        loads.live[other] = max(loads.live[other], table.live[rung])
        kept, free = kept + 1, free + 1
    give(pool, held.counts, loads, one, other)
    return kept, free
