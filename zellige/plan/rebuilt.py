"""Drafts built anew where memory binds: every long sequence on so many ranks, all placed by decreasing work.

The searches choose degrees while they place sequences, and the local search changes one at a time beside all others as
they lie. Where ranks must be full of time and of memory together, both stop early: another degree pays only once
everything else lies otherwise. Here degrees come first. With each choice of them the sequences go one after another to
the ranks that are free first and have room, which takes so little that some dozens of choices can be tried.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from zellige.plan.drafts import faster, polish
from zellige.plan.packing import Filler, Ranks, Split, added, as_lists, pack
from zellige.plan.restarts import MOST_WAYS, least_loaded
from zellige.plan.search_kernel import NEVER
from zellige.plan.task import Draft, Task, fillers_of
from zellige.problem import Rung
from zellige.units import ceil_div

LONG = 5
"""Sequences whose work is more than this part of the bound (a fifth) have degrees that are chosen."""

SHORT = 10
"""Sequences that take less than this part of the bound whole (a tenth) are packed in bulk, after all others."""

Mix = Counter[tuple[str, int]]
"""How many sequences of a bucket are split under a rung of its ways, told by place; all others run whole."""

Heap = list[tuple[int, int, Iterator[Mix]]]
"""The slowest rank of each draft that was built, its number, and the mixes that follow from its own."""

Key = frozenset[tuple[tuple[str, int], int]]


def _key(mix: Mix) -> Key:
    return frozenset(mix.items())


class Builder:
    """Drafts of a task with ring rounds up to a limit, in which no sequence takes ``longest`` or more."""

    def __init__(self, task: Task, rounds: int, longest: int) -> None:
        fronts = {name: task.front(name, rounds=rounds) for name in task.numbers}
        self.task = task
        self.ways = {name: [rung for rung in rungs if rung.time < longest] for name, rungs in fronts.items()}
        self.order = sorted(task.numbers, key=lambda name: (-task.rungs[name][0].work, name))
        self.seen: set[Key] = set()

    def try_mix(self, mix: Mix) -> Draft | None:
        """The draft of a mix after the local search; None where something has no room."""
        self.seen.add(_key(mix))
        built = self._build(mix)
        return None if built is None else polish(self.task, built, passing=True)

    def mix_of(self, split: list[Split]) -> Mix:
        """The long ones of some split sequences, each under its bucket's way of as many ranks."""
        mix: Mix = Counter()
        for bucket, rung, _ in split:
            degrees = [way.degree for way in self.ways[bucket]]
            if rung.work * LONG > self.task.start and rung.degree in degrees:
                mix[bucket, degrees.index(rung.degree)] += 1
        return mix

    def fewest(self) -> Mix:
        """What must be split, each under its way of least work."""
        mix: Mix = Counter()
        for name, number in self.task.numbers.items():
            if self.ways[name] and not self._runs_whole(name):
                mix[name, 0] = number
        return mix

    def changes(self, mix: Mix) -> Iterator[Mix]:
        """Mixes not tried yet in which one long sequence runs otherwise, those that add the least work first."""
        for _, changed in sorted(self._changes(mix)):
            found = +Counter({**mix, **dict(changed)})
            if _key(found) not in self.seen:
                yield found

    def _changes(self, mix: Mix) -> Iterator[tuple[int, list[tuple[tuple[str, int], int]]]]:
        """The added work, and how many there are then of what changes."""
        for (name, place), number in mix.items():
            before = self.ways[name][place]
            for other, rung in enumerate(self.ways[name]):
                changed = [((name, place), number - 1)]
                if rung.degree > 1 and other != place:
                    changed.append(((name, other), mix[name, other] + 1))
                if other != place:
                    yield rung.work - before.work, changed
        for name, number in self.task.numbers.items():
            if self._runs_whole(name) and sum(mix[name, place] for place in range(len(self.ways[name]))) < number:
                whole = self.task.whole[name]
                for other, rung in enumerate(self.ways[name]):
                    if 1 < rung.degree <= MOST_WAYS and whole.work * LONG > self.task.start:
                        yield rung.work - whole.work, [((name, other), mix[name, other] + 1)]

    def _runs_whole(self, name: str) -> bool:
        return any(rung.degree == 1 for rung in self.ways[name])

    def _build(self, mix: Mix) -> Draft | None:
        task, num_ranks = self.task, self.task.problem.cluster.num_ranks
        ranks, split, whole = Ranks(num_ranks), list[Split](), {name: [0] * num_ranks for name in task.whole}
        to, placed = _Built(ranks, split, whole), Counter[str]()
        for name in self.order:
            chosen = [rung for place, rung in enumerate(self.ways[name]) for _ in range(mix[name, place])]
            left = task.numbers[name] - len(chosen)
            if left and not self._runs_whole(name):
                return None
            if left and task.whole[name].time * SHORT > task.start:
                chosen += [task.whole[name]] * left
            placed[name] = len(chosen)
            for rung in sorted(chosen, key=_degree, reverse=True):
                if not self._put(name, rung, to):
                    return None
        if not self._pack(fillers_of(task, placed), to):
            return None
        return Draft(split=split, whole=whole, longest=ranks.longest, ranks=ranks)

    def _pack(self, fillers: list[Filler], to: _Built) -> bool:
        """Add what is short; False where something has no room."""
        room, work = self.task.problem.memory.room_bytes, sum([filler.number * filler.whole.work for filler in fillers])
        level = ceil_div(sum(to.ranks.time) + work, len(to.ranks.time))
        packed, left, _ = pack(to.ranks, fillers, room, level)
        for filler, counts in zip(fillers, as_lists(packed), strict=True):
            to.whole[filler.bucket] = added([to.whole[filler.bucket]], [counts])[0]
        for filler, over in zip(fillers, left, strict=True):
            for _ in range(over):
                if not self._put(filler.bucket, filler.whole, to):
                    return False
        return to.ranks.fit(room)

    def _put(self, name: str, rung: Rung, to: _Built) -> bool:
        """Add a sequence under a rung, or where no ranks have room under one of more ranks; False for none."""
        cluster, room = self.task.problem.cluster, self.task.problem.memory.room_bytes
        for way in [rung, *[other for other in self.ways[name] if other.degree > rung.degree]]:
            where = least_loaded(to.ranks, way, cluster.ranks_per_node, room)
            if where is None:
                continue
            to.ranks.add(where, way)
            if way.degree == 1:
                to.whole[name][where[0]] += 1
            else:
                to.split.append(Split(name, way, where))
            return True
        return False


