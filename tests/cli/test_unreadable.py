"""Paths at which nothing can be read or written, and clips beyond all bounds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from command_line import MIXED, SETTING, check_ending, run_main


def places(folder: Path) -> dict[str, str]:
    """Paths at which nothing can be read, by what is wrong with them; suffixes are added by the tests."""
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "file").write_text("x")
    return {
        "missing": str(folder / "missing"),
        "in a file": str(folder / "file" / "x"),
        "too long": str(folder / ("n" * 300)),
        "too deep": str(folder / "/".join(["d" * 200] * 30)),
        "a NUL": str(folder / "a\0b"),
        "half a character": str(folder / "a\udcffb"),
    }


def test_paths_where_nothing_can_be_read(tmp_path: Path) -> None:
    clips = tmp_path / "valid.jsonl"
    clips.write_text(MIXED)
    for why, stem in places(tmp_path).items():
        for command in ("check", "plan", "compare"):
            for suffix in (".jsonl", ".csv", ".toml") if command == "check" else (".jsonl",):
                assert check_ending(command, stem + suffix, *SETTING).code == 4, (why, command, suffix)
        assert check_ending("check", f"{stem}.json").code == 4, why
        for option in ("--cluster", "--model"):
            assert check_ending("inspect", "256x256x17", option, f"{stem}.toml").code == 4, (why, option)
        assert check_ending("plan", str(clips), *SETTING, "--prices", f"{stem}.json").code == 4, why
        assert check_ending("plan", str(clips), *SETTING, "--buckets", f"{stem}.txt").code == 4, why


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".toml", ".json"])
def test_directories_and_loops(tmp_path: Path, suffix: str) -> None:
    directory, loop = tmp_path / f"directory{suffix}", tmp_path / f"loop{suffix}"
    directory.mkdir()
    loop.symlink_to(loop)
    for path in (directory, loop):
        for command in ("check", "plan", "compare"):
            assert check_ending(command, str(path), *SETTING).code == 4, path
    assert "directory" in run_main("check", str(directory), *SETTING).err


def test_files_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Permission is refused by hand: the superuser may read anything."""

    def refuse(path: Path, *arguments: object, **named: object) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_text", refuse)
    for command in (("check", "a.jsonl"), ("plan", "a.csv"), ("compare", "a.toml"), ("check", "plan.json")):
        end = check_ending(*command, *SETTING)
        assert end.code == 4
        assert "Permission denied" in end.err


def test_plans_that_cannot_be_written(tmp_path: Path) -> None:
    clips = tmp_path / "clips.jsonl"
    clips.write_text(MIXED)
    (tmp_path / "directory").mkdir()
    for output in ("missing/plan.json", "directory", "clips.jsonl/plan.json", "n" * 300, "a\0b"):
        end = check_ending("plan", str(clips), *SETTING, "-o", str(tmp_path / output))
        assert end.code == (2 if "\0" in output else 4), output
    assert sorted(os.listdir(tmp_path)) == ["clips.jsonl", "directory"], "a temporary file was left behind"


def test_a_clip_of_a_thousand_million_tokens(tmp_path: Path) -> None:
    clips = tmp_path / "clips.jsonl"
    clips.write_text('{"id": "huge", "width": 16384, "height": 16384, "num_frames": 4001, "fps": 16}\n')
    for command in ("check", "plan", "compare"):
        end = check_ending(command, str(clips), *SETTING)
        assert end.code == 4
        assert "clips.jsonl:1" in end.error["where"]
        assert "1,049,624,576 tokens" in end.err
    assert check_ending("inspect", "16384x16384x4001").code in {2, 4}
