"""All ranks of a program in one process, one after another, on one device: exchanges are copies.

Every engine test runs this way without processes, and one GPU can check a program for many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from zellige.errors import CyclicWaitError, WireBytesError
from zellige.exec.attention import expected_bytes, make_layer
from zellige.exec.kernels import Kernel
from zellige.exec.lanes import InLine, Lanes
from zellige.exec.passes import BackwardPass, ForwardPass, Saved
from zellige.exec.phases import Issue, Request, walk
from zellige.program import Program
from zellige.program_parts import Pass

Tensors = tuple[Tensor, Tensor, Tensor]


class Moved(NamedTuple):
    """What a pass moved between ranks: exchanges that any rank entered, and bytes between different ranks."""

    exchanges: int
    sent_bytes: int


class Loopback:
    """The engine for every rank of a program at once.

    ``poison`` fills receive buffers with NaN beforehand. ``late`` copies an exchange at the last moment, when a rank
    waits for it, as a slow network would. ``lanes`` says where whole sequences run.
    """

    def __init__(
        self,
        program: Program,
        kernel: Kernel,
        *,
        dtype: torch.dtype,
        device: torch.device | None = None,
        poison: bool = False,
        late: bool = False,
        lanes: Callable[[], Lanes] = InLine,
    ) -> None:
        self.program = program
        self.dtype = dtype
        self._late = late
        self.layers = [
            make_layer(program, rank, kernel, dtype, device or torch.device("cpu"), poison=poison, lanes=lanes())
            for rank in range(program.num_ranks)
        ]
        self.moved: dict[Pass, Moved] = {}

    def forward(self, inputs: Sequence[Tensors]) -> tuple[list[Tensor], list[Saved]]:
        """Outputs of every rank's tokens from every rank's (Q, K, V), and what :meth:`backward` needs."""
        works = [ForwardPass(layer, *qkv) for layer, qkv in zip(self.layers, inputs, strict=True)]
        self._drive("forward", [walk(layer, work) for layer, work in zip(self.layers, works, strict=True)])
        saved = [work.saved() for work in works]
        return [kept.out for kept in saved], saved

    def backward(self, saved: Sequence[Saved], grads: Sequence[Tensor]) -> list[Tensors]:
        """Gradients of every rank's (Q, K, V)."""
        works = []
        for layer, kept, grad in zip(self.layers, saved, grads, strict=True):
            works.append(BackwardPass(layer, Saved.from_tensors(layer, kept.tensors()), grad))
        self._drive("backward", [walk(layer, work) for layer, work in zip(self.layers, works, strict=True)])
        return [work.gradients() for work in works]

    def _drive(self, phase: Pass, walks: Sequence[Iterator[Request]]) -> None:
        """Run every rank as far as it gets; an exchange is copied when all of its ranks have entered it."""
        entered: dict[int, dict[int, Issue]] = {}
        done: set[int] = set()
        waiting: dict[int, int] = {}
        running = dict(enumerate(walks))
        sent = 0
        while running:
            before = (len(running), len(done), sum(map(len, entered.values())))
            for rank in list(running):
                if waiting.get(rank) in done:
                    del waiting[rank]
                while rank not in waiting:
                    step = next(running[rank], None)
                    if step is None:
                        del running[rank]
                        break
                    if isinstance(step, Issue):
                        entered.setdefault(step.exchange, {})[rank] = step
                    elif step.exchange not in done:
                        waiting[rank] = step.exchange
                    complete = len(entered.get(step.exchange, {})) == self._size(step.exchange)
                    if step.exchange not in done and complete and not (self._late and isinstance(step, Issue)):
                        sent += self._copy(entered.pop(step.exchange), self.program.exchanges[step.exchange].ranks)
                        done.add(step.exchange)
                        waiting = {who: what for who, what in waiting.items() if what not in done}
            if running and before == (len(running), len(done), sum(map(len, entered.values()))):
                raise self._stuck(phase, waiting)
        self._compare(phase, Moved(len(done), sent))

    def _size(self, exchange: int) -> int:
        return len(self.program.exchanges[exchange].ranks)

    def _copy(self, entered: dict[int, Issue], ranks: tuple[int, ...]) -> int:
        """Move the rows of one exchange; returns the bytes between different ranks."""
        outgoing = {rank: torch.split(step.send, list(step.send_counts)) for rank, step in entered.items()}
        sent = 0
        for place, rank in enumerate(ranks):
            step = entered[rank]
            for part, source in zip(torch.split(step.receive, list(step.receive_counts)), ranks, strict=True):
                part.copy_(outgoing[source][place])
                sent += part.numel() * part.element_size()
        return sent

    def _compare(self, phase: Pass, moved: Moved) -> None:
        """What moved must be what the program says."""
        due = sum(expected_bytes(self.program, rank, phase, self.dtype)[1] for rank in range(self.program.num_ranks))
        if moved.sent_bytes != due:
            raise WireBytesError(f"{phase} moved {moved.sent_bytes} bytes, where the program says {due}")
        self.moved[phase] = moved

    def _stuck(self, phase: Pass, waiting: dict[int, int]) -> CyclicWaitError:
        return CyclicWaitError(
            f"no rank can go on in {phase}",
            details=tuple(
                f"rank {rank} waits for exchange {self.program.exchanges[index].name}"
                for rank, index in sorted(waiting.items())
            ),
        )
