"""FCP-like: flexible context parallelism, groups of any size by dynamic programming (arXiv 2602.21788, version 2).

From the source (its abstract; the repository could not be read): communication groups and degrees are made anew for
every batch, degrees need not be powers of two, and a polynomial-time algorithm finds them in milliseconds.

Inferred: all of the algorithm. Sequences are dealt longest first to K groups by their whole price, the ranks are
apportioned by the exact dynamic programme ``D[i][j] = min over m of max(D[i-1][j-m], T_i(m))`` in which T_i(m) is the
cheapest split of group i over m ranks that fits in memory; then sequences are dealt anew, longest first, to the group
that ends first with its ranks, while that helps; the best K counts, from even groups and from one wide group beside
even ones. In one node no such groups beat the policy ``disjoint``. Groups pack their sequences, so the engine is
``group`` (pure Ulysses groups share their exchanges; rings do not, as nothing here prices packed rings). One
micro-batch: where memory is short the degrees grow, and where no degrees help there is no plan.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

import numpy as np

from zellige.placement import Placement, Plan, Problem, Solver, make_plan, rank_costs, require_placeable
from zellige.plan.bounds import best_bound
from zellige.plan.groups import Amounts, GroupPrices, group_prices, lay_out, place, priced_splits
from zellige.plan.room import without_plan
from zellige.workload import Sequence as Clip

MAX_DEALS = 8
"""Sequences are dealt at most so often for one number of groups."""

MAX_UNEVEN = 8
"""Up to so many groups, unequal ones are begun with too."""

NEVER = np.iinfo(np.int64).max
"""The time of what is not possible."""


def plan_fcp(problem: Problem) -> Plan:
    """The best number of groups, each with the degrees of the dynamic programme; the fewest groups among equals.

    Raises :class:`NoRoomError` where no degrees fit into memory.
    """
    require_placeable(problem)
    prices = group_prices(problem, priced_splits(problem))
    best: tuple[int, list[Placement], str] | None = None
    for speeds in first_speeds(problem.cluster.num_ranks, len(problem.batch.sequences)):
        placements = _with_groups(problem, prices, speeds)
        if placements is None:
            continue
        costs = rank_costs(problem, placements)
        if max(costs.memory_bytes) <= problem.memory.usable_bytes and (best is None or costs.makespan_ns < best[0]):
            sizes = sorted({p.ranks: len(p.ranks) for p in placements}.values(), reverse=True)
            best = (costs.makespan_ns, placements, "groups of " + " + ".join(map(str, sizes)))
    if best is None:
        raise without_plan(problem, "memory allows no disjoint groups of any degrees", "a policy with micro-batches")
    solver = Solver(name="dynamic programme", status="heuristic")
    return make_plan(problem, "fcp", best[1], bound=best_bound(problem), solver=solver, notes=(best[2],))


def first_speeds(num_ranks: int, num_sequences: int) -> Iterator[list[int]]:
    """Relative speeds of groups by which sequences are dealt at first: equal, or the first wider than the rest."""
    for number in range(1, min(num_ranks, num_sequences) + 1):
        yield [1] * number
        if 1 < number <= MAX_UNEVEN:
            for wide in range(2, num_ranks - number + 2, max(1, num_ranks // 16)):
                yield [wide * (number - 1)] + [num_ranks - wide] * (number - 1)


def _with_groups(problem: Problem, prices: GroupPrices, speeds: Sequence[int]) -> list[Placement] | None:
    """The placements of as many groups as there are speeds; None where memory allows none."""
    members = deal_longest_first(problem, speeds)
    best: tuple[int, list[int], list[list[Clip]], Amounts] | None = None
    for _ in range(MAX_DEALS):
        times, chosen = _times_by_degree(problem, prices, members)
        degrees = apportion(times)
        if degrees is None:
            break
        slowest = max(int(times[group, degree]) for group, degree in enumerate(degrees))
        if best is not None and slowest >= best[0]:
            break
        best = (slowest, degrees, members, chosen)
        members = deal_longest_first(problem, degrees)
    if best is None:
        return None
    _, degrees, members, chosen = best
    placements: list[Placement] = []
    for group, ranks in enumerate(lay_out(problem.cluster, degrees)):
        placements += place(members[group], prices.configs[chosen[group, degrees[group]]], ranks)
    return placements


def _times_by_degree(
    problem: Problem, prices: GroupPrices, members: Sequence[Sequence[Clip]]
) -> tuple[Amounts, Amounts]:
    """T_i(m) by group and degree (``NEVER`` where it does not fit), and the column of the split that it takes."""
    counts = np.array([prices.counts(group) for group in members])
    times = prices.times_ns(counts)
    times[prices.memory_bytes(counts) > problem.memory.room_bytes] = NEVER
    by_degree = np.full((len(members), problem.cluster.num_ranks + 1), NEVER, dtype=np.int64)
    chosen = np.zeros(by_degree.shape, dtype=np.int64)
    for column, degree in enumerate(prices.degrees):
        better = times[:, column] < by_degree[:, degree]
        by_degree[better, degree] = times[better, column]
        chosen[better, degree] = column
    return by_degree, chosen


def deal_longest_first(problem: Problem, speeds: Sequence[int]) -> list[list[Clip]]:
    """The sequences dealt to groups, the longest whole work first, each to the group that ends first with it."""
    work = {bucket.name: problem.whole(bucket).time_ns for bucket in problem.counts}
    heaps: dict[int, list[tuple[int, int]]] = {}
    for group, speed in enumerate(speeds):
        heaps.setdefault(speed, []).append((0, group))
    members: list[list[Clip]] = [[] for _ in speeds]
    for clip in sorted(problem.batch.sequences, key=lambda clip: -work[clip.bucket.name]):
        more = work[clip.bucket.name]
        speed = min(heaps, key=lambda speed: ((heaps[speed][0][0] + more) / speed, heaps[speed][0][1]))
        load, group = heaps[speed][0]
        heapq.heapreplace(heaps[speed], (load + more, group))
        members[group].append(clip)
    return members


def apportion(times_ns: Amounts) -> list[int] | None:
    """Ranks for every group so that the slowest is as fast as can be; the fewest ranks where groups tie.

    ``times_ns[i, m]`` is the time of group i on m ranks (``NEVER``: it cannot); column 0 is not used. Ranks may be left
    over. None where every apportionment has a group that cannot.
    """
    groups, columns = times_ns.shape
    reached = np.zeros(columns, dtype=np.int64)
    taken = np.zeros((groups, columns), dtype=np.int64)
    for group in range(groups):
        best = np.full(columns, NEVER, dtype=np.int64)
        for ranks in range(1, columns):
            candidate = np.maximum(reached[: columns - ranks], times_ns[group, ranks])
            better = candidate < best[ranks:]
            best[ranks:][better] = candidate[better]
            taken[group, ranks:][better] = ranks
        reached = best
    if reached[-1] == NEVER:
        return None
    degrees, left = [], columns - 1
    for group in range(groups - 1, -1, -1):
        degrees.append(int(taken[group, left]))
        left -= degrees[-1]
    return degrees[::-1]
