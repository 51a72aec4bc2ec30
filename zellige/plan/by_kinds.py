"""How a bound rises, kind of plans by kind: a makespan is refuted where it is for all, each less its calls.

A plan of the coalesced engine has some number of ring rounds, and the calls that these take
(:func:`zellige.plan.bounds.bound_with_calls`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from zellige.placement import Problem
from zellige.plan.bounds import kind_time
from zellige.plan.chain import calls_ns
from zellige.spreads import Kind

Search = TypeVar("Search")


class Effort(NamedTuple):
    """What may be spent on one makespan, and on all, in units of the search's own."""

    each: int
    all: int


class Kinds(Generic[Search]):
    """All kinds of plans below a makespan, each with its calls, and a search of its own once it is needed.

    ``make`` makes a kind's search, told the longest target that it will be asked for.
    """

    def __init__(self, problem: Problem, reached: int, make: Callable[[Kind, int], Search], effort: Effort) -> None:
        self.reached, self.make, self.effort, self.left = reached, make, effort, effort.all
        self.kinds = [kind for kind in problem.kinds if all(kind.spreads[name] for name in problem.numbers)]
        self.calls = [calls_ns(problem, kind.fewest) for kind in self.kinds]
        self.lows = [kind_time(problem, kind) for kind in self.kinds]
        self.searches: dict[int, Search] = {}
        self.order = list(reversed(range(len(self.kinds))))

    def refute(self, makespan: int, ask: Callable[[Search, int, int], tuple[bool, int]]) -> bool:
        """Whether no plan takes a makespan or less, as far as ``ask`` shows: a search, a target and what may be spent
        for whether it refutes the target, and what that took.

        The kind that withstood last is tried first, then the widest: what is refuted for a kind is for those of fewer
        ring rounds, whose options are among its own.
        """
        allowed = min(self.effort.each, self.left)
        for place in self.order:
            target = makespan - self.calls[place]
            if target < self.lows[place]:
                continue
            refuted, taken = ask(self._search(place), target, allowed)
            allowed, self.left = allowed - taken, self.left - taken
            if not refuted:
                self.order = [place, *(other for other in self.order if other != place)]
                return False
            self.lows[: place + 1] = [max(low, target + 1) for low in self.lows[: place + 1]]
        return True

    def _search(self, place: int) -> Search:
        if place not in self.searches:
            self.searches[place] = self.make(self.kinds[place], self.reached - self.calls[place])
        return self.searches[place]
