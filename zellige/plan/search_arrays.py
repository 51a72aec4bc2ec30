"""A search's figures as one array for the compiled loops of :mod:`zellige.plan.search_kernel`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate

import numpy as np

from zellige.plan.blocks import Block, Pod, Shape, make_pod
from zellige.plan.compiled import compiled
from zellige.plan.layout import Ints, int_array
from zellige.plan.search_places import BUDGET, CUT, KEPT_MOST, NEXT_TARGET, NODES, NUMBERS, Frame, Places
from zellige.problem import Rung

Placed = tuple[tuple[Rung, Block], ...]
"""The rung and the block of every anchor."""


class Arrays:
    """What a compiled search reads and changes, for the anchors and the pod of one search."""

    def __init__(
        self,
        pod: Pod,
        fronts: Sequence[tuple[Rung, ...]],
        waiting: Sequence[Sequence[int]],
        densities: Sequence[int],
        *,
        binds: bool,
        limit: int,
    ) -> None:
        """``limit`` is the most nodes that a target's search may visit."""
        shapes = frozenset(pod.blocks)
        blocks, self.listed, numbers = _blocks_of(pod.num_nodes, pod.per_node, shapes)
        self.flat, given = _listed_rungs(fronts, numbers)
        given += [coin for needs in waiting for coin in needs]
        given += densities
        room = 1 << (limit - 1).bit_length()
        pod_key = (pod.num_nodes, pod.per_node, shapes)
        self.places, size = _places(pod_key, len(fronts), len(self.flat), len(densities), binds, room)
        self.limit = room
        self.array = np.empty(size, dtype=np.int64)
        self.array[: len(blocks)] = blocks
        self.array[len(blocks) : len(blocks) + len(given)] = given

    def run(self, target: int, limit: int, frame: Frame) -> tuple[bool, int, int, bool]:
        """Whether all anchors are placed (then :meth:`placed` says where), nodes visited, the least threshold of a cut,
        whether the limit of nodes came first (:func:`zellige.plan.search_kernel.run`)."""
        run: Callable[..., bool] = compiled("zellige.plan.search_kernel", "run")
        found = run(target, limit, frame, self.array, self.places)
        return found, self.number(NODES), self.number(NEXT_TARGET), bool(self.number(CUT))

    def place(self, start: int, budget: int, frame: Frame) -> int:
        """The target that is found, or what there is instead (:func:`zellige.plan.target_kernel.place`)."""
        self.array[self.places.numbers + BUDGET] = budget
        run: Callable[..., int] = compiled("zellige.plan.target_kernel", "place")
        return run(start, frame, self.array, self.places)

    def settle(self, start: int, work: int, room: int) -> int:
        """Place the anchors one by one (:func:`zellige.plan.search_kernel.settle`)."""
        settle: Callable[..., int] = compiled("zellige.plan.search_kernel", "settle")
        return settle(start, work, room, self.array, self.places)

    def number(self, place: int) -> int:
        """One of :attr:`Places.numbers`."""
        return int(self.array[self.places.numbers + place])

    def placed(self) -> Placed:
        """Where a run left the anchors."""
        return self._read(self.places.path_rung, self.places.path_block)

    def kept(self, number: int) -> tuple[Placed, int]:
        """One of the placements that were found on the way to a target, and its own."""
        places = self.places
        first = number * places.num_anchors
        placed = self._read(places.kept_rung + first, places.kept_block + first)
        return placed, int(self.array[places.kept_target + number])

    def _read(self, rungs: int, blocks: int) -> Placed:
        depths = self.places.num_anchors
        pairs = zip(self.array[rungs:][:depths].tolist(), self.array[blocks:][:depths].tolist(), strict=True)
        return tuple([(self.flat[rung], self.listed[block]) for rung, block in pairs])


PodKey = tuple[int, int, frozenset[Shape]]


