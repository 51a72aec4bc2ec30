"""A comparison says what the simulator says of each plan, under one noise for all, and what the sums leave out."""

from __future__ import annotations

import dataclasses

import pytest

from zellige.compare import Comparison, compare
from zellige.errors import UsageError
from zellige.outcomes import Fidelities
from zellige.placement import Problem
from zellige.plan import plan_batch
from zellige.program import lower
from zellige.rows import Row
from zellige.sim import FIDELITIES, Fidelity, Noise, SimOptions, simulate
from zellige.sources import build_problem
from zellige.workload import Batch, Sequence, make_bucket

POLICIES = ("dp", "usp", "static-coalesced", "zellige-paper", "zellige-paper-coalesced")
NOISY = ("dp", "static-coalesced", "zellige-paper-coalesced")
JITTER = SimOptions(noise=Noise(seed=7, jitter=0.05))


def problem_of(
    counts: dict[tuple[int, int, int], int], cluster: str = "a800x4", name: str = "wan2.1-t2v-1.3b"
) -> Problem:
    from zellige.catalog import load_model

    model = load_model(name)
    buckets = tuple(sorted((make_bucket(model, *shape) for shape in counts), key=lambda bucket: bucket.num_tokens))
    numbers = {make_bucket(model, *shape).name: count for shape, count in counts.items()}
    sequences = tuple(Sequence(f"{b.name}-{i}", b) for b in buckets for i in range(numbers[b.name]))
    batch = Batch(name="test", sequences=sequences, buckets=buckets)
    return build_problem(batch, cluster=cluster, model=model)


PROBLEMS = [
    problem_of({(256, 256, 1): 9, (832, 480, 81): 1}),
    problem_of({(256, 256, 1): 5, (832, 480, 49): 2}),
]


def rows_of(comparison: Comparison) -> dict[str, Row]:
    return {row.policy: row for row in comparison.rows}


@pytest.mark.parametrize("fidelity", ["event", "flow"])
def test_rows_are_what_the_simulator_says_of_each_plan(fidelity: Fidelity) -> None:
    comparison = compare(PROBLEMS, POLICIES, how=Fidelities(fidelity=fidelity))
    assert comparison.fidelity == fidelity
    for policy, row in rows_of(comparison).items():
        plans = [plan_batch(problem, policy) for problem in PROBLEMS]
        reports = [
            simulate(lower(plan, problem), problem, fidelity).report
            for plan, problem in zip(plans, PROBLEMS, strict=True)
        ]
        assert row.step_time_ns == round(sum(report.step_time_ns for report in reports) / 2)
        assert row.plan_ns == round(sum(plan.makespan_ns for plan in plans) / 2)
        assert row.causes is not None
        parts = {name: getattr(row.causes, name) for name in row.causes.__struct_fields__}
        assert sum(parts.values()) == pytest.approx(row.step_time_ns, abs=len(parts))
        for cause, names in {
            "compute_ns": ("compute_ns",),
            "exchange_ns": ("exchange_ns",),
            "wait_ns": ("wait_ns", "gather_wait_ns", "reduce_wait_ns"),
            "slowdown_ns": ("slowdown_ns",),
        }.items():
            there = sum(report.mean(name) for report in reports for name in names) / 2
            assert parts[cause] == pytest.approx(there, abs=2)
    assert comparison.verdict


def test_where_one_side_of_the_verdict_does_not_fit_what_fits_is_named() -> None:
    short = problem_of({(832, 480, 81): 60}, "h200x8", "wan2.1-t2v-14b")
    told = compare([short], ["zellige", "static-coalesced", "static"])
    assert [row.policy for row in told.rows if row.fits] == ["static"]
    assert told.verdict.startswith("nothing to compare: static-coalesced, zellige have no plan")
    assert "static takes the least" in told.verdict
    assert compare([short], ["static"]).verdict == ""
    assert compare([problem_of({(832, 480, 81): 8})], ["zellige"]).verdict == "", "no static split was asked for"


def test_additive_rows_are_the_plans_own() -> None:
    for policy, row in rows_of(compare(PROBLEMS[:1], POLICIES)).items():
        plan = plan_batch(PROBLEMS[0], policy)
        assert (row.step_time_ns, row.bound_ns, row.causes) == (plan.makespan_ns, plan.bound_ns, None)
        assert row.compute_ns + row.communication_ns + row.wait_ns == pytest.approx(plan.makespan_ns, abs=3)


