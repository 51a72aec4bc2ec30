"""Forward and backward of one attention layer on a rank: what is computed between exchanges, and what is saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from zellige.exec.kernels import accumulation_dtype
from zellige.exec.layout import HeadClass
from zellige.exec.maps import GroupMap
from zellige.exec.merge import merge_partial
from zellige.exec.phases import Layer
from zellige.program_parts import Op, OpKind, Part, Pass


@dataclass
class GroupWork:
    """A worker's tensors of one group: rows of Q and of each round's K and V; output and log-sum-exp by class."""

    queries: Tensor
    keys: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)
    out: list[Tensor] = field(default_factory=list)
    lse: list[Tensor] = field(default_factory=list)


@dataclass
class Own:
    """The rank's own tokens of a group, ``[tokens, heads, head_dim]``: Q, K and V go out, O comes in."""

    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor


@dataclass
class Saved:
    """What forward leaves for backward: the rank's own tensors, and each group's work (K and V of round 0 only)."""

    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    whole_lse: list[Tensor]
    groups: dict[int, GroupWork]

    def tensors(self) -> list[Tensor]:
        """All of it in a fixed order, for autograd to hold."""
        flat = [self.q, self.k, self.v, self.out, *self.whole_lse]
        for work in self.groups.values():
            flat += [work.queries, work.keys[0], work.values[0], *work.out, *work.lse]
        return flat

    @staticmethod
    def from_tensors(layer: Layer, tensors: Sequence[Tensor]) -> Saved:
        """The inverse of :meth:`tensors`."""
        q, k, v, out, *rest = tensors
        number = len(layer.maps.whole)
        saved = Saved(q, k, v, out, rest[:number], {})
        rest = rest[number:]
        for group, mapped in layer.maps.groups.items():
            classes = len(mapped.layout.classes)
            queries, keys, values, *by_class = rest[: 3 + 2 * classes]
            saved.groups[group] = GroupWork(queries, {0: keys}, {0: values}, by_class[:classes], by_class[classes:])
            rest = rest[3 + 2 * classes :]
        return saved


class GroupForward:
    """Forward of split sequences: exchanges and ring rounds. ``own`` must hold a group before its first exchange."""

    phase: Pass = "forward"

    def __init__(self, layer: Layer, like: Tensor) -> None:
        """``like`` has the type and device of Q, K and V."""
        self._layer = layer
        self._empty = like.new_empty((0, layer.program.head_dim))
        self._wide = accumulation_dtype(like.dtype)
        self.own: dict[int, Own] = {}
        self.works = {group: GroupWork(self._empty) for group in layer.maps.groups}
        for group, mapped in layer.maps.groups.items():
            for head_class in mapped.layout.classes:
                shape = (head_class.num_queries, head_class.key.heads, layer.program.head_dim)
                dtype = self._wide if head_class.key.is_ring else like.dtype
                self.works[group].out.append(like.new_zeros(shape if head_class.key.is_ring else (0,), dtype=dtype))
                self.works[group].lse.append(like.new_full(shape[:2], -torch.inf, dtype=self._wide))

    def source(self, group: int, part: Part) -> Tensor:
        """See :class:`zellige.exec.phases.PassWork`."""
        if part.tensor == "o":
            work = self.works[group]
            work.out = [out.to(self._empty.dtype) for out in work.out]
            return _rows(work.out, self._empty)
        own = self.own[group]
        return _as_rows({"q": own.q, "k": own.k, "v": own.v}[part.tensor])

    def take(self, group: int, part: Part, buffer: Tensor, index: Tensor) -> None:
        """See :class:`zellige.exec.phases.PassWork`."""
        work = self.works[group]
        if part.tensor == "o":
            torch.index_select(buffer, 0, index, out=_as_rows(self.own[group].out))
        elif part.tensor == "q":
            work.queries = buffer.index_select(0, index)
        else:
            (work.keys if part.tensor == "k" else work.values)[part.ring_round] = buffer.index_select(0, index)

    def add(self, group: int, part: Part, target: Tensor | None, rows: Tensor) -> None:
        """See :class:`zellige.exec.phases.PassWork`; nothing is added up in forward."""
        raise AssertionError(f"forward adds no {part.tensor} of group {group}: {target}, {rows.shape}")

    def attend(self, op: Op) -> None:
        """One ring round of a group."""
        work, mapped = self.works[op.index], self._layer.maps.groups[op.index]
        for number, head_class in enumerate(mapped.layout.classes):
            self._attend(work, mapped, number, head_class, op.ring_round)
        if op.ring_round > 0:
            del work.keys[op.ring_round], work.values[op.ring_round]

    def _attend(self, work: GroupWork, mapped: GroupMap, number: int, head_class: HeadClass, t: int) -> None:
        call = head_class.calls[t]
        if call is None:
            return
        chosen = mapped.queries.get((number, t))
        q = _class_rows(work.queries, head_class)
        out, lse = self._layer.kernel.forward(
            q if chosen is None else q.index_select(0, chosen),
            _round_rows(work.keys[t], head_class, t),
            _round_rows(work.values[t], head_class, t),
            call.packing,
        )
        if not head_class.key.is_ring:
            work.out[number], work.lse[number] = out, lse
        elif chosen is None:
            work.out[number], work.lse[number] = merge_partial(work.out[number], work.lse[number], out, lse)
        else:
            before = work.out[number].index_select(0, chosen), work.lse[number].index_select(0, chosen)
            merged, merged_lse = merge_partial(*before, out, lse)
            work.out[number].index_copy_(0, chosen, merged)
            work.lse[number].index_copy_(0, chosen, merged_lse)


