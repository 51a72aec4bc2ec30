"""What an engine refuses before it enters an exchange, without any process."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from zellige.errors import BusyEngineError, KernelError, WireBytesError
from zellige.exec.attention import Engine
from zellige.exec.kernels import CpuFlash
from zellige.program import Assignment, Heads, Program, build_program
from zellige.shards import parse_config


class Nothing:
    """An exchange that brings zeros."""

    def __init__(self, receive: Tensor) -> None:
        self._receive = receive

    def wait(self) -> None:
        self._receive.zero_()


class Lonely:
    """A transport without peers; ``entered`` is set at the first exchange, which then waits for ``may_go``.

    ``forgets`` makes it claim fewer bytes than it was given.
    """

    def __init__(self, *, blocks: bool = False, forgets: bool = False) -> None:
        self.sent_bytes = self.received_bytes = self.exchanges = 0
        self.entered, self.may_go = threading.Event(), threading.Event()
        self._forgets = forgets
        if not blocks:
            self.may_go.set()

    def start(
        self, send: Tensor, send_counts: Sequence[int], receive: Tensor, receive_counts: Sequence[int]
    ) -> Nothing:
        self.entered.set()
        assert self.may_go.wait(20)
        assert (len(send), len(receive)) == (sum(send_counts), sum(receive_counts))
        self.exchanges += 1
        self.sent_bytes += 0 if self._forgets else send.nbytes
        self.received_bytes += receive.nbytes
        return Nothing(receive)


def program() -> Program:
    return build_program([Assignment("clip", 10, parse_config("h2"), (0, 1))], Heads(2, 2, 8), num_ranks=2)


def engine(transport: Lonely) -> Engine:
    return Engine(program(), 0, {(0, 1): transport}, CpuFlash(), dtype=torch.float32)


def qkv() -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = torch.randn(3, 5, 2, 8).unbind()
    return q, k, v


def test_34_a_second_thread_is_refused_while_a_call_runs() -> None:
    transport = Lonely(blocks=True)
    shared = engine(transport)
    first = threading.Thread(target=shared, args=qkv())
    first.start()
    try:
        assert transport.entered.wait(20)
        with pytest.raises(BusyEngineError) as caught:
            shared(*qkv())
        assert caught.value.code == "ZL615"
    finally:
        transport.may_go.set()
        first.join()
    assert transport.exchanges == 2
    assert shared(*qkv()).shape == (5, 2, 8)


def test_bytes_that_are_not_the_programs_are_an_error() -> None:
    with pytest.raises(WireBytesError, match="sent 0 bytes"):
        engine(Lonely(forgets=True))(*qkv())


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("Q", lambda q, k, v: (q[:4], k, v)),
        ("K", lambda q, k, v: (q, k[:, :1], v)),
        ("V", lambda q, k, v: (q, k, v.double())),
    ],
)
def test_tensors_that_are_not_the_programs_are_refused(name: str, change: object) -> None:
    transport = Lonely()
    assert callable(change)
    with pytest.raises(KernelError, match=f"{name} of rank 0"):
        engine(transport)(*change(*qkv()))
    assert transport.exchanges == 0


def test_a_gradient_that_is_one_number_everywhere_is_taken() -> None:
    """``sum()`` hands back a gradient without memory of its own."""
    q, k, v = (tensor.requires_grad_() for tensor in qkv())
    engine(Lonely())(q, k, v).sum().backward()
    assert q.grad is not None
    assert q.grad.shape == q.shape
