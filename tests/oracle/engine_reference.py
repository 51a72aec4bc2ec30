"""Attention that nobody split: every sequence alone, from the definition, differentiated by autograd in fp64.

Also random plans of every shape, and the way from whole sequences to ranks and back by owned tokens alone.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from zellige.placement import Engine
from zellige.program import Assignment, Heads, Program, build_program
from zellige.shards import ParallelConfig

ENGINES: tuple[Engine, ...] = ("coalesced", "per_sequence", "group")


class Tensors(NamedTuple):
    """Q, K, V and the gradient of the output, or output and gradients of Q, K, V: of one sequence, or one rank."""

    first: Tensor
    second: Tensor
    third: Tensor
    fourth: Tensor


def random_program(seed: int, num_ranks: int, engine: Engine = "coalesced") -> Program:
    """Sequences with any split on any ranks: most lengths and heads divide nothing, and some ranks may stay empty."""
    rng = random.Random(seed)
    configs = [
        ParallelConfig(q, h, k)
        for q in range(1, num_ranks + 1)
        for h in range(1, num_ranks // q + 1)
        for k in range(1, num_ranks // (q * h) + 1)
    ]
    num_heads = rng.randint(1, 9)
    num_kv_heads = rng.choice([heads for heads in range(1, num_heads + 1) if num_heads % heads == 0])
    longest = rng.choice((3, 12, 30))
    assignments = []
    for index in range(rng.randint(0, 7)):
        config = rng.choice(configs)
        assignments.append(
            Assignment(f"s{index}", rng.randint(1, longest), config, tuple(rng.sample(range(num_ranks), config.degree)))
        )
    return build_program(
        assignments,
        Heads(num_heads, num_kv_heads, rng.choice((1, 3, 8, 20))),
        num_ranks=num_ranks,
        engine=engine,
    )


def random_inputs(program: Program, dtype: torch.dtype, seed: int = 0) -> list[Tensors]:
    """Q, K, V and the output's gradient of every segment, in ``dtype``."""
    generator = torch.Generator().manual_seed(seed)

    def draw(length: int, heads: int) -> Tensor:
        return torch.randn(length, heads, program.head_dim, generator=generator, dtype=torch.float64).to(dtype)

    return [
        Tensors(
            draw(segment.length, program.num_heads),
            draw(segment.length, program.num_kv_heads),
            draw(segment.length, program.num_kv_heads),
            draw(segment.length, program.num_heads),
        )
        for segment in program.segments
    ]


def whole_attention(inputs: Tensors) -> Tensors:
    """Output and gradients of one unsharded sequence in fp64."""
    q, k, v = (tensor.double().requires_grad_() for tensor in inputs[:3])
    group = q.shape[1] // k.shape[1]
    keys, values = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", q, keys) / q.shape[2] ** 0.5
    out = torch.einsum("hqk,khd->qhd", torch.softmax(scores, -1), values)
    return Tensors(out.detach(), *torch.autograd.grad(out, (q, k, v), inputs.fourth.double()))


def scatter(program: Program, tensors: Sequence[Tensors], rank: int) -> Tensors:
    """A rank's own tokens of every sequence, in the layout of the program."""
    pieces = [[t[start:stop] for t in tensors[index]] for index, (start, stop) in program.pieces(rank)]
    if pieces:
        return Tensors(*(torch.cat(column) for column in zip(*pieces, strict=True)))
    dtype = tensors[0].first.dtype if tensors else torch.float64
    query = torch.zeros(0, program.num_heads, program.head_dim, dtype=dtype)
    key = torch.zeros(0, program.num_kv_heads, program.head_dim, dtype=dtype)
    return Tensors(query, key, key, query)


def gather(program: Program, ranks: Sequence[Tensors]) -> list[Tensors]:
    """Whole sequences from the tokens of all ranks."""
    pieces: dict[int, list[tuple[int, list[Tensor]]]] = {index: [] for index in range(len(program.segments))}
    for rank, tensors in enumerate(ranks):
        first = 0
        for index, (start, stop) in program.pieces(rank):
            pieces[index].append((start, [t[first : first + stop - start] for t in tensors]))
            first += stop - start
        assert all(len(tensor) == first for tensor in tensors)
    return [
        Tensors(*(torch.cat(column) for column in zip(*(parts for _, parts in sorted(found, key=_start)), strict=True)))
        for found in pieces.values()
    ]


def _start(piece: tuple[int, list[Tensor]]) -> tuple[int, int]:
    # Empty pieces start where the next one does: they come first.
    return piece[0], len(piece[1][0])


def worst_error(found: Sequence[Tensors], wanted: Sequence[Tensors]) -> float:
    """The largest difference of any output or gradient, relative to the largest value of its tensor (at least 1)."""
    worst = 0.0
    for left, right in zip(found, wanted, strict=True):
        for a, b in zip(left, right, strict=True):
            difference = (a.double() - b.double()).abs().max().item()
            scale = max(1.0, b.abs().max().item())
            worst = max(worst, difference / scale if difference == difference else float("inf"))
    return worst


def rms_errors(found: Sequence[Tensors], wanted: Sequence[Tensors]) -> list[float]:
    """Root mean square errors of output, dQ, dK and dV over all sequences."""
    return [
        torch.cat([(a[n].double() - b[n]).reshape(-1) for a, b in zip(found, wanted, strict=True)])
        .square()
        .mean()
        .sqrt()
        .item()
        for n in range(4)
    ]
