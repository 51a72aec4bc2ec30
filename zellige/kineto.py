"""A trace as a folder of Kineto traces, one a rank, which PyTorch's trace tools read (HolisticTraceAnalysis).

Work is kernels on stream 7; exchanges, gathers and reductions are NCCL kernels on streams of their own, which begin as
NCCL's do when their rank enters them, and wait there for the others. What enters an exchange (latency and host time) is
the launch of its kernel on the host; all else is launched as it begins. Times are whole microseconds, so that kernels
that follow one another never overlap.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from zellige.chrome_trace import STREAMS, stream_of
from zellige.files import make_folder, write_bytes
from zellige.trace import Span, Trace

Event = dict[str, Any]

CUDA_STREAMS = dict(zip(STREAMS, (7, 20, 21, 22), strict=True))

NCCL_KERNELS = {
    "exchange": "ncclDevKernel_SendRecv",
    "gather": "ncclDevKernel_AllGather_RING_LL",
    "reduce": "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL",
}
"""The kernels that NCCL runs for them (its names, by which tools tell communication from computation)."""

FIRST_CORRELATION = 1_000_000
"""Ids of launches start here: HolisticTraceAnalysis stores row numbers in as narrow an integer as holds the ids."""

HOST = 1_000_000
"""Process ids of hosts start here, above all ranks."""


def write_kineto(trace: Trace, folder: Path) -> list[Path]:
    """Write ``rank_N.json.gz`` of every rank into a folder, which is made if needed; the files, by rank.

    Raises :class:`zellige.errors.FileError` where they cannot be written.
    """
    make_folder(folder)
    by_rank: list[list[Span]] = [[] for _ in range(trace.num_ranks)]
    for span in trace.spans:
        by_rank[span.rank].append(span)
    paths = []
    for rank, spans in enumerate(by_rank):
        path = folder / f"rank_{rank}.json.gz"
        text = msgspec.json.format(msgspec.json.encode(kineto_trace(trace, rank, spans)), indent=1)
        write_bytes(path, gzip.compress(text, compresslevel=6, mtime=0))
        paths.append(path)
    return paths


def kineto_trace(trace: Trace, rank: int, spans: list[Span]) -> Event:
    """One rank's trace; ``spans`` are the rank's, by start."""
    return {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": trace.num_ranks},
        "deviceProperties": [{"id": 0, "name": f"{trace.origin} by Zellige"}],
        "displayTimeUnit": "ms",
        "traceEvents": [*_names(rank), *_events(rank, spans)],
    }


def _names(rank: int) -> Iterator[Event]:
    for pid, name in ((rank, f"GPU of rank {rank}"), (HOST + rank, f"host of rank {rank}")):
        yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "ts": 0, "args": {"name": name}}
    for name, stream in CUDA_STREAMS.items():
        label = f"stream {stream} {name}"
        yield {"ph": "M", "name": "thread_name", "pid": rank, "tid": stream, "ts": 0, "args": {"name": label}}


def _events(rank: int, spans: list[Span]) -> Iterator[Event]:
    """A launch and a kernel for every span that computes, copies or travels."""
    calls = {(s.name.rpartition(".")[0], s.layer): s for s in spans if s.name.endswith((".call", ".enter"))}
    correlation = FIRST_CORRELATION
    for span in spans:
        if span.lane == "wait":
            continue
        correlation += 1
        stream = stream_of(span)
        call = calls.get((span.name, span.layer)) if stream == "exchange" else None
        begin = (span.start_ns - span.waited_ns) // 1000
        stop = span.stop_ns // 1000
        launch = (begin, begin) if call is None else (call.start_ns // 1000, min(call.stop_ns // 1000, begin))
        yield {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": "cudaLaunchKernel",
            "pid": HOST + rank,
            "tid": HOST + rank,
            "ts": launch[0],
            "dur": launch[1] - launch[0],
            "args": {"correlation": correlation, "External id": correlation},
        }
        yield {
            "ph": "X",
            "cat": "kernel",
            "name": NCCL_KERNELS.get(stream, span.name),
            "pid": rank,
            "tid": CUDA_STREAMS[stream],
            "ts": begin,
            "dur": stop - begin,
            "args": {
                "correlation": correlation,
                "External id": correlation,
                "device": rank,
                "stream": CUDA_STREAMS[stream],
                "span": span.name,
                "layer": span.layer,
                "bytes": span.bytes,
            },
        }
