"""Columns that are not sizes: names of sequences, and what readers read past, in every format alike."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from zellige.clips import read_clips
from zellige.errors import ZelligeError

ROW: dict[str, object] = {"width": 832, "height": 480, "num_frames": 81}


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def lines(*rows: object) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl"])
@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("heigth", "columns not used: heigth"),
        ("counts", "columns not used: counts (did you mean 'count'?)"),
        ("fsp", "columns not used: fsp (did you mean 'fps'?)"),
        ("caption", "columns not used: caption"),
        ("text", ""),
    ],
)
def test_other_columns_are_read_past_in_every_format(tmp_path: Path, name: str, key: str, told: str) -> None:
    """Also where one may have been meant for a column that is not there: nothing says that it was."""
    rows = [ROW, ROW | {key: 5}]
    batches, notes = read_clips(write(tmp_path, name, in_format(name, rows)))
    assert [item.shape for item in batches["a"]] == ["832x480x81"] * 2
    assert notes == ((told,) if told else ())


def in_format(name: str, rows: list[dict[str, object]]) -> str:
    """Rows as lines of JSON, or as a table with gaps."""
    if name.endswith(".jsonl"):
        return lines(*rows)
    between = "\t" if name.endswith(".tsv") else ","
    columns = list(dict.fromkeys(key for row in rows for key in row))
    table = [columns, *([str(row.get(key, "")) for key in columns] for row in rows)]
    return "".join(between.join(cells) + "\n" for cells in table)


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
@pytest.mark.parametrize(
    ("paths", "ids", "told"),
    [
        (("x.mp4", "y.mp4"), ["x.mp4", "y.mp4"], ""),
        (
            ("x.mp4", "x.mp4"),
            ["v0", "v1"],
            "paths are no ids: 'x.mp4' stands twice; 2 rows are numbered, as v0 or i1",
        ),
        (("x.mp4", ""), ["v0", "v1"], "paths are no ids: 1 of 2 rows has none; 2 rows are numbered, as v0 or i1"),
        (("", ""), ["v0", "v1"], ""),
    ],
)
def test_paths_are_the_ids_where_every_row_has_its_own(
    tmp_path: Path, name: str, paths: tuple[str, ...], ids: list[str], told: str
) -> None:
    rows = [ROW | {"path": path} for path in paths]
    batches, notes = read_clips(write(tmp_path, name, in_format(name, rows)))
    assert [item.id for item in batches["a"]] == ids
    assert notes == ((told,) if told else ())


def test_ids_go_before_paths_and_numbers_that_are_made_up_are_told(tmp_path: Path) -> None:
    rows = [ROW | {"path": "x.mp4", "id": "mine"}, ROW | {"path": "y.mp4"}]
    batches, notes = read_clips(write(tmp_path, "a.jsonl", lines(*rows)))
    assert [item.id for item in batches["a"]] == ["mine", "v1"]
    assert notes == ("paths are no ids: other rows have ids; 1 row is numbered, as v0 or i1",)
    batches, notes = read_clips(write(tmp_path, "a.jsonl", lines(ROW | {"path": 7}, ROW | {"path": 8})))
    assert [item.id for item in batches["a"]] == ["v0", "v1"]
    assert notes == ("paths are no ids: 7 is not text; 2 rows are numbered, as v0 or i1",)


LONG = "x" * 5000


@pytest.mark.parametrize(
    "row",
    [
        {"path": LONG},
        {"path": list(range(3000))},
        {"id": LONG},
        {"width": LONG},
        {LONG: 1},
        {"fps": LONG},
        {"id": LONG, "width": 0},
    ],
)
def test_long_values_are_not_quoted_in_full(tmp_path: Path, row: dict[str, object]) -> None:
    path = write(tmp_path, "a.jsonl", lines(ROW | row, ROW | row))
    try:
        told = " ".join(read_clips(path)[1])
    except ZelligeError as error:
        told = str(error)
    assert "..." in told
    assert len(told) < 300
