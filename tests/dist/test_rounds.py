"""Trials that take turns on the same ranks measure what each of them would have by itself."""

from __future__ import annotations

import msgspec
import pytest
import torch
from oracle.training_reference import make_plan, tiny_model

from zellige.exec.launch import run_ranks
from zellige.exec.trial import RankTrial, Trial, run_one_alone, trial_task
from zellige.placement import Engine

pytestmark = pytest.mark.dist


def made(
    placed: dict[str, tuple[str, tuple[int, ...]]],
    repeats: int,
    warm_ups: int,
    num_ranks: int = 2,
    engine: Engine = "coalesced",
) -> Trial:
    model = tiny_model()
    plan = make_plan(model, placed, num_ranks, grids=dict.fromkeys(placed, (1, 4, 6)), engine=engine)
    return Trial(program=plan.program, model=model, shapes=plan.shapes, warm_ups=warm_ups, repeats=repeats, memory=True)


def ran(trials: list[Trial]) -> list[list[RankTrial]]:
    answers = run_ranks(trial_task, [msgspec.json.encode(trials)] * 2, timeout_s=60)
    return [msgspec.json.decode(answer, type=list[RankTrial]) for answer in answers]


def test_trials_in_turn_measure_as_many_steps_and_bytes_as_alone() -> None:
    trials = [
        made({"a": ("h2", (0, 1)), "b": ("whole", (0,))}, repeats=3, warm_ups=1),
        made({"a": ("whole", (1,)), "b": ("whole", (0,)), "c": ("whole", (1,))}, repeats=1, warm_ups=2),
        made({"a": ("k2", (0, 1))}, repeats=2, warm_ups=0),
    ]
    together = ran(trials)
    apart = [ran([trial]) for trial in trials]
    for rank in range(2):
        for place, trial in enumerate(trials):
            found, expected = together[rank][place], apart[place][rank][0]
            assert found.rank == rank
            assert len(found.steps) == trial.repeats
            assert all(step.pace_ns > 0 and step.own_ns > 0 and step.wall_ns > 0 for step in found.steps)
            for step in found.steps:
                assert [(s.name, s.layer) for s in step.spans] == [(s.name, s.layer) for s in expected.steps[0].spans]
            assert (found.weight_bytes, found.kept_bytes, found.peak_bytes) == (
                expected.weight_bytes,
                expected.kept_bytes,
                expected.peak_bytes,
            )
    assert together[0][0].kept_bytes > 0
    # Memory is counted in the first step that warms up, and a trial without one has none to report.
    assert together[0][2].peak_bytes == 0


def test_ranks_by_themselves_run_programs_of_several_rank_sets() -> None:
    placed = {"a": ("h2", (0, 1)), "b": ("h2", (1, 2)), "c": ("k2", (2, 3)), "d": ("whole", (3,))}
    trial = made(placed, repeats=2, warm_ups=1, num_ranks=4, engine="per_sequence")
    assert len({exchange.ranks for exchange in trial.program.exchanges}) > 1
    found = [run_one_alone(trial, rank, torch.device("cpu")) for rank in range(4)]
    assert [len(rank.steps) for rank in found] == [2] * 4
    assert all(rank.peak_bytes > 0 and min(step.own_ns for step in rank.steps) > 0 for rank in found)
