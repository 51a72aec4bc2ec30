"""What commands say of an option or a result that is not what somebody may have thought."""

from __future__ import annotations

import json
from pathlib import Path

from command_line import MIXED, SETTING, Run, check_ending, write


def test_options_that_say_nothing_here_are_refused(run: Run) -> None:
    write("clips.jsonl", MIXED)
    for command in ("compare", "plan", "cut"):
        end = check_ending(command, "clips.jsonl", *SETTING, "--batches", "3")
        assert (end.code, end.error["code"]) == (2, "ZL100")
        assert "--batches 3" in end.error["message"]
    end = check_ending("validate", "--measured", "runs.json")
    assert (end.code, end.error["code"]) == (2, "ZL100")
    assert "--prices" in end.error["fix"]


def test_a_plan_shows_its_longest_splits_first(run: Run) -> None:
    end = run("plan", "wide-mix")
    shown = [line.split()[2] for line in end.out.splitlines() if " as " in line]
    assert shown == ["1920x1088x241", "1280x720x161", "1280x720x161"]


def test_micro_steps_that_are_not_needed_are_said_so(run: Run) -> None:
    write("clips.jsonl", MIXED)
    end = run("plan", "clips.jsonl", *SETTING, "--micro-steps", "auto", "-o", "plan.json")
    assert end.code == 0
    assert "one step holds the batch" in end.out
    assert "one step holds the batch" not in run("plan", "clips.jsonl", *SETTING).out


def test_a_sequence_that_is_placed_twice_is_not_simulated(run: Run) -> None:
    write("clips.jsonl", MIXED)
    assert run("plan", "clips.jsonl", *SETTING, "-o", "plan.json").code == 0
    plan = json.loads(Path("plan.json").read_text())
    plan["placements"].append(plan["placements"][0])
    Path("twice.json").write_text(json.dumps(plan))
    for command in (("simulate", "twice.json"), ("execute", "twice.json", "--attention-only")):
        end = check_ending(*command)
        assert (end.code, end.error["code"]) == (4, "ZL406")
        assert "is placed 2 times" in end.error["message"]