class ForwardPass(GroupForward):
    """Forward of attention alone: Q, K and V of all of the rank's own tokens in, output of the same tokens out."""

    computes: frozenset[OpKind] = frozenset(("attend", "whole"))

    def __init__(self, layer: Layer, q: Tensor, k: Tensor, v: Tensor) -> None:
        super().__init__(layer, q)
        self._q, self._k, self._v = q, k, v
        self._out = torch.empty_like(q)
        self._whole_lse: list[Tensor] = [q.new_empty(0) for _ in layer.maps.whole]
        for group, mapped in layer.maps.groups.items():
            tokens = slice(*mapped.tokens)
            self.own[group] = Own(q[tokens], k[tokens], v[tokens], self._out[tokens])

    def saved(self) -> Saved:
        """What backward needs; complete after the walk."""
        return Saved(self._q, self._k, self._v, self._out, self._whole_lse, self.works)

    def compute(self, op: Op) -> None:
        """See :class:`zellige.exec.phases.PassWork`."""
        if op.kind == "attend":
            self.attend(op)
            return
        batch = self._layer.maps.whole[op.index]
        own = slice(*batch.tokens)
        out, self._whole_lse[op.index] = self._layer.kernel.forward(
            self._q[own], self._k[own], self._v[own], batch.packing
        )
        self._out[own] = out


@dataclass
class OwnGradients:
    """The rank's own tokens of a group in backward: dO, and K and V, go out; dQ comes in."""

    grad: Tensor
    k: Tensor
    v: Tensor
    dq: Tensor


