"""Parquet clip lists: the same clips as CSV gives, gaps and foreign columns included; coded errors otherwise."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from zellige.clips import read_clips
from zellige.errors import FileError, FormatError, MissingExtraError, MissingSizesError

COLUMNS = {
    "path": ["a.mp4", "b.mp4", "c.jpg"],
    "width": [1280, 832, 512],
    "height": [720, 480, 512],
    "num_frames": [161, 81, 1],
    "fps": [23.976, 16.0, None],
}


def test_parquet_and_csv_give_the_same_clips(tmp_path: Path) -> None:
    pq.write_table(pa.table(COLUMNS | {"aes": [5.1, 5.2, 5.3]}), tmp_path / "list.parquet")
    rows = zip(*COLUMNS.values(), strict=True)
    lines = [",".join(COLUMNS), *(",".join("" if cell is None else str(cell) for cell in row) for row in rows)]
    (tmp_path / "list.csv").write_text("\n".join(lines) + "\n")
    found, told = read_clips(tmp_path / "list.parquet")
    expected, nothing = read_clips(tmp_path / "list.csv")
    assert (told, nothing) == (("columns not used: aes",), ())
    assert [clip.id for clip in found["list"]] == COLUMNS["path"]
    assert [(c.id, c.shape, c.fps) for c in found["list"]] == [(c.id, c.shape, c.fps) for c in expected["list"]]


def test_missing_sizes_are_named_by_row(tmp_path: Path) -> None:
    pq.write_table(pa.table(COLUMNS | {"width": [1280, None, 512]}), tmp_path / "list.parquet")
    with pytest.raises(MissingSizesError, match="1 of 3 rows has no width"):
        read_clips(tmp_path / "list.parquet")


def test_what_is_not_parquet_is_refused(tmp_path: Path) -> None:
    bad = tmp_path / "bad.parquet"
    for content in (b"", b"not parquet at all", b"PAR1" + b"\0" * 40 + b"PAR1"):
        bad.write_bytes(content)
        with pytest.raises((FormatError, FileError)) as caught:
            read_clips(bad)
        assert caught.value.exit_code == 4
    with pytest.raises(FileError):
        read_clips(tmp_path / "none.parquet")


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table(COLUMNS), tmp_path / "list.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match="needs pyarrow"):
        read_clips(tmp_path / "list.parquet")


def test_a_column_that_stands_twice_is_refused_as_in_csv(tmp_path: Path) -> None:
    sizes = [pa.array([832]), pa.array([480]), pa.array([81]), pa.array([1])]
    pq.write_table(pa.table(sizes, names=["width", "height", "num_frames", "width"]), tmp_path / "list.parquet")
    with pytest.raises(FormatError, match="a column stands twice") as caught:
        read_clips(tmp_path / "list.parquet")
    assert caught.value.where == "list.parquet"
