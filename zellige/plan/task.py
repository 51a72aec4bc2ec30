"""What is drafted: the task, its draft, and which sequences are placed by search, as sand, or packed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from zellige.plan.blocks import Shape, shapes_of
from zellige.plan.free import front
from zellige.plan.groups import aligned_sizes
from zellige.plan.packing import Filler, Ranks, Split
from zellige.plan.refine import Book
from zellige.plan.search import PER_DENSITY, Anchor, Budget, Sand, credits_of
from zellige.plan.search_kernel import NEVER
from zellige.problem import Problem, Rung

ONE_POD = 64
"""Up to this many ranks are searched as one; clusters beyond are cut into pods."""

MAX_DENSITIES = 5

MAX_ANCHORS = 40
"""Anchors a pod's worth of ranks beyond which no filler becomes one."""

BLOCKS = "search over aligned blocks"
FREE = "search over rank sets of any shape"


@dataclass
class Draft:
    """Where everything goes: anchors and split fillers by (bucket, rung, ranks), whole sequences by count and rank.

    ``ranks`` are the loads, where they are known, and ``expected`` is the step with its waits once it was asked for.
    """

    split: list[Split] = field(default_factory=list)
    whole: dict[str, list[int]] = field(default_factory=dict)
    longest: int = 0
    target: int = 0
    loose: bool = True
    origin: str = BLOCKS
    lower: int = 0
    ranks: Ranks | None = None
    expected: int | None = field(default=None, init=False)

    @cached_property
    def rounds(self) -> int:
        """Ring rounds; 0 where nothing is split. For drafts that are complete."""
        return max((way.rung.option.config.k for way in self.split if way.rung.degree > 1), default=0)


class Floors(NamedTuple):
    """Least degrees of anchors: of those that take more than a fifth of the bound whole, and of the others; and, where
    it isn't 0, of those that are only some of their bucket or take less than a twentieth."""

    longer: int
    shorter: int
    rest: int = 0


Trials = Sequence[tuple[dict[str, int], Floors]]
"""Attempts, one after another: how many sequences of each bucket are anchors, and their least degrees."""


@dataclass(frozen=True, eq=False)
class Task:
    """What is drafted: rungs and number of sequences by bucket, the time that no plan is below, and block shapes."""

    problem: Problem
    rungs: dict[str, tuple[Rung, ...]]
    numbers: dict[str, int]
    start: int
    shapes: frozenset[Shape]
    budget: Budget

    @cached_property
    def whole(self) -> dict[str, Rung]:
        """The rung that does not split, of the buckets that fit so, the longest first."""
        found = [(name, rung) for name in self.numbers if (rung := whole_rung(self.rungs[name])) is not None]
        return dict(sorted(found, key=lambda each: (-each[1].time, each[0])))

    def front(self, name: str, *, rounds: int = NEVER, floor: int = 1) -> tuple[Rung, ...]:
        """The :func:`zellige.plan.free.front` of a bucket; equal ones are one object."""
        key = (name, rounds, floor)
        if key not in self._fronts:
            self._fronts[key] = front(self.rungs[name], rounds=rounds, floor=floor)
        return self._fronts[key]

    @cached_property
    def _fronts(self) -> dict[tuple[str, int, int], tuple[Rung, ...]]:
        return {}

    def book(self, rounds: int) -> Book:
        """The ways that the local search may run sequences with so many ring rounds."""
        if rounds not in self._books:
            ways = {name: self.front(name, rounds=rounds) for name in self.numbers}
            self._books[rounds] = Book(self.whole, ways, self.problem.cluster.ranks_per_node)
        return self._books[rounds]

    @cached_property
    def _books(self) -> dict[int, Book]:
        return {}


def make_task(
    problem: Problem, rungs: dict[str, tuple[Rung, ...]], start: int, shapes: frozenset[Shape], budget: Budget
) -> Task:
    """The task of all sequences under the rungs of some shapes."""
    numbers = problem.numbers
    usable = {name: tuple([rung for rung in rungs[name] if rung[2:4] in shapes]) for name in numbers}
    return Task(problem, usable, numbers, start, shapes, budget)


