"""The chain of a coalesced step: what its split sequences take if all ranks meet in every phase."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from zellige.placement import Placement
from zellige.plan.packing import Split
from zellige.problem import Problem, Rung

FORWARD_SHARE = (2, 7)
"""Forward over forward and backward of attention: 1 of 3.5 (what full checkpointing runs once more)."""


class Phases(NamedTuple):
    """By rank, in nanoseconds: linear work, transfer and attention of the sequences that are split."""

    linear: list[int]
    moving: list[int]
    attention: list[int]


def calls_ns(problem: Problem, rounds: int) -> int:
    """What the coalesced engine adds to every rank for so many ring rounds, in nanoseconds; 0 for other engines."""
    if problem.engine != "coalesced" or not rounds:
        return 0
    return problem.shared_calls_ns(problem.cluster.num_ranks, problem.cluster.num_nodes, rounds)


def ways_of(problem: Problem, placements: Iterable[Placement]) -> list[Split]:
    """The split sequences of a plan that have a price, as the planner writes them."""
    ways = []
    for placement in placements:
        option = problem.option_on(placement.bucket, placement.config, placement.ranks)
        if placement.config.is_split and option is not None:
            degree, time = option.config.degree, option.time_ns
            kept, live = option.kept_bytes, option.live_bytes
            rung = Rung(time * degree, time, degree, option.num_nodes, kept, live, option)
            ways.append(Split(placement.bucket, rung, placement.ranks))
    return ways


def phases(problem: Problem, ways: Sequence[Split]) -> Phases:
    """The work of split sequences on each rank."""
    num_ranks = problem.cluster.num_ranks
    found = Phases([0] * num_ranks, [0] * num_ranks, [0] * num_ranks)
    parts: dict[int, tuple[int, int, int]] = {}
    for way in ways:
        key = id(way.rung)
        if key not in parts:
            parts[key] = _parts(problem, way)
        linear, transfer, attention = parts[key]
        for rank in way.ranks:
            found.linear[rank] += linear
            found.moving[rank] += transfer
            found.attention[rank] += attention
    return found


def chain_ns(problem: Problem, ways: Sequence[Split]) -> int:
    """The step of the split sequences alone if all ranks met in every phase, in nanoseconds: the most linear work of a
    rank, the most transfer, the most attention.

    An estimate: whole work may fill waits, and groups of ranks that share nothing do not wait for each other.
    """
    work = phases(problem, ways)
    return max(work.linear) + max(work.moving) + max(work.attention)


def _parts(problem: Problem, way: Split) -> tuple[int, int, int]:
    """(linear work, transfer, attention) of an option on each rank over a step."""
    option = way.rung.option
    price = problem.price(way.bucket, option.config, option.num_nodes)
    again, of = FORWARD_SHARE
    attention = price.attention_ns
    if problem.memory.checkpoint == "full":
        attention += price.attention_ns * again // of
    return option.compute_ns - attention, option.time_ns - option.compute_ns, attention
