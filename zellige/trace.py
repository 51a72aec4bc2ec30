"""Spans of a step, simulated or measured, under the names of the program they come from."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import ClassVar, Literal

import msgspec

from zellige.files import NonNegativeInt, PositiveInt
from zellige.placement import Engine

Lane = Literal["compute", "copy", "wait", "network"]


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Build many small objects (events, spans, placements) without looking for cycles among them, which takes a third
    of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Span(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a rank did (or a link carried for it) from ``start_ns`` on, for ``duration_ns``.

    ``name`` is the program's (:meth:`zellige.program.Program.span`); an exchange's copies add ``.pack`` and
    ``.unpack``, the call that enters it ``.enter`` or ``.call``. ``bytes`` is what the rank received in an exchange.
    Of a simulated exchange, ``waited_ns`` is how long the rank had been there when it started, and ``last_rank`` who
    came last (-1: not known).
    """

    name: str
    rank: NonNegativeInt
    lane: Lane
    layer: NonNegativeInt = 0
    start_ns: NonNegativeInt
    duration_ns: NonNegativeInt
    bytes: NonNegativeInt = 0
    waited_ns: NonNegativeInt = 0
    last_rank: int = -1

    @property
    def stop_ns(self) -> int:
        """The end of the span."""
        return self.start_ns + self.duration_ns


class CounterPoint(msgspec.Struct, frozen=True, array_like=True):
    """A value from a time on."""

    time_ns: int
    value: float


class Counter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A value over the step, of a node or of something in it: memory in bytes, a link's use in GB/s."""

    name: str
    node: NonNegativeInt = 0
    unit: Literal["bytes", "GB/s"]
    points: tuple[CounterPoint, ...]


class Trace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The spans of one step, by start; ``program`` is the digest of the program that was run or priced.

    ``ranks_per_node`` 0 puts all ranks on one node.
    """

    SCHEMA: ClassVar[str] = "zellige.trace/1"

    schema: str = "zellige.trace/1"
    origin: Literal["simulated", "measured"]
    program: str
    engine: Engine
    num_ranks: PositiveInt
    ranks_per_node: NonNegativeInt = 0
    spans: tuple[Span, ...]
    counters: tuple[Counter, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def duration_ns(self) -> int:
        """From 0 to the end of the last span."""
        return max((span.stop_ns for span in self.spans), default=0)

    def node_of(self, rank: int) -> int:
        """The node that a rank sits on."""
        return rank // self.ranks_per_node if self.ranks_per_node else 0

    def time_in(self, lane: Lane, rank: int | None = None) -> int:
        """Nanoseconds that ranks (or one of them) spent in a lane."""
        return sum(span.duration_ns for span in self.spans if span.lane == lane and rank in (None, span.rank))
