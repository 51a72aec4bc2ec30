"""What people read: lines that fit the terminal, and legends for all columns."""

from __future__ import annotations

import re

import pytest
from command_line import IMAGES, MIXED, MODEL, SETTING, Run, write

from zellige.cli_support import wrapped

FEW = ("--policy", "dp", "--policy", "static-coalesced", "--policy", "zellige")
NOISY = ("--fidelity", "event", "--jitter", "0.02", "--replicas", "2")
HEAVY = '{"id": "clip", "width": 832, "height": 480, "num_frames": 81, "fps": 16, "count": 120}\n' + IMAGES


def files(run: Run) -> None:
    """Inputs of all commands: a list with a retimed and a dropped clip, a plan, a schedule, and a broken list."""
    retimed = '{"id": "r", "width": 832, "height": 480, "num_frames": 101, "fps": 23.976}\n'
    dropped = '{"id": "short", "width": 832, "height": 480, "num_frames": 2, "fps": 16}\n'
    write("mixed.jsonl", MIXED + retimed + dropped)
    write("heavy.jsonl", HEAVY)
    write("broken.jsonl", '{"width": 1920,\n')
    assert run("plan", "mixed.jsonl", *SETTING, "-o", "plan.json").code == 0
    assert run("plan", "heavy.jsonl", *SETTING, "--policy", "dp", "--micro-steps", "auto", "-o", "s.json").code == 0


COMMANDS = [
    ("compare", "mixed.jsonl", *SETTING),
    ("compare", "mixed.jsonl", *SETTING, *FEW, "--breakdown", "--reserve", "3%"),
    ("compare", "mixed.jsonl", "mixed.jsonl", *SETTING, *FEW, *NOISY, "--additivity"),
    ("compare", "heavy.jsonl", *SETTING, *FEW),
    ("compare", "heavy.jsonl", *SETTING, "--policy", "zellige-paper"),
    ("plan", "mixed.jsonl", *SETTING),
    ("plan", "heavy.jsonl", *SETTING),
    ("plan", "heavy.jsonl", *SETTING, "--policy", "dp"),
    ("plan", "heavy.jsonl", *SETTING, "--policy", "dp", "--micro-steps", "auto"),
    ("simulate", "plan.json"),
    ("simulate", "plan.json", "--jitter", "0.02", "--replicas", "2", "--additivity", "--trace", "t.json"),
    ("simulate", "s.json"),
    ("check", "mixed.jsonl", "plan.json", "s.json", *SETTING),
    ("check", "heavy.jsonl", *SETTING, "--batch-size", "3"),
    ("check", "broken.jsonl", *SETTING),
    ("inspect", "1280x720x161", "--cluster", "a800x16", "--model", "wan2.1-t2v-14b", "--split", "h4k2"),
    ("inspect", "1280x720x160", *MODEL, "--split", "h7"),
    ("cut", "mixed.jsonl", *SETTING),
    ("prices", "mixed.jsonl", *SETTING, "-o", "prices.json"),
    ("theory", "--ranks", "2", "--ranks", "4"),
    ("catalog", "list"),
    ("plan", "mixed.jsonl", *SETTING, "--policy", "zelige"),
]
LONG_WORD = re.compile(r"\S{70,}")
"""Digests and paths stay whole."""


@pytest.mark.parametrize("columns", [80, 120])
def test_every_line_fits_the_terminal(run: Run, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    files(run)
    monkeypatch.setenv("COLUMNS", str(columns))
    for arguments in COMMANDS:
        end = run(*arguments)
        assert end.code in {0, 1, 2, 3, 4}, (arguments, end.err)
        for line in (end.out + end.err).splitlines():
            assert len(line) <= columns or LONG_WORD.search(line), (arguments, line)


def test_pipes_get_every_line_whole(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a terminal, and without COLUMNS, nothing is wrapped: a line stays one to grep for."""
    files(run)
    monkeypatch.delenv("COLUMNS")
    out = run("compare", "mixed.jsonl", *SETTING, *FEW).out
    assert any(line.startswith("verdict: ") and len(line) > 90 for line in out.splitlines())


def test_wrapping_keeps_words_and_indents() -> None:
    assert wrapped("a b c", 80) == ["a b c"]
    assert wrapped("", 80) == [""]
    text = "  try: " + "word " * 30
    lines = wrapped(text, 40)
    assert all(len(line) <= 40 for line in lines)
    assert [line[:4] for line in lines[1:]] == ["    "] * (len(lines) - 1)
    assert " ".join(lines).split() == text.split()
    word = "sha256:" + "0" * 64
    assert wrapped(f"digest {word}", 40) == ["digest", f"  {word}"]


# --- legends


@pytest.mark.parametrize(
    ("arguments", "explained"),
    [
        (
            ("compare", "mixed.jsonl", *SETTING, *FEW),
            {"ratio", "max/mean", "bytes/usp", "split", "memory", "plan", "gap"},
        ),
        (("compare", "mixed.jsonl", *SETTING, *FEW, "--breakdown"), {"communication", "idle"}),
        (
            ("compare", "mixed.jsonl", *SETTING, *FEW, "--fidelity", "event"),
            {"calls", "wait", "exchange", "gathers", "slow-down", "other"},
        ),
        (("compare", "mixed.jsonl", "mixed.jsonl", *SETTING, *FEW), {"std dev", "best in"}),
        (("compare", "mixed.jsonl", *SETTING, *FEW, *NOISY), {"95 % of it", "longer than best", "best wins"}),
        (("simulate", "plan.json"), {"exchange", "wait", "slow-down", "state", "idle", "memory"}),
        (("simulate", "plan.json", "--jitter", "0.1"), {"jitter"}),
        (("cut", "mixed.jsonl", *SETTING), {"fillers", "dispersion", "gap", "split", "whole price", "log price"}),
        (("theory", "--ranks", "2"), {"ratio", "N / group", "giant on N-1", "splits", "load", "best order"}),
        (("inspect", "256x256x17", *SETTING), {"split", "time x ranks", "memory", "moved a step"}),
    ],
)
def test_columns_are_explained(run: Run, arguments: tuple[str, ...], explained: set[str]) -> None:
    """Each as ``column: what it is`` below its table."""
    files(run)
    out = run(*arguments).out
    for column in explained:
        assert re.search(rf"(?:^|; |, ){re.escape(column)}(?:, \w+)?: ", out, re.MULTILINE), (column, out)


def test_the_cut_has_no_column_of_the_ring_degree(run: Run) -> None:
    files(run)
    out = run("cut", "mixed.jsonl", *SETTING).out
    header = next(line for line in out.splitlines() if "dispersion" in line)
    assert header.split()[0] == "fillers"
    assert " k " not in out
    assert "buckets are fillers, the rest anchors" in out or "is a filler" in out
