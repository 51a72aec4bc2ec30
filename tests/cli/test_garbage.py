"""Garbage as every kind of input file: always a coded error with its exit code, or success; never a traceback."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from command_line import MODEL, SETTING, check_ending
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mangling import CSV_TOKEN, JSON_TOKEN, TIMES, TOML_TOKEN, garbage

from zellige.analytic import analytic_table
from zellige.catalog import catalog_root
from zellige.files import readable_json, write_text
from zellige.plan import plan_batch
from zellige.sources import Options, build_problems, read_source

POLICIES = ("--policy", "dp", "--policy", "usp", "--policy", "static-coalesced", "--policy", "zellige-paper")
FEW = ("--policy", "usp", "--policy", "zellige-paper-coalesced")

CLIPS_JSONL = """\
{"schema": "zellige.clips/1"}
{"id": "v0", "width": 256, "height": 256, "num_frames": 17, "fps": 16}
{"id": "v1", "width": 480, "height": 272, "num_frames": 33, "fps": 23.976}
{"width": 256, "height": 256, "num_frames": 1, "count": 5}
"""

CLIPS_CSV = """\
path,id,width,height,num_frames,fps,batch
a.mp4,v0,256,256,17,16,one
b.mp4,v1,480,272,33.0,23.976,one
c.jpg,i0,256,256,1,nan,two
d.jpg,i1,128,128,1,,two
"""

WORKLOAD = """\
schema = "zellige.workload/1"
name = "small"
title = "a small batch"
cluster = "a800x4"
model = "wan2.1-t2v-1.3b"
origin = "constructed"
source = "made for this test"
buckets = ["256x256", "256x256x17", "480x272x33"]

[baselines]
usp = "h4"
knapformer = "g2n2"
source = "made for this test"

[[clips]]
id = "v"
width = 480
height = 272
num_frames = 33
fps = 16.0
count = 2

