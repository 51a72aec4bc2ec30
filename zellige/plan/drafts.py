"""From a choice of anchors to a draft of a plan: search, fill, improve."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Sequence
from typing import NamedTuple

from zellige.plan.attempt_kernel import CLOSE, GOOD, MAX_CHANGES, MAX_STEPS, ROUNDS, SHORT
from zellige.plan.blocks import Pod, make_pod
from zellige.plan.free import Chosen, FreeSearch, front, place_freely
from zellige.plan.improve import improve
from zellige.plan.improve_kernel import PARTNERS
from zellige.plan.node_cover import Field, NodeCover
from zellige.plan.packing import Filler, Ranks, Split, added, as_lists, as_rows, may_pack_compiled, pack, split_in
from zellige.plan.refine import refine
from zellige.plan.search import Anchor, Budget, Found, Order, Sand, Search
from zellige.plan.search_kernel import NEVER
from zellige.plan.targets import place
from zellige.plan.task import (
    BLOCKS,
    FREE,
    ONE_POD,
    Draft,
    Floors,
    Task,
    densities_of,
    fillers_of,
    members_of,
    sand_of,
)
from zellige.problem import Rung
from zellige.units import ceil_div

RUN_NODES = 1000
"""Nodes of one target's search, and as many again for each anchor's two."""

POD_NODES = 60
"""Nodes of the search of one pod among several."""

WORST_PODS, MORE_NODES = 4, 400
"""The slowest pods are searched again with more nodes, in the other order."""

POD_FLOORS = (1, 4, 2, 8)
"""Least degrees of a pod's anchors that are tried one after another."""

UNITS = ((1, False), (2, False), (2, True))
"""Where a pod is not good, so many nodes together are filled one after another; whether by all degrees."""

SCARCE = 8
"""Where fillers are less than this part of all time (an eighth), anchors fill ranks one after another, not evenly."""


def draft(task: Task, anchors: dict[str, int], *, binds: bool, floor: int = 0) -> Draft | None:
    """A draft with the given number of anchors of each bucket; None where memory leaves no place for something.

    ``floor`` is the only least degree of anchors that pods try, and these are then not filled node by node.
    """
    pods = make_pods(task, anchors)
    densities = densities_of(task) if binds else None
    sand = sand_of(task, anchors, densities or ())
    scarce = SCARCE * sand.work < task.start * task.problem.cluster.num_ranks
    placed = _place_anchors(task, anchors, pods, sand, densities, tight=scarce and not binds, floor=floor)
    if placed is None:
        return None
    lower = placed[0].found.lower if len(placed) == 1 else task.start
    result = fill(task, anchors, pods, placed, sand)
    if len(placed) == 1 and binds:
        for chosen, target in placed[0].found.others:
            if result is not None and result.longest <= target:
                break
            other = placed[0]._replace(found=placed[0].found._replace(chosen=chosen, target=target))
            result = faster(result, fill(task, anchors, pods, [other], sand))
    freely = len(pods) > 1 and not binds and task.problem.engine == "coalesced"
    origin = FREE if freely else BLOCKS
    return None if result is None else dataclasses.replace(result, lower=lower, origin=origin)


def floored(task: Task, anchors: dict[str, int], floors: Floors) -> dict[str, tuple[Rung, ...]]:
    """The rungs of the anchors from the least degrees on, by bucket."""
    fronts = {}
    for name, number in anchors.items():
        whole, floor = task.whole.get(name), floors.longer
        if whole is not None and 5 * whole.time <= task.start:
            floor = floors.shorter
        if whole is not None and floors.rest and (number < task.numbers[name] or SHORT * whole.time <= task.start):
            floor = floors.rest
        fronts[name] = task.front(name, floor=floor)
    return fronts


def draft_freely(
    task: Task, anchors: dict[str, int], fronts: dict[str, tuple[Rung, ...]], below: int
) -> tuple[Draft | None, bool]:
    """A draft whose rank sets need not nest, with the anchors on some of their rungs, and whether it was memory that
    allowed none.

    Memory is not looked at until fillers are packed. Placements of the anchors count only under ``below``.
    """
    cluster, sand = task.problem.cluster, sand_of(task, anchors, ())
    names = tuple([anchor.bucket for anchor in members_of(task, anchors)])
    each = [fronts[name] for name in names]
    search = FreeSearch(cluster.num_nodes, cluster.ranks_per_node, each, sand.work)
    found = place_freely(search, task.start, below)
    if found is None:
        return None, False
    result = fill(task, anchors, [], [Placed(0, names, Found(*found, task.start))], sand, loose_only=True)
    if result is None:
        return None, True
    return dataclasses.replace(result, lower=task.start, origin=FREE), False


