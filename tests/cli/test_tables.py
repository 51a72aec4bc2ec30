"""Tables that fit a terminal, plain text for pipes, several files and files of many batches."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import IMAGES, MIXED, MODEL, SETTING, Run, write


def table_lines(text: str) -> list[str]:
    """The lines of all tables: a header above a rule, and rows down to a blank line."""
    lines = text.splitlines()
    kept = []
    for index, line in enumerate(lines):
        if line and set(line.strip()) == {"─"}:
            stop = next((i for i in range(index, len(lines)) if not lines[i].strip()), len(lines))
            start = max((i + 1 for i in range(index) if not lines[i].strip()), default=0)
            kept += [row for row in lines[max(start, index - 2) : stop] if row.count(":") == 0]
    return kept


HUGE_BATCH = (
    '{"width": 1920, "height": 1080, "num_frames": 161, "fps": 16, "count": 400}\n'
    '{"width": 832, "height": 480, "num_frames": 81, "fps": 16, "count": 300}\n'
    '{"width": 1024, "height": 1024, "num_frames": 1, "count": 3000}\n'
)
SIX_SHAPES = "".join(
    json.dumps({"width": width, "height": 480, "num_frames": frames, "count": 2}) + "\n"
    for width, frames in ((256, 1), (480, 1), (832, 1), (480, 33), (832, 49), (832, 81))
)
UNPLANNABLE = '{"width": 1920, "height": 1080, "num_frames": 1001, "fps": 16}\n'


@pytest.mark.parametrize(
    ("arguments", "rows", "code"),
    [
        (("compare", "paper-10s-high-v50"), 8, 0),
        (("compare", "paper-10s-high-v50", "--breakdown"), 16, 0),
        (("compare", "huge.jsonl", "unplannable.jsonl", *SETTING), 8, 3),
        (("compare", "huge.jsonl", *SETTING, "--breakdown", "--policy", "dp", "--policy", "static-coalesced"), 4, 3),
        (("inspect", "1920x1080x241", "--cluster", "a800x16", *MODEL), 25, 0),
        (("inspect", "1920x1080x3601", "--cluster", "h100x64", *MODEL), 10, 0),
        (("cut", "six.jsonl", *SETTING), 14, 0),
    ],
)
def test_tables_fit_80_columns(
    run: Run, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], rows: int, code: int
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    write("huge.jsonl", HUGE_BATCH)
    write("unplannable.jsonl", UNPLANNABLE)
    write("six.jsonl", SIX_SHAPES)
    end = run(*arguments)
    assert end.code == code
    assert "…" not in end.out, "a cell is cut off"
    lines = table_lines(end.out)
    assert len(lines) >= rows, end.out
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in end.out


def test_tables_say_what_json_says(run: Run) -> None:
    """One row a policy, with its step time to three figures."""
    write("mixed.jsonl", MIXED)
    rows = run("compare", "mixed.jsonl", *SETTING, "--json").json["rows"]
    text = table_lines(run("compare", "mixed.jsonl", *SETTING).out)
    for row in rows:
        (line,) = [line for line in text if line.split()[0] == row["policy"]]
        number = float(re.findall(r"[\d.]+", line.split()[1])[0])
        assert number == pytest.approx(row["step_time_ns"] / 1e9, rel=6e-3)
        assert f"{row['ratio_to_best']:.3f}" in line


def script(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    """The console script in a process of its own, its output piped."""
    code = "from zellige.cli import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "TERM": "xterm-256color", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent.parent.parent,
    )


def test_pipes_get_plain_text() -> None:
    compare = script("compare", "motivation", "--policy", "dp", "--policy", "usp", NO_COLOR="1")
    out, err = compare.communicate(timeout=60)
    assert compare.returncode == 0
    assert "\x1b" not in out + err
    assert err == "", "no progress bar where there is no terminal"
    assert re.search(r"^dp\b", out, re.MULTILINE)


def test_several_files_are_batches_of_one_comparison(run: Run) -> None:
    write("a.jsonl", MIXED)
    write("b.csv", "width,height,num_frames,fps\n832,480,81,16\n512,512,1,\n")
    answer = run("compare", "a.jsonl", "b.csv", *SETTING, "--json").json
    assert answer["batches"] == 2
    rows = {row["policy"]: row for row in answer["rows"]}
    assert "knapformer-best" in rows
    assert all(row["num_sequences"] == 15 for row in rows.values())
    alone = [run("compare", name, *SETTING, "--json").json["rows"] for name in ("a.jsonl", "b.csv")]
    times = [row["step_time_ns"] for one in alone for row in one if row["policy"] == "dp"]
    assert rows["dp"]["step_time_ns"] == pytest.approx(sum(times) / 2, abs=1)
    assert rows["dp"]["win_rate"] <= 1
    text = run("compare", "a.jsonl", "b.csv", *SETTING).out
    assert "2 batches" in text


def test_a_file_of_many_batches(run: Run) -> None:
    rows = [
        {"width": 256 * (1 + n % 2), "height": 256, "num_frames": 1, "count": 4, "batch": f"s{n}"} for n in range(3)
    ]
    write("many.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    answer = run("compare", "many.jsonl", *SETTING, "--json", "--policy", "dp").json
    assert answer["batches"] == 3
    assert answer["rows"][0]["batches_planned"] == 3
    end = run("plan", "many.jsonl", *SETTING)
    assert end.code == 2
    assert "3 batches" in end.err
    assert run("check", "many.jsonl", *SETTING).out.count("4 sequences") == 3


def test_batches_for_different_set_ups_are_not_compared(run: Run) -> None:
    end = run("compare", "motivation", "paper-10s-high-v50")
    assert end.code == 2
    assert "a800x4" in end.err
    assert "a800x8" in end.err


def test_no_gain_is_said_where_there_is_none(run: Run) -> None:
    """Equal images fill the ranks evenly: nothing is left for a moldable plan to win."""
    write("images.jsonl", IMAGES)
    arguments = ("compare", "images.jsonl", *SETTING)
    assert "no gain here" in run(*arguments).out
    assert "no gain here" in run(*arguments, "--json").json["verdict"]
    gains = run("compare", "wide-mix", "--json", "--policy", "static-coalesced", "--policy", "zellige-paper").json
    assert "no gain here" not in gains["verdict"]


@pytest.mark.parametrize("engine", ["coalesced", "per_sequence", "group"])
def test_an_engine_for_all_policies(run: Run, engine: str) -> None:
    write("mixed.jsonl", MIXED)
    rows = run("compare", "mixed.jsonl", *SETTING, "--engine", engine, "--json").json["rows"]
    assert {row["engine"] for row in rows} == {engine}
    assert run("plan", "mixed.jsonl", *SETTING, "--engine", engine, "--json").json["engine"] == engine
