"""Rules of the Trace Event Format that a viewer relies on, checked event by event."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Event = dict[str, Any]
Track = tuple[int, int]

FIELDS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "X": {"name": str, "cat": str, "pid": int, "tid": int, "ts": (int, float), "dur": (int, float), "args": dict},
    "M": {"name": str, "pid": int, "tid": int, "args": dict},
    "C": {"name": str, "pid": int, "ts": (int, float), "args": dict},
    "s": {"name": str, "cat": str, "id": int, "pid": int, "tid": int, "ts": (int, float)},
    "f": {"name": str, "cat": str, "id": int, "pid": int, "tid": int, "ts": (int, float), "bp": str},
}
"""What each phase must have; instant events and all else are not used."""

NAMES = {
    "process_name": "name",
    "thread_name": "name",
    "process_sort_index": "sort_index",
    "thread_sort_index": "sort_index",
}


def nanoseconds(time_us: float) -> int:
    """A time of the format, exactly."""
    return round(time_us * 1000)


def violations(document: Event) -> list[str]:
    """What is wrong with a trace."""
    events = document["traceEvents"]
    wrong = [text for number, event in enumerate(events) for text in _fields(number, event)]
    return wrong or [*_times(events), *_nesting(events), *_flows(events), *_labels(events), *_counters(events)]


def _fields(number: int, event: Event) -> Iterator[str]:
    phase = event.get("ph")
    if phase not in FIELDS:
        yield f"event {number} has phase {phase!r}"
        return
    for key, kind in FIELDS[phase].items():
        if not isinstance(event.get(key), kind) or isinstance(event.get(key), bool):
            yield f"event {number} ({phase}): {key} is {event.get(key)!r}"
    if event.get("dur", 0) < 0 or event.get("ts", 0) < 0:
        yield f"event {number} is before the beginning"
    if phase == "M" and NAMES.get(event["name"]) not in event["args"]:
        yield f"event {number}: {event['name']} does not say anything"


def _tracks(events: list[Event]) -> dict[Track, list[Event]]:
    tracks: dict[Track, list[Event]] = {}
    for event in events:
        if event["ph"] == "X":
            tracks.setdefault((event["pid"], event["tid"]), []).append(event)
    return tracks


def _times(events: list[Event]) -> Iterator[str]:
    """Times never go back, in a track or a counter, in the order of the file."""
    last: dict[tuple[Any, ...], float] = {}
    for event in events:
        if event["ph"] != "M":
            key = (event["ph"] == "C", event["pid"], event["name"] if event["ph"] == "C" else event["tid"])
            if event["ts"] < last.get(key, 0):
                yield f"{key} goes back to {event['ts']}"
            last[key] = event["ts"]


def _nesting(events: list[Event]) -> Iterator[str]:
    for track, slices in _tracks(events).items():
        open_ends: list[int] = []
        for event in slices:
            start = nanoseconds(event["ts"])
            stop = start + nanoseconds(event["dur"])
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            if open_ends and stop > open_ends[-1]:
                yield f"{track}: {event['name']} at {event['ts']} ends after the slice around it"
            open_ends.append(stop)


def _flows(events: list[Event]) -> Iterator[str]:
    ends: dict[int, list[Event]] = {}
    for event in events:
        if event["ph"] in "sf":
            ends.setdefault(event["id"], []).append(event)
    tracks = _tracks(events)
    slices = {
        track: [(nanoseconds(e["ts"]), nanoseconds(e["ts"]) + nanoseconds(e["dur"])) for e in there]
        for track, there in tracks.items()
    }
    for number, pair in ends.items():
        if [event["ph"] for event in pair] != ["s", "f"] and [event["ph"] for event in pair] != ["f", "s"]:
            yield f"flow {number} has ends {[event['ph'] for event in pair]}"
            continue
        source, target = sorted(pair, key=lambda event: event["ph"], reverse=True)
        if source["ts"] > target["ts"] or target["bp"] != "e":
            yield f"flow {number} goes back, or does not bind to the slice around its end"
        for event in pair:
            around = slices.get((event["pid"], event["tid"]), [])
            if not any(start <= nanoseconds(event["ts"]) <= stop for start, stop in around):
                yield f"flow {number} hangs in the air at {event['ts']}"


def _labels(events: list[Event]) -> Iterator[str]:
    named = {(e["name"], e["pid"], e["tid"]) for e in events if e["ph"] == "M"}
    for pid, tid in _tracks(events):
        if not {("process_name", pid, 0), ("thread_name", pid, tid)} <= named:
            yield f"track {pid}, {tid} has no name"


def _counters(events: list[Event]) -> Iterator[str]:
    for event in events:
        if event["ph"] == "C":
            values = list(event["args"].values())
            if len(values) != 1 or not isinstance(values[0], int | float) or values[0] < 0:
                yield f"counter {event['name']} is {values} at {event['ts']}"
