"""Filler packing: many equal whole sequences at once, by time where memory is loose and by Eq. 8 where it binds.

Equal fillers go one after another to the least loaded rank (ties: the lowest). A rank's next places then lie at
``load, load + time, load + 2 time ...``, and all fillers together take the lowest places of all ranks, which are found
without placing them one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from zellige.plan import packing_kernel
from zellige.plan.blocks import Block, Pod
from zellige.plan.compiled import compiled, is_compiled
from zellige.plan.layout import Ints, int_array, zeros
from zellige.plan.packing_kernel import LOOSE, Fillers, Loads, share_left
from zellige.problem import Rung

EXACT = 2**50
"""Figures of compiled packing and local search stay below this, which doubles hold exactly."""


class Filler(NamedTuple):
    """``number`` equal sequences of a bucket: their whole rung, and the rungs for where no rank has room."""

    bucket: str
    whole: Rung
    rungs: tuple[Rung, ...]
    number: int


class Ranks:
    """Loads of ranks while they are filled: time, kept bytes, the largest live segment.

    Lists of integers, or between :meth:`to_arrays` and :meth:`to_lists` arrays, which several kernels work on.
    """

    def __init__(self, num_ranks: int) -> None:
        self.time: Ints = [0] * num_ranks
        self.kept: Ints = [0] * num_ranks
        self.live: Ints = [0] * num_ranks
        self.are_arrays = False

    def copy(self) -> Ranks:
        """The same loads, to be changed apart from these; lists from lists."""
        other = Ranks(0)
        other.time, other.kept, other.live = self.time[:], self.kept[:], self.live[:]
        return other

    def to_arrays(self) -> None:
        """Turn the lists into arrays."""
        self.time, self.kept, self.live = int_array([self.time, self.kept, self.live])
        self.are_arrays = True

    def to_lists(self) -> None:
        """Turn the arrays into lists."""
        if self.are_arrays:
            self.time, self.kept, self.live = self.time.tolist(), self.kept.tolist(), self.live.tolist()
            self.are_arrays = False

    @property
    def longest(self) -> int:
        """The time of the slowest rank."""
        return int(self.time.max()) if self.are_arrays else max(self.time)

    def add(self, ranks: Sequence[int], rung: Rung, count: int = 1) -> None:
        """Put ``count`` sequences under one rung on some ranks."""
        for rank in ranks:
            self.time[rank] += count * rung.time
            self.kept[rank] += count * rung.kept
            if rung.live > self.live[rank]:
                self.live[rank] = rung.live

    def add_counts(self, counts: Sequence[int], rung: Rung) -> None:
        """Put as many whole sequences on each rank as ``counts`` says."""
        for rank, count in enumerate(counts):
            if count:
                self.add((rank,), rung, count)

    @property
    def loads(self) -> Loads:
        """The lists of loads, to read and change."""
        return Loads(self.time, self.kept, self.live)

    def loads_as_arrays(self) -> Loads:
        """The loads as arrays, to change and :meth:`take`."""
        return self.loads if self.are_arrays else Loads(*int_array([self.time, self.kept, self.live]))

    def take(self, loads: Loads) -> None:
        """Take over what :meth:`loads_as_arrays` gave."""
        if not self.are_arrays:
            self.time[:], self.kept[:], self.live[:] = loads.time.tolist(), loads.kept.tolist(), loads.live.tolist()

    def may_compile(self, *figures: int) -> bool:
        """Whether compiled loops are wanted and neither the loads nor some more figures are too large for them; loads
        that are arrays have been looked at."""
        if self.are_arrays:
            return True
        return is_compiled() and max(sum(self.time), sum(self.kept), max(self.live), *figures) < EXACT

    def fit(self, room: int) -> bool:
        """Whether every rank has room for what it holds."""
        if self.are_arrays:
            return bool((self.kept + self.live).max() <= room)
        return all(kept + live <= room for kept, live in zip(self.kept, self.live, strict=True))


def as_rows(counts: Sequence[list[int]], num_ranks: int) -> Ints:
    """Counts by something and rank as an array."""
    return int_array(counts).reshape(len(counts), num_ranks)


def as_lists(counts: Ints) -> list[list[int]]:
    """What :func:`as_rows` made, undone; lists as they are."""
    return counts if isinstance(counts, list) else counts.tolist()


def added(one: Ints, other: Ints) -> Ints:
    """Two tables of counts, both lists or both arrays, added up."""
    if not isinstance(one, list):
        return one + other
    return [[a + b for a, b in zip(*rows, strict=True)] for rows in zip(one, other, strict=True)]


class Packed(NamedTuple):
    """Counts by filler and rank, how many of each filler had no room, and whether time alone decided."""

    counts: Ints
    left: list[int]
    loose: bool


def pack(ranks: Ranks, fillers: Sequence[Filler], room: int, target: int) -> Packed:
    """Place fillers whole, in descending time.

    By time alone; where that overfills a rank, by time and memory; where a rank is still too full, by Eq. 8 with the
    time budget ``target``. Changes ``ranks``; counts are an array where these are.
    """
    figures = Fillers(
        [filler.whole.time for filler in fillers],
        [filler.whole.kept for filler in fillers],
        [filler.whole.live for filler in fillers],
        [filler.number for filler in fillers],
    )
    if not ranks.may_compile(room, target, *_totals(figures)):
        lists, left = [[0] * len(ranks.time) for _ in fillers], [0] * len(fillers)
        how = packing_kernel.pack(ranks.loads, figures, room, target, lists, left)
        return Packed(lists, left, how == LOOSE)
    loads, counts, over = ranks.loads_as_arrays(), zeros(len(fillers), len(ranks.time)), zeros(len(fillers))
    run = compiled(packing_kernel.__name__, "pack")
    how = run(loads, Fillers(*int_array(figures)), room, target, counts, over)
    ranks.take(loads)
    return Packed(counts if ranks.are_arrays else counts.tolist(), over.tolist(), bool(how == LOOSE))


def may_pack_compiled(ranks: Ranks, fillers: Sequence[Filler], room: int, target: int) -> bool:
    """Whether compiled loops may fill ranks and move what is on them: no sum of all loads is too large."""
    time = sum([(filler.number + 1) * filler.whole.time for filler in fillers])
    kept = sum([(filler.number + 1) * filler.whole.kept for filler in fillers])
    live = max([filler.whole.live for filler in fillers], default=0)
    return ranks.may_compile(room, target, time + sum(ranks.time), kept + sum(ranks.kept), live)


def _totals(fillers: Fillers) -> list[int]:
    """Figures that bound what fillers add to the loads."""
    time = sum([(number + 1) * each for number, each in zip(fillers.number, fillers.time, strict=True)])
    kept = sum([(number + 1) * each for number, each in zip(fillers.number, fillers.kept, strict=True)])
    return [time, kept, *fillers.live]


def pour_all(ranks: Ranks, fillers: Sequence[Filler]) -> Ints:
    """Place fillers by time alone: counts by filler and rank. Changes ``ranks``."""
    fullest = max(ranks.kept) + max(ranks.live)
    enough = fullest + sum(filler.number * filler.whole.kept + filler.whole.live for filler in fillers)
    return pack(ranks, fillers, enough, 1).counts


class Split(NamedTuple):
    """A filler that is split after all, because no rank had room for it whole."""

    bucket: str
    rung: Rung
    ranks: tuple[int, ...]


def split_in(ranks: Ranks, filler: Filler, pods: Sequence[tuple[int, Pod]], room: int, target: int) -> Split | None:
    """Split one filler over the block with the most left of its tighter slack, by the rung of least work that fits.

    ``pods`` are (first rank, pod). Changes ``ranks``; None where nothing fits.
    """
    for rung in filler.rungs:
        if rung.degree == 1:
            continue
        best: tuple[float, tuple[int, ...]] | None = None
        for first, pod in pods:
            for block in pod.blocks.get((rung.degree, rung.nodes), ()):
                score = _slack(ranks, first, block, rung, room, target)
                if score is not None and (best is None or score > best[0]):
                    best = score, tuple(first + rank for rank in block.ranks)
        if best is not None:
            ranks.add(best[1], rung)
            return Split(filler.bucket, rung, best[1])
    return None


def _slack(ranks: Ranks, first: int, block: Block, rung: Rung, room: int, target: int) -> float | None:
    """Eq. 8's score of the block's worst rank; None where one has no room."""
    worst = None
    for rank in (first + rank for rank in block.ranks):
        left = room - ranks.kept[rank] - rung.kept - max(ranks.live[rank], rung.live)
        if left < 0:
            return None
        score = share_left(target - ranks.time[rank] - rung.time, target, left, room)
        worst = score if worst is None else min(worst, score)
    return worst