def polish(task: Task, result: Draft, *, passing: bool = False) -> Draft:
    """The draft after a local search over all of its sequences; ``passing`` as :func:`zellige.plan.refine.refine`
    says."""
    room = task.problem.memory.room_bytes
    assert result.ranks is not None
    ranks, split, book = result.ranks.copy(), list(result.split), task.book(result.rounds)
    kinds, counts = list(task.whole.values()), [result.whole[name][:] for name in task.whole]
    goal = task.start + (task.start >> CLOSE)
    table = book.table()
    if ranks.may_compile(room * len(ranks.time), goal, ranks.longest * len(ranks.time), *table.work, *table.kept):
        ranks.to_arrays()
        counts = as_rows(counts, len(ranks.time))
    for _ in range(ROUNDS):
        before = ranks.longest
        refine(ranks, split, counts, book, room, goal, MAX_STEPS, passing)
        improve(ranks, kinds, counts, room, goal, MAX_CHANGES, 2 * PARTNERS)
        if ranks.longest == before or before <= goal:
            break
    whole = dict(zip(task.whole, as_lists(counts), strict=True))
    ranks.to_lists()
    origin = result.origin if result.origin == FREE else f"{result.origin}, then local search"
    return dataclasses.replace(result, split=split, whole=whole, longest=ranks.longest, origin=origin, ranks=ranks)


def faster(one: Draft | None, other: Draft | None) -> Draft | None:
    """The draft whose slowest rank is faster."""
    if one is None or other is None:
        return one or other
    return other if other.longest < one.longest else one


def fill(
    task: Task,
    anchors: dict[str, int],
    pods: Sequence[tuple[int, Pod]],
    placed: Sequence[Placed],
    sand: Sand,
    *,
    loose_only: bool = False,
) -> Draft | None:
    """Pack what is no anchor around the anchors and improve; None where something has no room, and with ``loose_only``
    where it is not time alone that decides."""
    room, fillers = task.problem.memory.room_bytes, fillers_of(task, anchors)
    ranks, result, counts = _laid(task, placed)
    level = ceil_div(sum(ranks.time) + sand.work, len(ranks.time))
    result.target = max(level, *(found.target for _, _, found in placed))
    if may_pack_compiled(ranks, fillers, room, result.target):
        ranks.to_arrays()
        counts = as_rows(counts, len(ranks.time))
    packed, left, result.loose = pack(ranks, fillers, room, result.target)
    counts = added(counts, packed)
    if any(left):
        ranks.to_lists()
        if not _split_rest(ranks, fillers, left, pods, room, result):
            return None
        counts = as_lists(counts)
    if not ranks.fit(room) or (loose_only and not result.loose):
        return None
    goal = result.target - (result.target >> CLOSE)
    partners = PARTNERS if result.loose or len(ranks.time) > ONE_POD else len(ranks.time)
    improve(ranks, list(task.whole.values()), counts, room, goal, MAX_CHANGES, partners)
    result.whole = dict(zip(task.whole, as_lists(counts), strict=True))
    ranks.to_lists()
    result.longest, result.ranks = ranks.longest, ranks
    return result


def _laid(task: Task, placed: Sequence[Placed]) -> tuple[Ranks, Draft, list[list[int]]]:
    """The ranks with the anchors on them, a draft with those that are split, and counts of those that are whole."""
    num_ranks = task.problem.cluster.num_ranks
    ranks, result = Ranks(num_ranks), Draft()
    counts = {name: [0] * num_ranks for name in task.whole}
    for first, names, found in placed:
        for bucket, (rung, block) in zip(names, found.chosen, strict=True):
            where = tuple([first + rank for rank in block.ranks]) if first else block.ranks
            ranks.add(where, rung)
            if rung.degree == 1:
                counts[bucket][where[0]] += 1
            else:
                result.split.append(Split(bucket, rung, where))
    return ranks, result, list(counts.values())


def _split_rest(
    ranks: Ranks, fillers: Sequence[Filler], left: Sequence[int], pods: Sequence[tuple[int, Pod]], room: int, to: Draft
) -> bool:
    """Split what no rank has room for whole; False where something has no room so either."""
    for filler, over in zip(fillers, left, strict=True):
        for _ in range(over):
            split = split_in(ranks, filler, pods, room, to.target)
            if split is None:
                return False
            to.split.append(split)
    return True


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
    floor: int,
) -> list[Placed] | None:
    """What was found for each pod; None where memory allows nothing."""
    members = members_of(task, anchors)
    shares = _deal_to_pods(task, members, pods, sand)
    known: dict[PodKey, Found | None] = {}
    freely: set[PodKey] = set()
    may_overlap = len(pods) > 1 and densities is None and task.problem.engine == "coalesced"
    covers = _covers(task, anchors, sand) if may_overlap and not floor else []
    floors = (floor,) if floor else POD_FLOORS

    def search(key: PodKey, pod: Pod, mine: Sequence[Anchor], budget: Budget, *, tight: bool) -> None:
        if may_overlap:
            placed = _freely_on_pod(task, pod, mine, key[2], floors, covers)
            if placed is not None:
                known[key] = placed
                freely.add(key)
                return
        order = Order(tight, RUN_NODES + 2 * len(mine), budget)
        usable = _on_pod(mine, pod, fastest=densities is None)
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
            if key not in freely:
                search(key, *todo[key], Budget(MORE_NODES), tight=not tight)
    placed = [
        Placed(first, key[1], found)
        for (first, _), key in zip(pods, keys, strict=True)
        if (found := known[key]) is not None
    ]
    return placed if len(placed) == len(pods) else None


