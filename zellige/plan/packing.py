"""Filler packing: many equal whole sequences at once, by time where memory is loose and by Eq. 8 where it binds.

Equal fillers go one after another to the least loaded rank (ties: the lowest). A rank's next places then lie at
``load, load + time, load + 2 time ...``, and all fillers together take the lowest places of all ranks, which are found
without placing them one by one.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

from zellige.plan.blocks import Block, Pod
from zellige.problem import Rung


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

    def restore(self, other: Ranks) -> None:
        """Take over another's loads."""
        self.time, self.kept, self.live = other.time[:], other.kept[:], other.live[:]

    def fit(self, room: int) -> bool:
        """Whether every rank has room for what it holds."""
        return all(kept + live <= room for kept, live in zip(self.kept, self.live, strict=True))

    def copy(self) -> Ranks:
        """An independent copy."""
        other = Ranks(0)
        other.time, other.kept, other.live = self.time[:], self.kept[:], self.live[:]
        return other


def pour(loads: Sequence[int], time: int, count: int) -> list[int]:
    """How many of ``count`` equal fillers each rank gets when each goes to the least loaded rank (ties: the lowest).

    A level that all fillers would reach as a liquid, less one filler, bounds a prefix of the places in order; the
    remaining fillers, fewer than two a rank, are placed one by one.
    """
    low = _level(loads, time * count) - time
    counts = [-((load - low) // time) if load < low else 0 for load in loads]
    left = count - sum(counts)
    heap = [(load + time * taken, rank) for rank, (load, taken) in enumerate(zip(loads, counts, strict=True))]
    heapq.heapify(heap)
    for _ in range(left):
        load, rank = heap[0]
        counts[rank] += 1
        heapq.heapreplace(heap, (load + time, rank))
    return counts


def _level(loads: Sequence[int], volume: int) -> int:
    """The height, rounded down, to which a volume of liquid rises over the loads."""
    total = 0
    ordered = sorted(loads)
    for filled, load in enumerate(ordered):
        if filled and load * filled - total >= volume:
            return (total + volume) // filled
        total += load
    return (total + volume) // len(ordered)


class Packed(NamedTuple):
    """Counts by filler and rank, how many of each filler had no room, and whether time alone decided."""

    counts: list[list[int]]
    left: list[int]
    loose: bool


def pack(ranks: Ranks, fillers: Sequence[Filler], room: int, target: int) -> Packed:
    """Place fillers whole, in descending time.

    By time alone; where that overfills a rank, by time and memory (:func:`blend`); where a rank is still too full, by
    Eq. 8 with the time budget ``target``. Changes ``ranks``.
    """
    before = ranks.copy()
    counts = []
    for filler in fillers:
        counts.append(pour(ranks.time, filler.whole.time, filler.number))
        ranks.add_counts(counts[-1], filler.whole)
    if ranks.fit(room):
        return Packed(counts, [0] * len(counts), True)
    ranks.restore(before)
    blended = blend(ranks, fillers, room)
    if blended is not None:
        return Packed(blended, [0] * len(counts), False)
    ranks.restore(before)
    tight = [_pack_tight(ranks, filler, room, target) for filler in fillers]
    return Packed([chosen for chosen, _ in tight], [left for _, left in tight], False)


def blend(ranks: Ranks, fillers: Sequence[Filler], room: int) -> list[list[int]] | None:
    """Fill every rank to one level of time and equal room to spare: counts, or None where some filler has no room.

    Fillers differ in bytes per nanosecond. Rank r has a share of every filler in proportion to its time left, tilted by
    ``theta_r (density - mean density)``, which keeps its time and sets its bytes: ``theta_r`` is chosen so that they
    are what it has left less an equal reserve. Filler by filler, the longest first, shares are rounded and the rest is
    shared out anew, so that later ones even out the rounding. Changes ``ranks``.
    """
    counts = []
    for index, filler in enumerate(fillers):
        chosen = _blended(ranks, fillers[index:], room) if filler.number else [0] * len(ranks.time)
        if chosen is None:
            return None
        ranks.add_counts(chosen, filler.whole)
        counts.append(chosen)
    return counts


def _blended(ranks: Ranks, fillers: Sequence[Filler], room: int) -> list[int] | None:
    """Counts of the first of the fillers, all of which are still to be placed."""
    first = fillers[0]
    work = sum(filler.number * filler.whole.time for filler in fillers)
    need = sum(filler.number * filler.whole.kept for filler in fillers)
    level = _level(ranks.time, work)
    time_left = [max(0, level - time) for time in ranks.time]
    room_left = [room - kept - max(live, first.whole.live) for kept, live in zip(ranks.kept, ranks.live, strict=True)]
    caps = [max(0, left) // max(1, first.whole.kept) for left in room_left]
    if sum(caps) < first.number:
        return None
    mean = need / work
    densities = [filler.whole.kept / filler.whole.time for filler in fillers if filler.number]
    spread = sum(f.number * f.whole.time * (f.whole.kept / f.whole.time - mean) ** 2 for f in fillers) / work
    tilt = (densities[0] - mean) / spread if spread > 0 else 0.0
    reserve = _reserve(time_left, room_left, need, min(densities), max(densities))
    wanted = [0.0] * len(time_left)
    for rank, (time, left) in enumerate(zip(time_left, room_left, strict=True)):
        if time:
            density = min(max((left - reserve) / time, min(densities)), max(densities))
            wanted[rank] = time * max(0.0, 1 + tilt * (density - mean))
    return _round_to(wanted, caps, first.number)


def _reserve(times: Sequence[int], rooms: Sequence[int], need: int, least: float, most: float) -> float:
    """The equal reserve of room that ranks keep where ``need`` bytes fill their times at densities within limits."""
    low, high = -float(max(rooms)), float(max(rooms))
    for _ in range(12):
        middle = (low + high) / 2
        loads = zip(times, rooms, strict=True)
        filled = sum([min(max(room - middle, least * time), most * time) for time, room in loads])
        if filled > need:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _round_to(wanted: Sequence[float], caps: Sequence[int], number: int) -> list[int]:
    """Integers in proportion to ``wanted``, each at most its cap, summing to ``number`` (no more than the caps do)."""
    counts = [0] * len(wanted)
    total = sum(wanted)
    parts = [number * value / total if total > 0 else 0.0 for value in wanted]
    for rank, (part, cap) in enumerate(zip(parts, caps, strict=True)):
        counts[rank] = min(int(part), cap)
    heap = [(counts[rank] - parts[rank], rank) for rank in range(len(counts)) if counts[rank] < caps[rank]]
    heapq.heapify(heap)
    for _ in range(number - sum(counts)):
        behind, rank = heap[0]
        counts[rank] += 1
        if counts[rank] < caps[rank]:
            heapq.heapreplace(heap, (behind + 1, rank))
        else:
            heapq.heappop(heap)
    return counts


def _pack_tight(ranks: Ranks, filler: Filler, room: int, target: int) -> tuple[list[int], int]:
    """Eq. 8: each filler to the rank with the most left of its tighter slack; a rank's score changes only when it is
    chosen, so a heap finds the same ranks as a scan."""
    _, time, _, _, kept, live, _ = filler.whole
    counts = [0] * len(ranks.time)

    def entry(rank: int) -> tuple[int, int] | None:
        left = room - ranks.kept[rank] - kept - max(ranks.live[rank], live)
        return (-min((target - ranks.time[rank] - time) * room, left * target), rank) if left >= 0 else None

    heap = [known for rank in range(len(counts)) if (known := entry(rank)) is not None]
    heapq.heapify(heap)
    for placed in range(filler.number):
        if not heap:
            return counts, filler.number - placed
        rank = heap[0][1]
        ranks.add((rank,), filler.whole)
        counts[rank] += 1
        following = entry(rank)
        if following is None:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, following)
    return counts, 0


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
        best: tuple[int, tuple[int, ...]] | None = None
        for first, pod in pods:
            for block in pod.blocks.get((rung.degree, rung.nodes), ()):
                score = _slack(ranks, first, block, rung, room, target)
                if score is not None and (best is None or score > best[0]):
                    best = score, tuple(first + rank for rank in block.ranks)
        if best is not None:
            ranks.add(best[1], rung)
            return Split(filler.bucket, rung, best[1])
    return None


def _slack(ranks: Ranks, first: int, block: Block, rung: Rung, room: int, target: int) -> int | None:
    """Eq. 8's score of the block's worst rank; None where one has no room."""
    worst = None
    for rank in (first + rank for rank in block.ranks):
        left = room - ranks.kept[rank] - rung.kept - max(ranks.live[rank], rung.live)
        if left < 0:
            return None
        score = min((target - ranks.time[rank] - rung.time) * room, left * target)
        worst = score if worst is None else min(worst, score)
    return worst
