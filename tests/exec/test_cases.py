"""Symptoms from public threads about context-parallel attention, each as the smallest plan that would show it here.

Numbers are those of the table in docs/engine.md. Rows about processes are tests of ``tests/dist``.
"""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from oracle.engine_reference import Tensors, gather, random_inputs, rms_errors, scatter, whole_attention, worst_error

from zellige.exec.kernels import CpuFlash, Packing
from zellige.exec.loopback import Loopback
from zellige.exec.maps import rank_maps
from zellige.program import Assignment, Heads, Program, build_program
from zellige.program_checks import check_program
from zellige.shards import parse_config


def plan(heads: tuple[int, int, int], *placed: tuple[int, str], num_ranks: int = 0) -> Program:
    """Sequences of (length, configuration), each on the first ranks."""
    assignments = []
    for index, (length, text) in enumerate(placed):
        config = parse_config(text)
        assignments.append(Assignment(f"s{index}", length, config, tuple(range(config.degree))))
    needed = max(assignment.config.degree for assignment in assignments)
    program = build_program(assignments, Heads(*heads), num_ranks=num_ranks or needed)
    check_program(program)
    return program


def run(program: Program, inputs: list[Tensors]) -> list[Tensors]:
    """Output and gradients of every sequence, with poisoned receive buffers."""
    own = [scatter(program, inputs, rank) for rank in range(program.num_ranks)]
    loopback = Loopback(program, CpuFlash(), dtype=inputs[0].first.dtype, poison=True)
    outs, saved = loopback.forward([(t.first, t.second, t.third) for t in own])
    grads = loopback.backward(saved, [t.fourth for t in own])
    return gather(program, [Tensors(out, *grad) for out, grad in zip(outs, grads, strict=True)])


def assert_exact(program: Program) -> None:
    """fp64 to 1e-9 and fp32 to 1e-5 of attention that nobody split, forward and backward."""
    for dtype, limit in ((torch.float64, 1e-9), (torch.float32, 1e-5)):
        inputs = random_inputs(program, dtype)
        assert worst_error(run(program, inputs), [whole_attention(t) for t in inputs]) < limit


CUTS = [b - a for a, b in zip((0, 9, 17, 25, 37, 45), (9, 17, 25, 37, 45, 57), strict=True)]

EXACT = {
    "1 a length that the ranks do not divide": plan((4, 4, 8), (9, "h2")),
    "2 an odd length beside an even one, q": plan((2, 2, 8), (4, "q2"), (3, "q2")),
    "2 an odd length beside an even one, k": plan((2, 2, 8), (4, "k2"), (3, "k2")),
    "4 very short sequences, q": plan((2, 2, 8), *[(length, "q2") for length in CUTS]),
    "4 very short sequences, k": plan((2, 2, 8), *[(length, "k2") for length in CUTS]),
    "5 ranks of a set without a token": plan((2, 2, 8), (1, "q4")),
    "5 ring ranks without a token": plan((2, 2, 8), (1, "k4"), (2, "q2k2")),
    "7 sequences shorter than a multiple of the degree": plan((2, 2, 8), (7, "q4"), (7, "q4"), (2, "q4")),
    "8 shards of unequal size": plan((1, 1, 8), (2999, "q4")),
    "10 bidirectional attention, q and k": plan((2, 2, 8), (24, "q2k2")),
    "11 a length of the degree times two": plan((1, 1, 4), (4, "q2"), (1, "q2")),
    "14 local heads that the degree does not divide": plan((12, 12, 4), (20, "h4")),
    "16 K/V heads that the degree does not divide": plan((28, 7, 4), (11, "h2"), (10, "h2k2"), (5, "h3")),
}


@pytest.mark.parametrize("case", EXACT)
def test_exact(case: str) -> None:
    assert_exact(EXACT[case])


