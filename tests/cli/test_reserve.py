"""Memory that is kept free, memory that is nearly full, and comparisons in which nothing fits."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from command_line import MIXED, SETTING, Run, check_ending, write

from zellige.placement import Plan, plan_digest

TIGHT = '{"id": "clip", "width": 832, "height": 480, "num_frames": 81, "fps": 16, "count": %d}\n'
POLICY = ("--policy", "dp")


def planned(run: Run, *more: str) -> Plan:
    assert run("plan", "tight.jsonl", *SETTING, *more, "-o", "plan.json").code == 0
    return msgspec.json.decode(Path("plan.json").read_bytes(), type=Plan)


def test_a_reserve_goes_through_plan_check_and_simulate(run: Run) -> None:
    write("tight.jsonl", MIXED)
    plain, kept = planned(run), planned(run, "--reserve", "5%")
    assert kept.memory_limit_bytes == plain.memory_limit_bytes - -(-plain.memory_limit_bytes * 5 // 100)
    assert run("check", "plan.json").code == 0, "the plan's own limit says what was kept free"
    assert run("simulate", "plan.json", "--json").json["memory_limit_bytes"] == kept.memory_limit_bytes
    more = run("simulate", "plan.json", "--reserve", "20GB", "--json").json
    assert more["memory_limit_bytes"] == plain.memory_limit_bytes - 20 * 10**9
    assert "20.0 GB beside it kept free" in run("simulate", "plan.json", "--reserve", "20GB").out
    answer = run("compare", "tight.jsonl", *SETTING, "--reserve", "5%", "--json").json
    assert answer["memory_limit_bytes"] == kept.memory_limit_bytes
    assert answer["reserved_bytes"] == plain.memory_limit_bytes - kept.memory_limit_bytes
    assert "kept free" in run("compare", "tight.jsonl", *SETTING, "--reserve", "5%").out


def test_a_limit_raised_by_hand_is_still_found(run: Run) -> None:
    write("tight.jsonl", MIXED)
    plan = planned(run, "--reserve", "5%")
    for limit in (plan.memory_limit_bytes * 2, 1):
        changed = msgspec.structs.replace(plan, memory_limit_bytes=limit)
        forged = msgspec.structs.replace(changed, digest=plan_digest(changed))
        Path("changed.json").write_bytes(msgspec.json.encode(forged))
        end = run("check", "changed.json", "--json")
        assert end.code == 1
        assert any("memory of a GPU" in finding["message"] for finding in end.json["files"][0]["findings"])


@pytest.fixture
def nearly_full(run: Run) -> int:
    """The most clips that dp places within memory, in tight.jsonl."""
    low, high = 1, 400
    while high - low > 1:
        middle = (low + high) // 2
        write("tight.jsonl", TIGHT % middle)
        low, high = (middle, high) if run("plan", "tight.jsonl", *SETTING, *POLICY).code == 0 else (low, middle)
    low -= low % 4
    write("tight.jsonl", TIGHT % low)
    return low


def test_a_full_memory_is_said_and_a_reserve_helps(run: Run, nearly_full: int) -> None:
    assert nearly_full > 40
    told = run("plan", "tight.jsonl", *SETTING, *POLICY)
    assert told.code == 0
    assert "memory nearly full" in told.out
    assert "--reserve 5%" in told.out
    assert "memory nearly full" in run("compare", "tight.jsonl", *SETTING, *POLICY).out
    assert run("plan", "tight.jsonl", *SETTING, *POLICY, "--reserve", "5%").code == 1, "dp has no other plan"
    fewer = run("plan", "tight.jsonl", *SETTING, *POLICY, "--reserve", "5%", "--micro-steps", "auto")
    assert fewer.code == 0
    assert "nearly full" not in fewer.out


@pytest.mark.parametrize("more", [(), ("--reserve", "70GB")])
def test_a_comparison_in_which_nothing_fits_is_infeasible(run: Run, more: tuple[str, ...]) -> None:
    write("tight.jsonl", TIGHT % (30 if more else 400))
    arguments = ("compare", "tight.jsonl", *SETTING, *POLICY, *more)
    end = check_ending(*arguments)
    assert end.code == 3
    assert [row["fits"] for row in end.json["rows"]] == [False]
    assert end.error["code"] == "ZL204"
    assert "over it by" in end.error["details"]
    assert "--micro-steps auto" in end.error["fix"]
    text = run(*arguments)
    assert text.code == 3
    assert "OOM+" in text.out
    assert "nothing fits" in text.out
