"""A unit of nodes, its kinds and rungs as arrays for the compiled loops of :mod:`zellige.plan.unit_kernel`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, chain

import numpy as np

from zellige.plan.blocks import Block
from zellige.plan.compiled import LARGEST, compiled
from zellige.plan.cover_kernel import UNREACHED
from zellige.plan.free import Chosen
from zellige.plan.free_arrays import free_places
from zellige.plan.layout import int_array, zeros
from zellige.plan.unit_kernel import Bar, Mix, Unit
from zellige.problem import Rung


class UnitArrays:
    """What compiled loops read and change for some kinds: their rungs that a unit has, and how many there are."""

    def __init__(
        self,
        rungs: Sequence[Sequence[Rung]],
        total: Sequence[int],
        size: tuple[int, int],
        floors: Sequence[tuple[int, int, int]],
        parts: Sequence[int],
    ) -> None:
        self.flat = list(chain.from_iterable(rungs))
        last = list(accumulate(map(len, rungs)))
        num_ranks, depths = size[0] * size[1], sum(total)
        figures = zip(*[(r.work, r.time, r.degree, r.nodes, r.kept, r.live) for r in self.flat], strict=True)
        least = [floor for each in floors for floor in each]
        sizes = len(floors), len(self.flat), 3 * num_ranks, depths, depths * num_ranks
        able, flat, loads, best_rung, best_taken = map(zeros, sizes)
        given = [[0, *last[:-1]], last, *figures, least]
        arrays = [*map(int_array, given), able, int_array(parts), flat, loads, best_rung, best_taken]
        self.unit = Unit(*arrays)
        self.places, needed = free_places(*size, depths, len(self.flat))
        self.array = np.empty(needed, dtype=np.int64)
        self.array[self.places.path_load : self.places.path_load + num_ranks] = 0
        self.array[self.places.path_rank : self.places.path_rank + num_ranks] = range(num_ranks)
        self.total, self.num_ranks = total, num_ranks

    def search(self, held: Sequence[int], bar: Bar) -> tuple[int, Chosen] | None:
        """The least price for so many sequences of each kind, and where they are; None where they find no place."""
        run: Callable[..., int] = compiled("zellige.plan.unit_kernel", "search_unit")
        price = run(int_array(held), self.unit, bar, self.array, self.places)
        if price >= UNREACHED:
            return None
        depths, size = sum(held), self.num_ranks
        chosen = [self.flat[rung] for rung in self.unit.best_rung[:depths].tolist()]
        taken = self.unit.best_taken[: depths * size].tolist()
        starts = range(0, depths * size, size)
        ranks = [tuple(sorted(taken[at : at + rung.degree])) for at, rung in zip(starts, chosen, strict=True)]
        return price, tuple([(rung, Block(each, (), ())) for rung, each in zip(chosen, ranks, strict=True)])

    def patterns(self, least: int, most: int, num_units: int, limit: int) -> list[tuple[int, ...]]:
        """Patterns of so much work, up to a limit, most like the mix of all first."""
        kinds = len(self.total)
        works = [int(self.unit.work[first]) for first in self.unit.first]
        mix = Mix(int_array(works), int_array(self.total), zeros(kinds), zeros(limit * kinds), zeros(limit))
        run: Callable[..., int] = compiled("zellige.plan.unit_kernel", "find_patterns")
        count = run(least, most, num_units, mix)
        return list(map(tuple, mix.found[: count * kinds].reshape(count, kinds).tolist()))


def may_compile(rungs: Sequence[Sequence[Rung]], total: Sequence[int], num_ranks: int, bar: Bar) -> bool:
    """Whether no figure can be too large for compiled loops."""
    works = sum([number * max([rung.work for rung in each]) for each, number in zip(rungs, total, strict=True)])
    bytes_ = sum([n * max([rung.kept + rung.live for rung in each]) for each, n in zip(rungs, total, strict=True)])
    units = sum(total) + 1
    figures = num_ranks * (2 * bar.target + works), units * works, bytes_ + bar.room, bar.filler_work, bar.filler_kept
    return max(figures) < LARGEST
