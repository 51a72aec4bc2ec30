"""Validation on made observations, exactly; and once for real, on two ranks."""

from __future__ import annotations

import itertools
import json
import math
import sys
from pathlib import Path

import msgspec
import pytest
from oracle.made_measurements import setting
from oracle.made_runs import made_runs

from zellige import cli
from zellige.calibration import Calibration
from zellige.compare import compare
from zellige.errors import InfeasibleError, ModelMismatchError, UsageError
from zellige.exec.trial import RankTrial, SpanTime, StepTimes
from zellige.files import canonical_json, decode_json, readable_json
from zellige.measuring import Wanted, analytic_errors, local_cluster, run_validation, suite_plans
from zellige.placement import Plan, Problem, plan_digest
from zellige.predictions import MODELS
from zellige.prices import PriceTable
from zellige.profile.compute import host_info
from zellige.profile.host import local_host, table_warnings
from zellige.program import lower
from zellige.replay import stages
from zellige.sources import build_problem
from zellige.trials import Runs, observe
from zellige.validate import SetupReport, validate
from zellige.validation_plans import (
    POLICIES,
    corners,
    is_policy_plan,
    policy_plans,
    rotation,
    rotation_configs,
    suite_batch,
)
from zellige.validation_report import error_lines, validation_lines, validation_tables


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


def test_perfect_observations_have_no_error(perfect: SetupReport) -> None:
    additive = perfect.models[0]
    assert additive.replay.worst == additive.memory.worst == 0
    assert (additive.order.kendall.mean, additive.order.tau_clear.mean, additive.order.regret) == (1, 1, 0)
    assert additive.order.threshold == 0.02
    assert perfect.certain_right == perfect.certain > 0
    assert perfect.noise == 0


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


def test_no_makespan_is_claimed_with_fewer_cores_than_ranks(
    problem: Problem, plans: list[tuple[str, Plan]], perfect: SetupReport
) -> None:
    runs = msgspec.structs.replace(made_runs(problem, plans), cores=2)
    report = validate(runs, problem)
    assert report.models[0].wall is None
    assert report.models[0].wall_order is None
    assert "no makespan was measured" in report.basis
    assert "wall" not in " ".join(validation_lines(report))
    assert perfect.models[0].wall is not None


def test_runs_read_back_and_reports_print(
    problem: Problem, plans: list[tuple[str, Plan]], perfect: SetupReport
) -> None:
    runs = made_runs(problem, plans)
    assert decode_json(canonical_json(runs).decode(), Runs, "runs") == runs
    text = "\n".join(validation_lines(perfect))
    assert all(name in text for name in MODELS)
    assert validation_tables(perfect)[0].row_count == len(plans)
    with pytest.raises(UsageError, match="say nothing about order"):
        validate(msgspec.structs.replace(runs, plans=runs.plans[:2], observed=runs.observed[:2]), problem)
    bare = build_problem(problem.batch, cluster="cpux8", model="tiny-dit")
    with pytest.raises(UsageError, match="measured prices"):
        validate(runs, bare)


def test_policies_get_a_verdict_for_each_pair(
    problem: Problem, plans: list[tuple[str, Plan]], perfect: SetupReport
) -> None:
    policies = policy_plans(problem, POLICIES)
    assert not any(is_policy_plan(plan) for _, plan in plans)
    assert all(is_policy_plan(plan) for _, plan in policies)
    report = validate(made_runs(problem, [*plans, *policies]), problem)
    named = {(pair.first, pair.second) for pair in report.policy_pairs}
    assert named == set(itertools.combinations(POLICIES, 2))
    assert {pair.model for pair in report.policy_pairs} == {"additive", "event"}
    exact = [pair for pair in report.policy_pairs if pair.model == "additive"]
    assert all(pair.predicted == pytest.approx(pair.measured, rel=1e-6) for pair in exact)
    # Sums say just what was measured here, so that any difference in them is sure.
    assert all((pair.verdict == "certain") == (abs(pair.predicted - 1) > 1e-6) for pair in exact)
    lines = validation_lines(report)
    assert sum("order certain" in line or "order uncertain" in line for line in lines) == len(named)
    assert not perfect.policy_pairs


