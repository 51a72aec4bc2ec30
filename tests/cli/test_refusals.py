"""Refusals name a way out that can be taken, in the command that refuses."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from command_line import MIXED, SETTING, Run, write
from ortools.sat.python import cp_model

from zellige.plan import anchors

HEAVY = '{"id": "v", "width": 832, "height": 480, "num_frames": 81, "fps": 16, "count": 120}\n'


def test_a_stream_advises_micro_steps_for_the_batch_by_itself(run: Run) -> None:
    write("heavy.jsonl", HEAVY)
    end = run("plan", "heavy.jsonl", *SETTING, "--stream", "--json")
    assert end.code == 3
    assert end.error["fix"].startswith("plan that batch by itself, without --stream: --micro-steps auto")
    assert run("plan", "heavy.jsonl", *SETTING, "--micro-steps", "auto", "-o", "schedule.json").code == 0
    over = run("plan", "heavy.jsonl", *SETTING, "--policy", "dp", "--stream")
    assert over.code == 1
    assert "try: plan that batch by itself, without --stream, with --micro-steps auto" in over.err
    write("huge.jsonl", '{"width": 1920, "height": 1080, "num_frames": 1001, "fps": 16}\n')
    error = run("plan", "huge.jsonl", *SETTING, "--stream", "--json").error
    assert "--stream" not in error["fix"] or "--micro-steps" in error["fix"]


@pytest.mark.parametrize("command", ["simulate", "execute"])
def test_a_clip_list_in_place_of_a_plan_names_the_command_that_plans(run: Run, command: str) -> None:
    for name in ("clips.csv", "clips.parquet"):
        write(name, "path,width,height,num_frames\na.mp4,832,480,81\n")
        end = run(command, name, "--json")
        assert end.code == 4
        assert end.error["message"] == "this is a clip list, where a plan is needed"
        assert end.error["fix"] == "zellige-sim plan BATCH -o FILE"
    assert "there is no file" in run(command, "absent.csv", "--json").error["message"]


def test_a_plan_for_another_cluster_names_its_own(run: Run) -> None:
    write("mixed.jsonl", MIXED)
    assert run("plan", "mixed.jsonl", *SETTING, "-o", "plan.json").code == 0
    error = run("check", "plan.json", "--cluster", "h200x8", "--json").error
    assert error["message"] == "the plan is for cluster 'a800x4', not 'h200x8'"
    assert error["fix"] == "leave --cluster out, or give 'a800x4' or its .toml file"


def test_validation_without_torch_is_refused_before_it_says_that_it_measures(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    end = run("validate")
    assert end.code == 6
    assert end.err.startswith("error[ZL600] measuring needs torch")


@pytest.mark.parametrize("command", [("simulate",), ("execute",)])
def test_a_schedule_in_place_of_a_plan_names_its_micro_steps(run: Run, command: tuple[str, ...]) -> None:
    write("heavy.jsonl", HEAVY)
    assert run("plan", "heavy.jsonl", *SETTING, "--micro-steps", "auto", "-o", "schedule.json").code == 0
    number = json.loads(Path("schedule.json").read_text())["num_micro_steps"]
    error = run(*command, "schedule.json", "--json").error
    assert (
        error["message"] == f"a schedule holds a plan for each of its {number} micro-steps, and one plan is needed here"
    )
    assert error["fix"].startswith(f"schedule.json#1 to schedule.json#{number} one by one: micro-steps run one after")
    for each in range(1, number + 1):
        assert run("simulate", f"schedule.json#{each}", "--fidelity", "additive").code == 0


def test_no_ratio_where_nothing_fits(run: Run) -> None:
    write("heavy.jsonl", HEAVY)
    arguments = ("compare", "heavy.jsonl", *SETTING, "--policy", "dp", "--policy", "usp", "--policy", "zellige")
    end = run(*arguments, "--json")
    assert end.code == 3
    assert {row["policy"]: row["ratio_to_best"] for row in end.json["rows"]} == dict.fromkeys(("dp", "usp", "zellige"))
    table = run(*arguments).out
    assert re.search(r"^dp +\S+s +- ", table, re.MULTILINE)
    assert "1.000" not in table
    assert "verdict: nothing fits" in table


def test_a_filler_without_room_says_what_is_missing_and_what_splits(run: Run) -> None:
    rows = [("c", 832, 480, 81, 80), ("d", 1280, 720, 161, 3)]
    lines = [
        json.dumps({"id": name, "width": width, "height": height, "num_frames": frames, "fps": 16, "count": count})
        for name, width, height, frames, count in rows
    ]
    write("full.jsonl", "\n".join(lines) + "\n")
    setting = ("full.jsonl", *SETTING, "--policy", "zellige-paper")
    error = run("plan", *setting, "--json").error
    assert re.fullmatch(r"no rank has room left for c-\d+, which this policy does not split", error["message"])
    assert re.search(r"[\d.]+ GB missing on the emptiest of 4 ranks", error["details"])
    assert "under engine group" in error["where"]
    assert "--micro-steps auto" in error["fix"]
    assert "--policy zellige --engine group" in error["fix"]
    assert run("plan", "full.jsonl", *SETTING, "--policy", "zellige", "--engine", "group").code == 0
    (row,) = run("compare", *setting, "--json").json["rows"]
    assert "GB missing on the emptiest of 4 ranks" in row["reason"]


def test_a_solver_that_ends_without_an_answer_says_so_in_words(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> int:
        return int(cp_model.UNKNOWN)

    monkeypatch.setattr(anchors.cp_model.CpSolver, "solve", unknown)
    write("mixed.jsonl", MIXED)
    end = run("plan", "mixed.jsonl", *SETTING, "--policy", "zellige-paper", "--json")
    assert end.code == 5
    assert "UNKNOWN" not in end.err
    assert "nor a proof that there is none" in end.error["message"]
    assert "--policy zellige" in end.error["fix"]
    assert run("plan", "mixed.jsonl", *SETTING, "--policy", "zellige").code == 0
