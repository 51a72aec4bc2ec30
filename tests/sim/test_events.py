"""The queue: by time, and in the order of pushes within a time."""

from __future__ import annotations

from heapq import heappop

from hypothesis import given
from hypothesis import strategies as st

from zellige.sim.events import EventQueue


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2), st.integers(0, 2**60))))
def test_events_leave_by_time_and_then_as_they_came(events: list[tuple[int, int, int]]) -> None:
    queue = EventQueue()
    numbers = [queue.push(*event) for event in events]
    assert numbers == list(range(1, len(events) + 1))
    taken = [heappop(queue.heap) for _ in events]
    assert [(time, kind, subject) for time, _, kind, subject in taken] == sorted(events, key=lambda event: event[0])
    assert not queue.heap
