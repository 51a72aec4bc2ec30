"""Results that come one by one: every line is written whole and at once, to a file or to standard output."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from pathlib import Path
from typing import BinaryIO, Self

from zellige.errors import FileError
from zellige.files import ANOTHER_PLACE, lock
from zellige.interrupts import held


class LineWriter:
    """Lines into a file that is begun anew, or (no path) to standard output; :class:`FileError` where that fails.

    Signals that end the process wait until the line being written is out. Where the disk is full, what was written of
    the line goes again.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        if path is not None:
            try:
                self._file = _begun_anew(path)
            except (OSError, ValueError) as error:
                raise self._failed(error) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def write(self, line: bytes) -> None:
        """Write a line, which ends with its line feed."""
        with held():
            if self._file is None:
                sys.stdout.write(line.decode())
                sys.stdout.flush()
                return
            try:
                _write_all(self._file, line)
            except OSError as error:
                raise self._failed(error) from None

    def _failed(self, error: Exception) -> FileError:
        reason = getattr(error, "strerror", None) or error
        return FileError(f"cannot write {str(self._path)!r}: {reason}", fix=ANOTHER_PLACE)


def _begun_anew(path: Path) -> BinaryIO:
    """The file, empty, and this process's alone; pipes and devices as they are."""
    file = open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o666), "wb", buffering=0)  # noqa: SIM115
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        lock(file, path)
        file.truncate()
    return file


def _write_all(file: BinaryIO, line: bytes) -> None:
    written = 0
    try:
        while written < len(line):
            written += file.write(line[written:])
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(file.fileno(), file.tell() - written)
        raise
