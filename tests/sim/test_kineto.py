"""Kineto folders: kernels of a rank add up to its report, by our own count and by HolisticTraceAnalysis."""

from __future__ import annotations

import gzip
import importlib.util
import itertools
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from builders import NODE, model_of, problem_of, program_of

from zellige.kineto import write_kineto
from zellige.placement import Engine
from zellige.sim import SimOptions, simulate
from zellige.sim.results import RankTime
from zellige.sim.simulate import Simulation

MIXED = (
    (30_000, "h4", (0, 1, 2, 3)),
    (9_000, "h2k2", (2, 3, 4, 5)),
    (6_000, "q2", (6, 7)),
    (4_000, "whole", (0,)),
    (8_000, "whole", (5,)),
)
SLACK_US = 3
"""Both ends of a rank's kernels are rounded down to a microsecond, and so are its edges between kinds of kernels."""

Interval = tuple[int, int]


@pytest.fixture(scope="module", params=["coalesced", "per_sequence"])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Simulation, Path]:
    engine: Engine = request.param
    problem = problem_of(NODE, model_of(6), engine=engine)
    done = simulate(program_of(MIXED, problem), problem, "event", SimOptions(trace=True))
    folder = tmp_path_factory.mktemp(engine) / "kineto"
    paths = write_kineto(done.trace, folder)
    assert sorted(folder.iterdir()) == sorted(paths)
    return done, folder


def load(folder: Path, rank: int) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(gzip.decompress((folder / f"rank_{rank}.json.gz").read_bytes()))
    return content


def kernels(document: dict[str, Any], *, nccl: bool) -> list[Interval]:
    found = [e for e in document["traceEvents"] if e.get("cat") == "kernel"]
    return [(e["ts"], e["ts"] + e["dur"]) for e in found if e["name"].startswith("nccl") == nccl]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    merged: list[Interval] = []
    for start, stop in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged


def length(intervals: Iterable[Interval]) -> int:
    return sum(stop - start for start, stop in union(intervals))


def breakdown(document: dict[str, Any]) -> tuple[int, int, int, float]:
    """Idle, compute, other than compute, and the share of communication beside compute; microseconds."""
    compute, nccl = kernels(document, nccl=False), kernels(document, nccl=True)
    both, busy = [*compute, *nccl], length([*compute, *nccl])
    span = max(stop for _, stop in both) - min(start for start, _ in both)
    beside = length(compute) + length(nccl) - busy
    return span - busy, length(compute), busy - length(compute), beside / max(1, length(nccl))


def compute_us(time: RankTime) -> float:
    return (sum(time.work_ns.values()) + time.slowdown_ns + time.jitter_ns) / 1000


def test_kernels_add_up_to_the_report(written: tuple[Simulation, Path]) -> None:
    done, folder = written
    for time in done.report.ranks:
        document = load(folder, time.rank)
        idle, compute, other, _ = breakdown(document)
        gaps = len(union(kernels(document, nccl=False)))
        assert compute == pytest.approx(compute_us(time), abs=gaps)
        waits = time.wait_ns + time.gather_wait_ns + time.reduce_wait_ns
        exposed = time.exchange_ns + time.gather_ns + time.reduce_ns
        first = min(start for start, _ in kernels(document, nccl=True) + kernels(document, nccl=False))
        calls_and_rest = (time.calls_ns + waits + exposed) / 1000 - first
        assert idle + other == pytest.approx(calls_and_rest, abs=gaps + SLACK_US)
        assert idle <= time.calls_ns / 1000 + gaps


def test_files_have_what_trace_tools_look_for(written: tuple[Simulation, Path]) -> None:
    done, folder = written
    for rank in range(8):
        document = load(folder, rank)
        assert document["distributedInfo"] == {"backend": "nccl", "rank": rank, "world_size": 8}
        text = gzip.decompress((folder / f"rank_{rank}.json.gz").read_bytes()).decode()
        assert f'"rank": {rank}' in text[:400]
        timed = [e for e in document["traceEvents"] if e["ph"] == "X"]
        launches = {e["args"]["correlation"]: e for e in timed if e["cat"] == "cuda_runtime"}
        run = {e["args"]["correlation"]: e for e in timed if e["cat"] == "kernel"}
        assert launches.keys() == run.keys()
        assert len(timed) == 2 * len(run)
        assert all(launches[c]["ts"] + launches[c]["dur"] <= run[c]["ts"] for c in run)
        assert all(isinstance(e[key], int) and e[key] >= 0 for e in timed for key in ("ts", "dur"))
        for stream in (7, 20, 21, 22):
            here = sorted((e["ts"], e["ts"] + e["dur"]) for e in run.values() if e["tid"] == stream)
            assert all(first[1] <= second[0] for first, second in itertools.pairwise(here))
        mine = [s for s in done.trace.spans if s.rank == rank and s.lane != "wait"]
        assert len(mine) == len(run)
        assert sum(e["args"]["bytes"] for e in run.values()) == sum(span.bytes for span in mine)


def test_equal_traces_are_equal_files(written: tuple[Simulation, Path], tmp_path: Path) -> None:
    done, folder = written
    again = write_kineto(done.trace, tmp_path / "a" / "b")
    assert [path.read_bytes() for path in again] == [(folder / path.name).read_bytes() for path in again]


ANALYSIS = """
import json, sys
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_dir=sys.argv[1])
idle = analysis.get_temporal_breakdown(visualize=False)
overlap = analysis.get_comm_comp_overlap(visualize=False)
print("RESULT", json.dumps({"idle": idle.to_dict("records"), "overlap": overlap.to_dict("records")}, default=float))
"""


@pytest.mark.skipif(
    importlib.util.find_spec("hta") is None, reason="HolisticTraceAnalysis is not installed: pip install 'zellige[hta]'"
)
def test_holistic_trace_analysis_reads_the_same_numbers(written: tuple[Simulation, Path]) -> None:
    done, folder = written
    ran = subprocess.run(
        [sys.executable, "-c", ANALYSIS, str(folder)], capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 0, ran.stderr
    result = json.loads(next(line for line in ran.stdout.splitlines() if line.startswith("RESULT"))[7:])
    assert [row["rank"] for row in result["idle"]] == list(range(8))
    for time, row, beside in zip(done.report.ranks, result["idle"], result["overlap"], strict=True):
        idle, compute, other, share = breakdown(load(folder, time.rank))
        assert (row["idle_time(us)"], row["compute_time(us)"]) == (idle, compute)
        assert row["non_compute_time(us)"] == other
        assert row["compute_time(us)"] == pytest.approx(compute_us(time), rel=1e-3)
        assert beside["comp_comm_overlap_pctg"] == pytest.approx(100 * share, abs=0.5)