def _covers(task: Task, anchors: dict[str, int], sand: Sand) -> list[NodeCover]:
    """Placers of anchors node by node and by two nodes (:data:`UNITS`)."""
    cluster, target = task.problem.cluster, task.start + (task.start >> GOOD)
    kept = sum([filler.number * filler.whole.kept for filler in fillers_of(task, anchors)])
    field = Field(cluster.ranks_per_node, target, task.problem.memory.room_bytes, sand.work, kept)
    nested = {name: task.rungs[name] for name in anchors}
    every = {name: _every_rung(task, name) for name in anchors}
    return [NodeCover(every if all_degrees else nested, field, unit) for unit, all_degrees in UNITS]


def _every_rung(task: Task, name: str) -> tuple[Rung, ...]:
    """A bucket's rungs of any degree with no more ring rounds than those of the task."""
    rounds = max([rung.option.config.k for rung in task.rungs[name]])
    allowed = [limit for limit in task.problem.ring_limits if limit <= rounds]
    return task.problem.rungs_within[allowed[-1] if allowed else task.problem.ring_limits[0]][name]


def _freely_on_pod(
    task: Task, pod: Pod, mine: Sequence[Anchor], work: int, floors: Sequence[int], covers: Sequence[NodeCover]
) -> Found | None:
    """The best placement on a pod's rank sets that need not nest."""
    best: tuple[Chosen, int] | None = None
    usable, least = _on_pod(mine, pod, fastest=True), 0
    for floor in floors:
        by_name = {name: front(rungs, floor=floor) for name, rungs in dict(usable).items()}
        fronts = [by_name[anchor.bucket] for anchor in mine]
        search = FreeSearch(pod.num_nodes, pod.per_node, fronts, work)
        found = place_freely(search, task.start, best[1] if best else NEVER)
        best, least = found or best, least or search.least
        if best is not None and best[1] <= least + (least >> CLOSE):
            break
    return Found(*_by_nodes(pod, mine, work, covers, best), task.start) if best is not None else None


def _by_nodes(
    pod: Pod, mine: Sequence[Anchor], work: int, covers: Sequence[NodeCover], best: tuple[Chosen, int]
) -> tuple[Chosen, int]:
    """The placement node by node that, filled up, is faster than another, or that other."""
    reached = covers[0].reach(pod.num_ranks, best[0], work) if covers else 0
    buckets = [anchor.bucket for anchor in mine]
    for cover in covers:
        if reached <= cover.field.target:
            break
        chosen = cover.place(pod.num_nodes, buckets)
        if chosen is not None and (filled := cover.reach(pod.num_ranks, chosen, work)) < reached:
            best, reached = (chosen, cover.field.target), filled
    return best


class Placed(NamedTuple):
    """A pod's first rank, the buckets of its anchors, and what was found for these."""

    first: int
    buckets: tuple[str, ...]
    found: Found


PodKey = tuple[int, tuple[str, ...], int]
"""What makes pods equal: nodes, the buckets of the anchors, and the work of the sand."""


def _part(sand: Sand, work: int) -> Sand:
    """A pod's part of the sand, of the whole's composition."""
    if work == sand.work:
        return sand
    return Sand(work, tuple(value * work // max(1, sand.work) for value in sand.credits))


def _on_pod(anchors: Sequence[Anchor], pod: Pod, *, fastest: bool) -> list[Anchor]:
    """Anchors with the rungs that a pod has blocks for; with ``fastest`` one of each degree alone."""
    known: dict[str, Anchor] = {}
    for name, rungs in dict(anchors).items():
        usable = [rung for rung in rungs if (rung.degree, rung.nodes) in pod.blocks]
        if fastest:
            first: dict[int, Rung] = {}
            for rung in usable:
                first.setdefault(rung.degree, rung)
            usable = list(first.values())
        known[name] = Anchor(name, tuple(usable))
    return [known[anchor.bucket] for anchor in anchors]


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
