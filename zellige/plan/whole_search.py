"""Whether whole sequences fit below a time: the longest placed depth first, every state tested with prices (B7).

A state is what ranks have to do once some of the longest sequences are placed. What is left of each rank is a knapsack;
prices under which all of them together can't take what is still to be placed refute the state. Prices that refuted
another state are tried first. Where none refute it, the next sequence is placed in all ways, on any ranks of a node at
the least time of an option of so many there, or on any ranks at the least of those over several. States that failed are
remembered in full. That a target is refuted rests on integers alone, whatever linear programmes say.
"""

from __future__ import annotations

from itertools import chain

import numpy as np

from zellige.placement import Problem
from zellige.plan.compiled import LARGEST
from zellige.plan.patterns import WORTH, Ints, Patterns, Prices, State, knapsack, shards_of
from zellige.plan.spread_places import Loads, TooManyPlacesError, places
from zellige.spreads import Kind, Spread

MOST_ANCHORS = 10
"""The longest sequences, which may be placed."""

MOST_STATES = 10_000
"""States that are visited for one target."""

KEPT = 64
"""Prices that states are tested with before their own are looked for: those that were of use last."""


class WholeSearch:
    """Placements of the longest sequences of a kind of plans that take ``stop`` ns at most, calls left out."""

    def __init__(self, problem: Problem, kind: Kind, stop: int) -> None:
        names, cluster = list(problem.numbers), problem.cluster
        order = sorted(range(len(names)), key=lambda place: (-kind.fronts[names[place]].works[-1], names[place]))
        self.anchors = [place for place in order for _ in range(min(problem.numbers[names[place]], MOST_ANCHORS))]
        self.anchors = self.anchors[:MOST_ANCHORS]
        self.spreads = [kind.spreads[name] for name in names]
        # The least time of a degree, on a node or over several, comes last and stays.
        times = [{each.degree: each.time for each in sorted(found, reverse=True)} for found in self.spreads]
        self.wanted = [np.array(list(problem.numbers.values()), np.int64)]
        for bucket in self.anchors:
            self.wanted.append(self.wanted[-1] - np.eye(len(names), dtype=np.int64)[bucket])
        self.patterns = Patterns(shards_of(list(problem.numbers.values()), times, stop))
        works = np.array([kind.fronts[name].works[-1] for name in names], np.float64)
        prices = np.floor(works * (WORTH / (works @ self.wanted[0]))).astype(np.int64)
        self.known = [Prices(prices, knapsack(self.patterns.shards, prices, cluster.num_ranks).most)]
        self.start: Loads = ((0,) * cluster.ranks_per_node,) * cluster.num_nodes
        self.target = self.deepest = self.states = self.programmes = 0
        self.failed: set[tuple[int, Loads]] = set()

    def refute(self, target: int, most_programmes: int, placed: int) -> tuple[bool, int]:
        """Whether no plan of the kind is within a target, as far as so many placed sequences show; and the linear
        programmes that it took."""
        before = self.patterns.programmes
        self.target, self.deepest, self.states, self.failed = target, min(placed, len(self.anchors)), 0, set()
        self.programmes = before + most_programmes
        return self._fails(0, self.start), self.patterns.programmes - before

    def _fails(self, depth: int, loads: Loads) -> bool:
        """Whether nothing that follows a state is within the target."""
        if (depth, loads) in self.failed:
            return True
        self.states += 1
        if self.states > MOST_STATES or self.patterns.programmes > self.programmes:
            return False
        if not self._is_refuted(depth, loads):
            if depth == self.deepest:
                return False
            children = self._children(depth, loads)
            if children is None or not all(self._fails(depth + 1, child) for child in children):
                return False
        self.failed.add((depth, loads))
        return True

    def _is_refuted(self, depth: int, loads: Loads) -> bool:
        """Whether prices show that not all that is still to be placed fits."""
        state = State(*np.unique(self._cells(loads), return_counts=True), self.wanted[depth])
        for place in range(len(self.known) - 1, -1, -1):
            if self.known[place].missing(state) > 0:
                self.known.append(self.known.pop(place))
                return True
        found = self.patterns.find_prices(state)
        if found is None:
            return False
        self.known = [*self.known[1 - KEPT :], found]
        return found.missing(state) > 0

    def _children(self, depth: int, loads: Loads) -> list[Loads] | None:
        """The placements of the next sequence that no known prices refute, those that are nearest to it last; None
        where there are too many.

        A rank that takes a shard loses what it could have taken instead. Where the ranks that lose least lose more
        than prices leave, no placement is listed; else those that lose no more under the prices that leave least.
        """
        most = np.array([each.most for each in self.known])
        needs = np.array([each.prices @ self.wanted[depth + 1] for each in self.known])
        slack = most[:, self._cells(loads)].sum(axis=1) - needs
        distinct = sorted({load for node in loads for load in node})
        found: set[Loads] = set()
        for spread in self.spreads[self.anchors[depth]]:
            able = [load for load in distinct if load + spread.time <= self.target]
            if not able:
                continue
            losses = most[:, self._cells(able)] - most[:, self._cells([load + spread.time for load in able])]
            over = _least_losses(loads, spread, able, losses) - slack
            place = int(over.argmax())
            if over[place] > 0:
                continue
            told = dict(zip(able, losses[place].tolist(), strict=True))
            try:
                found |= places(loads, spread, told, int(slack[place]))
            except TooManyPlacesError:
                return None
        return self._unrefuted(sorted(found), most, needs)

    def _cells(self, loads: Loads | list[int] | list[Loads]) -> Ints:
        """The cells that ranks of these loads have left, rounded down."""
        return (self.target - np.array(loads, np.int64).ravel()) // self.patterns.shards.unit

    def _unrefuted(self, children: list[Loads], most: Ints, needs: Ints) -> list[Loads]:
        """Those that no known prices refute, the hardest to refute first: it is they that end a search in vain."""
        if not children:
            return []
        cells = self._cells(children).reshape(len(children), -1)
        missing = np.full(len(children), -LARGEST, np.int64)
        for table, need in zip(most, needs, strict=True):
            np.maximum(missing, need - table[cells].sum(axis=1), out=missing)
        return [children[place] for place in np.argsort(missing, kind="stable").tolist() if missing[place] <= 0]


def _least_losses(loads: Loads, spread: Spread, able: list[int], losses: Ints) -> Ints:
    """By prices, the least that the ranks of a placement lose; LARGEST where there is none. ``losses`` has a row for
    prices and a column for each of the loads that are ``able`` to take a shard."""
    least = np.full(len(losses), LARGEST, np.int64)
    column = {load: place for place, load in enumerate(able)}
    for group in [tuple(chain.from_iterable(loads))] if spread.wide else sorted(set(loads)):
        columns = [column[load] for load in group if load in column]
        if len(columns) >= spread.degree:
            lost = np.sort(losses[:, columns], axis=1)[:, : spread.degree].sum(axis=1)
            np.minimum(least, lost, out=least)
    return least
