"""Noise that all policies share, slow ranks and stalls, and the statistics of replicas."""

from __future__ import annotations

import math
import random
import statistics

import msgspec
import numpy as np
import pytest
from builders import NODE, TWO_NODES, model_of, priced, problem_of, program_of
from hypothesis import given, settings
from hypothesis import strategies as st

from zellige.errors import UsageError
from zellige.sim import FIDELITIES, Noise, SimOptions, simulate
from zellige.sim.noise import Factors
from zellige.sim.results import SimReport
from zellige.sim.stats import BOOTSTRAPPED, MeanTally, bootstrap_mean, compare_paired, replicate, summarize

WHOLE = [(9_000, "whole", (rank,)) for rank in range(8)]
SPLIT = [(9_000, "h4", (0, 1, 2, 3)), (9_000, "h4", (4, 5, 6, 7)), *WHOLE]


def step(placed: list[tuple[int, str, tuple[int, ...]]], noise: Noise, *, fidelity: str = "event") -> SimReport:
    problem = problem_of(model=model_of(4))
    options = SimOptions(noise=noise, state_traffic=False)
    return simulate(program_of(placed, problem), problem, fidelity, options).report  # type: ignore[arg-type]


def test_the_same_seed_is_the_same_step() -> None:
    noise = Noise(seed=7, batch=3, jitter=0.02)
    assert step(SPLIT, noise) == step(SPLIT, noise)
    others = (Noise(seed=8, batch=3, jitter=0.02), Noise(seed=7, batch=4, jitter=0.02), Noise())
    assert len({step(SPLIT, other).step_time_ns for other in (noise, *others)}) == 4


def test_policies_face_the_same_noise() -> None:
    """The factor of a rank's operation in a stage does not depend on what else there is."""
    noise = Noise(seed=1, jitter=0.05)
    first, second = Factors(noise, NODE, 9), Factors(noise, NODE, 9)
    assert first.work(10**6, 3, 5, 2) == second.work(10**6, 3, 5, 2)
    # Whole work alone, in both plans at the same place of the same stage.
    problem = problem_of(model=model_of(4), engine="per_sequence", checkpoint="none")
    extra = []
    for placed in (WHOLE, SPLIT):
        program = program_of(placed, problem)
        options = SimOptions(noise=noise, state_traffic=False, trace=True)
        spans = simulate(program, problem, "event", options).trace.spans
        extra.append([span.duration_ns for span in spans if span.rank == 5 and "whole" in span.name])
    assert extra[0] == extra[1]
    assert len(set(extra[0])) > 4


@settings(max_examples=10)
@given(seed=st.integers(0, 2**32), jitter=st.floats(0.001, 0.1))
def test_factors_are_lognormal_of_mean_one(seed: int, jitter: float) -> None:
    factors = Factors(Noise(seed=seed, jitter=jitter), NODE, 61)
    drawn = np.array([factors.work(10**9, rank, stage, 0) for rank in range(8) for stage in range(61)]) / 1e9
    assert drawn.mean() == pytest.approx(1, abs=6 * jitter / np.sqrt(drawn.size))
    assert np.log(drawn).std() == pytest.approx(jitter, rel=0.25)


def test_causes_still_add_up_under_noise() -> None:
    noise = Noise(jitter=0.05, slow_rank=2, slow_factor=1.3, stall_rate=0.2, stall_ns=5_000_000)
    report = step(SPLIT, noise)
    assert all(rank.total_ns == report.step_time_ns for rank in report.ranks)
    assert any(rank.jitter_ns > 0 for rank in report.ranks)


def test_a_slow_rank_and_a_slow_node() -> None:
    quiet = step(WHOLE, Noise()).step_time_ns
    slow = step(WHOLE, Noise(slow_rank=3, slow_factor=1.5))
    assert slow.step_time_ns == pytest.approx(1.5 * quiet, rel=1e-6)
    assert slow.slowest.rank == 3
    assert slow.layers_simulated == 4
    problem = problem_of(TWO_NODES, model_of(30))
    program = program_of([(9_000, "whole", (rank,)) for rank in range(16)], problem)
    options = SimOptions(noise=Noise(slow_node=1, slow_factor=2.0), state_traffic=False)
    report = simulate(program, problem, "event", options).report
    assert {rank.rank for rank in report.ranks if rank.idle_ns} == set(range(8))
    assert report.layers_simulated < 30


def test_stalls_come_as_often_as_said() -> None:
    stall = 50_000_000
    quiet = step(WHOLE, Noise())
    report = step(WHOLE, Noise(seed=2, stall_rate=1.0, stall_ns=stall))
    assert report.step_time_ns == quiet.step_time_ns + 8 * stall
    some = step(WHOLE, Noise(seed=2, stall_rate=0.5, stall_ns=stall))
    assert 0 < sum(rank.jitter_ns for rank in some.ranks) / stall < 8 * 8