class _Built(NamedTuple):
    """A draft in the making: the loads of its ranks, what is split, and what is whole by bucket and rank."""

    ranks: Ranks
    split: list[Split]
    whole: dict[str, list[int]]


def _degree(rung: Rung) -> int:
    return rung.degree


def rebuilt(task: Task, draft: Draft, goal: int, limit: int) -> Draft | None:
    """The best of up to ``limit`` drafts built anew, until one's slowest rank is within a goal; None where none fits.

    First those that split as few sequences as may be, and the long ones as another draft does. Then one long sequence
    runs otherwise than in the best draft so far; than in the next best, once the changes of that are used up.
    """
    builder = Builder(task, draft.rounds, draft.longest)
    best: Draft | None = None
    heap: Heap = []
    for tried, mix in enumerate(islice(_mixes(builder, draft, heap), limit)):
        found = builder.try_mix(mix)
        heapq.heappush(heap, (NEVER if found is None else found.longest, tried, builder.changes(mix)))
        best = faster(best, found)
        if best is not None and best.longest <= goal:
            break
    return best


def _mixes(builder: Builder, draft: Draft, heap: Heap) -> Iterator[Mix]:
    """What to try: the two first mixes, then what follows from the fastest that was tried."""
    yield builder.fewest()
    if _key(builder.mix_of(draft.split)) not in builder.seen:
        yield builder.mix_of(draft.split)
    while heap:
        mix = next(heap[0][2], None)
        if mix is None:
            heapq.heappop(heap)
        else:
            yield mix
