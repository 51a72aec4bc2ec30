"""A pod's anchors placed node by node: what a node may hold, and which of these patterns hold all of them together.

The search over a pod's rank sets goes by decreasing work to the emptiest node, so that every node gets the same mix;
where no mix fills ranks evenly, it splits sequences over several nodes to level them. Unequal nodes that are each full
need no such splits: one with seven sequences of a seventh of its time beside others with two or three long ones. Where
no patterns of one node do, those of two nodes may.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from zellige.plan.blocks import Block
from zellige.plan.compiled import is_compiled
from zellige.plan.cover_kernel import UNREACHED
from zellige.plan.covering import Covering, Pattern
from zellige.plan.free import Chosen, FreeSearch, front
from zellige.plan.search_kernel import NEVER
from zellige.plan.unit_kernel import Bar
from zellige.problem import Rung
from zellige.units import ceil_div

if TYPE_CHECKING:
    from zellige.plan.unit_arrays import UnitArrays

DEEPEST = 4
"""A unit is left with no more time for fillers than four times what the pod's units are left with on average."""

MOST_CELLS = 1 << 13
"""Cells of the knapsack beyond which nothing is tried: of few kinds there are many sequences each, and it is these that
fill ranks unevenly; of many there are mixes enough."""


class Effort(NamedTuple):
    """How much is tried: so many ``patterns``, those most like the pod's mix first; how often they are chosen anew
    after some turned out worse than thought (``rounds``); and of a unit's sequences least degrees (``floors``), of the
    kind of most work, of that of least, and of those between.

    ``parts`` are a unit's targets: so many fourths of what it has left beyond the least work are taken off that of all.
    Lower ones level its ranks; they are tried where the highest is met.
    """

    patterns: int
    rounds: int
    floors: tuple[tuple[int, int, int], ...]
    parts: tuple[int, ...]


THOROUGH = Effort(64, 16, ((4, 1, 1), (1, 1, 1), (4, 4, 1), (4, 4, 4), (1, 4, 1), (1, 3, 1)), (0, 3, 2))
"""For pods, whose equal units are searched once for all."""

BRIEF = Effort(16, 8, THOROUGH.floors[:3], (0,))
"""Where a local search levels the ranks afterwards."""

CHEAP = 9
"""A price within 2**-9 (0.2 %) of a unit's time ends the trial of lower targets."""


class Field(NamedTuple):
    """Ranks of a node, the target, and a rank's room in bytes; of all fillers the work and the bytes that they keep."""

    per_node: int
    target: int
    room: int
    work: int
    kept: int

    def bar(self, unit: int) -> Bar:
        """What placements on so many nodes are held against. Fillers' work and bytes are counted in units in which the
        first times a rank's room has 61 bits."""
        shift = max(0, self.room.bit_length() + self.work.bit_length() - 61)
        cheap = (unit * self.per_node * self.target) >> CHEAP
        return Bar(self.target, self.room, self.work >> shift, max(1, self.kept >> shift), cheap)


