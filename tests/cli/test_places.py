"""Outputs without a place: told before any work is done, for every command that writes, and nothing is left behind."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest
from command_line import IMAGES, SETTING, Run, write

from zellige.cli_arguments import require_places
from zellige.errors import FileError

BATCH = ("images.jsonl", *SETTING)
FILES = [
    ("plan", *BATCH, "-o"),
    ("plan", *BATCH, "--micro-steps", "auto", "-o"),
    ("plan", *BATCH, "--stream", "-o"),
    ("prices", *BATCH, "-o"),
    ("compare", *BATCH, "--out"),
    ("simulate", "plan.json", "--trace"),
    ("execute", "plan.json", "--trace"),
    ("execute", "plan.json", "--attention-only", "--trace"),
    ("profile", *BATCH, "--out"),
    ("validate", "--write-interference"),
]
FOLDERS = [
    ("simulate", "plan.json", "--kineto"),
    ("execute", "plan.json", "--out"),
    ("validate", "--save"),
]

WORK = (
    "sources.build_problems",
    "sources.each_problem",
    "sweep.run_sweep",
    "plan_check.load_plan",
    "measuring.measuring_setting",
    "measuring.run_validation",
)
"""Where commands begin to plan, simulate, run and measure."""


@pytest.fixture
def no_work(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs, and nothing behind them."""
    write("images.jsonl", IMAGES)
    assert run("plan", *BATCH, "-o", "plan.json").code == 0
    Path("folder").mkdir()

    def work(*_: object, **__: object) -> None:
        raise AssertionError("work has begun")

    for name in WORK:
        monkeypatch.setattr(f"zellige.{name}", work)


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize("arguments", FILES, ids=lambda arguments: f"{arguments[0]} {arguments[-1]}")
@pytest.mark.parametrize("place", ["no/such/folder/x.json", "folder", "plan.json/x.json", "x" * 300])
def test_a_file_without_a_place(run: Run, arguments: tuple[str, ...], place: str) -> None:
    before = sorted(Path().rglob("*"))
    end = run(*arguments, place, "--json")
    assert (end.code, end.error["code"]) == (4, "ZL400")
    assert "cannot write" in end.error["message"] or "not a regular file" in end.error["message"]
    assert place in end.error["message"]
    assert sorted(Path().rglob("*")) == before


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize("arguments", FILES + FOLDERS, ids=lambda arguments: f"{arguments[0]} {arguments[-1]}")
@pytest.mark.parametrize("place", ["-", "./-"])
def test_a_dash_is_no_file(run: Run, arguments: tuple[str, ...], place: str) -> None:
    """Elsewhere it means standard output: no command makes a file of that name by mistake."""
    before = sorted(Path().rglob("*"))
    end = run(*arguments, place, "--json")
    assert (end.code, end.error["code"], end.out) == (2, "ZL100", "")
    assert end.error["message"] == f"{arguments[-1]} - would write a file called '-'"
    assert "standard output" in end.error["fix"]
    assert sorted(Path().rglob("*")) == before


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize("arguments", FOLDERS, ids=lambda arguments: f"{arguments[0]} {arguments[-1]}")
@pytest.mark.parametrize("place", ["images.jsonl.d", "file.txt/below", "y" * 300])
def test_a_folder_that_cannot_be_made(run: Run, arguments: tuple[str, ...], place: str) -> None:
    write("file.txt", "")
    write("images.jsonl.d", "")
    before = sorted(Path().rglob("*"))
    end = run(*arguments, place, "--json")
    assert (end.code, end.error["code"], end.error["where"]) == (4, "ZL400", arguments[-1])
    assert end.error["message"].startswith("cannot make the folder ")
    assert sorted(Path().rglob("*")) == before


@pytest.mark.usefixtures("run")
def test_places_that_will_do() -> None:
    """Files that are there, links, pipes and devices, new folders, and files in a folder that is made with them."""
    write("there.json", "kept")
    Path("link.json").symlink_to("there.json")
    before = sorted(Path().rglob("*"))
    files = {"-o": Path("there.json"), "--trace": Path("link.json"), "--out": Path("/dev/stdout"), "--new": Path("new")}
    require_places(files, {"--save": Path("a/b")})
    require_places({"--trace": Path("a/b/trace.json")}, {"--save": Path("a/b")})
    assert sorted(Path().rglob("*")) == before
    assert Path("there.json").read_text() == "kept"


def test_a_place_in_another_folder_than_the_one_that_is_made(run: Run) -> None:
    with pytest.raises(FileError, match=r"cannot write 'c/trace\.json'"):
        require_places({"--trace": Path("c/trace.json")}, {"--save": Path("a/b")})


def test_a_folder_that_may_not_be_written_to(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for who is not root, who may write everywhere."""
    Path("locked").mkdir()

    def refused(**_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(tempfile, "mkstemp", refused)
    for files, folders in (({"-o": Path("locked/x")}, {}), ({}, {"--save": Path("locked")})):
        with pytest.raises(FileError, match="Permission denied"):
            require_places(files, folders)


def test_a_trace_may_lie_in_the_folder_that_is_made_for_kineto(run: Run) -> None:
    write("images.jsonl", IMAGES)
    assert run("plan", *BATCH, "-o", "plan.json").code == 0
    assert run("simulate", "plan.json", "--kineto", "k", "--trace", "k/trace.json").code == 0
    assert len(list(Path("k").iterdir())) == 5
