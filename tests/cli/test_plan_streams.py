"""plan --stream: a line for each plan, as plan would make it; and nothing left behind by a Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from command_line import IMAGES, MIXED, SETTING, Run, check_ending, write

from zellige.placement import Plan

POLICY = ("--policy", "zellige-paper")


def test_a_stream_holds_what_plan_writes_for_each_batch(run: Run) -> None:
    write("mixed.jsonl", MIXED)
    write("images.jsonl", IMAGES)
    end = run("plan", "mixed.jsonl", "images.jsonl", "mixed.jsonl", *SETTING, *POLICY, "--stream", "-o", "plans.jsonl")
    assert (end.code, end.out) == (0, "")
    assert "1 of them reuse the placement of an equal batch before" in end.err
    lines = Path("plans.jsonl").read_bytes().splitlines(keepends=True)
    assert lines[0] == lines[2]
    for line, name in zip(lines, ("mixed", "images", "mixed"), strict=True):
        alone = run("plan", f"{name}.jsonl", *SETTING, *POLICY, "--json").json
        alone["solver"]["planning_ns"] = 0
        assert json.loads(line) == alone
    checked = run("check", "plans.jsonl", "--json")
    assert (checked.code, checked.json["files"][0]["summary"]) == (0, ["3 plans"])
    assert run("simulate", "plans.jsonl#2", "--fidelity", "additive").code == 0
    assert "plans.jsonl#1" in check_ending("simulate", "plans.jsonl").error["fix"]


def test_many_generated_batches(run: Run) -> None:
    end = run("plan", "gen:openvid", "--batches", "5", "--policy", "dp", "--stream", "--ahead", "2", "--seed", "3")
    assert end.code == 0
    plans = [json.loads(line) for line in end.out.splitlines()]
    assert [plan["batch"] for plan in plans] == [f"openvid-{index}" for index in range(5)]
    alone = run("plan", "gen:openvid", "--policy", "dp", "--seed", "3", "--json").json
    assert plans[0]["digest"] == alone["digest"]


def test_a_batch_without_a_plan_ends_the_stream_behind_whole_lines(run: Run) -> None:
    write("mixed.jsonl", MIXED)
    write("heavy.jsonl", '{"id": "v", "width": 832, "height": 480, "num_frames": 81, "fps": 16, "count": 120}\n')
    names = ("mixed.jsonl", "heavy.jsonl", "mixed.jsonl")
    end = run("plan", *names, *SETTING, *POLICY, "--stream", "-o", "plans.jsonl", "--json")
    assert end.code == 3
    assert end.error["where"].startswith("batch heavy: ")
    assert len(Path("plans.jsonl").read_bytes().splitlines()) == 1
    over = run("plan", *names, *SETTING, "--policy", "dp", "--stream", "-o", "plans.jsonl")
    assert over.code == 1, "plans over the memory are written, and counted"
    assert "1 does not fit in memory, the first for heavy" in over.err
    fits = [msgspec.json.decode(line, type=Plan).fits for line in Path("plans.jsonl").read_bytes().splitlines()]
    assert fits == [True, False, True]


def test_a_changed_line_is_found(run: Run) -> None:
    write("mixed.jsonl", MIXED)
    line = json.dumps(run("plan", "mixed.jsonl", *SETTING, "--policy", "dp", "--json").json) + "\n"
    write("plans.jsonl", line + line.replace('"fits": true', '"fits": false'))
    end = run("check", "plans.jsonl", "--json")
    assert end.code == 1
    assert {finding["where"] for finding in end.json["files"][0]["findings"]} == {"plans.jsonl:2"}
    write("plans.jsonl", line + line[:100])
    assert check_ending("check", "plans.jsonl").code == 4


@pytest.mark.parametrize(
    "more",
    [("--ahead", "2"), ("--stream", "--micro-steps", "auto"), ("--stream", "--ahead", "0"), ("mixed.jsonl",)],
)
def test_options_that_contradict_each_other(run: Run, more: tuple[str, ...]) -> None:
    write("mixed.jsonl", MIXED)
    assert check_ending("plan", "mixed.jsonl", *SETTING, *more).code == 2


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_an_interrupt_leaves_whole_lines_and_no_process(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "zellige.cli", "plan", "gen:openvid", "--batches", "5000", "--stream"]
    path = tmp_path / "plans.jsonl"
    with subprocess.Popen(
        [*command, "--policy", "static", "-o", str(path)], cwd=tmp_path, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            deadline = time.monotonic() + 60
            while (not path.exists() or path.read_bytes().count(b"\n") < 2) and time.monotonic() < deadline:
                time.sleep(0.05)
            workers = children(process.pid)
            assert len(workers) == 1
            os.killpg(process.pid, signal.SIGINT)
            assert process.wait(20) in {1, 130}
        finally:
            process.kill()
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) >= 2
    assert all(msgspec.json.decode(line, type=Plan).fits and line.endswith(b"\n") for line in lines)
    assert not Path(f"/proc/{workers[0]}").exists()


def test_ids_with_line_separators_stay_in_their_line(run: Run) -> None:
    write("odd.jsonl", '{"id": "a\\u2028b\\u0085c", "width": 512, "height": 512, "num_frames": 1}\n')
    assert run("plan", "odd.jsonl", *SETTING, "--stream", "-o", "odd-plans.jsonl").code == 0
    assert run("check", "odd-plans.jsonl").code == 0
    assert run("simulate", "odd-plans.jsonl#1").code == 0
    for reference in ("odd-plans.jsonl#2", "odd-plans.jsonl#" + "9" * 5000):
        assert run("simulate", reference).code == 4
