"""From a plan file to what ranks train on: its program, and the grid and text of every sequence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from zellige.errors import FormatError
from zellige.exec.data import SequenceShape
from zellige.exec.step import TrainingPlan
from zellige.files import decode_json, read_text
from zellige.memory import Checkpoint
from zellige.model import ModelSpec
from zellige.placement import Placement, Plan
from zellige.program import Assignment, Heads, build_program
from zellige.program_checks import check_program
from zellige.workload import parse_shape


def read_plan(path: str) -> Plan:
    """A plan from its file."""
    return decode_json(read_text(Path(path)), Plan, path)


def training_plans(
    plan: Plan, model: ModelSpec, *, shrink: int = 1, checkpoint: Checkpoint | None = None, where: str = ""
) -> tuple[TrainingPlan, ...]:
    """The plan's placements for a model (the plan's own, or a smaller one with its heads), by micro-batch in order.

    ``shrink`` divides the tokens of every sequence, by taking rows and columns away; frames stay. Raises
    :class:`FormatError` for a bucket that the model has no grid for.
    """
    made = tuple(
        _training_plan(plan, placements, model, shrink, checkpoint or plan.checkpoint, where)
        for placements in plan.parts
    )
    for part in made:
        check_program(part.program)
    return made


def _training_plan(
    plan: Plan, placements: Sequence[Placement], model: ModelSpec, shrink: int, checkpoint: Checkpoint, where: str
) -> TrainingPlan:
    shapes = {}
    for placement in placements:
        width, height, frames = parse_shape(placement.bucket)
        try:
            grid = model.grid(width, height, frames or 1)
        except ValueError as error:
            raise FormatError(f"bucket {placement.bucket}: {error}", where=where, fix="plan the batch again") from None
        shapes[placement.sequence] = SequenceShape(
            sequence=placement.sequence, grid=shrunk_grid(grid, shrink), text_tokens=model.text.tokens
        )
    geometry = model.geometry
    lengths = {name: model.sequence_length(shape.num_visual) for name, shape in shapes.items()}
    program = build_program(
        [Assignment(p.sequence, lengths[p.sequence], p.config, p.ranks) for p in placements],
        Heads(geometry.num_heads, geometry.num_kv_heads, geometry.head_dim),
        num_ranks=len(plan.predicted),
        engine=plan.engine,
        num_layers=geometry.num_layers,
        checkpoint=checkpoint,
        plan=plan.digest,
    )
    return TrainingPlan(program=program, shapes=tuple(shapes[segment.sequence] for segment in program.segments))


def shrunk_grid(grid: tuple[int, int, int], shrink: int) -> tuple[int, int, int]:
    """A grid of about ``shrink`` times fewer tokens: the same frames, rows and columns in about their proportion."""
    time, rows, columns = grid
    side = math.sqrt(shrink)
    return time, max(1, round(rows / side)), max(1, round(columns / side))
