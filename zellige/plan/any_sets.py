"""B6: a bound on any rank sets that sees how the longest sequences fit beside each other, all others being divisible.

B3 divides everything. Where few sequences hold most of the work, they do not fill ranks evenly, and little is there to
level them with. For a time T all placements of the longest sequences are tried, on any ranks of a node at the least
price that an option of so many has there, or on any ranks of several at the least of these; the rest is sand. Where
none keeps every rank within T, no plan does (:mod:`zellige.plan.any_sets_kernel`). T is halved between the bound that
is known and the plan.

For the coalesced engine a plan has some number of ring rounds: as in B3 with calls
(:func:`zellige.plan.bounds.bound_with_calls`), the least over these numbers counts, each with its calls.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from zellige.plan.any_sets_kernel import NEXT_TARGET, REFUTED, SetPlaces, explore
from zellige.plan.bounds import least_time_of
from zellige.plan.compiled import LARGEST, compiled, is_compiled
from zellige.plan.layout import Ints, zeros
from zellige.problem import Kind, Problem
from zellige.spreads import Spread, WorkFront

ANCHORS = 10
"""The longest sequences, which are placed; the rest is sand."""

MOST_STATES = 300
"""States that are visited for one target; most targets that can be refuted take less."""

STEPS = 4
"""The bound is known to 2**-4 of what the plan exceeds the known one by."""

MOST_KINDS = 2
"""Kinds of plans, by their ring rounds, that are searched."""

NEARLY = 8
"""The first target is 2**-8 (0.4 %) below the plan."""

MOST_RANKS = 64
"""Beyond, placements are too many for the limit of states, and sequences short against the step."""


def any_sets_bound(problem: Problem, known: int, reached: int) -> int:
    """The bound in ns, between ``known``, which is one, and ``reached``, a plan's makespan.

    It holds for plans whose sequences each fit into a rank's memory alone, which all do that fit. What holds for a kind
    of plans holds for those of fewer ring rounds: their options are among its own. So the widest kind is searched
    first, then the one that keeps the bound down.
    """
    cluster = problem.cluster
    if cluster.num_ranks > MOST_RANKS or cluster.num_ranks * reached >= LARGEST:
        return known
    kinds = [kind for kind in problem.kinds if all(kind.spreads[name] for name in problem.numbers)]
    calls = [
        problem.shared_calls_ns(cluster.num_ranks, cluster.num_nodes, kind.fewest) if kind.fewest else 0
        for kind in kinds
    ]
    lows = [max(least_time_of(problem, kind.fronts), known - paid) for kind, paid in zip(kinds, calls, strict=True)]
    place, searched = len(kinds) - 1, set[int]()
    while place not in searched and len(searched) < MOST_KINDS and lows[place] + calls[place] < reached:
        searched.add(place)
        paid = min(calls[: place + 1]) if not searched - {place} else calls[place]
        least = _halved(problem, kinds[place], lows[place], reached - paid)
        lows[: place + 1] = [max(low, least) for low in lows[: place + 1]]
        place = min(range(len(kinds)), key=lambda each: lows[each] + calls[each])
    reaches = [low + paid for low, paid in zip(lows, calls, strict=True)]
    return max(known, min([reached, *reaches]))


def _halved(problem: Problem, kind: Kind, low: int, stop: int) -> int:
    """The bound of a kind of plans, between ``low``, which is one, and ``stop``.

    The first target is what would make a plan near; then the rest is halved.
    """
    spreads, fronts = kind.spreads, kind.fronts
    anchors = _longest(problem.numbers, fronts)
    search = SetSearch(problem.cluster.num_nodes, problem.cluster.ranks_per_node, [spreads[name] for name in anchors])
    sand = dict(problem.numbers)
    for name in anchors:
        sand[name] -= 1
    times = sorted({time for name in sand for time in (*fronts[name].times, *(each.time for each in spreads[name]))})
    most, close = stop, max(1, (stop - low) >> STEPS)
    middle = max((low + stop) // 2, stop - (stop >> NEARLY))
    while most - low > close:
        work = sum([count * _least_work(fronts[name], middle) for name, count in sand.items()])
        verdict, beyond = search.run(middle, work, [_least_work(fronts[name], middle) for name in anchors])
        if verdict == REFUTED:
            place = bisect_right(times, middle)
            low = min([beyond, *times[place : place + 1]])
        else:
            most = middle
        middle = (low + most) // 2
    return min(low, stop)


def _longest(numbers: Mapping[str, int], fronts: Mapping[str, WorkFront]) -> list[str]:
    """The buckets of the sequences with the most work, longest first."""
    found: list[str] = []
    for name in sorted(numbers, key=lambda name: (-fronts[name].works[-1], name)):
        found += [name] * min(numbers[name], ANCHORS - len(found))
    return found


def _least_work(front: WorkFront, limit: int) -> int:
    """The least work of an option within a time; there must be one."""
    return front.works[bisect_right(front.times, limit) - 1]


@dataclass
class Certificate:
    """A bound on the step of any plan of a batch, in ns, and its name; searched for once where a plan is not near."""

    problem: Problem
    bound: int
    name: str
    searched: bool = False

    def search(self, reached: int) -> None:
        """Raise the bound towards a plan's makespan, once."""
        if self.searched:
            return
        self.searched = True
        found = any_sets_bound(self.problem, self.bound, reached)
        if found > self.bound:
            self.bound, self.name = found, "B6 any rank sets"

    def is_near(self, makespan: int, power: int) -> bool:
        """Whether a makespan is within 2**-``power`` of the bound."""
        return makespan <= self.bound + (self.bound >> power)


