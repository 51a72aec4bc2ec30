"""Ends that come at a bad moment: while the command line is loaded, and while a file is put in its place."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from zellige.interrupts import held

ROOT = Path(__file__).resolve().parents[2]


def run_python(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A program in a fresh interpreter that takes signals as one that a person starts."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60, check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip


@pytest.mark.parametrize("module", ["zellige.cli_app", "typer", "zellige.errors", "zellige.standard_streams"])
@pytest.mark.parametrize("swallowed", [False, True])
def test_an_interrupt_while_modules_load_ends_quietly(tmp_path: Path, module: str, swallowed: bool) -> None:
    """Also where an import would take an exception for its own."""
    done = run_python(
        f"""
        import os, signal, sys
        import zellige.cli

        class Interrupted:
            def find_spec(self, name, path=None, target=None):
                if name == {module!r}:
                    try:
                        os.kill(os.getpid(), signal.SIGINT)
                    except BaseException:
                        if not {swallowed}:
                            raise

        sys.meta_path.insert(0, Interrupted())
        sys.argv = ["zellige-sim", "catalog", "list"]
        zellige.cli.main()
        """,
        tmp_path,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_an_interrupt_before_and_behind_a_command_ends_quietly(tmp_path: Path) -> None:
    done = run_python(
        """
        import contextlib, os, signal, sys
        import zellige.cli, zellige.standard_streams

        @contextlib.contextmanager
        def interrupted():
            os.kill(os.getpid(), signal.SIGINT)
            yield

        zellige.standard_streams.guarded_streams = interrupted
        sys.argv = ["zellige-sim", "catalog", "list"]
        zellige.cli.main()
        """,
        tmp_path,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("moment", ["os.replace", "os.chmod", "tempfile.mkstemp"])
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_no_temporary_file_is_left_when_a_process_is_ended(tmp_path: Path, moment: str, name: str) -> None:
    """The signal comes in the midst of it; the file is whole by then, and the process ends as it would have."""
    done = run_python(
        f"""
        import os, pathlib, signal, tempfile
        from zellige.files import write_text

        # Under nohup SIGHUP is ignored, and children inherit that.
        signal.signal(signal.{name}, signal.SIG_DFL)
        real = {moment}

        def late(*arguments, **options):
            result = real(*arguments, **options)
            os.kill(os.getpid(), signal.{name})
            return result

        {moment} = late
        write_text(pathlib.Path("plan.json"), "whole")
        print("not reached")
        """,
        tmp_path,
    )
    assert done.returncode == -signal.Signals[name]
    assert done.stdout == ""
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]
    assert (tmp_path / "plan.json").read_text() == "whole"


def test_a_place_is_tried_without_leaving_anything(tmp_path: Path) -> None:
    done = run_python(
        """
        import os, pathlib, signal, tempfile
        from zellige.files import require_place

        real = tempfile.mkstemp

        def late(*arguments, **options):
            result = real(*arguments, **options)
            os.kill(os.getpid(), signal.SIGTERM)
            return result

        tempfile.mkstemp = late
        require_place(pathlib.Path("plan.json"))
        """,
        tmp_path,
    )
    assert done.returncode == -signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


def test_ignored_signals_and_other_threads_are_left_as_they_are() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with held():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    seen: list[object] = []

    def elsewhere() -> None:
        with held():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGTERM)]
