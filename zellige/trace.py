"""Spans of a step, simulated or measured, under the names of the program they come from; and their export."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec

from zellige.files import NonNegativeInt, PositiveInt
from zellige.placement import Engine

Lane = Literal["compute", "copy", "wait", "network"]
LANES: tuple[Lane, ...] = ("compute", "copy", "wait", "network")


class Span(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a rank did (or a link carried for it) from ``start_ns`` on, for ``duration_ns``.

    ``name`` is the program's (:meth:`zellige.program.Program.span`); an exchange's copies add ``.pack`` and
    ``.unpack``, the call that enters it ``.enter``. ``bytes`` is what the rank received in an exchange.
    """

    name: str
    rank: NonNegativeInt
    lane: Lane
    layer: NonNegativeInt = 0
    start_ns: NonNegativeInt
    duration_ns: NonNegativeInt
    bytes: NonNegativeInt = 0

    @property
    def stop_ns(self) -> int:
        """The end of the span."""
        return self.start_ns + self.duration_ns


class Trace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The spans of one step, by start; ``program`` is the digest of the program that was run or priced."""

    SCHEMA: ClassVar[str] = "zellige.trace/1"

    schema: str = "zellige.trace/1"
    origin: Literal["simulated", "measured"]
    program: str
    engine: Engine
    num_ranks: PositiveInt
    spans: tuple[Span, ...]
    notes: tuple[str, ...] = ()

    @property
    def duration_ns(self) -> int:
        """From 0 to the end of the last span."""
        return max((span.stop_ns for span in self.spans), default=0)

    def time_in(self, lane: Lane, rank: int | None = None) -> int:
        """Nanoseconds that ranks (or one of them) spent in a lane."""
        return sum(span.duration_ns for span in self.spans if span.lane == lane and rank in (None, span.rank))


def chrome_events(trace: Trace) -> dict[str, Any]:
    """The trace in the Trace Event Format, which chrome://tracing and Perfetto open; times in microseconds.

    A process is a rank, its threads are the lanes.
    """
    events: list[dict[str, Any]] = []
    for rank in range(trace.num_ranks):
        events.append({"ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": {"name": f"rank {rank}"}})
        events.extend(
            {"ph": "M", "name": "thread_name", "pid": rank, "tid": tid, "args": {"name": lane}}
            for tid, lane in enumerate(LANES)
        )
    events.extend(
        {
            "ph": "X",
            "name": span.name,
            "cat": span.lane,
            "pid": span.rank,
            "tid": LANES.index(span.lane),
            "ts": span.start_ns / 1000,
            "dur": span.duration_ns / 1000,
            "args": {"layer": span.layer, "bytes": span.bytes},
        }
        for span in trace.spans
    )
    metadata = {"origin": trace.origin, "program": trace.program, "engine": trace.engine}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": metadata}