[[clips]]
id = "i"
width = 256
height = 256
num_frames = 1
count = 6
"""


class Files(NamedTuple):
    """A folder with one valid file of each kind that refers to others, and their texts."""

    folder: Path
    clips: str
    plan: str
    prices: str


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("garbage")
    clips = folder / "valid.jsonl"
    write_text(clips, CLIPS_JSONL)
    options = Options(cluster="a800x4", model="wan2.1-t2v-1.3b")
    (problem,) = build_problems(read_source(str(clips), options), options, print)
    plan = readable_json(plan_batch(problem, "zellige-paper"))
    table = analytic_table(problem.model, problem.cluster, problem.batch.buckets, "full", max_degree=4)
    prices = readable_json(table)
    write_text(folder / "valid.json", plan)
    write_text(folder / "prices.json", prices)
    return Files(folder, str(clips), plan, prices)


def catalog_text(kind: str, name: str) -> str:
    return (catalog_root() / kind / f"{name}.toml").read_text(encoding="utf-8")


def write(files: Files, name: str, data: bytes) -> str:
    path = files.folder / name
    path.write_bytes(data)
    return str(path)


many = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
chances = st.integers(0, 2**32 - 1).map(random.Random)


@many
@given(chance=chances)
def test_clip_lists_as_jsonl(files: Files, chance: random.Random) -> None:
    path = write(files, "clips.jsonl", garbage(CLIPS_JSONL, JSON_TOKEN, chance))
    command = chance.choice((("check", path), ("plan", path), ("compare", path, *POLICIES)))
    check_ending(*command, *SETTING)


@many
@given(chance=chances)
def test_clip_lists_as_csv(files: Files, chance: random.Random) -> None:
    path = write(files, "clips.csv", garbage(CLIPS_CSV, CSV_TOKEN, chance))
    commands = (("check", path), ("compare", path, *POLICIES), ("check", path, "--buckets", "1,17"), ("cut", path))
    check_ending(*chance.choice(commands), *SETTING)


@many
@given(chance=chances)
def test_workloads(files: Files, chance: random.Random) -> None:
    path = write(files, "workload.toml", garbage(WORKLOAD, TOML_TOKEN, chance))
    check_ending(*chance.choice((("check", path), ("plan", path), ("compare", path, *POLICIES))))


@many
@given(chance=chances)
def test_plans(files: Files, chance: random.Random) -> None:
    path = write(files, "plan.json", garbage(files.plan, JSON_TOKEN, chance))
    check_ending("check", path, *chance.choice(((), ("--prices", str(files.folder / "prices.json")))))


@many
@given(chance=chances)
def test_price_tables(files: Files, chance: random.Random) -> None:
    path = write(files, "table.json", garbage(files.prices, JSON_TOKEN, chance))
    commands = (
        ("check", path),
        ("check", str(files.folder / "valid.json"), "--prices", path),
        ("plan", files.clips, "--prices", path, *SETTING),
        ("cut", files.clips, "--prices", path, *SETTING),
        ("compare", files.clips, "--prices", path, *SETTING, *POLICIES, "--policy", "knapformer-oracle"),
    )
    check_ending(*chance.choice(commands))


def spoil(document: Any, which: Callable[[Any], bool], **price: int) -> None:
    for row in document["rows"]:
        if which(row):
            row["price"].update(price)


def keep(document: Any, which: Callable[[Any], bool]) -> None:
    document["rows"] = [row for row in document["rows"] if which(row)]


def everywhere(row: Any) -> bool:
    return bool(row)


def is_whole(row: Any) -> bool:
    return bool(row["config"] == {"q": 1, "h": 1, "k": 1})


def is_split(row: Any) -> bool:
    return not is_whole(row)


def is_image(row: Any) -> bool:
    return bool(row["bucket"] == "256x256x1")


def widen(document: Any, field: str, factor: int) -> None:
    for row in document["rows"]:
        if field == "num_nodes":
            row[field] *= factor
        else:
            row["config"][field] *= factor


TABLES: dict[str, Callable[[Any], None]] = {
    "no time at all": lambda table: spoil(table, everywhere, **dict.fromkeys(TIMES, 0)),
    "no time for images": lambda table: spoil(table, is_image, **dict.fromkeys(TIMES, 0)),
    "times beyond 64 bits": lambda table: spoil(table, everywhere, **dict.fromkeys(TIMES, 2**62)),
    "splits beyond all time": lambda table: spoil(table, is_split, linear_ns=2**62),
    "memory beyond 64 bits": lambda table: spoil(table, everywhere, kept_bytes=2**62, live_bytes=2**62),
    "nothing whole": lambda table: keep(table, is_split),
    "nothing but whole": lambda table: keep(table, is_whole),
    "images whole only": lambda table: keep(table, lambda row: is_whole(row) or not is_image(row)),
    "no rows": lambda table: table.update(rows=[]),
    "no images": lambda table: keep(table, lambda row: not is_image(row)),
    "more ranks than there are": lambda table: widen(table, "k", 3),
    "heads that do not divide": lambda table: widen(table, "h", 5),
    "more nodes than there are": lambda table: widen(table, "num_nodes", 1000),
}
"""Tables that can be read. What cannot be planned with them must be said, and not be a bug."""


@pytest.mark.parametrize("name", TABLES)
def test_price_tables_that_are_well_formed_and_useless(files: Files, name: str) -> None:
    document = json.loads(files.prices)
    TABLES[name](document)
    path = write(files, "useless.json", json.dumps(document).encode())
    ends = [
        check_ending("plan", files.clips, "--prices", path, *SETTING, "--policy", policy)
        for policy in ("dp", "usp", "static", "knapformer", "zellige-paper", "zellige-paper-coalesced")
    ]
    assert any(end.code for end in ends) or name in ("splits beyond all time", "times beyond 64 bits")
    check_ending("check", path)
    check_ending("check", str(files.folder / "valid.json"), "--prices", path)
    check_ending("compare", files.clips, "--prices", path, *SETTING)
    check_ending("cut", files.clips, "--prices", path, *SETTING)


def test_links_too_slow_to_split_over(files: Files) -> None:
    """A split then costs more than 64 bits hold in the solver's units; whole sequences remain."""
    text = catalog_text("clusters", "a800x4")
    slow = re.sub(r"bus_gb_per_s = [0-9.]+", "bus_gb_per_s = 1e-14", text)
    path = write(files, "slow.toml", slow.encode())
    for policy in ("zellige-paper", "zellige-paper-coalesced"):
        end = check_ending("plan", files.clips, "--cluster", path, *MODEL, "--policy", policy)
        assert end.code == 0
        assert {len(placement["ranks"]) for placement in end.json["placements"]} == {1}


