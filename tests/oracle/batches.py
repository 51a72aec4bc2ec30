"""Batches of real shapes with analytic prices, from one sequence to a few dozen."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from functools import cache

import msgspec

from zellige.catalog import load_cluster, load_model
from zellige.placement import Engine, Problem, Setup
from zellige.sources import build_problem
from zellige.workload import Clip, build_batch

SHAPES = [
    (256, 256, 1), (512, 512, 1), (832, 480, 1), (1280, 720, 1), (1920, 1080, 1), (832, 480, 33), (832, 480, 81),
    (480, 832, 81), (1280, 720, 81), (1280, 720, 161), (1920, 1080, 161),
]  # fmt: skip


def make_problem(
    shapes: Sequence[tuple[int, int, int]],
    cluster: str = "a800x4",
    model: str = "wan2.1-t2v-1.3b",
    setup: Setup | None = None,
) -> Problem:
    """One sequence of each shape, named in order, with analytic prices."""
    clips = [
        Clip(id=f"{'v' if f > 1 else 'i'}{n}", width=w, height=h, num_frames=f) for n, (w, h, f) in enumerate(shapes)
    ]
    batch, drops = build_batch("batch", clips, load_model(model))
    assert not drops
    return build_problem(batch, cluster=cluster, model=model, setup=setup)


def on_nodes(num_nodes: int, *kinds: tuple[tuple[int, int, int], int], engine: Engine = "coalesced") -> Problem:
    """So many clips of each shape, on nodes of eight ranks."""
    cluster = msgspec.structs.replace(load_cluster("a800x16"), name="nodes", num_nodes=num_nodes)
    clips = [
        Clip(id=f"{w}x{h}x{frames}-{number}", width=w, height=h, num_frames=frames)
        for (w, h, frames), count in kinds
        for number in range(count)
    ]
    model = "wan2.1-t2v-1.3b"
    batch, _ = build_batch("kinds", clips, load_model(model))
    return dataclasses.replace(build_problem(batch, cluster=cluster, model=model), engine=engine)


def random_batch(chance: random.Random) -> list[tuple[int, int, int]]:
    kinds = chance.sample(SHAPES, chance.randint(1, 6))
    return [shape for shape in kinds for _ in range(chance.randint(1, 9 if shape[2] == 1 else 3))]


BATCHES = [(random_batch(random.Random(seed)), ("a800x4", "a800x8", "a800x16")[seed % 3]) for seed in range(9)]


@cache
def problem_of(index: int) -> Problem:
    """The problem of one of ``BATCHES``; made once, since pricing takes longer than most planning."""
    return make_problem(*BATCHES[index])
