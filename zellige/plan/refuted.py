"""B4 raised where memory binds: what no plan on aligned blocks is below, proved with few anchors.

A search for a plan places many sequences and seldom gets through all arrangements. Here only those that take more than
a fifth of the bound are placed, all others are sand, and no arrangement of the first has a quota of nodes: what ranks
lack in time and memory together (:func:`zellige.plan.search.credit`) then refutes targets within some thousand nodes.
Each limit on ring rounds has a bound of its own, with its calls; the one that keeps the least of them down is raised.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from zellige.plan.blocks import Shape, make_pod
from zellige.plan.by_kinds import Effort
from zellige.plan.search import Budget, Order, Search
from zellige.plan.search_kernel import FINEST
from zellige.plan.task import anchors_of, densities_of, make_task, members_of, sand_of
from zellige.problem import Problem, Rung

SHARE = 5
"""Sequences that take more than this part of the bound whole (a fifth) are placed."""


class Reach(NamedTuple):
    """Plans with ring rounds up to a limit: the ways that sequences may run, a lower bound on the makespan without
    calls, and the calls that the engine adds at least."""

    rungs: dict[str, tuple[Rung, ...]]
    low: int
    calls: int


class BlocksBound:
    """The bound in ns on plans whose blocks have some shapes.

    ``kinds`` go by their ring rounds: the ways of each are among those of the next, and so is bounded by what bounds
    that one.
    """

    def __init__(self, problem: Problem, kinds: Sequence[Reach], shapes: frozenset[Shape]) -> None:
        self.problem, self.kinds, self.shapes = problem, kinds, shapes
        self.lows = [kind.low for kind in kinds]

    @property
    def bound(self) -> int:
        """The least over the kinds, with their calls."""
        return min(low + kind.calls for low, kind in zip(self.lows, self.kinds, strict=True))

    def raise_towards(self, reached: int, effort: Effort) -> None:
        """Raise the bound towards a plan's makespan: where a target is refuted, to the least that isn't; else a lower
        target is tried, a third of the way each time."""
        searches: dict[int, Search] = {}
        highs, left = [reached - kind.calls for kind in self.kinds], effort.all
        while left > 0:
            place = min(range(len(self.kinds)), key=lambda each: (self.lows[each] + self.kinds[each].calls, each))
            low, high = self.lows[place], highs[place]
            if high - low <= high >> FINEST:
                break
            if place not in searches:
                searches[place] = self._search(place, effort)
            search, target = searches[place], low + (high - low) // 3
            before = search.nodes
            if search.run(target, effort.each):
                search.take()
                highs[place] = target
            elif search.cut:
                highs[place] = target
            else:
                least = min(max(target, search.next_target), high)
                self.lows[: place + 1] = [max(each, least) for each in self.lows[: place + 1]]
            left -= max(1, search.nodes - before)

    def _search(self, place: int, effort: Effort) -> Search:
        """The search that places what is long."""
        problem, cluster = self.problem, self.problem.cluster
        task = make_task(problem, self.kinds[place].rungs, self.lows[place], self.shapes, Budget(0))
        anchors, densities = anchors_of(task, SHARE), densities_of(task, 1)
        order = Order(False, effort.each, Budget(0), refutes=True)
        pod = make_pod(cluster.num_nodes, cluster.ranks_per_node, self.shapes)
        sand = sand_of(task, anchors, densities)
        return Search(pod, members_of(task, anchors), sand, problem.memory.room_bytes, order, densities)
