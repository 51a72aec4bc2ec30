"""Read clip lists: JSONL, CSV and Parquet with ``width,height,num_frames,fps`` (Open-Sora's columns), images too.

Further columns that are used: ``id``, ``count`` (that many equal clips) and ``batch`` (rows with one value form one
batch; a file of many batches). Without ids, paths are the ids where every row has one of its own; else rows are
numbered: v0, i1, ... All other columns are read past, whatever the format, and named in a note.
"""

from __future__ import annotations

import csv
import difflib
import io
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from zellige.errors import (
    DuplicateIdError,
    EmptyBatchError,
    FileError,
    FormatError,
    MissingExtraError,
    MissingSizesError,
    SchemaVersionError,
)
from zellige.files import (
    A_READABLE_PATH,
    WRITTEN_BY,
    check_schema,
    cut,
    other_kind,
    parse_json,
    printable,
    read_text,
    shown,
)
from zellige.units import count_of, share_of
from zellige.workload import MAX_SEQUENCES, Clip, parse_fps, repeat_clip

_NUMBER = re.compile(r"[+-]?\d{1,18}(?:\.\d{0,18})?(?:[eE][+-]?\d{1,2})?", re.ASCII)
_GAPS = frozenset({"", "nan", "none", "null"})
CLIPS_SCHEMA = "zellige.clips/1"
SIZE_COLUMNS = ("width", "height", "num_frames")
USED_COLUMNS = frozenset((*SIZE_COLUMNS, "fps", "id", "count", "batch", "path"))
A_WHOLE_NUMBER = "a whole number from 1, as 1280"
OPEN_SORA_COLUMNS = frozenset({"text", "aspect_ratio", "resolution", "relpath", "duration"})
"""Known to be of no use here, so that no note names them."""

Row = tuple[int, dict[str, Any]]
"""The line (from 1) on which a row ends, and its cells; gaps are left out."""


def read_clips(path: Path) -> tuple[dict[str, list[Clip]], tuple[str, ...]]:
    """The clips of a file by batch name, in file order, and notes on how it was read: columns left out, ids made up.

    Raises :class:`MissingSizesError` naming the rows without sizes, :class:`FormatError`, :class:`DuplicateIdError`.
    """
    label = printable(path.name)
    rows, columns = _read_rows(path, label)
    if not rows:
        raise EmptyBatchError(f"{label} holds no clips", fix="one JSON object a line, or a CSV with a header")
    unused = sorted(columns - USED_COLUMNS - OPEN_SORA_COLUMNS)
    _check_sizes(rows, unused, label)
    named, ids_note = _named(rows)
    return _group(named, printable(path.stem), label), tuple(filter(None, (_unused_note(unused, columns), ids_note)))


def _read_rows(path: Path, label: str) -> tuple[list[Row], set[str]]:
    """All rows, and the names of all columns that hold anything."""
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return _parquet_rows(path, label)
    text = read_text(path)
    rows = list(_csv_rows(text, label) if suffix in {".csv", ".tsv"} else _jsonl_rows(text, label))
    return rows, {key for _, row in rows for key in row}


def _unused_note(unused: list[str], columns: set[str]) -> str:
    """The columns that were read past; beside each, the one that it may have been meant for."""
    told = []
    for name in unused:
        close = difflib.get_close_matches(name, sorted(USED_COLUMNS - columns), n=1)
        told.append(cut(printable(name)) + (f" (did you mean {close[0]!r}?)" if close else ""))
    return f"columns not used: {', '.join(told)}" if told else ""


def _named(rows: list[Row]) -> tuple[list[Row], str]:
    """The rows with paths as ids, where no row has an id and every row has a path of its own; and what was done else.

    Rows that are left without an id are numbered later.
    """
    nameless = [row for _, row in rows if "id" not in row]
    paths = [row["path"] for row in nameless if row.get("path", "") != ""]
    if not paths:
        return rows, ""
    why = "other rows have ids" if len(nameless) < len(rows) else _no_ids(paths, len(rows))
    if why:
        numbered = f"{count_of(len(nameless), 'row')} {'is' if len(nameless) == 1 else 'are'} numbered, as v0 or i1"
        return rows, f"paths are no ids: {why}; {numbered}"
    return [(number, row | {"id": row["path"]}) for number, row in rows], ""


