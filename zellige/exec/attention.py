"""The engine: one attention layer of a rank as one differentiable function, exchanges and all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from zellige.errors import BusyEngineError, KernelError, WireBytesError, ZelligeError
from zellige.exec.kernels import Kernel, accumulation_dtype
from zellige.exec.lanes import InLine, Lanes
from zellige.exec.maps import rank_maps
from zellige.exec.passes import BackwardPass, ForwardPass, Saved
from zellige.exec.phases import Issue, Layer, Request, walk
from zellige.exec.recorder import Recorder
from zellige.exec.transports import Pending, Transport
from zellige.exec.watch import ExchangeWatch
from zellige.program import Program
from zellige.program_parts import PASSES, Pass

Transports = Mapping[tuple[int, ...], Transport]
Explain = Callable[[Exception, str, tuple[int, ...]], ZelligeError]
"""Turns the failure of an exchange (its span name, the ranks that enter it) into an error that names ranks."""


def ring_units(dtype: torch.dtype) -> int:
    """Units that a row of the wider gradient type takes: 2 for bf16 and fp16, whose ring gradients are fp32."""
    return accumulation_dtype(dtype).itemsize // dtype.itemsize


def make_layer(
    program: Program,
    rank: int,
    kernel: Kernel,
    dtype: torch.dtype,
    device: torch.device,
    *,
    recorder: Recorder | None = None,
    poison: bool = False,
    lanes: Lanes | None = None,
) -> Layer:
    """What the passes of a rank need; raises :class:`KernelError` where a kernel cannot serve ring rounds."""
    rings = [segment for segment in program.segments if segment.config.k > 1]
    if rings and not kernel.has_lse:
        raise KernelError(
            f"kernel {kernel.name} gives no log-sum-exp, which ring rounds are merged by",
            where=str(rings[0]),
            fix="a kernel with log-sum-exp, or a plan without k",
        )
    maps = rank_maps(program, rank, ring_units(dtype), device)
    return Layer(program, rank, maps, kernel, recorder or Recorder(rank), poison, lanes or InLine())


def expected_bytes(program: Program, rank: int, phase: Pass, dtype: torch.dtype) -> tuple[int, int, int]:
    """Exchanges, bytes sent and bytes received by a rank in a pass, as the program says."""
    wire, wide = dtype.itemsize, accumulation_dtype(dtype).itemsize
    entered = [op.index for op in program.ranks[rank].ops(phase) if op.kind == "issue"]
    sent = received = 0
    for index in entered:
        for message in program.exchanges[index].messages:
            size = program.message_bytes(message, wire, wide)
            sent += size if message.source == rank else 0
            received += size if message.destination == rank else 0
    return len(entered), sent, received


class Engine:
    """Attention of one rank's tokens under a program; call it once a layer, on every rank that the program names.

    ``transports`` maps the ranks that enter an exchange to the communicator among them. Tokens are packed in the order
    of :meth:`zellige.program.Program.pieces`; ranks without tokens take part with ``[0, heads, head_dim]`` tensors, and
    must run backward too. ``lanes`` says where whole sequences run; ``watch`` follows exchanges where waiting for one
    does not block the host (NCCL).
    """

    def __init__(
        self,
        program: Program,
        rank: int,
        transports: Transports,
        kernel: Kernel,
        *,
        dtype: torch.dtype,
        device: torch.device | None = None,
        recorder: Recorder | None = None,
        explain: Explain | None = None,
        lanes: Lanes | None = None,
        watch: ExchangeWatch | None = None,
    ) -> None:
        self.program = program
        self.rank = rank
        self.dtype = dtype
        self.layer = make_layer(
            program, rank, kernel, dtype, device or torch.device("cpu"), recorder=recorder, lanes=lanes
        )
        self._transports = transports
        self._explain = explain
        self._watch = watch
        self._lock = threading.Lock()
        self._due = {phase: expected_bytes(program, rank, phase, dtype) for phase in PASSES}

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention output ``[tokens, heads, head_dim]`` of the rank's own tokens; differentiable.

        Raises :class:`BusyEngineError` where a call from another thread still runs: exchanges have one order.
        """
        self._check(q, k, v)
        result: Tensor = _Attention.apply(self, q, k, v)  # type: ignore[no-untyped-call]
        return result

    def _check(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        program, tokens = self.program, self.layer.maps.num_tokens
        kv_shape = (tokens, program.num_kv_heads, program.head_dim)
        for name, tensor, shape in (
            ("Q", q, (tokens, program.num_heads, program.head_dim)),
            ("K", k, kv_shape),
            ("V", v, kv_shape),
        ):
            if tuple(tensor.shape) != shape or tensor.dtype != self.dtype:
                raise KernelError(
                    f"{name} of rank {self.rank} is {tensor.dtype} {list(tensor.shape)}",
                    details=(f"the program has {list(shape)}, in {self.dtype}",),
                )

    def drive(self, phase: Pass, steps: Iterator[Request]) -> None:
        """Run the steps of a pass over the transports, and compare the bytes with the program's."""
        if not self._lock.acquire(blocking=False):
            raise BusyEngineError(
                "the engine was called while a call of it still runs",
                fix="call it from one thread: exchanges have one order on every rank",
            )
        try:
            before = self._counted()
            self._run(phase, steps)
            after = self._counted()
        finally:
            self._lock.release()
        moved = tuple(b - a for a, b in zip(before, after, strict=True))
        if moved != self._due[phase]:
            raise WireBytesError(
                f"{phase} of rank {self.rank} made {moved[0]} exchanges, sent {moved[1]} bytes and received {moved[2]}",
                details=("the program says {}, {} and {}".format(*self._due[phase]),),
            )

    def _counted(self) -> tuple[int, int, int]:
        transports = list(self._transports.values())
        return (
            sum(transport.exchanges for transport in transports),
            sum(transport.sent_bytes for transport in transports),
            sum(transport.received_bytes for transport in transports),
        )

    def _run(self, phase: Pass, steps: Iterator[Request]) -> None:
        recorder = self.layer.recorder
        flying: dict[int, tuple[Pending, int, int]] = {}
        for step in steps:
            exchange = self.program.exchanges[step.exchange]
            name = f"{phase}.{self.program.groups[exchange.group].name}.{exchange.name}"
            start = recorder.now()
            try:
                if isinstance(step, Issue):
                    pending = self._transports[exchange.ranks].start(
                        step.send, step.send_counts, step.receive, step.receive_counts
                    )
                    size = step.receive.numel() * step.receive.element_size()
                    flying[step.exchange] = (pending, start, size)
                    if self._watch is not None:
                        self._watch.follow(pending, name, exchange.ranks)
                    recorder.add(f"{name}.enter", "wait", start)
                    continue
                pending, started, size = flying.pop(step.exchange)
                pending.wait()
            except RuntimeError as error:
                if self._explain is None:
                    raise
                raise self._explain(error, name, exchange.ranks) from error
            recorder.add(f"{name}.wait", "wait", start)
            recorder.add(name, "network", started, received=size)


class _Attention(torch.autograd.Function):
    """Forward and backward of a layer. Saves through autograd alone, so that checkpointing sees it."""

    @staticmethod
    def forward(ctx: Any, engine: Engine, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        work = ForwardPass(engine.layer, q.contiguous(), k.contiguous(), v.contiguous())
        engine.drive("forward", walk(engine.layer, work))
        saved = work.saved()
        ctx.save_for_backward(*saved.tensors())
        ctx.engine = engine
        return saved.out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor, Tensor, Tensor]:
        engine: Engine = ctx.engine
        saved = Saved.from_tensors(engine.layer, ctx.saved_tensors)
        work = BackwardPass(engine.layer, saved, grads[0].contiguous())
        engine.drive("backward", walk(engine.layer, work))
        return (None, *work.gradients())
