"""What commands refuse before they start: empty and repeated options, results in place of inputs, words unknown."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import MIXED, SETTING, Run, check_ending, write


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("plan", "mixed.jsonl", *SETTING, "-o", ""), "-o has an empty value"),
        (("plan", "mixed.jsonl", *SETTING, "--output="), "--output has an empty value"),
        (("plan", "mixed.jsonl", *SETTING, "--micro-steps", ""), "leave --micro-steps out"),
        (("compare", "mixed.jsonl", *SETTING, "--prices", ""), "--prices has an empty value"),
        (("compare", "mixed.jsonl", *SETTING, "--policy", "dp", "--policy", ""), "--policy has an empty value"),
        (("simulate", "plan.json", "--device", ""), "--device has an empty value"),
        (("inspect", "256x256x1", "--split", ""), "--split has an empty value"),
        (("catalog", "show", ""), "an argument is empty"),
        (("check", "mixed.jsonl", "", *SETTING), "an argument is empty"),
        (("compare", "mixed.jsonl", *SETTING, "--device", "h200", "--device", "l40s"), "--device is given twice"),
        (("plan", "mixed.jsonl", *SETTING, "--seed", "1", "--seed=2", "--seed", "3"), "--seed is given 3 times"),
        (("simulate", "plan.json", "--fidelity", "event", "--fidelity", "flow"), "--fidelity is given twice"),
        (("execute", "plan.json", "--fsdp", "--ddp"), "--fsdp/--ddp is given twice"),
        (("plan", "mixed.jsonl", "--conjure"), "--conjure"),
        (("plan", "mixed.jsonl", "--sharding", "zero9"), "zero9"),
        (("plan",), "BATCH"),
        (("conjure",), "conjure"),
    ],
)
def test_arguments_that_would_be_ignored_or_mean_nothing(run: Run, arguments: tuple[str, ...], hint: str) -> None:
    write("mixed.jsonl", MIXED)
    end = check_ending(*arguments)
    assert (end.code, end.out) == (2, "")
    assert end.error["code"] == "ZL100"
    assert hint in end.error["message"] + end.error["fix"]
    text = run(*arguments)
    assert text.code == 2
    assert "  try: " in text.err


def test_flags_and_lists_may_come_twice(run: Run) -> None:
    write("mixed.jsonl", MIXED)
    end = run("compare", "mixed.jsonl", *SETTING, "--policy", "dp", "--policy", "usp", "--json", "--json")
    assert [row["policy"] for row in end.json["rows"]] == ["dp", "usp"]


def test_an_option_without_its_value_names_the_help_of_its_command(run: Run) -> None:
    end = run("plan", "mixed.jsonl", *SETTING, "--micro-steps")
    assert end.code == 2
    assert "'--micro-steps' requires an argument" in end.err
    assert "try: zellige-sim plan --help" in end.err


@pytest.mark.parametrize("group", [(), ("catalog",)])
def test_a_group_alone_shows_its_commands(run: Run, group: tuple[str, ...]) -> None:
    end = run(*group)
    assert end.code == 2
    assert "Commands:" in end.out


def plan_files(run: Run) -> None:
    """plan.json, schedule.json, prices.json, and link.jsonl to mixed.jsonl."""
    write("mixed.jsonl", MIXED)
    Path("link.jsonl").symlink_to("mixed.jsonl")
    for more in (("-o", "plan.json"), ("--micro-steps", "2", "-o", "schedule.json")):
        assert run("plan", "mixed.jsonl", *SETTING, "--policy", "dp", *more).code == 0
    assert run("prices", "mixed.jsonl", *SETTING, "-o", "prices.json").code == 0


def test_no_command_replaces_what_it_reads(run: Run) -> None:
    plan_files(run)
    before = {path.name: path.read_bytes() for path in Path().iterdir()}
    for arguments in (
        ("plan", "mixed.jsonl", *SETTING, "-o", "mixed.jsonl"),
        ("plan", "mixed.jsonl", *SETTING, "-o", str(Path("mixed.jsonl").absolute())),
        ("plan", "mixed.jsonl", *SETTING, "--stream", "-o", "link.jsonl"),
        ("plan", "mixed.jsonl", *SETTING, "--prices", "prices.json", "-o", "./prices.json"),
        ("prices", "mixed.jsonl", *SETTING, "-o", "mixed.jsonl"),
        ("compare", "mixed.jsonl", *SETTING, "--policy", "dp", "--out", "mixed.jsonl"),
        ("compare", "mixed.jsonl", *SETTING, "--policy", "dp", "--prices", "prices.json", "--out", "prices.json"),
        ("simulate", "plan.json", "--trace", "plan.json"),
        ("simulate", "schedule.json#1", "--kineto", "schedule.json"),
        ("simulate", "plan.json", "--trace", "spans", "--kineto", "spans"),
        ("execute", "plan.json", "--trace", "plan.json"),
        ("execute", "plan.json", "--out", "plan.json"),
    ):
        end = check_ending(*arguments)
        assert end.code == 2, arguments
        assert end.error["fix"] in {"another name", "a name for each"}, arguments
    assert {path.name: path.read_bytes() for path in Path().iterdir()} == before


def test_a_plan_of_many_is_taken_wherever_a_plan_is(run: Run) -> None:
    plan_files(run)
    assert run("plan", "mixed.jsonl", *SETTING, "--policy", "dp", "--stream", "-o", "plans.jsonl").code == 0
    for name, number in (("plan.json", 1), ("schedule.json", 2), ("plans.jsonl", 1)):
        for command in (("simulate", "--fidelity", "additive"), ("check",)):
            assert run(command[0], f"{name}#{number}", *command[1:]).code == 0, (command, name)
            for absent in (0, 9):
                end = check_ending(command[0], f"{name}#{absent}", *command[1:])
                assert (end.code, end.error["message"]) == (4, f"there is no plan {absent}")
                assert end.error["fix"].startswith("it holds")
    for other in ("mixed.jsonl#1", "prices.json#1", "mixed.jsonl"):
        assert "zellige-sim plan" in check_ending("simulate", other, "--fidelity", "additive").error["fix"]


def test_a_name_with_a_number_sign_is_a_name(run: Run) -> None:
    plan_files(run)
    Path("plan.json").rename("plan.json#1")
    assert run("check", "plan.json#1").code == 4, "a .json#1 that is there is read as what it is: no plan by its name"
    Path("plan.json#1").rename("plan#1.json")
    assert run("check", "plan#1.json").code == 0
    assert run("simulate", "plan#1.json", "--fidelity", "additive").code == 0


@pytest.mark.parametrize(
    ("given", "fix"),
    [
        ("plan.json", "simulate, execute and check take this file"),
        ("schedule.json", "FILE#1"),
        ("prices.json", "--prices takes this file"),
    ],
)
def test_a_file_of_another_kind_says_where_it_belongs(run: Run, given: str, fix: str) -> None:
    plan_files(run)
    for command in ("plan", "compare"):
        error = check_ending(command, given, *SETTING).error
        assert error["code"] == "ZL402"
        assert fix in error["fix"]
        assert "one JSON object a line" in error["fix"]
    if given != "prices.json":
        error = check_ending("compare", "mixed.jsonl", *SETTING, "--prices", given).error
        assert fix in error["fix"]
        assert "zellige-sim prices" in error["fix"]


def test_a_list_of_clips_in_one_value_says_how_to_write_it(run: Run) -> None:
    for text in ('[\n{"width": 256,\n"height": 256, "num_frames": 1}]', '[{"width": 256}]'):
        error = check_ending("plan", write("clips.json", text), *SETTING).error
        assert error["code"] == "ZL401"
        assert "one JSON object a line" in error["fix"]
