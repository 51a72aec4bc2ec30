"""What the coalesced engine waits for: the longest chain of split work, through which all its ranks go together."""

from __future__ import annotations

from collections.abc import Iterable

from zellige.plan.packing import Split
from zellige.problem import Problem
from zellige.shards import ParallelConfig

FORWARD_SHARE = (2, 7)
"""Forward over forward and backward of attention: 1 of 3.5 (what full checkpointing runs once more)."""


def chain_ns(problem: Problem, ways: Iterable[Split]) -> int:
    """The least step of the split sequences alone, in nanoseconds: the most linear work of a rank, the most transfer,
    the most attention. Whole work may fill its waits, so a step takes at least this and at least the slowest rank.

    Each phase waits for its slowest rank; where the same rank is slowest in all, nothing waits.
    """
    num_ranks = problem.cluster.num_ranks
    linear, moving, attention = [0] * num_ranks, [0] * num_ranks, [0] * num_ranks
    parts: dict[tuple[str, ParallelConfig, int], tuple[int, int, int]] = {}
    for way in ways:
        key = (way.bucket, way.rung.option.config, way.rung.nodes)
        if key not in parts:
            parts[key] = _parts(problem, way)
        alone, transfer, core = parts[key]
        for rank in way.ranks:
            linear[rank] += alone
            moving[rank] += transfer
            attention[rank] += core
    return max(linear) + max(moving) + max(attention)


def _parts(problem: Problem, way: Split) -> tuple[int, int, int]:
    """(linear work, transfer, attention) of an option on each rank over a step."""
    option = way.rung.option
    price = problem.price(way.bucket, option.config, option.num_nodes)
    again, of = FORWARD_SHARE
    attention = price.attention_ns
    if problem.memory.checkpoint == "full":
        attention += price.attention_ns * again // of
    return option.compute_ns - attention, option.time_ns - option.compute_ns, attention
