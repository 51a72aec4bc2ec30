"""Files: written in one step, refused by schema and by key, one byte string for equal values."""

from __future__ import annotations

import json
import os
import random
import re
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zellige.analytic import analytic_table
from zellige.catalog import catalog_root, load_cluster, load_model
from zellige.cluster import Cluster, Device
from zellige.errors import FileError, FormatError, SchemaVersionError
from zellige.files import (
    canonical_json,
    convert,
    decode_json,
    decode_toml,
    digest,
    parse_json,
    read_text,
    readable_json,
    write_text,
)
from zellige.model import ModelSpec
from zellige.prices import PriceTable
from zellige.workload import Workload, make_bucket


class Inner(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A nested noun."""

    bus_gb_per_s: float
    source: str = ""


class Outer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A noun with a schema."""

    SCHEMA: ClassVar[str] = "zellige.outer/3"

    schema: str = "zellige.outer/3"
    name: str
    links: tuple[Inner, ...] = ()
    spare: Inner | None = None


# --- reading


def test_text_is_read_without_its_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffzwölf\r\nx".encode())
    assert read_text(path) == "zwölf\nx"


def test_what_cannot_be_read_is_a_file_error(tmp_path: Path) -> None:
    plain, loop = tmp_path / "plain", tmp_path / "loop"
    plain.write_text("x")
    loop.symlink_to(loop)
    cases = {
        tmp_path / "absent": "there is no file",
        tmp_path: "is a directory",
        plain / "below": "Not a directory",
        loop: "cannot read",
        tmp_path / ("x" * 300): "cannot read",
        tmp_path / "a\0b": "cannot read",
    }
    for path, message in cases.items():
        with pytest.raises(FileError, match=message) as caught:
            read_text(path)
        assert (caught.value.code, caught.value.exit_code) == ("ZL400", 4)
        assert repr(str(path)) in caught.value.message


def test_a_file_without_permission_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, **_: object) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(FileError, match="Permission denied"):
        read_text(tmp_path / "secret.toml")


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", bytes(range(256)), b"abc\xc3", b"\x80"])
def test_binary_files_are_refused_with_the_byte(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(FormatError, match="is not UTF-8 text") as caught:
        read_text(path)
    bad = int(caught.value.where.removeprefix("byte "))
    content[:bad].decode()
    with pytest.raises(UnicodeDecodeError):
        content[bad:].decode()


# --- writing


def test_writing_makes_or_replaces_the_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    for text in ("first", "second, zwölf"):
        write_text(path, text)
        assert path.read_text(encoding="utf-8") == text
        assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("mask", [0o022, 0o027, 0o077, 0o000])
def test_permissions_are_those_of_the_umask(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        write_text(tmp_path / "plan.json", "x")
        kept = os.umask(mask)
    finally:
        os.umask(before)
    assert kept == mask
    assert (tmp_path / "plan.json").stat().st_mode & 0o777 == 0o666 & ~mask


@pytest.mark.parametrize("step", ["fdopen", "chmod", "replace"])
def test_a_failed_write_keeps_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "plan.json"
    write_text(path, "old")

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(FileError, match=r"cannot write .*No space left on device"):
        write_text(path, "new")
    monkeypatch.undo()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupted_write_keeps_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.json"
    write_text(path, "old")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_text_that_utf8_cannot_hold_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="cannot write"):
        write_text(tmp_path / "plan.json", "half \udcff written")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("target", [".", "absent/plan.json", "plain/plan.json", "x" * 300])
def test_what_cannot_be_written_is_a_file_error(tmp_path: Path, target: str) -> None:
    (tmp_path / "plain").write_text("x")
    with pytest.raises(FileError, match="cannot write"):
        write_text(tmp_path / target, "x")
    assert [path.name for path in tmp_path.iterdir()] == ["plain"]


# --- schemas


KINDS: list[tuple[type[Any], str]] = [
    (ModelSpec, "zellige.model/1"),
    (Device, "zellige.device/1"),
    (Cluster, "zellige.cluster/1"),
    (Workload, "zellige.workload/1"),
    (PriceTable, "zellige.prices/1"),
    (Outer, "zellige.outer/3"),
]


@pytest.mark.parametrize(("kind", "schema"), KINDS, ids=[kind.__name__ for kind, _ in KINDS])
def test_schemas_are_refused_by_name(kind: type[Any], schema: str) -> None:
    family, version = schema.split("/")
    newer = f"{family}/{int(version) + 1}"
    with pytest.raises(SchemaVersionError) as caught:
        convert({"schema": newer, "name": "x"}, kind, "a.toml")
    assert caught.value.message == f"this file is {newer}; this version of Zellige reads {schema}"
    assert caught.value.fix.startswith("upgrade Zellige")
    with pytest.raises(SchemaVersionError) as caught:
        convert({"schema": "zellige.sandwich/1"}, kind, "a.toml")
    assert caught.value.message == f"this file is zellige.sandwich/1, where {schema} is needed"
    assert (caught.value.where, caught.value.code, caught.value.exit_code) == ("a.toml", "ZL402", 4)


@pytest.mark.parametrize("raw", [{}, {"name": "x"}, {"schema": 3}, {"schema": None}, [], "x", None, 3, ["schema"]])
def test_a_file_without_a_schema_is_told_which(raw: object) -> None:
    with pytest.raises(FormatError, match=re.escape('no schema = "zellige.outer/3"')) as caught:
        convert(raw, Outer, "a.toml")
    assert caught.value.where == "a.toml"


def test_a_schema_is_asked_for_before_keys_are_judged() -> None:
    with pytest.raises(SchemaVersionError):
        decode_toml('schema = "zellige.outer/4"\nbrand_new_key = 1\n', Outer, "a.toml")


# --- keys and values


@pytest.mark.parametrize(
    ("changes", "spot", "fix"),
    [
        ({"nmae": "y"}, "`nmae`", "did you mean 'name'?"),
        ({"links": [{"bus_gb_per_sec": 1.0}]}, "`$.links[0]`", "did you mean 'bus_gb_per_s'?"),
        ({"spare": {"bus_gb_per_s": 1.0, "soruce": ""}}, "`$.spare`", "did you mean 'source'?"),
        ({"zzz": 1}, "`zzz`", "the known keys are bus_gb_per_s, links, name, schema, source, spare"),
    ],
)
def test_unknown_keys_get_a_suggestion(changes: dict[str, object], spot: str, fix: str) -> None:
    raw = {"schema": "zellige.outer/3", "name": "x"}
    assert convert(raw, Outer, "a.toml").name == "x"
    with pytest.raises(FormatError) as caught:
        convert(raw | changes, Outer, "a.toml")
    assert spot in caught.value.message
    assert caught.value.where == "a.toml"
    assert caught.value.fix == fix


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("312.0", "nan"),
        ("312.0", "inf"),
        ("312.0", "-1.0"),
        ("312.0", "true"),
        ("312.0", '"312"'),
        ("0.70", "1.5"),
        ("81920", "0"),
        ("81920", "8.192e4"),
        ("81920", "99999999999999999999"),
        ("81920", "2026-01-01"),
        ("1536", "-1"),
        ("length = 512,", "length = 1024,"),
        ("bf16_tflops", "bf16_tflop"),
        ('name = "a800-80gb"', ""),
    ],
)
def test_values_out_of_range_are_refused(old: str, new: str) -> None:
    text = (catalog_root() / "devices" / "a800-80gb.toml").read_text()
    assert old in text
    decode_toml(text, Device, "d.toml")
    with pytest.raises(FormatError) as caught:
        decode_toml(text.replace(old, new, 1), Device, "d.toml")
    assert caught.value.where == "d.toml"


