"""Recorded runs are compared with nothing that they are not of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from oracle.made_runs import made_runs

from zellige.errors import FormatError, InvalidPlanError, ModelMismatchError, UsageError, ZelligeError
from zellige.files import readable_json
from zellige.measuring import Wanted, run_validation
from zellige.placement import Plan, Problem, plan_digest
from zellige.predictions import PlanPace, measured_calibration, plan_pace
from zellige.recorded_runs import read_runs, recorded_cluster
from zellige.trials import Observed, Runs
from zellige.validation_plans import corners


@pytest.fixture(scope="module")
def runs(problem: Problem) -> Runs:
    return made_runs(problem, corners(problem))


Change = Callable[[Runs], Runs]


def first(change: Callable[[Observed], Observed]) -> Change:
    return lambda runs: msgspec.structs.replace(runs, observed=(change(runs.observed[0]), *runs.observed[1:]))


def first_plan(change: Callable[[Plan], Plan]) -> Change:
    return lambda runs: msgspec.structs.replace(runs, plans=(change(runs.plans[0]), *runs.plans[1:]))


def replaced(**values: Any) -> Callable[[Any], Any]:
    return lambda thing: msgspec.structs.replace(thing, **values)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (replaced(cluster="cpux4"), ModelMismatchError, "cluster 'cpux4', not of 'cpux8'"),
        (replaced(model="wan2.1-t2v-14b"), ModelMismatchError, "model"),
        (lambda runs: msgspec.structs.replace(runs, observed=runs.observed[1:]), FormatError, "2 observations"),
        (lambda runs: msgspec.structs.replace(runs, plans=runs.plans[1:]), FormatError, "3 observations"),
        (first(replaced(label="whole-dealt")), FormatError, "2 observations are called 'whole-dealt'"),
        (first(replaced(replays_ns=())), FormatError, "0 replays observed"),
        (first(lambda seen: msgspec.structs.replace(seen, ranks=seen.ranks[1:])), FormatError, "7 ranks observed"),
        (first(replaced(walls_ns=(1,))), FormatError, "1 wall time observed, where there must be 3"),
        (first(replaced(how="alone")), FormatError, "3 wall times observed, where there must be 0"),
        (first(replaced(plan="sha256:0")), InvalidPlanError, "digest"),
        (first_plan(replaced(digest="sha256:0")), InvalidPlanError, "digest"),
        (first_plan(lambda p: msgspec.structs.replace(p, placements=p.placements[1:])), InvalidPlanError, "digest"),
    ],
)  # fmt: skip
def test_runs_of_something_else_are_refused(
    change: Change, error: type[ZelligeError], words: str, runs: Runs, problem: Problem, tmp_path: Path
) -> None:
    path = tmp_path / "runs.json"
    path.write_text(readable_json(runs))
    assert read_runs(str(path), problem) == runs
    path.write_text(readable_json(change(runs)))
    with pytest.raises(error, match=words) as raised:
        read_runs(str(path), problem)
    assert str(path) in (raised.value.where or "")


def test_plans_of_another_batch_are_refused(runs: Runs, problem: Problem, tmp_path: Path) -> None:
    plan = msgspec.structs.replace(runs.plans[0], placements=runs.plans[0].placements[1:])
    digest = plan_digest(plan)
    changed = first_plan(lambda _: msgspec.structs.replace(plan, digest=digest))(first(replaced(plan=digest))(runs))
    path = tmp_path / "runs.json"
    path.write_text(readable_json(changed))
    with pytest.raises(InvalidPlanError, match="is not in the plan"):
        read_runs(str(path), problem)


def test_a_pace_that_no_machine_has_is_refused(runs: Runs, problem: Problem) -> None:
    calibration = measured_calibration(problem)
    assert plan_pace(runs.observed[0], calibration) == PlanPace(1.0, 1.0)
    with pytest.raises(FormatError, match="the same work took 1 ns"):
        plan_pace(msgspec.structs.replace(runs.observed[0], pace_ns=1), calibration)
    with pytest.raises(FormatError, match="the same work took"):
        plan_pace(runs.observed[0], msgspec.structs.replace(calibration, pace_ns=10**17))


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (Wanted(measured="runs.json"), "by which prices"),
        (Wanted(measured="runs.json", prices="t.json", plans=3), "--plans"),
        (Wanted(measured="runs.json", prices="t.json", policies=("usp",)), "--policy"),
        (Wanted(measured="runs.json", prices="t.json", alone=True), "--alone"),
        (Wanted(measured="runs.json", prices="t.json", seconds=3.0), "--minutes"),
        (Wanted(measured="runs.json", prices="t.json", save=Path("saved")), "--save"),
        (Wanted(policies=("nonsense",)), "nonsense"),
        (Wanted(policies=("usp", "usp")), "--policy usp is given 2 times"),
        (Wanted(clusters=("cpux2", "cpux2")), "--cluster cpux2 is given 2 times"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_measured(
    wanted: Wanted, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    with pytest.raises(UsageError) as raised:
        run_validation(wanted, lambda *_: None, said.append)
    assert words in f"{raised.value.message} {raised.value.fix}"
    assert said == []
    assert list(tmp_path.iterdir()) == []


def test_runs_say_which_cluster_they_are_of(runs: Runs, tmp_path: Path) -> None:
    path = tmp_path / "runs.json"
    path.write_text(readable_json(runs))
    assert recorded_cluster(str(path)) == "cpux8"
