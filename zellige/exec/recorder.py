"""Measured spans of a rank, under the program's names."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from zellige.trace import Lane, Span


class Recorder:
    """Collects spans of one rank while ``enabled``; the clock starts at :meth:`restart`.

    ``synchronize`` waits for a device before every reading of the clock; CPU ranks need none.
    """

    def __init__(self, rank: int, *, enabled: bool = False, synchronize: Callable[[], None] | None = None) -> None:
        self.rank = rank
        self.enabled = enabled
        self.layer = 0
        self.spans: list[Span] = []
        self._synchronize = synchronize
        self._zero = time.perf_counter_ns()

    def restart(self) -> None:
        """Forget all spans, and start the clock here."""
        self.spans = []
        self._zero = time.perf_counter_ns()

    def now(self) -> int:
        """Nanoseconds since the start; 0 while nothing is recorded."""
        if not self.enabled:
            return 0
        if self._synchronize is not None:
            self._synchronize()
        return time.perf_counter_ns() - self._zero

    def add(self, name: str, lane: Lane, start_ns: int, *, received: int = 0) -> None:
        """A span from ``start_ns`` to now."""
        if not self.enabled:
            return
        self.spans.append(
            Span(
                name=name,
                rank=self.rank,
                lane=lane,
                layer=self.layer,
                start_ns=start_ns,
                duration_ns=self.now() - start_ns,
                bytes=received,
            )
        )

    @contextlib.contextmanager
    def span(self, name: str, lane: Lane) -> Iterator[None]:
        """Record the block."""
        start = self.now()
        yield
        self.add(name, lane, start)
