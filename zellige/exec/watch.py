"""Exchanges that never end, on devices where waiting for one only orders a stream.

Under gloo ``wait`` blocks and raises. Under NCCL it returns at once, and a peer that is gone shows as a kernel that
never ends: the host blocks at its next synchronisation, and NCCL's own watchdog kills the process without a word about
which rank is missing. The watch polls exchanges from a thread and speaks first.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from zellige.errors import ZelligeError

Alarm = Callable[[Exception, str, tuple[int, ...]], None]
"""What to do about a stuck exchange (its failure, span name and ranks); runs on the watch's thread."""

Explain = Callable[[Exception, str, tuple[int, ...]], ZelligeError]


class Pollable(Protocol):
    """An exchange in flight that can be asked whether it is over."""

    def is_done(self) -> bool:
        """Whether it is over; raises ``RuntimeError`` where it failed."""


class _Flying(NamedTuple):
    pending: Pollable
    operation: str
    ranks: tuple[int, ...]


class ExchangeWatch:
    """Raises ``alarm`` once, when no exchange has ended for ``timeout_s`` while one is in flight, or when one fails.

    Time counts from when an exchange is the oldest in flight, not from when it was enqueued: a host may be far ahead
    of its device. ``timeout_s`` must be shorter than the process group's own, or NCCL ends the process before.
    """

    def __init__(self, timeout_s: float, alarm: Alarm, *, poll_s: float = 0.05) -> None:
        self._timeout_s = timeout_s
        self._alarm = alarm
        self._poll_s = poll_s
        self._flying: deque[_Flying] = deque()
        self._oldest_since = 0.0
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="zellige-watch", daemon=True)
        self._thread.start()

    def follow(self, pending: Pollable, operation: str, ranks: tuple[int, ...]) -> None:
        """Watch an exchange from its start on."""
        with self._lock:
            if not self._flying:
                self._oldest_since = time.monotonic()
            self._flying.append(_Flying(pending, operation, ranks))

    def close(self) -> None:
        """End the thread; exchanges in flight are no longer watched."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(self._poll_s):
            stuck = self._look()
            if stuck is not None:
                failure, flying = stuck
                self._alarm(failure, flying.operation, flying.ranks)
                return

    def _look(self) -> tuple[Exception, _Flying] | None:
        """Drop what is over; the oldest in flight, if it failed or has been the oldest for too long."""
        with self._lock:
            while self._flying:
                oldest = self._flying[0]
                try:
                    done = oldest.pending.is_done()
                except RuntimeError as error:
                    return error, oldest
                if not done:
                    break
                self._flying.popleft()
                self._oldest_since = time.monotonic()
            if self._flying and time.monotonic() - self._oldest_since > self._timeout_s:
                return TimeoutError(f"no exchange has ended for {self._timeout_s:g} s"), self._flying[0]
        return None


def end_process(explain: Explain) -> Alarm:
    """An alarm that prints the explained error and ends the process with its exit status.

    The main thread may hang in the driver for ever, so that no exception would ever be seen there.
    """

    def alarm(failure: Exception, operation: str, ranks: tuple[int, ...]) -> None:
        error = explain(failure, operation, ranks)
        print(error, file=sys.stderr, flush=True)
        os._exit(error.exit_code)

    return alarm
