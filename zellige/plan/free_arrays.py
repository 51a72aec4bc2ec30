"""A free search's figures as one array for the compiled loops of :mod:`zellige.plan.free_kernel`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from zellige.plan.compiled import compiled
from zellige.plan.free_kernel import DEPTHS, FREE_NODES, FreePlaces
from zellige.plan.layout import Ints, int_array
from zellige.problem import Rung

Node = Sequence[tuple[int, int]]
"""(load, rank) of a node's ranks, ascending."""

TABLE = 1 << (2 * FREE_NODES + 4).bit_length()
"""Places of the hash table of failed states."""


class FreeArrays:
    """What a compiled search over free rank sets reads and changes, for the anchors of one search."""

    def __init__(self, nodes: Sequence[Node], fronts: Sequence[tuple[Rung, ...]]) -> None:
        firsts: dict[int, int] = {}
        self.flat: list[Rung] = []
        for front in fronts:
            if id(front) not in firsts:
                firsts[id(front)] = len(self.flat)
                self.flat += front
        self.places, size = free_places(len(nodes), len(nodes[0]), len(fronts), len(self.flat))
        given = [firsts[id(front)] for front in fronts]
        given += [firsts[id(front)] + len(front) for front in fronts]
        given += [rung.work for rung in self.flat]
        given += [rung.time for rung in self.flat]
        given += [rung.degree for rung in self.flat]
        given += [rung.nodes for rung in self.flat]
        given += [rank for node in nodes for _, rank in node]
        self.array = np.empty(size, dtype=np.int64)
        self.array[: len(given)] = int_array(given)
        self.depths = len(fronts)
        self.array[self.places.numbers + DEPTHS] = self.depths
        loads = [load for node in nodes for load, _ in node]
        self.array[self.places.path_load : self.places.path_load + len(loads)] = loads

    def place(self, low: int, below: int, work: int) -> int:
        """The target of a placement or -1 (:func:`zellige.plan.free_kernel.place_freely`)."""
        run: Callable[[int, int, int, Ints, FreePlaces], int] = compiled("zellige.plan.free_kernel", "place_freely")
        return run(low, below, work, self.array, self.places)

    def descend(self, target: int, work: int) -> bool:
        """Whether a placement is found (:func:`zellige.plan.free_kernel.descend_freely`)."""
        run: Callable[[int, int, Ints, FreePlaces], bool] = compiled("zellige.plan.free_kernel", "descend_freely")
        return run(target, work, self.array, self.places)

    def placed(self, rungs: int, taken: int) -> list[tuple[Rung, tuple[int, ...]]]:
        """The rung and the ranks of every anchor, from where both are kept."""
        places = self.places
        size, depths = places.num_nodes * places.per_node, self.depths
        ranks = self.array[taken : taken + depths * size].tolist()
        chosen = [self.flat[index] for index in self.array[rungs : rungs + depths].tolist()]
        return [
            (rung, tuple(sorted(ranks[depth * size : depth * size + rung.degree]))) for depth, rung in enumerate(chosen)
        ]


@lru_cache(maxsize=1024)
def free_places(num_nodes: int, per_node: int, depths: int, rungs: int) -> tuple[FreePlaces, int]:
    """Where the figures of a search with up to so many anchors and rungs stand, and how many there are; what is given
    comes first, and the loads and ranks of the first depth are its loads and ranks at the start."""
    ranks = num_nodes * per_node
    sizes = {"rung_first": depths, "rung_last": depths}
    sizes |= dict.fromkeys(("rung_work", "rung_time", "rung_degree", "rung_nodes"), rungs)
    sizes |= {"path_rank": (depths + 1) * ranks, "path_load": (depths + 1) * ranks, "path_taken": depths * ranks}
    sizes |= {"path_rung": depths, "path_count": depths, "path_tried": depths, "path_slot": depths, "best_rung": depths}
    sizes |= dict.fromkeys(("path_budget", "rest"), depths + 1)
    sizes |= dict.fromkeys(("path_score", "path_node", "path_place"), 2 * depths * num_nodes)
    sizes |= {"best_taken": depths * ranks, "numbers": 3, "path_order": depths * num_nodes, "table": TABLE}
    sizes |= {"rows": (FREE_NODES + 2) * (ranks + 1)}
    starts, size = {}, 0
    for name, count in sizes.items():
        starts[name] = size
        size += count
    return FreePlaces(
        **starts, num_nodes=num_nodes, per_node=per_node, table_size=TABLE
    ), size  # fmt: skip
