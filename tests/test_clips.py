"""Clip lists as people and pandas write them: what is read, and what is refused by row."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import zellige.clips
from zellige.clips import read_clips
from zellige.errors import (
    DuplicateIdError,
    EmptyBatchError,
    FileError,
    FormatError,
    MissingSizesError,
    SchemaVersionError,
)
from zellige.files import digest
from zellige.workload import Clip

HEADER = "width,height,num_frames,fps\n"
ROW: dict[str, object] = {"width": 832, "height": 480, "num_frames": 81}


def write(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def read(folder: Path, name: str, text: str | bytes) -> list[Clip]:
    """The clips of a file that holds one batch."""
    batches, _ = read_clips(write(folder, name, text))
    (clips,) = batches.values()
    return clips


def lines(*rows: object) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


# --- Open-Sora's CSV and pandas' habits

OPEN_SORA = """path,text,num_frames,height,width,aspect_ratio,resolution,fps
clips/a.mp4,"a cat, sitting",161.0,720.0,1280.0,0.5625,921600.0,23.976
clips/b.mp4,"says ""hi""
on two lines",81.0,480.0,832.0,0.577,399360.0,29.97
images/c.png,,1.0,512.0,512.0,1.0,262144.0,
images/d.jpg,a dog,1.0,1080.0,1920.0,0.5625,2073600.0,nan
"""


def test_open_sora_columns_are_read_unchanged(tmp_path: Path) -> None:
    batches, notes = read_clips(write(tmp_path, "meta.csv", OPEN_SORA))
    assert notes == ()
    assert list(batches) == ["meta"]
    assert [(item.id, item.shape, item.fps) for item in batches["meta"]] == [
        ("clips/a.mp4", "1280x720x161", Fraction(2997, 125)),
        ("clips/b.mp4", "832x480x81", Fraction(2997, 100)),
        ("images/c.png", "512x512x1", Fraction(0)),
        ("images/d.jpg", "1920x1080x1", Fraction(0)),
    ]
    assert [item.where for item in batches["meta"]] == ["meta.csv:2", "meta.csv:4", "meta.csv:5", "meta.csv:6"]


@pytest.mark.parametrize("name", ["a.tsv", "a.TSV", "b.csv", "b.CSV"])
def test_tables_by_suffix(tmp_path: Path, name: str) -> None:
    between = "\t" if name.lower().endswith("tsv") else ","
    rows = (("height", "zeta", "fps", "width", "beta", "num_frames"), ("480", "", "16", "832", "5", "81"))
    batches, notes = read_clips(write(tmp_path, name, "\n".join(map(between.join, rows))))
    assert [item.shape for clips in batches.values() for item in clips] == ["832x480x81"]
    assert notes == ("columns not used: beta",)


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_byte_order_marks_and_line_ends(tmp_path: Path, newline: str, mark: bytes) -> None:
    table = mark + (HEADER + "832,480,81,16\n\n256,256,1,\n").replace("\n", newline).encode()
    listed = (
        mark + lines(ROW | {"fps": 16}, {"width": 256, "height": 256, "num_frames": 1}).replace("\n", newline).encode()
    )
    for name, text, places in (("a.csv", table, (2, 4)), ("a.jsonl", listed, (1, 2))):
        clips = read(tmp_path, name, text)
        assert [(item.shape, int(item.fps)) for item in clips] == [("832x480x81", 16), ("256x256x1", 0)]
        assert [item.where for item in clips] == [f"{name}:{place}" for place in places]


def test_blank_lines_are_skipped_and_counted(tmp_path: Path) -> None:
    clips = read(tmp_path, "a.jsonl", "\n\n" + lines(ROW) + "  \n" + lines(ROW))
    assert [item.where for item in clips] == ["a.jsonl:3", "a.jsonl:5"]


# --- JSON lines


def test_images_and_videos_mix_and_are_named_by_row(tmp_path: Path) -> None:
    image = {"width": 512, "height": 512, "num_frames": 1, "path": "c.png", "text": "a line\u2028break, ünïcode"}
    clips = read(tmp_path, "mixed.jsonl", lines(ROW | {"fps": 23.976}, image, ROW | {"id": "mine"}, ROW | {"id": 7}))
    assert [item.id for item in clips] == ["v0", "i1", "mine", "7"]
    assert [item.num_frames for item in clips] == [81, 1, 81, 81]
    assert clips[0].fps == Fraction(2997, 125)


def test_frame_rates_may_be_text_numbers_or_unknown(tmp_path: Path) -> None:
    written: dict[Fraction, list[object]] = {
        Fraction(24000, 1001): ["24000/1001"],
        Fraction(2997, 125): ["23.976", 23.976],
        Fraction(16): [16, 16.0, "16"],
        Fraction(0): ["", "nan", None, 0],
    }
    for fps, values in written.items():
        clips = read(tmp_path, "a.jsonl", lines(*(ROW | {"fps": value} for value in values)))
        assert [item.fps for item in clips] == [fps] * len(values)


@pytest.mark.parametrize("value", [81, 81.0, "81", "81.0", "8.1e1"])
def test_whole_numbers_may_be_written_as_floats_or_text(tmp_path: Path, value: object) -> None:
    assert read(tmp_path, "a.jsonl", lines(ROW | {"num_frames": value}))[0].num_frames == 81


@pytest.mark.parametrize("absent", ["id", "fps", "count", "batch", "path", "text"])
def test_null_means_that_an_optional_key_is_absent(tmp_path: Path, absent: str) -> None:
    """pandas writes null into JSON lines wherever a column has a gap."""
    assert read(tmp_path, "a.jsonl", lines(ROW | {absent: None})) == read(tmp_path, "a.jsonl", lines(ROW))


def test_a_first_line_may_name_the_schema(tmp_path: Path) -> None:
    assert len(read(tmp_path, "a.jsonl", lines({"schema": "zellige.clips/1"}, ROW))) == 1
    assert len(read(tmp_path, "a.jsonl", lines({"schema": "zellige.clips/1"} | ROW, ROW))) == 2


@pytest.mark.parametrize(
    ("schema", "expected"), [("clips/2", "reads zellige.clips/1"), ("plan/1", "clips/1 is needed")]
)
def test_other_schemas_are_refused_by_name(tmp_path: Path, schema: str, expected: str) -> None:
    with pytest.raises(SchemaVersionError, match=f"this file is zellige.{schema}.*{expected}"):
        read(tmp_path, "a.jsonl", lines({"schema": f"zellige.{schema}"}, ROW))


# --- missing sizes


@pytest.mark.parametrize(
    ("name", "text", "message", "place"),
    [
        (
            "a.csv",
            HEADER + "832,480,81,16\n,480,81,16\n832,480, ,16\n832,,,\n832,480,81,\n",
            "3 of 5 rows have no width, height, num_frames",
            "lines 3, 4, 5",
        ),
        (
            "a.csv",
            "path,text\n" + "a.mp4,x\n" * 30,
            "30 of 30 rows have no width, height, num_frames",
            f"lines {', '.join(map(str, range(2, 22)))} ...",
        ),
        ("a.jsonl", lines(ROW, ROW | {"height": None}), "1 of 2 rows has no height", "line 2"),
    ],
)
def test_rows_without_sizes_are_named(tmp_path: Path, name: str, text: str, message: str, place: str) -> None:
    with pytest.raises(MissingSizesError) as caught:
        read(tmp_path, name, text)
    assert caught.value.message == message
    assert caught.value.where == f"{name}: {place}"
    assert caught.value.exit_code == 4
    assert "ffprobe" in caught.value.fix


def test_missing_sizes_show_the_columns_that_are_there(tmp_path: Path) -> None:
    with pytest.raises(MissingSizesError) as caught:
        read(tmp_path, "a.jsonl", lines({"width": 832, "height": 480, "length": 81}))
    assert caught.value.message == "1 of 1 row has no num_frames"
    assert caught.value.details == ("columns not used: length",)


@pytest.mark.parametrize(
    ("name", "mark", "wanted"), [("a.csv", ";", "commas"), ("a.csv", "\t", "commas"), ("a.tsv", ",", "tabs")]
)
def test_other_separators_are_named(tmp_path: Path, name: str, mark: str, wanted: str) -> None:
    with pytest.raises(FormatError) as caught:
        read(tmp_path, name, f"width{mark}height{mark}num_frames\n832{mark}480{mark}81\n")
    assert caught.value.message == f"the columns are not separated by {wanted}"
    assert caught.value.where == f"{name}:1"
    assert caught.value.fix == "commas in a .csv, tabs in a .tsv"


# --- ids, counts, batches


@pytest.mark.parametrize(
    ("rows", "name"),
    [
        ([ROW | {"id": "a"}, ROW, ROW | {"id": "a"}], "a"),
        ([ROW | {"id": 7}, ROW, ROW | {"id": "7"}], "7"),
        ([ROW | {"id": "a", "count": 3}, ROW, ROW | {"id": "a-2"}], "a-2"),
        ([ROW | {"id": "a", "batch": 1}, ROW | {"batch": 1}, ROW | {"id": "a", "batch": 2}], "a"),
    ],
)
def test_duplicate_ids_name_both_rows(tmp_path: Path, rows: list[object], name: str) -> None:
    with pytest.raises(DuplicateIdError) as caught:
        read(tmp_path, "a.jsonl", lines(*rows))
    assert caught.value.message == f"two clips have the id {name!r}"
    assert caught.value.where == "a.jsonl:3"
    assert caught.value.details == ("first in a.jsonl:1",)


def test_count_makes_equal_clips(tmp_path: Path) -> None:
    clips = read(tmp_path, "a.jsonl", lines(ROW | {"id": "v", "count": 3}, ROW | {"count": 2.0}, ROW | {"count": "1"}))
    assert [item.id for item in clips] == ["v-0", "v-1", "v-2", "v1-0", "v1-1", "v2"]
    assert {item.shape for item in clips} == {"832x480x81"}
    assert [item.where for item in clips] == ["a.jsonl:1"] * 3 + ["a.jsonl:2"] * 2 + ["a.jsonl:3"]


def test_batch_parts_a_file_in_the_order_of_first_sight(tmp_path: Path) -> None:
    text = "width,height,num_frames,batch,count\n832,480,81,two,\n256,256,1,one,4\n832,480,81,two,2\n256,256,1,,\n"
    batches, notes = read_clips(write(tmp_path, "run.csv", text))
    assert notes == ()
    assert {name: len(clips) for name, clips in batches.items()} == {"two": 3, "one": 4, "run": 1}
    assert list(batches) == ["two", "one", "run"]


@pytest.mark.parametrize("count", [0, -1, 1.5, 10**6 + 1, 1e300, True, "many", [2], {"a": 1}])
def test_impossible_counts_are_refused_by_row(tmp_path: Path, count: object) -> None:
    with pytest.raises(FormatError) as caught:
        read(tmp_path, "a.jsonl", lines(ROW, ROW | {"count": count}))
    assert caught.value.where == "a.jsonl:2"
    assert caught.value.message.startswith("count ")


def test_the_limit_is_of_the_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zellige.clips, "MAX_SEQUENCES", 5)
    assert len(read(tmp_path, "a.jsonl", lines(ROW | {"count": 3}, ROW | {"count": 2}))) == 5
    with pytest.raises(FormatError, match="count is 3; a file holds 1 to 5 clips"):
        read(tmp_path, "a.jsonl", lines(ROW | {"count": 3}, ROW | {"count": 3}))
    with pytest.raises(FormatError, match="count is 1; a file holds 1 to 5 clips"):
        read(tmp_path, "a.jsonl", lines(*[ROW] * 6))


# --- values that are not sizes, and files that are not lists


@pytest.mark.parametrize("name", ["width", "height", "num_frames"])
@pytest.mark.parametrize(
    "value", [0, -1, -81.0, 80.5, True, False, "x", "nan", "inf", "-5", "1e300", [81], {"a": 81}, 10**8, 10**40]
)
def test_impossible_sizes_are_refused_by_row(tmp_path: Path, name: str, value: object) -> None:
    with pytest.raises(FormatError) as caught:
        read(tmp_path, "a.jsonl", lines(ROW, ROW | {name: value}))
    assert caught.value.where == "a.jsonl:2"
    assert name in caught.value.message


@pytest.mark.parametrize("cell", ["0", "-81", "80.5", "True", "1e300", "9" * 60, "81px", "\0", "0x51", "8 1"])
def test_impossible_cells_are_refused_by_row(tmp_path: Path, cell: str) -> None:
    with pytest.raises(FormatError) as caught:
        read(tmp_path, "a.csv", HEADER + "832,480,81,16\n" + f"832,480,{cell},16\n")
    assert caught.value.where == "a.csv:3"
    assert "num_frames" in caught.value.message


@pytest.mark.parametrize("value", [True, 1.5, ["a"], {"a": 1}])
@pytest.mark.parametrize(("key", "message"), [("id", "id must be text"), ("batch", "batch must be text or a number")])
def test_names_are_text_or_whole_numbers(tmp_path: Path, key: str, message: str, value: object) -> None:
    with pytest.raises(FormatError, match=message):
        read(tmp_path, "a.jsonl", lines(ROW | {key: value}))


@pytest.mark.parametrize("value", [True, [16], {"a": 1}, "abc", -1, 1e30, "1/0"])
def test_impossible_frame_rates_are_refused_by_row(tmp_path: Path, value: object) -> None:
    with pytest.raises(FormatError) as caught:
        read(tmp_path, "a.jsonl", lines(ROW, ROW | {"fps": value}))
    assert caught.value.where == "a.jsonl:2"
    assert caught.value.message.startswith("fps ")


BROKEN_LINES = [
    '{"width": 832, "height": 480, "num_frames": NaN}',
    '{"width": 832, "height": 480, "num_frames": Infinity}',
    '{"width": 832, "height": 480, "num_frames": 1e400}',
    '{"width": 832, "height": 480, "num_frames": 1' + "0" * 6000 + "}",
    '{"width": 832, "height": 480',
    "{'width': 832}",
    "[832, 480, 81]",
    "832",
    "null",
    '"832x480x81"',
    "[" * 100_000,
    '{"width":' * 5_000,
    '{"id": "\\ud800", "width": 832, "height": 480, "num_frames": 81}',
    "width,height,num_frames",
]


@pytest.mark.parametrize("line", BROKEN_LINES, ids=range(len(BROKEN_LINES)))
def test_broken_lines_are_refused_by_row(tmp_path: Path, line: str) -> None:
    with pytest.raises(FormatError) as caught:
        read(tmp_path, "a.jsonl", lines(ROW) + line + "\n")
    assert caught.value.where == "a.jsonl:2"


@pytest.mark.parametrize(
    ("text", "message", "place"),
    [
        (HEADER + "832,480,81\n", "another number of cells", "a.csv:2"),
        (HEADER + "832,480,81,16,9\n", "another number of cells", "a.csv:2"),
        (HEADER + "832;480;81;16\n", "another number of cells", "a.csv:2"),
        (HEADER + '"832"x,480,81,16\n', "not CSV", "a.csv:"),
        (HEADER + '"832,480,81,16\n', "not CSV", "a.csv:"),
        (HEADER + "x" * 200_000 + ",480,81,16\n", "not CSV", "a.csv:"),
        ("width,height,num_frames,width\n1,2,3,4\n", "a column stands twice", "a.csv:1"),
    ],
)
def test_broken_tables_are_refused(tmp_path: Path, text: str, message: str, place: str) -> None:
    with pytest.raises(FormatError, match=message) as caught:
        read(tmp_path, "a.csv", text)
    assert caught.value.where.startswith(place)


EMPTY = [
    ("a.csv", ""),
    ("a.csv", "\ufeff"),
    ("a.csv", HEADER),
    ("a.jsonl", ""),
    ("a.jsonl", "\ufeff"),
    ("a.jsonl", "\n \n"),
]


@pytest.mark.parametrize(("name", "text"), [*EMPTY, ("a.jsonl", lines({"schema": "zellige.clips/1"}))])
def test_empty_lists_say_so(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(EmptyBatchError, match=f"{name} holds no clips"):
        read(tmp_path, name, text)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_binary_files_and_directories_are_refused(tmp_path: Path, suffix: str) -> None:
    with pytest.raises(FormatError, match="is not UTF-8 text"):
        read(tmp_path, f"a{suffix}", bytes(range(256)))
    folder = tmp_path / f"folder{suffix}"
    folder.mkdir()
    with pytest.raises(FileError, match="is a directory"):
        read_clips(folder)


def test_a_file_name_that_is_not_text_still_makes_a_batch(tmp_path: Path) -> None:
    path = tmp_path / "mix\udcff.csv"  # the byte 0xff in a file name, as the file system hands it over
    path.write_text(HEADER + "832,480,81,16\n")
    batches, _ = read_clips(path)
    ((name, (clip,)),) = batches.items()
    assert digest([name, clip.id, clip.where]).startswith("sha256:")


VALUES: st.SearchStrategy[object] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=8),
        st.sampled_from(["161.0", "24/1", 81]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=4), inner, max_size=2)),
    max_leaves=3,
)
KEYS = st.sampled_from(["width", "height", "num_frames", "fps", "id", "count", "batch", "schema", "path", "hieght"])


@given(rows=st.lists(st.dictionaries(KEYS, VALUES, max_size=3), max_size=3))
def test_any_json_lines_are_read_or_refused_with_a_code(
    rows: list[dict[str, object]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = lines(*(ROW | row for row in rows))
    check_readable_or_coded(write(tmp_path_factory.getbasetemp(), "any.jsonl", text))


@given(text=st.one_of(st.text(max_size=80), st.text('wid,th\n\r"1.e-/x\t\0 ', max_size=60).map(lambda t: HEADER + t)))
def test_any_table_is_read_or_refused_with_a_code(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    check_readable_or_coded(write(tmp_path_factory.getbasetemp(), "any.csv", text.encode("utf-8", "replace")))


def check_readable_or_coded(path: Path) -> None:
    try:
        clips = [item for part in read_clips(path)[0].values() for item in part]
    except FileError as error:
        refused = f"{error.message} {error.where}"
    else:
        refused = ""
    if refused:
        assert path.name in refused
        return
    assert clips
    assert len({item.id for item in clips}) == len(clips)
    assert all(1 <= item.width <= 65_536 and 1 <= item.height <= 65_536 and item.num_frames >= 1 for item in clips)
