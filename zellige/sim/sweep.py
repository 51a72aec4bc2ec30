"""The additive fidelity for sweeps: step times straight from a problem's prices, without a program.

The same sums as :func:`zellige.placement.rank_costs`, with every lookup done once for all batches of the same buckets.
"""

from __future__ import annotations

from collections.abc import Iterable

from zellige.errors import InternalError
from zellige.placement import Placement, Problem
from zellige.shards import ParallelConfig


class PlanSums:
    """Adds up placements of one problem's buckets, cluster and engine."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._nodes = [problem.cluster.node_of(rank) for rank in range(problem.cluster.num_ranks)]
        self._known: dict[tuple[str, ParallelConfig, tuple[int, ...]], tuple[int, int]] = {}
        self._calls: dict[tuple[ParallelConfig, int], int] = {}
        self._all_calls: dict[int, int] = {}

    def times_ns(self, placements: Iterable[Placement]) -> list[int]:
        """Time of every rank; the step is the largest."""
        problem, known = self._problem, self._known
        times = [0] * len(self._nodes)
        grouped = problem.engine == "group"
        packed: set[tuple[ParallelConfig, tuple[int, ...], int]] = set()
        rounds = 0
        for placement in placements:
            config, ranks = placement.config, placement.ranks
            key = (placement.bucket, config, ranks)
            found = known.get(key)
            if found is None:
                found = known[key] = self._look_up(placement)
            own, nodes = found
            for rank in ranks:
                times[rank] += own
            if len(ranks) > 1:
                rounds = max(rounds, config.k)
                if grouped and config.h == len(ranks):
                    packed.add((config, ranks, nodes))
        for config, ranks, nodes in packed:
            shared = self._calls.get((config, nodes))
            if shared is None:
                shared = self._calls[config, nodes] = problem.shared_calls_ns(config.degree, nodes, 1)
            for rank in ranks:
                times[rank] += shared
        if problem.engine == "coalesced" and rounds:
            if rounds not in self._all_calls:
                cluster = problem.cluster
                self._all_calls[rounds] = problem.shared_calls_ns(cluster.num_ranks, cluster.num_nodes, rounds)
            times = [time + self._all_calls[rounds] for time in times]
        return times

    def _look_up(self, placement: Placement) -> tuple[int, int]:
        option = self._problem.option_on(placement.bucket, placement.config, placement.ranks)
        if option is None:
            raise InternalError(f"no price for {placement.bucket} as {placement.config}")
        return option.floor_ns, option.num_nodes
