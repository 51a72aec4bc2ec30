"""Local search over all sequences on rank sets that need not nest: take one off the slowest rank and run it otherwise.

Any sequence of the slowest rank, split or whole, may go to any other of its rungs, on the least loaded ranks of any
nodes. A step is taken where it leaves every rank that it touches below the slowest; of such steps the one after which
the slowest is fastest, then the one that adds the least work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

from zellige.plan import refine_kernel
from zellige.plan.compiled import compiled
from zellige.plan.layout import Ints, int_array, zeros
from zellige.plan.packing import Ranks, Split, as_arrays, as_rows
from zellige.plan.refine_kernel import Held, Limits, Table, Ways
from zellige.problem import Rung


def refine(
    ranks: Ranks,
    split: list[Split],
    whole: Mapping[str, list[int]],
    alone: Mapping[str, Rung],
    rungs: Mapping[str, Sequence[Rung]],
    per_node: int,
    room: int,
    goal: int,
    limit: int,
) -> None:
    """Take time off the slowest rank until it is within ``goal``, no step helps, or ``limit`` steps are made.

    ``alone`` is how the whole ones run, ``rungs`` are the ways that sequences may run, those of least work first.
    Changes ``ranks``, ``split`` and ``whole`` (counts by bucket and rank). Of ways of a bucket under one rung, the last
    on the slowest rank is tried.
    """
    if max(ranks.time) <= goal:
        return
    book = _Book([*whole, *(name for name in rungs if name not in whole)], rungs)
    alone_places = [book.place(name, alone[name]) for name in whole]
    ways, table, limits = book.ways(split), book.table(alone_places), Limits(room, goal, limit)
    spare = Ways(limit, limit, limit, limit, limit * max(table.degree))
    counts, order = list(whole.values()), list(range(len(ranks.time)))
    if not ranks.may_compile(room, goal, *table.work, *table.kept, *table.live):
        ways = Ways(*(each + [0] * more for each, more in zip(ways, spare, strict=True)))
        held = Held(ranks.loads, table, ways, counts, order, order[:], [0] * len(table.work), per_node)
        number = refine_kernel.refine(held, len(split), limits)
    else:
        rows, order, tried = as_rows(counts, len(order)), int_array(order), zeros(len(table.work))
        ways = Ways(*(_extended(each, more) for each, more in zip(ways, spare, strict=True)))
        held = Held(as_arrays(ranks.loads), as_arrays(table), ways, rows, order, order.copy(), tried, per_node)
        number = compiled(refine_kernel.__name__, "refine")(held, len(split), limits)
        ranks.take(held.loads)
        for row, changed in zip(counts, rows.tolist(), strict=True):
            row[:] = changed
    split[:] = book.listed(ways, split, number)


def _extended(values: list[int], more: int) -> Ints:
    """An array of some values and as many zeros as are told."""
    extended = zeros(len(values) + more)
    extended[: len(values)] = values
    return extended


class _Book:
    """Rungs of buckets by number, for the kernel; :class:`zellige.plan.refine_kernel.Table` says how."""

    def __init__(self, names: Sequence[str], rungs: Mapping[str, Sequence[Rung]]) -> None:
        self.names, self.numbers = names, {name: number for number, name in enumerate(names)}
        self.rungs = [rung for name in names for rung in rungs[name]]
        self.last = list(accumulate([len(rungs[name]) for name in names]))
        self.places: dict[tuple[str, int], int] = {}

    def place(self, name: str, rung: Rung) -> int:
        """Where a bucket's rung stands; one that its sequences may not go to stands behind all others."""
        key, number = (name, id(rung)), self.numbers[name]
        if key not in self.places:
            span = range(self.last[number - 1] if number else 0, self.last[number])
            self.places[key] = next((place for place in span if self.rungs[place] is rung), len(self.rungs))
            if self.places[key] == len(self.rungs):
                self.rungs.append(rung)
        return self.places[key]

    def table(self, alone: list[int]) -> Table:
        """The rungs' figures."""
        work, time, degree, nodes, kept, live, _ = map(list, zip(*self.rungs, strict=True))
        return Table(work, time, degree, nodes, kept, live, [0, *self.last[:-1]], self.last, alone)

    def ways(self, split: Sequence[Split]) -> Ways:
        """Split sequences' figures."""
        return Ways(
            bucket=[0, *[self.numbers[way.bucket] for way in split]],
            rung=[0, *[self.place(way.bucket, way.rung) for way in split]],
            first=[0, *accumulate([len(way.ranks) for way in split], initial=1)],
            listed=list(range(1, len(split) + 1)),
            ranks=[0, *[rank for way in split for rank in way.ranks]],
        )

    def listed(self, ways: Ways, before: Sequence[Split], number: int) -> list[Split]:
        """What is split in the end."""
        found = []
        for way in ways.listed[:number]:
            if way <= len(before):
                found.append(before[way - 1])
            else:
                where = tuple(map(int, ways.ranks[ways.first[way] : ways.first[way + 1]]))
                found.append(Split(self.names[ways.bucket[way]], self.rungs[ways.rung[way]], where))
        return found
