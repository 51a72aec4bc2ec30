"""Dividing whole sequences between two ranks: against trying everything, and where single moves stop."""

from __future__ import annotations

from itertools import product
from math import prod
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from zellige.plan import refine_kernel
from zellige.plan.divide_kernel import MOST_DIVISIONS, Kinds, Pool, Rest, divide
from zellige.plan.improve import improve
from zellige.plan.packing import Ranks, Split
from zellige.plan.refine import Book, refine
from zellige.problem import Option, Rung
from zellige.shards import ParallelConfig

AMPLE = 10**6

kinds_of = st.lists(
    st.tuples(st.integers(1, 40), st.integers(0, 9), st.sampled_from([0, 0, 4]), st.integers(0, 3)),
    min_size=1,
    max_size=3,
)


def pool_of(figures: list[tuple[int, int, int, int]]) -> Pool:
    time, kept, live, number = (list(each) for each in zip(*figures, strict=True))
    return Pool(Kinds(time, kept, live), number, [0] * len(figures), [0] * len(figures))


@settings(max_examples=300)
@given(kinds_of, st.integers(0, 60), st.integers(0, 60), st.integers(1, 300))
def test_with_ample_memory_the_best_division_is_found(
    figures: list[tuple[int, int, int, int]], one: int, other: int, limit: int
) -> None:
    pool = pool_of(figures)
    assert prod(number + 1 for *_, number in figures) <= MOST_DIVISIONS
    reached = divide(pool, Rest(one, other, 0, 0, 0, 0), AMPLE, limit)
    everything = [
        max(
            one + sum(n * t for n, (t, *_) in zip(taken, figures, strict=True)),
            other + sum((number - n) * t for n, (t, *_, number) in zip(taken, figures, strict=True)),
        )
        for taken in product(*(range(number + 1) for *_, number in figures))
    ]
    assert reached == min(limit, *everything)
    if reached < limit:
        mine = one + sum(n * t for n, (t, *_) in zip(pool.best, figures, strict=True))
        others = other + sum((number - n) * t for n, (t, *_, number) in zip(pool.best, figures, strict=True))
        assert max(mine, others) == reached


@settings(max_examples=300)
@given(kinds_of, st.integers(0, 20), st.integers(0, 20), st.integers(0, 60))
def test_a_division_fits_into_memory(figures: list[tuple[int, int, int, int]], one: int, other: int, room: int) -> None:
    pool = pool_of(figures)
    limit = 10**4
    if divide(pool, Rest(0, 0, one, other, 0, 0), room, limit) < limit:
        mine = [(n, kept, live) for n, (_, kept, live, _) in zip(pool.best, figures, strict=True)]
        others = [(number - n, kept, live) for n, (_, kept, live, number) in zip(pool.best, figures, strict=True)]
        for base, held in ((one, mine), (other, others)):
            assert (
                base + sum(n * kept for n, kept, _ in held) + max([live for n, _, live in held if n], default=0) <= room
            )


def rung(degree: int, time: int, kept: int = 0) -> Rung:
    option = Option(ParallelConfig(q=degree), 1, time, time, time, kept, 0, 0)
    return Rung(degree * time, time, degree, 1, kept, 0, option)


def test_a_division_goes_on_where_no_move_and_no_swap_helps() -> None:
    kinds, counts = [rung(1, 9), rung(1, 6), rung(1, 4)], [[2, 0], [0, 1], [0, 2]]
    ranks = Ranks(2)
    for kind, by_rank in zip(kinds, counts, strict=True):
        ranks.add_counts(by_rank, kind)
    assert ranks.time == [18, 14]
    improve(ranks, kinds, counts, AMPLE, 0, 10)
    assert sorted(ranks.time) == [15, 17]
    assert [sum(by_rank) for by_rank in counts] == [2, 1, 2]


def test_a_sequence_is_split_where_single_steps_stop() -> None:
    alone, ways = {"a": rung(1, 8), "b": rung(1, 19)}, {"a": [rung(1, 8), rung(2, 4)], "b": [rung(1, 19)]}
    reached = []
    for search in (refine_kernel.divide_pair, lambda _, split, *__: (split, 0)):
        counts, ranks = [[3, 2], [3, 0]], Ranks(2)
        split: list[Split] = []
        for kind, by_rank in zip(alone.values(), counts, strict=True):
            ranks.add_counts(by_rank, kind)
        with patch.object(refine_kernel, "divide_pair", search):
            refine(ranks, split, counts, Book(alone, ways, 2), AMPLE, 0, 20)
        reached.append((max(ranks.time), len(split)))
        assert sum(counts[0]) + len(split) == 5
    assert reached == [(50, 1), (57, 0)]
