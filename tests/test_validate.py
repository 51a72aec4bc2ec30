"""Validation on made observations, exactly; and once for real, on two ranks."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import pytest
from oracle.made_measurements import HOST, made_measure, setting

from zellige.errors import ModelMismatchError, UsageError
from zellige.files import canonical_json, decode_json, readable_json
from zellige.interference import fit_interference, rank_counts, residual_terms, with_interference
from zellige.measuring import Wanted, analytic_errors, run_validation
from zellige.placement import Plan, Problem, rank_costs
from zellige.prices import PriceTable
from zellige.profile.profiler import Budget, profile
from zellige.shards import WHOLE
from zellige.sources import build_problem
from zellige.trials import Observed, RankObserved, Runs
from zellige.validate import MODELS, interference_table, predict_all, validate, without_wires
from zellige.validation_plans import corners, crowded, policy_plans, rotation, rotation_configs, suite_batch
from zellige.validation_report import error_lines, validation_lines, validation_tables


def suite_table(cluster: str, folder: Path) -> PriceTable:
    batch = suite_batch(setting().model, images=8)
    place = setting(cluster)._replace(buckets=batch.buckets)
    table, _ = profile(
        place, folder / f"{cluster}.json", host=HOST, device="cpu", dtype="fp32", measure=made_measure(place),
        links=lambda: (), link_ranks=1, budget=Budget(seconds=0),
    )  # fmt: skip
    return table


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> PriceTable:
    return suite_table("cpux8", tmp_path_factory.mktemp("tables"))


@pytest.fixture(scope="module")
def problem(table: PriceTable) -> Problem:
    batch = suite_batch(setting().model, images=8)
    return build_problem(batch, cluster="cpux8", model="tiny-dit", prices=table)


@pytest.fixture(scope="module")
def plans(problem: Problem) -> list[tuple[str, Plan]]:
    return [*rotation(problem, 4), *corners(problem), *crowded(problem)]


def made_runs(problem: Problem, plans: list[tuple[str, Plan]], factor: float = 1.0, pace: float = 1.0) -> Runs:
    """Observations that are ``factor`` times the additive prediction, on a machine of ``pace``."""
    calibration = problem.prices.header.calibration
    assert calibration is not None
    dry = without_wires(problem)
    observed = []
    for label, plan in plans:
        costs = rank_costs(dataclasses.replace(dry, engine=plan.engine), plan.placements)
        times = [round((time + calibration.step_ns) * factor * pace) for time in costs.times_ns]
        longest = max(times)
        observed.append(
            Observed(
                label=label,
                plan=plan.digest,
                how="ranks",
                ranks=tuple(
                    RankObserved(own_ns=time, memory_bytes=size)
                    for time, size in zip(times, costs.memory_bytes, strict=True)
                ),
                replays_ns=(longest, longest, longest),
                walls_ns=(2 * longest,) * 3,
                pace_ns=round(calibration.pace_ns * pace),
            )
        )
    return Runs(cluster="cpux8", model="tiny-dit", cores=8, plans=tuple(p for _, p in plans), observed=tuple(observed))


def test_the_rotation_meets_every_video_with_every_split(problem: Problem) -> None:
    plans = [*rotation(problem), *corners(problem)]
    assert len(rotation_configs(problem)) == 18
    met: dict[str, set[str]] = {}
    for label, plan in plans:
        if label.startswith("rotate"):
            for placement in plan.placements:
                if placement.config.is_split:
                    met.setdefault(placement.bucket, set()).add(str(placement.config))
    assert {bucket: len(configs) for bucket, configs in met.items()} == dict.fromkeys(met, 18)
    assert len(met) == 3
    whole = [plan for label, plan in plans if label.startswith("whole")]
    assert [plan.num_split for plan in whole] == [0, 0, 0]
    crowd = dict(plans)["whole-crowded"]
    assert {p.ranks for p in crowd.placements if p.sequence.startswith("v")} == {(0,)}


def test_perfect_observations_have_no_error(problem: Problem, plans: list[tuple[str, Plan]]) -> None:
    report = validate(made_runs(problem, plans), problem)
    additive = report.models[0]
    assert additive.replay.worst == additive.memory.worst == 0
    assert (additive.order.kendall.mean, additive.order.tau_clear.mean, additive.order.regret) == (1, 1, 0)
    assert additive.order.threshold == 0.02
    assert report.certain_right == report.certain > 0
    assert report.noise == 0


def test_a_bias_is_an_error_and_no_disorder(problem: Problem, plans: list[tuple[str, Plan]]) -> None:
    additive = validate(made_runs(problem, plans, factor=1.25), problem).models[0]
    assert additive.replay.signed == pytest.approx(-0.2, abs=1e-3)
    assert additive.replay.mape.mean == pytest.approx(0.2, abs=1e-3)
    assert additive.order.tau_clear.mean == 1


def test_the_pace_of_the_machine_is_taken_out_unless_told_otherwise(
    problem: Problem, plans: list[tuple[str, Plan]]
) -> None:
    runs = made_runs(problem, plans, pace=1.5)
    assert validate(runs, problem).models[0].replay.worst < 0.01
    raw = validate(runs, problem, at_pace=False)
    assert raw.models[0].replay.signed == pytest.approx(-1 / 3, abs=0.01)
    assert raw.pace == pytest.approx(1.5, abs=0.01)


def test_no_makespan_is_claimed_with_fewer_cores_than_ranks(problem: Problem, plans: list[tuple[str, Plan]]) -> None:
    runs = msgspec.structs.replace(made_runs(problem, plans), cores=2)
    report = validate(runs, problem)
    assert report.models[0].wall is None
    assert report.models[0].wall_order is None
    assert "no makespan was measured" in report.basis
    assert "wall" not in " ".join(validation_lines(report))
    assert validate(made_runs(problem, plans), problem).models[0].wall is not None


def test_interference_that_is_there_is_found_and_used(problem: Problem, plans: list[tuple[str, Plan]]) -> None:
    runs = made_runs(problem, plans)
    observed = []
    for seen, plan in zip(runs.observed, runs.plans, strict=True):
        ranks = tuple(
            msgspec.structs.replace(rank, own_ns=rank.own_ns + 4_000_000 * count.sequences)
            for rank, count in zip(seen.ranks, rank_counts(plan, problem), strict=True)
        )
        longest = max(rank.own_ns for rank in ranks)
        observed.append(msgspec.structs.replace(seen, ranks=ranks, replays_ns=(longest,) * 3))
    changed = msgspec.structs.replace(runs, observed=tuple(observed))
    report = validate(changed, problem)
    assert report.interference_helps
    assert report.models[2].replay.mape.mean < 0.5 * report.models[0].replay.mape.mean
    assert report.models[0].residual["per_sequence_ns"] == pytest.approx(4e6, rel=0.4)
    better = interference_table(problem.prices, changed, problem)
    images = [row for row in better.rows if row.config == WHOLE]
    before = {(r.bucket, r.config): r.price.linear_ns for r in problem.prices.rows}
    assert all(row.price.linear_ns > before[row.bucket, row.config] for row in images)


def test_interference_that_is_not_there_changes_nothing(problem: Problem, plans: list[tuple[str, Plan]]) -> None:
    report = validate(made_runs(problem, plans), problem)
    assert not report.interference_helps
    assert report.models[2].replay.worst < 1e-3


def test_a_term_without_variation_is_left_alone(problem: Problem, plans: list[tuple[str, Plan]]) -> None:
    counts = rank_counts(plans[0][1], problem)
    assert sum(count.splits for count in counts) == sum(
        p.config.degree for p in plans[0][1].placements if p.config.is_split
    )
    same = [counts[0]] * 4
    assert fit_interference(same, [5.0] * 4) == (0.0, 0.0, 0.0, 5.0)
    assert residual_terms(same, [5.0] * 4)["explained"] == 0.0
    assert with_interference(problem.prices, (0.0, 0.0, 0.0, 0.0)) == problem.prices


def test_runs_read_back_and_reports_print(problem: Problem, plans: list[tuple[str, Plan]]) -> None:
    runs = made_runs(problem, plans)
    assert decode_json(canonical_json(runs).decode(), Runs, "runs") == runs
    report = validate(runs, problem)
    text = "\n".join(validation_lines(report))
    assert all(name in text for name in MODELS)
    assert validation_tables(report)[0].row_count == len(plans)
    with pytest.raises(UsageError, match="say nothing about order"):
        validate(msgspec.structs.replace(runs, plans=runs.plans[:2], observed=runs.observed[:2]), problem)
    bare = build_problem(problem.batch, cluster="cpux8", model="tiny-dit")
    with pytest.raises(UsageError, match="measured prices"):
        validate(runs, bare)


def test_event_predictions_wait_and_sums_do_not(problem: Problem, plans: list[tuple[str, Plan]]) -> None:
    runs = made_runs(problem, plans)
    calibration = problem.prices.header.calibration
    assert calibration is not None
    found = predict_all(runs, problem, calibration, [1.0] * len(plans))
    for additive, event in zip(found["additive"], found["event"], strict=True):
        assert event.replay_ns <= event.makespan_ns
        assert event.replay_ns >= max(event.rank_ns)
        assert max(event.rank_ns) == pytest.approx(additive.replay_ns, rel=0.1)


def test_policies_plan_with_measured_prices(problem: Problem) -> None:
    made = policy_plans(problem, ("dp", "usp", "zellige-paper"))
    assert [name for name, _ in made] == ["dp", "usp", "zellige-paper"]
    assert [plan.engine for _, plan in made] == ["per_sequence", "per_sequence", "group"]


def test_analytic_errors_by_term(table: PriceTable, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(readable_json(table))
    errors = analytic_errors(str(path))
    by_term = {term.term: term for term in errors.terms}
    assert {"linear_ns", "attention_ns", "recompute_ns", "all time"} <= set(by_term)
    assert all(term.low <= term.ratio <= term.high for term in errors.terms)
    assert errors.seconds > 0
    assert errors.gain_ns >= 0
    assert any("minutes" in line for line in error_lines(errors))


def test_a_table_of_another_machine_validates_nothing(table: PriceTable, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(readable_json(table))
    with pytest.raises(ModelMismatchError, match="machine"):
        run_validation(Wanted(prices=str(path), clusters=("cpux8",)), lambda *_: None, lambda _: None)


@pytest.mark.dist
def test_for_real_on_two_ranks(tmp_path: Path) -> None:
    """CPU time and order, never wall time: this machine may be shared."""
    batch = tmp_path / "batch.csv"
    batch.write_text("id,width,height,num_frames,fps\nv,1280,720,5,16\nw,1280,720,5,16\n")
    said: list[str] = []
    report = run_validation(
        Wanted(batch=str(batch), clusters=("cpux2",), plans=1, repeats=3, seconds=0.01, save=tmp_path / "runs"),
        lambda *_: None,
        said.append,
    )
    (setup,) = report.setups
    assert len(setup.plans) == 6
    path = tmp_path / "runs" / "cpux2.runs.json"
    runs = decode_json(path.read_text(), Runs, str(path))
    least = {seen.label: min(seen.replays_ns) for seen in runs.observed}
    predicted = {plan.label: plan.predicted_ns["additive"] for plan in setup.plans}
    # Both videos on one rank take clearly longer than one on each, in the step that others disturbed least.
    assert least["whole-crowded"] > 1.15 * least["whole-balanced"]
    assert predicted["whole-crowded"] > 1.15 * predicted["whole-balanced"]
    event = setup.models[1]
    assert event.memory.mape.mean < 0.1
    assert event.replay.mape.mean < 0.6
    assert (tmp_path / "runs" / "cpux2.prices.json").exists()
    assert any("measuring prices" in line for line in said)
