"""How options may lie on ranks, on so many of one node or over several, and the least work within a time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Spread(NamedTuple):
    """``time`` ns on each of ``degree`` ranks of a node, or (``wide``) of several; ``work`` is their product."""

    work: int
    degree: int
    time: int
    wide: bool


def spreads_of(options: Iterable[tuple[bool, int, int]]) -> tuple[Spread, ...]:
    """The spreads of options (wide, degree, time): those that more ranks make faster, the least work first."""
    found: list[Spread] = []
    for wide, degree, time in sorted(options):
        if not (found and found[-1].wide == wide and found[-1].time <= time):
            found.append(Spread(degree * time, degree, time, wide))
    return tuple(sorted(found))


class WorkFront(NamedTuple):
    """Times, which rise, and the least work of the options within each, which falls."""

    times: tuple[int, ...]
    works: tuple[int, ...]


def work_front(options: Iterable[tuple[int, int]]) -> WorkFront:
    """The front of (time, work) pairs."""
    times: list[int] = []
    works: list[int] = []
    for time, work in sorted(options):
        if not works or work < works[-1]:
            times.append(time)
            works.append(work)
    return WorkFront(tuple(times), tuple(works))


class Kind(NamedTuple):
    """Plans of at least ``fewest`` ring rounds: how their sequences may lie, by bucket name, and the least work of it
    within a time."""

    fewest: int
    spreads: dict[str, tuple[Spread, ...]]
    fronts: dict[str, WorkFront]


def most_rounds(fewest: int) -> int:
    """The most ring rounds of plans of a kind that has so many at least: 0, 1, 2, then 4 for 3, 8 for 5, ..."""
    return 2 ** (fewest - 1).bit_length() if fewest else 0
