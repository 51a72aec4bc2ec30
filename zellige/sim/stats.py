"""Replicas of a noisy step: summaries, and paired comparisons of policies that face the same noise."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from zellige.errors import UsageError
from zellige.op_prices import OpPricer
from zellige.placement import Problem
from zellige.program import Program
from zellige.sim.options import DEFAULTS, Fidelity, SimOptions
from zellige.sim.simulate import simulate

CONFIDENCE = 0.95
RESAMPLES = 2000


class Interval(msgspec.Struct, frozen=True):
    """A mean, and a 95 % confidence interval of it (bias-corrected and accelerated bootstrap)."""

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
    prices = OpPricer(problem.model, problem.cluster, all_to_all=options.all_to_all).price(program)
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
    pairs = list(zip(first_ns, second_ns, strict=True))
    return Paired(
        pairs=len(pairs),
        difference_ns=bootstrap_mean([float(second - first) for first, second in pairs]),
        ratio=bootstrap_mean([second / first for first, second in pairs]),
        win_rate=statistics.fmean(0.5 + 0.5 * ((second > first) - (second < first)) for first, second in pairs),
    )


def bootstrap_mean(values: Sequence[float]) -> Interval:
    """The mean and its interval; one value, or values that are all equal, have an interval of no width."""
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