@pytest.mark.parametrize("change", [{"jitter": -0.1}, {"slow_factor": 0.0}, {"stall_rate": 1.5}, {"stall_ns": -1}])
def test_noise_out_of_range_is_refused(change: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="out of range"):
        SimOptions(noise=msgspec.structs.replace(Noise(), **change))
    with pytest.raises(UsageError, match="must not be negative"):
        SimOptions(prefetch=-1)


# --- statistics


def test_replicas_are_the_seeds_from_the_first_on() -> None:
    problem = problem_of(model=model_of(2))
    program = program_of(SPLIT, problem)
    options = SimOptions(noise=Noise(seed=5, jitter=0.02), state_traffic=False)
    times = list(replicate(program, problem, "event", options, replicas=3))
    single = [
        simulate(program, problem, "event", msgspec.structs.replace(options, noise=Noise(seed=s, jitter=0.02)))
        for s in (5, 6, 7)
    ]
    assert times == [one.report.step_time_ns for one in single]
    assert len(set(times)) == 3
    assert priced(program, problem).program is program


def test_summaries() -> None:
    summary = summarize([100, 110, 90, 105, 95])
    assert (summary.replicas, summary.least_ns, summary.most_ns, summary.median_ns) == (5, 90, 110, 100)
    assert 90 < summary.mean_ns.low < summary.mean_ns.mean == 100 < summary.mean_ns.high < 110
    assert summarize([7]).mean_ns == summarize([7, 7]).mean_ns
    with pytest.raises(UsageError, match="no replica"):
        summarize([])


def test_pairs() -> None:
    first, second = [100, 200, 300, 400], [110, 190, 320, 400]
    paired = compare_paired(first, second)
    assert paired.win_rate == (1 + 0 + 1 + 0.5) / 4
    assert paired.difference_ns.mean == 5
    assert not paired.difference_ns.excludes_zero
    better = compare_paired(first, [time + 50 + time // 100 for time in first])
    assert better.win_rate == 1
    assert better.difference_ns.excludes_zero
    with pytest.raises(UsageError, match="cannot be paired"):
        compare_paired([1], [1, 2])


@settings(max_examples=5)
@given(seed=st.integers(0, 10**6))
def test_the_interval_covers_the_mean_of_normal_draws(seed: int) -> None:
    """Of 40 intervals of 95 %, by far most hold the true mean."""
    random = np.random.default_rng(seed)
    covered = sum(
        interval.low <= 10 <= interval.high
        for interval in (bootstrap_mean(random.normal(10, 1, 30).tolist()) for _ in range(40))
    )
    assert covered >= 31


def test_pairing_needs_fewer_replicas() -> None:
    """Under shared noise the difference of two plans varies less than under noise of their own."""
    problem = problem_of(model=model_of(2))
    programs = [program_of([(9_000, "h4", ranks), *WHOLE], problem) for ranks in ((0, 1, 2, 3), (2, 3, 4, 5))]
    options = SimOptions(noise=Noise(jitter=0.03), state_traffic=False)
    other = msgspec.structs.replace(options, noise=Noise(seed=1_000, jitter=0.03))
    first = list(replicate(programs[0], problem, FIDELITIES[1], options, replicas=40))
    shared = list(replicate(programs[1], problem, FIDELITIES[1], options, replicas=40))
    apart = list(replicate(programs[1], problem, FIDELITIES[1], other, replicas=40))
    widths = [
        interval.high - interval.low
        for interval in (compare_paired(first, second).difference_ns for second in (shared, apart))
    ]
    assert widths[0] < widths[1]


def test_many_values_take_the_memory_of_a_thousand() -> None:
    """Beyond those the interval is the normal one, which for so many is the bootstrap's."""
    draw = random.Random(3)
    values = [draw.gauss(50.0, 4.0) for _ in range(BOOTSTRAPPED)]
    resampled = bootstrap_mean(values)
    more = bootstrap_mean([*values, resampled.mean])
    assert more.mean == pytest.approx(resampled.mean)
    assert more.low == pytest.approx(resampled.low, abs=0.03)
    assert more.high == pytest.approx(resampled.high, abs=0.03)
    tally = MeanTally()
    for value in values * 20:
        tally.add(value)
    assert tally.count == 20 * BOOTSTRAPPED
    assert len(tally._values) == BOOTSTRAPPED
    error = statistics.stdev(values * 20) / math.sqrt(20 * BOOTSTRAPPED)
    assert tally.interval().high - tally.interval().mean == pytest.approx(1.959964 * error, rel=1e-6)
