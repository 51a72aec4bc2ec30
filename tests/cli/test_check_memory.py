"""What ``check`` says of a batch's memory is what ``plan`` then says, under whichever engine."""

from __future__ import annotations

import inspect
import json
import re

import pytest
from command_line import MODEL, SETTING, Run, write

from zellige.batch_memory import DEFAULT_POLICY
from zellige.cli_plan import plan_command

ENGINES = [(), ("--engine", "coalesced"), ("--engine", "group"), ("--engine", "per_sequence")]
KEPT = re.compile(r"the sequences keep at least [\d.,]+ GB until backward, however they are split; .*? have \d+ GB")


def clips(count: int) -> str:
    row = {"width": 832, "height": 480, "num_frames": 81, "fps": 16, "count": count}
    return write("clips.jsonl", json.dumps(row))


def test_the_policy_that_memory_is_counted_for_is_the_one_that_plans() -> None:
    assert inspect.signature(plan_command).parameters["policy"].default == DEFAULT_POLICY


@pytest.mark.parametrize("engine", ENGINES, ids=" ".join)
@pytest.mark.parametrize("count", [60, 120, 400])
def test_check_refuses_what_plan_proves_too_much_with_the_same_figures(
    run: Run, count: int, engine: tuple[str, ...]
) -> None:
    """60 clips keep more than there is under coalesced exchanges, and less where only the largest is live."""
    name = clips(count)
    planned = run("plan", name, *SETTING, *engine)
    checked = run("check", name, *SETTING, *engine)
    proof = KEPT.search(planned.err)
    assert (checked.code == 1) == (proof is not None)
    used = engine[1] if engine else "coalesced"
    assert f"under engine {used}" in checked.out
    if proof is None:
        assert "rules out no single step" in checked.out
        return
    assert planned.code == 3
    assert proof[0] in checked.out
    fewest = re.search(r"by number, at least (\d+) micro-steps by memory", checked.out)
    needed = re.search(r"would need (\d+)", planned.err)
    assert fewest is not None
    assert needed is not None
    assert int(fewest[1]) <= int(needed[1])
    assert f"plan --micro-steps auto: {fewest[1]} micro-steps or more" in checked.out


def test_engines_keep_different_bytes(run: Run) -> None:
    name = clips(60)
    assert [run("check", name, *SETTING, *engine).code for engine in ENGINES] == [1, 1, 0, 0]


def test_packed_steps_say_whether_memory_was_looked_at(run: Run) -> None:
    name = clips(120)
    assert "packed, 1 step for all 120 if memory allows (--cluster says)" in run("check", name, *MODEL).out
    assert "packed, 1 step for all 120 by number, at least" in run("check", name, *SETTING).out
    assert "packed, 1 step for all 2\n" in run("check", clips(2), *SETTING).out
    assert "packed, 60 steps for all 120\n" in run("check", clips(120), *SETTING, "--batch-size", "2").out


def test_a_bucket_that_no_split_fits_is_found_under_the_engine_of_plan(run: Run) -> None:
    name = write("huge.jsonl", '{"width": 1920, "height": 1080, "num_frames": 1001, "fps": 16}\n')
    end = run("check", name, *SETTING, "--json")
    assert [finding["code"] for finding in end.json["files"][0]["findings"]][:1] == ["ZL202"]
    assert run("plan", name, *SETTING, "--json").error["code"] == "ZL202"


def test_check_prices_a_batch_with_the_table_that_is_given(run: Run) -> None:
    name = clips(2)
    assert run("prices", name, *SETTING, "-o", "prices.json").code == 0
    assert run("check", name, *SETTING, "--prices", "prices.json").code == 0
    other = write("other.jsonl", '{"width": 256, "height": 256, "num_frames": 1}\n')
    assert run("check", other, *SETTING, "--prices", "prices.json", "--json").error["code"] == "ZL401"
