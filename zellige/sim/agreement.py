"""How well predicted times agree with measured ones, and how far their order can be trusted.

Everything here is about pairs of (predicted, measured) step times of the same plans. Pairs of plans whose measured
times differ by less than a threshold, which is fixed from the noise beforehand, say nothing about order and are left
out.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from zellige.errors import UsageError
from zellige.sim.stats import Interval, bootstrap_mean

Pairs = Sequence[tuple[float, float]]
"""(predicted, measured)."""

Matrix = npt.NDArray[np.float64]
Draws = npt.NDArray[np.int64]

RESAMPLES = 1000


class Errors(msgspec.Struct, frozen=True, kw_only=True):
    """Relative errors of predictions: mean absolute, mean signed (positive: too long), and the largest absolute."""

    count: int
    mape: Interval
    signed: float
    worst: float


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """How the predicted order agrees with the measured one, with 95 % bootstrap intervals over plans.

    ``tau_clear`` is Kendall's tau over the ``clear_pairs`` of plans that differ by more than ``threshold``;
    ``pairwise`` the share of these pairs that is predicted in the measured order. ``regret`` is what the plan that is
    predicted fastest takes over the one that is, minus 1.
    """

    spearman: Interval
    kendall: Interval
    threshold: float
    clear_pairs: int
    tau_clear: Interval
    pairwise: float
    regret: float


def relative_errors(pairs: Pairs) -> Errors:
    """Errors of at least one pair; raises :class:`UsageError` where a measured value is not positive."""
    if not pairs or min(measured for _, measured in pairs) <= 0:
        raise UsageError("errors need measured values above zero")
    signed = [predicted / measured - 1 for predicted, measured in pairs]
    absolute = [abs(value) for value in signed]
    return Errors(count=len(pairs), mape=bootstrap_mean(absolute), signed=statistics.fmean(signed), worst=max(absolute))


def order(pairs: Pairs, threshold: float) -> Order:
    """The agreement of orders; intervals resample plans with a fixed seed."""
    return Order(
        spearman=_resampled(pairs, _spearman),
        kendall=_resampled(pairs, _kendall),
        threshold=threshold,
        clear_pairs=int(_clear(pairs, threshold).sum()) // 2,
        tau_clear=_resampled(pairs, lambda some, draws: _clear_tau(some, draws, threshold)),
        pairwise=pairwise_accuracy(pairs, threshold),
        regret=regret(pairs),
    )


def spearman(pairs: Pairs) -> float:
    """Spearman's rank correlation; 1.0 where all measured times are equal, 0.0 where only the predicted ones are."""
    return float(_spearman(pairs, _once(pairs))[0])


def kendall(pairs: Pairs) -> float:
    """Kendall's tau-b, with the same conventions."""
    return float(_kendall(pairs, _once(pairs))[0])


def clear_tau(pairs: Pairs, threshold: float) -> float:
    """(concordant - discordant) / all, over plans that differ by more than ``threshold``; 1.0 where none do."""
    return float(_clear_tau(pairs, _once(pairs), threshold)[0])


def pairwise_accuracy(pairs: Pairs, threshold: float) -> float:
    """The share of clearly different pairs that is predicted in the measured order."""
    return (1 + clear_tau(pairs, threshold)) / 2


def regret(pairs: Pairs) -> float:
    """Measured time of the plan that is predicted fastest, over the least measured, minus 1."""
    chosen = min(range(len(pairs)), key=lambda place: (pairs[place][0], place))
    return pairs[chosen][1] / min(measured for _, measured in pairs) - 1


def _once(pairs: Pairs) -> Draws:
    """All plans, once."""
    return np.arange(len(pairs))[None, :]


def _signs(pairs: Pairs) -> tuple[Matrix, Matrix]:
    """Which of two plans takes longer, predicted and measured: -1, 0 or 1."""
    predicted, measured = (np.array([pair[side] for pair in pairs]) for side in (0, 1))
    return np.sign(predicted[:, None] - predicted), np.sign(measured[:, None] - measured)


def _picked(matrix: Matrix, draws: Draws) -> Matrix:
    """The sum over all pairs of plans of each draw."""
    found: Matrix = matrix[draws[:, :, None], draws[:, None, :]].sum(axis=(1, 2))
    return found


def _clear(pairs: Pairs, threshold: float) -> Matrix:
    """1 where two plans clearly differ."""
    logs = np.log([measured for _, measured in pairs])
    far: Matrix = (np.abs(logs[:, None] - logs) > math.log1p(threshold) + 1e-12).astype(float)
    return far


def _clear_tau(pairs: Pairs, draws: Draws, threshold: float) -> Matrix:
    predicted, measured = _signs(pairs)
    clear = _clear(pairs, threshold)
    agree = np.where(predicted * measured > 0, 1.0, -1.0) * clear
    counts = _picked(clear, draws)
    result: Matrix = np.where(counts > 0, _picked(agree, draws) / np.maximum(counts, 1), 1.0)
    return result


def _kendall(pairs: Pairs, draws: Draws) -> Matrix:
    predicted, measured = _signs(pairs)
    untied = _picked(np.abs(predicted), draws) * _picked(np.abs(measured), draws)
    return _defined(_picked(predicted * measured, draws), np.sqrt(untied), _picked(np.abs(measured), draws))


def _spearman(pairs: Pairs, draws: Draws) -> Matrix:
    from scipy.stats import rankdata

    sides = []
    for side in (0, 1):
        values = np.array([pair[side] for pair in pairs])[draws]
        ranks = rankdata(values, axis=1)
        sides.append(ranks - ranks.mean(axis=1, keepdims=True))
    squares = [(side**2).sum(axis=1) for side in sides]
    return _defined((sides[0] * sides[1]).sum(axis=1), np.sqrt(squares[0] * squares[1]), squares[1])


def _defined(above: Matrix, below: Matrix, measured: Matrix) -> Matrix:
    """The quotient; without any order among the measured 1, among the predicted alone 0."""
    safe = np.where(below > 0, below, 1.0)
    result: Matrix = np.where(below > 0, above / safe, np.where(measured > 0, 0.0, 1.0))
    return result


def _resampled(pairs: Pairs, statistic: Callable[[Pairs, Draws], Matrix]) -> Interval:
    """The statistic of all plans, and the middle 95 % of it over resamples of them."""
    value = float(statistic(pairs, _once(pairs))[0])
    if len(pairs) < 3:
        return Interval(value, -1.0, 1.0)
    draws = np.random.default_rng(0).integers(0, len(pairs), size=(RESAMPLES, len(pairs)))
    low, high = np.quantile(statistic(pairs, draws), [0.025, 0.975])
    return Interval(value, float(low), float(high))


Verdict = Literal["certain", "uncertain"]


def order_is_certain(first: float, second: float, log_error: float, sigmas: float = 2.0) -> Verdict:
    """Whether two predictions differ by more than ``sigmas`` of the error of a difference of two.

    ``log_error`` is the standard deviation of the logarithm of predicted over measured.
    """
    apart = abs(math.log(first / second))
    return "certain" if apart > sigmas * math.sqrt(2) * log_error else "uncertain"


def log_error(pairs: Pairs) -> float:
    """The standard deviation of log(predicted / measured): a factor that all plans share does not count."""
    ratios = [math.log(predicted / measured) for predicted, measured in pairs]
    return statistics.stdev(ratios) if len(ratios) > 1 else 0.0
