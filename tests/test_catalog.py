"""What is bundled: it loads, says where its numbers come from, and anyone can add to it by path."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from zellige.catalog import (
    KINDS,
    catalog_index,
    catalog_root,
    catalog_text,
    is_workload,
    load_bucket_set,
    load_cluster,
    load_collectives,
    load_device,
    load_generator,
    load_model,
    load_workload,
    names,
)
from zellige.errors import FileError, FormatError, SchemaVersionError, UnknownNameError
from zellige.shards import parse_config
from zellige.workload import build_batch, parse_patterns

ROOT = catalog_root()
TOML_FILES = sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.toml"))
SUITES = json.loads((Path(__file__).parent / "cases" / "paper_suites.json").read_text(encoding="utf-8"))["suites"]
SUITE_BATCHES = [(suite, batch) for suite, content in SUITES.items() for batch in content["batches"]]
LOADERS: dict[str, Callable[[str], Any]] = {
    "models": load_model,
    "devices": load_device,
    "clusters": load_cluster,
    "collectives": load_collectives,
    "workloads": load_workload,
    "generators": load_generator,
    "buckets": load_bucket_set,
}


def test_every_folder_with_toml_files_is_a_kind() -> None:
    assert {path.parts[0] for path in TOML_FILES} == set(KINDS) == set(LOADERS)
    assert all(len(path.parts) == 2 for path in TOML_FILES)
    assert all(names(kind) == sorted(path.stem for path in (ROOT / kind).iterdir()) for kind in KINDS)


@pytest.mark.parametrize("path", TOML_FILES, ids=str)
def test_every_file_loads_under_its_own_name(path: Path) -> None:
    by_name = LOADERS[path.parts[0]](path.stem)
    assert by_name.name == path.stem
    assert by_name.title
    assert by_name == LOADERS[path.parts[0]](str(ROOT / path))


def unsourced(table: dict[str, Any], place: str, source: object) -> Iterator[str]:
    """The tables that hold numbers, in themselves or in their lists, without a source of theirs.

    A row of a list takes the source of the table that the list stands in; a table proper needs one of its own.
    """
    source = table.get("source", source)
    has_numbers = any(isinstance(value, int | float) and not isinstance(value, bool) for value in table.values())
    if has_numbers and not (isinstance(source, str) and source.strip()):
        yield place
    for key, value in table.items():
        if isinstance(value, dict):
            yield from unsourced(value, f"{place}.{key}", None)
        elif isinstance(value, list):
            for index, row in enumerate(value):
                if isinstance(row, dict):
                    yield from unsourced(row, f"{place}.{key}[{index}]", source)
                elif isinstance(row, int | float) and not source:
                    yield f"{place}.{key}"


@pytest.mark.parametrize("path", TOML_FILES, ids=str)
def test_every_number_has_a_source(path: Path) -> None:
    assert list(unsourced(tomllib.loads((ROOT / path).read_text(encoding="utf-8")), path.stem, None)) == []


def test_numbers_without_a_source_are_seen() -> None:
    assert list(unsourced({"a": 1}, "f", None)) == ["f"]
    assert list(unsourced({"source": " ", "a": 1.5}, "f", None)) == ["f"]
    assert list(unsourced({"source": "s", "rows": [{"a": 1}], "t": {"b": 2}}, "f", None)) == ["f.t"]
    assert list(unsourced({"rows": [{"a": 1}], "flag": True, "name": "x"}, "f", None)) == ["f.rows[0]"]


@pytest.mark.parametrize("cluster", names("clusters"))
def test_clusters_refer_to_known_devices(cluster: str) -> None:
    text = (ROOT / "clusters" / f"{cluster}.toml").read_text(encoding="utf-8")
    device = tomllib.loads(text)["device"]
    assert device in names("devices")
    loaded = load_cluster(cluster)
    assert loaded.device == load_device(device)
    assert loaded.name.endswith(f"x{loaded.num_ranks}")


@pytest.mark.parametrize("name", names("workloads"))
def test_workloads_refer_to_known_things_and_lose_no_clip(name: str) -> None:
    workload = load_workload(name)
    load_cluster(workload.cluster)
    clips = workload.expand(name)
    batch, drops = build_batch(name, clips, load_model(workload.model), parse_patterns(workload.buckets))
    assert drops == ()
    assert len(batch.sequences) == len(clips) == len({clip.id for clip in clips})
    assert is_workload(name)


@pytest.mark.parametrize("name", names("buckets"))
def test_bucket_sets_hold_shapes_that_their_model_trains(name: str) -> None:
    bucket_set = load_bucket_set(name)
    model = load_model(bucket_set.model)
    patterns = bucket_set.patterns()
    assert len(set(patterns)) == len(patterns)
    assert all(model.snap_frames(pattern.num_frames) == pattern.num_frames for pattern in patterns)


@pytest.mark.parametrize("name", names("generators"))
def test_generators_refer_to_known_things(name: str) -> None:
    generator = load_generator(name)
    assert generator.cluster in names("clusters")
    assert generator.model in names("models")
    assert generator.video_share_low <= generator.video_share_high


def test_the_names_that_people_type_are_there() -> None:
    assert {"wan2.1-t2v-1.3b", "wan2.1-t2v-14b", "wan2.2-ti2v-5b"} <= set(names("models"))
    assert {"a800x8", "a800x16", "a6000x32", "h200x8", "h200x16", "h200x64"} <= set(names("clusters"))
    assert {"motivation", *(f"paper-10s-high-v{share}" for share in range(35, 65, 5))} <= set(names("workloads"))


# --- the published suites

SIZES = {"256": "256x256", "480": "832x480", "720": "1280x720", "1080": "1920x1080"}


def bucket_of(label: str) -> str:
    """The bucket of a label: ``v1080-10`` is 10 s of video at 16 frames a second, ``i256`` an image."""
    size, _, seconds = label[1:].partition("-")
    return f"{SIZES[size]}x{16 * int(seconds or 0) + 1}"


@pytest.mark.parametrize(("suite", "batch"), SUITE_BATCHES)
def test_paper_suites_have_the_pinned_composition(suite: str, batch: str) -> None:
    pinned, workload = SUITES[suite]["batches"][batch], load_workload(f"{suite}-{batch}")
    assert {group.id: group.count for group in workload.clips} == pinned["counts"]
    model = load_model("wan2.1-t2v-1.3b")
    built, _ = build_batch(batch, workload.expand(batch), model, parse_patterns(workload.buckets))
    counts = Counter(sequence.bucket.name for sequence in built.sequences)
    assert counts == {bucket_of(label): count for label, count in pinned["counts"].items()}
    assert len(built.sequences) == pinned["sequences"]
    assert built.num_tokens == pinned["tokens"]
    assert built.video_share == pytest.approx(pinned["video_share"], abs=5e-5)
    assert (workload.model, workload.origin) == ("wan2.1-t2v-1.3b", "inferred")


@pytest.mark.parametrize(("suite", "batch"), SUITE_BATCHES)
def test_paper_suites_have_the_pinned_cluster_and_baselines(suite: str, batch: str) -> None:
    pinned, workload = SUITES[suite], load_workload(f"{suite}-{batch}")
    cluster = load_cluster(workload.cluster)
    assert cluster.num_ranks == pinned["ranks"]
    assert pinned["batches"][batch]["tokens"] == pytest.approx(pinned["ranks"] * pinned["tokens_per_gpu"], rel=0.01)
    assert workload.baselines is not None
    config = parse_config(workload.baselines.usp)
    assert (config.q, config.h, config.k) == (1, pinned["usp"]["h"], pinned["usp"]["k"])
    bags = [part.removeprefix("g").split("n") for part in workload.baselines.knapformer.split("+")]
    sizes = sorted(int(size) for size, count in bags for _ in range(int(count)))
    # The pinned bags are those of all ranks; a specification may also say those of one node.
    assert sizes * (pinned["ranks"] // sum(sizes)) in (sorted(pinned["knapformer_bags"]), [2, 6] * cluster.num_nodes)


def test_every_suite_uses_the_catalog_of_its_whole_run() -> None:
    """The cut between fillers and anchors is one for all batches of a run, so all name the same buckets."""
    for suite in {suite for suite, _ in SUITE_BATCHES}:
        buckets = {load_workload(f"{suite}-{batch}").buckets for batch in SUITES[suite]["batches"]}
        assert len(buckets) == 1


def test_the_motivating_batch_is_the_published_one() -> None:
    """arXiv 2608.01150: 3 x (720p, 10 s) and 228 x 720p images on 4 GPUs, 315,900 tokens a GPU."""
    workload = load_workload("motivation")
    batch, _ = build_batch("m", workload.expand("m"), load_model(workload.model), parse_patterns(workload.buckets))
    assert batch.num_tokens == 4 * 315_900 == 3 * 147_600 + 228 * 3_600
    assert Counter(item.bucket.is_video for item in batch.sequences) == {True: 3, False: 228}
    assert load_cluster(workload.cluster).num_ranks == 4


# --- your own


def test_your_own_files_load_by_path(tmp_path: Path) -> None:
    copies = {}
    for kind, name in (
        ("models", "wan2.1-t2v-1.3b"),
        ("devices", "h200"),
        ("clusters", "a800x8"),
        ("workloads", "motivation"),
    ):
        text = (ROOT / kind / f"{name}.toml").read_text(encoding="utf-8")
        copies[kind] = tmp_path / f"{kind}.toml"
        copies[kind].write_text(text.replace(f'name = "{name}"', 'name = "mine"', 1), encoding="utf-8")
    assert load_model(str(copies["models"])).name == "mine"
    assert load_device(str(copies["devices"])).name == "mine"
    assert load_workload(str(copies["workloads"])).name == "mine"
    assert load_cluster(str(copies["clusters"])).device == load_device("a800-80gb")
    assert is_workload(str(copies["workloads"]))
    text = copies["clusters"].read_text(encoding="utf-8")
    copies["clusters"].write_text(text.replace('"a800-80gb"', json.dumps(str(copies["devices"]))), encoding="utf-8")
    assert load_cluster(str(copies["clusters"])).device.name == "mine"


def test_a_cluster_takes_tables_by_name_or_path_and_may_scale_them(tmp_path: Path) -> None:
    text = (ROOT / "clusters" / "a800x8.toml").read_text(encoding="utf-8")
    assert load_cluster("a800x8").node_link.measured is None
    (tmp_path / "mine.toml").write_bytes((ROOT / "collectives" / "nccl-a100-nvlink3.toml").read_bytes())
    tables = load_collectives("nccl-a100-nvlink3")
    for name in ("nccl-a100-nvlink3", "mine.toml"):
        path = tmp_path / "cluster.toml"
        line = f'measured = "{name}"\nmeasured_bandwidth_scale = 0.6667\norigin = "fitted"'
        path.write_text(text.replace('origin = "fitted"', line, 1), encoding="utf-8")
        found = load_cluster(str(path)).node_link.measured
        assert found is not None
        assert (found.tables, found.bandwidth_scale) == (tables.tables, 0.6667)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[16384, ", "[0, ", "`int` >= 1"),
        ("[16384, ", "[1e9, ", "Expected `int`"),
        ("[32768, ", "[16384, ", "increasing sizes"),
        ("floor_us = 10.83", "floor_us = 1000", "must not fall with size"),
        ("num_ranks = 4", "num_ranks = 2", "stands twice"),
        ('op = "all_to_all"', 'op = "broadcast"', "Invalid enum value 'broadcast'"),
        ("floor_us = 10.83", "floor = 10.83", "unknown field `floor`"),
    ],
)
def test_tables_that_cannot_be_are_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = (ROOT / "collectives" / "nccl-a100-nvlink3.toml").read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "mine.toml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(FormatError) as caught:
        load_collectives(str(path))
    assert message in f"{caught.value.message} {caught.value.details}"


@pytest.mark.parametrize("value", ["7", '["a"]', '"nccl-a100"'])
def test_tables_that_a_cluster_names_must_be_there(tmp_path: Path, value: str) -> None:
    text = (ROOT / "clusters" / "a100x8.toml").read_text(encoding="utf-8")
    path = tmp_path / "cluster.toml"
    path.write_text(text.replace('"nccl-a100-nvlink3"', value, 1), encoding="utf-8")
    with pytest.raises((FormatError, UnknownNameError)):
        load_cluster(str(path))


@pytest.mark.parametrize(
    ("load", "name", "message", "fix"),
    [
        (load_model, "wan2.1-t2v-13b", "there is no model 'wan2.1-t2v-13b'", "did you mean wan2.1-t2v-1.3b? known: "),
        (load_device, "a800", "there is no device 'a800'", "did you mean a800-80gb? known: "),
        (load_cluster, "a800x88", "there is no cluster 'a800x88'", "did you mean a800x8? known: "),
        (load_workload, "motivaton", "there is no workload 'motivaton'", "did you mean motivation? known: "),
        (load_model, "", "there is no model ''", "known: "),
        (load_model, "../devices/h200", "there is no model '../devices/h200'", ""),
    ],
)
def test_unknown_names_get_a_suggestion(load: Callable[[str], Any], name: str, message: str, fix: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        load(name)
    assert caught.value.message == message
    assert caught.value.fix.startswith(fix)
    assert caught.value.fix.endswith("or give a .toml file")
    assert caught.value.exit_code == 2


def test_the_index_lists_what_is_there_and_shows_it_as_written() -> None:
    index = catalog_index()
    assert [(Path(entry.kind) / f"{entry.name}.toml") for entry in index] == sorted(
        TOML_FILES, key=lambda path: (KINDS.index(path.parts[0]), path.stem)
    )
    assert catalog_index("devices") == [entry for entry in index if entry.kind == "devices"]
    assert catalog_text("h200") == (ROOT / "devices" / "h200.toml").read_text(encoding="utf-8")
    written, _, comments = catalog_text("h200x8").partition("\n\n# ")
    assert (ROOT / "clusters" / "h200x8.toml").read_text(encoding="utf-8") == written + "\n"
    assert [line.split(": ")[1] for line in comments.splitlines()] == ["measured", "fitted"]
    with pytest.raises(UnknownNameError, match="nothing bundled is called 'h20'") as caught:
        catalog_text("h20")
    assert caught.value.fix == "did you mean h200? catalog list"
    with pytest.raises(UnknownNameError, match="there is no kind 'sandwiches'"):
        catalog_index("sandwiches")


@pytest.mark.parametrize("name", ["motivaton", "clips.jsonl", "clips.csv", "wan2.1-t2v-1.3b", "", "workloads"])
def test_clip_lists_and_other_names_are_not_workloads(name: str) -> None:
    assert not is_workload(name)


def test_paths_that_cannot_be_loaded_are_coded_errors(tmp_path: Path) -> None:
    folder = tmp_path / "folder.toml"
    folder.mkdir()
    with pytest.raises(FileError, match="is a directory"):
        load_model(str(folder))
    with pytest.raises(FileError, match="there is no file"):
        load_cluster(str(tmp_path / "absent.toml"))
    with pytest.raises(SchemaVersionError, match=r"this file is zellige\.device/1, where zellige\.model/1 is needed"):
        load_model(str(ROOT / "devices" / "h200.toml"))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('device = "a800-80gb"\n', "", "device must name a device"),
        ('device = "a800-80gb"', "device = 3", "device must name a device"),
        ("num_nodes = 1", "num_nodes = 2", r"2 nodes need a \[network\]"),
        ("num_nodes = 1", "num_node = 1", "unknown field `num_node`"),
        ("ranks_per_node = 8", "ranks_per_node = 65537", "65537 ranks are more than the 65,536"),
        ('op = "all_gather"', 'op = "all_to_all"', "no fit for all_gather|twice"),
        ('op = "all_to_all", num_ranks = 4', 'op = "all_to_all", num_ranks = 2', "twice"),
        ("bus_gb_per_s = 92.7", "bus_gb_per_s = 0.0", "bus_gb_per_s"),
        ("bus_gb_per_s = 92.7", "bus_gb_per_s = nan", "bus_gb_per_s"),
        ('origin = "fitted"', 'origin = "guessed"', "guessed"),
    ],
)
def test_impossible_clusters_are_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = (ROOT / "clusters" / "a800x8.toml").read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "mine.toml"
    path.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(FormatError, match=message) as caught:
        load_cluster(str(path))
    assert caught.value.where == "mine.toml"
