"""What a local search over all sequences changes: loads, whole and split sequences, as integers for a compiler."""

from __future__ import annotations

from typing import NamedTuple

from zellige.plan.divide_kernel import Pool
from zellige.plan.layout import Ints
from zellige.plan.packing_kernel import Loads

WHOLE = 0
"""The place among :class:`Ways` where a whole sequence of the slowest rank is written while it is tried."""


class Table(NamedTuple):
    """Rungs of all buckets, those of a bucket one after another: from ``first[bucket]`` up to ``last[bucket]`` the ways
    that its sequences may run; ``alone[bucket]`` is how they run whole."""

    work: Ints
    time: Ints
    degree: Ints
    nodes: Ints
    kept: Ints
    live: Ints
    first: Ints
    last: Ints
    alone: Ints


class Ways(NamedTuple):
    """Split sequences from place 1 on: bucket, rung, and where in ``ranks`` their ranks (ascending) start; ``listed``
    are the places of those that there are, in order."""

    bucket: Ints
    rung: Ints
    first: Ints
    listed: Ints
    ranks: Ints


class Held(NamedTuple):
    """What ranks hold: their loads, split sequences, ``counts[bucket][rank]`` whole ones; ``order`` are the ranks of
    each node by (time, rank). ``chosen`` has room for as many nodes and ``free`` for when they are, ``tried`` for
    all rungs, ``pool`` for what two ranks divide."""

    loads: Loads
    table: Table
    ways: Ways
    counts: Ints
    order: Ints
    chosen: Ints
    free: Ints
    tried: Ints
    pool: Pool
    per_node: int


def take_off(held: Held, way: int, sign: int) -> None:
    """Take a way off its ranks (``sign`` 1), or put it on them (-1)."""
    loads, ranks, rung, first = held.loads, held.ways.ranks, held.ways.rung[way], held.ways.first[way]
    stop = first + held.table.degree[rung]
    time, kept = sign * held.table.time[rung], sign * held.table.kept[rung]
    for place in range(first, stop):
        loads.time[ranks[place]] -= time
        loads.kept[ranks[place]] -= kept
    node = -1
    for place in range(first, stop):
        start = ranks[place] // held.per_node * held.per_node
        if start != node:
            node = start
            sort_ranks(held.order, node, node + held.per_node, loads.time)


def sort_ranks(order: Ints, first: int, last: int, time: Ints) -> None:
    """Put ranks in order of (time, rank); quick where they nearly are."""
    for index in range(first + 1, last):
        rank, place = order[index], index
        load = time[rank]
        while place > first:
            other = order[place - 1]
            if time[other] < load or (time[other] == load and other < rank):
                break
            order[place] = other
            place -= 1
        order[place] = rank
