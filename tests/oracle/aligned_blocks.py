"""Plans on aligned blocks alone, by their definition."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import msgspec

from oracle.brute_force import Way, ways_to_run
from zellige.placement import Problem

EVERY_WAY = ways_to_run


def aligned(ranks: Sequence[int], per_node: int, num_nodes: int) -> bool:
    """A block by its definition: equal runs on an aligned run of the fewest nodes (a power of two) that allow it."""
    nodes = sorted({rank // per_node for rank in ranks})
    width = len(ranks) // len(nodes)
    fewest = next(
        (n for n in (1, 2, 4, 8) if n <= num_nodes and len(ranks) % n == 0 and len(ranks) // n <= per_node), 0
    )
    start = ranks[0] % per_node
    wanted = [node * per_node + start + i for node in nodes for i in range(width)]
    return (
        len(nodes) == fewest
        and nodes == list(range(nodes[0], nodes[0] + fewest))
        and nodes[0] % fewest == 0
        and start % width == 0
        and start + width <= per_node
        and list(ranks) == wanted
    )


def only_powers(problem: Problem) -> Problem:
    """The problem without prices of other degrees than powers of two."""
    rows = tuple(row for row in problem.prices.rows if row.config.degree in (1, 2, 4))
    return dataclasses.replace(problem, prices=msgspec.structs.replace(problem.prices, rows=rows))


def on_blocks(problem: Problem, bucket: str) -> list[Way]:
    """Every way to run a sequence of a bucket on an aligned block: what stands in for ``brute_force.ways_to_run``."""
    per_node, nodes = problem.cluster.ranks_per_node, problem.cluster.num_nodes
    return [way for way in EVERY_WAY(problem, bucket) if aligned(way.ranks, per_node, nodes)]
