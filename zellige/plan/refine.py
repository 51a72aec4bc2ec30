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
from zellige.plan.divide_kernel import Kinds, Pool
from zellige.plan.held_kernel import Held, Table, Ways
from zellige.plan.layout import Ints, int_array, zeros
from zellige.plan.packing import Ranks, Split, as_rows
from zellige.plan.refine_kernel import Limits
from zellige.problem import Rung


def refine(
    ranks: Ranks, split: list[Split], counts: Ints, book: Book, room: int, goal: int, limit: int, passing: bool = False
) -> None:
    """Take time off the slowest rank until it is within ``goal``, no step helps, or ``limit`` steps are made.

    Changes ``ranks``, ``split`` and ``counts`` (by kind of :attr:`Book.alone` and rank, an array where the ranks are).
    Of ways of a bucket under one rung, the last on the slowest rank is tried. ``passing``: onto the least
    loaded ranks of those that have room; else onto the least loaded, where these have it.
    """
    if ranks.longest <= goal:
        return
    ways, table, limits = book.ways(split), book.table(), Limits(room, goal, limit, passing)
    spare = Ways(limit, limit, limit, limit, limit * max(table.degree))
    order = list(range(len(ranks.time)))
    if not ranks.may_compile(room, goal, *table.work, *table.kept, *table.live):
        ways = Ways(*(each + [0] * more for each, more in zip(ways, spare, strict=True)))
        pool = Pool(book.kinds(), *[[0] * len(counts) for _ in range(3)])
        held = Held(
            ranks.loads, table, ways, counts, order, order[:], order[:], [0] * len(table.work), pool, book.per_node
        )
        number = refine_kernel.refine(held, len(split), limits)
    else:
        loads, rows = ranks.loads_as_arrays(), counts if ranks.are_arrays else as_rows(counts, len(order))
        places, tried = int_array(order), zeros(len(table.work))
        ways = Ways(*(_extended(each, more) for each, more in zip(ways, spare, strict=True)))
        pool = Pool(Kinds(*map(int_array, book.kinds())), *zeros(3, len(rows)))
        held = Held(
            loads, book.table_of_arrays(), ways, rows, places, places.copy(), places.copy(), tried, pool, book.per_node
        )
        number = compiled(refine_kernel.__name__, "refine")(held, len(split), limits)
        if not ranks.are_arrays:
            ranks.take(loads)
            for row, changed in zip(counts, rows.tolist(), strict=True):
                row[:] = changed
    split[:] = book.listed(ways, split, number)


def _extended(values: list[int], more: int) -> Ints:
    """An array of some values and as many zeros as are told."""
    extended = zeros(len(values) + more)
    extended[: len(values)] = values
    return extended


class Book:
    """Rungs of buckets by number, for the kernel; :class:`zellige.plan.held_kernel.Table` says how.

    ``alone`` is how whole sequences run, ``rungs`` are the ways that sequences may run, those of least work first.
    """

    def __init__(self, alone: Mapping[str, Rung], rungs: Mapping[str, Sequence[Rung]], per_node: int) -> None:
        self.names = [*alone, *(name for name in rungs if name not in alone)]
        self.per_node = per_node
        self.numbers = {name: number for number, name in enumerate(self.names)}
        self.rungs = [rung for name in self.names for rung in rungs[name]]
        self.last = list(accumulate([len(rungs[name]) for name in self.names]))
        ends = zip(self.names, [0, *self.last], self.last, strict=False)
        self.places = {(name, id(self.rungs[at])): at for name, first, last in ends for at in range(first, last)}
        self.alone = [self.place(name, rung) for name, rung in alone.items()]
        self._tables: dict[int, Table] = {}
        self._arrays: dict[int, Table] = {}

    def place(self, name: str, rung: Rung) -> int:
        """Where a bucket's rung stands; one that its sequences may not go to stands behind all others."""
        key = (name, id(rung))
        if key not in self.places:
            self.places[key] = len(self.rungs)
            self.rungs.append(rung)
        return self.places[key]

    def table(self) -> Table:
        """The figures of the rungs so far."""
        size = len(self.rungs)
        if size not in self._tables:
            columns = list(map(list, zip(*self.rungs, strict=True))) or [[] for _ in Rung._fields]
            work, time, degree, nodes, kept, live, _ = columns
            firsts = [0, *self.last[:-1]]
            self._tables[size] = Table(work, time, degree, nodes, kept, live, firsts, self.last, self.alone)
        return self._tables[size]

    def kinds(self) -> Kinds:
        """Time, kept and live bytes of sequences that run whole."""
        alone = [self.rungs[place] for place in self.alone]
        return Kinds([rung.time for rung in alone], [rung.kept for rung in alone], [rung.live for rung in alone])

    def table_of_arrays(self) -> Table:
        """The same as arrays."""
        size = len(self.rungs)
        if size not in self._arrays:
            self._arrays[size] = Table(*map(int_array, self.table()))
        return self._arrays[size]

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
        for way in map(int, ways.listed[:number]):
            if way <= len(before):
                found.append(before[way - 1])
            else:
                where = tuple(map(int, ways.ranks[ways.first[way] : ways.first[way + 1]]))
                found.append(Split(self.names[ways.bucket[way]], self.rungs[ways.rung[way]], where))
        return found
