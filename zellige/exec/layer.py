"""One transformer layer of a rank inside a training step, in the order of its program: linear work included.

A block comes in two parts around self-attention (:class:`zellige.exec.stage_inputs.Block`). The layer is one autograd
function: its forward walks the program's forward, its backward walks recompute and backward, and differentiates the two
parts stage by stage. So linear work of whole sequences fills the time of exchanges as the program says, in both
directions, and no order is left to autograd. What is kept in between depends on the program's checkpointing mode:

* ``full``: the layer's input; backward runs the whole forward again, exchanges included;
* ``selective``: also what attention needs in backward (Q, K, V, O, log-sum-exp where it was computed) and its output at
  the owner; linear work runs again, no exchange does;
* ``none``: everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from zellige.exec.attention import Engine
from zellige.exec.passes import GroupBackward, GroupForward, GroupWork, Own, OwnGradients
from zellige.exec.phases import walk
from zellige.exec.stage_inputs import Block, LayerInputs, StageInputs
from zellige.exec.stream import RankStream, StageKey
from zellige.memory import Checkpoint
from zellige.program_parts import Op, OpKind, Part, Pass


@dataclass(frozen=True)
class LayerRun:
    """What all layers of a pass share: the engine (with its program and recorder), the rank's stream, its angles."""

    engine: Engine
    stream: RankStream
    cosine: Tensor
    sine: Tensor

    @property
    def checkpoint(self) -> Checkpoint:
        """What is kept from forward to backward."""
        return self.engine.program.checkpoint

    def stage_inputs(self, inputs: LayerInputs, key: StageKey, *, grad: bool) -> tuple[StageInputs, list[Tensor]]:
        """What a block's part gets of a stage, and the leaves of its graph."""
        stage = self.stream.stages[key]
        angles = self.cosine[stage.tokens], self.sine[stage.tokens]
        return inputs.of_stage(stage, angles, self.engine.layer.kernel, grad=grad)

    def layer(self, block: Block, index: int, hidden: Tensor, modulation: Tensor, text: Tensor) -> Tensor:
        """The output of layer ``index`` for the rank's own tokens; every rank must call it, and run its backward."""
        parameters = [parameter for parameter in block.parameters() if parameter.requires_grad]
        result: Tensor = _Layer.apply(  # type: ignore[no-untyped-call]
            self, block, index, hidden, modulation, text, *parameters
        )
        return result


@dataclass
class _Linear:
    """The two graphs of a stage: from its leaves to Q, K, V, and from its leaves and O to the output.

    ``inputs`` are there between the two in forward alone.
    """

    inputs: StageInputs | None
    leaves: list[Tensor]
    before: list[GradientEdge]
    keys: tuple[Tensor, Tensor] | None
    """Own K and V, where ring rounds send them again."""
    out: Tensor | None = None
    after: GradientEdge | None = None


@dataclass
class _Attended:
    """What attention of a batch of whole sequences leaves for backward."""

    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    lse: Tensor


class LayerForward(GroupForward):
    """Forward of a layer (``grad``: with graphs, for a backward to come); also its recomputation."""

    computes: frozenset[OpKind] = frozenset(("attend", "whole", "project", "finish"))

    def __init__(self, run: LayerRun, block: Block, inputs: LayerInputs, phase: Pass, *, grad: bool) -> None:
        super().__init__(run.engine.layer, inputs.hidden.new_empty(0, dtype=run.engine.dtype))
        self.phase = phase
        self.result = torch.empty_like(inputs.hidden)
        self.linear: dict[StageKey, _Linear] = {}
        self.attended: dict[int, _Attended] = {}
        self._run, self._block, self._inputs, self._grad = run, block, inputs, grad

    def compute(self, op: Op) -> None:
        """See :class:`zellige.exec.phases.PassWork`."""
        if op.kind == "attend":
            self.attend(op)
        elif op.kind == "project":
            q, k, v = self.before(("group", op.index))
            self.own[op.index] = Own(q, k, v, torch.empty_like(q))
        elif op.kind == "finish":
            self.after(("group", op.index), self.own[op.index].out)
        else:
            q, k, v = self.before(("whole", op.index))
            packing = self._layer.maps.whole[op.index].packing
            out, lse = self._layer.kernel.forward(q, k, v, packing)
            self.attended[op.index] = _Attended(q, k, v, out, lse)
            self.after(("whole", op.index), out)

    def before(self, key: StageKey) -> tuple[Tensor, Tensor, Tensor]:
        """Q, K and V of a stage, without their graph."""
        inputs, leaves = self._run.stage_inputs(self._inputs, key, grad=self._grad)
        with torch.set_grad_enabled(self._grad):
            q, k, v = (tensor.contiguous() for tensor in self._block.before(inputs))
        sends_again = key[0] == "group" and self._layer.maps.groups[key[1]].layout.rounds > 1
        edges = [get_gradient_edge(tensor) for tensor in (q, k, v)] if self._grad else []
        own = q.detach(), k.detach(), v.detach()
        self.linear[key] = _Linear(inputs, leaves, edges, own[1:] if sends_again else None)
        return own

    def after(self, key: StageKey, out: Tensor) -> None:
        """The output of a stage, put into ``result``."""
        linear = self.linear[key]
        inputs, linear.inputs = linear.inputs, None
        if inputs is None:
            raise AssertionError(f"the output of stage {key} is computed twice")
        linear.out = out.detach().requires_grad_(self._grad)
        with torch.set_grad_enabled(self._grad):
            result = self._block.after(inputs, linear.out)
        self.result[self._run.stream.stages[key].tokens] = result.detach()
        if self._grad:
            linear.after = get_gradient_edge(result)
        else:
            del self.linear[key]

    def kept(self) -> _Kept:
        """What backward needs."""
        return _Kept(self.linear, self.works, self.attended)

    def attention_tensors(self) -> list[Tensor]:
        """What attention needs in backward, and its output at the owner, in a fixed order."""
        flat: list[Tensor] = []
        for group, work in self.works.items():
            flat += [self.own[group].out, work.queries, work.keys[0], work.values[0], *work.out, *work.lse]
        for _, done in sorted(self.attended.items()):
            flat += [done.q, done.k, done.v, done.out, done.lse]
        return flat