class SetSearch:
    """Placements of some anchors on any rank sets, each by its spreads."""

    def __init__(self, num_nodes: int, per_node: int, spreads: Sequence[tuple[Spread, ...]]) -> None:
        firsts: dict[int, int] = {}
        flat: list[Spread] = []
        for each in spreads:
            if id(each) not in firsts:
                firsts[id(each)] = len(flat)
                flat += each
        self.places, size = _places(num_nodes, per_node, len(spreads), len(flat))
        given = [firsts[id(each)] for each in spreads]
        given += [firsts[id(each)] + len(each) for each in spreads]
        given += [each.work for each in flat]
        given += [each.time for each in flat]
        given += [each.degree for each in flat]
        given += [int(each.wide) for each in flat]
        self.array: Ints = zeros(size) if is_compiled() else [0] * size
        self.array[: len(given)] = given

    def run(self, target: int, sand: int, least: Sequence[int]) -> tuple[int, int]:
        """What is known of a target, and up to which one that holds; ``least`` work of the anchors, ``sand`` of the
        rest."""
        rest = [*accumulate(reversed(least), initial=0)][::-1]
        places = self.places
        self.array[places.rest : places.rest + len(rest)] = rest
        search = compiled("zellige.plan.any_sets_kernel", "explore") if is_compiled() else explore
        verdict = search(target, MOST_STATES, sand, self.array, places)
        return int(verdict), int(self.array[places.numbers + NEXT_TARGET])


@lru_cache(maxsize=1024)
def _places(num_nodes: int, per_node: int, depths: int, rungs: int) -> tuple[SetPlaces, int]:
    """Where the figures of a search with so many anchors and rungs stand, what is given first, and how many there
    are."""
    ranks, table_size = num_nodes * per_node, 1 << (2 * MOST_STATES).bit_length()
    sizes = {"rung_first": depths, "rung_last": depths}
    sizes |= dict.fromkeys(("rung_work", "rung_time", "rung_degree", "rung_wide"), rungs)
    sizes |= dict.fromkeys(("path_rung", "path_node", "path_count"), depths)
    sizes |= dict.fromkeys(("path_work", "rest"), depths + 1)
    sizes |= {"path_load": (depths + 1) * ranks, "numbers": 3}
    sizes |= dict.fromkeys(("class_load", "class_node", "class_ranks", "class_taken"), depths * ranks)
    sizes |= {"table": table_size, "rows": (MOST_STATES + 1) * (ranks + 1)}
    starts, size = {}, 0
    for name, count in sizes.items():
        starts[name] = size
        size += count
    places = SetPlaces(**starts, num_anchors=depths, num_nodes=num_nodes, per_node=per_node, table_size=table_size)
    return places, size
