"""A free search's figures as one array for the compiled loops of :mod:`zellige.plan.free_kernel`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from zellige.plan.compiled import compiled
from zellige.plan.free_kernel import FreePlaces
from zellige.plan.layout import Ints, Layout
from zellige.problem import Rung


class FreeArrays:
    """What a compiled search over free rank sets reads and changes, for the anchors of one search."""

    def __init__(self, num_nodes: int, per_node: int, fronts: Sequence[tuple[Rung, ...]], limit: int) -> None:
        """``limit`` is the number of nodes that a search may visit."""
        self.flat: list[Rung] = []
        self.limit, depths, size = limit, len(fronts), num_nodes * per_node
        layout = Layout()
        self._put_rungs(layout, fronts)
        layout.leave(dict.fromkeys(("path_rung", "path_count", "path_tried"), depths))
        layout.leave(dict.fromkeys(("path_budget", "rest"), depths + 1))
        layout.leave(dict.fromkeys(("path_score", "path_node", "path_place"), 2 * depths * num_nodes))
        layout.put({"path_rank": range(size)})
        layout.leave({"unused": depths * size, "numbers": 2, "order": num_nodes})
        layout.leave(dict.fromkeys(("path_load", "path_taken"), (depths + 1) * size))
        table_size = 1 << (2 * limit + 4).bit_length()
        starts = {name: start for name, start in layout.starts.items() if name != "unused"}
        self.places = FreePlaces(
            **starts, table=layout.size, rows=layout.size + table_size, num_anchors=depths, num_nodes=num_nodes,
            per_node=per_node, table_size=table_size,
        )  # fmt: skip
        self.array = np.empty(layout.size + table_size + (limit + 2) * (size + 1), dtype=np.int64)
        self.array[: layout.size] = layout.joined()

    def _put_rungs(self, layout: Layout, fronts: Sequence[tuple[Rung, ...]]) -> None:
        """Append the rungs of all anchors, those of equal anchors once."""
        firsts: dict[int, int] = {}
        for front in fronts:
            if id(front) not in firsts:
                firsts[id(front)] = len(self.flat)
                self.flat += front
        layout.put(
            {
                "rung_first": [firsts[id(front)] for front in fronts],
                "rung_last": [firsts[id(front)] + len(front) for front in fronts],
                "rung_work": [rung.work for rung in self.flat],
                "rung_time": [rung.time for rung in self.flat],
                "rung_degree": [rung.degree for rung in self.flat],
                "rung_nodes": [rung.nodes for rung in self.flat],
            }
        )

    def run(self, target: int, budget: int, rest: Sequence[int]) -> list[tuple[Rung, tuple[int, ...]]] | None:
        """The rung and the ranks of every anchor, or None where no placement was found."""
        array, places = self.array, self.places
        array[places.rest : places.rest + len(rest)] = rest
        descend: Callable[[int, int, int, Ints, FreePlaces], bool] = compiled(
            "zellige.plan.free_kernel", "descend_freely"
        )
        if not descend(target, self.limit, budget, array, places):
            return None
        size = places.num_nodes * places.per_node
        rungs = [self.flat[index] for index in array[places.path_rung :][: places.num_anchors].tolist()]
        taken = [array[places.path_taken + depth * size :][: rung.degree] for depth, rung in enumerate(rungs)]
        return [(rung, tuple(sorted(ranks.tolist()))) for rung, ranks in zip(rungs, taken, strict=True)]