def test_a_policy_without_a_plan_is_named_and_left_out(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(problem: Problem, names: tuple[str, ...]) -> list[tuple[str, Plan]]:
        if names == ("usp",):
            raise InfeasibleError("no room")
        return policy_plans(problem, names)

    monkeypatch.setattr("zellige.measuring.policy_plans", fails)
    said: list[str] = []
    made = suite_plans(problem, 2, ("dp", "usp"), said.append)
    assert [label for label, _ in made][-1] == "dp"
    assert said == ["usp has no plan for this batch: no room"]


def test_the_default_has_more_than_21_plans_and_a_core_for_each_rank(problem: Problem) -> None:
    assert len(suite_plans(problem, Wanted().plans, Wanted().policies)) == 27
    assert [local_cluster(cores) for cores in (1, 2, 3, 4, 7, 8, 96)] == [
        "cpux2", "cpux2", "cpux2", "cpux4", "cpux4", "cpux8", "cpux8",
    ]  # fmt: skip
    batch = suite_batch(setting().model)
    videos = sum(s.bucket.num_tokens for s in batch.sequences if s.bucket.is_video)
    assert len(batch.sequences) == 53
    assert 0.35 < videos / batch.num_tokens < 0.37


def test_ranks_are_compared_at_one_pace(problem: Problem, plans: list[tuple[str, Plan]]) -> None:
    """One rank on a core that is twice as slow, as its pace says: the observation is that of equal cores."""
    label, plan = plans[-1]
    program = lower(plan, problem)

    def rank_trial(rank: int, slow: int) -> RankTrial:
        spans = [
            SpanTime(program.span(phase, op), layer, slow * 1000 * (1 + place))
            for phase, layer in stages(program)
            for place, op in enumerate(program.ranks[rank].ops(phase))
            if op.kind not in ("issue", "wait", "keep")
        ]
        own = sum(span.ns for span in spans) + slow * 500
        step = StepTimes(wall_ns=10**9, own_ns=own, spans=tuple(spans), pace_ns=slow * 1000)
        return RankTrial(rank=rank, steps=(step, step), weight_bytes=1, peak_bytes=1)

    ranks = program.num_ranks
    even = observe(label, plan, program, [rank_trial(rank, 1) for rank in range(ranks)], "alone")
    uneven = observe(label, plan, program, [rank_trial(rank, 1 + (rank == 3)) for rank in range(ranks)], "alone")
    assert (even.pace_ns, even.slowest_pace_ns) == (1000, 1000)
    # By the clock the step waits for the slow core.
    assert uneven == msgspec.structs.replace(even, slowest_pace_ns=2000)


def test_walls_are_predicted_half_way_to_the_pace_of_the_slowest_rank(
    problem: Problem, plans: list[tuple[str, Plan]]
) -> None:
    calm, uneven = (made_runs(problem, plans, pace=1.2, slowest=slowest) for slowest in (1.0, 1.5))
    before, after = (validate(runs, problem).models[0] for runs in (calm, uneven))
    assert (after.replay, after.rank_time) == (before.replay, before.rank_time)
    assert before.wall is not None
    assert after.wall is not None
    assert 1 + after.wall.signed == pytest.approx(math.sqrt(1.5) * (1 + before.wall.signed), rel=1e-3)
    raw = [validate(runs, problem, at_pace=False).models[0].wall for runs in (calm, uneven)]
    assert raw[0] == raw[1]


def test_policies_plan_with_measured_prices(problem: Problem) -> None:
    made = policy_plans(problem, ("dp", "usp", "zellige-paper"))
    assert [name for name, _ in made] == ["dp", "usp", "zellige-paper"]
    assert all(plan.digest == plan_digest(plan) for _, plan in [*made, *policy_plans(problem, POLICIES)])
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
    assert any("this table 4 (fp32)" in line for line in error_lines(errors))
    # What layers keep a token, as the made measurements have it.
    assert any("512 a token each" in line for line in error_lines(errors))


def test_a_table_says_itself_for_which_cluster_it_is(
    table: PriceTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``catalog show --errors TABLE`` needs no name, and takes none but the table's."""
    path = tmp_path / "t.json"
    path.write_text(readable_json(table))
    for names, status in (((), 0), (("cpux8",), 0), (("cpux2",), 2)):
        monkeypatch.setattr(sys, "argv", ["zellige-sim", "catalog", "show", *names, "--errors", str(path), "--json"])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == status
        told = capsys.readouterr()
        schema = json.loads(told.err if status else told.out)["schema"]
        assert schema == ("zellige.error/1" if status else "zellige.analytic_errors/1")


def test_a_measured_table_plans_and_compares(problem: Problem) -> None:
    """Tables with laws stand in the keys of caches."""
    report = compare([problem], ("dp", "zellige"))
    assert [row.policy for row in report.rows] == ["dp", "zellige"]


def test_a_table_of_elsewhere_is_marked_by_name(table: PriceTable) -> None:
    (line,) = table_warnings(table)
    assert line.startswith("warning: these prices were measured with machine 'here' (here ")
    assert "torch '2.13'" in line
    calibration = table.header.calibration
    assert calibration is not None
    own = msgspec.structs.replace(calibration, host=local_host())
    assert table_warnings(with_calibration(table, own)) == ()
    on_gpu = msgspec.structs.replace(local_host(), processor="some GPU", cores=1)
    assert table_warnings(with_calibration(table, msgspec.structs.replace(own, host=on_gpu, device="cuda"))) == ()
    assert table_warnings(with_calibration(table, None)) == ()


def with_calibration(table: PriceTable, calibration: Calibration | None) -> PriceTable:
    return msgspec.structs.replace(table, header=msgspec.structs.replace(table.header, calibration=calibration))


def test_this_host_is_known_without_torch() -> None:
    assert local_host() == host_info("cpu")


def test_a_table_of_another_machine_validates_nothing(table: PriceTable, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(readable_json(table))
    with pytest.raises(ModelMismatchError, match="machine"):
        run_validation(Wanted(prices=str(path), clusters=("cpux8",)), lambda *_: None, lambda _: None)


@pytest.mark.dist
def test_for_real_on_two_ranks(tmp_path: Path) -> None:
    """CPU time and order, never wall time: this machine may be shared."""
    batch = tmp_path / "batch.csv"
    batch.write_text("id,width,height,num_frames,fps\nv,832,480,5,16\nw,832,480,5,16\n")
    said: list[str] = []
    report = run_validation(
        Wanted(
            batch=str(batch), clusters=("cpux2",), plans=1, policies=(), repeats=3, seconds=120, save=tmp_path / "runs"
        ),
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
