"""Whole sequences beside the rest of a layer, and exchanges that arrive at the last moment: no bit may change."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
import torch
from oracle.engine_reference import ENGINES, Tensors, random_inputs, random_program, scatter
from torch import Tensor

from zellige.exec.kernels import CpuFlash
from zellige.exec.lanes import InLine, Lanes, SideStream
from zellige.exec.loopback import Loopback
from zellige.program import Program


class AtTheEnd:
    """Runs what is put aside as late as it may: at the join, in reverse order."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[], None]] = []

    def aside(self, work: Callable[[], None]) -> None:
        self._waiting.append(work)

    def join(self) -> None:
        for work in reversed(self._waiting):
            work()
        self._waiting = []


class Never(AtTheEnd):
    """A lane that nobody joins."""

    def join(self) -> None:
        self._waiting = []


def run(program: Program, inputs: list[Tensors], lanes: Callable[[], Lanes], *, late: bool) -> list[Tensor]:
    own = [scatter(program, inputs, rank) for rank in range(program.num_ranks)]
    loopback = Loopback(program, CpuFlash(), dtype=inputs[0].first.dtype, poison=True, late=late, lanes=lanes)
    outs, saved = loopback.forward([(t.first, t.second, t.third) for t in own])
    grads = loopback.backward(saved, [t.fourth for t in own])
    return [*outs, *(tensor for grad in grads for tensor in grad)]


@pytest.mark.parametrize("engine", ENGINES)
def test_neither_late_whole_work_nor_late_exchanges_change_a_bit(engine: str) -> None:
    compared = 0
    for seed in range(12):
        program = random_program(seed, 4, next(name for name in ENGINES if name == engine))
        if not program.segments:
            continue
        inputs = random_inputs(program, torch.float32, seed)
        plain = run(program, inputs, InLine, late=False)
        for lanes, late in ((AtTheEnd, False), (InLine, True), (AtTheEnd, True)):
            assert all(map(torch.equal, run(program, inputs, lanes, late=late), plain))
            compared += 1
    assert compared > 20


def test_work_that_is_never_joined_would_be_seen() -> None:
    program = next(p for p in (random_program(seed, 2) for seed in range(50)) if any(r.whole for r in p.ranks))
    inputs = random_inputs(program, torch.float32)
    found, plain = (run(program, inputs, lanes, late=False) for lanes in (Never, InLine))
    assert not all(map(torch.equal, found, plain))


class Stream:
    """A CUDA stream that writes down who waits for whom."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def wait_stream(self, other: Stream) -> None:
        self.log.append(f"{self.name} waits for {other.name}")


def test_a_side_stream_waits_before_it_runs_and_is_waited_for_at_the_join(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    current = [Stream("main", log)]

    @contextlib.contextmanager
    def stream(which: Stream) -> Iterator[None]:
        current.append(which)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "Stream", lambda _: Stream("side", log))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: current[-1])
    monkeypatch.setattr(torch.cuda, "stream", stream)
    lanes = SideStream(torch.device("cuda", 0))
    lanes.aside(lambda: log.append(f"work on {current[-1].name}"))
    log.append(f"more on {current[-1].name}")
    lanes.join()
    assert log == ["side waits for main", "work on side", "more on main", "main waits for side"]
