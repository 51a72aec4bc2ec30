"""Anchor placement on rank sets that need not nest: any ranks of a node, or as many of each of several nodes.

The coalesced engine meets the exchanges of all sequences together, so nothing waits for rank sets that overlap. Which
ranks of a node take a sequence is then a matter of their loads alone: the least loaded, or the fullest that stay below
the target. The search is no proof; its certificate is the bound for any rank sets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from zellige.plan.blocks import Block
from zellige.plan.compiled import LARGEST, is_compiled
from zellige.plan.free_kernel import COARSE, FREE_NODES, ROOMIER
from zellige.plan.search_kernel import FINEST, NEVER
from zellige.problem import Rung
from zellige.units import ceil_div

if TYPE_CHECKING:
    from zellige.plan.free_arrays import FreeArrays

Chosen = tuple[tuple[Rung, Block], ...]

Node = tuple[tuple[int, int], ...]
"""(load, rank) of a node's ranks, ascending."""


class FreeSearch:
    """Depth first over rungs (least work first) and rank sets below a target; a failed state is not tried again.

    ``fronts`` are the rungs of each anchor, ``work`` what the fillers take at least, ``loads`` what the ranks have to
    do already.
    """

    def __init__(
        self,
        num_nodes: int,
        per_node: int,
        fronts: Sequence[tuple[Rung, ...]],
        work: int,
        loads: Sequence[int] | None = None,
    ) -> None:
        self.per_node, self.num_ranks = per_node, num_nodes * per_node
        self.loads = loads or [0] * self.num_ranks
        self.fronts, self.work = fronts, work + sum(self.loads)
        self.path: list[tuple[Rung, tuple[int, ...]]] = []
        self.left = self.target = 0
        self.rest: list[int] = []
        self.failed: set[tuple[object, ...]] = set()
        self.arrays: FreeArrays | None = None

    @property
    def nodes(self) -> list[Node]:
        """The nodes before any anchor is placed."""
        placed = list(zip(self.loads, range(self.num_ranks), strict=True))
        starts = range(0, self.num_ranks, self.per_node)
        return [tuple(sorted(placed[start : start + self.per_node])) for start in starts]

    @property
    def least(self) -> int:
        """What the mean rank takes at least."""
        return ceil_div(self.work + sum([rungs[0].work for rungs in self.fronts]), self.num_ranks)

    def run(self, target: int) -> Chosen | None:
        """A placement with no rank above the target, or None where none was found within the limit of nodes."""
        if self.may_compile(target):
            arrays = self.as_arrays()
            found = arrays.descend(target, self.work)
            return _as_chosen(arrays.placed(arrays.places.path_rung, arrays.places.path_taken)) if found else None
        self.target, self.left = target, FREE_NODES
        self.failed.clear()
        self.path.clear()
        self.rest = [0]
        for rungs in reversed(self.fronts):
            least = next((rung.work for rung in rungs if rung.time <= target), None)
            if least is None:
                return None
            self.rest.append(self.rest[-1] + least)
        self.rest.reverse()
        budget = self.num_ranks * target - self.work
        return _as_chosen(self.path) if self._descend(0, budget, self.nodes) else None

    def may_compile(self, target: int) -> bool:
        """Whether compiled loops are wanted and no figure up to a target is too large for them."""
        if not is_compiled():
            return False
        most = self.work + sum([rungs[-1].work for rungs in self.fronts])
        return max(2 * target, self.num_ranks * target, most) < LARGEST

    def as_arrays(self) -> FreeArrays:
        """The search's figures for compiled loops."""
        from zellige.plan.free_arrays import FreeArrays

        if self.arrays is None:
            self.arrays = FreeArrays(self.nodes, self.fronts)
        return self.arrays

    def _descend(self, index: int, budget: int, nodes: list[Node]) -> bool:
        """Place the anchors from ``index`` on with so much work left; on success they are on the path."""
        if index == len(self.fronts):
            return True
        self.left -= 1
        levels = [tuple([load for load, _ in node]) for node in nodes]
        key = (index, *sorted(levels))
        if self.left < 0 or key in self.failed:
            return False
        most = budget - self.rest[index + 1]
        for rung in self.fronts[index]:
            if rung.time > self.target:
                continue
            if rung.work > most:
                break
            for parts in self._candidates(rung, nodes, levels):
                self.path.append((rung, tuple(sorted([rank for _, part in parts for _, rank in part]))))
                if self._descend(index + 1, budget - rung.work, _raised(nodes, parts, rung.time)):
                    return True
                self.path.pop()
                if self.left < 0:
                    return False
        self.failed.add(key)
        return False

    def _candidates(self, rung: Rung, nodes: list[Node], levels: list[tuple[int, ...]]) -> list[list[tuple[int, Node]]]:
        """Rank sets below the target, the emptiest first: of every node that differs, its least loaded ranks and its
        fullest; over several nodes, the emptiest of these."""
        width, highest = rung.degree // rung.nodes, self.target - rung.time
        found: list[tuple[int, int, int, Node]] = []
        seen: set[tuple[int, ...]] = set()
        for number, level in enumerate(levels):
            if level[width - 1] > highest or (rung.nodes == 1 and level in seen):
                continue
            seen.add(level)
            found.append((level[width - 1], 0, number, nodes[number][:width]))
            fit = width
            while fit < self.per_node and level[fit] <= highest:
                fit += 1
            if rung.nodes == 1 and level[fit - width] > level[0]:
                found.append((level[fit - 1], 1, number, nodes[number][fit - width : fit]))
        found.sort()
        if rung.nodes == 1:
            return [[(number, part)] for _, _, number, part in found]
        return [[(number, part) for _, _, number, part in found[: rung.nodes]]] if len(found) >= rung.nodes else []


