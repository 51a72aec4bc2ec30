"""Attention kernels behind one contract: packed entries in, output and log-sum-exp out; backward from both.

Tokens of all entries are packed: Q is ``[queries, heads, head_dim]``, K and V are ``[keys, kv_heads, head_dim]``, the
log-sum-exp (natural logarithm) is ``[queries, heads]`` in the accumulation type. :class:`Packing` says where entries
begin. ``backward`` takes output and log-sum-exp from outside: with those of *all* keys, what it returns for a part of
the keys is exact. Entries without queries or keys, which kill or poison kernels, never reach one.
"""

from __future__ import annotations

import itertools
import math
from functools import cached_property
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from zellige.errors import KernelError


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type that sums and log-sum-exps are kept in: fp64 for fp64, else fp32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


class Run(NamedTuple):
    """Neighbouring entries of equal sizes, which a kernel may batch: ``entries`` of them, from these tokens on."""

    entries: int
    queries: int
    keys: int
    first_query: int
    first_key: int


class Packing:
    """Where entries begin: ``cu_q`` and ``cu_k`` are cumulative token counts, from 0; raises on an empty entry."""

    def __init__(self, lengths_q: tuple[int, ...], lengths_k: tuple[int, ...]) -> None:
        if len(lengths_q) != len(lengths_k) or min(lengths_q + lengths_k, default=0) < 1:
            raise KernelError(
                "an attention entry without queries or keys",
                details=(f"queries {list(lengths_q)}, keys {list(lengths_k)}",),
                fix="leave empty tasks out of a packing",
            )
        self.lengths_q = lengths_q
        self.lengths_k = lengths_k
        self.cu_q = (0, *itertools.accumulate(lengths_q))
        self.cu_k = (0, *itertools.accumulate(lengths_k))
        self._on_device: dict[torch.device, tuple[Tensor, Tensor]] = {}

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """Entries, with equal neighbours put together."""
        found: list[Run] = []
        sizes = zip(self.lengths_q, self.lengths_k, self.cu_q, self.cu_k, strict=False)
        for queries, keys, first_query, first_key in sizes:
            if found and (found[-1].queries, found[-1].keys) == (queries, keys):
                found[-1] = found[-1]._replace(entries=found[-1].entries + 1)
            else:
                found.append(Run(1, queries, keys, first_query, first_key))
        return tuple(found)

    def on_device(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """``cu_q`` and ``cu_k`` as int32 tensors; made once per device."""
        if device not in self._on_device:
            self._on_device[device] = (
                torch.tensor(self.cu_q, dtype=torch.int32, device=device),
                torch.tensor(self.cu_k, dtype=torch.int32, device=device),
            )
        return self._on_device[device]


class Kernel(Protocol):
    """What the engine asks of attention. ``has_lse`` is False where no log-sum-exp comes out: no ring rounds then."""

    name: str
    has_lse: bool

    def forward(self, q: Tensor, k: Tensor, v: Tensor, packing: Packing) -> tuple[Tensor, Tensor]:
        """Output like Q, and log-sum-exp ``[queries, heads]``; raises :class:`KernelError` for what it cannot do."""

    def backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, packing: Packing
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of Q, K and V, given the gradient of the output and the output and log-sum-exp of all keys."""


def check_inputs(q: Tensor, k: Tensor, v: Tensor, packing: Packing) -> None:
    """Refuse what CPU kernels answer with wrong numbers or a killed process."""
    heads, kv_heads = q.shape[1], k.shape[1]
    fits = q.shape[0] == packing.cu_q[-1] and k.shape[0] == v.shape[0] == packing.cu_k[-1]
    if not fits or kv_heads < 1 or heads % kv_heads or k.shape != v.shape or q.shape[2] != k.shape[2]:
        raise KernelError(
            f"attention of Q {list(q.shape)}, K {list(k.shape)}, V {list(v.shape)}",
            details=(f"packed for {packing.cu_q[-1]} queries and {packing.cu_k[-1]} keys",),
            fix="K/V heads must divide the heads, and sizes must be those of the packing",
        )


class CpuFlash:
    """torch's flash attention on CPU, entry by entry (equal neighbours in one call); fp64, fp32, bf16, fp16."""

    name = "cpu-flash"
    has_lse = True

    def forward(self, q: Tensor, k: Tensor, v: Tensor, packing: Packing) -> tuple[Tensor, Tensor]:
        """See :class:`Kernel`."""
        check_inputs(q, k, v, packing)
        out = torch.empty_like(q)
        lse = q.new_empty(q.shape[:2], dtype=accumulation_dtype(q.dtype))
        operator = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        for run in packing.runs:
            part, run_lse = operator(_queries(q, run), _keys(k, run), _keys(v, run))
            _queries(out, run).copy_(part)
            _queries(lse, run).copy_(run_lse)
        return out, lse

    def backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, packing: Packing
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See :class:`Kernel`."""
        check_inputs(q, k, v, packing)
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        operator = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        for run in packing.runs:
            parts = operator(
                _queries(grad, run),
                _queries(q, run),
                _keys(k, run),
                _keys(v, run),
                _queries(out, run),
                _queries(lse, run),
                0.0,
                False,
            )
            _queries(dq, run).copy_(parts[0])
            _keys(dk, run).copy_(parts[1])
            _keys(dv, run).copy_(parts[2])
        return dq, dk, dv


def _queries(tensor: Tensor, run: Run) -> Tensor:
    """A run's queries as ``[entries, heads, tokens, ...]``, a view."""
    part = tensor[run.first_query : run.first_query + run.entries * run.queries]
    return part.view(run.entries, run.queries, *tensor.shape[1:]).transpose(1, 2)


def _keys(tensor: Tensor, run: Run) -> Tensor:
    """A run's keys as ``[entries, heads, tokens, head_dim]``, a view."""
    part = tensor[run.first_key : run.first_key + run.entries * run.keys]
    return part.view(run.entries, run.keys, *tensor.shape[1:]).transpose(1, 2)


class Reference:
    """Attention by its definition, in fp64 on any device: slow, and obvious."""

    name = "reference"
    has_lse = True

    def forward(self, q: Tensor, k: Tensor, v: Tensor, packing: Packing) -> tuple[Tensor, Tensor]:
        """See :class:`Kernel`."""
        check_inputs(q, k, v, packing)
        out = torch.empty_like(q)
        lse = q.new_empty(q.shape[:2], dtype=accumulation_dtype(q.dtype))
        for queries, keys in _entries(packing):
            scores = _scores(q[queries], k[keys])
            entry_lse = torch.logsumexp(scores, dim=-1)
            weights = torch.exp(scores - entry_lse[..., None])
            out[queries] = torch.einsum("hqk,khd->qhd", weights, _spread(v[keys], q)).to(q.dtype)
            lse[queries] = entry_lse.transpose(0, 1).to(lse.dtype)
        return out, lse

    def backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, packing: Packing
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See :class:`Kernel`."""
        check_inputs(q, k, v, packing)
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        scale = 1 / math.sqrt(q.shape[2])
        for queries, keys in _entries(packing):
            gradient, value = grad[queries].double(), _spread(v[keys], q)
            weights = torch.exp(_scores(q[queries], k[keys]) - lse[queries].double().transpose(0, 1)[..., None])
            delta = (gradient * out[queries].double()).sum(-1).transpose(0, 1)[..., None]
            d_scores = weights * (torch.einsum("qhd,khd->hqk", gradient, value) - delta) * scale
            dq[queries] = torch.einsum("hqk,khd->qhd", d_scores, _spread(k[keys], q)).to(q.dtype)
            dk[keys] = _gather(torch.einsum("hqk,qhd->khd", d_scores, q[queries].double()), k)
            dv[keys] = _gather(torch.einsum("hqk,qhd->khd", weights, gradient), v)
        return dq, dk, dv


def _entries(packing: Packing) -> list[tuple[slice, slice]]:
    queries = [slice(*bounds) for bounds in itertools.pairwise(packing.cu_q)]
    keys = [slice(*bounds) for bounds in itertools.pairwise(packing.cu_k)]
    return list(zip(queries, keys, strict=True))


def _scores(q: Tensor, k: Tensor) -> Tensor:
    scores: Tensor = torch.einsum("qhd,khd->hqk", q.double(), _spread(k, q))
    return scores / math.sqrt(q.shape[2])


def _spread(tensor: Tensor, q: Tensor) -> Tensor:
    """K or V with a head for every query head."""
    spread: Tensor = tensor.double().repeat_interleave(q.shape[1] // tensor.shape[1], dim=1)
    return spread


def _gather(gradient: Tensor, like: Tensor) -> Tensor:
    """The sum over query heads that share a K/V head."""
    summed: Tensor = gradient.view(len(gradient), like.shape[1], -1, like.shape[2]).sum(2)
    return summed.to(like.dtype)


class PlainSdpa:
    """``F.scaled_dot_product_attention``, which keeps its log-sum-exp to itself: for sequences without ring rounds."""

    name = "sdpa"
    has_lse = False

    def forward(self, q: Tensor, k: Tensor, v: Tensor, packing: Packing) -> tuple[Tensor, Tensor]:
        """See :class:`Kernel`; the log-sum-exp is empty."""
        check_inputs(q, k, v, packing)
        out = torch.empty_like(q)
        for run in packing.runs:
            _queries(out, run).copy_(_sdpa(_queries(q, run), _keys(k, run), _keys(v, run)))
        return out, q.new_empty(0)

    def backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, packing: Packing
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See :class:`Kernel`; computes the forward again, for it cannot take a log-sum-exp."""
        check_inputs(q, k, v, packing)
        del out, lse
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        for run in packing.runs:
            inputs = [part.detach().requires_grad_() for part in (_queries(q, run), _keys(k, run), _keys(v, run))]
            with torch.enable_grad():
                again = _sdpa(*inputs)
            parts = torch.autograd.grad(again, inputs, _queries(grad, run))
            for target, part in zip((_queries(dq, run), _keys(dk, run), _keys(dv, run)), parts, strict=True):
                target.copy_(part)
        return dq, dk, dv


def _sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    out: Tensor = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1])
    return out
