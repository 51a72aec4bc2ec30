"""Training without any plan: one process, sequence by sequence, the loss summed by its definition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from zellige.catalog import load_model
from zellige.exec.attention import Engine
from zellige.exec.data import SequenceShape, draw_sample, rank_batch, to_patches, token_positions
from zellige.exec.dit import PackedDit, resized
from zellige.exec.execute import DTYPES
from zellige.exec.kernels import CpuFlash, accumulation_dtype
from zellige.exec.layer import LayerRun
from zellige.exec.step import TrainingPlan
from zellige.exec.stream import rank_stream
from zellige.exec.training import TrainingRun
from zellige.exec.wan import make_wan
from zellige.memory import Checkpoint
from zellige.model import ModelSpec
from zellige.placement import Engine as EngineName
from zellige.program import Assignment, Heads, Program, build_program
from zellige.shards import parse_config

Placed = dict[str, tuple[str, tuple[int, ...]]]
"""Configuration and ranks of every sequence."""

GRIDS = {"film": (3, 4, 6), "clip": (2, 4, 4), "image": (1, 4, 5), "icon": (1, 3, 5)}
"""Frames, rows and columns: lengths 72, 32, 20 and 15, which little divides."""


class Curve(NamedTuple):
    """Losses of all steps, and the gradients of the first by parameter name."""

    losses: list[float]
    gradients: dict[str, Tensor]


def tiny_model(name: str = "wan2.1-t2v-1.3b") -> ModelSpec:
    """A catalog model with two layers of heads of 16."""
    return resized(load_model(name), "tiny")


def make_plan(
    model: ModelSpec,
    placed: Placed,
    num_ranks: int,
    *,
    checkpoint: Checkpoint = "full",
    engine: EngineName = "coalesced",
    grids: dict[str, tuple[int, int, int]] | None = None,
    text: dict[str, int] | None = None,
) -> TrainingPlan:
    """A plan of sequences of ``grids``; text lengths differ from sequence to sequence."""
    geometry, grids = model.geometry, grids or GRIDS
    shapes = {
        name: SequenceShape(sequence=name, grid=grids[name], text_tokens=(text or {}).get(name, 2 + len(name) % 5))
        for name in placed
    }
    joint = model.text.attention == "joint"
    lengths = {name: shape.num_visual + (shape.text_tokens if joint else 0) for name, shape in shapes.items()}
    program = build_program(
        [Assignment(name, lengths[name], parse_config(config), ranks) for name, (config, ranks) in placed.items()],
        Heads(geometry.num_heads, geometry.num_kv_heads, geometry.head_dim),
        num_ranks=num_ranks,
        num_layers=geometry.num_layers,
        checkpoint=checkpoint,
        engine=engine,
    )
    return TrainingPlan(program=program, shapes=tuple(shapes[segment.sequence] for segment in program.segments))


def layer_run(program: Program, model: ModelSpec, shape: SequenceShape, network: Any, dtype: torch.dtype) -> LayerRun:
    """A run of one whole sequence on one rank."""
    crosses = model.text.attention == "cross"
    stream = rank_stream(program, 0, [shape.text_tokens if crosses else 0], torch.device("cpu"))
    angles = network.angles(token_positions(model, [shape], stream), accumulation_dtype(dtype))
    return LayerRun(Engine(program, 0, {}, CpuFlash(), dtype=dtype), stream, *angles)


def dit_errors(run: TrainingRun, network: PackedDit, shape: SequenceShape, step: int, micro: int) -> Tensor:
    """Squared errors of one sequence, summed over its tokens, the mean over a token's values."""
    dtype = DTYPES[run.dtype]
    alone = make_plan(run.model, {shape.sequence: ("whole", (0,))}, 1, grids={shape.sequence: shape.grid},
                      text={shape.sequence: shape.text_tokens}, checkpoint="none")  # fmt: skip
    ready = layer_run(alone.program, run.model, shape, network, dtype)
    sample = draw_sample(run.model, shape, run.seed, step, micro)
    batch = rank_batch(
        run.model, [shape], ready.stream, [sample], total_tokens=1, device=torch.device("cpu"), dtype=dtype
    )
    rows = torch.zeros(len(batch.patches), dtype=torch.long)
    errors = (network(batch, ready, rows) - batch.targets).square().mean(1)
    return (errors * batch.weights.to(dtype)).sum()


def wan_errors(run: TrainingRun, network: Any, shape: SequenceShape, step: int, micro: int) -> Tensor:
    """The same of diffusers' own model, through its own forward."""
    dtype = DTYPES[run.dtype]
    sample = draw_sample(run.model, shape, run.seed, step, micro)
    timestep = torch.tensor([1000 * sample.sigma])
    out = network(sample.noisy[None].to(dtype), timestep, sample.text[None].to(dtype), return_dict=False)[0][0]
    errors = to_patches(run.model, out - sample.target.to(dtype), channels_last=True)
    return errors.square().mean(1).sum()


def reference_network(run: TrainingRun) -> nn.Module:
    """The network with the weights that ranks start from."""
    torch.manual_seed(run.seed)
    made = make_wan(run.model) if run.network == "wan" else PackedDit(run.model)
    return made.to(DTYPES[run.dtype])


def micro_steps(run: TrainingRun, step: int) -> Iterator[tuple[int, SequenceShape]]:
    """Every sequence of a step, with its micro-step."""
    for micro, index in enumerate(run.plans_of(step)):
        for shape in run.plans[index].shapes:
            yield micro, shape


def train_alone(run: TrainingRun) -> Curve:
    """The loss curve of a run, whatever its plans say about ranks."""
    network = reference_network(run)
    optimizer = torch.optim.AdamW(network.parameters(), lr=run.learning_rate)
    errors: Any = wan_errors if run.network == "wan" else dit_errors
    losses, gradients = [], {}
    for step in range(run.steps):
        optimizer.zero_grad()
        total = sum(shape.num_visual for _, shape in micro_steps(run, step))
        loss = torch.zeros((), dtype=torch.float64)
        for micro, shape in micro_steps(run, step):
            part = errors(run, network, shape, step, micro) / total
            part.backward()
            loss += part.detach().double()
        losses.append(loss.item())
        if step == 0:
            gradients = {name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None}
        optimizer.step()
    return Curve(losses, gradients)
