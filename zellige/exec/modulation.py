"""Scale, shift and gate by sequence on packed tokens, and packed cross-attention: what a block does beside GEMMs.

Vectors are ``[pieces, hidden]``, one for each sequence that a rank has tokens of; ``rows`` ``[tokens]`` says which
piece a token is of. A vector for every token would be saved six times a layer; these functions save one for a piece.
Gradients of vectors are sums over a piece's own tokens: of a split sequence every rank gets its part, and the sum over
ranks is what an unsharded sequence gets. Sums run in token order on CPU; on CUDA ``index_add_`` needs
``torch.use_deterministic_algorithms(True)`` for one order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from zellige.exec.kernels import Kernel, Packing, accumulation_dtype


def modulate(tokens: Tensor, scale: Tensor, shift: Tensor, rows: Tensor) -> Tensor:
    """``tokens * (1 + scale) + shift``, each token with the vectors of its piece."""
    result: Tensor = _Modulate.apply(tokens, scale, shift, rows)  # type: ignore[no-untyped-call]
    return result


def gated(residual: Tensor, tokens: Tensor, gate: Tensor, rows: Tensor) -> Tensor:
    """``residual + tokens * gate`` in the gate's type, each token with the vector of its piece."""
    result: Tensor = _Gate.apply(residual, tokens, gate, rows)  # type: ignore[no-untyped-call]
    return result


def packed_attention(kernel: Kernel, packing: Packing | None, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of packed entries on this rank alone, differentiable; ``packing`` is None where there are none."""
    result: Tensor = _PackedAttention.apply(kernel, packing, q, k, v)  # type: ignore[no-untyped-call]
    return result


def sum_rows(tokens: Tensor, rows: Tensor, pieces: int) -> Tensor:
    """Sums over the tokens of each piece, ``[pieces, hidden]``."""
    return tokens.new_zeros((pieces, tokens.shape[1])).index_add_(0, rows, tokens)


class _Modulate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tokens: Tensor, scale: Tensor, shift: Tensor, rows: Tensor) -> Tensor:
        ctx.save_for_backward(tokens, scale, rows)
        return torch.addcmul(shift.index_select(0, rows), tokens, (1 + scale).index_select(0, rows))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        tokens, scale, rows = ctx.saved_tensors
        (grad,), pieces = grads, len(scale)
        by_scale = sum_rows(grad * tokens, rows, pieces)
        return grad * (1 + scale).index_select(0, rows), by_scale, sum_rows(grad, rows, pieces), None


class _Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, residual: Tensor, tokens: Tensor, gate: Tensor, rows: Tensor) -> Tensor:
        ctx.save_for_backward(tokens, gate, rows)
        ctx.residual_dtype = residual.dtype
        return torch.addcmul(residual.to(gate.dtype), tokens.to(gate.dtype), gate.index_select(0, rows))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        tokens, gate, rows = ctx.saved_tensors
        (grad,) = grads
        by_gate = sum_rows(grad * tokens.to(gate.dtype), rows, len(gate))
        by_tokens = (grad * gate.index_select(0, rows)).to(tokens.dtype)
        return grad.to(ctx.residual_dtype), by_tokens, by_gate, None


class _PackedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kernel: Kernel, packing: Packing | None, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ctx.kernel, ctx.packing = kernel, packing
        if packing is None:
            ctx.save_for_backward(q, k, v)
            return torch.zeros_like(q)
        out, lse = kernel.forward(q, k, v, packing)
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None, Tensor, Tensor, Tensor]:
        if ctx.packing is None:
            dq, dk, dv = (torch.zeros_like(tensor) for tensor in ctx.saved_tensors)
            return None, None, dq, dk, dv
        q, k, v, out, lse = ctx.saved_tensors
        return None, None, *ctx.kernel.backward(grads[0].contiguous(), q, k, v, out, lse, ctx.packing)


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tokens: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = tokens.to(_wide(tokens))
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(tokens, weight, scale)
        return (wide * scale * weight).to(tokens.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        tokens, weight, scale = ctx.saved_tensors
        grad = grads[0].to(scale.dtype)
        unit = tokens.to(scale.dtype) * scale
        by_unit = grad * weight
        by_tokens = scale * (by_unit - unit * (by_unit * unit).mean(-1, keepdim=True))
        by_weight = (grad * unit).reshape(-1, len(weight)).sum(0)
        return by_tokens.to(tokens.dtype), by_weight.to(weight.dtype), None


def rms_norm(tokens: Tensor, weight: Tensor, eps: float | None) -> Tensor:
    """Root-mean-square norm over the last axis, saving its input and one number a row; ``eps`` None as in torch."""
    eps = torch.finfo(_wide(tokens)).eps if eps is None else eps
    result: Tensor = _RmsNorm.apply(tokens, weight, eps)  # type: ignore[no-untyped-call]
    return result


def _wide(tokens: Tensor) -> torch.dtype:
    return accumulation_dtype(tokens.dtype)


def rotate(tokens: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary embedding of neighbouring pairs of ``[tokens, heads, head_dim]``; angles ``[tokens, head_dim / 2]``."""
    pairs = tokens.view(*tokens.shape[:-1], tokens.shape[-1] // 2, 2)
    first, second = pairs.unbind(-1)
    cosine, sine = cosine[:, None, :], sine[:, None, :]
    turned = torch.stack((first * cosine - second * sine, first * sine + second * cosine), -1)
    return turned.flatten(-2).type_as(tokens)
