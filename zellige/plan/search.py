"""Anchor placement: depth-first search over aligned blocks below a target time that rises until a placement is found.

Fillers are **sand**: divisible work that levels the ranks. A target T is feasible if anchors fit on blocks with no rank
above T, all work (anchors' as placed, fillers' at their least) within N*T, and, where memory binds, ranks have time and
memory left for the sand. This relaxes the placement problem, so a target that is searched to the end without success is
a lower bound for plans on these blocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from zellige.plan.blocks import Block, Pod
from zellige.plan.compiled import LARGEST, is_compiled
from zellige.plan.search_kernel import FINE, MAX_GIANTS, NEVER
from zellige.plan.search_places import Frame
from zellige.problem import Rung
from zellige.units import ceil_div

if TYPE_CHECKING:
    from zellige.plan.search_arrays import Arrays


class Anchor(NamedTuple):
    """A sequence that the search places: its bucket, and its rungs by work."""

    bucket: str
    rungs: tuple[Rung, ...]


class Sand(NamedTuple):
    """Fillers as divisible work: their least work, and for each of the search's densities what :func:`credit` says."""

    work: int
    credits: tuple[int, ...]


class Found(NamedTuple):
    """Where the anchors go, the target that was reached, and a lower bound on any (``lower``) for these blocks.

    ``others`` are placements found on the way, with their targets, the lowest first.
    """

    chosen: tuple[tuple[Rung, Block], ...]
    target: int
    lower: int
    others: tuple[tuple[tuple[tuple[Rung, Block], ...], int], ...] = ()


@dataclass
class Budget:
    """Nodes that all searches of a plan may still visit; beyond them only straight descents are made."""

    nodes: int


class Order(NamedTuple):
    """Which blocks are tried first: the fullest that has room (``tight``), else the emptiest; nodes of one target's
    search, and what is left of the plan's. ``refutes``: the search is to prove that nothing fits, and may use all of
    its nodes below one arrangement of the first anchors."""

    tight: bool
    run_limit: int
    budget: Budget
    refutes: bool = False


PER_DENSITY = 256
"""Densities are in bytes per this many nanoseconds."""


def credit(rungs: Iterable[Rung], density: int) -> int:
    """The least, over rungs, of what a sequence needs from its ranks in the coin ``min(density * time, bytes)``.

    Each rank has at most ``min(density * time left, bytes left)`` of it, whatever it holds, so the ranks' sum bounds
    what still fits: light sequences (many nanoseconds a byte) can use time only where bytes are left, heavy ones bytes
    only where time is. The least of least sums is that of the least work and the fewest bytes.
    """
    return credits_of(rungs, (density,))[0]


def credits_of(rungs: Iterable[Rung], densities: Sequence[int]) -> list[int]:
    """:func:`credit` in the coins of several densities."""
    work, kept = (min(each) for each in zip(*[(rung.work, rung.degree * rung.kept) for rung in rungs], strict=True))
    return [min(density * work, PER_DENSITY * kept) for density in densities]


