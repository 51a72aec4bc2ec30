"""Which patterns, what a unit of nodes may hold, hold all sequences together at the least price."""

from __future__ import annotations

from collections.abc import Sequence

from zellige.plan import cover_kernel
from zellige.plan.compiled import LARGEST, compiled, is_compiled
from zellige.plan.cover_kernel import UNREACHED, Cover
from zellige.plan.layout import Ints, int_array, zeros

Pattern = tuple[int, ...]
"""How many sequences of each kind a unit holds."""


class Covering:
    """The knapsack over all numbers of sequences, for some patterns and so many sequences of each kind in ``total``."""

    def __init__(self, total: Pattern, patterns: Sequence[Pattern]) -> None:
        strides = [1]
        for number in total[:0:-1]:
            strides.append(strides[-1] * (number + 1))
        self.cells, strides = strides[-1] * (total[0] + 1), strides[::-1]
        self.steps = [sum([number * stride for number, stride in zip(p, strides, strict=True)]) for p in patterns]
        counts = [number for pattern in patterns for number in pattern]
        self.figures: list[Ints] = [total, strides, counts, self.steps]
        self.compiled = is_compiled()
        if self.compiled:
            self.figures = [*map(int_array, self.figures)]
            self.spare: list[Ints] = [*zeros(3, self.cells), zeros(len(total))]
        else:
            self.spare = [*([0] * self.cells for _ in range(3)), [0] * len(total)]

    def cheapest(self, prices: Sequence[int], num_units: int) -> list[int] | None:
        """The patterns of least price that hold all sequences together, one for each of so many units; None for none.
        A pattern at :data:`UNREACHED` is not to be had."""
        if self.compiled and num_units * max([price for price in prices if price < UNREACHED], default=0) < LARGEST:
            figures = [*self.figures, int_array(prices), *self.spare]
            has = Cover(*figures)
            price = compiled(cover_kernel.__name__, "cover")(has, num_units)
        else:
            has = Cover(*[list(map(int, each)) for each in [*self.figures, prices, *self.spare]])
            price = cover_kernel.cover(has, num_units)
        if price >= UNREACHED:
            return None
        found, cell = [], self.cells - 1
        while cell:
            found.append(int(has.last[cell]))
            cell -= self.steps[found[-1]]
        return found
