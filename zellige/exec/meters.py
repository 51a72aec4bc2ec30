"""Recorders of a rank's own time: CPU time of its thread, or events on its GPU's stream.

Both record the spans of :mod:`zellige.exec.phases` like any recorder, and say what the step took in all. Time that a
CPU rank spends waiting for another is not its own; spans of exchanges in flight are left out.
"""

from __future__ import annotations

import time

import torch

from zellige.exec.recorder import Recorder
from zellige.trace import Lane

Duration = tuple[str, int, int]
"""A span's name, its layer, and its nanoseconds."""


class CpuMeter(Recorder):
    """CPU time of the thread that runs the rank; what other threads and processes do does not count."""

    def __init__(self, rank: int) -> None:
        super().__init__(rank, enabled=True)
        self._wall = time.perf_counter_ns()

    def restart(self) -> None:
        """Forget all spans, and start the clocks here."""
        self.spans = []
        self._wall = time.perf_counter_ns()
        self._zero = time.thread_time_ns()

    def now(self) -> int:
        """Nanoseconds of CPU time since the start."""
        return time.thread_time_ns() - self._zero

    def stop(self) -> tuple[int, int]:
        """Wall and own nanoseconds since the start."""
        return time.perf_counter_ns() - self._wall, self.now()

    def durations(self) -> list[Duration]:
        """The spans of the rank itself, in order."""
        return [(span.name, span.layer, span.duration_ns) for span in self.spans if span.lane != "network"]


class EventMeter(Recorder):
    """Time on the rank's CUDA stream, by events around every span; nothing is synchronised before the step's end."""

    def __init__(self, rank: int) -> None:
        super().__init__(rank, enabled=True)
        self._wall = time.perf_counter_ns()
        self._events: list[torch.cuda.Event] = []
        self._marked: list[tuple[str, int, int, int]] = []

    def restart(self) -> None:
        """Forget all spans, and start the clocks here."""
        torch.cuda.synchronize()
        self._events, self._marked = [], []
        self._wall = time.perf_counter_ns()
        self.now()

    def now(self) -> int:
        """The number of an event that is recorded here."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        self._events.append(event)
        return len(self._events) - 1

    def add(self, name: str, lane: Lane, start_ns: int, *, received: int = 0) -> None:
        """A span from event ``start_ns`` to now."""
        del received
        if lane != "network":
            self._marked.append((name, self.layer, start_ns, self.now()))

    def stop(self) -> tuple[int, int]:
        """Wall and own nanoseconds since the start."""
        last = self.now()
        torch.cuda.synchronize()
        return time.perf_counter_ns() - self._wall, self._between(0, last)

    def durations(self) -> list[Duration]:
        """The spans of the rank itself, in order."""
        return [(name, layer, self._between(start, stop)) for name, layer, start, stop in self._marked]

    def _between(self, start: int, stop: int) -> int:
        elapsed_ms: float = self._events[start].elapsed_time(self._events[stop])
        return round(1e6 * elapsed_ms)


Meter = CpuMeter | EventMeter
