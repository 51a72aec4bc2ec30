"""Exit codes, and errors that say what, where, why and a way out, as text and as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import IMAGES, MIXED, SETTING, Run, write

from zellige import __version__, catalog, errors


@pytest.mark.parametrize(
    ("arguments", "code", "zl"),
    [
        (("inspect", "1280x720x161", "--model", "wan2.1-t2v-1.3"), 2, "ZL101"),
        (("inspect", "wide"), 2, "ZL102"),
        (("inspect", "1280x720x161", *SETTING, "--split", "h8"), 3, "ZL203"),
        (("inspect", "1280x720x161", *SETTING, "--split", "k5"), 3, "ZL203"),
        (("plan", "mixed.jsonl", *SETTING, "--usp", "h2h"), 2, "ZL100"),
        (("plan", "mixed.jsonl", *SETTING, "--knapformer", "g0n1"), 2, "ZL205"),
        (("plan", "mixed.jsonl", *SETTING, "--policy", "zelige"), 2, "ZL101"),
        (("plan", "mixed.jsonl", *SETTING, "--policy", "usp", "--usp", "h2"), 3, "ZL203"),
        (("plan", "mixed.jsonl"), 2, "ZL100"),
        (("plan", "huge.jsonl", *SETTING), 3, "ZL202"),
        (("plan", "missing.jsonl", *SETTING), 4, "ZL400"),
        (("plan", "broken.jsonl", *SETTING), 4, "ZL401"),
        (("check", "newer.json"), 4, "ZL402"),
        (("plan", "sizeless.csv", *SETTING), 4, "ZL403"),
        (("plan", "twice.jsonl", *SETTING), 4, "ZL404"),
        (("plan", "empty.jsonl", *SETTING), 4, "ZL405"),
        (("plan", "mixed.jsonl", *SETTING, "--buckets", "1,161"), 0, ""),
        (("plan", "long.jsonl", *SETTING, "--buckets", "1,161"), 1, "ZL407"),
    ],
)
def test_exit_codes(run: Run, arguments: tuple[str, ...], code: int, zl: str) -> None:
    """Text says error[ZL...]; with --json the same is an object on stderr, and stdout stays empty."""
    write("mixed.jsonl", MIXED)
    write("long.jsonl", MIXED.splitlines()[0])
    write("huge.jsonl", '{"width": 1920, "height": 1080, "num_frames": 1001, "fps": 16}\n')
    write("broken.jsonl", '{"width": 1920,\n')
    write("newer.json", '{"schema": "zellige.plan/2"}')
    write("sizeless.csv", "path,fps\na.mp4,16\n")
    write("twice.jsonl", '{"id": "a", "width": 256, "height": 256, "num_frames": 1}\n' * 2)
    write("empty.jsonl", "\n")
    text, as_json = run(*arguments), run(*arguments, "--json")
    assert (text.code, as_json.code) == (code, code)
    if code == 0:
        return
    assert text.out == as_json.out == ""
    assert f"error[{zl}]" in text.err
    error = json.loads(as_json.err[as_json.err.index("{\n") :])
    assert error["schema"] == "zellige.error/1"
    assert error["code"] == zl
    assert error["message"] in text.err
    assert set(error) >= {"schema", "code", "message", "where", "fix"}


def test_errors_name_the_spot(run: Run) -> None:
    write("clips.jsonl", IMAGES + '{"width": 256, "height": 256, "num_frames": -3}\n')
    assert run("plan", "clips.jsonl", *SETTING, "--json").error["where"] == "clips.jsonl:2"
    write("clips.csv", "width,height,num_frames\n256,256,1\n,256,1\n256,256,\n")
    error = run("plan", "clips.csv", *SETTING, "--json").error
    assert error["code"] == "ZL403"
    assert "3, 4" in error["where"]
    assert run("check", "clips.csv", *SETTING).code == 4


def all_errors(kind: type[errors.ZelligeError] = errors.ZelligeError) -> Iterator[type[errors.ZelligeError]]:
    for below in kind.__subclasses__():
        yield below
        yield from all_errors(below)


@pytest.mark.parametrize("kind", [errors.TimeLimitError, errors.MissingExtraError, errors.ModelMismatchError])
def test_every_error_ends_with_its_own_status(
    run: Run, monkeypatch: pytest.MonkeyPatch, kind: type[errors.ZelligeError]
) -> None:
    def fail(name: str) -> None:
        raise kind("it cannot be", where="here", details=("because",), fix="something else")

    monkeypatch.setattr(catalog, "load_model", fail)
    end = run("inspect", "256x256x1")
    assert end.code == kind.exit_code
    assert all(text in end.err for text in (kind.code, "it cannot be", "here", "because", "something else"))


def test_codes_and_exit_statuses_are_the_documented_ones() -> None:
    kinds = [kind for kind in all_errors() if kind.__module__ == errors.__name__]
    assert {kind.exit_code for kind in kinds} <= {1, 2, 3, 4, 5, 6, 70}
    assert all(re.fullmatch(r"ZL\d{3}", kind.code) for kind in kinds)
    codes = [kind.code for kind in kinds]
    assert len(codes) == len(set(codes))
    assert errors.TimeLimitError.exit_code == 5
    assert errors.MissingExtraError.exit_code == 6


def test_a_bug_is_70_and_names_itself(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise KeyError("surprise")

    monkeypatch.setattr(catalog, "load_model", fail)
    end = run("inspect", "256x256x1", "--json")
    assert end.code == 70
    assert end.error["code"] == "ZL900"
    assert "surprise" in end.error["message"]


@pytest.mark.parametrize("output", [(), ("--json",)])
def test_a_plan_over_memory_is_a_finding(run: Run, output: tuple[str, ...]) -> None:
    write("clips.jsonl", '{"width": 1920, "height": 1080, "num_frames": 161, "fps": 16, "count": 8}\n')
    assert run("plan", "clips.jsonl", *SETTING, "--policy", "dp", "-o", "plan.json", *output).code == 1
    assert json.loads(Path("plan.json").read_text())["fits"] is False
    end = run("check", "plan.json", "--json")
    assert end.code == 1
    assert [finding["code"] for finding in end.json["files"][0]["findings"]] == ["ZL204"]


def test_a_policy_without_any_plan_has_a_reason(run: Run) -> None:
    write("huge.jsonl", '{"id": "huge", "width": 1920, "height": 1080, "num_frames": 1001, "fps": 16}\n')
    end = run("compare", "huge.jsonl", *SETTING, "--json")
    assert end.code == 3, "no policy's plan fits"
    rows = {row["policy"]: row for row in end.json["rows"]}
    assert rows["zellige-paper"]["step_time_ns"] is None
    assert "huge" in rows["zellige-paper"]["reason"]
    assert rows["usp"]["fits"] is False
    assert rows["usp"]["step_time_ns"] > 0


@pytest.mark.parametrize("policy", ["zellige", "fcp", "disjoint", "joint"])
def test_a_policy_without_any_plan_says_how_much_memory_is_missing(run: Run, policy: str) -> None:
    """The figures of the error that planning this batch ends with."""
    write("heavy.jsonl", '{"id": "clip", "width": 832, "height": 480, "num_frames": 81, "fps": 16, "count": 120}\n')
    row = run("compare", "heavy.jsonl", *SETTING, "--policy", policy, "--json").json["rows"][0]
    error = run("plan", "heavy.jsonl", *SETTING, "--policy", policy, "--json").error
    assert row["step_time_ns"] is None
    assert row["reason"] == "; ".join([error["message"], *error["details"].splitlines()])
    assert re.search(r"keep at least \d+ GB .* all ranks together have 311 GB: [\d.]+ GB missing", row["reason"])


def test_usage_errors_and_help(run: Run) -> None:
    assert run("compare").code == 2
    assert run("plan", "x.jsonl", "--sharding", "zero9").code == 2
    assert run("conjure").code == 2
    assert run("plan", "x.jsonl", "--conjure").code == 2
    assert run("--version").out.strip() == __version__
    help_text = run("--help").out
    assert all(command in help_text for command in ("compare", "plan", "check", "inspect", "cut", "catalog"))