@dataclass
class _Kept:
    """Everything between a forward and its backward."""

    linear: dict[StageKey, _Linear]
    works: dict[int, GroupWork]
    attended: dict[int, _Attended]


class LayerRelinear:
    """Recomputation of linear work alone, given what attention left: no exchange."""

    phase: Pass = "recompute"
    computes: frozenset[OpKind] = frozenset(("relinear",))

    def __init__(self, run: LayerRun, block: Block, inputs: LayerInputs, tensors: Sequence[Tensor]) -> None:
        self._again = LayerForward(run, block, inputs, "recompute", grad=True)
        self._outputs: dict[StageKey, Tensor] = {}
        self.done = False
        self._take(run, list(tensors))

    def _take(self, run: LayerRun, tensors: list[Tensor]) -> None:
        """The inverse of :meth:`LayerForward.attention_tensors`."""
        for group, mapped in run.engine.layer.maps.groups.items():
            classes = len(mapped.layout.classes)
            out, queries, keys, values, *by_class = tensors[: 4 + 2 * classes]
            self._outputs["group", group] = out
            work = GroupWork(queries, {0: keys}, {0: values}, by_class[:classes], by_class[classes:])
            self._again.works[group] = work
            del tensors[: 4 + 2 * classes]
        for batch in range(len(run.engine.layer.maps.whole)):
            q, k, v, out, lse = tensors[:5]
            self._outputs["whole", batch] = out
            self._again.attended[batch] = _Attended(q, k, v, out, lse)
            del tensors[:5]

    def compute(self, op: Op | None = None) -> None:
        """All linear work, whatever the operation says; ranks without tokens have none, and call it themselves."""
        del op
        self.done = True
        for key, out in self._outputs.items():
            self._again.before(key)
            self._again.after(key, out)

    def kept(self) -> _Kept:
        """What backward needs."""
        return self._again.kept()

    def source(self, group: int, part: Part) -> Tensor:
        """Nothing travels."""
        raise AssertionError(f"linear work sends no {part.tensor} of group {group}")

    def take(self, group: int, part: Part, buffer: Tensor, index: Tensor) -> None:
        """Nothing travels."""
        raise AssertionError(f"linear work takes no {part.tensor} of group {group}: {buffer.shape}, {index.shape}")

    def add(self, group: int, part: Part, target: Tensor | None, rows: Tensor) -> None:
        """Nothing travels."""
        raise AssertionError(f"linear work adds no {part.tensor} of group {group}: {target}, {rows.shape}")