def block_choices(problem: Problem, rungs: dict[str, tuple[Rung, ...]], start: int) -> list[frozenset[Shape]]:
    """Shapes to search over, one choice after another: powers of two, whole nodes, and what is the cheapest way of a
    bucket to stay within ``start``; powers of two and whole nodes alone, most of whose blocks nest; also three times
    powers of two.

    Only the coalesced engine needs no nesting: the others would wait where rank sets overlap otherwise (the no-wait
    theorem), so they get powers of two and whole nodes wherever these allow a plan.
    """
    cluster = problem.cluster
    powers = {2**power for power in range(cluster.num_ranks.bit_length())}
    powers |= {size for size in aligned_sizes(cluster) if size % cluster.ranks_per_node == 0}
    cheapest = {next((rung.degree for rung in rungs[name] if rung.time <= start), 1) for name in problem.numbers}
    threes = {3 * power for power in powers if 3 * power <= cluster.num_ranks}
    degrees = [powers | cheapest, powers, powers | cheapest | threes]
    if problem.engine != "coalesced":
        degrees = [powers, powers | cheapest]
    choices = [shapes_of(cluster, cluster.num_nodes, frozenset(each)) for each in degrees]
    possible = [shapes for shapes in dict.fromkeys(choices) if _allows_all(problem, rungs, shapes)]
    return possible[:1] if cluster.num_ranks > ONE_POD or problem.engine != "coalesced" else possible


def _allows_all(problem: Problem, rungs: dict[str, tuple[Rung, ...]], shapes: frozenset[Shape]) -> bool:
    """Whether every bucket has a rung of one of the shapes."""
    return all(any((rung.degree, rung.nodes) in shapes for rung in rungs[name]) for name in problem.numbers)


def fillers_of(task: Task, anchors: dict[str, int]) -> list[Filler]:
    """Everything that fits whole, longest first; what is not an anchor waits to be packed."""
    return [
        Filler(name, whole, task.rungs[name], task.numbers[name] - anchors.get(name, 0))
        for name, whole in task.whole.items()
    ]


def whole_rung(rungs: Iterable[Rung]) -> Rung | None:
    """The rung that does not split, if it fits."""
    for rung in rungs:
        if rung.degree == 1:
            return rung
    return None


def sand_of(task: Task, anchors: dict[str, int], densities: tuple[int, ...]) -> Sand:
    """What is not an anchor, as divisible work."""
    work, credits = 0, [0] * len(densities)
    for name, number in task.numbers.items():
        left = number - anchors.get(name, 0)
        if left:
            work += left * task.rungs[name][0].work
            if densities:
                each = credits_of(task.rungs[name], densities)
                credits = [total + left * value for total, value in zip(credits, each, strict=True)]
    return Sand(work, tuple(credits))


def densities_of(task: Task, share: int = 20) -> tuple[int, ...]:
    """The densities of the capacity test: those of sequences that take less than a part of the bound whole (a
    twentieth), but at most ``MAX_DENSITIES`` of them."""
    found = set()
    for whole in task.whole.values():
        if share * whole.time <= task.start:
            found.add(whole.kept * PER_DENSITY // whole.time)
    ordered = sorted(found)
    last = len(ordered) - 1
    if last < MAX_DENSITIES:
        return tuple(ordered)
    return tuple(ordered[last * index // (MAX_DENSITIES - 1)] for index in range(MAX_DENSITIES))


def anchors_of(task: Task, share: int) -> dict[str, int]:
    """How many sequences of each bucket are anchors: all that fit on no rank whole or take longer than a part of the
    bound, the longest first, up to a limit."""
    most = MAX_ANCHORS * max(1, task.problem.cluster.num_ranks // 32)
    anchors = {}
    ordered = []
    for name, number in task.numbers.items():
        whole = task.whole.get(name)
        if whole is None or whole.time > task.start:
            anchors[name] = number
            most -= number
        elif whole.time * share > task.start:
            ordered.append((-whole.time, name, number))
    for _, name, number in sorted(ordered):
        taken = min(number, most)
        if taken > 0:
            anchors[name] = taken
            most -= taken
    return anchors


def members_of(task: Task, anchors: dict[str, int]) -> list[Anchor]:
    """The anchors one by one, by decreasing work."""
    ordered = sorted(anchors, key=lambda name: (-task.rungs[name][0].work, name))
    return [anchor for name in ordered for anchor in [Anchor(name, task.rungs[name])] * anchors[name]]
