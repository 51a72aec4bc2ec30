"""What a transformer block gets of one stage of a layer, and what it must offer: two parts around self-attention."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from zellige.exec.kernels import Kernel, Packing
from zellige.exec.stream import Stage


@dataclass(frozen=True)
class StageInputs:
    """What a block's part gets of one stage: ``hidden`` ``[tokens, hidden]``, ``modulation`` ``[pieces, 6, hidden]``.

    ``text`` holds ``[text rows, hidden]``; ``rows`` and ``cross`` are those of :class:`zellige.exec.stream.Stage`.
    Angles of rotary embedding are ``[tokens, head_dim / 2]``.
    """

    hidden: Tensor
    modulation: Tensor
    text: Tensor
    rows: Tensor
    cross: Packing | None
    cosine: Tensor
    sine: Tensor
    kernel: Kernel


class Block(Protocol):
    """A transformer block around self-attention, on packed tokens."""

    def before(self, inputs: StageInputs) -> tuple[Tensor, Tensor, Tensor]:
        """Q, K and V, ``[tokens, heads, head_dim]``."""

    def after(self, inputs: StageInputs, out: Tensor) -> Tensor:
        """The block's output ``[tokens, hidden]``, from attention's."""

    def parameters(self) -> Iterable[torch.nn.Parameter]:
        """All parameters, as :meth:`torch.nn.Module.parameters`."""


@dataclass
class LayerInputs:
    """A layer's inputs on a rank: ``[tokens, hidden]``, ``[pieces, 6, hidden]``, ``[text rows, hidden]``."""

    hidden: Tensor
    modulation: Tensor
    text: Tensor

    def of_stage(
        self, stage: Stage, angles: tuple[Tensor, Tensor], kernel: Kernel, *, grad: bool
    ) -> tuple[StageInputs, list[Tensor]]:
        """The slices of a stage, and the leaves of the graphs to come: hidden, modulation, text."""
        hidden = self.hidden[stage.tokens].detach()
        leaf = hidden.new_empty(()).expand(hidden.shape).requires_grad_(grad)
        modulation = self.modulation[stage.pieces].detach().requires_grad_(grad)
        text = self.text[stage.text].detach().requires_grad_(grad)
        with torch.set_grad_enabled(grad):
            standing: Tensor = _StandIn.apply(leaf, hidden)  # type: ignore[no-untyped-call]
        inputs = StageInputs(
            hidden=standing,
            modulation=modulation,
            text=text,
            rows=stage.rows,
            cross=stage.cross,
            cosine=angles[0],
            sine=angles[1],
            kernel=kernel,
        )
        return inputs, [leaf, modulation, text]


class _StandIn(torch.autograd.Function):
    """The tensor, as a function of a leaf without memory: a graph then keeps the tensor only if its operators do."""

    @staticmethod
    def forward(_: Any, __: Tensor, tensor: Tensor) -> Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def backward(_: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None
