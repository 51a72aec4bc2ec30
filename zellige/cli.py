"""The entry point of ``zellige-sim``: so small that a Ctrl-C finds it ready, while all else is still being loaded."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator

INTERRUPTED = 128 + signal.SIGINT
"""Exit status after a Ctrl-C, as shells say it of a tool that SIGINT ends."""


def main() -> None:
    """Run the command that ``sys.argv`` names, and end with its exit status; quietly where it is interrupted."""
    try:
        with _ending_at_once():
            from zellige.cli_app import run
            from zellige.standard_streams import guarded_streams
        with guarded_streams():
            status = run(wants_json="--json" in sys.argv)
    except KeyboardInterrupt:
        status = INTERRUPTED
    sys.exit(status)


@contextlib.contextmanager
def _ending_at_once() -> Iterator[None]:
    """Let a Ctrl-C end the process without a word: an exception in the midst of an import is not always passed on.

    Nothing has been written yet. Where interrupts are ignored, or handled by a caller, that stays so.
    """
    python_s_own = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not python_s_own or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


if __name__ == "__main__":
    main()
