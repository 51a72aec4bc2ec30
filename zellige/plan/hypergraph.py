"""Balanced partitions of hypergraphs by Mt-KaHyPar (extra ``dcp``): one thread, its deterministic preset, a seed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cache
from typing import Any

from zellige.errors import MissingExtraError

SEED = 0


@dataclasses.dataclass(frozen=True)
class Hypergraph:
    """Vertices with weights, and nets: the vertices that each joins, and what cutting it once costs."""

    vertex_weights: Sequence[int]
    nets: Sequence[Sequence[int]]
    net_weights: Sequence[int]

    def restricted(self, vertices: Sequence[int]) -> Hypergraph:
        """The hypergraph of some vertices, in that order; nets keep their pins among them, if two or more."""
        index = {vertex: position for position, vertex in enumerate(vertices)}
        pins = [[index[vertex] for vertex in net if vertex in index] for net in self.nets]
        kept = [(net, weight) for net, weight in zip(pins, self.net_weights, strict=True) if len(net) > 1]
        return Hypergraph(
            [self.vertex_weights[vertex] for vertex in vertices],
            [net for net, _ in kept],
            [weight for _, weight in kept],
        )


def partition(graph: Hypergraph, blocks: int, imbalance: float) -> list[int]:
    """The block of every vertex: least connectivity (sum over nets of weight x (blocks touched - 1)).

    No block has more than ``1 + imbalance`` of its share of the weight, where vertices are small enough for that.
    Raises :class:`MissingExtraError` where Mt-KaHyPar is not installed.
    """
    if blocks == 1 or len(graph.vertex_weights) <= 1:
        return [0] * len(graph.vertex_weights)
    library, instance = _mt_kahypar()
    library.set_seed(SEED)
    context = instance.context_from_preset(library.PresetType.DETERMINISTIC)
    context.set_partitioning_parameters(blocks, imbalance, library.Objective.KM1)
    context.logging = False
    hypergraph = instance.create_hypergraph(
        context,
        len(graph.vertex_weights),
        len(graph.nets),
        [list(net) for net in graph.nets],
        list(graph.vertex_weights),
        list(graph.net_weights),
    )
    return [int(block) for block in hypergraph.partition(context).get_partition()]


@cache
def _mt_kahypar() -> tuple[Any, Any]:
    """The library and its one instance of the process."""
    try:
        import mtkahypar
    except ImportError:
        raise MissingExtraError(
            "the policy dcp needs Mt-KaHyPar, which is not installed", fix="pip install -e '.[dcp]' in the checkout"
        ) from None
    return mtkahypar, mtkahypar.initialize(1, False)
