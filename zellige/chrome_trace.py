"""A trace in the Trace Event Format, which Perfetto and chrome://tracing open.

A process is a node, a thread a stream of a rank: what it computes, copies and waits for, and what travels beside that.
Arrows go from the call of the rank that came last to the exchange of every rank that waited for it. Counters are memory
and links. Times are microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from zellige.trace import Span, Trace, no_collection

STREAMS = ("compute", "exchange", "gather", "reduce")
"""A rank's streams; a gather's and a reduction's transfers have streams of their own beside the exchanges'."""

MAX_ROWS = 100
"""Threads that a stream of a rank may take where its spans overlap, as those of several processor threads do."""

Event = dict[str, Any]


def stream_of(span: Span) -> str:
    """The stream that a span runs on."""
    if span.lane != "network":
        return "compute"
    return next((kind for kind in ("gather", "reduce") if span.name.startswith(f"fsdp.{kind}")), "exchange")


def chrome_events(trace: Trace) -> Event:
    """The trace as the JSON object of the format, events by time."""
    with no_collection():
        return _events(trace)


def _events(trace: Trace) -> Event:
    tracks = _tracks(trace.spans)
    events: list[tuple[int, int, Event]] = []
    for span in trace.spans:
        event = {
            "ph": "X",
            "name": span.name,
            "cat": span.lane,
            **_track(trace, span, tracks),
            "ts": span.start_ns / 1000,
            "dur": span.duration_ns / 1000,
            "args": {"layer": span.layer, "bytes": span.bytes},
        }
        if span.waited_ns:
            event["args"] |= {"waited_us": span.waited_ns / 1000, "last_rank": span.last_rank}
        events.append((span.start_ns, 0, event))
    for number, (call, exchange) in enumerate(_rendezvous(trace)):
        begin, end = call.start_ns, max(call.start_ns, exchange.start_ns)
        for phase, span, time, more in (("s", call, begin, {}), ("f", exchange, end, {"bp": "e"})):
            arrow = {"ph": phase, "name": "came last", "cat": "rendezvous", "id": number, "ts": time / 1000}
            events.append((time, 1, {**arrow, **_track(trace, span, tracks), **more}))
    for counter in trace.counters:
        for time, value in ((point.time_ns, point.value) for point in counter.points):
            sample = {"ph": "C", "name": counter.name, "pid": counter.node + 1, "ts": time / 1000}
            events.append((time, 2, {**sample, "args": {counter.unit: value}}))
    events.sort(key=lambda event: event[:2])
    return {
        "traceEvents": [*_names(trace, tracks), *(event for _, _, event in events)],
        "displayTimeUnit": "ms",
        "otherData": {"origin": trace.origin, "program": trace.program, "engine": trace.engine},
    }


def _tracks(spans: Iterable[Span]) -> dict[int, int]:
    """The thread of every span, by the span's identity: a second row where a span begins before the last has ended."""
    ends: dict[tuple[int, str], list[int]] = {}
    tracks = {}
    for span in sorted(spans, key=lambda span: (span.start_ns, span.stop_ns)):
        stream = stream_of(span)
        rows = ends.setdefault((span.rank, stream), [])
        row = next((row for row, end in enumerate(rows) if end <= span.start_ns), len(rows))
        rows[row:] = [span.stop_ns, *rows[row + 1 :]]
        tracks[id(span)] = _thread(span.rank, stream, row)
    return tracks


def _thread(rank: int, stream: str, row: int) -> int:
    return ((rank + 1) * len(STREAMS) + STREAMS.index(stream)) * MAX_ROWS + row


def _track(trace: Trace, span: Span, tracks: dict[int, int]) -> Event:
    return {"pid": trace.node_of(span.rank) + 1, "tid": tracks[id(span)]}


def _rendezvous(trace: Trace) -> Iterator[tuple[Span, Span]]:
    """The call of the rank that came last to an exchange, and the exchange of a rank that waited for it."""
    calls: dict[tuple[str, int], dict[int, Span]] = {}
    exchanges: dict[tuple[str, int], list[Span]] = {}
    for span in trace.spans:
        name, _, suffix = span.name.rpartition(".")
        if span.lane == "wait" and suffix in ("call", "enter"):
            calls.setdefault((name, span.layer), {})[span.rank] = span
        elif span.lane == "network":
            exchanges.setdefault((span.name, span.layer), []).append(span)
    for key, spans in exchanges.items():
        entered = calls.get(key, {})
        if not entered:
            continue
        # Measured spans do not say who came last: it is whoever entered last. All others were in the exchange by then.
        latest = max(entered, key=lambda rank: (entered[rank].start_ns, -rank))
        for span in spans:
            last = latest if span.last_rank < 0 else span.last_rank
            waited = span.waited_ns > 0 or (trace.origin == "measured" and span.stop_ns > entered[latest].start_ns)
            if waited and last != span.rank and last in entered:
                yield entered[last], span


def _names(trace: Trace, tracks: dict[int, int]) -> Iterator[Event]:
    nodes = {trace.node_of(rank) for rank in range(trace.num_ranks)} | {counter.node for counter in trace.counters}
    for node in sorted(nodes):
        yield _metadata("process_name", node + 1, 0, name=f"node {node}")
        yield _metadata("process_sort_index", node + 1, 0, sort_index=node)
    for tid in sorted(set(tracks.values())):
        place, row = divmod(tid, MAX_ROWS)
        rank, stream = divmod(place, len(STREAMS))
        more = f" {row + 1}" if row else ""
        pid = trace.node_of(rank - 1) + 1
        yield _metadata("thread_name", pid, tid, name=f"rank {rank - 1} {STREAMS[stream]}{more}")
        yield _metadata("thread_sort_index", pid, tid, sort_index=tid)


def _metadata(kind: str, pid: int, tid: int, **args: str | int) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "ts": 0, "args": args}
