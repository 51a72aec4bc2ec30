"""The CUDA kernels' calls, on CPU: through torch's dispatcher and its schema, with values.

What these tests cannot show is what CUDA code answers: ``tests/gpu/run.py`` does.
"""

from __future__ import annotations

import sys

import pytest
import torch
from oracle.cuda_emulation import aten_flash, flash_attn_package
from oracle.engine_reference import ENGINES, Tensors, random_inputs, random_program, scatter
from torch import Tensor

from zellige.errors import KernelError
from zellige.exec import cuda_kernels
from zellige.exec.cuda_kernels import AtenFlash, FlashAttn, cuda_kernel
from zellige.exec.kernels import CpuFlash, Kernel, Packing
from zellige.exec.loopback import Loopback
from zellige.program import Program

SCHEMA_2_11_FORWARD = (
    "aten::_flash_attention_forward(Tensor query, Tensor key, Tensor value, Tensor? cum_seq_q, Tensor? cum_seq_k, "
    "SymInt max_q, SymInt max_k, float dropout_p, bool is_causal, bool return_debug_mask, *, float? scale=None, "
    "SymInt? window_size_left=None, SymInt? window_size_right=None, Tensor? seqused_k=None, "
    "Tensor? alibi_slopes=None) -> (Tensor output, Tensor softmax_logsumexp, Tensor rng_state, Tensor unused, "
    "Tensor debug_attn_mask)"
)
SCHEMA_2_11_BACKWARD = (
    "aten::_flash_attention_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, "
    "Tensor logsumexp, Tensor cum_seq_q, Tensor cum_seq_k, SymInt max_q, SymInt max_k, float dropout_p, "
    "bool is_causal, Tensor rng_state, Tensor unused, *, float? scale=None, SymInt? window_size_left=None, "
    "SymInt? window_size_right=None) -> (Tensor, Tensor, Tensor)"
)


@pytest.mark.parametrize(
    ("operator", "older"),
    [
        (torch.ops.aten._flash_attention_forward, SCHEMA_2_11_FORWARD),
        (torch.ops.aten._flash_attention_backward, SCHEMA_2_11_BACKWARD),
    ],
)
def test_the_installed_operators_take_what_torch_2_11_takes(operator: torch._ops.OpOverloadPacket, older: str) -> None:
    """Calls that fit the older schema, as ours do, fit the installed one."""
    schema = operator.default._schema
    assert schema.is_backward_compatible_with(torch._C.parse_schema(older))


def run(program: Program, inputs: list[Tensors], kernel: Kernel) -> list[Tensor]:
    """Output and gradients of every rank, flat."""
    own = [scatter(program, inputs, rank) for rank in range(program.num_ranks)]
    loopback = Loopback(program, kernel, dtype=torch.bfloat16, poison=True)
    outs, saved = loopback.forward([(t.first, t.second, t.third) for t in own])
    grads = loopback.backward(saved, [t.fourth for t in own])
    return [*outs, *(tensor for grad in grads for tensor in grad)]


def programs() -> list[Program]:
    """Plans of all engines whose head_dim the CUDA kernels have code for."""
    found = [random_program(seed, 4, ENGINES[seed % 3]) for seed in range(36)]
    return [program for program in found if program.head_dim == 8 and program.segments]


def test_the_engine_on_torchs_operators_is_the_engine_on_the_cpu_kernel() -> None:
    entries = 0
    for number, program in enumerate(programs()):
        inputs = random_inputs(program, torch.bfloat16, number)
        with aten_flash() as calls:
            found = run(program, inputs, AtenFlash())
        assert all(map(torch.equal, found, run(program, inputs, CpuFlash())))
        entries += sum(number for _, number in calls)
    assert entries > 150


def test_the_engine_on_the_package_is_the_engine_on_the_cpu_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, module in flash_attn_package().items():
        monkeypatch.setitem(sys.modules, name, module)
    for number, program in enumerate(programs()):
        inputs = random_inputs(program, torch.bfloat16, number)
        assert all(map(torch.equal, run(program, inputs, FlashAttn()), run(program, inputs, CpuFlash())))


def test_the_package_is_deterministic_where_torch_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, module in flash_attn_package().items():
        monkeypatch.setitem(sys.modules, name, module)
    q = torch.randn(5, 2, 8, dtype=torch.bfloat16)
    packing = Packing((5,), (5,))
    out, lse = FlashAttn().forward(q, q, q, packing)
    torch.use_deterministic_algorithms(True)
    try:
        again = FlashAttn().backward(out, q, q, q, out, lse, packing)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(map(torch.equal, again, FlashAttn().backward(out, q, q, q, out, lse, packing)))


def test_entries_of_one_query_do_not_take_the_decoding_path() -> None:
    """With grouped heads and a longest entry of one query, CUDA code would forget where entries begin."""
    q, k = torch.randn(3, 4, 8).bfloat16(), torch.randn(9, 2, 8).bfloat16()
    packing = Packing((1, 1, 1), (2, 3, 4))
    with aten_flash():
        out, lse = AtenFlash().forward(q, k, k, packing)
    exact, exact_lse = CpuFlash().forward(q, k, k, packing)
    assert torch.equal(out, exact)
    assert torch.equal(lse, exact_lse)


def test_a_padded_log_sum_exp_is_refused_and_not_misread(monkeypatch: pytest.MonkeyPatch) -> None:
    """``[entries, heads, longest]`` is what torch gave before it gave ``[heads, queries]``."""
    q = torch.zeros(6, 2, 8, dtype=torch.bfloat16)
    padded = torch.zeros(2, 2, 3)

    def older(*_: object) -> tuple[Tensor, ...]:
        return q, padded, padded, padded, padded

    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", older)
    with pytest.raises(KernelError, match="gave a log-sum-exp") as caught:
        AtenFlash().forward(q, q, q, Packing((3, 3), (3, 3)))
    assert "[2, 6]" in str(caught.value)


def test_version_four_of_the_package_alone_is_not_taken_for_version_two(monkeypatch: pytest.MonkeyPatch) -> None:
    present: set[str] = {"flash_attn"}
    monkeypatch.setattr(cuda_kernels.importlib.util, "find_spec", lambda name: name if name in present else None)
    assert cuda_kernel().name == "aten-flash"
    present.add("flash_attn_2_cuda")
    assert cuda_kernel().name == "flash-attn"
