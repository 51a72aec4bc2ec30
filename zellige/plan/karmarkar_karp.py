"""Data parallelism balanced by largest differencing (Karmarkar and Karp 1982), as RL training loops balance tokens."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from zellige.placement import Placement, Plan, Problem, Solver, make_plan
from zellige.plan.bounds import best_bound
from zellige.shards import WHOLE

Part = tuple[int, tuple[int, ...]]


def plan_dp_kk(problem: Problem) -> Plan:
    """Every sequence whole, balanced over the ranks by their whole prices. Memory is not looked at."""
    sequences = problem.batch.sequences
    prices = [problem.whole(sequence.bucket).time_ns for sequence in sequences]
    placements = [
        Placement(sequence=sequences[item].id, bucket=sequences[item].bucket.name, config=WHOLE, ranks=(rank,))
        for rank, items in enumerate(largest_differencing(prices, problem.cluster.num_ranks))
        for item in items
    ]
    solver = Solver(name="karmarkar-karp", status="heuristic")
    return make_plan(problem, "dp-kk", placements, bound=best_bound(problem), solver=solver)


def largest_differencing(values: Sequence[int], num_parts: int) -> list[tuple[int, ...]]:
    """Indices of the values in each of ``num_parts`` parts, the part of the largest sum first.

    Every value starts as a partition of its own. The two partitions whose sums differ most are merged, largest part
    with smallest, until one is left. Empty parts are not stored: a partition is its non-empty parts, largest first.
    """
    heap: list[tuple[int, int, list[Part]]] = [
        (-value if num_parts > 1 else 0, index, [(value, (index,))]) for index, value in enumerate(values)
    ]
    heapq.heapify(heap)
    while len(heap) > 1:
        _, age, first = heapq.heappop(heap)
        _, other_age, second = heapq.heappop(heap)
        merged = _merge(first, second, num_parts)
        smallest = merged[-1][0] if len(merged) == num_parts else 0
        heapq.heappush(heap, (smallest - merged[0][0], min(age, other_age), merged))
    parts = [items for _, items in heap[0][2]] if heap else []
    return parts + [()] * (num_parts - len(parts))


def _merge(first: list[Part], second: list[Part], num_parts: int) -> list[Part]:
    """Largest with smallest; where both fit side by side nothing is added up."""
    together = max(0, len(first) + len(second) - num_parts)
    alone = [*first[: len(first) - together], *second[: len(second) - together]]
    pairs = zip(first[len(first) - together :], reversed(second[len(second) - together :]), strict=True)
    joined = [(a + b, items + more) for (a, items), (b, more) in pairs]
    return sorted([*alone, *joined], key=lambda part: (-part[0], part[1]))
