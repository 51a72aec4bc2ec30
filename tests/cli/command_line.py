"""Run the console script inside the test process, and small inputs for it."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from zellige import cli, errors

MODEL = ("--model", "wan2.1-t2v-1.3b")
SETTING = ("--cluster", "a800x4", *MODEL)
IMAGES = '{"width": 256, "height": 256, "num_frames": 1, "count": 12}\n'
MIXED = '{"id": "long", "width": 832, "height": 480, "num_frames": 81, "fps": 16}\n' + IMAGES


class Ending(NamedTuple):
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> Any:
        """The error object on stderr, behind any warnings."""
        return json.loads(self.err[self.err.index("{\n") :])


Run = Callable[..., Ending]


def run_main(*arguments: str) -> Ending:
    """Call the entry point as the console script does; an exit status that is no integer, or a traceback, fails."""
    out, err = io.StringIO(), io.StringIO()
    argv = mock.patch.object(sys, "argv", ["zellige-sim", *arguments])
    code: object = 0
    with argv, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
    assert isinstance(code, int), f"exit status {code!r}"
    assert "Traceback" not in err.getvalue(), err.getvalue()
    return Ending(code, out.getvalue(), err.getvalue())


def write(name: str, text: str) -> str:
    """Write a file in the current folder; returns its name."""
    Path(name).write_text(text, encoding="utf-8")
    return name


def all_kinds(kind: type[errors.ZelligeError]) -> dict[str, int]:
    """Exit codes by error code, of a kind of error and of all below it."""
    codes = {kind.code: kind.exit_code}
    for below in kind.__subclasses__():
        codes |= all_kinds(below)
    return codes


EXIT_CODES = {code: status for code, status in all_kinds(errors.ZelligeError).items() if status != 70}
"""Errors that a user can meet; 70 is a bug."""


def check_ending(*arguments: str) -> Ending:
    """Run with --json: the end must be an answer, or a coded error with its exit code and a way out."""
    end = run_main(*arguments, *(() if "--json" in arguments else ("--json",)))
    shown = f"{' '.join(arguments)}: exit {end.code}\n{end.err[-2000:]}"
    assert 0 <= end.code <= 6, shown
    if end.out:
        assert json.loads(end.out, parse_constant=_refuse)["schema"].startswith("zellige."), shown
    else:
        assert "{\n" in end.err, shown
        assert end.error["schema"] == "zellige.error/1", shown
        assert end.error["message"], shown
        assert end.error["fix"], shown
        assert end.code == EXIT_CODES[end.error["code"]], shown
    return end


def _refuse(constant: str) -> float:
    raise AssertionError(f"{constant} is not JSON")
