"""CUDA flash attention on CPU, for tests: the same signatures and refusals, and values from the CPU kernel.

``aten_flash`` puts it behind torch's own operators, so that arguments pass torch's schema; ``flash_attn_package`` is a
module with the functions of the flash-attn package, as custom operators with its signatures.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Iterator

import torch
from torch import Tensor

from zellige.exec.kernels import CpuFlash, Packing


class Calls(list[tuple[str, int]]):
    """Names of the operators that were called, and how many entries each took."""


def _packing(q: Tensor, k: Tensor, cu_q: Tensor, cu_k: Tensor, max_q: int, max_k: int) -> Packing:
    """What the CUDA code checks before it computes, and what it silently relies on."""
    heads, kv_heads, head_dim = q.shape[1], k.shape[1], q.shape[2]
    for tensor in (q, k):
        assert tensor.dtype in (torch.bfloat16, torch.float16)
        assert tensor.stride(-1) == 1
    for cumulative in (cu_q, cu_k):
        assert cumulative.dtype == torch.int32
        assert cumulative.is_contiguous()
        assert cumulative[0] == 0
    assert head_dim % 8 == 0
    assert head_dim <= 256
    assert heads % kv_heads == 0
    assert (q.shape[0], k.shape[0]) == (cu_q[-1], cu_k[-1])
    packing = Packing(tuple(cu_q.diff().tolist()), tuple(cu_k.diff().tolist()))
    assert max_q >= max(packing.lengths_q)
    assert max_k == max(packing.lengths_k)
    # One query at most: the decoding path, which forgets where entries begin.
    assert max_q > 1
    return packing


def _aten_forward(
    calls: Calls,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_q: Tensor | None,
    cu_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout: float,
    causal: bool,
    debug: bool,
    *,
    scale: float | None = None,
    **more: object,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    assert (dropout, causal, debug, scale, set(more.values()) - {None}) == (0.0, False, False, None, set())
    state = torch.zeros(2, dtype=torch.uint64)
    if cu_q is None or cu_k is None:
        dense = Packing((q.shape[1],) * len(q), (k.shape[1],) * len(k))
        out, lse = CpuFlash().forward(*(t.flatten(0, 1) for t in (q, k, v)), dense)
        lse = lse.view(len(q), -1, q.shape[2]).transpose(1, 2).contiguous()
        return out.view(q.shape), lse, state, q.new_empty(0), q.new_empty(0)
    packing = _packing(q, k, cu_q, cu_k, max_q, max_k)
    calls.append(("forward", len(packing.lengths_q)))
    out, lse = CpuFlash().forward(q, k, v, packing)
    return out, lse.transpose(0, 1).contiguous(), state, q.new_empty(0), q.new_empty(0)


def _aten_backward(
    calls: Calls,
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    cu_q: Tensor | None,
    cu_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout: float,
    causal: bool,
    state: Tensor,
    unused: Tensor,
    *,
    scale: float | None = None,
    **more: object,
) -> tuple[Tensor, Tensor, Tensor]:
    assert (dropout, causal, scale, set(more.values()) - {None}) == (0.0, False, None, set())
    assert (state.dtype, state.shape) == (torch.uint64, (2,))
    if cu_q is None or cu_k is None:
        dense = Packing((q.shape[1],) * len(q), (k.shape[1],) * len(k))
        flat = [t.flatten(0, 1) for t in (grad, q, k, v, out, lse.transpose(1, 2))]
        dq, dk, dv = CpuFlash().backward(*flat, dense)
        return dq.view(q.shape), dk.view(k.shape), dv.view(v.shape)
    assert (lse.dtype, lse.shape, lse.is_contiguous()) == (torch.float32, (q.shape[1], q.shape[0]), True)
    assert out.dtype == grad.dtype == q.dtype
    packing = _packing(q, k, cu_q, cu_k, max_q, max_k)
    calls.append(("backward", len(packing.lengths_q)))
    return CpuFlash().backward(grad, q, k, v, out, lse.transpose(0, 1), packing)


@contextlib.contextmanager
def aten_flash() -> Iterator[Calls]:
    """``aten::_flash_attention_forward`` and its backward on CPU tensors, inside the block."""
    calls = Calls()
    library = torch.library.Library("aten", "IMPL")
    library.impl("_flash_attention_forward", functools.partial(_aten_forward, calls), "CPU")
    library.impl("_flash_attention_backward", functools.partial(_aten_backward, calls), "CPU")
    try:
        yield calls
    finally:
        library._destroy()


@torch.library.custom_op("zellige_tests::varlen_forward", mutates_args=(), device_types="cpu")
def _flash_attn_varlen_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    return_softmax: bool = False,
    block_table: Tensor | None = None,
    leftpad_k: Tensor | None = None,
    seqused_k: Tensor | None = None,
    zero_tensors: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As in versions 2.7 and 2.8 (the last argument came with 2.8)."""
    assert (dropout_p, causal, window_size_left, window_size_right, softcap) == (0.0, False, -1, -1, 0.0)
    assert softmax_scale == q.shape[2] ** -0.5
    packing = _packing(q, k, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    out, lse = CpuFlash().forward(q, k, v, packing)
    return out, lse.transpose(0, 1).contiguous(), q.new_empty(0), torch.zeros(2, dtype=torch.int64)


@torch.library.custom_op("zellige_tests::varlen_backward", mutates_args=("dq", "dk", "dv"), device_types="cpu")
def _flash_attn_varlen_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Tensor | None,
    dk: Tensor | None,
    dv: Tensor | None,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    deterministic: bool,
    rng_state: Tensor | None = None,
    zero_tensors: bool = False,
) -> Tensor:
    """As in versions 2.7 and 2.8 (the last argument came with 2.8)."""
    assert (dropout_p, causal, window_size_left, window_size_right, softcap) == (0.0, False, -1, -1, 0.0)
    assert softmax_scale == q.shape[2] ** -0.5
    assert softmax_lse.is_contiguous()
    assert deterministic == torch.are_deterministic_algorithms_enabled()
    packing = _packing(q, k, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    found = CpuFlash().backward(dout, q, k, v, out, softmax_lse.transpose(0, 1), packing)
    for target, gradient in zip((dq, dk, dv), found, strict=True):
        assert target is not None
        target.copy_(gradient)
    return torch.empty(0)


def flash_attn_package() -> dict[str, types.ModuleType]:
    """Modules to put into ``sys.modules``."""
    package = types.ModuleType("flash_attn")
    interface = types.ModuleType("flash_attn.flash_attn_interface")
    vars(interface).update(
        _flash_attn_varlen_forward=_flash_attn_varlen_forward,
        _flash_attn_varlen_backward=_flash_attn_varlen_backward,
    )
    return {"flash_attn": package, "flash_attn.flash_attn_interface": interface}
