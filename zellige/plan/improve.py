"""Local search over whole sequences: move one off the slowest rank, or swap it for a shorter one of another rank."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from zellige.plan import improve_kernel
from zellige.plan.compiled import compiled
from zellige.plan.divide_kernel import Kinds, Pool
from zellige.plan.improve_kernel import PARTNERS, Changes, Whole
from zellige.plan.layout import Ints, int_array, zeros
from zellige.plan.packing import Ranks, as_rows
from zellige.problem import Rung


def improve(
    ranks: Ranks,
    kinds: Sequence[Rung],
    counts: Ints,
    room: int,
    goal: int,
    limit: int,
    partners: int = PARTNERS,
) -> None:
    """Take time off the slowest rank until it is within ``goal``, no change helps, or ``limit`` changes are made.

    ``counts[kind][rank]`` whole sequences under ``kinds[kind]``, an array where the ranks are; changes it and
    ``ranks``. Largest live segments are not lowered when their sequence leaves, so that memory is never under-counted.
    """
    if ranks.longest <= goal:
        return
    figures = Kinds([rung.time for rung in kinds], [rung.kept for rung in kinds], [rung.live for rung in kinds])
    times = tuple(figures.time)
    if not ranks.may_compile(room, goal, *figures.time, *figures.kept, *figures.live):
        order = sorted(range(len(ranks.time)), key=ranks.time.__getitem__)
        pool = Pool(figures, *[[0] * len(kinds) for _ in range(3)])
        whole = Whole(ranks.loads, pool, _changes(times), counts, order)
        improve_kernel.improve(whole, room, goal, limit, partners)
        return
    loads, rows = ranks.loads_as_arrays(), counts if ranks.are_arrays else as_rows(counts, len(ranks.time))
    order = loads.time.argsort(kind="stable")
    pool = Pool(Kinds(*int_array(figures)), *zeros(3, len(kinds)))
    whole = Whole(loads, pool, change_arrays(times), rows, order)
    compiled(improve_kernel.__name__, "improve")(whole, room, goal, limit, partners)
    if not ranks.are_arrays:
        ranks.take(loads)
        for row, changed in zip(counts, rows.tolist(), strict=True):
            row[:] = changed


@lru_cache(maxsize=256)
def _changes(times: tuple[int, ...]) -> Changes:
    """All changes between kinds of some times that take time off the slowest rank."""
    found = sorted(
        (time - (times[other] if other >= 0 else 0), kind, other)
        for kind, time in enumerate(times)
        for other in range(-1, len(times))
        if other < 0 or times[other] < time
    )
    return Changes(*map(list, zip(*found, strict=True))) if found else Changes([], [], [])


@lru_cache(maxsize=256)
def change_arrays(times: tuple[int, ...]) -> Changes:
    """All changes between kinds of some times, as arrays."""
    return Changes(*map(int_array, _changes(times)))
