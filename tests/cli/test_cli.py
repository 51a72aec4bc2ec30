"""What people ask the command line, the JSON that scripts rely on, and the commands and options that stay."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer
from command_line import MIXED, MODEL, SETTING, Run, write

from zellige import cli_app


def test_fifteen_seconds_of_1080p(run: Run) -> None:
    arguments = ("inspect", "1920x1080", "--seconds", "15", "--fps", "16", *MODEL)
    assert "497,760 tokens" in run(*arguments).out
    assert "1920x1080 is padded to 1920x1088: whole tokens of 16x16 pixels" in run(*arguments).out
    answer = run(*arguments, "--json").json
    assert (answer["tokens"], answer["grid"], answer["frames"]) == (497_760, [61, 68, 120], 241)
    assert "padded" not in run("inspect", "1280x720x161", *MODEL).out


def test_frames_that_the_model_does_not_take(run: Run) -> None:
    end = run("inspect", "1280x720x160", *MODEL)
    assert end.code == 0
    assert "157" in end.out
    assert run("inspect", "1280x720x160", *MODEL, "--json").json["tokens"] == 40 * 45 * 80


def test_u01_retimed_clips_are_dropped_with_the_buckets_that_would_keep_them(run: Run) -> None:
    rows = [f"{i},1280,720,{frames},23.976" for i, frames in enumerate((101, 101, 101, 113))]
    clips = write("clips.csv", "\n".join(["id,width,height,num_frames,fps", *rows]))
    check = ("check", clips, *MODEL, "--buckets", "1,101,113")
    end = run(*check, "--json")
    assert end.code == 1
    (report,) = end.json["files"]
    assert len(report["findings"]) == 4
    assert [re.findall(r"x(\d+)$", finding["fix"]) for finding in report["findings"]] == [["65"]] * 3 + [["73"]]
    for finding, frames in zip(report["findings"], [(67, 65)] * 3 + [(75, 73)], strict=True):
        assert all(re.search(rf"\b{count}\b", finding["message"]) for count in frames), "resampled, snapped"
    assert "4 of 4" in run(*check).out
    end = run("compare", clips, *SETTING, "--buckets", "1,101,113")
    assert (end.code, end.out) == (1, "")
    assert "1280x720x65" in end.err
    assert "1280x720x73" in end.err
    assert run("check", clips, *MODEL, "--buckets", "1,65,73").code == 0


def test_u04_images_of_seven_sizes(run: Run) -> None:
    counts = (1, 1, 9, 1, 2, 2, 2)
    rows = [{"width": 256 + 16 * i, "height": 256, "num_frames": 1, "count": n} for i, n in enumerate(counts)]
    clips = write("clips.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    end = run("check", clips, *MODEL)
    assert end.code == 0
    assert re.search(r"\b7 steps", end.out)
    assert re.search(r"1 step\b.* all 18", end.out)
    assert "18 sequences in 7 shapes" in run("check", clips, *MODEL, "--json").out


def test_u05_tokens_that_do_not_divide_by_the_ranks(run: Run) -> None:
    arguments = ("inspect", "720x960x81", "--model", "wan2.1-t2v-14b", "--cluster", "h200x8", "--split", "h8")
    answer = run(*arguments, "--json").json
    assert (answer["tokens"], answer["grid"]) == (56_700, [21, 60, 45])
    assert sorted(answer["shards"]) == [7087] * 4 + [7088] * 4
    assert sum(answer["shards"]) == 56_700
    assert "4 x 7,088 + 4 x 7,087" in run(*arguments).out


def test_u06_latent_frames_that_do_not_divide(run: Run) -> None:
    for split, shards in (("q4", [8190] * 4), ("q8", [4095] * 8)):
        answer = run("inspect", "832x480x81", *MODEL, "--cluster", "a800x8", "--split", split, "--json").json
        assert (answer["tokens"], answer["shards"]) == (32_760, shards)


def test_u09_more_ranks_than_the_heads_allow(run: Run) -> None:
    arguments = ("inspect", "1280x720x161", "--model", "wan2.1-t2v-14b", "--cluster", "a800x16")
    answer = run(*arguments, "--json").json
    assert answer["tokens"] == 147_600
    assert answer["legal_h"] == [1, 2, 4, 5, 8, 10]
    on_all = {(c["h"], c["q"] * c["k"]) for c in answer["configs"] if c["q"] * c["h"] * c["k"] == 16}
    assert on_all == {(8, 2), (4, 4), (2, 8), (1, 16)}
    text = run(*arguments).out
    for way in ("h8 x 2", "h4 x 4", "h2 x 8", "h1 x 16"):
        assert way in text
    assert re.search(r"h=16 is not legal.*40 heads", text)
    end = run(*arguments, "--split", "h16")
    assert end.code == 3
    assert "1 2 4 5 8 10" in end.err


def test_u12_state_alone_exceeds_a_gpu(run: Run) -> None:
    clips = write("clips.jsonl", '{"width": 512, "height": 512, "num_frames": 81, "fps": 16, "count": 8}\n')
    setting = ("--cluster", "h200x8", "--model", "wan2.1-t2v-14b")
    for command in ("compare", "plan", "check"):
        end = run(command, clips, *setting, "--sharding", "ddp")
        assert (end.code, end.out) == (3, "")
        for fact in ("error[ZL201]", "229 GB", "143,771 MiB", "--sharding zero3", "28.6 GB"):
            assert fact in end.err
        assert re.search(r"\b32(\.\d)? GB", end.err), "18 P/N, with fp32 gradients"
    assert run("plan", clips, *setting, "--sharding", "zero3").code == 0
    assert run("inspect", "512x512x81", *setting, "--json").json["tokens"] == 21_504


PLAN_FIELDS = {
    "schema", "policy", "cluster", "model", "digest", "placements", "predicted", "bound_ns", "gap", "inputs", "solver",
}  # fmt: skip
ROW_FIELDS = {
    "policy", "fits", "step_time_ns", "ratio_to_best", "max_over_mean", "comm_bytes", "comm_relative_to_usp",
    "num_split", "num_sequences", "peak_memory_bytes", "planning_ns", "bound_ns", "gap",
}  # fmt: skip


def test_inspect_json(run: Run) -> None:
    answer = run("inspect", "1280x720x161", *SETTING, "--json").json
    assert answer["schema"] == "zellige.inspect/1"
    assert answer["tokens"] == 147_600
    assert answer["grid"] == [41, 45, 80]
    assert answer["frames"] == 161
    assert answer["legal_h"] == [1, 2, 3, 4]
    assert {"q", "h", "k", "time_ns", "memory_bytes", "source"} <= set(answer["configs"][0])
    assert {config["source"] for config in answer["configs"]} == {"analytic"}
    assert all(isinstance(config["time_ns"], int) for config in answer["configs"])
    without = run("inspect", "1280x720x161", *MODEL, "--json").json
    assert without["legal_h"] == [1, 2, 3, 4, 6, 12]
    assert without["configs"] == []


def test_compare_json(run: Run) -> None:
    end = run("compare", write("mixed.jsonl", MIXED), *SETTING, "--json")
    assert (end.code, end.err) == (0, "")
    answer = end.json
    assert answer["schema"] == "zellige.comparison/1"
    assert (answer["cluster"], answer["model"], answer["fidelity"]) == ("a800x4", "wan2.1-t2v-1.3b", "additive")
    assert answer["batches"] == 1
    assert isinstance(answer["verdict"], str)
    rows = {row["policy"]: row for row in answer["rows"]}
    assert {"dp", "usp", "static", "static-coalesced", "knapformer-oracle", "zellige-paper"} <= set(rows)
    for row in rows.values():
        assert set(row) >= ROW_FIELDS
        assert isinstance(row["step_time_ns"], int)
        assert row["fits"] is True
        assert row["num_sequences"] == 13
        assert row["step_time_ns"] >= row["bound_ns"]
        assert row["gap"] == pytest.approx(row["step_time_ns"] / row["bound_ns"] - 1)
    best = min(row["step_time_ns"] for row in rows.values())
    assert all(row["ratio_to_best"] == pytest.approx(row["step_time_ns"] / best) for row in rows.values())
    assert rows["usp"]["comm_relative_to_usp"] == 1.0
    assert rows["dp"]["comm_bytes"] == 0


def test_plan_json_is_the_file(run: Run) -> None:
    end = run("plan", write("mixed.jsonl", MIXED), *SETTING, "--json", "-o", "plan.json")
    assert end.code == 0
    assert end.json == json.loads(Path("plan.json").read_text())
    plan = end.json
    assert plan["schema"] == "zellige.plan/1"
    assert set(plan) >= PLAN_FIELDS
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", plan["digest"])
    assert [p["sequence"] for p in plan["placements"]] == ["long", *(f"i1-{n}" for n in range(12))]
    for placement in plan["placements"]:
        assert set(placement) >= {"sequence", "bucket", "config", "ranks"}
        config = placement["config"]
        assert config["q"] * config["h"] * config["k"] == len(placement["ranks"])
    assert [p["rank"] for p in plan["predicted"]] == [0, 1, 2, 3]
    assert set(plan["predicted"][0]) >= {"rank", "time_ns", "memory_bytes"}
    assert set(plan["inputs"]) >= {"batch", "prices"}
    assert set(plan["solver"]) >= {"name", "status", "planning_ns"}


def test_cut_json(run: Run) -> None:
    """Images of two sizes below, videos of three lengths above: the chosen k leaves the least dispersion."""
    shapes = ((256, 1), (272, 1), (832, 33), (832, 49), (832, 81))
    rows = [{"width": width, "height": 256, "num_frames": frames} for width, frames in shapes]
    write("clips.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    answer = run("cut", "clips.jsonl", *SETTING, "--json").json
    assert answer["schema"] == "zellige.cut/1"
    assert answer["k"] == 2
    assert all({"bucket", "whole_ns", "role"} <= set(bucket) for bucket in answer["buckets"])
    assert [bucket["role"] for bucket in answer["buckets"]] == ["filler"] * 2 + ["anchor"] * 3
    prices = [bucket["whole_ns"] for bucket in answer["buckets"]]
    assert prices == sorted(prices)
    assert len(answer["dispersion"]) == 4
    assert answer["dispersion"].index(min(answer["dispersion"])) + 1 == answer["k"]


def test_check_json(run: Run) -> None:
    end = run("check", write("mixed.jsonl", MIXED), *SETTING, "--json")
    assert end.code == 0
    assert end.json["schema"].startswith("zellige.findings/")
    assert end.json["files"][0]["findings"] == []


def test_json_stays_clean_of_warnings(run: Run) -> None:
    """Warnings go to stderr, whatever is asked for."""
    clips = write("clips.jsonl", MIXED + '{"id": "short", "width": 832, "height": 480, "num_frames": 2, "fps": 16}\n')
    end = run("compare", clips, *SETTING, "--json", "--policy", "dp")
    assert end.code == 0
    assert end.json["rows"][0]["num_sequences"] == 13
    assert "short" in end.err
    assert "1 of 14" in end.err


COMMON = {"--cluster", "--model", "--sharding", "--checkpoint", "--json"}
READING = {"--buckets", "--keep-fps", "--prices"}
BASELINES = {"--usp", "--knapformer", "--engine", "--policy"}
SIMULATION = {"--fidelity", "--jitter", "--replicas", "--seed", "--set", "--device", "--additivity"}
FROZEN: dict[str, set[str]] = {
    "compare": COMMON
    | READING
    | BASELINES
    | SIMULATION
    | {"--batches", "--breakdown", "--sensitivity", "--jobs", "--out", "--reserve"},
    "simulate": {"--cluster", "--model", "--json", "--trace", "--no-state", "--reserve"} | SIMULATION,
    "plan": COMMON | READING | BASELINES | {"--seed", "--output", "-o", "--reserve"},
    "check": COMMON | READING | {"--batch-size"},
    "inspect": COMMON | {"--seconds", "--fps", "--split"},
    "cut": COMMON | READING | {"--batches", "--seed"},
    "catalog list": {"--json"},
    "catalog show": set(),
}
"""Commands and options that scripts may rely on: more are welcome, these stay."""


def test_every_command_takes_json(run: Run) -> None:
    root: Any = typer.main.get_command(cli_app.app)
    commands = {name: getattr(command, "commands", {}) or {"": command} for name, command in root.commands.items()}
    for name, parts in commands.items():
        for part, command in parts.items():
            assert "--json" in {flag for parameter in command.params for flag in parameter.opts}, f"{name} {part}"
    assert run("catalog", "show", "a800x8", "--json").json["schema"] == "zellige.cluster/1"
    assert "--errors TABLE" in run("catalog", "show", "--json").error["fix"]
    write("mixed.jsonl", MIXED)
    told = run("prices", "mixed.jsonl", *SETTING, "-o", "prices.json", "--json").json
    assert told == json.loads(Path("prices.json").read_text())


def test_commands_and_options_are_frozen() -> None:
    root: Any = typer.main.get_command(cli_app.app)
    found = {}
    for name, command in root.commands.items():
        parts = {f"{name} {sub}": below for sub, below in getattr(command, "commands", {}).items()} or {name: command}
        for full, part in parts.items():
            found[full] = {flag for parameter in part.params for flag in parameter.opts if flag.startswith("-")}
    for name, flags in FROZEN.items():
        assert found[name] >= flags, f"{name} lost {flags - found[name]}"
        assert {"-h", "--help"} <= set(root.context_settings["help_option_names"])
