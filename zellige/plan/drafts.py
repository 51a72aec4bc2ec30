"""From a choice of anchors to a draft of a plan: search, fill, improve."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from zellige.plan.blocks import Pod, Shape, make_pod, shapes_of
from zellige.plan.improve import PARTNERS, improve
from zellige.plan.packing import Filler, Ranks, Split, pack, split_in
from zellige.plan.search import PER_DENSITY, Anchor, Budget, Found, Order, Sand, Search, credit, place
from zellige.problem import Problem, Rung
from zellige.units import ceil_div

ONE_POD = 32
"""Up to this many ranks are searched as one; clusters beyond are cut into pods."""

RUN_NODES = 30
"""Nodes of one target's search, and as many again for each anchor's two."""

POD_NODES = 60
"""Nodes of the search of one pod among several."""

WORST_PODS, MORE_NODES = 4, 400
"""The slowest pods are searched again with more nodes, in the other order."""

CLOSE = 11
"""A makespan within 2**-11 (0.05 %) of the bound is not improved further."""

MAX_CHANGES = 64

MAX_DENSITIES = 5

SCARCE = 8
"""Where fillers are less than this part of all time (an eighth), anchors fill ranks one after another, not evenly."""


@dataclass
class Draft:
    """Where everything goes: anchors and split fillers by (bucket, rung, ranks), whole sequences by count and rank."""

    split: list[Split] = field(default_factory=list)
    whole: dict[str, list[int]] = field(default_factory=dict)
    longest: int = 0
    target: int = 0
    loose: bool = True
    origin: str = "search over aligned blocks"
    lower: int = 0

    @property
    def rounds(self) -> int:
        """Ring rounds; 0 where nothing is split."""
        return max((way.rung.option.config.k for way in self.split if way.rung.degree > 1), default=0)


class Task(NamedTuple):
    """What is drafted: rungs and number of sequences by bucket, the time that no plan is below, and block shapes."""

    problem: Problem
    rungs: dict[str, tuple[Rung, ...]]
    numbers: dict[str, int]
    start: int
    shapes: frozenset[Shape]
    budget: Budget


def make_task(
    problem: Problem, rungs: dict[str, tuple[Rung, ...]], start: int, shapes: frozenset[Shape], budget: Budget
) -> Task:
    """The task of all sequences under the rungs of some shapes."""
    numbers = {bucket.name: count for bucket, count in problem.counts.items()}
    usable = {name: tuple(rung for rung in rungs[name] if (rung.degree, rung.nodes) in shapes) for name in numbers}
    return Task(problem, usable, numbers, start, shapes, budget)


def block_choices(problem: Problem, rungs: dict[str, tuple[Rung, ...]], start: int) -> list[frozenset[Shape]]:
    """Shapes to search over, one choice after another: powers of two and what is the cheapest way of a bucket to stay
    within ``start``; powers of two alone, whose blocks nest; also three times powers of two.

    Only the coalesced engine needs no nesting: the others would wait where rank sets overlap otherwise (the no-wait
    theorem), so they get powers of two wherever these allow a plan.
    """
    cluster = problem.cluster
    powers = {2**power for power in range(cluster.num_ranks.bit_length())}
    cheapest = {
        next((rung.degree for rung in rungs[bucket.name] if rung.time <= start), 1) for bucket in problem.counts
    }
    threes = {3 * power for power in powers if 3 * power <= cluster.num_ranks}
    degrees = [powers | cheapest, powers, powers | cheapest | threes]
    if problem.engine != "coalesced":
        degrees = [powers, powers | cheapest]
    choices = [shapes_of(cluster, cluster.num_nodes, frozenset(each)) for each in degrees]
    possible = [shapes for shapes in dict.fromkeys(choices) if _allows_all(problem, rungs, shapes)]
    return possible[:1] if cluster.num_ranks > ONE_POD or problem.engine != "coalesced" else possible


def _allows_all(problem: Problem, rungs: dict[str, tuple[Rung, ...]], shapes: frozenset[Shape]) -> bool:
    """Whether every bucket has a rung of one of the shapes."""
    return all(any((rung.degree, rung.nodes) in shapes for rung in rungs[bucket.name]) for bucket in problem.counts)


def draft(task: Task, anchors: dict[str, int], *, binds: bool) -> Draft | None:
    """A draft with the given number of anchors of each bucket; None where memory leaves no place for something."""
    pods = make_pods(task, anchors)
    densities = densities_of(task) if binds else None
    sand = _sand(task, anchors, densities or ())
    scarce = SCARCE * sand.work < task.start * task.problem.cluster.num_ranks
    placed = _place_anchors(task, anchors, pods, sand, densities, tight=scarce and not binds)
    if placed is None:
        return None
    lower = max(found.lower for _, found in placed) if len(placed) == 1 else task.start
    result = _fill(task, anchors, pods, placed, sand)
    if len(placed) == 1 and binds:
        first, found = placed[0]
        for chosen, target in found.others:
            if result is not None and result.longest <= target:
                break
            result = faster(
                result, _fill(task, anchors, pods, [(first, found._replace(chosen=chosen, target=target))], sand)
            )
    return None if result is None else dataclasses.replace(result, lower=lower)


def faster(one: Draft | None, other: Draft | None) -> Draft | None:
    """The draft whose slowest rank is faster."""
    if one is None or other is None:
        return one or other
    return other if other.longest < one.longest else one


def _fill(
    task: Task,
    anchors: dict[str, int],
    pods: Sequence[tuple[int, Pod]],
    placed: Sequence[tuple[int, Found]],
    sand: Sand,
) -> Draft | None:
    """Pack what is no anchor around the anchors and improve; None where something has no room."""
    num_ranks, room = task.problem.cluster.num_ranks, task.problem.memory.room_bytes
    ranks, result, kinds = Ranks(num_ranks), Draft(), _fillers(task, anchors)
    counts = {filler.bucket: [0] * num_ranks for filler in kinds}
    for bucket, rung, where in _placements(task, anchors, placed):
        ranks.add(where, rung)
        if rung.degree == 1:
            counts[bucket][where[0]] += 1
        else:
            result.split.append(Split(bucket, rung, where))
    level = ceil_div(sum(ranks.time) + sand.work, num_ranks)
    result.target = max(level, *(found.target for _, found in placed))
    packed, left, result.loose = pack(ranks, kinds, room, result.target)
    for filler, taken, over in zip(kinds, packed, left, strict=True):
        counts[filler.bucket] = [a + b for a, b in zip(counts[filler.bucket], taken, strict=True)]
        for _ in range(over):
            split = split_in(ranks, filler, pods, room, result.target)
            if split is None:
                return None
            result.split.append(split)
    if not ranks.fit(room):
        return None
    goal = result.target - (result.target >> CLOSE)
    partners = PARTNERS if result.loose or num_ranks > ONE_POD else num_ranks
    improve(ranks, [filler.whole for filler in kinds], list(counts.values()), room, goal, MAX_CHANGES, partners)
    result.whole, result.longest = counts, max(ranks.time)
    return result


def _fillers(task: Task, anchors: dict[str, int]) -> list[Filler]:
    """Everything that fits whole, longest first; what is not an anchor waits to be packed."""
    fillers = [
        Filler(name, whole, tuple(r for r in task.rungs[name] if r.degree > 1), number - anchors.get(name, 0))
        for name, number in task.numbers.items()
        if (whole := whole_rung(task.rungs[name])) is not None
    ]
    return sorted(fillers, key=lambda filler: (-filler.whole.time, filler.bucket))


def whole_rung(rungs: Iterable[Rung]) -> Rung | None:
    """The rung that does not split, if it fits."""
    return next((rung for rung in rungs if rung.degree == 1), None)


def _sand(task: Task, anchors: dict[str, int], densities: tuple[int, ...]) -> Sand:
    """What is not an anchor, as divisible work."""
    work, credits = 0, [0] * len(densities)
    for name, number in task.numbers.items():
        left = number - anchors.get(name, 0)
        if left:
            work += left * task.rungs[name][0].work
            each = [credit(task.rungs[name], density) for density in densities]
            credits = [total + left * value for total, value in zip(credits, each, strict=True)]
    return Sand(work, tuple(credits))


def densities_of(task: Task) -> tuple[int, ...]:
    """The densities of the capacity test: those of sequences that take less than a twentieth of the bound whole, but
    at most ``MAX_DENSITIES`` of them."""
    found = set()
    for name in task.numbers:
        whole = whole_rung(task.rungs[name])
        if whole is not None and 20 * whole.time <= task.start:
            found.add(whole.kept * PER_DENSITY // whole.time)
    ordered = sorted(found)
    last = len(ordered) - 1
    if last < MAX_DENSITIES:
        return tuple(ordered)
    return tuple(ordered[last * index // (MAX_DENSITIES - 1)] for index in range(MAX_DENSITIES))


def make_pods(task: Task, anchors: dict[str, int]) -> list[tuple[int, Pod]]:
    """(first rank, pod): the whole cluster where it is small, else equal pods that hold the widest anchor."""
    cluster = task.problem.cluster
    per_pod = cluster.num_nodes
    if cluster.num_ranks > ONE_POD:
        widest = max((_least_degree(task, name) for name in anchors), default=1)
        per_pod = 1
        while per_pod < cluster.num_nodes and per_pod * cluster.ranks_per_node < max(ONE_POD, widest):
            per_pod *= 2
    pods = []
    for first in range(0, cluster.num_nodes, per_pod):
        nodes = min(per_pod, cluster.num_nodes - first)
        shapes = frozenset(shape for shape in task.shapes if shape[1] <= nodes)
        pod = make_pod(nodes, cluster.ranks_per_node, shapes)
        pods.append((first * cluster.ranks_per_node, pod))
    return pods


def _least_degree(task: Task, name: str) -> int:
    rungs = task.rungs[name]
    return next((rung.degree for rung in rungs if rung.time <= task.start), max(rung.degree for rung in rungs))


def _place_anchors(
    task: Task,
    anchors: dict[str, int],
    pods: Sequence[tuple[int, Pod]],
    sand: Sand,
    densities: tuple[int, ...] | None,
    *,
    tight: bool,
) -> list[tuple[int, Found]] | None:
    """(first rank, what was found) for each pod; None where memory allows nothing."""
    members = [Anchor(name, task.rungs[name]) for name, number in anchors.items() for _ in range(number)]
    members.sort(key=lambda anchor: (-anchor.rungs[0].work, anchor.bucket))
    shares = _deal_to_pods(task, members, pods, sand)
    known: dict[PodKey, Found | None] = {}

    def search(key: PodKey, pod: Pod, mine: Sequence[Anchor], budget: Budget, *, tight: bool) -> None:
        order = Order(tight, RUN_NODES + 2 * len(mine), budget)
        usable = [anchor._replace(rungs=_on_pod(anchor.rungs, pod, fastest=densities is None)) for anchor in mine]
        room = task.problem.memory.room_bytes
        found = place(Search(pod, usable, _part(sand, key[2]), room, order, densities), task.start)
        before = known.get(key)
        if before is None or (found is not None and found.target < before.target):
            known[key] = found

    keys = [
        (pod.num_nodes, tuple(anchor.bucket for anchor in mine), work)
        for (_, pod), (mine, work) in zip(pods, shares, strict=True)
    ]
    todo = {key: (pod, mine) for key, (_, pod), (mine, _) in zip(keys, pods, shares, strict=True)}
    for key, (pod, mine) in todo.items():
        search(key, pod, mine, task.budget if len(pods) == 1 else Budget(POD_NODES), tight=tight)
    if len(pods) > 1:
        for key in sorted(todo, key=lambda key: -(found.target if (found := known[key]) else 0))[:WORST_PODS]:
            search(key, *todo[key], Budget(MORE_NODES), tight=not tight)
    placed = [(first, known[key]) for (first, _), key in zip(pods, keys, strict=True)]
    complete = [(first, found) for first, found in placed if found is not None]
    return complete if len(complete) == len(placed) else None


PodKey = tuple[int, tuple[str, ...], int]
"""What makes pods equal: nodes, the buckets of the anchors, and the work of the sand."""


def _part(sand: Sand, work: int) -> Sand:
    """A pod's part of the sand, of the whole's composition."""
    if work == sand.work:
        return sand
    return Sand(work, tuple(value * work // max(1, sand.work) for value in sand.credits))


def _on_pod(rungs: tuple[Rung, ...], pod: Pod, *, fastest: bool) -> tuple[Rung, ...]:
    """The rungs that a pod has blocks for; of each degree the fastest alone, where memory does not bind."""
    usable = [rung for rung in rungs if (rung.degree, rung.nodes) in pod.blocks]
    if not fastest:
        return tuple(usable)
    first: dict[int, Rung] = {}
    for rung in usable:
        first.setdefault(rung.degree, rung)
    return tuple(first.values())


def _deal_to_pods(
    task: Task, members: Sequence[Anchor], pods: Sequence[tuple[int, Pod]], sand: Sand
) -> list[tuple[list[Anchor], int]]:
    """Anchors, by decreasing work, to the pod with the least of it a rank; sand levels what is left."""
    if len(pods) == 1:
        return [(list(members), sand.work)]
    heap = [(0, index) for index in range(len(pods))]
    mine: list[list[Anchor]] = [[] for _ in pods]
    works = [0] * len(pods)
    for anchor in members:
        index = heap[0][1]
        mine[index].append(anchor)
        works[index] += next((rung.work for rung in anchor.rungs if rung.time <= task.start), anchor.rungs[-1].work)
        heapq.heapreplace(heap, (works[index] // pods[index][1].num_ranks, index))
    num_ranks = task.problem.cluster.num_ranks
    level = (sum(works) + sand.work) // num_ranks
    return [
        (several, max(0, level * pod.num_ranks - work))
        for several, work, (_, pod) in zip(mine, works, pods, strict=True)
    ]


def _placements(
    task: Task, anchors: dict[str, int], placed: Sequence[tuple[int, Found]]
) -> Iterable[tuple[str, Rung, tuple[int, ...]]]:
    names = {id(rung): name for name in anchors for rung in task.rungs[name]}
    for first, found in placed:
        for rung, block in found.chosen:
            yield names[id(rung)], rung, tuple(first + rank for rank in block.ranks)