def test_5_a_shard_of_loss_weight_0_gives_no_nan() -> None:
    program = plan((2, 2, 8), (10, "q2"), (7, "k2"))
    inputs = random_inputs(program, torch.float64)
    for tensors in inputs:
        tensors.fourth[: len(tensors.fourth) // 2] = 0
    assert worst_error(run(program, inputs), [whole_attention(t) for t in inputs]) < 1e-9


def test_13_two_models_in_one_process() -> None:
    programs = [plan((12, 12, 4), (18, "h4")), plan((6, 3, 4), (18, "h2"))]
    for program in programs + programs[::-1]:
        assert_exact(program)


def test_17_maps_belong_to_a_program_and_not_to_sizes_of_one_rank() -> None:
    """Rank 0 owns five tokens of both; the others do not."""
    first, second = plan((2, 2, 4), (10, "q2")), plan((2, 2, 4), (11, "q2"))
    device = torch.device("cpu")
    assert rank_maps(first, 0, 1, device).num_tokens == rank_maps(second, 0, 1, device).num_tokens == 5
    assert rank_maps(first, 0, 1, device) is not rank_maps(second, 0, 1, device)
    assert rank_maps(first, 0, 1, device) is rank_maps(plan((2, 2, 4), (10, "q2")), 0, 1, device)
    for program in (first, second, first):
        assert_exact(program)


def test_26_workers_without_queries_get_no_keys_and_give_no_gradient() -> None:
    program = plan((2, 2, 8), (1, "q4"))
    tasks = [list(program.tasks(rank, 0, 0)) for rank in range(4)]
    assert [len(found) for found in tasks] == [0, 0, 0, 1]
    assert all(exchange.messages == () for exchange in program.exchanges)


def test_26_keys_of_a_rank_that_has_no_queries_still_get_their_gradient() -> None:
    """Two queries on four ring workers: two have keys to give and nothing to ask; a kernel never sees their entry."""

    class Watched(CpuFlash):
        entries: ClassVar[list[tuple[int, int]]] = []

        def backward(self, *arguments: object) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            packing = arguments[-1]
            assert isinstance(packing, Packing)
            self.entries += zip(packing.lengths_q, packing.lengths_k, strict=True)
            return super().backward(*arguments)  # type: ignore[arg-type]

    program = plan((2, 2, 8), (2, "k4"), (3, "q2k2"))
    inputs = random_inputs(program, torch.float64)
    own = [scatter(program, inputs, rank) for rank in range(4)]
    kernel = Watched()
    loopback = Loopback(program, kernel, dtype=torch.float64, poison=True)
    outs, saved = loopback.forward([(t.first, t.second, t.third) for t in own])
    grads = loopback.backward(saved, [t.fourth for t in own])
    found = gather(program, [Tensors(out, *grad) for out, grad in zip(outs, grads, strict=True)])
    assert worst_error(found, [whole_attention(t) for t in inputs]) < 1e-9
    assert kernel.entries
    assert min(min(sizes) for sizes in kernel.entries) > 0


DEGREES = ("whole", "h8", "q8", "k8", "q2h2k2")


@pytest.mark.parametrize("config", DEGREES)
def test_32_the_mean_loss_does_not_depend_on_the_degree(config: str) -> None:
    """With values of 1 everywhere the output is 1, and so is the mean loss: not an eighth of it."""
    program = plan((8, 8, 4), (19, config), (3, config), num_ranks=8)
    ones = [
        Tensors(t.first, t.second, torch.ones_like(t.third), t.fourth) for t in random_inputs(program, torch.float64)
    ]
    elements = sum(t.first.numel() for t in ones)
    own = [scatter(program, ones, rank) for rank in range(8)]
    outs, _ = Loopback(program, CpuFlash(), dtype=torch.float64).forward([(t.first, t.second, t.third) for t in own])
    assert sum((out / elements).sum().item() for out in outs) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("config", DEGREES)
def test_32_parameter_gradients_are_sums_over_ranks(config: str) -> None:
    """Of a projection before attention: what every rank's own tokens give, added up, is what one device gives."""
    program = plan((8, 8, 4), (19, config), (3, config), num_ranks=8)
    width = program.num_heads * program.head_dim
    inputs = random_inputs(program, torch.float64)
    weight = torch.randn(width, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64) / width**0.5

    def projected(hidden: torch.Tensor) -> torch.Tensor:
        return (hidden.reshape(-1, width) @ weight).view(hidden.shape)

    own = [scatter(program, inputs, rank) for rank in range(8)]
    loopback = Loopback(program, CpuFlash(), dtype=torch.float64, poison=True)
    _, saved = loopback.forward([(projected(t.first), t.second, t.third) for t in own])
    gradients = loopback.backward(saved, [t.fourth for t in own])
    shares = [
        t.first.reshape(-1, width).T @ dq.reshape(-1, width) for t, (dq, _, _) in zip(own, gradients, strict=True)
    ]
    wanted = [whole_attention(t._replace(first=projected(t.first))) for t in inputs]
    exact = [t.first.reshape(-1, width).T @ w.second.reshape(-1, width) for t, w in zip(inputs, wanted, strict=True)]
    torch.testing.assert_close(sum(shares), sum(exact), rtol=0, atol=1e-12)
    assert sum(exact).abs().max() > 0.1


@pytest.mark.parametrize("heads", [(4, 4, 16), (4, 2, 16)])
def test_29_narrow_types_do_not_lose_more_with_every_rank(heads: tuple[int, int, int]) -> None:
    alone = plan(heads, (64, "whole"), (37, "whole"))
    inputs = random_inputs(alone, torch.bfloat16)
    wanted = [whole_attention(t) for t in inputs]
    one = rms_errors(run(alone, inputs), wanted)
    for degree in (2, 4, 8):
        for axis in "qk":
            found = rms_errors(run(plan(heads, (64, f"{axis}{degree}"), (37, f"{axis}{degree}")), inputs), wanted)
            assert all(error <= 2 * base for error, base in zip(found, one, strict=True)), (axis, degree)
