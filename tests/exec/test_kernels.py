"""Kernels against attention by its definition, with outputs and log-sum-exps of parts and of all keys."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from zellige.errors import KernelError
from zellige.exec.cuda_kernels import AtenFlash, cuda_kernel
from zellige.exec.execute import select_kernel
from zellige.exec.kernels import CpuFlash, Kernel, Packing, PlainSdpa, Reference
from zellige.exec.merge import merge_partial

HEADS = [(4, 4), (8, 2), (6, 3), (5, 1)]
SIZES = [((3, 3, 7, 1), (5, 5, 2, 9)), ((4,), (4,)), ((1, 1), (1, 1)), ((2, 6, 2, 2), (3, 1, 3, 3))]


def random_case(
    lengths: tuple[tuple[int, ...], tuple[int, ...]], heads: tuple[int, int], head_dim: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor, Packing]:
    """Q, K, V, a gradient of the output, and the packing."""
    generator = torch.Generator().manual_seed(sum(lengths[0]) + head_dim)
    sizes = [(sum(lengths[0]), heads[0]), (sum(lengths[1]), heads[1]), (sum(lengths[1]), heads[1])]
    q, k, v = (torch.randn(*size, head_dim, generator=generator, dtype=torch.float64).to(dtype) for size in sizes)
    grad = torch.randn(q.shape, generator=generator, dtype=torch.float64).to(dtype)
    return q, k, v, grad, Packing(*lengths)


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("lengths", SIZES)
@pytest.mark.parametrize("head_dim", [1, 8, 20])
def test_cpu_flash_is_the_reference(
    lengths: tuple[tuple[int, ...], tuple[int, ...]], heads: tuple[int, int], head_dim: int
) -> None:
    q, k, v, grad, packing = random_case(lengths, heads, head_dim, torch.float64)
    out, lse = CpuFlash().forward(q, k, v, packing)
    exact, exact_lse = Reference().forward(q, k, v, packing)
    torch.testing.assert_close(out, exact, rtol=0, atol=1e-12)
    torch.testing.assert_close(lse, exact_lse, rtol=0, atol=1e-12)
    found = CpuFlash().backward(grad, q, k, v, out, lse, packing)
    wanted = Reference().backward(grad, q, k, v, out, lse, packing)
    for left, right in zip(found, wanted, strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-11)


@pytest.mark.parametrize("heads", HEADS)
def test_the_reference_is_autograd_through_softmax(heads: tuple[int, int]) -> None:
    q, k, v, grad, packing = random_case(((6,), (9,)), heads, 8, torch.float64)
    leaves = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
    keys, values = (t.repeat_interleave(heads[0] // heads[1], 1) for t in leaves[1:])
    scores = torch.einsum("qhd,khd->hqk", leaves[0], keys) / 8**0.5
    out = torch.einsum("hqk,khd->qhd", torch.softmax(scores, -1), values)
    exact, lse = Reference().forward(q, k, v, packing)
    torch.testing.assert_close(exact, out.detach(), rtol=0, atol=1e-12)
    found = Reference().backward(grad, q, k, v, exact, lse, packing)
    for left, right in zip(found, torch.autograd.grad(out, leaves, grad), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kernel", [CpuFlash(), Reference()])
@pytest.mark.parametrize("heads", HEADS)
def test_backward_of_a_part_of_the_keys_is_exact_with_the_merged_log_sum_exp(
    kernel: Kernel, heads: tuple[int, int]
) -> None:
    q, k, v, grad, packing = random_case(((7,), (11,)), heads, 8, torch.float64)
    out, lse = kernel.forward(q, k, v, packing)
    merged, merged_lse = kernel.forward(q, k[:4], v[:4], Packing((7,), (4,)))
    merged, merged_lse = merge_partial(merged, merged_lse, *kernel.forward(q, k[4:], v[4:], Packing((7,), (7,))))
    torch.testing.assert_close(merged, out, rtol=0, atol=1e-12)
    torch.testing.assert_close(merged_lse, lse, rtol=0, atol=1e-12)
    whole = kernel.backward(grad, q, k, v, out, lse, packing)
    first = kernel.backward(grad, q, k[:4], v[:4], merged, merged_lse, Packing((7,), (4,)))
    second = kernel.backward(grad, q, k[4:], v[4:], merged, merged_lse, Packing((7,), (7,)))
    torch.testing.assert_close(first[0] + second[0], whole[0], rtol=0, atol=1e-11)
    for n in (1, 2):
        torch.testing.assert_close(torch.cat([first[n], second[n]]), whole[n], rtol=0, atol=1e-11)


@pytest.mark.parametrize("heads", [(4, 4), (8, 2)])
def test_a_kernel_without_log_sum_exp_serves_whole_and_gathered_keys(heads: tuple[int, int]) -> None:
    q, k, v, grad, packing = random_case(((3, 3, 7), (5, 5, 2)), heads, 8, torch.float64)
    out, lse = PlainSdpa().forward(q, k, v, packing)
    exact, exact_lse = Reference().forward(q, k, v, packing)
    torch.testing.assert_close(out, exact, rtol=0, atol=1e-12)
    found = PlainSdpa().backward(grad, q, k, v, out, lse, packing)
    wanted = Reference().backward(grad, q, k, v, exact, exact_lse, packing)
    for left, right in zip(found, wanted, strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_narrow_types_keep_their_log_sum_exp_in_fp32(dtype: torch.dtype) -> None:
    q, k, v, _, packing = random_case(((5, 2), (5, 2)), (4, 2), 8, dtype)
    out, lse = CpuFlash().forward(q, k, v, packing)
    _, exact = Reference().forward(q, k, v, packing)
    assert (out.dtype, lse.dtype) == (dtype, torch.float32)
    torch.testing.assert_close(lse, exact, rtol=0, atol=2e-3 if dtype != torch.float32 else 1e-5)


@pytest.mark.parametrize("lengths", [((0, 3), (4, 4)), ((3,), (0,)), ((2, 2), (2,))])
def test_empty_entries_never_reach_a_kernel(lengths: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    with pytest.raises(KernelError, match="without queries or keys"):
        Packing(*lengths)


@pytest.mark.parametrize("heads", [(6, 4), (2, 4), (4, 0)])
def test_heads_that_a_kernel_would_answer_wrongly_are_refused(heads: tuple[int, int]) -> None:
    q, k = torch.zeros(3, heads[0], 8), torch.zeros(3, heads[1], 8)
    for kernel in (CpuFlash(), Reference(), PlainSdpa()):
        with pytest.raises(KernelError, match="attention of Q"):
            kernel.forward(q, k, k, Packing((3,), (3,)))


def test_tokens_beyond_the_packing_are_refused() -> None:
    q, k = torch.zeros(4, 2, 8), torch.zeros(3, 2, 8)
    with pytest.raises(KernelError, match="packed for 3 queries"):
        CpuFlash().forward(q, k, k, Packing((3,), (3,)))


def test_equal_neighbours_are_one_run() -> None:
    packing = Packing((3, 3, 2, 3), (5, 5, 5, 5))
    assert [(run.entries, run.queries, run.first_query) for run in packing.runs] == [(2, 3, 0), (1, 2, 6), (1, 3, 8)]
    assert packing.cu_k == (0, 5, 10, 15, 20)


def test_the_cuda_kernel_speaks_to_torch_with_shapes_that_fit() -> None:
    """On meta tensors: arguments in their places, and the layout of the log-sum-exp. Values need a GPU."""
    q = torch.empty(10, 4, 64, dtype=torch.bfloat16, device="meta")
    k = torch.empty(12, 2, 64, dtype=torch.bfloat16, device="meta")
    packing = Packing((3, 7), (4, 8))
    out, lse = AtenFlash().forward(q, k, k, packing)
    assert (out.shape, lse.shape, lse.dtype) == (q.shape, (10, 4), torch.float32)
    dq, dk, dv = AtenFlash().backward(out, q, k, k, out, lse, packing)
    assert (dq.shape, dk.shape, dv.shape) == (q.shape, k.shape, k.shape)


@pytest.mark.parametrize(("dtype", "head_dim"), [(torch.float32, 64), (torch.bfloat16, 20), (torch.bfloat16, 320)])
def test_the_cuda_kernel_refuses_what_it_has_no_code_for(dtype: torch.dtype, head_dim: int) -> None:
    q = torch.empty(4, 2, head_dim, dtype=dtype, device="meta")
    with pytest.raises(KernelError, match="CUDA flash attention") as caught:
        AtenFlash().forward(q, q, q, Packing((4,), (4,)))
    assert (caught.value.code, caught.value.exit_code) == ("ZL610", 6)


def test_kernels_are_selected_by_device_and_type() -> None:
    assert select_kernel(torch.device("cpu"), torch.bfloat16).name == "cpu-flash"
    assert select_kernel(torch.device("cuda"), torch.float32).name == "reference"
    assert select_kernel(torch.device("cuda"), torch.bfloat16).name == cuda_kernel().name