@many
@given(chance=chances)
def test_clusters(files: Files, chance: random.Random) -> None:
    text = catalog_text("clusters", "a800x16").replace("ranks_per_node = 8", "ranks_per_node = 2")
    path = write(files, "cluster.toml", garbage(text, TOML_TOKEN, chance))
    check_ending(*chance.choice(setting_commands(files, path, "--cluster", path, "--model", "wan2.1-t2v-1.3b")))


@many
@given(chance=chances)
def test_models(files: Files, chance: random.Random) -> None:
    path = write(files, "model.toml", garbage(catalog_text("models", "wan2.2-ti2v-5b"), TOML_TOKEN, chance))
    check_ending(*chance.choice(setting_commands(files, path, "--cluster", "a800x4", "--model", path)))


@many
@given(chance=chances)
def test_devices(files: Files, chance: random.Random) -> None:
    path = write(files, "device.toml", garbage(catalog_text("devices", "a800-80gb"), TOML_TOKEN, chance))
    text = catalog_text("clusters", "a800x4").replace('"a800-80gb"', json.dumps(path))
    cluster = write(files, "cluster-of-device.toml", text.encode())
    check_ending(*chance.choice(setting_commands(files, path, "--cluster", cluster, "--model", "wan2.1-t2v-1.3b")))


def setting_commands(files: Files, path: str, *setting: str) -> list[tuple[str, ...]]:
    return [
        ("check", path),
        ("inspect", "256x256x17", *setting),
        ("plan", files.clips, *setting),
        ("compare", files.clips, *setting, *FEW),
    ]


def test_the_valid_files_are_valid(files: Files) -> None:
    """Else the mutations would only ever meet the first check."""
    for name, text in (
        ("a.jsonl", CLIPS_JSONL),
        ("a.csv", CLIPS_CSV),
        ("a.toml", WORKLOAD),
        ("a.json", files.plan),
        ("b.json", files.prices),
        ("c.toml", catalog_text("clusters", "a800x16")),
        ("m.toml", catalog_text("models", "wan2.2-ti2v-5b")),
        ("d.toml", catalog_text("devices", "a800-80gb")),
    ):
        setting = SETTING if name in ("a.jsonl", "a.csv") else ()
        assert check_ending("check", write(files, name, text.encode()), *setting).code == 0, name


@given(text=st.text(max_size=30) | st.from_regex(r"-?[0-9]{1,30}x[0-9]{1,14}(x[0-9]{1,14})?", fullmatch=True))
@settings(max_examples=50)
def test_clips_typed_by_hand(text: str) -> None:
    check_ending("inspect", "--json", "--", text)


@given(
    seconds=st.sampled_from(["nan", "inf", "-1", "0", "1e308", "1e-308", "86400", "-0.0", "1e400"]),
    fps=st.sampled_from(["nan", "inf", "-1", "0", "1e308", "1e-308", "1000", "16"]),
)
@settings(max_examples=30)
def test_seconds_and_rates(seconds: str, fps: str) -> None:
    check_ending("inspect", "256x256", f"--seconds={seconds}", f"--fps={fps}")
