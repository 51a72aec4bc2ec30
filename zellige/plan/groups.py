"""Groups of ranks: where they sit, which split a system gives a group of some size, and what its sequences take."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from zellige.cluster import Cluster
from zellige.placement import Placement, Problem
from zellige.shards import ParallelConfig
from zellige.workload import Sequence as Clip

Amounts = NDArray[np.int64]
Counts = Mapping[str, int]
"""How many sequences of each bucket, by the bucket's name."""


def heads_first(config: ParallelConfig) -> tuple[int, ...]:
    """Prefers Ulysses, then ring: Ulysses alone wherever the heads divide."""
    return config.h, config.k


def ring_first(config: ParallelConfig) -> tuple[int, ...]:
    """Prefers ring: a ring alone wherever the table has it."""
    return config.k, config.h


def gather_first(config: ParallelConfig) -> tuple[int, ...]:
    """Prefers all-gather context parallelism."""
    return config.q, config.h


def priced_splits(problem: Problem) -> tuple[ParallelConfig, ...]:
    """The configurations that the table prices for every bucket of the batch, by degree."""
    names = [bucket.name for bucket in problem.counts]
    common = set.intersection(*({option.config for option in problem.options[name]} for name in names))
    return tuple(sorted(common, key=lambda config: (config.degree, config)))


def splits_by_degree(
    problem: Problem, preference: Callable[[ParallelConfig], tuple[int, ...]]
) -> dict[int, ParallelConfig]:
    """The preferred configuration of every degree that has one."""
    chosen: dict[int, ParallelConfig] = {}
    for config in priced_splits(problem):
        best = chosen.get(config.degree)
        if best is None or preference(config) > preference(best):
            chosen[config.degree] = config
    return chosen


@dataclasses.dataclass(frozen=True)
class GroupPrices:
    """What a group takes under each of some configurations, on as few nodes as its ranks allow.

    Rows are configurations, columns the batch's buckets: ``floor_ns``, ``kept_bytes`` and ``live_bytes`` of one
    sequence; ``calls_ns`` is what the group's shared calls add once.
    """

    configs: tuple[ParallelConfig, ...]
    names: tuple[str, ...]
    degrees: Amounts
    floor_ns: Amounts
    kept_bytes: Amounts
    live_bytes: Amounts
    calls_ns: Amounts

    def counts(self, sequences: Iterable[Clip]) -> Amounts:
        """Sequences counted by bucket, in the order of ``names``."""
        counted = np.zeros(len(self.names), dtype=np.int64)
        column = {name: index for index, name in enumerate(self.names)}
        for sequence in sequences:
            counted[column[sequence.bucket.name]] += 1
        return counted

    def times_ns(self, counts: Amounts) -> Amounts:
        """Time of a group by configuration (last axis) for counts by bucket (last axis); nothing takes no time."""
        busy: Amounts = (counts.max(axis=-1, keepdims=True) > 0) * self.calls_ns
        return np.asarray(counts @ self.floor_ns.T + busy, dtype=np.int64)

    def memory_bytes(self, counts: Amounts) -> Amounts:
        """Bytes a rank, state left out, for counts by bucket: all that is kept, and the largest live segment."""
        present = np.minimum(counts, 1)[..., None, :]
        return np.asarray(counts @ self.kept_bytes.T + (present * self.live_bytes).max(axis=-1), dtype=np.int64)


def group_prices(problem: Problem, configs: Sequence[ParallelConfig]) -> GroupPrices:
    """The prices of groups under ``configs``, which the table must hold for every bucket of the batch."""
    names = tuple(bucket.name for bucket in problem.counts)
    floor, kept, live, calls = [], [], [], []
    for config in configs:
        options = [problem.option_on(name, config, tuple(range(config.degree))) for name in names]
        found = [option for option in options if option is not None]
        floor.append([option.floor_ns for option in found])
        kept.append([option.kept_bytes for option in found])
        live.append([option.live_bytes for option in found])
        packs = problem.engine == "group" and config.is_split and config.degree == config.h
        calls.append(problem.shared_calls_ns(config.degree, found[0].num_nodes, 1) if packs else 0)
    degrees = [config.degree for config in configs]
    return GroupPrices(tuple(configs), names, *(np.array(x, np.int64) for x in (degrees, floor, kept, live, calls)))


def aligned_sizes(cluster: Cluster) -> tuple[int, ...]:
    """Sizes of which each divides the next, from one rank over a node to all: powers of two where both numbers are."""
    sizes = [1]
    for left in (cluster.ranks_per_node, cluster.num_nodes):
        while left > 1:
            factor = next(number for number in range(2, left + 1) if left % number == 0)
            sizes.append(sizes[-1] * factor)
            left //= factor
    return tuple(sizes)


def lay_out(cluster: Cluster, sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Disjoint rank sets of the given sizes, in that order, over few nodes: the largest first, into the fullest node
    that has room; where none has, over the emptiest ones. Powers of two come out aligned."""
    free = [
        list(range(node * cluster.ranks_per_node, (node + 1) * cluster.ranks_per_node))
        for node in range(cluster.num_nodes)
    ]
    ranks: list[tuple[int, ...]] = [()] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        taken: list[int] = []
        while len(taken) < sizes[index]:
            left = sizes[index] - len(taken)
            roomy = [node for node in range(cluster.num_nodes) if len(free[node]) >= left]
            node = (
                min(roomy, key=lambda node: (len(free[node]), node))
                if roomy
                else max(range(cluster.num_nodes), key=lambda node: (len(free[node]), -node))
            )
            taken += free[node][:left]
            free[node] = free[node][left:]
        ranks[index] = tuple(sorted(taken))
    return ranks


def place(sequences: Iterable[Clip], config: ParallelConfig, ranks: tuple[int, ...], stage: int = 0) -> list[Placement]:
    """All of the sequences on one group."""
    return [
        Placement(sequence=clip.id, bucket=clip.bucket.name, config=config, ranks=ranks, stage=stage)
        for clip in sequences
    ]


def in_micro_batches(problem: Problem, placements: Iterable[Placement], *, together: bool = True) -> list[Placement]:
    """The placements with micro-batches, in the order given: a rank begins the next where memory would run over.

    Without ``together`` every sequence is a micro-batch of its own. One that fits on no rank alone stays as it is.
    """
    room = problem.memory.room_bytes
    ends: dict[tuple[int, int], tuple[int, int, int]] = {}
    numbered = []
    for placement in placements:
        option = problem.option_on(placement.bucket, placement.config, placement.ranks)
        kept, live = (option.kept_bytes, option.live_bytes) if option else (0, 0)
        keys = [(placement.stage, rank) for rank in placement.ranks]
        states = [ends.get(key, (-1, 0, 0)) for key in keys]
        last = max(0, *(index for index, _, _ in states)) if together else 1 + max(index for index, _, _ in states)
        joined = [(k, v) for index, k, v in states if index == last]
        if together and any(k + kept + max(v, live) > room for k, v in joined):
            last, joined = last + 1, []
        for key, (index, k, v) in zip(keys, states, strict=True):
            same = index == last
            ends[key] = (last, (k if same else 0) + kept, max(v if same else 0, live))
        numbered.append(msgspec.structs.replace(placement, micro_batch=last))
    return numbered
