"""Lower bounds on the makespan, valid for any rank sets under the problem's own prices and engine.

Each sequence needs at least ``floor_ns`` of an option on ``degree`` ranks. B1 spreads the least work of every sequence
over all ranks; B2 is the fastest option of the slowest sequence; B3 asks for one time T that satisfies both: every
sequence has an option with ``floor_ns <= T``, and the work of the cheapest such options fits into N*T.

The coalesced engine adds calls to every rank once anything is split, and more with every ring round. A plan either
splits nothing, or has some number of rounds: it takes at least B3 over the options of no more rounds, and its calls.
The least of these sums over all numbers of rounds is B3 with calls. A plan that splits nothing also has, for any k, a
rank that runs k + 1 of the k*N + 1 longest sequences.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate

from zellige.placement import Problem
from zellige.spreads import Kind, WorkFront
from zellige.units import ceil_div

Choices = Sequence[tuple[int, WorkFront]]
"""How many sequences each bucket has, and their options of least work."""


def area_bound(problem: Problem) -> int:
    """B1: the least total work over the number of ranks, rounded up, in nanoseconds."""
    work = sum(count * problem.work_fronts[name].works[-1] for name, count in problem.numbers.items())
    return ceil_div(work, problem.cluster.num_ranks)


def indivisible_bound(problem: Problem) -> int:
    """B2: the longest, over sequences, of the shortest option, in nanoseconds."""
    return max(problem.work_fronts[name].times[0] for name in problem.numbers)


def canonical_bound(problem: Problem) -> int:
    """B3: the least integer T for which every sequence has an option within T and the work fits, in nanoseconds."""
    return least_time_of(problem, problem.work_fronts)


def bound_with_calls(problem: Problem, canonical: int | None = None) -> int:
    """B3 with the calls that the coalesced engine adds to every rank, in nanoseconds; for other engines B3 itself.

    ``canonical`` is B3 where that is known.
    """
    least = canonical_bound(problem) if canonical is None else canonical
    if problem.engine != "coalesced":
        return least
    cluster = problem.cluster
    (_, alone), *others = problem.fronts_by_rounds
    split: int | None = None
    for fewest, fronts in others:
        calls = problem.shared_calls_ns(cluster.num_ranks, cluster.num_nodes, fewest)
        if split is not None and least + calls >= split:
            break
        step = calls + least_time_of(problem, fronts)
        split = step if split is None else min(split, step)
    if split is not None and split <= least_time_of(problem, alone):
        return split
    whole = whole_time_of(problem, alone)
    return whole if split is None else min(split, whole)


def kind_time(problem: Problem, kind: Kind) -> int:
    """What plans of a kind take at least without their calls, in nanoseconds."""
    whole = problem.engine == "coalesced" and not kind.fewest
    return whole_time_of(problem, kind.fronts) if whole else least_time_of(problem, kind.fronts)


def whole_time_of(problem: Problem, fronts: Mapping[str, WorkFront]) -> int:
    """:func:`least_time_of` the batch and :func:`whole_time`, for fronts of one option each, which is not split."""
    choices = [(count, fronts[name]) for name, count in problem.numbers.items()]
    return max(least_time_of(problem, fronts), whole_time(choices, problem.cluster.num_ranks))


def whole_time(choices: Choices, num_ranks: int) -> int:
    """The least time of whole sequences by the pigeonhole principle, in nanoseconds: for any k, one rank runs k + 1 of
    the k*N + 1 longest, which take no less than the k + 1 shortest of these."""
    ordered = sorted([(times[0], count) for count, (times, _) in choices], reverse=True)
    last = list(accumulate([count for _, count in ordered]))
    totals = list(accumulate([time * count for time, count in ordered]))

    def longest(number: int) -> int:
        place = bisect_left(last, number)
        return totals[place] - (last[place] - number) * ordered[place][0]

    turns = range((last[-1] - 1) // num_ranks + 1)
    return max([longest(k * num_ranks + 1) - longest(k * num_ranks - k) for k in turns])


def least_time_of(problem: Problem, fronts: Mapping[str, WorkFront]) -> int:
    """B3 of the batch under some fronts, which are the problem's own: those of many limits on ring rounds are equal."""
    mine = [fronts[name] for name in problem.numbers]
    key = tuple(map(id, mine))
    if key not in problem.least_times:
        choices = list(zip(problem.numbers.values(), mine, strict=True))
        problem.least_times[key] = least_time(choices, problem.cluster.num_ranks)
    return problem.least_times[key]


def least_time(choices: Choices, num_ranks: int) -> int:
    """B3 of some choices: the work is constant between the options' times, and never less than that of the slowest."""
    least = ceil_div(sum([count * works[-1] for count, (_, works) in choices]), num_ranks)
    low = max(least, *[times[0] for _, (times, _) in choices])
    work = _work_within(choices, low)
    if work <= num_ranks * low:
        return low
    high = ceil_div(work, num_ranks)
    steps = sorted({time for _, front in choices for time in front.times if low < time <= high})
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


def bound_of_some(problem: Problem, numbers: Mapping[str, int]) -> int:
    """:func:`best_bound` of some of the batch's sequences, counted by bucket name, in nanoseconds.

    They take no less in any number of micro-steps: one of these has the most ring rounds, and makes its calls.
    """
    num_ranks, num_nodes = problem.cluster.num_ranks, problem.cluster.num_nodes
    if problem.engine != "coalesced":
        return least_time([(count, problem.work_fronts[name]) for name, count in numbers.items()], num_ranks)
    found = []
    for fewest, fronts in problem.fronts_by_rounds:
        choices = [(count, fronts[name]) for name, count in numbers.items()]
        calls = problem.shared_calls_ns(num_ranks, num_nodes, fewest) if fewest else 0
        found.append(calls + max(least_time(choices, num_ranks), 0 if fewest else whole_time(choices, num_ranks)))
    return min(found)


def _work_within(choices: Choices, limit: int) -> int:
    """The least total work of options within a time limit; the limit must allow one for every bucket."""
    return sum([count * works[bisect_right(times, limit) - 1] for count, (times, works) in choices])
