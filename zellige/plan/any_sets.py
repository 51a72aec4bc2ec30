"""B6: a bound on any rank sets that sees how the longest sequences fit beside each other, all others being divisible.

B3 divides everything. Where few sequences hold most of the work, they do not fill ranks evenly, and little is there to
level them with. For a time T all placements of the longest sequences are tried, on any ranks of a node at the least
price that an option of so many has there, or on any ranks of several at the least of these; the rest is sand. Where
none keeps every rank within T, no plan does (:mod:`zellige.plan.any_sets_kernel`). T rises from the bound that is known
towards the plan: the lower it is the fewer states refute it, and where it can't be refuted all are used up.

For the coalesced engine a plan has some number of ring rounds: as in B3 with calls
(:func:`zellige.plan.bounds.bound_with_calls`), the least over these numbers counts, each with its calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, chain
from typing import NamedTuple

from zellige.plan.any_sets_kernel import raise_bound
from zellige.plan.bounds import kind_time
from zellige.plan.chain import calls_ns
from zellige.plan.compiled import LARGEST, compiled, is_compiled
from zellige.plan.layout import Ints, zeros
from zellige.plan.set_places import KEPT_TARGET, SetPlaces
from zellige.problem import Problem
from zellige.spreads import Kind, Spread, WorkFront

ANCHORS = 10
"""The longest sequences, which are placed; the rest is sand."""

MOST_STATES, ALL_STATES = 1000, 2500
"""States that are visited for one target, and for all targets of a kind; most that can be refuted take some dozens."""

STEPS = 6
"""The bound is known to 2**-6 of what the plan exceeds the known one by, where there are states enough for that."""

MOST_KINDS = 2
"""Kinds of plans, by their ring rounds, that are searched."""

MOST_RANKS = 64
"""Beyond, placements are too many for the limit of states, and sequences short against the step."""


def any_sets_bound(problem: Problem, known: int, reached: int) -> tuple[int, list[list[Laid]]]:
    """The bound in ns, between ``known``, which is one, and ``reached``, a plan's makespan; and the placements of the
    longest sequences under the lowest times that were not refuted.

    It holds for plans whose sequences each fit into a rank's memory alone, which all do that fit. What holds for a kind
    of plans holds for those of fewer ring rounds: their options are among its own. So of the kinds that may be below
    ``reached`` the widest is searched first, then the one that keeps the bound down.
    """
    cluster = problem.cluster
    if cluster.num_ranks > MOST_RANKS or cluster.num_ranks * reached >= LARGEST:
        return known, []
    kinds = [kind for kind in problem.kinds if all(kind.spreads[name] for name in problem.numbers)]
    calls = [calls_ns(problem, kind.fewest) for kind in kinds]
    lows = [max(kind_time(problem, kind), known - paid) for kind, paid in zip(kinds, calls, strict=True)]
    below = [place for place in range(len(kinds)) if lows[place] + calls[place] < reached]
    if not below:
        return max(known, reached), []
    place, searched, laid = below[-1], set[int](), list[list[Laid]]()
    while place not in searched and len(searched) < MOST_KINDS and lows[place] + calls[place] < reached:
        searched.add(place)
        paid = min(calls[: place + 1]) if not searched - {place} else calls[place]
        least = _raised(problem, kinds[place], lows[place], reached - paid, laid)
        lows[: place + 1] = [max(low, least) for low in lows[: place + 1]]
        place = min(range(len(kinds)), key=lambda each: lows[each] + calls[each])
    reaches = [low + paid for low, paid in zip(lows, calls, strict=True)]
    return max(known, min([reached, *reaches])), laid


def _raised(problem: Problem, kind: Kind, low: int, stop: int, laid: list[list[Laid]]) -> int:
    """The bound of a kind of plans, between ``low``, which is one, and ``stop``; adds a placement that is new."""
    names, cluster = list(problem.numbers), problem.cluster
    anchors = _longest(problem.numbers, kind.fronts)
    sand = Sand(
        [problem.numbers[name] - anchors.count(name) for name in names],
        [kind.fronts[name] for name in names],
        [names.index(name) for name in anchors],
        list({each.time for name in names for each in kind.spreads[name]}),
    )
    spreads = [kind.spreads[name] for name in anchors]
    search = SetSearch(cluster.num_nodes, cluster.ranks_per_node, spreads, sand)
    bound = search.raise_bound(low, stop)
    placed = [Laid(name, *each) for name, each in zip(anchors, search.laid(), strict=False)]
    if placed and placed not in laid:
        laid.append(placed)
    return bound


def _longest(numbers: Mapping[str, int], fronts: Mapping[str, WorkFront]) -> list[str]:
    """The buckets of the sequences with the most work, longest first."""
    found: list[str] = []
    for name in sorted(numbers, key=lambda name: (-fronts[name].works[-1], name)):
        found += [name] * min(numbers[name], ANCHORS - len(found))
    return found


@dataclass
class Certificate:
    """A bound on the step of any plan of a batch, in ns, and its name; searched for once where a plan is not near."""

    problem: Problem
    bound: int
    name: str
    searched: bool = False
    laid: list[list[Laid]] = field(default_factory=list)

    def search(self, reached: int) -> None:
        """Raise the bound towards a plan's makespan, once."""
        if self.searched:
            return
        self.searched = True
        found, self.laid = any_sets_bound(self.problem, self.bound, reached)
        if found > self.bound:
            self.bound, self.name = found, "B6 any rank sets"

    def take_laid(self) -> list[list[Laid]]:
        """The placements that the search has met and that nobody took yet."""
        laid, self.laid = self.laid, []
        return laid

    def is_near(self, makespan: int, power: int) -> bool:
        """Whether a makespan is within 2**-``power`` of the bound."""
        return makespan <= self.bound + (self.bound >> power)


