"""What commands say of an option or a result that is not what somebody may have thought."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
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


OPEN_SORA = """path,text,num_frames,height,width,aspect_ratio,resolution,fps,aes
a.mp4,a cat,81,1080,1920,0.56,2073600,16,5.1
b.mp4,a dog,81,480,832,0.58,399360,16,5.2
"""


@pytest.mark.parametrize("command", ["plan", "compare", "cut", "prices", "check", "plan --stream"])
def test_every_command_says_once_what_becomes_of_clips(run: Run, command: str) -> None:
    write("clips.csv", OPEN_SORA)
    name, *more = command.split()
    end = run(name, "clips.csv", *SETTING, *more, *(("--policy", "dp") if name == "compare" else ()))
    told = end.out if name == "check" else end.err
    assert told.count("clips.csv: columns not used: aes") == 1
    assert told.count("1 of 2 clips is padded to whole tokens of 16x16 pixels (a.mp4: 1920x1080 to 1920x1088)") == 1


def test_sequences_of_a_plan_are_named_by_path(run: Run) -> None:
    write("clips.csv", OPEN_SORA)
    header, *table = (line.split(",") for line in OPEN_SORA.splitlines())
    rows = [dict(zip(header, cells, strict=True)) for cells in table]
    write("clips.jsonl", "".join(json.dumps(row | {"caption": "hello"}) + "\n" for row in rows))
    plans = [run("plan", name, *SETTING, "--json").json for name in ("clips.csv", "clips.jsonl")]
    assert [placement["sequence"] for placement in plans[0]["placements"]] == ["a.mp4", "b.mp4"]
    assert plans[0]["placements"] == plans[1]["placements"]


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
