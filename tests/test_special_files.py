"""What is no regular file: links are followed, pipes and devices written to as they are, endless ones not read."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from zellige.errors import FileError
from zellige.files import read_text, write_text


def test_a_link_is_followed(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    write_text(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_a_pipe_gets_what_is_written(tmp_path: Path) -> None:
    pipe, seen = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: seen.append(pipe.read_text()))
    reader.start()
    write_text(pipe, "a plan")
    reader.join(timeout=10)
    assert seen == ["a plan"]
    assert pipe.is_fifo()


def test_a_device_stays_a_device_and_is_not_read() -> None:
    before = os.stat(os.devnull)
    write_text(Path(os.devnull), "gone")
    assert os.stat(os.devnull).st_rdev == before.st_rdev
    for name in ("/dev/zero", os.devnull):
        with pytest.raises(FileError, match="is a device"):
            read_text(Path(name))
