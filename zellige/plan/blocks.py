"""Aligned blocks: the rank sets that the planner's search considers, and which of them are mirror images.

A shape (degree, nodes) has ``width = degree / nodes`` ranks on each node of an aligned run of ``nodes`` nodes, starting
at a multiple of the width inside each node. Powers of two alone make a buddy tree; blocks of other widths may overlap.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from zellige.cluster import Cluster

Shape = tuple[int, int]


class Block(NamedTuple):
    """Ranks of a pod, also as ``pieces`` (start, stop) of consecutive ones.

    ``mirrors`` are pairs of runs, (start, middle, stop): where the ranks of both halves carry equal loads, exchanging
    them turns this block into an earlier one and changes nothing else.
    """

    ranks: tuple[int, ...]
    pieces: tuple[tuple[int, int], ...]
    mirrors: tuple[tuple[int, int, int], ...]


class Pod(NamedTuple):
    """Equal nodes that are searched together, and the blocks of each shape on them; ranks count from zero."""

    num_nodes: int
    per_node: int
    blocks: dict[Shape, tuple[Block, ...]]

    @property
    def num_ranks(self) -> int:
        """Ranks of the pod."""
        return self.num_nodes * self.per_node


def shapes_of(cluster: Cluster, num_nodes: int, degrees: frozenset[int]) -> frozenset[Shape]:
    """The shapes of some degrees on the fewest nodes of an even spread, as far as ``num_nodes`` nodes hold them."""
    spread = {degree: cluster.smallest_even_footprint(degree) for degree in degrees}
    return frozenset((degree, nodes) for degree, nodes in spread.items() if 0 < nodes <= num_nodes)


@lru_cache(maxsize=256)
def make_pod(num_nodes: int, per_node: int, shapes: frozenset[Shape]) -> Pod:
    """All blocks of the shapes on a pod, by shape and start."""
    plain = {shape: list(_ranks(num_nodes, per_node, shape)) for shape in sorted(shapes)}
    everything = [ranks for several in plain.values() for ranks in several]
    swaps = [swap for swap in _swaps(num_nodes, per_node) if _keeps(everything, swap)]
    blocks = {
        shape: tuple(Block(ranks, _pieces(ranks), _mirrors(ranks, swaps)) for ranks in several)
        for shape, several in plain.items()
    }
    return Pod(num_nodes, per_node, blocks)


def _ranks(num_nodes: int, per_node: int, shape: Shape) -> Iterator[tuple[int, ...]]:
    degree, nodes = shape
    width = degree // nodes
    for first in range(0, num_nodes - nodes + 1, nodes):
        for offset in range(0, per_node - width + 1, width):
            starts = [node * per_node + offset for node in range(first, first + nodes)]
            yield tuple(rank for start in starts for rank in range(start, start + width))


def _pieces(ranks: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    pieces: list[tuple[int, int]] = []
    for rank in ranks:
        if pieces and pieces[-1][1] == rank:
            pieces[-1] = (pieces[-1][0], rank + 1)
        else:
            pieces.append((rank, rank + 1))
    return tuple(pieces)


def _swaps(num_nodes: int, per_node: int) -> Iterator[tuple[int, int, int]]:
    """Neighbouring runs of equal size inside a node, and of whole nodes."""
    for size in range(1, per_node // 2 + 1):
        for node in range(num_nodes):
            for start in range(0, per_node - 2 * size + 1, 2 * size):
                first = node * per_node + start
                yield first, first + size, first + 2 * size
    nodes = 1
    while 2 * nodes <= num_nodes:
        for first in range(0, num_nodes - 2 * nodes + 1, 2 * nodes):
            yield first * per_node, (first + nodes) * per_node, (first + 2 * nodes) * per_node
        nodes *= 2


def _keeps(blocks: list[tuple[int, ...]], swap: tuple[int, int, int]) -> bool:
    """Whether exchanging two runs turns every block into a block."""
    start, middle, stop = swap
    size = middle - start
    known = {frozenset(ranks) for ranks in blocks}

    def image(rank: int) -> int:
        if start <= rank < middle:
            return rank + size
        return rank - size if middle <= rank < stop else rank

    return all(frozenset(map(image, ranks)) in known for ranks in blocks)


def _mirrors(ranks: tuple[int, ...], swaps: list[tuple[int, int, int]]) -> tuple[tuple[int, int, int], ...]:
    return tuple((a, b, c) for a, b, c in swaps if b <= ranks[0] and ranks[-1] < c)
