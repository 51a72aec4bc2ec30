"""Cuts by length: pieces hold the batch, and the runs are those that brute force over all ways finds."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from zellige.plan.length_cuts import (
    LEAST_GAIN,
    MAX_PIECES,
    MORE_STEPS,
    STEPS_OF_A_RUN,
    Counts,
    LengthCuts,
    Run,
    RunTime,
    length_pieces,
)


@given(st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 60), st.integers(1, 10**12)), min_size=1, max_size=30))
def test_pieces_hold_every_sequence_the_longest_first(buckets: list[tuple[int, int, int]]) -> None:
    tokens, counts, work = map(list, zip(*buckets, strict=True))
    pieces = length_pieces(tokens, tuple(counts), work)
    assert [sum(column) for column in zip(*pieces, strict=True)] == counts
    assert len(pieces) <= MAX_PIECES
    assert all(any(piece) for piece in pieces)
    lengths = [[length for length, count in zip(tokens, piece, strict=True) if count] for piece in pieces]
    assert all(min(one) >= max(next_one) for one, next_one in itertools.pairwise(lengths))


def test_a_bucket_with_most_of_the_work_is_cut_within() -> None:
    assert length_pieces([10, 1000], (40, 3), [1, 1000]) == [(0, 1), (0, 1), (0, 1), (40, 0)]


def ways(size: int, most: int, start: int = 0) -> Iterator[list[Run]]:
    """Every way over the pieces from ``start`` on."""
    if start == size:
        yield []
        return
    for last in range(start + 1, size + 1):
        for steps in range(1, most + 1):
            for rest in ways(size, most, last):
                yield [Run(start, last, steps), *rest]


@settings(max_examples=60)
@given(seed=st.integers(0, 10**9), size=st.integers(1, 5), known=st.booleans(), first=st.integers(1, 3))
def test_runs_are_within_the_least_gain_of_the_best(seed: int, size: int, known: bool, first: int) -> None:
    chance = random.Random(seed)
    times = {run: chance.choice([None, chance.randrange(100, 400)]) for run in all_runs(size)}
    pieces: list[Counts] = [tuple(9 if index == piece else 0 for index in range(size)) for piece in range(size)]
    numbers = range(first, first + 3)
    known_runs: set[Run] = set()

    def planned(counts: Counts, steps: int, below: int | None) -> RunTime | None:
        """The time of a run; where that is not below the limit, often something in between."""
        run = run_of(counts, steps)
        assert run not in known_runs, "no run is planned again once its time is known"
        time = times[run]
        if below is not None and chance.random() < 0.8 and (time is None or time >= below):
            return RunTime(chance.randint(below, below + 5 if time is None else time), exact=False)
        known_runs.add(run)
        return None if time is None else RunTime(time, exact=True)

    def bound(counts: Counts) -> int:
        both = [time for steps in range(1, MORE_STEPS + 2) if (time := times[run_of(counts, steps)]) is not None]
        return min(both, default=50) * 3 // 4

    totals = []
    for way in ways(size, MORE_STEPS + 1):
        each = [times[run] for run in way]
        if sum(run.steps for run in way) in numbers and None not in each:
            totals.append(sum(time for time in each if time is not None))
    at_most = 700 if known else None
    least = min(totals, default=None)
    lengths = LengthCuts(pieces, bound, lambda _: 1, planned)
    runs = lengths.search(at_most, numbers, 1000)
    if least is None or (at_most is not None and least >= at_most * (1 - LEAST_GAIN)):
        assert runs is None
        return
    assert runs is not None
    assert [run.first for run in runs] == [0, *[run.last for run in runs[:-1]]]
    assert runs[-1].last == size
    assert sum(run.steps for run in runs) in numbers
    assert least <= sum(times[run] or 0 for run in runs) <= least / (1 - LEAST_GAIN)


def all_runs(size: int) -> list[Run]:
    """Every run over so many pieces that the search considers."""
    return [
        Run(first, last, steps)
        for first in range(size)
        for last in range(first + 1, size + 1)
        for steps in range(1, MORE_STEPS + 2)
    ]


def run_of(counts: Counts, steps: int) -> Run:
    held = [index for index, count in enumerate(counts) if count]
    return Run(held[0], held[-1] + 1, steps)


def test_runs_in_many_micro_steps_count_for_several() -> None:
    """So that a batch of hundreds of micro-steps costs about as many plans as one of a few."""
    pieces: list[Counts] = [tuple(400 if index == piece else 0 for index in range(4)) for piece in range(4)]
    for fewest in (4, 40):
        asked = []

        def planned(_: Counts, steps: int, below: int | None, asked: list[int] = asked) -> RunTime:
            asked.append(steps)
            return RunTime(10**9 - len(asked), exact=True)

        least = {1: fewest, 2: 2 * fewest, 3: 3 * fewest, 4: 4 * fewest}
        cuts = LengthCuts(
            pieces, lambda counts: 100 * sum(counts), lambda counts, least=least: least[sum(map(bool, counts))], planned
        )
        cuts.search(None, range(4 * fewest, 4 * fewest + 4), 16)
        assert sum(asked) <= 16 * STEPS_OF_A_RUN + 4 * (4 * fewest + MORE_STEPS)


def test_what_is_left_of_a_way_that_saves_no_more_is_not_planned() -> None:
    """Of two ways the one through pieces of their own promises more; its first run takes too long for its second."""
    asked = []

    def planned(counts: Counts, steps: int, below: int | None) -> RunTime:
        asked.append(counts)
        return RunTime(200, exact=True)

    bounds = {(1, 0): 30, (0, 1): 50, (1, 1): 90}
    cuts = LengthCuts([(1, 0), (0, 1)], bounds.__getitem__, lambda _: 1, planned)
    assert cuts.search(100, range(2, 3), 10) is None
    assert asked == [(1, 0), (1, 1)]
    assert cuts.spent == 3, "what was put off counts all the same"