class LayerBackward(GroupBackward):
    """Backward of a layer: the gradient of its output in; of its inputs and of the block's parameters out."""

    computes: frozenset[OpKind] = frozenset(("attend", "whole", "project", "finish"))

    def __init__(
        self,
        run: LayerRun,
        kept: _Kept,
        modulation: Tensor,
        text: Tensor,
        parameters: Sequence[Tensor],
        grad: Tensor,
    ) -> None:
        super().__init__(run.engine.layer, kept.works, grad.new_empty(0, dtype=run.engine.dtype))
        self._run, self._kept, self._grad = run, kept, grad
        self._parameters = list(parameters)
        self.inputs = LayerInputs(torch.zeros_like(grad), torch.zeros_like(modulation), torch.zeros_like(text))
        self._by_parameter: list[Tensor | None] = [None] * len(self._parameters)

    def parameter_gradients(self) -> list[Tensor]:
        """Gradients of the block's parameters from this rank's tokens: zeros where it has none."""
        pairs = zip(self._by_parameter, self._parameters, strict=True)
        return [torch.zeros_like(parameter) if total is None else total for total, parameter in pairs]

    def compute(self, op: Op) -> None:
        """See :class:`zellige.exec.phases.PassWork`."""
        if op.kind == "attend":
            self.attend(op)
        elif op.kind == "finish":
            linear = self._kept.linear["group", op.index]
            grad = self._after(("group", op.index))
            keys, values = linear.keys or (self._empty, self._empty)
            self.own[op.index] = OwnGradients(grad, keys, values, torch.empty_like(grad))
        elif op.kind == "project":
            self._before(("group", op.index), (self.own.pop(op.index).dq, *self.key_gradients(op.index)))
        else:
            grad, done = self._after(("whole", op.index)), self._kept.attended.pop(op.index)
            packing = self._layer.maps.whole[op.index].packing
            self._before(
                ("whole", op.index),
                self._layer.kernel.backward(grad, done.q, done.k, done.v, done.out, done.lse, packing),
            )

    def _after(self, key: StageKey) -> Tensor:
        """Backward of what follows attention; the gradient of attention's output."""
        linear = self._kept.linear[key]
        if linear.after is None or linear.out is None:
            raise AssertionError(f"the output of stage {key} was not computed")
        grad = self._grad[self._run.stream.stages[key].tokens]
        by_out = self._differentiate(key, linear, [linear.after], [grad], linear.out)
        linear.after = linear.out = None
        return by_out.contiguous()

    def _before(self, key: StageKey, grads: Sequence[Tensor]) -> None:
        """Backward of what precedes attention."""
        linear = self._kept.linear.pop(key)
        self._differentiate(key, linear, linear.before, grads, linear.leaves[0])

    def _differentiate(
        self, key: StageKey, linear: _Linear, outputs: Sequence[GradientEdge], grads: Sequence[Tensor], more: Tensor
    ) -> Tensor:
        """Add the gradients of a stage's inputs and of the parameters; returns that of ``more``."""
        stage = self._run.stream.stages[key]
        wanted = [more, *linear.leaves, *self._parameters]
        by_more, *found = torch.autograd.grad(outputs, wanted, grads, allow_unused=True)
        totals = (
            self.inputs.hidden[stage.tokens],
            self.inputs.modulation[stage.pieces],
            self.inputs.text[stage.text],
        )
        for total, part in zip(totals, found[:3], strict=True):
            if part is not None:
                total.add_(part)
        for number, part in enumerate(found[3:]):
            before = self._by_parameter[number]
            if part is not None:
                self._by_parameter[number] = part if before is None else before + part
        return by_more


class _Layer(torch.autograd.Function):
    """See the module: forward, and recompute with backward, each a walk through the program."""

    @staticmethod
    def forward(
        ctx: Any,
        run: LayerRun,
        block: Block,
        index: int,
        hidden: Tensor,
        modulation: Tensor,
        text: Tensor,
        *parameters: Tensor,
    ) -> Tensor:
        keeps = any(ctx.needs_input_grad)
        inputs = LayerInputs(hidden, modulation, text)
        work = LayerForward(run, block, inputs, "forward", grad=keeps and run.checkpoint == "none")
        run.engine.layer.recorder.layer = index
        run.engine.drive("forward", walk(run.engine.layer, work))
        ctx.run, ctx.block, ctx.index, ctx.parameters = run, block, index, parameters
        ctx.kept = work.kept() if run.checkpoint == "none" else None
        attention = work.attention_tensors() if keeps and run.checkpoint == "selective" else []
        ctx.save_for_backward(modulation, text, *([] if run.checkpoint == "none" else [hidden]), *attention)
        return work.result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        run: LayerRun = ctx.run
        layer = run.engine.layer
        modulation, text, *tensors = ctx.saved_tensors
        layer.recorder.layer = ctx.index
        kept, ctx.kept = ctx.kept, None
        if kept is None:
            kept = _recompute(run, ctx.block, LayerInputs(tensors[0], modulation, text), tensors[1:])
        work = LayerBackward(run, kept, modulation, text, ctx.parameters, grads[0].contiguous())
        run.engine.drive("backward", walk(layer, work))
        found = work.inputs
        return (None, None, None, found.hidden, found.modulation, found.text, *work.parameter_gradients())


def _recompute(run: LayerRun, block: Block, inputs: LayerInputs, attention: Sequence[Tensor]) -> _Kept:
    if run.checkpoint == "full":
        again = LayerForward(run, block, inputs, "recompute", grad=True)
        run.engine.drive("recompute", walk(run.engine.layer, again))
        return again.kept()
    linear = LayerRelinear(run, block, inputs, attention)
    run.engine.drive("recompute", walk(run.engine.layer, linear))
    if not linear.done:
        linear.compute()
    return linear.kept()