def test_all_policies_face_the_same_noise() -> None:
    """Steps of replica r of batch b are those under seed + r and batch b, which the plan has no part in."""
    how = Fidelities(fidelity="event", options=JITTER, replicas=2)
    rows = rows_of(compare(PROBLEMS, NOISY, how=how))
    steps: dict[str, list[int]] = {}
    for policy in NOISY:
        for batch, problem in enumerate(PROBLEMS):
            program = lower(plan_batch(problem, policy), problem)
            for replica in range(2):
                options = SimOptions(noise=Noise(seed=7 + replica, batch=batch, jitter=0.05))
                report = simulate(program, problem, "event", options).report
                steps.setdefault(policy, []).append(report.step_time_ns)
    best = min(rows, key=lambda policy: rows[policy].step_time_ns or 0)
    for policy, row in rows.items():
        assert row.interval_ns is not None
        assert row.interval_ns.mean == pytest.approx(sum(steps[policy]) / 4)
        assert row.interval_ns.low <= row.interval_ns.mean <= row.interval_ns.high
        if policy == best:
            assert row.paired is None
            continue
        assert row.paired is not None
        assert row.paired.pairs == 4
        wins = [0.5 + 0.5 * ((b > a) - (b < a)) for a, b in zip(steps[best], steps[policy], strict=True)]
        assert row.paired.win_rate == pytest.approx(sum(wins) / 4)
        longer = [b - a for a, b in zip(steps[best], steps[policy], strict=True)]
        assert row.paired.difference_ns.mean == pytest.approx(sum(longer) / 4)


def test_two_engines_of_one_plan_differ_by_nothing_else_than_the_engine() -> None:
    """A policy against itself under the same noise is a tie, whatever the noise."""
    how = Fidelities(fidelity="event", options=JITTER, replicas=2)
    posed = [dataclasses.replace(problem, engine="coalesced") for problem in PROBLEMS]
    rows = rows_of(compare(posed, ("zellige-paper", "zellige-paper-coalesced"), engine="coalesced", how=how))
    (other,) = [row for row in rows.values() if row.paired is not None]
    assert other.paired is not None
    assert (other.paired.win_rate, other.paired.difference_ns.mean) == (0.5, 0.0)


def test_the_difference_from_the_sums_is_split_by_cause() -> None:
    comparison = compare(PROBLEMS[:1], POLICIES, how=Fidelities(additivity=True))
    assert comparison.fidelity == "additive"
    for policy, row in rows_of(comparison).items():
        split = row.additivity
        assert split is not None
        program = lower(plan_batch(PROBLEMS[0], policy), PROBLEMS[0])
        sums, event, flow = (simulate(program, PROBLEMS[0], fidelity).report.step_time_ns for fidelity in FIDELITIES)
        assert (split.additive_ns, split.simulated_ns) == (sums, event)
        assert split.contention_ns == flow - event
        assert split.unexplained_ns == 0
        causes = (
            split.wait_ns, split.exchange_ns, split.gather_ns, split.reduce_ns, split.slowdown_ns, split.calls_ns,
            split.optimizer_ns, split.later_ns,
        )  # fmt: skip
        assert sum(causes) == event - sums


@pytest.mark.parametrize(
    ("told", "why"),
    [({"options": JITTER}, "know no jitter"), ({"fidelity": "event", "replicas": 2}, "all alike")],
)
def test_noise_is_never_ignored(told: dict[str, object], why: str) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        Fidelities(**told)  # type: ignore[arg-type]
    assert caught.value.fix


def test_what_cannot_be_simulated_has_a_reason() -> None:
    """AdaptiveLoad's micro-batches are several programs: the row says so, and the others stand."""
    problem = problem_of({(832, 480, 81): 14, (256, 256, 1): 3})
    rows = rows_of(compare([problem], ("dp", "adaptive-load"), how=Fidelities(fidelity="event")))
    assert rows["dp"].step_time_ns
    one = rows["adaptive-load"]
    assert one.step_time_ns or "not simulated" in one.reason
