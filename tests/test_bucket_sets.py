"""Bucket sets: every shape obeys its model; published batch sizes against the memory of a GPU."""

from __future__ import annotations

import pytest

from zellige.bucket_sets import bucket_memory
from zellige.catalog import load_bucket_set, load_cluster, load_model, names
from zellige.check import check_file
from zellige.memory import kept_bytes, layer_bytes_per_token, live_bytes, memory_model
from zellige.prices import attention_shape
from zellige.shards import WHOLE
from zellige.sources import Options, read_buckets
from zellige.workload import parse_patterns


@pytest.mark.parametrize("name", names("buckets"))
def test_every_bundled_shape_obeys_its_models_frame_rule(name: str) -> None:
    assert check_file(name, Options()).findings == ()


def test_a_set_by_name_is_the_list_of_its_shapes() -> None:
    assert read_buckets("wan-480p-720p") == load_bucket_set("wan-480p-720p").patterns()
    assert len(read_buckets("wan-480p-720p")) == 16


def test_memory_of_a_batch_is_linear_and_the_largest_batch_is_the_last_that_fits() -> None:
    bucket_set, model = load_bucket_set("open-sora-2-stage1"), load_model("open-sora-2")
    room = 57_000_000_000
    for row in bucket_memory(bucket_set, model, room):
        one = row.needed_bytes // row.batch_size
        assert row.max_batch * one <= room < (row.max_batch + 1) * one


def test_one_image_keeps_checkpoints_of_all_but_eleven_layers() -> None:
    bucket_set, model = load_bucket_set("open-sora-2-stage1"), load_model("open-sora-2")
    row = next(r for r in bucket_memory(bucket_set, model, 10**12) if r.shape == "256x256x1")
    tokens = 256 + 512
    expected = tokens * (46 * 2 * 3072 + 11 * layer_bytes_per_token(model) + layer_bytes_per_token(model))
    assert row.needed_bytes == pytest.approx(45 * expected, rel=1e-9)
    shape = attention_shape(model, 256)
    assert kept_bytes(model, shape, WHOLE, "none") == 57 * tokens * layer_bytes_per_token(model)
    assert live_bytes(model, shape, WHOLE) == tokens * layer_bytes_per_token(model)


def test_sizes_searched_on_140_gb_do_not_fit_80_gb() -> None:
    """hpcaitech/Open-Sora#814: the published configuration runs out of memory on 80 GB devices."""
    report = check_file("open-sora-2-stage1", Options(cluster="a800x80"))
    over = [finding.message.split()[0] for finding in report.findings]
    assert "256x256x1" in over
    assert "1024x1024x1" in over
    assert all(finding.fix.startswith("batch size ") for finding in report.findings)
    model = load_model("open-sora-2")
    room = memory_model(model, load_cluster("h200x8"), "zero2", "full").room_bytes
    rows = bucket_memory(load_bucket_set("open-sora-2-stage1"), model, room)
    assert all(row.max_batch >= row.batch_size for row in rows)


def test_patterns_take_sizes_frames_or_both() -> None:
    shapes = [(p.width, p.height, p.num_frames) for p in parse_patterns(["81", "512x512", "832x480x33"])]
    assert shapes == [(0, 0, 81), (512, 512, 1), (832, 480, 33)]
