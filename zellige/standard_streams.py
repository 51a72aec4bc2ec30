"""Standard output and error while a command runs: a reader that has gone ends it quietly, a full disk is an error.

Python's own ways differ from writer to writer: typer and rich end with status 1, which here means findings, and what is
left in a buffer fails at shutdown, with a complaint and status 120.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any, cast

from zellige.errors import FileError

READER_GONE = 128 + signal.SIGPIPE
"""Exit status where nobody reads the output any more, as shells say it of a tool that SIGPIPE ends."""


class GuardedStream:
    """A stream whose failed writes end the command: with :data:`READER_GONE`, or what ``failed`` makes of the reason.

    Both are no OSErrors, which typer and rich would handle in their own way. A stream that failed once stays failed, as
    typer probes streams and takes no notice; but what is left in buffers is dropped, so that shutdown has nothing to
    complain of. ``None`` stands for a stream that was closed before Python started.
    """

    def __init__(
        self, stream: Any, failed: Callable[[str], BaseException], ended: list[BaseException] | None = None
    ) -> None:
        self._stream = stream
        self._failed = failed
        self._ended: list[BaseException] = [] if ended is None else ended

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @property
    def buffer(self) -> GuardedStream:
        """The bytes below, for writers that encode text themselves."""
        return GuardedStream(self._stream.buffer, self._failed, self._ended)

    def write(self, content: Any) -> int:
        """Write text (or bytes, to a buffer)."""
        with self._told():
            return cast(int, self._stream.write(content))

    def flush(self) -> None:
        """Hand what was written to the system."""
        if self._stream is not None:
            with self._told():
                self._stream.flush()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        if self._stream is None:
            raise self._failed("it is closed")
        if self._ended:
            raise self._ended[0]
        try:
            yield
        except OSError as error:
            self._drop()
            gone = isinstance(error, BrokenPipeError)
            self._ended.append(SystemExit(READER_GONE) if gone else self._failed(error.strerror or str(error)))
            raise self._ended[0] from None

    def _drop(self) -> None:
        """Let what is still in buffers go nowhere."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)


def _no_output(reason: str) -> FileError:
    return FileError(f"cannot write to standard output: {reason}", fix="a file or pipe that takes what is printed")


def _no_errors(_: str) -> SystemExit:
    """An end without a word: there is no place left to say why."""
    return SystemExit(FileError.exit_code)


@contextlib.contextmanager
def guarded_streams() -> Iterator[None]:
    """Guard ``sys.stdout`` and ``sys.stderr``; what goes to a standard error that was closed on purpose is dropped."""
    before = sys.stdout, sys.stderr
    sys.stdout = cast(Any, GuardedStream(before[0], _no_output))
    sys.stderr = cast(Any, GuardedStream(io.StringIO() if before[1] is None else before[1], _no_errors))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