@pytest.mark.parametrize("text", ["[[[", "a = ", "a = 1\na = 2", "\0", "a=" + "[" * 5000 + "]" * 5000])
def test_what_is_not_toml_is_refused(text: str) -> None:
    with pytest.raises(FormatError, match="not TOML"):
        decode_toml(text, Outer, "a.toml")


@pytest.mark.parametrize(
    "text", ["", "{", "{'a': 1}", "NaN", '{"a": NaN}', "[1,]", "[" * 100_000, '"\\ud800"', "1" * 9000]
)
def test_what_is_not_json_is_refused(text: str) -> None:
    with pytest.raises(FormatError, match="not JSON"):
        parse_json(text, "a.json")


@given(text=st.text(max_size=60))
def test_any_text_is_decoded_or_refused_with_a_code(text: str) -> None:
    for decode in (decode_toml, decode_json):
        with pytest.raises(FileError) as caught:
            decode(text, Outer, "a")
        assert caught.value.exit_code == 4


# --- canonical JSON

JSON_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=4), inner, max_size=5),
    ),
    max_leaves=12,
)


def reordered(value: Any, rng: random.Random) -> Any:
    """An equal value whose objects hold their keys in another order."""
    if isinstance(value, list):
        return [reordered(item, rng) for item in value]
    if isinstance(value, dict):
        return {key: reordered(value[key], rng) for key in rng.sample(list(value), len(value))}
    return value


@given(value=JSON_VALUES, seed=st.integers(0, 2**32))
def test_key_order_changes_neither_bytes_nor_digest(value: Any, seed: int) -> None:
    other = reordered(value, random.Random(seed))
    assert canonical_json(other) == canonical_json(value)
    assert digest(other) == digest(value)
    assert json.loads(canonical_json(value)) == value
    assert json.loads(readable_json(value)) == value


def test_canonical_json_is_pinned() -> None:
    """Digests are kept in plan files: another byte string for an old value would disown them."""
    value = {"b": [1, 2.5, None], "a": {"z": "ä", "y": True}}
    assert canonical_json(value) == '{"a":{"y":true,"z":"ä"},"b":[1,2.5,null]}'.encode()
    assert digest(value) == "sha256:370da6c544278ff9a8edbd45c6b089993c14a331b5b4a0bffc1c1c40002e789c"


def test_any_changed_value_changes_the_digest() -> None:
    values: list[Any] = [
        {},
        [],
        None,
        0,
        "0",
        1,
        1.5,
        "a",
        {"a": 1},
        {"a": 2},
        {"b": 1},
        [1, 2],
        [2, 1],
        ["1", 2],
        True,
    ]
    assert len({digest(value) for value in values}) == len(values)


def test_nouns_survive_writing_and_reading(tmp_path: Path) -> None:
    model, cluster = load_model("wan2.1-t2v-1.3b"), load_cluster("a800x16")
    prices = analytic_table(model, cluster, [make_bucket(model, 832, 480, 81)], "full", max_degree=4)
    nouns: list[tuple[Any, type[Any]]] = [(model, ModelSpec), (cluster, Cluster), (prices, PriceTable)]
    for noun, kind in nouns:
        path = tmp_path / "noun.json"
        write_text(path, readable_json(noun))
        loaded = decode_json(read_text(path), kind, "noun.json")
        assert loaded == noun
        assert canonical_json(loaded) == canonical_json(noun)
        assert readable_json(noun).startswith('{\n  "schema": "zellige.')
