"""Streams that take no more: a reader that has gone ends a command quietly, a full disk is an error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import IMAGES, MIXED, SETTING, Run, write

from zellige import cli
from zellige.standard_streams import READER_GONE

ROOT = Path(__file__).resolve().parents[2]
FULL = Path("/dev/full")
STREAM = ("plan", "several.csv", *SETTING, "--stream")
COMMANDS = [
    ("--version",),
    ("--help",),
    ("catalog",),
    ("catalog", "list"),
    ("catalog", "show", "a800x16", "--json"),
    ("check", "plan.json"),
    ("compare", "images.jsonl", *SETTING, "--policy", "dp", "--policy", "usp"),
    ("compare", "images.jsonl", *SETTING, "--policy", "dp", "--json"),
    ("cut", "images.jsonl", *SETTING),
    ("inspect", "256x256x17", *SETTING),
    ("plan", "images.jsonl", *SETTING),
    ("plan", "images.jsonl", *SETTING, "--help"),
    STREAM,
    ("prices", "images.jsonl", *SETTING),
    ("profile", "images.jsonl", *SETTING, "--estimate"),
    ("simulate", "plan.json"),
    ("theory", "--ranks", "2", "--json"),
]
"""Answers of one line and of many, by print, by typer and by rich, and lines that come one by one."""


@pytest.fixture
def files(run: Run) -> None:
    write("images.jsonl", IMAGES)
    write("several.csv", "width,height,num_frames,fps,batch\n256,256,1,16,a\n256,256,17,16,b\n")
    assert run("plan", "images.jsonl", *SETTING, "-o", "plan.json").code == 0


def closed_pipe() -> int:
    """The end of a pipe that takes what is written, and whose reader has gone."""
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def full_disk() -> int:
    return os.open(FULL, os.O_WRONLY)


@pytest.fixture
def ends_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Callable[[str, Callable[[], int], tuple[str, ...]], Any]]:
    """Run a command with one of its streams on a descriptor; its exit status, and what the other streams hold."""

    def end(stream: str, opened: Callable[[], int], arguments: tuple[str, ...]) -> tuple[int, str]:
        lines = 1 if stream == "stderr" else -1
        with (
            monkeypatch.context() as patch,
            open(opened(), "w", buffering=lines) as broken,
            (tmp_path / "other").open("w+") as other,
        ):
            patch.setattr(sys, "argv", ["zellige-sim", *arguments])
            for name in ("stdout", "stderr"):
                patch.setattr(sys, name, broken if name == stream else other)
            with pytest.raises(SystemExit) as ended:
                cli.main()
            broken.flush()
            other.seek(0)
            assert isinstance(ended.value.code, int)
            return ended.value.code, other.read()

    return end


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_reader_that_has_gone_ends_a_command_quietly(ends_on: Any, arguments: tuple[str, ...]) -> None:
    code, told = ends_on("stdout", closed_pipe, arguments)
    assert code == READER_GONE == 141
    assert not told or told.startswith("planning: "), told


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_an_answer_that_cannot_be_written_is_one_error(ends_on: Any, arguments: tuple[str, ...]) -> None:
    code, told = ends_on("stdout", full_disk, arguments)
    assert code == 4
    message = "cannot write to standard output: No space left on device"
    if "--json" in arguments:
        error = json.loads(told)
        assert (error["code"], error["message"]) == ("ZL400", message)
    else:
        assert told.count("error[") == 1
        assert told.startswith(f"error[ZL400] {message}\n  try: ")


@pytest.mark.parametrize(
    ("opened", "arguments", "status"),
    [
        (closed_pipe, ("plan", "missing.jsonl", *SETTING), 141),
        (closed_pipe, ("conjure",), 141),
        (closed_pipe, ("compare", "short.jsonl", *SETTING, "--policy", "dp"), 141),
        (full_disk, ("plan", "missing.jsonl", *SETTING), 4),
        (full_disk, ("compare", "short.jsonl", *SETTING, "--policy", "dp"), 4),
    ],
)
def test_errors_and_warnings_that_nobody_reads(
    run: Run, ends_on: Any, opened: Callable[[], int], arguments: tuple[str, ...], status: int
) -> None:
    """``2>&1 | head`` closes both; where the place of errors is full, only the status is left to say so."""
    if opened is full_disk and not FULL.exists():
        pytest.skip("needs /dev/full")
    write("short.jsonl", MIXED + '{"id": "short", "width": 832, "height": 480, "num_frames": 2, "fps": 16}\n')
    assert ends_on("stderr", opened, arguments) == (status, "")


# --- as processes: what is left in buffers is written at shutdown


def process(arguments: tuple[str, ...], **streams: Any) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own, with Python's usual buffers."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(
        [sys.executable, "-m", "zellige.cli", *arguments],
        env=environment | {"PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE, text=True, timeout=120, check=False,
        **streams,
    )  # fmt: skip


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("arguments", [("--version",), ("catalog", "list"), ("simulate", "plan.json"), STREAM])
def test_a_process_says_nothing_at_shutdown(arguments: tuple[str, ...]) -> None:
    """What is shorter than a buffer fails when the buffer is emptied."""
    with open(closed_pipe(), "wb") as gone:
        done = process(arguments, stdout=gone)
    assert (done.returncode, done.stderr) == (READER_GONE, "")


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
def test_a_process_says_once_that_the_disk_is_full() -> None:
    with FULL.open("wb") as full:
        done = process(("catalog", "list"), stdout=full)
    assert done.returncode == 4
    assert done.stderr.startswith("error[ZL400] cannot write to standard output: No space left on device\n  try: ")
    assert len(done.stderr.splitlines()) == 2


@pytest.mark.parametrize(
    ("closed", "status", "told"), [(1, 4, "cannot write to standard output: it is closed"), (2, 0, "")]
)
def test_streams_that_were_closed_beforehand(closed: int, status: int, told: str) -> None:
    """``>&-`` is a mistake, as there is an answer; ``2>&-`` is a wish."""
    done = process(("catalog", "list"), stdout=subprocess.DEVNULL, preexec_fn=lambda: os.close(closed))
    assert done.returncode == status
    assert told in done.stderr
    assert bool(done.stderr) == bool(told)


def test_what_is_printed_after_a_command_still_comes(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The guard goes with the command."""
    before = sys.stdout, sys.stderr
    monkeypatch.setattr(sys, "argv", ["zellige-sim", "--version"])
    with pytest.raises(SystemExit):
        cli.main()
    assert (sys.stdout, sys.stderr) == before
    print("after")
    assert capfd.readouterr().out.endswith("\nafter\n")
