"""The event queue: a heap of plain integer tuples ``(time, number, kind, payload)``.

``number`` counts pushes, so that events of one time leave in the order they came, on every machine. An event is
cancelled lazily: whoever scheduled it remembers the number of the one that counts, and ignores all others.
"""

from __future__ import annotations

from heapq import heappush

Event = tuple[int, int, int, int]
"""Nanoseconds, running number, kind, and a rank or a meeting."""

WORK_DONE, TRANSFER_DONE, MET = range(3)
"""Kinds: a rank's running operation is done; a meeting's transfer is done; a meeting without any is over."""


class EventQueue:
    """Events by time; ``heap`` is for :func:`heapq.heappop`."""

    __slots__ = ("heap", "pushed")

    def __init__(self) -> None:
        self.heap: list[Event] = []
        self.pushed = 0

    def push(self, time: int, kind: int, subject: int) -> int:
        """Add an event of a subject; its number."""
        number = self.pushed = self.pushed + 1
        heappush(self.heap, (time, number, kind, subject))
        return number
