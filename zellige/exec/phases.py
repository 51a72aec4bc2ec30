"""One attention layer of a rank, forward and backward, as its program says: pack, exchange, compute, unpack.

:func:`walk` goes through the operations of a rank and hands every exchange to whoever drives it: it yields
:class:`Issue` (buffers to send and to fill) and :class:`Wait`. A transport drives one rank per process; the loopback
drives all ranks of a program in one process. Both run this same code.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from zellige.exec.kernels import Kernel
from zellige.exec.lanes import InLine, Lanes
from zellige.exec.maps import RankMaps
from zellige.exec.recorder import Recorder
from zellige.program import Program
from zellige.program_parts import Op, OpKind, Part, Pass


@dataclass(frozen=True)
class Issue:
    """Enter an exchange: units to send by rank, and a buffer for those received by rank, with kept ones behind."""

    exchange: int
    send: Tensor
    send_counts: tuple[int, ...]
    buffer: Tensor
    receive_counts: tuple[int, ...]

    @property
    def receive(self) -> Tensor:
        """The part of the buffer that the exchange fills."""
        return self.buffer[: sum(self.receive_counts)]


@dataclass(frozen=True)
class Wait:
    """Need what an exchange brings."""

    exchange: int


Request = Issue | Wait


@dataclass(frozen=True)
class Layer:
    """What passes need to know: program, rank, maps, kernel, and who records spans.

    ``poison`` fills receive buffers with NaN first, so that a row that is read and never received shows. ``lanes`` says
    where whole sequences run.
    """

    program: Program
    rank: int
    maps: RankMaps
    kernel: Kernel
    recorder: Recorder
    poison: bool = False
    lanes: Lanes = field(default_factory=InLine)


class PassWork(Protocol):
    """What a pass does between exchanges. Rows are ``[rows, head_dim]`` in the compute type."""

    phase: Pass
    computes: frozenset[OpKind]
    """Operations that it computes; attention alone leaves linear work out."""

    def source(self, group: int, part: Part) -> Tensor:
        """All rows that a part may be sent from; of a wider type as units (:mod:`zellige.exec.maps`)."""

    def take(self, group: int, part: Part, buffer: Tensor, index: Tensor) -> None:
        """Rows of a buffer that came in, in the order of the part's targets."""

    def add(self, group: int, part: Part, target: Tensor | None, rows: Tensor) -> None:
        """Gradient units that came back, for distinct target rows (None: for all, in order)."""

    def compute(self, op: Op) -> None:
        """Attention of a ring round, or work that depends on no other rank."""


def walk(layer: Layer, work: PassWork) -> Iterator[Request]:
    """Run a pass, operation by operation; yields what the driver must do."""
    recorder, program = layer.recorder, layer.program
    buffers: dict[int, Tensor] = {}
    for op in program.ranks[layer.rank].ops(work.phase):
        name = program.span(work.phase, op)
        if op.kind == "issue":
            with recorder.span(f"{name}.pack", "copy"):
                request = pack(layer, work, op.index)
                buffers[op.index] = request.buffer
            yield request
        elif op.kind == "wait":
            yield Wait(op.index)
            with recorder.span(f"{name.removesuffix('.wait')}.unpack", "copy"):
                unpack(layer, work, op.index, buffers.pop(op.index))
        elif op.kind == "keep":
            with recorder.span(name, "copy"):
                unpack(layer, work, op.index, pack(layer, work, op.index).buffer)
        elif op.kind == "attend":
            with recorder.span(name, "compute"):
                work.compute(op)
        elif op.kind == "whole":
            layer.lanes.aside(partial(_compute_whole, recorder, name, work, op))
        elif op.kind in work.computes:
            with recorder.span(name, "compute"):
                work.compute(op)
    layer.lanes.join()


def _compute_whole(recorder: Recorder, name: str, work: PassWork, op: Op) -> None:
    with recorder.span(name, "compute"):
        work.compute(op)


def pack(layer: Layer, work: PassWork, index: int) -> Issue:
    """Gather what travels, and what stays, from the sources of an exchange's parts."""
    exchange, entered = layer.maps.exchanges[index], layer.program.exchanges[index]
    sources = [work.source(entered.group, part) for part in entered.parts]
    received, head_dim = exchange.num_received, layer.program.head_dim
    send = sources[0].new_empty((sum(exchange.send_counts), head_dim))
    buffer = sources[0].new_empty((received + exchange.num_staying, head_dim))
    if layer.poison:
        buffer.fill_(torch.nan)
    for whole, picked in ((send, exchange.send), (buffer[received:], exchange.stay)):
        for part, first, units in picked:
            torch.index_select(sources[part], 0, units, out=whole[first : first + len(units)])
    return Issue(index, send, exchange.send_counts, buffer, exchange.receive_counts)


def unpack(layer: Layer, work: PassWork, index: int, buffer: Tensor) -> None:
    """Bring received and kept rows to where they belong."""
    exchange, group = layer.maps.exchanges[index], layer.program.exchanges[index].group
    for part, rows in exchange.gathers.items():
        work.take(group, part, buffer, rows)
    for added in exchange.added:
        for level in added.levels:
            work.add(group, added.part, level.target, buffer.index_select(0, level.source))
