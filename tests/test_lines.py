"""Lines come out whole: through a full disk, and through a Ctrl-C while one is being written."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from zellige import lines
from zellige.errors import FileError
from zellige.lines import LineWriter


def test_lines_are_there_as_soon_as_they_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "lines"
    path.write_text("an older file, which is longer than what comes\n")
    with LineWriter(path) as writer:
        for number in range(3):
            writer.write(b"%d\n" % number)
            assert path.read_bytes().splitlines() == [b"%d" % n for n in range(number + 1)]
    with LineWriter(None) as writer:
        writer.write("ü\n".encode())
    assert capsys.readouterr().out == "ü\n"


class SmallDisk:
    """A file on a disk with room for a few bytes."""

    def __init__(self, file: Any, room: int) -> None:
        self.file, self.room = file, room

    def write(self, data: bytes) -> int:
        if self.room == 0:
            raise OSError(28, "No space left on device")
        taken = self.file.write(data[: min(self.room, 2)])
        self.room -= taken
        return int(taken)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    with LineWriter(path) as writer:
        writer._file = SmallDisk(writer._file, 8)  # type: ignore[assignment]
        writer.write(b"first\n")
        with pytest.raises(FileError, match="No space left"):
            writer.write(b"second\n")
    assert path.read_bytes() == b"first\n"


@pytest.fixture(autouse=True)
def interrupts() -> Iterator[None]:
    """Python's own handler, also where the tests run in the background, which ignores interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_waits_for_the_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(file: Any, line: bytes) -> None:
        file.write(line[:3])
        os.kill(os.getpid(), signal.SIGINT)
        file.write(line[3:])

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(lines, "_write_all", interrupted)
    path = tmp_path / "lines"
    with pytest.raises(KeyboardInterrupt), LineWriter(path) as writer:
        writer.write(b"a whole line\n")
    assert path.read_bytes() == b"a whole line\n"
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_interrupt_does_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe that nobody reads must not hold the process for ever."""

    def stuck(file: Any, line: bytes) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("not reached")

    monkeypatch.setattr(lines, "_write_all", stuck)
    with pytest.raises(KeyboardInterrupt), LineWriter(tmp_path / "lines") as writer:
        writer.write(b"a line\n")


@pytest.mark.parametrize("name", ["", "missing/lines", "a\0b"])
def test_what_cannot_be_written_is_a_file_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(FileError, match="cannot write"):
        LineWriter(tmp_path / name)


def test_a_file_of_lines_has_one_writer(tmp_path: Path) -> None:
    """The second one is refused before it takes away what the first has written."""
    path = tmp_path / "lines"
    with LineWriter(path) as writer:
        writer.write(b"first\n")
        with pytest.raises(FileError, match="another process is writing"):
            LineWriter(path)
        writer.write(b"second\n")
    assert path.read_bytes() == b"first\nsecond\n"
    with LineWriter(path) as writer:
        writer.write(b"anew\n")
    assert path.read_bytes() == b"anew\n"
