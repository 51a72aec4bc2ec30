"""What whole sequences fit beside each other on one rank, and prices under which too few do.

A bucket has a price: what one of its sequences is worth, an integer. A shard of a sequence on ``degree`` ranks is worth
a ``degree``-th of it, so that the shards of a sequence are worth its price together, wherever they lie. A rank with so
much time left can take shards of a certain worth at most, which is a knapsack. Times are counted in cells of a grid, a
shard's rounded down and a rank's room as well: what fits in time fits in cells. A bucket of small sequences is
divisible: it is worth so much a cell as under its option of the least work.

The prices that refute most are dual values of a linear programme (Gilmore and Gomory's for cutting stock): what a rank
may take is a pattern, and new patterns are found by the knapsack.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from zellige.plan.compiled import LARGEST
from zellige.units import ceil_div

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

GRID = 12_000
"""Cells in the longest time that is looked at."""

FEW = 3
"""Of a bucket of no more sequences, a rank takes at most as many shards of all degrees together; of others, of each."""

SMALL = 40
"""A bucket whose sequences take fewer cells is divisible."""

WORTH = 1 << 40
"""What all sequences are worth together, about: prices are rounded down to integers of this."""

ROUNDS = 60
"""Linear programmes that are solved for one state; each knows more patterns than the last."""

SHOWN = 40
"""Known patterns that a rank's first linear programme is told."""

MARGIN = 1e-6
"""What linear programmes may be off by; it decides how long prices are looked for, and no bound."""


class Item(NamedTuple):
    """A shard of a bucket, or a cell of a divisible one: its cells, and the part of the price that it is worth."""

    bucket: int
    cells: int
    numerator: int
    denominator: int


class Step(NamedTuple):
    """A rank takes one of several choices, or none; a choice is so many of an item, which take so many cells."""

    bucket: int
    choices: tuple[tuple[int, int, int], ...]


class Shards(NamedTuple):
    """What a rank may take: ``unit`` ns a cell, the items, which of them are cells of divisible buckets, and the steps
    that lead to all that it may."""

    unit: int
    numbers: tuple[int, ...]
    items: tuple[Item, ...]
    divisible: frozenset[int]
    steps: tuple[Step, ...]


