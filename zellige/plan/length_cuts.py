"""Cuts of a batch by length: runs of neighbouring lengths, the longest first, each in micro-steps of its own.

One run may have few long sequences, split, and all the memory, another whole ones without any shared call. Runs need
not be equal in time: only the sum counts. Which of them are worth a plan, lower bounds say: the shortest way over all
lengths is taken with bounds where a run has no plan yet; the runs on it are planned, and so on until a way of plans is
the shortest, or bounds promise less than ``LEAST_GAIN``. Most runs are never planned. (Shortest ways whose edges cost
much to weigh: Dellin and Srinivasa, ICAPS 2016.)

A run is planned only as far as its way still saves; what is left of the way's runs is put off until another way that
promises enough needs them. They count as planned all the same.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from zellige.units import ceil_div

Counts = tuple[int, ...]
"""How many sequences of each bucket, in the order of the problem's counts."""

SHARES = 8
MAX_PIECES = 12
"""A bucket makes as many pieces as it has eighths of the work, so that runs may end within it; so many in all."""

MORE_STEPS = 1
"""A run is cut into as few micro-steps as its memory needs, or so many more."""

STEPS_OF_A_RUN = 16
"""A run in more micro-steps counts for several: its parts are about as many plans."""

LEAST_GAIN = 0.001
"""A cut that saves less is not looked for, nor taken: more micro-steps gather parameters more often."""


class Run(NamedTuple):
    """The pieces ``[first, last)``, in so many micro-steps."""

    first: int
    last: int
    steps: int


class RunTime(NamedTuple):
    """What a run takes, or (not ``exact``) what it takes at least."""

    time_ns: int
    exact: bool


def length_pieces(tokens: Sequence[int], counts: Counts, work: Sequence[int]) -> list[Counts]:
    """A batch in pieces of few lengths, the longest first; neighbours of the least work are joined where they are many.

    ``tokens``, ``counts`` and ``work`` (of one sequence) are by bucket.
    """
    total = sum(map(int.__mul__, counts, work))
    pieces: list[Counts] = []
    for bucket in sorted(range(len(counts)), key=lambda bucket: (-tokens[bucket], bucket)):
        count = counts[bucket]
        shares = min(count, max(1, SHARES * count * work[bucket] // total))
        ends = [count * share // shares for share in range(shares + 1)]
        for start, end in itertools.pairwise(ends):
            pieces.append(tuple(end - start if index == bucket else 0 for index in range(len(counts))))
    while len(pieces) > MAX_PIECES:
        works = [sum(map(int.__mul__, piece, work)) for piece in pieces]
        least = min(range(len(pieces) - 1), key=lambda index: (works[index] + works[index + 1], -index))
        pieces[least : least + 2] = [_sum(pieces[least : least + 2])]
    return pieces


class LengthCuts:
    """The shortest way over a batch's pieces, by bounds, and by plans where those are known.

    Of some counts, ``bound`` is no more than any cut of them takes, ``least`` a number of micro-steps below which there
    is no room, and ``planned`` what they take in a number of micro-steps (None: no plan fits); where that is not below
    a limit, something from the limit up to it will do. Times in nanoseconds.
    """

    def __init__(
        self,
        pieces: Sequence[Counts],
        bound: Callable[[Counts], int],
        least: Callable[[Counts], int],
        planned: Callable[[Counts, int, int | None], RunTime | None],
    ) -> None:
        self.size = len(pieces)
        self.planned = planned
        self.counts: dict[tuple[int, int], Counts] = {}
        self.times: dict[Run, int | None] = {}
        """Of every run, its planned time or else the best bound known; None where no plan fits."""
        for first, last in itertools.combinations(range(self.size + 1), 2):
            counts = self.counts[first, last] = _sum(pieces[first:last])
            fewest = least(counts)
            for steps in range(fewest, min(fewest + MORE_STEPS, sum(counts)) + 1):
                self.times[Run(first, last, steps)] = bound(counts)
        self.known: set[Run] = set()
        self.chosen: set[Run] = set()
        self.spent = 0

    def search(self, at_most: int | None, numbers: range, most_runs: int) -> list[Run] | None:
        """Runs that take ``LEAST_GAIN`` less than ``at_most``, in one of ``numbers`` micro-steps; None: none found.

        Where bounds stop the search before ``most_runs`` were chosen to be planned, none take ``LEAST_GAIN`` less than
        these. A run in more than ``STEPS_OF_A_RUN`` micro-steps counts for several.
        """
        found: list[Run] | None = None
        while self.spent < most_runs:
            way = self._shortest(numbers)
            if way is None or not _saves(self._time(way), at_most):
                break
            for run in way:
                self.spent += 0 if run in self.chosen else ceil_div(run.steps, STEPS_OF_A_RUN)
            self.chosen.update(way)
            if self._plan(way, at_most):
                at_most, found = self._time(way), way
        return found

    def _plan(self, way: Sequence[Run], at_most: int | None) -> bool:
        """Plan the runs of a way, the longest sequences first, as long as it saves; and say whether it does."""
        for run in [run for run in way if run not in self.known]:
            others = self._time(way) - (self.times[run] or 0)
            below = None if at_most is None else _least_too_long(at_most) - others
            found = self.planned(self.counts[run.first, run.last], run.steps, below)
            if found is None or found.exact:
                self.known.add(run)
            self.times[run] = None if found is None else found.time_ns
            if found is None or not _saves(self._time(way), at_most):
                return False
        return True

    def _time(self, way: Sequence[Run]) -> int:
        return sum(self.times[run] or 0 for run in way)

    def _shortest(self, numbers: range) -> list[Run] | None:
        """The way of the least time over all pieces, by dynamic programming over (pieces, micro-steps)."""
        best: dict[tuple[int, int], tuple[int, tuple[Run, ...]]] = {(0, 0): (0, ())}
        for run, time in sorted(self.times.items(), key=lambda item: (item[0].last, item[0])):
            if time is None:
                continue
            for before in range(numbers.stop - run.steps):
                held = best.get((run.first, before))
                key = run.last, before + run.steps
                if held is not None and (key not in best or held[0] + time < best[key][0]):
                    best[key] = held[0] + time, (*held[1], run)
        ends = [best[self.size, number] for number in numbers if (self.size, number) in best]
        return list(min(ends, key=lambda end: end[0])[1]) if ends else None


def _saves(time_ns: int, at_most: int | None) -> bool:
    return at_most is None or time_ns < _least_too_long(at_most)


def _least_too_long(at_most: int) -> int:
    """The least time that does not save."""
    return math.ceil(at_most * (1 - LEAST_GAIN))


def _sum(pieces: Sequence[Counts]) -> Counts:
    return tuple(map(sum, zip(*pieces, strict=True)))
