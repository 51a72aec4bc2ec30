"""Replicas of a noisy step: summaries, and paired comparisons of policies that face the same noise."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from zellige.errors import UsageError
from zellige.placement import Problem
from zellige.program import Program
from zellige.sim.options import DEFAULTS, Fidelity, SimOptions
from zellige.sim.simulate import program_prices, simulate

CONFIDENCE = 0.95
RESAMPLES = 2000
BOOTSTRAPPED = 1000
"""The most values that are resampled; the mean of more of them is normal, and costs no memory."""

NORMAL = 1.959963984540054
"""The quantile of the normal distribution that ``CONFIDENCE`` asks for."""


class Interval(msgspec.Struct, frozen=True):
    """A mean, and a 95 % confidence interval of it.

    Bias-corrected and accelerated bootstrap up to ``BOOTSTRAPPED`` values, the normal interval beyond.
    """

    mean: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Whether zero is outside."""
        return self.low > 0 or self.high < 0


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Step times of replicas, in nanoseconds."""

    replicas: int
    mean_ns: Interval
    median_ns: float
    stdev_ns: float
    least_ns: int
    most_ns: int


class Paired(msgspec.Struct, frozen=True, kw_only=True):
    """One policy against another, batch by batch and replica by replica under the same noise.

    ``difference_ns`` is the second minus the first, ``ratio`` the second over the first; ``win_rate`` is how often the
    first is faster, a tie counting half.
    """

    pairs: int
    difference_ns: Interval
    ratio: Interval
    win_rate: float


def replicate(
    program: Program,
    problem: Problem,
    fidelity: Fidelity = "event",
    options: SimOptions = DEFAULTS,
    *,
    replicas: int,
) -> Iterator[int]:
    """Step times under ``replicas`` seeds, from the options' own on."""
    prices = program_prices(program, problem, options)
    for replica in range(replicas):
        noise = msgspec.structs.replace(options.noise, seed=options.noise.seed + replica)
        told = msgspec.structs.replace(options, noise=noise, trace=False)
        yield simulate(program, problem, fidelity, told, prices=prices).report.step_time_ns


def summarize(times_ns: Sequence[int]) -> Summary:
    """The summary of at least one step time."""
    if not times_ns:
        raise UsageError("there is no replica to summarize", fix="--replicas 1 or more")
    return Summary(
        replicas=len(times_ns),
        mean_ns=bootstrap_mean([float(time) for time in times_ns]),
        median_ns=statistics.median(times_ns),
        stdev_ns=statistics.stdev(times_ns) if len(times_ns) > 1 else 0.0,
        least_ns=min(times_ns),
        most_ns=max(times_ns),
    )


def compare_paired(first_ns: Sequence[int], second_ns: Sequence[int]) -> Paired:
    """Compare step times pair by pair; raises :class:`UsageError` where they are not as many."""
    if len(first_ns) != len(second_ns) or not first_ns:
        raise UsageError(f"{len(first_ns)} step times cannot be paired with {len(second_ns)}")
    pairs = PairTally()
    for first, second in zip(first_ns, second_ns, strict=True):
        pairs.add(first, second)
    return pairs.paired()


def bootstrap_mean(values: Sequence[float]) -> Interval:
    """The mean and its interval; one value, or values that are all equal, have an interval of no width."""
    tally = MeanTally()
    for value in values:
        tally.add(value)
    return tally.interval()


class MeanTally:
    """The mean of a stream of values and its interval, in the memory of the first ``BOOTSTRAPPED``."""

    __slots__ = ("_mean", "_squares", "_values", "count")

    def __init__(self) -> None:
        self.count = 0
        self._values: list[float] = []
        self._mean = self._squares = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self.count += 1
        if self.count <= BOOTSTRAPPED:
            self._values.append(value)
        away = value - self._mean
        self._mean += away / self.count
        self._squares += away * (value - self._mean)

    def interval(self) -> Interval:
        """The mean of at least one value."""
        if self.count <= BOOTSTRAPPED:
            return _bootstrap(self._values)
        half = NORMAL * math.sqrt(self._squares / (self.count - 1) / self.count)
        return Interval(self._mean, self._mean - half, self._mean + half)


class PairTally:
    """A stream of step times of two policies under the same noise."""

    __slots__ = ("_difference", "_ratio", "_wins")

    def __init__(self) -> None:
        self._difference, self._ratio, self._wins = MeanTally(), MeanTally(), 0.0

    def add(self, first_ns: int, second_ns: int) -> None:
        """Count a pair."""
        self._difference.add(float(second_ns - first_ns))
        self._ratio.add(second_ns / first_ns)
        self._wins += 0.5 + 0.5 * ((second_ns > first_ns) - (second_ns < first_ns))

    @property
    def count(self) -> int:
        """Pairs."""
        return self._difference.count

    def paired(self) -> Paired:
        """The comparison of at least one pair."""
        return Paired(
            pairs=self.count,
            difference_ns=self._difference.interval(),
            ratio=self._ratio.interval(),
            win_rate=self._wins / self.count,
        )


def _bootstrap(values: Sequence[float]) -> Interval:
    mean = statistics.fmean(values)
    if len(set(values)) == 1:
        return Interval(mean, mean, mean)
    import numpy as np
    import scipy.stats

    statistic: Callable[..., Any] = np.mean
    found = scipy.stats.bootstrap(
        (np.asarray(values),),
        statistic,
        confidence_level=CONFIDENCE,
        n_resamples=RESAMPLES,
        method="BCa",
        rng=np.random.default_rng(0),
    )
    return Interval(mean, float(found.confidence_interval.low), float(found.confidence_interval.high))
