"""Exchanges that never end, or fail, where waiting for one does not block."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from zellige.errors import MissingRankError
from zellige.exec import watch as watch_module
from zellige.exec.watch import ExchangeWatch, end_process

SOON_S = 20.0


class Exchange:
    """One that is over when it is told so."""

    def __init__(self, *, done: bool = False, fails: bool = False) -> None:
        self.done, self.fails = done, fails

    def is_done(self) -> bool:
        if self.fails:
            raise RuntimeError("NCCL communicator was aborted")
        return self.done


class Alarm:
    """Keeps what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, tuple[int, ...]]] = []
        self.raised = threading.Event()

    def __call__(self, failure: Exception, operation: str, ranks: tuple[int, ...]) -> None:
        self.told.append((str(failure), operation, ranks))
        self.raised.set()


def test_the_oldest_exchange_in_flight_is_named() -> None:
    alarm = Alarm()
    watch = ExchangeWatch(0.2, alarm, poll_s=0.01)
    watch.follow(Exchange(done=True), "forward.split.in0", (0, 1))
    watch.follow(Exchange(), "forward.split.back", (0, 1, 2))
    watch.follow(Exchange(done=True), "backward.split.in0", (0, 1))
    assert alarm.raised.wait(SOON_S)
    watch.close()
    assert alarm.told == [("no exchange has ended for 0.2 s", "forward.split.back", (0, 1, 2))]


def test_an_exchange_that_fails_is_named_at_once() -> None:
    alarm = Alarm()
    watch = ExchangeWatch(1000, alarm, poll_s=0.01)
    watch.follow(Exchange(fails=True), "forward.split.in0", (0, 1))
    assert alarm.raised.wait(SOON_S)
    watch.close()
    assert alarm.told == [("NCCL communicator was aborted", "forward.split.in0", (0, 1))]


def test_a_host_that_is_far_ahead_of_its_device_raises_no_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six exchanges are enqueued at once and end one by one, four seconds apart: 24 seconds with a time-out of five."""
    now = [100.0]
    monkeypatch.setattr(watch_module.time, "monotonic", lambda: now[0])
    watch = ExchangeWatch(5, Alarm(), poll_s=1000)
    flying = [Exchange() for _ in range(6)]
    for exchange in flying:
        watch.follow(exchange, "forward.split.in0", (0, 1))
    for exchange in flying[:5]:
        now[0] += 4
        assert watch._look() is None
        exchange.done = True
        assert watch._look() is None
    now[0] += 6
    stuck = watch._look()
    assert stuck is not None
    assert stuck[1].pending is flying[5]
    watch.close()


def test_a_process_ends_with_the_explained_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)

    def explain(failure: Exception, operation: str, ranks: tuple[int, ...]) -> MissingRankError:
        return MissingRankError(f"rank {ranks[-1]} did not come to {operation}", details=(str(failure),))

    end_process(explain)(TimeoutError("no exchange has ended for 5 s"), "forward.split.in0", (0, 3))
    assert ended == [6]
    sys.stderr.flush()
    assert "error[ZL613] rank 3 did not come to forward.split.in0" in capsys.readouterr().err