@lru_cache(maxsize=1024)
def _places(pod_key: PodKey, depths: int, rungs: int, densities: int, binds: bool, limit: int) -> tuple[Places, int]:
    """Where the figures of a search stand, and how many there are; what is given comes first."""
    pod = make_pod(*pod_key)
    blocks = {name: len(figures) for name, figures in _block_figures(pod).items()}
    ranks, width = pod.num_ranks, 1 + (3 if binds else 1) * pod.num_ranks
    widest = max((len(several) for several in pod.blocks.values()), default=0)
    table_size = 1 << (2 * limit + 2).bit_length()
    sizes = {**blocks, "rung_first": depths, "rung_last": depths}
    sizes |= dict.fromkeys(("rung_work", "rung_time", "rung_degree", "rung_shape", "rung_kept", "rung_live"), rungs)
    sizes |= {"waiting": (depths + 1) * densities, "densities": densities}
    sizes |= {"load_time": ranks, "load_kept": ranks, "load_live": ranks}
    sizes |= dict.fromkeys(("path_rung", "path_block", "path_first", "path_last"), depths)
    sizes |= dict.fromkeys(("path_work", "rest"), depths + 1)
    sizes |= dict.fromkeys(("path_candidates", "path_scores"), depths * widest)
    sizes |= {"path_undo": depths * ranks, "numbers": NUMBERS, "kept_target": KEPT_MOST}
    sizes |= dict.fromkeys(("kept_rung", "kept_block"), KEPT_MOST * depths)
    sizes |= {"table": table_size, "rows": (limit + 1) * width}
    starts = dict(zip(sizes, accumulate(sizes.values(), initial=0), strict=False))
    places = Places(
        **starts, num_anchors=depths, num_ranks=ranks, num_densities=densities, stride=widest, table_size=table_size,
        width=width,
    )  # fmt: skip
    return places, sum(sizes.values())


@lru_cache(maxsize=256)
def _blocks_of(num_nodes: int, per_node: int, shapes: frozenset[Shape]) -> tuple[Ints, list[Block], dict[Shape, int]]:
    """A pod's blocks as an array and one after another, and the number of each shape; the number after the last has no
    blocks."""
    pod = make_pod(num_nodes, per_node, shapes)
    listed = [block for several in pod.blocks.values() for block in several]
    figures = int_array([figure for figures in _block_figures(pod).values() for figure in figures])
    return figures, listed, {shape: number for number, shape in enumerate(pod.blocks)}


def _block_figures(pod: Pod) -> dict[str, list[int]]:
    """The figures of a pod's blocks, as :class:`Places` names them."""
    listed = [block for several in pod.blocks.values() for block in several]
    pieces = [piece for block in listed for piece in block.pieces]
    mirrors = [mirror for block in listed for mirror in block.mirrors]
    return {
        "shape_first": _firsts([*(len(several) for several in pod.blocks.values()), 0]),
        "piece_first": _firsts([len(block.pieces) for block in listed]),
        "mirror_first": _firsts([len(block.mirrors) for block in listed]),
        "piece_start": [start for start, _ in pieces],
        "piece_stop": [stop for _, stop in pieces],
        "mirror_start": [start for start, _, _ in mirrors],
        "mirror_middle": [middle for _, middle, _ in mirrors],
        "mirror_stop": [stop for _, _, stop in mirrors],
    }


def _firsts(sizes: Sequence[int]) -> list[int]:
    """Where each of several lists of some sizes starts when they are put one after another, and where the last ends."""
    return list(accumulate(sizes, initial=0))


def _listed_rungs(fronts: Sequence[tuple[Rung, ...]], shapes: dict[Shape, int]) -> tuple[list[Rung], list[int]]:
    """The rungs of all anchors, those of equal anchors once, and the figures of anchors and rungs."""
    firsts: dict[int, int] = {}
    flat: list[Rung] = []
    for front in fronts:
        if id(front) not in firsts:
            firsts[id(front)] = len(flat)
            flat += front
    given = [firsts[id(front)] for front in fronts]
    given += [firsts[id(front)] + len(front) for front in fronts]
    given += [rung.work for rung in flat]
    given += [rung.time for rung in flat]
    given += [rung.degree for rung in flat]
    given += [shapes.get((rung.degree, rung.nodes), len(shapes)) for rung in flat]
    given += [rung.kept for rung in flat]
    given += [rung.live for rung in flat]
    return flat, given
