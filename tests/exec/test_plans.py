"""From plans to what ranks train on."""

from __future__ import annotations

import msgspec
import pytest

from zellige.catalog import load_cluster, load_model
from zellige.errors import FormatError
from zellige.exec.dit import resized
from zellige.exec.plans import training_plans
from zellige.placement import Plan
from zellige.plan import plan_batch
from zellige.sources import build_problem
from zellige.workload import Clip, build_batch


def plan_of(policy: str = "static") -> Plan:
    model = load_model("wan2.1-t2v-1.3b")
    clips = [
        Clip(id="film", width=832, height=480, num_frames=17),
        Clip(id="image", width=512, height=512, num_frames=1),
    ]
    batch, _ = build_batch("mix", clips, model)
    return plan_batch(build_problem(batch, cluster=load_cluster("a800x4"), model=model), policy)


def test_sequences_keep_their_splits_and_ranks_and_get_their_grids() -> None:
    plan, model = plan_of(), load_model("wan2.1-t2v-1.3b")
    (part,) = training_plans(plan, model)
    placed = {p.sequence: (p.config, p.ranks) for p in plan.placements}
    assert {s.sequence: (s.config, s.ranks) for s in part.program.segments} == placed
    assert [s.sequence for s in part.program.segments] == [shape.sequence for shape in part.shapes]
    grids = {shape.sequence: shape.grid for shape in part.shapes}
    assert grids == {"film": (5, 30, 52), "image": (1, 32, 32)}
    assert part.num_visual == sum(segment.length for segment in part.program.segments)
    assert (part.program.plan, part.program.checkpoint, part.program.num_ranks) == (plan.digest, "full", 4)
    (small,) = training_plans(plan, resized(model, "tiny"), shrink=100, checkpoint="none")
    assert {shape.grid for shape in small.shapes} == {(5, 3, 5), (1, 3, 3)}
    assert (small.program.num_layers, small.program.head_dim, small.program.checkpoint) == (2, 16, "none")


def test_micro_batches_become_plans_of_their_own_in_order() -> None:
    plan = plan_of()
    film, image = sorted(plan.placements, key=lambda placement: placement.sequence)
    later = msgspec.structs.replace(image, micro_batch=1)
    parts = training_plans(
        msgspec.structs.replace(plan, placements=(later, film)), load_model("wan2.1-t2v-1.3b"), shrink=100
    )
    assert [[shape.sequence for shape in part.shapes] for part in parts] == [["film"], ["image"]]


def test_a_bucket_without_a_grid_is_named() -> None:
    plan = plan_of()
    wrong = msgspec.structs.replace(plan.placements[0], bucket="832x480x18")
    with pytest.raises(FormatError, match="bucket 832x480x18"):
        training_plans(msgspec.structs.replace(plan, placements=(wrong,)), load_model("wan2.1-t2v-1.3b"))
