"""Lower bounds on the makespan, valid for any rank sets under the problem's own prices and engine.

Each sequence needs at least ``floor_ns`` of an option on ``degree`` ranks. B1 spreads the least work of every sequence
over all ranks; B2 is the fastest option of the slowest sequence; B3 asks for one time T that satisfies both: every
sequence has an option with ``floor_ns <= T``, and the work of the cheapest such options fits into N*T.

The coalesced engine adds calls to every rank once anything is split, and more with every ring round. A plan either
splits nothing, or has some number of rounds: it takes at least B3 over the options of no more rounds, and its calls.
The least of these sums over all numbers of rounds is B3 with calls.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from zellige.placement import Problem
from zellige.units import ceil_div

Choices = Sequence[tuple[int, Sequence[tuple[int, int]]]]


def area_bound(problem: Problem) -> int:
    """B1: the least total work over the number of ranks, rounded up, in nanoseconds."""
    work = sum(count * min(w for _, w in options) for count, options in _choices(problem))
    return ceil_div(work, problem.cluster.num_ranks)


def indivisible_bound(problem: Problem) -> int:
    """B2: the longest, over sequences, of the shortest option, in nanoseconds."""
    return max(min(time for time, _ in options) for _, options in _choices(problem))


def canonical_bound(problem: Problem) -> int:
    """B3: the least integer T for which every sequence has an option within T and the work fits, in nanoseconds."""
    return least_time(_choices(problem), problem.cluster.num_ranks)


def bound_with_calls(problem: Problem, canonical: int | None = None) -> int:
    """B3 with the calls that the coalesced engine adds to every rank, in nanoseconds; for other engines B3 itself.

    ``canonical`` is B3 where that is known.
    """
    least = canonical_bound(problem) if canonical is None else canonical
    if problem.engine != "coalesced":
        return least
    cluster = problem.cluster
    best: int | None = None
    for fewest, fronts in problem.fronts_by_rounds:
        calls = problem.shared_calls_ns(cluster.num_ranks, cluster.num_nodes, fewest) if fewest else 0
        if best is not None and least + calls >= best:
            break
        step = calls + least_time([(n, fronts[bucket.name]) for bucket, n in problem.counts.items()], cluster.num_ranks)
        best = step if best is None else min(best, step)
    return least if best is None else best


def least_time(choices: Choices, num_ranks: int) -> int:
    """B3 of (count, [(time, least work within it)]): the work is constant between the options' times."""
    low = max(options[0][0] for _, options in choices)
    work = _work_within(choices, low)
    if work <= num_ranks * low:
        return low
    steps = sorted({time for _, options in choices for time, _ in options if low < time <= ceil_div(work, num_ranks)})
    first = bisect_left(steps, True, key=lambda time: _work_within(choices, time) <= num_ranks * time)
    before = steps[first - 1] if first else low
    reached = ceil_div(_work_within(choices, before), num_ranks)
    return min(reached, steps[first]) if first < len(steps) else reached


def best_bound(problem: Problem) -> tuple[int, str]:
    """The largest of the bounds and its name."""
    area, indivisible, canonical = area_bound(problem), indivisible_bound(problem), canonical_bound(problem)
    with_calls = bound_with_calls(problem, canonical)
    if with_calls > canonical:
        return with_calls, "B3 canonical, with calls"
    if canonical > max(area, indivisible):
        return canonical, "B3 canonical"
    return (indivisible, "B2 indivisible") if indivisible >= area else (area, "B1 area")


def _choices(problem: Problem) -> Choices:
    """(count, [(time, work)]) for each bucket of the batch: the options of least work, by increasing time."""
    return [(count, problem.work_fronts[bucket.name]) for bucket, count in problem.counts.items()]


def _work_within(choices: Choices, limit: int) -> int:
    """The least total work of options within a time limit; the limit must allow one for every bucket."""
    beyond = (limit + 1,)
    return sum([count * options[bisect_left(options, beyond) - 1][1] for count, options in choices])
