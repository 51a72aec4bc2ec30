"""Longest-first list scheduling on equal groups of ranks."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from zellige.placement import Placement, Problem
from zellige.shards import ParallelConfig


def longest_first(
    problem: Problem, config: ParallelConfig, groups: Sequence[tuple[int, ...]]
) -> list[Placement] | None:
    """Every sequence under one configuration on the least loaded group, the longest first (ties: batch order, group
    order).

    None where the table has no price for the configuration on the first group.
    """
    prices = {}
    for bucket in problem.counts:
        option = problem.option_on(bucket.name, config, groups[0])
        if option is None:
            return None
        prices[bucket.name] = option.time_ns
    loads = [(0, index) for index in range(len(groups))]
    placements = []
    for sequence in sorted(problem.batch.sequences, key=lambda sequence: -prices[sequence.bucket.name]):
        load, index = loads[0]
        heapq.heapreplace(loads, (load + prices[sequence.bucket.name], index))
        name = sequence.bucket.name
        placements.append(Placement(sequence=sequence.id, bucket=name, config=config, ranks=groups[index]))
    return placements


def equal_groups(num_ranks: int, size: int) -> list[tuple[int, ...]]:
    """Consecutive groups of ``size`` ranks."""
    return [tuple(range(start, start + size)) for start in range(0, num_ranks, size)]