class GroupBackward:
    """Backward of split sequences. ``own`` must hold a group before its first exchange."""

    phase: Pass = "backward"

    def __init__(self, layer: Layer, works: dict[int, GroupWork], like: Tensor) -> None:
        """``works`` is what forward left; ``like`` has the type and device of gradients."""
        self._layer = layer
        self._empty = like.new_empty((0, layer.program.head_dim))
        self._wide = accumulation_dtype(like.dtype)
        self.works = works
        self.own: dict[int, OwnGradients] = {}
        self._grad_rows: dict[int, Tensor] = {}
        self._query_gradients: dict[int, list[Tensor]] = {}
        self._round_gradients: dict[tuple[int, Part], list[Tensor]] = {}
        self._sums: dict[tuple[int, str], Tensor] = {}
        for group, mapped in layer.maps.groups.items():
            self._query_gradients[group] = [
                like.new_zeros((c.num_queries, c.key.heads, layer.program.head_dim), dtype=self._wide)
                for c in mapped.layout.classes
            ]

    def key_gradients(self, group: int) -> tuple[Tensor, Tensor]:
        """dK and dV of a group's own tokens; complete once the last exchange is back."""
        tokens = slice(*self._layer.maps.groups[group].tokens)
        shape = (tokens.stop - tokens.start, self._layer.program.num_kv_heads, self._layer.program.head_dim)
        dk, dv = (self._total(group, name).view(shape).to(self._empty.dtype) for name in ("dk", "dv"))
        return dk, dv

    def source(self, group: int, part: Part) -> Tensor:
        """See :class:`zellige.exec.phases.PassWork`."""
        if part.to_worker:
            own = self.own[group]
            return _as_rows({"do": own.grad, "k": own.k, "v": own.v}[part.tensor])
        if part.tensor == "dq":
            return _rows(self._query_gradients.pop(group), self._empty)
        rows = self._round_gradients.pop((group, part), [])
        if not part.is_ring_gradient:
            return _rows(rows, self._empty)
        wide = _rows(rows, self._empty.to(self._wide))
        return wide.view(self._empty.dtype).reshape(-1, self._empty.shape[1])

    def take(self, group: int, part: Part, buffer: Tensor, index: Tensor) -> None:
        """See :class:`zellige.exec.phases.PassWork`."""
        work = self.works[group]
        if part.tensor == "do":
            self._grad_rows[group] = buffer.index_select(0, index)
        elif part.tensor == "dq":
            torch.index_select(buffer, 0, index, out=_as_rows(self.own[group].dq))
        else:
            (work.keys if part.tensor == "k" else work.values)[part.ring_round] = buffer.index_select(0, index)

    def add(self, group: int, part: Part, target: Tensor | None, rows: Tensor) -> None:
        """See :class:`zellige.exec.phases.PassWork`. Targets are distinct, so the sum has one order on any device."""
        if part.is_ring_gradient:
            rows = rows.view(-1, rows.shape[1] * self._wide.itemsize // rows.element_size()).view(self._wide)
        rows = rows.to(self._wide)
        if target is None and (group, part.tensor) not in self._sums:
            self._sums[group, part.tensor] = rows
        elif target is None:
            self._sums[group, part.tensor].add_(rows)
        else:
            self._total(group, part.tensor).index_add_(0, target, rows)

    def _total(self, group: int, tensor: str) -> Tensor:
        """The sum of what came back for a group's own tokens, zeros before anything has."""
        if (group, tensor) not in self._sums:
            start, stop = self._layer.maps.groups[group].tokens
            rows = (stop - start) * self._layer.program.num_kv_heads
            self._sums[group, tensor] = self._empty.new_zeros((rows, self._empty.shape[1]), dtype=self._wide)
        return self._sums[group, tensor]

    def attend(self, op: Op) -> None:
        """One ring round of a group."""
        for number, head_class in enumerate(self._layer.maps.groups[op.index].layout.classes):
            self._attend(op.index, number, head_class, op.ring_round)
        work = self.works[op.index]
        del work.keys[op.ring_round], work.values[op.ring_round]

    def _attend(self, group: int, number: int, head_class: HeadClass, t: int) -> None:
        call, work = head_class.calls[t], self.works[group]
        if call is None:
            return
        chosen = self._layer.maps.groups[group].queries.get((number, t))

        def pick(tensor: Tensor) -> Tensor:
            return tensor if chosen is None else tensor.index_select(0, chosen)

        dq, dk, dv = self._layer.kernel.backward(
            pick(_class_rows(self._grad_rows[group], head_class)),
            pick(_class_rows(work.queries, head_class)),
            _round_rows(work.keys[t], head_class, t),
            _round_rows(work.values[t], head_class, t),
            pick(work.out[number]),
            pick(work.lse[number]),
            call.packing,
        )
        total = self._query_gradients[group]
        if not head_class.key.is_ring:
            total[number] = dq
        elif chosen is None:
            total[number] += dq
        else:
            total[number].index_add_(0, chosen, dq.to(self._wide))
        self._round_gradients.setdefault((group, Part("dk", t)), []).append(dk)
        self._round_gradients.setdefault((group, Part("dv", t)), []).append(dv)


class BackwardPass(GroupBackward):
    """Backward of attention alone: the gradient of the output of the rank's own tokens in, those of Q, K and V out."""

    computes: frozenset[OpKind] = frozenset(("attend", "whole"))

    def __init__(self, layer: Layer, saved: Saved, grad: Tensor) -> None:
        super().__init__(layer, saved.groups, grad)
        self._saved = saved
        self._grad = grad
        self.dq, self.dk, self.dv = torch.empty_like(saved.q), torch.empty_like(saved.k), torch.empty_like(saved.v)
        for group, mapped in layer.maps.groups.items():
            tokens = slice(*mapped.tokens)
            self.own[group] = OwnGradients(grad[tokens], saved.k[tokens], saved.v[tokens], self.dq[tokens])

    def gradients(self) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of Q, K and V; complete after the walk."""
        for group, mapped in self._layer.maps.groups.items():
            tokens = slice(*mapped.tokens)
            self.dk[tokens], self.dv[tokens] = self.key_gradients(group)
        return self.dq, self.dk, self.dv

    def compute(self, op: Op) -> None:
        """See :class:`zellige.exec.phases.PassWork`."""
        if op.kind == "attend":
            self.attend(op)
            return
        saved = self._saved
        batch = self._layer.maps.whole[op.index]
        own = slice(*batch.tokens)
        self.dq[own], self.dk[own], self.dv[own] = self._layer.kernel.backward(
            self._grad[own],
            saved.q[own],
            saved.k[own],
            saved.v[own],
            saved.out[own],
            saved.whole_lse[op.index],
            batch.packing,
        )


def _as_rows(tensor: Tensor) -> Tensor:
    """Rows of head_dim elements of contiguous tokens, a view."""
    return tensor.view(-1, tensor.shape[2])


def _class_rows(rows: Tensor, head_class: HeadClass) -> Tensor:
    """A class's ``[queries, heads, head_dim]`` among the query rows of all classes, a view."""
    part = rows[head_class.first_row : head_class.first_row + head_class.num_rows]
    return part.view(head_class.num_queries, head_class.key.heads, rows.shape[1])


def _round_rows(rows: Tensor, head_class: HeadClass, t: int) -> Tensor:
    """A class's ``[keys, kv_heads, head_dim]`` among the K (or V) rows of all classes in a round, a view."""
    first = head_class.first_kv_row[t]
    part = rows[first : first + head_class.kv_rows(t)]
    return part.view(-1, head_class.key.kv_heads, rows.shape[1])


def _rows(tensors: list[Tensor], like: Tensor) -> Tensor:
    """Rows of all classes, in the type of ``like``."""
    flat = [tensor.reshape(-1, like.shape[-1]).to(like.dtype) for tensor in tensors]
    if len(flat) == 1:
        return flat[0]
    return torch.cat(flat) if flat else like.new_empty((0, like.shape[-1]))