class NodeCover:
    """Places anchors below a target, so many nodes (a ``unit``) after another; remembers what a unit can hold.

    ``rungs`` are those of the anchors by bucket, the least work first.
    """

    def __init__(self, rungs: Mapping[str, Sequence[Rung]], field: Field, unit: int, effort: Effort = THOROUGH) -> None:
        self.field, self.unit, self.effort = field, unit, effort
        self.num_ranks = unit * field.per_node
        self.bar = field.bar(unit)
        self.rungs = {
            name: [rung for rung in several if rung.nodes <= unit and rung.time <= field.target]
            for name, several in rungs.items()
        }
        self._rungs_from: dict[tuple[str, int], tuple[Rung, ...]] = {}
        self._known: dict[tuple[tuple[str, int], ...], tuple[int, Chosen] | None] = {}
        self._arrays: UnitArrays | None = None

    def place(self, num_nodes: int, buckets: Sequence[str]) -> Chosen | None:
        """Where anchors, by bucket, go on so many nodes; None where nothing is found."""
        num_units = num_nodes // self.unit
        names = list(dict.fromkeys(buckets))
        total = tuple([buckets.count(name) for name in names])
        if (
            num_nodes % self.unit
            or not names
            or prod([number + 1 for number in total]) > MOST_CELLS
            or not all(map(self.rungs.get, names))
        ):
            return None
        self._arrays = self._as_arrays(names, total)
        patterns = self._patterns(num_units, names, total)
        prices, covering = [0] * len(patterns), Covering(total, patterns)
        tried = [False] * len(patterns)
        for turn in range(self.effort.rounds):
            if turn == self.effort.rounds - 1:
                prices = [price if known else UNREACHED for price, known in zip(prices, tried, strict=True)]
            chosen = covering.cheapest(prices, num_units)
            if chosen is None:
                return None
            if all(tried[number] for number in chosen):
                return self._laid(names, buckets, [patterns[number] for number in chosen])
            for number in chosen:
                found = self._on_unit(names, patterns[number])
                prices[number], tried[number] = found[0] if found is not None else UNREACHED, True
        return None

    def reach(self, num_ranks: int, chosen: Chosen, work: int) -> int:
        """The least time within which ranks take so much work of fillers beside the anchors, as far as their memory
        allows (fillers divided, each part like all of them); :data:`NEVER` where it does not."""
        time, kept = _loads(num_ranks, chosen)
        begins = sorted(time)
        ends = sorted([load + self._spare(each) for load, each in zip(time, kept, strict=True)])
        level, begun, ended = begins[0], 0, 0
        while True:
            while begun < num_ranks and begins[begun] <= level:
                begun += 1
            while ended < begun and ends[ended] <= level:
                ended += 1
            taking = begun - ended
            after = min(begins[begun : begun + 1] + ends[ended : ended + 1], default=NEVER)
            if work <= taking * (after - level):
                return max(begins[-1], level + (ceil_div(work, taking) if taking else 0))
            if after >= NEVER:
                return NEVER
            level, work = after, work - taking * (after - level)

    def _spare(self, kept: int) -> int:
        """The time of the fillers that a rank has memory for."""
        return max(0, self.bar.room - kept) * self.bar.filler_work // self.bar.filler_kept

    def _as_arrays(self, names: Sequence[str], total: Pattern) -> UnitArrays | None:
        """The kinds for compiled loops; None where these are not wanted, or figures are too large for them."""
        if not is_compiled():
            return None
        from zellige.plan.unit_arrays import UnitArrays, may_compile

        rungs = [self.rungs[name] for name in names]
        if not may_compile(rungs, total, self.num_ranks, self.bar):
            return None
        return UnitArrays(rungs, total, (self.unit, self.field.per_node), self.effort.floors, self.effort.parts)

    def _patterns(self, num_units: int, names: Sequence[str], total: Pattern) -> list[Pattern]:
        """What a unit may hold by the least work, most like the mix of all first."""
        works = [self.rungs[name][0].work for name in names]
        most = self.num_ranks * self.field.target
        left = num_units * most - sum([work * number for work, number in zip(works, total, strict=True)])
        if left < 0:
            return []
        least = most - DEEPEST * left // num_units
        if self._arrays is not None:
            return self._arrays.patterns(least, most, num_units, self.effort.patterns)
        found = list(_fillings(works, total, least, most))

        def unlike(pattern: Pattern) -> tuple[int, Pattern]:
            parts = zip(works, pattern, total, strict=True)
            return sum([work * abs(number * num_units - all_) for work, number, all_ in parts]), pattern

        return sorted(found, key=unlike)[: self.effort.patterns]

    def _on_unit(self, names: Sequence[str], pattern: Pattern) -> tuple[int, Chosen] | None:
        """The price of a pattern, ways' work beyond the least and time that nothing fills, and where its sequences are;
        None where they find no place."""
        held = tuple([(name, number) for name, number in zip(names, pattern, strict=True) if number])
        if held not in self._known:
            arrays = self._arrays
            self._known[held] = self._search(held) if arrays is None else arrays.search(pattern, self.bar)
        return self._known[held]

    def _search(self, held: Sequence[tuple[str, int]]) -> tuple[int, Chosen] | None:
        """The price and the placement of least price, of those tried, for a unit's sequences by bucket and number."""
        best: tuple[int, Chosen] | None = None
        least = sum([number * self.rungs[name][0].work for name, number in held])
        left = self.field.target - least // self.num_ranks
        able = self._fronts(held)
        for part in self.effort.parts:
            target, trials, able = self.field.target - left * part // 4, able, []
            for fronts in trials:
                chosen = FreeSearch(self.unit, self.field.per_node, fronts, 0).run(target)
                if chosen is None:
                    continue
                able.append(fronts)
                price = self._price(chosen, least)
                if price < (best[0] if best else UNREACHED):
                    best = price, chosen
                if part and best and best[0] <= self.bar.cheap:
                    return best
        return best

    def _fronts(self, held: Sequence[tuple[str, int]]) -> list[list[tuple[Rung, ...]]]:
        """Rungs of a unit's sequences from different degrees on."""
        middle = len(held) - 2
        floors = dict.fromkeys(
            [(longest, *[other] * middle, shortest)[: len(held)] for longest, shortest, other in self.effort.floors]
        )
        return [
            [
                rungs
                for (name, number), floor in zip(held, each, strict=True)
                for rungs in [self._front(name, floor)] * number
            ]
            for each in floors
        ]

    def _front(self, name: str, floor: int) -> tuple[Rung, ...]:
        """The :func:`zellige.plan.free.front` of a bucket; equal ones are one object."""
        if (name, floor) not in self._rungs_from:
            self._rungs_from[name, floor] = front(self.rungs[name], floor=floor)
        return self._rungs_from[name, floor]

    def _price(self, chosen: Chosen, least: int) -> int:
        """The work of a unit's ways beyond the least, and the time that its ranks have left and no memory to fill;
        :data:`UNREACHED` where memory does not hold the sequences themselves."""
        time, kept = _loads(self.num_ranks, chosen)
        if max(kept) > self.field.room:
            return UNREACHED
        added = sum([rung.work for rung, _ in chosen]) - least
        left = [self.field.target - load for load in time]
        return added + sum([max(0, most - self._spare(each)) for most, each in zip(left, kept, strict=True)])

    def _laid(self, names: Sequence[str], buckets: Sequence[str], units: Sequence[Pattern]) -> Chosen:
        """The placement of all anchors, unit by unit."""
        places: dict[str, list[tuple[Rung, Block]]] = {name: [] for name in names}
        for unit, pattern in enumerate(units):
            found = self._on_unit(names, pattern)
            assert found is not None
            members = [name for name, number in zip(names, pattern, strict=True) for _ in range(number)]
            for name, (rung, block) in zip(members, found[1], strict=True):
                ranks = tuple([unit * self.num_ranks + rank for rank in block.ranks])
                places[name].append((rung, Block(ranks, (), ())))
        return tuple([places[name].pop() for name in buckets])


def _loads(num_ranks: int, chosen: Chosen) -> tuple[list[int], list[int]]:
    """The time of each rank, and the bytes that it keeps, largest live segment included."""
    time, kept, live = [0] * num_ranks, [0] * num_ranks, [0] * num_ranks
    for rung, block in chosen:
        for rank in block.ranks:
            time[rank] += rung.time
            kept[rank] += rung.kept
            live[rank] = max(live[rank], rung.live)
    return time, [one + other for one, other in zip(kept, live, strict=True)]


def _fillings(works: Sequence[int], total: Sequence[int], least: int, most: int) -> Iterator[Pattern]:
    """All numbers of sequences of some works, no more than there are, that sum up to so much work."""
    if len(works) == 1:
        first = max(0, ceil_div(least, works[0]))
        for number in range(first, min(total[0], most // works[0]) + 1):
            yield (number,)
        return
    for number in range(min(total[0], most // works[0]) + 1):
        used = number * works[0]
        for others in _fillings(works[1:], total[1:], least - used, most - used):
            yield (number, *others)
