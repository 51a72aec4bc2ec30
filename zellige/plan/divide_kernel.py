"""Dividing whole sequences between two ranks, as a loop over integers, for a compiler; runs uncompiled on lists too.

Where images are few and coarse, moving or swapping one at a time stops early. Here every number of each kind is tried
for one of two ranks.
"""

from __future__ import annotations

from typing import NamedTuple

from zellige.plan.layout import Ints
from zellige.plan.packing_kernel import Loads

NEAREST = 16
"""How many of the least loaded ranks the slowest one is divided with."""

MOST_DIVISIONS = 100
"""Divisions of one pool that are tried; of the most numerous kind the best number is computed."""


class Kinds(NamedTuple):
    """By kind of whole sequence: its time, kept and live bytes."""

    time: Ints
    kept: Ints
    live: Ints


class Pool(NamedTuple):
    """What two ranks divide: ``number`` of each kind, and room for how many the one takes, now and at best."""

    kinds: Kinds
    number: Ints
    taken: Ints
    best: Ints


class Rest(NamedTuple):
    """Time, kept and live bytes of two ranks besides what is divided."""

    one: int
    other: int
    one_kept: int
    other_kept: int
    one_live: int
    other_live: int


def gather(pool: Pool, counts: Ints, loads: Loads, one: int, other: int) -> Rest:
    """Write how many whole sequences of each kind two ranks have; what they have besides."""
    kinds = pool.kinds
    mine, others, my_kept, others_kept = loads.time[one], loads.time[other], loads.kept[one], loads.kept[other]
    for kind in range(len(counts)):
        here, there = counts[kind][one], counts[kind][other]
        pool.number[kind] = here + there
        mine, others = mine - here * kinds.time[kind], others - there * kinds.time[kind]
        my_kept, others_kept = my_kept - here * kinds.kept[kind], others_kept - there * kinds.kept[kind]
    return Rest(mine, others, my_kept, others_kept, loads.live[one], loads.live[other])


def give(pool: Pool, counts: Ints, loads: Loads, one: int, other: int) -> None:
    """Give two ranks what ``best`` says; largest live segments are not lowered, so that memory is never
    under-counted."""
    kinds = pool.kinds
    for kind in range(len(counts)):
        for rank, number in ((one, pool.best[kind]), (other, pool.number[kind] - pool.best[kind])):
            more = number - counts[kind][rank]
            counts[kind][rank] = number
            loads.time[rank] += more * kinds.time[kind]
            loads.kept[rank] += more * kinds.kept[kind]
            if more > 0:
                loads.live[rank] = max(loads.live[rank], kinds.live[kind])


def divide(pool: Pool, rest: Rest, room: int, limit: int) -> int:
    """The least time of the slower of two ranks below a limit, or the limit; ``best`` says what the one takes."""
    number, taken, time = pool.number, pool.taken, pool.kinds.time
    here, there, kinds, many = rest.one, rest.other, len(number), 0
    for kind in range(kinds):
        taken[kind] = 0
        there += number[kind] * time[kind]
        if number[kind] > number[many]:
            many = kind
    if not kinds or here + there >= 2 * limit:
        return limit
    for _ in range(MOST_DIVISIONS):
        fewest = max(0, there - here) // (2 * time[many])
        for moved in range(min(fewest, number[many]), min(fewest + 1, number[many]) + 1):
            reached = max(here + moved * time[many], there - moved * time[many])
            if reached < limit:
                taken[many] = moved
                if _fits(pool, rest, room):
                    limit = reached
                    for kind in range(kinds):
                        pool.best[kind] = taken[kind]
        kind = 0
        while kind < kinds:
            if kind != many:
                if taken[kind] < number[kind] and here + time[kind] < limit:
                    taken[kind] += 1
                    here, there = here + time[kind], there - time[kind]
                    break
                here, there = here - taken[kind] * time[kind], there + taken[kind] * time[kind]
                taken[kind] = 0
            kind += 1
        if kind == kinds:
            break
    return int(limit)


def _fits(pool: Pool, rest: Rest, room: int) -> bool:
    """Whether both ranks have room for what the one takes and the other keeps."""
    kept, live = pool.kinds.kept, pool.kinds.live
    one, other, one_live, other_live = rest.one_kept, rest.other_kept, rest.one_live, rest.other_live
    for kind in range(len(pool.number)):
        mine = pool.taken[kind]
        others = pool.number[kind] - mine
        one, other = one + mine * kept[kind], other + others * kept[kind]
        if mine:
            one_live = max(one_live, live[kind])
        if others:
            other_live = max(other_live, live[kind])
    return bool(one + one_live <= room and other + other_live <= room)
