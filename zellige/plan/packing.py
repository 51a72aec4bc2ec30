"""Filler packing: many equal whole sequences at once, by time where memory is loose and by Eq. 8 where it binds.

Equal fillers go one after another to the least loaded rank (ties: the lowest). A rank's next places then lie at
``load, load + time, load + 2 time ...``, and all fillers together take the lowest places of all ranks, which are found
without placing them one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

from zellige.plan import packing_kernel
from zellige.plan.blocks import Block, Pod
from zellige.plan.compiled import compiled, is_compiled
from zellige.plan.layout import Ints, int_array, zeros
from zellige.plan.packing_kernel import LOOSE, Fillers, Loads, share_left
from zellige.problem import Rung

EXACT = 2**50
"""Figures of compiled packing and local search stay below this, which doubles hold exactly."""

Lists = TypeVar("Lists", bound=tuple[Any, ...])
"""A named tuple of lists of integers."""


class Filler(NamedTuple):
    """``number`` equal sequences of a bucket: their whole rung, and the rungs for where no rank has room."""

    bucket: str
    whole: Rung
    rungs: tuple[Rung, ...]
    number: int


class Ranks:
    """Loads of ranks while they are filled: time, kept bytes, the largest live segment."""

    def __init__(self, num_ranks: int) -> None:
        self.time = [0] * num_ranks
        self.kept = [0] * num_ranks
        self.live = [0] * num_ranks

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

    def take(self, loads: Loads) -> None:
        """Take over loads from arrays."""
        self.time[:], self.kept[:], self.live[:] = loads.time.tolist(), loads.kept.tolist(), loads.live.tolist()

    def may_compile(self, *figures: int) -> bool:
        """Whether compiled loops are wanted and neither the loads nor some more figures are too large for them."""
        return is_compiled() and max(sum(self.time), sum(self.kept), max(self.live), *figures) < EXACT

    def fit(self, room: int) -> bool:
        """Whether every rank has room for what it holds."""
        return all(kept + live <= room for kept, live in zip(self.kept, self.live, strict=True))


def as_rows(counts: Sequence[list[int]], num_ranks: int) -> Ints:
    """Counts by something and rank as an array."""
    return int_array([count for row in counts for count in row]).reshape(len(counts), num_ranks)


def as_arrays(figures: Lists) -> Lists:
    """Lists as arrays."""
    return type(figures)(*map(int_array, figures))


class Packed(NamedTuple):
    """Counts by filler and rank, how many of each filler had no room, and whether time alone decided."""

    counts: list[list[int]]
    left: list[int]
    loose: bool


def pack(ranks: Ranks, fillers: Sequence[Filler], room: int, target: int) -> Packed:
    """Place fillers whole, in descending time.

    By time alone; where that overfills a rank, by time and memory; where a rank is still too full, by Eq. 8 with the
    time budget ``target``. Changes ``ranks``.
    """
    figures = Fillers(
        [filler.whole.time for filler in fillers],
        [filler.whole.kept for filler in fillers],
        [filler.whole.live for filler in fillers],
        [filler.number for filler in fillers],
    )
    time = sum([(number + 1) * each for number, each in zip(figures.number, figures.time, strict=True)])
    kept = sum([(number + 1) * each for number, each in zip(figures.number, figures.kept, strict=True)])
    if not ranks.may_compile(room, target, time, kept, *figures.live):
        lists, left = [[0] * len(ranks.time) for _ in fillers], [0] * len(fillers)
        how = packing_kernel.pack(ranks.loads, figures, room, target, lists, left)
        return Packed(lists, left, how == LOOSE)
    loads, counts = as_arrays(ranks.loads), zeros(len(fillers), len(ranks.time))
    over = zeros(len(fillers))
    how = compiled(packing_kernel.__name__, "pack")(loads, as_arrays(figures), room, target, counts, over)
    ranks.take(loads)
    return Packed(counts.tolist(), over.tolist(), bool(how == LOOSE))


def pour_all(ranks: Ranks, fillers: Sequence[Filler]) -> list[list[int]]:
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
