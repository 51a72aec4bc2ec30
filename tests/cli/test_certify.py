"""plan --certify: the bound in the plan file and on the screen, and what it is refused for."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from command_line import IMAGES, SETTING, Run, check_ending, write

from zellige.placement import Plan, plan_digest

VIDEOS = '{"id": "long", "width": 832, "height": 480, "num_frames": 81, "fps": 16, "count": 5}\n'


def test_the_certificate_stands_in_the_plan_and_what_it_replaced_on_the_screen(run: Run) -> None:
    write("videos.jsonl", VIDEOS)
    plain = run("plan", "videos.jsonl", *SETTING, "--policy", "dp", "--json").json
    end = run("plan", "videos.jsonl", *SETTING, "--policy", "dp", "--certify", "-o", "plan.json")
    assert end.code == 0
    assert "above the bound" in end.out
    assert "(B7 whole fillers, any rank sets)" in end.out
    assert f"({plain['bound']})" in next(line for line in end.out.splitlines() if line.startswith("certified in "))
    plan = msgspec.json.decode(Path("plan.json").read_bytes(), type=Plan)
    assert plain["bound_ns"] < plan.bound_ns <= plan.makespan_ns == plain["makespan_ns"]
    assert plan.gap == plan.makespan_ns / plan.bound_ns - 1
    assert plan.digest == plan_digest(plan) != plain["digest"]
    assert run("check", "plan.json").code == 0
    assert run("plan", "videos.jsonl", *SETTING, "--policy", "dp", "--certify", "--json").json["digest"] == plan.digest


def test_it_says_where_no_better_bound_is_found(run: Run) -> None:
    write("image.jsonl", IMAGES.replace("12", "4"))
    end = run("plan", "image.jsonl", *SETTING, "--certify")
    assert end.code == 0
    assert "no better bound was found" in end.out
    assert "B7" not in end.out


def test_a_plan_over_the_memory_is_not_certified(run: Run) -> None:
    write("heavy.jsonl", VIDEOS.replace("5", "120"))
    end = run("plan", "heavy.jsonl", *SETTING, "--policy", "dp", "--certify")
    assert end.code == 1
    assert "not certified: the plan is over the memory" in end.out


@pytest.mark.parametrize("more", [("--stream",), ("--micro-steps", "auto"), ("--micro-steps", "2")])
def test_it_is_for_one_plan_of_one_step(run: Run, more: tuple[str, ...]) -> None:
    write("videos.jsonl", VIDEOS)
    end = check_ending("plan", "videos.jsonl", *SETTING, "--certify", *more)
    assert (end.code, end.error["code"]) == (2, "ZL100")
    assert f"--certify is for one plan of one step, and not for {more[0]}" in end.error["message"]
