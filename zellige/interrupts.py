"""Signals that end a process wait while something is written that must not stay half done."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Let a first SIGINT, SIGTERM or SIGHUP wait until the block is done, also where it fails; a second acts at once.

    Signals that are ignored stay so. Only the main thread can hold them; in another one nothing waits.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        number: handler for number in ENDING if (handler := signal.getsignal(number)) not in (signal.SIG_IGN, None)
    }
    waiting: list[int] = []

    def remember(number: int, _: FrameType | None) -> None:
        signal.signal(number, before[signal.Signals(number)])
        waiting.append(number)

    for number in before:
        signal.signal(number, remember)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for each in waiting:
            signal.raise_signal(each)
