"""Complaints from public threads about mixed-length training, as commands with their right answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import MODEL, Run, write

from zellige.catalog import catalog_root

BIG_MODEL = ("--model", "wan2.1-t2v-14b")


def clip_list(name: str, *rows: dict[str, object]) -> str:
    return write(name, "".join(json.dumps(row) + "\n" for row in rows))


def clip(width: int, height: int, frames: int, **more: object) -> dict[str, object]:
    return {"width": width, "height": height, "num_frames": frames, "fps": 16, **more}


def rows_of(comparison: dict) -> dict[str, dict]:
    return {row["policy"]: row for row in comparison["rows"]}


def test_u11_padding_to_the_longest(run: Run) -> None:
    """hao-ai-lab/FastVideo#917: a mixed batch padded to its longest sample."""
    name = clip_list("u11.jsonl", clip(832, 480, 81), clip(1024, 1024, 1, count=7))
    end = run("check", name, *MODEL)
    assert end.code == 0
    assert "wastes 76.6 % of 262,080 tokens" in end.out
    assert "61,432 tokens" in end.out


def test_u15_the_rare_large_bucket(run: Run) -> None:
    """tdrussell/diffusion-pipe#189: ten clips of 97 frames among 990 of 33 set the peak."""
    name = clip_list("u15.jsonl", clip(512, 512, 33, id="short", count=99), clip(512, 512, 97, id="long"))
    end = run("check", name, *BIG_MODEL, "--cluster", "l40sx8")
    assert "worst bucket 512x512x97 (1 of 100), 18.5 GB" in end.out
    assert "must be split" in end.out
    few = clip_list("few.jsonl", clip(512, 512, 33, id="short", count=2), clip(512, 512, 97, id="long"))
    plan = run("plan", few, *BIG_MODEL, "--cluster", "l40sx8", "--json").json
    degrees = {p["sequence"]: len(p["ranks"]) for p in plan["placements"]}
    assert plan["fits"]
    assert degrees["long"] > 1
    assert degrees["short-0"] == degrees["short-1"] == 1


def test_u16_a_published_configuration_on_smaller_devices(run: Run) -> None:
    """hpcaitech/Open-Sora#814: batch sizes searched on 140 GB run out of memory on 80 GB."""
    end = run("check", "open-sora-2-stage1", "--cluster", "a800x80")
    assert end.code == 1
    assert "256x256x1 x 45 needs 78.6 GB" in end.out
    assert run("check", "open-sora-2-stage1", "--cluster", "h200x8").code == 0


def test_u19_one_clip_a_rank_of_mixed_lengths(run: Run) -> None:
    """aigc-apps/EasyAnimate#107: eight GPUs slower a step than one, on clips of mixed lengths."""
    frames = (145, 73, 37, 17, 145, 9, 97, 49)
    name = clip_list("u19.jsonl", *(clip(512, 512, number) for number in frames))
    dp = rows_of(run("compare", name, *BIG_MODEL, "--cluster", "a100x8", "--policy", "dp", "--json").json)["dp"]
    assert dp["flops_max_over_mean"] == pytest.approx(2.34, abs=0.005)
    small = rows_of(run("compare", name, *MODEL, "--cluster", "a100x8", "--policy", "dp", "--json").json)["dp"]
    assert 2.46 <= small["flops_max_over_mean"] <= 2.50
    assert dp["compute_ns"] + dp["communication_ns"] + dp["wait_ns"] == pytest.approx(dp["step_time_ns"], abs=2)
    assert dp["communication_ns"] == 0
    assert dp["wait_ns"] > dp["compute_ns"]
    shown = run("compare", name, *BIG_MODEL, "--cluster", "a100x8", "--policy", "dp", "--breakdown").out
    assert "compute" in shown
    assert "wait" in shown


def test_u21_uniform_splits_do_not_even_groups_out(run: Run) -> None:
    """ByteDance-Seed/VeOmni#1074: one rank's large images hold up seven ranks of thumbnails."""
    name = clip_list("u21.jsonl", clip(256, 256, 1, id="thumb", count=7), clip(1920, 1080, 1, id="large", count=4))
    rows = rows_of(run("compare", name, *BIG_MODEL, "--cluster", "a100x8", "--breakdown", "--json").json)
    uniform = [row for row in rows.values() if row["policy"] in {"dp", "knapformer-oracle"}]
    assert all(row["wait_ns"] > 0 for row in uniform)
    assert rows["dp"]["max_over_mean"] > 1.5
    assert rows["static"]["step_time_ns"] < rows["dp"]["step_time_ns"]


def test_u23_time_grows_faster_than_length(run: Run) -> None:
    """hao-ai-lab/FastVideo#323: eight ranks are fine at 80k tokens and time out at 150k."""
    times = []
    for name, frames in (("a.jsonl", 85), ("b.jsonl", 161)):
        batch = clip_list(name, clip(1280, 720, frames))
        setting = ("--cluster", "h100x8", "--model", "hunyuanvideo", "--keep-fps")
        row = rows_of(run("compare", batch, *setting, "--policy", "usp", "--json").json)["usp"]
        assert row["num_split"] == 1
        times.append(row["step_time_ns"])
    assert times[1] / times[0] == pytest.approx(3.2, abs=0.3)
    run("plan", batch, *setting, "--policy", "usp", "-o", "usp.json")
    assert run("check", "usp.json").code == 0
    short = run("check", "usp.json", "--timeout", "0.1")
    assert short.code == 1
    assert "collectives time out after 0.1 s" in short.out


def test_u29_the_same_plan_twice(run: Run) -> None:
    """google/or-tools#4195: one input, two plans."""
    name = clip_list("u29.jsonl", clip(832, 480, 81, count=3), clip(512, 512, 1, id="i", count=40))
    digests = {run("plan", name, *MODEL, "--cluster", "a800x8", "--json").json["digest"] for _ in range(3)}
    assert len(digests) == 1


def test_u30_a_device_of_ones_own_is_priced_and_says_how(run: Run) -> None:
    """microsoft/vidur#8: a GPU that is not in the list."""
    device = (catalog_root() / "devices" / "l40s.toml").read_text().replace('name = "l40s"', 'name = "mine"')
    cluster = (catalog_root() / "clusters" / "l40sx8.toml").read_text()
    Path("mine.toml").write_text(device)
    Path("box.toml").write_text(cluster.replace('"l40s"', '"mine.toml"').replace('"l40sx8"', '"box"'))
    name = clip_list("u30.jsonl", clip(832, 480, 33, count=4))
    result = run("compare", name, *MODEL, "--cluster", "box.toml", "--policy", "dp", "--json").json
    assert result["cluster"] == "box"
    assert result["prices"] == ["analytic"]
    assert any("assumed" in line or "derived" in line for line in result["assumptions"])
    assert run("check", "mine.toml").code == run("check", "box.toml").code == 0
    estimate = run("profile", name, *MODEL, "--cluster", "box.toml", "--estimate")
    assert estimate.code == 0
    assert "GPU minutes, estimated from analytic prices" in estimate.out
    told = run("profile", name, *MODEL, "--cluster", "box.toml", "--estimate", "--json").json
    assert told["time_ns"] == sum(row["time_ns"] for row in told["buckets"]) > 0
    assert run("profile", name, *MODEL, "--cluster", "box.toml").code == 2
