"""The catalog cut against trying every k, with exact arithmetic of its own."""

from __future__ import annotations

import dataclasses
import math
import random
from fractions import Fraction

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle.brute_force import make_price, small_cluster, synthetic_problem

from zellige.catalog import names
from zellige.placement import Problem
from zellige.plan.cut import catalog_cut
from zellige.plan.two_stage import anchor_buckets
from zellige.shards import ParallelConfig
from zellige.sources import Options, build_problems, read_source

PAPER = [name for name in names("workloads") if name.startswith("paper-10s-high")]


def spread(values: list[Fraction]) -> Fraction:
    """Sum of squares about the mean, without rounding."""
    mean = sum(values, Fraction(0)) / len(values)
    return sum(((value - mean) ** 2 for value in values), Fraction(0))


def dispersions(prices: list[int]) -> list[Fraction]:
    """What each k from 1 leaves; logs are floats taken as they are, everything after them is exact."""
    logs = [Fraction(math.log(price)) for price in prices]
    return [spread(logs[:k]) + spread(logs[k:]) for k in range(1, len(prices))]


@given(st.lists(st.integers(1, 10**15), min_size=2, max_size=12))
def test_random_catalogs_against_every_k(prices: list[int]) -> None:
    prices.sort()
    if prices[0] == prices[-1]:
        prices[-1] += 1
    expected = dispersions(prices)
    cut = catalog_cut(prices)
    least = min(expected)
    assert 1 <= cut.k < len(prices)
    assert float(expected[cut.k - 1] - least) <= 1e-9 * (1 + float(least))
    assert cut.dispersion == pytest.approx([float(value) for value in expected], rel=1e-9, abs=1e-9)
    clearly_worse = [value for value in expected[: cut.k - 1] if float(value - least) <= 1e-14]
    assert not clearly_worse, "a smaller k is as good"


def test_two_classes_far_apart() -> None:
    """The widest gap in the logs, not in the prices, divides the classes."""
    assert catalog_cut([10, 11, 12, 5000, 6000]).k == 3
    assert catalog_cut([1, 1000, 1001, 1002, 9000]).k == 1


@pytest.mark.parametrize(("prices", "k"), [([1, 10, 100], 1), ([4, 4, 8, 16, 16], 2), ([1, 2, 2, 4], 1), ([7, 9], 1)])
def test_ties_take_the_smallest_k(prices: list[int], k: int) -> None:
    """Mirror images in the logs leave the same dispersion; rounding must not decide between them."""
    exact = dispersions(prices)
    mirrored = len(prices) - k
    assert float(exact[k - 1]) == pytest.approx(float(exact[mirrored - 1]), abs=1e-12)
    assert catalog_cut(prices).k == k
    assert catalog_cut([price * 1_000_003 for price in prices]).k == k


@given(st.lists(st.integers(1, 10**6), min_size=2, max_size=10), st.integers(2, 10**9))
def test_a_uniform_price_scale_changes_nothing(prices: list[int], scale: int) -> None:
    prices.sort()
    assert catalog_cut([price * scale for price in prices]).k == catalog_cut(prices).k


@pytest.mark.parametrize("count", [1, 2, 7])
def test_one_bucket_or_equal_prices_are_all_fillers(count: int) -> None:
    assert catalog_cut([12345] * count).k == count


@pytest.mark.parametrize("prices", [[], [2, 1], [1, 3, 2]])
def test_what_is_no_ascending_catalog(prices: list[int]) -> None:
    with pytest.raises(ValueError, match=r"ascend|at least one"):
        catalog_cut(prices)


def problem_of(workload: str) -> Problem:
    options = Options()
    (problem,) = build_problems(read_source(workload, options), options, print)
    return problem


@pytest.mark.parametrize("workload", PAPER)
def test_images_of_the_paper_are_fillers_and_videos_anchors(workload: str) -> None:
    """The cut is of the training run's bucket set, whether or not a batch holds all of it."""
    problem = problem_of(workload)
    assert [bucket.name for bucket in problem.batch.buckets if not bucket.is_video] == [
        "256x256x1", "832x480x1", "1280x720x1", "1920x1080x1",
    ]  # fmt: skip
    assert anchor_buckets(problem) == {"832x480x161", "1280x720x161", "1920x1080x161"}


def test_the_order_of_buckets_does_not_matter() -> None:
    problem = problem_of(PAPER[0])
    chance = random.Random(0)
    for _ in range(5):
        buckets = chance.sample(problem.batch.buckets, len(problem.batch.buckets))
        batch = msgspec.structs.replace(problem.batch, buckets=tuple(buckets))
        assert anchor_buckets(dataclasses.replace(problem, batch=batch)) == anchor_buckets(problem)


def test_a_bucket_below_the_cut_that_fits_nowhere_whole_is_an_anchor() -> None:
    """Two buckets of equal price are fillers both; the one that no rank can hold whole must be split all the same."""
    whole = ParallelConfig()
    prices = {
        "16x16x1": {(whole, 1): make_price(100, kept=1)},
        "32x16x1": {(whole, 1): make_price(100, kept=9), (ParallelConfig(q=2), 1): make_price(50, kept=5)},
    }
    counts = {"16x16x1": 1, "32x16x1": 1}
    assert anchor_buckets(synthetic_problem(prices, counts, small_cluster(2), "group", 9)) == set()
    assert anchor_buckets(synthetic_problem(prices, counts, small_cluster(2), "group", 8)) == {"32x16x1"}