class Laid(NamedTuple):
    """A sequence of a bucket as a search laid it: how, and on which ranks."""

    bucket: str
    spread: Spread
    ranks: tuple[int, ...]


class Sand(NamedTuple):
    """What is no anchor: by bucket how many sequences, and their least work within a time; the bucket of each anchor;
    and the times at which an option more is within a target."""

    numbers: Sequence[int]
    fronts: Sequence[WorkFront]
    buckets: Sequence[int]
    times: Sequence[int]


class SetSearch:
    """Placements of some anchors on any rank sets, each by its spreads, beside sand."""

    def __init__(self, num_nodes: int, per_node: int, spreads: Sequence[tuple[Spread, ...]], sand: Sand) -> None:
        firsts: dict[int, int] = {}
        flat: list[Spread] = []
        for each in spreads:
            if id(each) not in firsts:
                firsts[id(each)] = len(flat)
                flat += each
        last = list(accumulate([len(front.times) for front in sand.fronts]))
        sizes = (len(spreads), len(flat), len(last), last[-1] if last else 0, len(sand.times))
        self.places, size = _places(num_nodes, per_node, sizes)
        given = [*sand.buckets, *[firsts[id(each)] for each in spreads]]
        given += [firsts[id(each)] + len(each) for each in spreads]
        given += [each.work for each in flat]
        given += [each.time for each in flat]
        given += [each.degree for each in flat]
        given += [int(each.wide) for each in flat]
        given += [*sand.numbers, *[0, *last][: len(last)], *last]
        given += chain.from_iterable([front.times for front in sand.fronts])
        given += chain.from_iterable([front.works for front in sand.fronts])
        given += sand.times
        self.array: Ints = zeros(size) if is_compiled() else [0] * size
        self.array[: len(given)] = given
        self.flat = flat

    def laid(self) -> list[tuple[Spread, tuple[int, ...]]]:
        """How the anchors lie, and on which ranks, in the last placement that :meth:`raise_bound` found; none where
        there is none."""
        at, size = self.places, self.places.num_nodes * self.places.per_node
        if not self.array[at.numbers + KEPT_TARGET]:
            return []
        rungs = [int(place) for place in self.array[at.kept_rung : at.kept_rung + at.num_anchors]]
        flags = [bool(flag) for flag in self.array[at.kept_taken : at.kept_taken + at.num_anchors * size]]
        placed, found = [(0, rank) for rank in range(size)], []
        for depth, rung in enumerate(rungs):
            spread, taken = self.flat[rung], flags[depth * size : (depth + 1) * size]
            found.append((spread, tuple(sorted([rank for (_, rank), flag in zip(placed, taken, strict=True) if flag]))))
            placed = [(load + flag * spread.time, rank) for (load, rank), flag in zip(placed, taken, strict=True)]
            nodes = [sorted(placed[first : first + at.per_node], key=_load) for first in range(0, size, at.per_node)]
            nodes.sort(key=_loads)
            placed = [each for node in nodes for each in node]
        return found

    def raise_bound(self, low: int, stop: int) -> int:
        """The bound between ``low``, which is one, and ``stop`` (:func:`zellige.plan.any_sets_kernel.raise_bound`)."""
        run = compiled("zellige.plan.any_sets_kernel", "raise_bound") if is_compiled() else raise_bound
        return int(run(low, stop, STEPS, MOST_STATES, ALL_STATES, self.array, self.places))


def _load(placed: tuple[int, int]) -> int:
    return placed[0]


def _loads(node: list[tuple[int, int]]) -> list[int]:
    return [load for load, _ in node]


@lru_cache(maxsize=1024)
def _places(num_nodes: int, per_node: int, given: tuple[int, int, int, int, int]) -> tuple[SetPlaces, int]:
    """Where the figures of a search stand, what is given first, and how many there are; of so many anchors, rungs,
    buckets, options on their fronts, and times."""
    depths, rungs, buckets, options, times = given
    ranks, table_size = num_nodes * per_node, 1 << (2 * MOST_STATES).bit_length()
    sizes = {"bucket": depths, "rung_first": depths, "rung_last": depths}
    sizes |= dict.fromkeys(("rung_work", "rung_time", "rung_degree", "rung_wide"), rungs)
    sizes |= dict.fromkeys(("sand", "front_first", "front_last"), buckets)
    sizes |= {"front_time": options, "front_work": options, "times": times, "least": buckets}
    sizes |= dict.fromkeys(("path_rung", "path_node", "path_count"), depths)
    sizes |= dict.fromkeys(("path_work", "rest"), depths + 1)
    sizes |= {"path_load": (depths + 1) * ranks, "kept_rung": depths, "kept_taken": depths * ranks}
    sizes |= {"raised": ranks, "numbers": 4}
    sizes |= dict.fromkeys(("class_load", "class_node", "class_ranks", "class_taken"), depths * ranks)
    sizes |= dict.fromkeys(("class_first", "class_last", "class_alike", "class_beyond"), depths * ranks)
    sizes |= {"table": table_size, "rows": (MOST_STATES + 1) * (ranks + 1)}
    starts, size = {}, 0
    for name, count in sizes.items():
        starts[name] = size
        size += count
    places = SetPlaces(
        **starts, num_anchors=depths, num_buckets=buckets, num_times=times, num_nodes=num_nodes, per_node=per_node,
        table_size=table_size,
    )  # fmt: skip
    return places, size