def _no_ids(paths: list[Any], num_rows: int) -> str:
    """Why paths cannot be ids; empty where they can."""
    known: set[str] = set()
    for path in paths:
        if not isinstance(path, str):
            return f"{shown(path)} is not text"
        if path in known:
            return f"{shown(path)} stands twice"
        known.add(path)
    missing = num_rows - len(paths)
    return f"{share_of(missing, num_rows, 'row')} {'has' if missing == 1 else 'have'} none" if missing else ""


def _parquet_rows(path: Path, label: str) -> tuple[list[Row], set[str]]:
    """Rows from 1 on, of the columns that are used, and all columns: captions and the like are not even read."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise MissingExtraError(
            f"reading {label} needs pyarrow", fix="pip install -e '.[parquet]' in the checkout"
        ) from None
    try:
        with path.open("rb") as handle:
            file = pyarrow.parquet.ParquetFile(handle)
            _require_once(file.schema_arrow.names, label)
            columns = set(file.schema_arrow.names)
            table = file.read(columns=sorted(columns & USED_COLUMNS)).to_pylist()
    except OSError as error:
        raise FileError(
            f"cannot read {label!r}: {error.strerror or error}",
            where=label,
            fix=A_READABLE_PATH,
        ) from None
    except (pyarrow.ArrowException, ValueError) as error:
        raise FormatError(
            "this is not Parquet", where=label, details=(str(error)[:200],), fix="write it again, or use .csv or .jsonl"
        ) from None
    rows = [
        (number, {key: value for key, value in row.items() if value is not None and value == value})
        for number, row in enumerate(table, 1)
    ]
    return rows, columns


def _require_once(columns: Sequence[str], where: str) -> None:
    """Raise :class:`FormatError` for a column that stands twice: nothing says which of the two is meant."""
    twice = [name for name, times in Counter(columns).items() if times > 1]
    if twice:
        raise FormatError(
            "a column stands twice in the header",
            where=where,
            details=(", ".join(map(shown, twice[:20])),),
            fix="take one of the two out",
        )


def _csv_rows(text: str, label: str) -> Iterator[Row]:
    delimiter = "\t" if label.lower().endswith(".tsv") else ","
    body = text.lstrip("\r\n")
    skipped = text[: len(text) - len(body)].count("\n")
    reader = csv.DictReader(io.StringIO(body, newline=""), delimiter=delimiter, strict=True)
    try:
        columns = reader.fieldnames or []
        _require_once(columns, f"{label}:{skipped + 1}")
        if len(columns) == 1 and any(mark in columns[0] for mark in ",;\t|"):
            raise FormatError(
                f"the columns are not separated by {'tabs' if delimiter != ',' else 'commas'}",
                where=f"{label}:{skipped + 1}",
                details=(cut(printable(columns[0])),),
                fix="commas in a .csv, tabs in a .tsv",
            )
        for row in reader:
            if None in row or None in row.values():
                raise FormatError(
                    "the row has another number of cells than the header",
                    where=f"{label}:{reader.line_num + skipped}",
                    fix="one cell for each column; cells that contain a comma stand in double quotes",
                )
            yield (
                reader.line_num + skipped,
                {key: value for key, value in row.items() if value.strip().lower() not in _GAPS},
            )
    except csv.Error as error:
        raise FormatError(
            "this is not CSV",
            where=f"{label}:{reader.line_num + skipped}",
            details=(str(error),),
            fix="close every double quote, and double those inside a cell",
        ) from None


def _jsonl_rows(text: str, label: str) -> Iterator[Row]:
    is_first = True
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        where = f"{label}:{number}"
        try:
            row = parse_json(line, where)
        except FormatError as error:
            raise _other_document(text, label) or error from None
        if not isinstance(row, dict):
            raise FormatError("a line must be one JSON object", where=where, fix=WRITTEN_BY["zellige.clips"])
        starts, is_first = is_first, False
        if "schema" in row and starts:
            check_schema(row, CLIPS_SCHEMA, where)
            if set(row) == {"schema"}:
                continue
            row = {key: value for key, value in row.items() if key != "schema"}
        yield number, {key: value for key, value in row.items() if value is not None}


def _other_document(text: str, label: str) -> FileError | None:
    """The error for a file that is one JSON value over many lines, as a plan or a schedule is; None for any other."""
    try:
        raw = parse_json(text, label)
    except FormatError:
        return None
    if isinstance(raw, dict) and isinstance(raw.get("schema"), str) and raw["schema"] != CLIPS_SCHEMA:
        found = raw["schema"]
        return SchemaVersionError(
            f"this file is {found}, where clips are needed", where=label, fix=other_kind(found, CLIPS_SCHEMA)
        )
    return FormatError(
        "this is one JSON value over many lines, and no clip list", where=label, fix=WRITTEN_BY["zellige.clips"]
    )


def _check_sizes(rows: list[Row], unused: list[str], label: str) -> None:
    missing = [(number, [name for name in SIZE_COLUMNS if row.get(name) is None]) for number, row in rows]
    bad = [(number, names) for number, names in missing if names]
    if not bad:
        return
    shown = ", ".join(str(number) for number, _ in bad[:20]) + (" ..." if len(bad) > 20 else "")
    names = sorted({name for _, absent in bad for name in absent}, key=SIZE_COLUMNS.index)
    raise MissingSizesError(
        f"{share_of(len(bad), len(rows), 'row')} {'has' if len(bad) == 1 else 'have'} no {', '.join(names)}",
        where=f"{label}: {'line' if len(bad) == 1 else 'lines'} {shown}",
        details=(f"columns not used: {', '.join(cut(printable(name)) for name in unused)}",) if unused else (),
        fix=_column_hint(names, unused) or "fill the columns once from the files' headers (ffprobe -show_streams)",
    )


def _column_hint(missing: list[str], unused: list[str]) -> str:
    for name in missing:
        close = difflib.get_close_matches(name, unused, n=1)
        if close:
            return f"rename column {close[0]!r} to {name!r}"
    return ""


def _group(rows: list[Row], stem: str, label: str) -> dict[str, list[Clip]]:
    batches: dict[str, list[Clip]] = {}
    seen: dict[str, str] = {}
    for position, (number, row) in enumerate(rows):
        where = f"{label}:{number}"
        count = _integer(row.get("count", 1), "count", where)
        if not 1 <= count <= MAX_SEQUENCES - len(seen):
            raise FormatError(
                f"count is {count}; a file holds 1 to {MAX_SEQUENCES:,} clips",
                where=where,
                fix="a count of 1 or more, or several files",
            )
        clips = batches.setdefault(_batch_name(row, stem, where), [])
        for clip in repeat_clip(_clip(row, position, where), count):
            if clip.id in seen:
                raise DuplicateIdError(
                    f"two clips have the id {shown(clip.id)}",
                    where=where,
                    details=(f"first in {seen[clip.id]}",),
                    fix="another id, or no ids at all: rows are then numbered",
                )
            seen[clip.id] = where
            clips.append(clip)
    return batches


def _clip(row: dict[str, Any], position: int, where: str) -> Clip:
    width, height, frames = (_integer(row[name], name, where) for name in SIZE_COLUMNS)
    name = row.get("id")
    if name is None:
        name = f"{'v' if frames > 1 else 'i'}{position}"
    if not isinstance(name, str | int) or isinstance(name, bool) or not str(name):
        raise FormatError("id must be text", where=where, fix='as "v17"; or no id: rows are then numbered')
    fps = parse_fps(_fps_text(row, where), where)
    return Clip(id=str(name), width=width, height=height, num_frames=frames, fps=fps, where=where)


def _batch_name(row: dict[str, Any], stem: str, where: str) -> str:
    name = row.get("batch", stem)
    if isinstance(name, bool) or not isinstance(name, str | int):
        raise FormatError("batch must be text or a number", where=where, fix="as 3; or no batch: the file is one")
    return str(name)


def _fps_text(row: dict[str, Any], where: str) -> str:
    value = row.get("fps", "")
    if isinstance(value, bool) or not isinstance(value, str | int | float | None):
        raise FormatError("fps must be a number", where=where, fix="as 24 or 23.976; or no fps: the model's own")
    return str(value)


def _integer(value: Any, name: str, where: str) -> int:
    """An integer; pandas writes integers of a column with gaps as ``161.0``."""
    if isinstance(value, str):
        if _NUMBER.fullmatch(value.strip()) is None:
            raise FormatError(f"{name} {shown(value)} is not a number", where=where, fix=A_WHOLE_NUMBER)
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FormatError(f"{name} must be a number", where=where, fix=A_WHOLE_NUMBER)
    if isinstance(value, float) and (not math.isfinite(value) or value != int(value)):
        raise FormatError(f"{name} is {value}, not a whole number", where=where, fix=A_WHOLE_NUMBER)
    return int(value)
