"""A search's figures as one array for the compiled loops of :mod:`zellige.plan.search_kernel`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate

import numpy as np

from zellige.plan.blocks import Block, Pod, Shape, make_pod
from zellige.plan.compiled import compiled
from zellige.plan.layout import Ints, Layout
from zellige.plan.search_kernel import CUT, NEXT_TARGET, NODES, Frame, Places
from zellige.problem import Rung

Outcome = tuple[bool, int, int, bool]
"""Whether all anchors are placed, nodes visited, the least threshold of a cut, whether the node limit came first."""


class Arrays:
    """What a compiled search reads and changes, for the anchors and the pod of one search."""

    def __init__(
        self, pod: Pod, fronts: Sequence[tuple[Rung, ...]], waiting: Sequence[Sequence[int]], densities: Sequence[int]
    ) -> None:
        blocks, self.listed, shapes = _blocks_of(pod.num_nodes, pod.per_node, frozenset(pod.blocks))
        layout = Layout(blocks)
        self.flat = _put_rungs(layout, fronts, shapes)
        layout.put({"waiting": [coin for needs in waiting for coin in needs], "densities": densities})
        depths, ranks = len(fronts), pod.num_ranks
        widest = max((len(several) for several in pod.blocks.values()), default=0)
        layout.leave({"load_time": ranks, "load_kept": ranks, "load_live": ranks})
        layout.leave(dict.fromkeys(("path_rung", "path_block", "path_first", "path_last"), depths))
        layout.leave(dict.fromkeys(("path_work", "rest"), depths + 1))
        layout.leave(dict.fromkeys(("path_candidates", "path_scores"), depths * widest))
        layout.leave({"path_undo": depths * ranks, "numbers": 5})
        self.array, self.starts, self.fixed = layout.joined(), layout.starts, layout.size
        self.sizes = {
            "num_anchors": depths, "num_ranks": ranks, "num_densities": len(densities), "stride": widest,
        }  # fmt: skip
        self.places: Places | None = None

    def run(self, frame: Frame, rest: Sequence[int]) -> Outcome:
        """Search with so much work to come by depth; on success :meth:`placed` says where the anchors are."""
        places = self._make_room(frame)
        self.array[places.rest : places.rest + len(rest)] = rest
        descend: Callable[[Frame, Ints, Places], bool] = compiled("zellige.plan.search_kernel", "descend")
        found = descend(frame, self.array, places)
        nodes, target, cut = (int(self.array[places.numbers + index]) for index in (NODES, NEXT_TARGET, CUT))
        return found, nodes, target, bool(cut)

    def settle(self, start: int, work: int, room: int) -> int:
        """Place the anchors one by one (:func:`zellige.plan.search_kernel.settle`)."""
        settle: Callable[[int, int, int, Ints, Places], int] = compiled("zellige.plan.search_kernel", "settle")
        return settle(start, work, room, self.array, self._empty_ranks(self.places or self._places(1, 1)))

    def _make_room(self, frame: Frame) -> Places:
        """Room for the states that a search remembers, and empty ranks."""
        width = 1 + (3 if frame.binds else 1) * self.sizes["num_ranks"]
        size = 1 << (2 * frame.limit + 2).bit_length()
        places = self.places
        if places is None or places.width != width or places.table_size < size:
            places = self.places = self._places(size, width)
            grown = np.empty(self.fixed + size + (frame.limit + 1) * width, dtype=np.int64)
            grown[: self.fixed] = self.array[: self.fixed]
            self.array = grown
        return self._empty_ranks(places)

    def _places(self, table_size: int, width: int) -> Places:
        end = {"table": self.fixed, "rows": self.fixed + table_size}
        return Places(**self.starts, **end, **self.sizes, table_size=table_size, width=width)

    def _empty_ranks(self, places: Places) -> Places:
        self.array[places.load_time : places.load_time + 3 * places.num_ranks] = 0
        return places

    def placed(self) -> list[tuple[Rung, Block]]:
        """The rung and the block of every anchor."""
        start, depths = self.starts["path_rung"], self.sizes["num_anchors"]
        rungs, blocks = self.array[start : start + depths].tolist(), self.array[start + depths :][:depths].tolist()
        return [(self.flat[rung], self.listed[block]) for rung, block in zip(rungs, blocks, strict=True)]


@lru_cache(maxsize=256)
def _blocks_of(num_nodes: int, per_node: int, shapes: frozenset[Shape]) -> tuple[Layout, list[Block], dict[Shape, int]]:
    """A pod's blocks as arrays and one after another, and the number of each shape; the number after the last has no
    blocks."""
    blocks = list(make_pod(num_nodes, per_node, shapes).blocks.items())
    listed = [block for _, several in blocks for block in several]
    pieces = [piece for block in listed for piece in block.pieces]
    mirrors = [mirror for block in listed for mirror in block.mirrors]
    layout = Layout()
    layout.put(
        {
            "shape_first": _firsts([*(len(several) for _, several in blocks), 0]),
            "piece_first": _firsts([len(block.pieces) for block in listed]),
            "mirror_first": _firsts([len(block.mirrors) for block in listed]),
            "piece_start": (start for start, _ in pieces),
            "piece_stop": (stop for _, stop in pieces),
            "mirror_start": (start for start, _, _ in mirrors),
            "mirror_middle": (middle for _, middle, _ in mirrors),
            "mirror_stop": (stop for _, _, stop in mirrors),
        }
    )
    return layout, listed, {shape: number for number, (shape, _) in enumerate(blocks)}


def _firsts(sizes: Sequence[int]) -> list[int]:
    """Where each of several lists of some sizes starts when they are put one after another, and where the last ends."""
    return list(accumulate(sizes, initial=0))


def _put_rungs(layout: Layout, fronts: Sequence[tuple[Rung, ...]], shapes: dict[Shape, int]) -> list[Rung]:
    """Append the rungs of all anchors, those of equal anchors once; returns them."""
    firsts: dict[int, int] = {}
    flat: list[Rung] = []
    for front in fronts:
        if id(front) not in firsts:
            firsts[id(front)] = len(flat)
            flat += front
    layout.put(
        {
            "rung_first": [firsts[id(front)] for front in fronts],
            "rung_last": [firsts[id(front)] + len(front) for front in fronts],
            "rung_work": [rung.work for rung in flat],
            "rung_time": [rung.time for rung in flat],
            "rung_shape": [shapes.get((rung.degree, rung.nodes), len(shapes)) for rung in flat],
            "rung_kept": [rung.kept for rung in flat],
            "rung_live": [rung.live for rung in flat],
        }
    )
    return flat