def shards_of(numbers: Sequence[int], times: Sequence[Mapping[int, int]], longest: int) -> Shards:
    """The shards of some buckets: how many sequences each has, and its times by degree; a rank has ``longest`` ns."""
    unit = ceil_div(longest, GRID)
    items: list[Item] = []
    steps: list[Step] = []
    divisible = []
    for bucket, (number, all_times) in enumerate(zip(numbers, times, strict=True)):
        able = sorted((degree, time) for degree, time in all_times.items() if time <= longest)
        first = len(items)
        if able and number > FEW and max(time for _, time in able) < SMALL * unit:
            work = max(1, min(degree * time for degree, time in able))
            divisible.append(first)
            items.append(Item(bucket, 1, unit, work))
            steps += _repeated(bucket, first, 1, min(ceil_div(number * work, unit), GRID))
            continue
        items += [Item(bucket, time // unit, 1, degree) for degree, time in able]
        if number <= FEW:
            steps += [Step(bucket, tuple((i, 1, items[i].cells) for i in range(first, len(items))))] * number
            continue
        for i in range(first, len(items)):
            cells = items[i].cells
            steps += _repeated(bucket, i, cells, min(number, GRID // cells) if cells else number)
    return Shards(unit, tuple(numbers), tuple(items), frozenset(divisible), tuple(steps))


def _repeated(bucket: int, item: int, cells: int, number: int) -> list[Step]:
    """Steps that take any number of an item up to the given one: 1, 2, 4, ..., and what is left."""
    steps, size = [], 1
    while number > 0:
        taken = min(size, number)
        steps.append(Step(bucket, ((item, taken, taken * cells),)))
        number, size = number - taken, 2 * size
    return steps


class Knapsack(NamedTuple):
    """``most`` is what a rank takes at most, by cells that it has left, from none to all; ``choices`` what each step
    chooses there, 0 for nothing."""

    most: Ints
    steps: list[Step]
    choices: list[NDArray[np.uint8]]


def knapsack(shards: Shards, prices: Ints, num_ranks: int) -> Knapsack:
    """What a rank can take at these prices; raises :class:`OverflowError` where so many ranks might take 2**62.

    Less than a cell may be left over and hold a part of a divisible bucket, which is added everywhere.
    """
    values = [_worth(shards, prices, item) for item in shards.items]
    rest = max((values[item] for item in shards.divisible), default=0)
    steps = [step for step in shards.steps if prices[step.bucket]]
    largest = rest + sum(max(count * values[item] for item, count, _ in step.choices) for step in steps if step.choices)
    if largest * num_ranks >= LARGEST:
        raise OverflowError("prices are too large for 64 bits")
    table, choices = np.zeros(GRID + 1, np.int64), []
    for step in steps:
        found, chosen = table.copy(), np.zeros(GRID + 1, np.uint8)
        for place, (item, count, cells) in enumerate(step.choices, 1):
            if cells <= GRID:
                other = table[: GRID + 1 - cells] + count * values[item]
                better = other > found[cells:]
                np.copyto(found[cells:], other, where=better)
                np.copyto(chosen[cells:], place, where=better)
        choices.append(chosen)
        table = found
    return Knapsack(table + rest, steps, choices)


def _worth(shards: Shards, prices: Ints, item: Item) -> int:
    """What an item is worth, rounded up; no more than all sequences of its bucket."""
    price = int(prices[item.bucket])
    return min(ceil_div(price * item.numerator, item.denominator), price * shards.numbers[item.bucket])


class Pattern(NamedTuple):
    """What a rank takes, in sequences of each bucket, and its cells."""

    taken: Floats
    cells: int


def pattern_of(shards: Shards, found: Knapsack, cells: int) -> Pattern:
    """What a rank with so many cells takes."""
    taken, left = np.zeros(len(shards.numbers)), cells
    for step, choices in zip(reversed(found.steps), reversed(found.choices), strict=True):
        place = choices[left]
        if place:
            item, count, size = step.choices[place - 1]
            each = shards.items[item]
            taken[each.bucket] += count * each.numerator / each.denominator
            left -= size
    return Pattern(np.minimum(taken, shards.numbers), cells - left)


class State(NamedTuple):
    """What a linear programme is about: the cells that ranks have left, each once, ascending; how many ranks have so
    many; and the sequences of each bucket that are still to be placed."""

    cells: Ints
    ranks: Ints
    wanted: Ints


class Prices(NamedTuple):
    """Prices by bucket, and what a rank takes at most at these, by its cells."""

    prices: Ints
    most: Ints

    def missing(self, state: State) -> int:
        """What is to be placed is worth so much more than what all ranks together can take; it refutes above 0."""
        return int(self.prices @ state.wanted) - int(state.ranks @ self.most[state.cells])


class _Solved(NamedTuple):
    """A linear programme's prices, and what ranks of each kind take of the patterns that it knows."""

    prices: Floats
    worth: Floats


class Patterns:
    """The patterns of some shards that are known, and the prices that linear programmes over them give."""

    def __init__(self, shards: Shards) -> None:
        self.shards = shards
        self.programmes = 0
        size = len(shards.numbers)
        self._taken: list[Floats] = []
        self._cells: list[int] = []
        self._known: set[tuple[int, bytes]] = set()
        self._guide = np.ones(size)

    def find_prices(self, state: State) -> Prices | None:
        """Prices that refute a state, or else those that come nearest of what linear programmes find, if anything."""
        nearest: Prices | None = None
        rows = [self._first_rows(int(cells)) for cells in state.cells]
        centre: Floats | None = None
        for _ in range(ROUNDS):
            solved = self._solve(state, rows)
            if solved is None:
                break
            aims = [solved.prices] if centre is None else [(solved.prices + centre) / 2, solved.prices]
            for aim in aims:
                answer, found = self._ask(aim, state)
                if nearest is None or answer.missing(state) > nearest.missing(state):
                    nearest, centre = answer, aim
                if answer.missing(state) > 0:
                    return answer
                if self._learn(state, found, solved, rows):
                    break
            else:
                break
        return nearest

    def _ask(self, aim: Floats, state: State) -> tuple[Prices, Knapsack]:
        """What ranks take at prices of a linear programme, rounded down to integers."""
        self._guide = aim
        prices = np.floor(aim * WORTH).astype(np.int64)
        found = knapsack(self.shards, prices, int(state.ranks.sum()))
        return Prices(prices, found.most), found

    def _learn(self, state: State, found: Knapsack, solved: _Solved, rows: list[list[Floats]]) -> bool:
        """Add the patterns that are worth more than their linear programme knew; False where there are none."""
        before = sum(map(len, rows))
        for place, cells in enumerate(state.cells.tolist()):
            pattern = pattern_of(self.shards, found, cells)
            if pattern.taken @ solved.prices <= solved.worth[place] + MARGIN:
                continue
            rows[place].append(pattern.taken)
            key = pattern.cells, pattern.taken.tobytes()
            if key not in self._known:
                self._known.add(key)
                self._taken.append(pattern.taken)
                self._cells.append(pattern.cells)
        return sum(map(len, rows)) > before

    def _first_rows(self, cells: int) -> list[Floats]:
        """What a rank with so many cells is told at first: as many of each item as fit, and the known patterns that
        were worth most last time."""
        rows = []
        for place, item in enumerate(self.shards.items):
            if item.cells <= cells:
                row, most = np.zeros(len(self.shards.numbers)), self.shards.numbers[item.bucket]
                fitting = cells // item.cells if item.cells else most
                number = fitting if place in self.shards.divisible else min(fitting, most)
                row[item.bucket] = min(number * item.numerator / item.denominator, most)
                rows.append(row)
        if self._taken:
            able = np.flatnonzero(np.array(self._cells) <= cells)
            taken = np.array(self._taken)[able]
            rows += list(taken[np.argsort(-(taken @ self._guide), kind="stable")[:SHOWN]])
        return rows

    def _solve(self, state: State, rows: list[list[Floats]]) -> _Solved | None:
        """Prices under which all wanted is worth 1, and what a rank of each kind takes at most of known patterns, for
        the least that all ranks take; None where that is 1, or nothing was found."""
        self.programmes += 1
        size, kinds = len(state.wanted), len(rows)
        matrix = np.zeros((sum(map(len, rows)), size + kinds))
        matrix[:, :size] = np.array([row for several in rows for row in several]).reshape(-1, size)
        ends = [0, *accumulate(map(len, rows))]
        for kind in range(kinds):
            matrix[ends[kind] : ends[kind + 1], size + kind] = -1
        answer = linprog(
            np.concatenate([np.zeros(size), state.ranks]),
            A_ub=matrix,
            b_ub=np.zeros(len(matrix)),
            A_eq=np.concatenate([state.wanted, np.zeros(kinds)])[None, :],
            b_eq=[1.0],
            bounds=[(0, None if wanted else 0) for wanted in state.wanted.tolist()] + [(0, None)] * kinds,
            method="highs",
        )
        if answer.x is None or answer.fun is None or answer.fun >= 1 - MARGIN:
            return None
        return _Solved(answer.x[:size], answer.x[size:])
