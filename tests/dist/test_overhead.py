"""What the engine itself costs in a training step: everything in a layer that is neither attention nor linear work."""

from __future__ import annotations

import statistics

import msgspec
import pytest
from oracle.training_reference import make_plan, tiny_model

from zellige.exec.launch import run_ranks
from zellige.exec.trial import RankTrial, Trial, trial_task

pytestmark = pytest.mark.dist

COPIES = (".pack", ".unpack", ".enter", ".wait", ".keep")


def test_the_engine_takes_less_than_fifteen_percent_of_a_layer() -> None:
    """The benchmark's mixed batch: one sequence of 2,048 tokens as h2 and eighty whole ones of 96, heads of 64.

    By CPU time of the rank's thread, in spans: copies and entering exchanges against all spans.
    """
    model = tiny_model()
    geometry = msgspec.structs.replace(
        model.geometry, hidden_dim=256, num_heads=4, num_kv_heads=4, head_dim=64, ffn_dim=1024, num_layers=1
    )
    model = msgspec.structs.replace(model, geometry=geometry)
    placed = {"film": ("h2", (0, 1))} | {f"image{n}": ("whole", (n % 2,)) for n in range(80)}
    grids = dict.fromkeys(placed, (1, 8, 12)) | {"film": (8, 16, 16)}
    plan = make_plan(model, placed, 2, grids=grids)
    trial = Trial(program=plan.program, model=model, shapes=plan.shapes, warm_ups=1, repeats=1)
    answers = run_ranks(trial_task, [msgspec.json.encode([trial])] * 2, timeout_s=120)
    for answer in answers:
        (rank,) = msgspec.json.decode(answer, type=list[RankTrial])
        shares = [
            sum(span.ns for span in step.spans if span.name.endswith(COPIES)) / sum(span.ns for span in step.spans)
            for step in rank.steps
        ]
        print(f"rank {rank.rank}: {statistics.median(shares):.1%} of a layer's CPU time")
        assert statistics.median(shares) < 0.15
