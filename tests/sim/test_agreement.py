from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zellige.errors import UsageError
from zellige.sim.agreement import (
    clear_tau,
    kendall,
    log_error,
    order,
    order_is_certain,
    pairwise_accuracy,
    regret,
    relative_errors,
    spearman,
)

TIMES = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=2, max_size=12)


def test_errors_are_signed_and_absolute() -> None:
    errors = relative_errors([(110.0, 100.0), (80.0, 100.0)])
    assert errors.mape.mean == pytest.approx(0.15)
    assert errors.signed == pytest.approx(-0.05)
    assert errors.worst == pytest.approx(0.2)
    with pytest.raises(UsageError):
        relative_errors([(1.0, 0.0)])


@given(TIMES)
def test_tau_b_by_its_definition(pairs: list[tuple[int, int]]) -> None:
    score = ties_p = ties_m = 0
    for place, (p, m) in enumerate(pairs):
        for q, n in pairs[place + 1 :]:
            sign = ((p > q) - (p < q)) * ((m > n) - (m < n))
            score += sign
            ties_p += p == q
            ties_m += m == n
    total = len(pairs) * (len(pairs) - 1) / 2
    if ties_p < total and ties_m < total:
        assert kendall([(float(p), float(m)) for p, m in pairs]) == pytest.approx(
            score / math.sqrt((total - ties_p) * (total - ties_m))
        )


@given(TIMES, st.floats(0, 0.5))
def test_clear_pairs_by_their_definition(pairs: list[tuple[int, int]], threshold: float) -> None:
    right = wrong = 0
    for place, (p, m) in enumerate(pairs):
        for q, n in pairs[place + 1 :]:
            if max(m, n) / min(m, n) > 1 + threshold + 1e-12:
                right += (p - q) * (m - n) > 0
                wrong += (p - q) * (m - n) <= 0
    some = [(float(p), float(m)) for p, m in pairs]
    if right + wrong:
        assert pairwise_accuracy(some, threshold) == pytest.approx(right / (right + wrong))
        assert clear_tau(some, threshold) == pytest.approx((right - wrong) / (right + wrong))
    else:
        assert clear_tau(some, threshold) == pairwise_accuracy(some, threshold) == 1.0


def test_a_perfect_order_is_one_and_a_reversed_one_minus_one() -> None:
    same = [(float(n), 10.0 * n) for n in range(1, 8)]
    turned = [(-float(n) + 20, 10.0 * n) for n in range(1, 8)]
    assert (spearman(same), kendall(same), clear_tau(same, 0.01), regret(same)) == pytest.approx((1, 1, 1, 0))
    assert (spearman(turned), kendall(turned), clear_tau(turned, 0.01)) == pytest.approx((-1, -1, -1))
    assert regret(turned) == pytest.approx(6.0)


@settings(max_examples=10)
@given(st.integers(5, 15))
def test_intervals_hold_their_value_and_repeat(count: int) -> None:
    pairs = [(float(n + n % 3), float(n + 1)) for n in range(count)]
    first, again = order(pairs, 0.02), order(pairs, 0.02)
    assert first == again
    for interval in (first.spearman, first.kendall, first.tau_clear):
        assert interval.low <= interval.high
        assert interval.low >= -1
        assert interval.high <= 1


def test_certain_means_further_apart_than_the_error_of_a_difference() -> None:
    assert order_is_certain(100.0, 120.0, 0.02) == "certain"
    assert order_is_certain(100.0, 103.0, 0.02) == "uncertain"
    assert order_is_certain(100.0, 300.0, math.inf) == "uncertain"
    assert order_is_certain(100.0, 100.0, 0.0) == "uncertain"


def test_a_factor_that_all_share_is_no_error_of_order() -> None:
    assert log_error([(2.0, 1.0), (4.0, 2.0), (10.0, 5.0)]) == pytest.approx(0.0, abs=1e-12)
    assert log_error([(1.0, 1.0)]) == 0.0
