"""What fits on one rank: against trying every set of shards, and linear programmes' prices against the tables."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zellige.plan import patterns
from zellige.plan.patterns import FEW, GRID, Patterns, Shards, State, knapsack, pattern_of, shards_of

Bucket = tuple[int, dict[int, int]]


def most_by_trying(buckets: list[Bucket], prices: list[int], room: int) -> int:
    """The most worth of shards within ``room`` ns: of a bucket no more than it has sequences, which is at most FEW."""
    ways: list[list[tuple[int, int]]] = []
    for (number, times), price in zip(buckets, prices, strict=True):
        shards = [(0, 0), *((time, -(-price // degree)) for degree, time in times.items())]
        ways += [shards] * number
    sums = [tuple(map(sum, zip(*chosen, strict=True))) for chosen in product(*ways)]
    return max(worth for time, worth in sums if time <= room)


times_by_degree = st.dictionaries(st.sampled_from([1, 2, 3, 4]), st.integers(1, 60), min_size=1, max_size=3)
few_buckets = st.lists(st.tuples(st.integers(1, FEW), times_by_degree), min_size=1, max_size=3)


@settings(deadline=None, max_examples=60)
@given(few_buckets, st.lists(st.integers(0, 100), min_size=3, max_size=3), st.integers(1, 150))
def test_a_rank_takes_what_the_best_set_of_shards_is_worth(
    buckets: list[Bucket], prices: list[int], longest: int
) -> None:
    shards = shards_of([number for number, _ in buckets], [times for _, times in buckets], longest)
    assert shards.unit == 1
    asked = np.array(prices[: len(buckets)], np.int64)
    most = knapsack(shards, asked, num_ranks=4).most
    for room in {0, longest // 2, longest}:
        able = [(number, {d: t for d, t in times.items() if t <= longest}) for number, times in buckets]
        assert most[room] == most_by_trying(able, asked.tolist(), room)


@settings(deadline=None, max_examples=60)
@given(few_buckets, st.lists(st.integers(0, 100), min_size=3, max_size=3), st.integers(150, 400), st.integers(30, 999))
def test_a_coarse_grid_never_takes_less(buckets: list[Bucket], prices: list[int], room: int, stretch: int) -> None:
    """Rounded down to cells, times and room are no more than relaxed; buckets of small sequences are divisible."""
    many = [(number, {d: t * stretch for d, t in times.items()}) for number, times in buckets]
    longest = 400 * stretch
    shards = shards_of([number for number, _ in many], [times for _, times in many], longest)
    asked = np.array(prices[: len(buckets)], np.int64)
    most = knapsack(shards, asked, num_ranks=4).most
    assert most[room * stretch // shards.unit] >= most_by_trying(many, asked.tolist(), room * stretch)


@settings(deadline=None, max_examples=60)
@given(st.integers(FEW + 1, 9), st.integers(1, 30), st.integers(1, 2000), st.integers(1, 10**6))
def test_many_small_sequences_are_divisible_and_bounded_by_their_number(
    number: int, work: int, room: int, price: int
) -> None:
    longest = 10 * GRID
    shards = shards_of([number], [{1: work, 2: work}], longest)
    assert shards.divisible == {0}
    most = knapsack(shards, np.array([price]), num_ranks=4).most
    cell = -(-price * shards.unit // work)
    divided = min(number * price, -(-price * room // work))
    assert min(number, room // work) * price <= most[room // shards.unit] <= divided + 2 * cell + number * work


@settings(deadline=None, max_examples=40)
@given(few_buckets, st.lists(st.integers(1, 100), min_size=3, max_size=3), st.integers(60, 150))
def test_a_pattern_is_worth_what_the_table_says(buckets: list[Bucket], prices: list[int], longest: int) -> None:
    shards = shards_of([number for number, _ in buckets], [times for _, times in buckets], longest)
    asked = np.array([12 * price for price in prices[: len(buckets)]], np.int64)
    found = knapsack(shards, asked, num_ranks=4)
    pattern = pattern_of(shards, found, longest)
    assert pattern.cells <= longest
    assert pattern.taken @ asked == pytest.approx(found.most[longest])


def equal_items(number: int, time: int, room: int) -> tuple[Shards, State]:
    shards = shards_of([number], [{1: time}], room)
    return shards, State(np.array([room]), np.array([3]), np.array([number]))


@pytest.mark.parametrize(("room", "refuted"), [(199, True), (200, False)])
def test_prices_refute_if_whole_sequences_do_not_fit(room: int, refuted: bool) -> None:
    """Three ranks for four sequences of 100 ns: one rank takes two, though an equal share would be 134."""
    shards, state = equal_items(4, 100, room)
    found = Patterns(shards).find_prices(state)
    assert (found is not None and found.missing(state) > 0) == refuted


@pytest.mark.parametrize(("ranks", "refuted"), [(1, True), (2, False)])
def test_a_rank_holds_one_shard_of_a_sequence(ranks: int, refuted: bool) -> None:
    """There is room for two, which no plan puts on one rank."""
    state = State(np.array([250]), np.array([ranks]), np.array([1]))
    found = Patterns(shards_of([1], [{2: 100}], 250)).find_prices(state)
    assert (found is not None and found.missing(state) > 0) == refuted


def test_integers_that_might_not_hold_are_refused() -> None:
    shards, _ = equal_items(4, 100, 200)
    with pytest.raises(OverflowError):
        knapsack(shards, np.array([2**59]), num_ranks=64)
    assert patterns.WORTH * 64 * 64 < 2**62
