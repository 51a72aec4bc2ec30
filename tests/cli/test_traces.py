"""Traces as files: what simulate writes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from command_line import MIXED, SETTING, Run, write
from oracle.trace_format import violations


def plan(run: Run) -> None:
    write("mixed.jsonl", MIXED)
    assert run("plan", "mixed.jsonl", *SETTING, "-o", "plan.json").code == 0


def test_simulate_writes_a_chrome_trace_that_says_what_the_report_says(run: Run) -> None:
    plan(run)
    report = run("simulate", "plan.json", "--fidelity", "flow", "--trace", "t.json", "--json").json
    document = json.loads(Path("t.json").read_text(encoding="utf-8"))
    assert violations(document) == []
    peaks: dict[str, float] = {}
    for event in document["traceEvents"]:
        if event["ph"] == "C" and "bytes" in event["args"]:
            peaks[event["name"]] = max(peaks.get(event["name"], 0), event["args"]["bytes"])
    assert peaks == {f"rank {time['rank']} memory": time["peak_memory_bytes"] for time in report["ranks"]}
    ends = [event["ts"] + event["dur"] for event in document["traceEvents"] if event["ph"] == "X"]
    assert round(1000 * max(ends)) == report["step_time_ns"]


def test_simulate_writes_a_kineto_folder_beside_it(run: Run) -> None:
    plan(run)
    end = run("simulate", "plan.json", "--trace", "t.json", "--kineto", "traces/step")
    assert (end.code, end.err) == (0, "")
    assert "traces/step" in end.out
    files = sorted(Path("traces/step").iterdir())
    assert [path.name for path in files] == [f"rank_{rank}.json.gz" for rank in range(4)]
    ranks = [json.loads(gzip.decompress(path.read_bytes()))["distributedInfo"]["rank"] for path in files]
    assert ranks == [0, 1, 2, 3]


def test_a_folder_that_cannot_be_made_is_an_error(run: Run) -> None:
    plan(run)
    end = run("simulate", "plan.json", "--kineto", "mixed.jsonl", "--json")
    assert (end.code, end.error["code"]) == (4, "ZL400")
    assert end.error["message"].startswith("cannot make the folder 'mixed.jsonl'")