def _raised(nodes: list[Node], parts: list[tuple[int, Node]], time: int) -> list[Node]:
    after = nodes[:]
    for number, part in parts:
        taken = {rank for _, rank in part}
        after[number] = tuple(sorted([(load + time, r) if r in taken else (load, r) for load, r in nodes[number]]))
    return after


def front(rungs: Sequence[Rung], *, rounds: int = NEVER, floor: int = 1) -> tuple[Rung, ...]:
    """The rungs of no more ring rounds and no lower degree that no other beats in work and time, the least work first.

    Where the floor leaves none, all degrees.
    """
    able = rungs if rounds >= NEVER else [rung for rung in rungs if rung.option.config.k <= rounds]
    kept: list[Rung] = []
    for rung in able:
        if rung.degree >= floor and (not kept or rung.time < kept[-1].time):
            kept.append(rung)
    return tuple(kept) if kept or floor == 1 else front(rungs, rounds=rounds)


def place_freely(search: FreeSearch, start: int, below: int) -> tuple[Chosen, int] | None:
    """A placement and its target, about 2**-10 above the least that the search holds and under ``below``; else None."""
    if not search.fronts:
        return (), start
    low = max(start, search.least)
    if search.may_compile(2 * low if below >= NEVER else max(low, below)):
        arrays = search.as_arrays()
        reached = arrays.place(low, min(below, NEVER), search.work)
        places = arrays.places
        return None if reached < 0 else (_as_chosen(arrays.placed(places.best_rung, places.best_taken)), reached)
    tried = [low + (low >> power if power else 0) for power in ROOMIER]
    if below < NEVER:
        tried = [below - max(1, below >> FINEST)]
    chosen = None
    for target in tried:
        chosen = search.run(target) if target >= low else None
        if chosen is not None:
            break
        if below >= NEVER:
            low = target + 1
    if chosen is None:
        return None
    while target - low > target >> COARSE:
        middle = (low + target) // 2
        found = search.run(middle)
        if found is None:
            low = middle + 1
        else:
            chosen, target = found, middle
    return chosen, target


def _as_chosen(placed: Iterable[tuple[Rung, tuple[int, ...]]]) -> Chosen:
    return tuple([(rung, Block(ranks, (), ())) for rung, ranks in placed])
