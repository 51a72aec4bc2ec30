"""CUDA attention kernels with log-sum-exp: torch's own flash attention, and the flash-attn package where installed.

Both take packed entries in one call. Facts of torch 2.11 to 2.13 (ATen/native/transformers/cuda/attention.cu, read and
checked on meta tensors; not run on a GPU yet): the log-sum-exp is ``[heads, tokens]`` in fp32; a longest entry of one
query would take a decoding path that ignores the packing, so 2 is passed; an entry without keys would get +inf, so none
is ever packed.
"""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor

from zellige.errors import KernelError
from zellige.exec.kernels import Kernel, Packing, check_inputs

MAX_HEAD_DIM = 256


def cuda_kernel() -> Kernel:
    """flash-attn (version 2, whose extension is looked for: version 4 shares the package's name), else torch's."""
    return FlashAttn() if importlib.util.find_spec("flash_attn_2_cuda") else AtenFlash()


def _check(q: Tensor, k: Tensor, v: Tensor, packing: Packing) -> None:
    check_inputs(q, k, v, packing)
    head_dim = q.shape[2]
    if q.dtype not in (torch.bfloat16, torch.float16) or head_dim % 8 or head_dim > MAX_HEAD_DIM:
        raise KernelError(
            f"CUDA flash attention of {q.dtype} with head_dim {head_dim}",
            fix=f"bf16 or fp16, head_dim a multiple of 8 up to {MAX_HEAD_DIM}",
        )


def _longest(packing: Packing) -> tuple[int, int]:
    return max(2, *packing.lengths_q), max(packing.lengths_k)


def _by_query(lse: Tensor, q: Tensor, kernel: str) -> Tensor:
    """A log-sum-exp ``[heads, queries]`` as ``[queries, heads]``; refuses the padded layout of older kernels."""
    if lse.shape != (q.shape[1], q.shape[0]) or lse.dtype != torch.float32:
        raise KernelError(
            f"{kernel} gave a log-sum-exp {list(lse.shape)} in {lse.dtype}",
            details=(f"expected [heads, queries], {[q.shape[1], q.shape[0]]}, in fp32",),
            fix="torch 2.11 or later, flash-attn 2.7 or later",
        )
    return lse.transpose(0, 1)


class AtenFlash:
    """``aten::_flash_attention_forward`` and its backward, which take the output and log-sum-exp of all keys."""

    name = "aten-flash"
    has_lse = True

    def forward(self, q: Tensor, k: Tensor, v: Tensor, packing: Packing) -> tuple[Tensor, Tensor]:
        """See :class:`zellige.exec.kernels.Kernel`."""
        _check(q, k, v, packing)
        cu_q, cu_k = packing.on_device(q.device)
        out, lse, *_ = torch.ops.aten._flash_attention_forward(
            q, k, v, cu_q, cu_k, *_longest(packing), 0.0, False, False
        )
        return out, _by_query(lse, q, self.name)

    def backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, packing: Packing
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See :class:`zellige.exec.kernels.Kernel`. The random state is only read with dropout."""
        _check(q, k, v, packing)
        cu_q, cu_k = packing.on_device(q.device)
        state = torch.zeros(2, dtype=torch.uint64, device=q.device)
        unused = torch.zeros(0, dtype=torch.uint64, device=q.device)
        by_head = lse.transpose(0, 1).contiguous()
        dq, dk, dv = torch.ops.aten._flash_attention_backward(
            grad, q, k, v, out, by_head, cu_q, cu_k, *_longest(packing), 0.0, False, state, unused
        )
        return dq, dk, dv


class FlashAttn:
    """The flash-attn package, version 2.7 and up.

    Its backward is deterministic where ``torch.use_deterministic_algorithms(True)`` asks for it, as torch's own is: the
    price is a copy of dQ in fp32 for every block of multiprocessors that shares an entry and head.
    """

    name = "flash-attn"
    has_lse = True

    def forward(self, q: Tensor, k: Tensor, v: Tensor, packing: Packing) -> tuple[Tensor, Tensor]:
        """See :class:`zellige.exec.kernels.Kernel`."""
        from flash_attn.flash_attn_interface import _flash_attn_varlen_forward

        _check(q, k, v, packing)
        cu_q, cu_k = packing.on_device(q.device)
        scale = q.shape[2] ** -0.5
        out, lse, *_ = _flash_attn_varlen_forward(
            q, k, v, cu_q, cu_k, *_longest(packing), dropout_p=0.0, softmax_scale=scale, causal=False
        )
        return out, _by_query(lse, q, self.name)

    def backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, packing: Packing
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See :class:`zellige.exec.kernels.Kernel`."""
        from flash_attn.flash_attn_interface import _flash_attn_varlen_backward

        _check(q, k, v, packing)
        cu_q, cu_k = packing.on_device(q.device)
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        _flash_attn_varlen_backward(
            grad,
            q,
            k,
            v,
            out,
            lse.transpose(0, 1).contiguous(),
            dq,
            dk,
            dv,
            cu_q,
            cu_k,
            *_longest(packing),
            dropout_p=0.0,
            softmax_scale=q.shape[2] ** -0.5,
            causal=False,
            window_size_left=-1,
            window_size_right=-1,
            softcap=0.0,
            alibi_slopes=None,
            deterministic=torch.are_deterministic_algorithms_enabled(),
        )
        return dq, dk, dv
