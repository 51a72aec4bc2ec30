"""Lower bounds on the makespan, valid for any rank sets under the problem's own prices and engine.

Each sequence needs at least ``floor_ns`` of an option on ``degree`` ranks. B1 spreads the least work of every sequence
over all ranks; B2 is the fastest option of the slowest sequence; B3 asks for one time T that satisfies both: every
sequence has an option with ``floor_ns <= T``, and the work of the cheapest such options fits into N*T.
"""

from __future__ import annotations

from zellige.placement import Option, Problem
from zellige.units import ceil_div

Choices = list[tuple[int, list[tuple[int, int]]]]


def area_bound(problem: Problem) -> int:
    """B1: the least total work over the number of ranks, rounded up, in nanoseconds."""
    work = sum(count * min(w for _, w in options) for count, options in _choices(problem))
    return ceil_div(work, problem.cluster.num_ranks)


def indivisible_bound(problem: Problem) -> int:
    """B2: the longest, over sequences, of the shortest option, in nanoseconds."""
    return max(min(time for time, _ in options) for _, options in _choices(problem))


def canonical_bound(problem: Problem) -> int:
    """B3: the least integer T for which every sequence has an option within T and the work fits, in nanoseconds."""
    choices = _choices(problem)
    num_ranks = problem.cluster.num_ranks
    low = max(indivisible_bound(problem), area_bound(problem))
    high = max(low, ceil_div(sum(count * options[0][1] for count, options in choices), 1))
    while low < high:
        middle = (low + high) // 2
        if _work_within(choices, middle) <= num_ranks * middle:
            high = middle
        else:
            low = middle + 1
    return low


def best_bound(problem: Problem) -> tuple[int, str]:
    """The largest of the bounds and its name."""
    area, indivisible, canonical = area_bound(problem), indivisible_bound(problem), canonical_bound(problem)
    if canonical > max(area, indivisible):
        return canonical, "B3 canonical"
    return (indivisible, "B2 indivisible") if indivisible >= area else (area, "B1 area")


def _choices(problem: Problem) -> Choices:
    """(count, [(time, work)]) for each bucket of the batch: the options of least work, by increasing time."""
    return [(count, _pareto(problem.options[bucket.name])) for bucket, count in problem.counts.items()]


def _pareto(options: tuple[Option, ...]) -> list[tuple[int, int]]:
    """Options that no faster one beats in work: time rises, work falls."""
    pairs = sorted((option.floor_ns, option.floor_ns * option.config.degree) for option in options)
    kept: list[tuple[int, int]] = []
    for time, work in pairs:
        if not kept or work < kept[-1][1]:
            kept.append((time, work))
    return kept


def _work_within(choices: Choices, limit: int) -> int:
    """The least total work of options within a time limit; the limit must allow one for every bucket."""
    total = 0
    for count, options in choices:
        total += count * next(work for time, work in reversed(options) if time <= limit)
    return total
