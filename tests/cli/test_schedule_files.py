"""plan --micro-steps: when it is needed, what it writes, and what check finds in a schedule that was changed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from command_line import IMAGES, MIXED, SETTING, Run, check_ending, write

from zellige import cli_support
from zellige.files import readable_json
from zellige.plan import micro_steps
from zellige.schedule import Schedule, schedule_digest

HEAVY = '{"id": "clip", "width": 832, "height": 480, "num_frames": 81, "fps": 16, "count": 120}\n' + IMAGES
MANY_LENGTHS = "".join(
    f'{{"id": "of-{frames}", "width": 832, "height": 480, "num_frames": {frames}, "fps": 16, "count": {count}}}\n'
    for frames, count in ((81, 60), (65, 30), (49, 20), (33, 40), (1, 50))
)
PLAN = ("plan", "heavy.jsonl", *SETTING, "--policy")


def test_a_batch_that_fits_needs_none(run: Run) -> None:
    write("mixed.jsonl", MIXED)
    plans = [run("plan", "mixed.jsonl", *SETTING, *more, "--json") for more in ((), ("--micro-steps", "auto"))]
    assert [plan.json["schema"] for plan in plans] == ["zellige.plan/1"] * 2
    assert plans[0].json["digest"] == plans[1].json["digest"]


def test_a_batch_that_does_not_is_refused_with_the_way_out(run: Run) -> None:
    write("heavy.jsonl", HEAVY)
    end = run(*PLAN, "zellige-paper-coalesced", "--json")
    assert end.code == 3
    assert end.error["code"] == "ZL204"
    assert "--micro-steps auto, which would need 3 micro-steps" in end.error["fix"]
    assert "missing" in end.error["details"]
    over = run(*PLAN, "dp", "-o", "dp.json")
    assert over.code == 1, "a plan over its memory is written as before"
    assert "--micro-steps auto, which would need 2 micro-steps" in over.err
    (finding,) = run("check", "dp.json", "--json").json["files"][0]["findings"]
    assert finding["fix"].startswith("plan --micro-steps auto: 2 micro-steps or more")
    (finding,) = run("check", "heavy.jsonl", *SETTING, "--json").json["files"][0]["findings"]
    assert finding["fix"].startswith("plan --micro-steps auto: 3 micro-steps or more")


@pytest.mark.parametrize(("policy", "asked", "number"), [("zellige-paper-coalesced", "auto", 3), ("dp", "4", 4)])
def test_a_schedule_is_written_and_passes_check(run: Run, policy: str, asked: str, number: int) -> None:
    write("heavy.jsonl", HEAVY)
    end = run(*PLAN, policy, "--micro-steps", asked, "-o", "schedule.json")
    assert end.code == 0
    assert f"132 sequences in {number} micro-steps" in end.out
    checked = run("check", "schedule.json", "--json")
    assert checked.code == 0
    assert f"in {number} micro-steps" in checked.json["files"][0]["summary"][0]
    again = run(*PLAN, policy, "--micro-steps", asked, "--json")
    assert again.json["digest"] == msgspec.json.decode(Path("schedule.json").read_bytes())["digest"]


def test_a_long_search_says_on_stderr_how_far_it_is(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    write("heavy.jsonl", MANY_LENGTHS)
    quiet = run(*PLAN, "dp", "--micro-steps", "best", "--json")
    assert quiet.err == "", "what takes less than ten seconds says nothing"
    monkeypatch.setattr(cli_support, "SECONDS_BETWEEN_LINES", -1)
    end = run(*PLAN, "dp", "--micro-steps", "best", "--json")
    assert end.json["digest"] == quiet.json["digest"]
    first, *_, last = end.err.splitlines()
    assert first == "micro-steps: 1 part planned"
    assert re.fullmatch(r"micro-steps: \d+ parts planned; best so far: [\d.,]+ s in \d+ micro-steps", last)


def test_compiled_loops_are_loaded_where_many_parts_are_planned(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    write("heavy.jsonl", MANY_LENGTHS)
    wanted: list[bool] = []
    monkeypatch.setattr(micro_steps, "prefer_compiled", lambda: wanted.append(True))
    monkeypatch.setattr(micro_steps, "INTERPRETED", 1000)
    run(*PLAN, "dp", "--micro-steps", "best")
    assert not wanted
    monkeypatch.setattr(micro_steps, "INTERPRETED", 2)
    run(*PLAN, "dp", "--micro-steps", "best")
    assert wanted


def test_the_best_number_is_a_plan_where_more_save_nothing(run: Run) -> None:
    write("mixed.jsonl", MIXED)
    alone = run("plan", "mixed.jsonl", *SETTING, "--json")
    best = run("plan", "mixed.jsonl", *SETTING, "--micro-steps", "best", "-o", "plan.json")
    assert "no micro-steps that take less were found: this is a plan" in best.out
    assert msgspec.json.decode(Path("plan.json").read_bytes())["digest"] == alone.json["digest"]


def test_the_best_number_takes_no_more_than_the_fewest(run: Run) -> None:
    write("heavy.jsonl", HEAVY)
    few = run(*PLAN, "dp", "--micro-steps", "auto", "--json").json
    best = run(*PLAN, "dp", "--micro-steps", "best", "-o", "best.json", "--json").json
    assert best["step_time_ns"] <= few["step_time_ns"] * 1.001
    assert best["num_micro_steps"] >= few["num_micro_steps"]
    assert any("in any number of micro-steps" in note for note in best["notes"])
    assert run("check", "best.json").code == 0


def test_micro_steps_are_simulated_one_by_one(run: Run) -> None:
    write("heavy.jsonl", HEAVY)
    run(*PLAN, "dp", "--micro-steps", "auto", "-o", "schedule.json")
    whole = check_ending("simulate", "schedule.json")
    assert whole.code == 4
    assert "schedule.json#1" in whole.error["fix"]
    assert run("simulate", "schedule.json#2", "--fidelity", "additive").code == 0
    assert check_ending("simulate", "schedule.json#3").error["fix"] == "it holds 1 to 2"


@pytest.mark.parametrize("asked", ["0", "-1", "two", "1.5", "200", "9" * 40, "٣"])
def test_numbers_that_are_none(run: Run, asked: str) -> None:
    write("heavy.jsonl", HEAVY)
    assert check_ending(*PLAN, "dp", "--micro-steps", asked).code == 2


def moved(schedule: Schedule) -> Schedule:
    """A sequence less in one micro-step, and twice in the other."""
    first, second = schedule.plans[:2]
    more = msgspec.structs.replace(second, placements=(*second.placements, first.placements[0]))
    return msgspec.structs.replace(schedule, plans=(first, more, *schedule.plans[2:]))


CHANGED: dict[str, Callable[[Schedule], Schedule]] = {
    "a sequence twice": moved,
    "a micro-step less": lambda s: msgspec.structs.replace(s, plans=s.plans[1:]),
    "another number": lambda s: msgspec.structs.replace(s, num_micro_steps=7),
    "a shorter step": lambda s: msgspec.structs.replace(s, step_time_ns=s.step_time_ns - 1),
    "fewer tokens": lambda s: msgspec.structs.replace(s, num_tokens=s.num_tokens - 1),
    "a higher bound": lambda s: msgspec.structs.replace(s, bound_ns=s.step_time_ns),
    "a smaller gap": lambda s: msgspec.structs.replace(s, gap=s.gap - 0.001),
    "a higher least number": lambda s: msgspec.structs.replace(s, least_micro_steps=s.least_micro_steps + 1),
    "less memory": lambda s: msgspec.structs.replace(s, peak_memory_bytes=1),
    "fewer bytes": lambda s: msgspec.structs.replace(s, comm_bytes=s.comm_bytes + 1),
    "another policy": lambda s: msgspec.structs.replace(s, policy="static"),
}


@pytest.mark.parametrize("forged", [False, True], ids=["old digest", "new digest"])
@pytest.mark.parametrize("change", CHANGED)
def test_changed_schedules_are_findings(run: Run, change: str, forged: bool) -> None:
    write("heavy.jsonl", HEAVY)
    run(*PLAN, "dp", "--micro-steps", "auto", "-o", "schedule.json")
    schedule = CHANGED[change](msgspec.json.decode(Path("schedule.json").read_bytes(), type=Schedule))
    if forged:
        schedule = msgspec.structs.replace(schedule, digest=schedule_digest(schedule))
    write("changed.json", readable_json(schedule))
    end = run("check", "changed.json", "--json")
    assert end.code == 1
    findings = end.json["files"][0]["findings"]
    assert findings
    assert any("digest" in finding["message"] for finding in findings) != forged


def test_a_changed_plan_inside_a_schedule_is_found(run: Run) -> None:
    write("heavy.jsonl", HEAVY)
    run(*PLAN, "dp", "--micro-steps", "auto", "-o", "schedule.json")
    schedule = msgspec.json.decode(Path("schedule.json").read_bytes(), type=Schedule)
    second = msgspec.structs.replace(schedule.plans[1], makespan_ns=schedule.plans[1].makespan_ns + 1)
    schedule = msgspec.structs.replace(schedule, plans=(schedule.plans[0], second))
    write("changed.json", readable_json(msgspec.structs.replace(schedule, digest=schedule_digest(schedule))))
    end = run("check", "changed.json", "--json")
    assert {finding["where"] for finding in end.json["files"][0]["findings"]} == {"changed.json#2"}
