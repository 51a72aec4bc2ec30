"""Which sequences share a unit of nodes, so that all of a pod's do at the least price, as a loop over integers for a
compiler; runs uncompiled on lists too.

Unbounded knapsack: a cell is a number of sequences of each kind, and is reached from cells with fewer by a pattern,
what one unit may hold. Cells are numbered in mixed radix, so that what is reached from a cell comes later.
"""

from __future__ import annotations

from typing import NamedTuple

from zellige.plan.layout import Ints

UNREACHED = 2**62


class Cover(NamedTuple):
    """``total[kind]`` and ``stride[kind]``, the number of sequences and how far apart cells are that differ by one;
    ``count[pattern * kinds + kind]``, ``step[pattern]`` in cells and ``price[pattern]``; by cell the least ``best``
    price, the ``units`` it takes, and the ``last`` pattern on the way; ``left`` has room for a number of each kind."""

    total: Ints
    stride: Ints
    count: Ints
    step: Ints
    price: Ints
    best: Ints
    units: Ints
    last: Ints
    left: Ints


def cover(has: Cover, num_units: int) -> int:
    """The least price of patterns that hold all sequences together in so many units, :data:`UNREACHED` where none was
    found; ``last`` says which."""
    goal = len(has.best) - 1
    for cell in range(goal + 1):
        has.best[cell] = UNREACHED
        has.units[cell] = 0
    has.best[0] = 0
    for cell in range(goal):
        if has.best[cell] < has.best[goal] and has.units[cell] < num_units:
            _count_left(has, cell)
            for pattern in range(len(has.price)):
                after = cell + has.step[pattern]
                if after <= goal and (after == goal) == (has.units[cell] + 1 == num_units):
                    _reach(has, cell, pattern, after)
    return int(has.best[goal])


def _count_left(has: Cover, cell: int) -> None:
    """Write how many sequences of each kind a cell leaves."""
    for kind in range(len(has.total)):
        held = cell // has.stride[kind]
        cell -= held * has.stride[kind]
        has.left[kind] = has.total[kind] - held


def _reach(has: Cover, cell: int, pattern: int, after: int) -> None:
    """Add a pattern to a cell's sequences, where so many are left of each kind."""
    price = has.best[cell] + has.price[pattern]
    if price >= has.best[after]:
        return
    kinds = len(has.total)
    for kind in range(kinds):
        if has.count[pattern * kinds + kind] > has.left[kind]:
            return
    has.best[after], has.last[after], has.units[after] = price, pattern, has.units[cell] + 1