class Search:
    """The state of one search: loads of a pod's ranks, and the anchors placed so far."""

    def __init__(
        self, pod: Pod, anchors: Sequence[Anchor], sand: Sand, room: int, order: Order, densities: Sequence[int] | None
    ) -> None:
        """``densities`` are those of the capacity test; None where memory cannot bind."""
        self.pod, self.anchors, self.sand, self.room, self.order = pod, anchors, sand, room, order
        self.densities, self.binds = densities or (), densities is not None
        self.load = [0] * pod.num_ranks
        self.kept = [0] * pod.num_ranks
        self.live = [0] * pod.num_ranks
        self.path: list[tuple[Rung, Block]] = []
        self.nodes = self.stop_at = self.quota_at = self.giants = self.target = self.budget = 0
        self.next_target = NEVER
        self.cut = False
        self.usable: list[tuple[Rung, ...]] = []
        self.rest: list[int] = []
        self.waiting = self._weigh_waiting()
        self.failed: set[tuple[int, ...]] = set()
        self.arrays: Arrays | None = None

    def run(self, target: int, limit: int) -> bool:
        """Whether a placement is found below a target; ``cut`` says that the node limit came first."""
        if self.may_compile(target):
            return self._run_compiled(target, limit)
        self.target, self.next_target, self.cut = target, NEVER, False
        self.stop_at = self.quota_at = self.nodes + limit
        self.failed.clear()
        known: dict[str, tuple[Rung, ...]] = {}
        for anchor in self.anchors:
            if anchor.bucket not in known:
                known[anchor.bucket] = tuple(rung for rung in anchor.rungs if rung.time <= target)
                longer = min((rung.time for rung in anchor.rungs if rung.time > target), default=NEVER)
                self.next_target = min(self.next_target, longer)
        if not all(known.values()):
            return False
        self.giants = sum(1 for anchor in self.anchors if all(rung.degree > 1 for rung in known[anchor.bucket]))
        self.giants = len(self.anchors) if self.order.refutes else min(self.giants, MAX_GIANTS)
        self.usable = [known[anchor.bucket] for anchor in self.anchors]
        self.rest = [0]
        for rungs in reversed(self.usable):
            self.rest.append(self.rest[-1] + rungs[0].work)
        self.rest.reverse()
        self.budget = self.pod.num_ranks * target - self.sand.work
        if self.rest[0] > self.budget:
            self.next_target = min(self.next_target, ceil_div(self.rest[0] + self.sand.work, self.pod.num_ranks))
            return False
        return self._descend(0, 0)

    def may_compile(self, target: int) -> bool:
        """Whether compiled loops are wanted and no figure up to a target is too large for them."""
        return is_compiled() and target <= self._highest

    @cached_property
    def _highest(self) -> int:
        """The highest target that compiled loops may compute with; -1 for none."""
        most = max(PER_DENSITY, *self.densities, 0)
        work = self.sand.work + sum([anchor.rungs[-1].work for anchor in self.anchors])
        if max(self.room << FINE, self.pod.num_ranks * self.room * most, work, *self.waiting[0], 0) >= LARGEST:
            return -1
        return min(LARGEST >> FINE, LARGEST // (self.pod.num_ranks * most)) - 1

    def arrays_for(self, limit: int) -> Arrays:
        """The search's figures for compiled loops, with room for so many nodes a target."""
        from zellige.plan.search_arrays import Arrays

        if self.arrays is None or self.arrays.limit < limit:
            fronts = [anchor.rungs for anchor in self.anchors]
            self.arrays = Arrays(self.pod, fronts, self.waiting, self.densities, binds=self.binds, limit=limit)
        return self.arrays

    @property
    def frame(self) -> Frame:
        """What compiled loops are told of the search."""
        return Frame(
            target=0, limit=self.order.run_limit, sand_work=self.sand.work, room=self.room, tight=self.order.tight,
            binds=self.binds, per_density=PER_DENSITY, highest=self._highest, refutes=self.order.refutes,
        )  # fmt: skip

    def _put_all(self, placed: Iterable[tuple[Rung, Block]]) -> None:
        for rung, block in placed:
            self._put(rung, block)

    def _run_compiled(self, target: int, limit: int) -> bool:
        """:meth:`run` in compiled loops."""
        arrays = self.arrays_for(limit)
        self.target = target
        found, nodes, self.next_target, self.cut = arrays.run(target, limit, self.frame)
        self.nodes += nodes
        if found:
            self._put_all(arrays.placed())
        return found

    def _descend(self, index: int, work: int) -> bool:
        """Place the anchors from ``index`` on; on success they stay placed."""
        self.nodes += 1
        if self.binds and not self._has_capacity(self.waiting[index]):
            return False
        if index == len(self.anchors):
            return True
        if index == self.giants:
            self.quota_at = min(self.stop_at, self.nodes + 2 * (len(self.anchors) - index) + 8)
        if self.nodes >= self.quota_at:
            self.cut = True
            return False
        key = (index, *self.load, *self.kept, *self.live) if self.binds else (index, *self.load)
        if key in self.failed:
            return False
        left = self.budget - work - self.rest[index + 1]
        slack = self.target - min(self.load)
        for rung in self.usable[index]:
            if rung.work > left:
                total = work + self.rest[index + 1] + rung.work + self.sand.work
                self.next_target = min(self.next_target, ceil_div(total, self.pod.num_ranks))
                break
            if rung.time > slack:
                self.next_target = min(self.next_target, self.target - slack + rung.time)
                continue
            for block in self._candidates(rung):
                undo = self._put(rung, block)
                if self._descend(index + 1, work + rung.work):
                    return True
                self._take_back(rung, block, undo)
                if index < self.giants:
                    self.quota_at = self.stop_at
                if self.nodes >= self.quota_at:
                    self.cut = True
                    return False
        self.failed.add(key)
        return False

    def _candidates(self, rung: Rung) -> list[Block]:
        """Blocks with time and room for a rung, but one of those that are mirror images; the first to try first."""
        found = []
        load = self.load
        time, most, nearest = rung.time, self.target - rung.time, NEVER
        for number, block in enumerate(self.pod.blocks.get((rung.degree, rung.nodes), ())):
            pieces = block.pieces
            start, stop = pieces[0]
            highest = load[start] if stop - start == 1 else max(load[start:stop])
            for start, stop in pieces[1:]:
                highest = max(highest, *load[start:stop])
            if highest > most:
                nearest = min(nearest, highest)
                continue
            if block.mirrors and self._has_mirror(block):
                continue
            if not self.binds:
                found.append((-highest if self.order.tight else highest, number, block))
            elif (fullest := self._fullest(block, rung)) <= self.room:
                shares = ((highest + time) << FINE) // self.target, (fullest << FINE) // self.room
                found.append((max(shares), number, block))
            else:
                self.next_target = min(self.next_target, self.target + 1)
        self.next_target = min(self.next_target, nearest + time)
        found.sort()
        return [block for _, _, block in found]

    def _fullest(self, block: Block, rung: Rung) -> int:
        """Bytes of the block's fullest rank with the rung on it."""
        kept, live = self.kept, self.live
        if not rung.live:
            return max([kept[rank] + live[rank] for rank in block.ranks]) + rung.kept
        return max([kept[rank] + max(live[rank], rung.live) for rank in block.ranks]) + rung.kept

    def _has_mirror(self, block: Block) -> bool:
        """Whether an earlier block is the same but for the names of equally loaded ranks."""
        load, kept, live = self.load, self.kept, self.live
        for start, middle, stop in block.mirrors:
            if load[start:middle] == load[middle:stop] and (
                not self.binds or (kept[start:middle] == kept[middle:stop] and live[start:middle] == live[middle:stop])
            ):
                return True
        return False

    def _put(self, rung: Rung, block: Block) -> list[int]:
        load, kept, live = self.load, self.kept, self.live
        undo = []
        for rank in block.ranks:
            load[rank] += rung.time
            kept[rank] += rung.kept
        if rung.live:
            undo = [live[rank] for rank in block.ranks]
            for rank in block.ranks:
                live[rank] = max(live[rank], rung.live)
        self.path.append((rung, block))
        return undo

    def _take_back(self, rung: Rung, block: Block, undo: list[int]) -> None:
        load, kept = self.load, self.kept
        for rank in block.ranks:
            load[rank] -= rung.time
            kept[rank] -= rung.kept
        for rank, value in zip(block.ranks, undo, strict=False):
            self.live[rank] = value
        self.path.pop()

    def _weigh_waiting(self) -> list[tuple[int, ...]]:
        """What is still to come at each depth, in the coins of the densities."""
        rungs = {anchor.bucket: anchor.rungs for anchor in self.anchors}
        one = {name: credits_of(several, self.densities) for name, several in rungs.items()}
        waiting = [self.sand.credits]
        if not self.densities:
            return waiting * (len(self.anchors) + 1)
        for anchor in reversed(self.anchors):
            waiting.append(tuple(a + b for a, b in zip(waiting[-1], one[anchor.bucket], strict=True)))
        waiting.reverse()
        return waiting

    def _has_capacity(self, needs: tuple[int, ...]) -> bool:
        """Whether the ranks have what is still to come, in every coin; many have as much as others."""
        target, room = self.target, self.room
        loads = Counter(zip(self.load, self.kept, self.live, strict=True)).items()
        left = [(n, target - load, PER_DENSITY * (room - kept - live)) for (load, kept, live), n in loads]
        for density, need in zip(self.densities, needs, strict=True):
            if sum([n * (density * time if density * time < memory else memory) for n, time, memory in left]) < need:
                self.next_target = min(self.next_target, self.target + 1)
                return False
        return True

    def attempt(self, target: int) -> bool:
        """:meth:`run` with a part of the plan's budget; a straight descent where that is spent."""
        budget = self.order.budget
        before = self.nodes
        limit = max(self.order.run_limit, budget.nodes // 4) if budget.nodes > 0 else len(self.anchors) + 4
        found = self.run(target, limit)
        budget.nodes -= self.nodes - before
        return found

    def greedy(self, start: int) -> int | None:
        """Place the anchors one by one so that the slowest rank and the mean stay least; what they reach, or None where
        memory stops it. They stay placed on success."""
        work = self.sand.work + sum(anchor.rungs[0].work for anchor in self.anchors)
        most = self.sand.work + sum(anchor.rungs[-1].work for anchor in self.anchors)
        if is_compiled() and max(most, start, self.room) < LARGEST:
            arrays = self.arrays_for(1)
            settled = arrays.settle(start, work, self.room)
            if settled >= 0:
                self._put_all(arrays.placed())
        else:
            settled = self._settle(start, work)
        if settled < 0:
            return None
        self.target = settled
        if self.binds and not self._has_capacity(self.sand.credits):
            self.take()
            return None
        return settled

    def _settle(self, reached: int, work: int) -> int:
        """What the anchors reach one by one, or -1 where one has no room; they stay placed on success."""
        num_ranks = self.pod.num_ranks
        for anchor in self.anchors:
            work -= anchor.rungs[0].work
            best: tuple[int, int, int, Rung, Block] | None = None
            for rung in anchor.rungs:
                mean = ceil_div(work + rung.work, num_ranks)
                if best is not None and mean > best[0]:
                    break
                for block in self.pod.blocks.get((rung.degree, rung.nodes), ()):
                    highest = max([self.load[rank] for rank in block.ranks]) + rung.time
                    entry = max(reached, mean, highest), rung.work, highest
                    if (best is None or entry < best[:3]) and self._fullest(block, rung) <= self.room:
                        best = *entry, rung, block
            if best is None:
                self.take()
                return -1
            reached = best[0]
            work += best[1]
            self._put(best[3], best[4])
        return reached

    def take(self) -> tuple[tuple[Rung, Block], ...]:
        """The placement found; the ranks are empty again."""
        chosen = tuple(self.path)
        for rung, block in reversed(chosen):
            self._take_back(rung, block, [0] * len(block.ranks))
        return chosen
