"""Training on gloo ranks: the same losses and gradients under any plan, on any number of ranks, sharded or not.

``pytest --training 20 tests/dist/test_training.py`` is the full check: Wan as well, on one, two and four ranks, twenty
steps; five hundred steps of random batches.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch
from oracle.training_reference import Curve, Placed, make_plan, tiny_model, train_alone
from training_tasks import Counts, count_each_step, train_all

from zellige.exec.launch import run_ranks
from zellige.exec.training import NetworkName, RankTraining, TrainingRun
from zellige.memory import Checkpoint
from zellige.model import ModelSpec
from zellige.placement import Engine
from zellige.program_parts import Pass
from zellige.shards import parse_config

pytestmark = pytest.mark.dist

FULL_CHECK = 20
MODEL = tiny_model()
CHECKPOINTS: tuple[Checkpoint, ...] = ("full", "selective", "none")

WHOLE: dict[int, Placed] = {
    1: dict.fromkeys(("film", "clip", "image", "icon"), ("whole", (0,))),
    2: dict.fromkeys(("film", "clip", "image", "icon"), ("whole", (0,))),
    4: {"film": ("whole", (0,)), "clip": ("whole", (1,)), "image": ("whole", (2,)), "icon": ("whole", (1,))},
}
"""Everything whole; of two and of four ranks the last has no token."""

SPLIT: dict[int, Placed] = {
    2: {"film": ("h2", (0, 1)), "clip": ("k2", (1, 0)), "image": ("q2", (0, 1)), "icon": ("h2", (1, 0))},
    4: {
        "film": ("h2k2", (0, 1, 2, 3)),
        "clip": ("h4", (3, 1, 0, 2)),
        "image": ("q2", (1, 0)),
        "icon": ("k3", (3, 1, 2)),
    },
}
MIXED: dict[int, Placed] = {
    2: {"film": ("h2", (0, 1)), "clip": ("whole", (0,)), "image": ("whole", (1,)), "icon": ("whole", (1,))},
    4: {"film": ("q3", (0, 1, 2)), "clip": ("whole", (0,)), "image": ("whole", (1,)), "icon": ("whole", (1,))},
}
"""Split and whole; of four ranks the last has no token."""


def runs_on(num_ranks: int, model: ModelSpec, **settings: object) -> Iterator[TrainingRun]:
    """Every kind of plan, replicated and sharded, with the checkpointing modes in turn."""
    turn = 0
    for kind in (WHOLE, SPLIT, MIXED):
        for parallel in ("ddp", "fsdp"):
            if num_ranks in kind:
                plan = make_plan(model, kind[num_ranks], num_ranks, checkpoint=CHECKPOINTS[turn % 3])
                yield run_of((plan,), model, parallel=parallel, **settings)
                turn += 1


def run_of(plans: tuple[object, ...], model: ModelSpec = MODEL, **settings: object) -> TrainingRun:
    made: dict[str, object] = {"plans": plans, "model": model, "learning_rate": 1e-3, **settings}
    return msgspec.convert(msgspec.to_builtins(made), TrainingRun)


def distance(found: RankTraining, wanted: Curve) -> float:
    """The largest relative difference of any loss."""
    assert len(found.losses) == len(wanted.losses)
    return max(abs(a - b) / abs(b) for a, b in zip(found.losses, wanted.losses, strict=True))


def gradient_distance(path: Path, wanted: Curve) -> float:
    """The largest difference of any parameter's gradient, relative to the largest of its values.

    A bias of keys adds one number to all scores of a query, which softmax takes away: its gradient is nothing but
    rounding, and is held against the model's largest. (Keys of self-attention are normalised after their bias.)
    """
    found = {name.replace(".inner.", "."): grad for name, grad in torch.load(path, weights_only=True).items()}
    assert found.keys() == wanted.gradients.keys()
    largest = max(grad.abs().max().item() for grad in wanted.gradients.values())
    return max(
        (found[name] - grad).abs().max().item() / (largest if "cross_k.bias" in name else grad.abs().max().item())
        for name, grad in wanted.gradients.items()
    )


def hold_against_one_process(
    runs: list[TrainingRun], num_ranks: int, folder: Path, *, losses: float, gradients: float
) -> None:
    wanted = train_alone(runs[0])
    answers = train_all(runs, folder, num_ranks)
    for number, (run, ranks) in enumerate(zip(runs, answers, strict=True)):
        where = f"{run.network} {run.parallel} {run.plans[0].program.checkpoint} {run.plans[0].program}"
        assert all(rank.losses == ranks[0].losses for rank in ranks), where
        worst, worst_gradient = distance(ranks[0], wanted), gradient_distance(folder / f"gradients{number}.pt", wanted)
        assert worst < losses, f"{where}: {ranks[0].losses} {wanted.losses}"
        assert worst_gradient < gradients, where
        print(f"{num_ranks} ranks, {run.network}, {run.parallel}: losses {worst:.1e}, gradients {worst_gradient:.1e}")


def test_losses_and_gradients_do_not_depend_on_the_plan(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """In fp64, so that nothing but rounding may differ; every checkpointing mode, rank 1 of 2 without tokens once."""
    scale = pytestconfig.getoption("--training")
    runs = list(runs_on(2, MODEL, dtype="fp64", steps=max(2, scale)))
    if scale < FULL_CHECK:
        runs = runs[1:5]
    hold_against_one_process(runs, 2, tmp_path, losses=1e-11, gradients=1e-10)


def test_the_full_check(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """fp32, twenty steps, against one process: Wan against diffusers' own forward. Without --training, a short run."""
    scale = pytestconfig.getoption("--training")
    networks: list[NetworkName] = ["dit", "wan"] if scale >= FULL_CHECK else ["dit"]
    for network in networks:
        for num_ranks in (1, 2, 4) if scale >= FULL_CHECK else (4,):
            settings = {"network": network, "steps": max(2, scale)}
            runs = list(runs_on(num_ranks, MODEL, **settings))
            hold_against_one_process(
                runs if scale >= FULL_CHECK else runs[4:5], num_ranks, tmp_path, losses=2e-5, gradients=1e-5
            )


Grids = dict[str, tuple[int, int, int]]

CASES: dict[str, tuple[Placed, Grids, dict[str, int]]] = {
    "U28, torchtitan#2206: ranks with 5 and 1 tokens": (
        {"five": ("whole", (0,)), "one": ("whole", (1,))},
        {"five": (1, 1, 5), "one": (1, 1, 1)},
        {},
    ),
    "U28 and 32, VeOmni#338, DeepSpeed#5248: loss and gradients off by the degree": (
        {"hundred": ("q2h2", (3, 1, 0, 2))},
        {"hundred": (1, 10, 10)},
        {},
    ),
    "5, Megatron-LM#1764: a rank of the set without a token": (
        {"dot": ("q4", (0, 1, 2, 3)), "film": ("whole", (2,))},
        {"dot": (1, 1, 1), "film": (2, 3, 3)},
        {},
    ),
    "U24, FastVideo#250: groups whose texts differ": (
        {"a": ("h2", (0, 1)), "b": ("h2", (2, 3))},
        {"a": (1, 4, 4), "b": (1, 4, 4)},
        {"a": 247, "b": 256},
    ),
}


def test_cases_of_loss_weights_and_uneven_ranks(tmp_path: Path) -> None:
    runs = [
        run_of(
            (make_plan(MODEL, placed, 4, grids=grids, text=text),),
            dtype="fp64",
            parallel=("ddp", "fsdp")[number % 2],
            steps=2,
        )
        for number, (placed, grids, text) in enumerate(CASES.values())
    ]
    answers = train_all(runs, tmp_path, 4)
    for number, (run, ranks) in enumerate(zip(runs, answers, strict=True)):
        wanted = train_alone(run)
        assert distance(ranks[0], wanted) < 1e-12
        assert gradient_distance(tmp_path / f"gradients{number}.pt", wanted) < 1e-10


def test_17_a_plan_whose_sizes_repeat_on_one_rank_and_change_on_the_other(tmp_path: Path) -> None:
    """cache-dit PR#761: what is kept by a rank's sizes makes some ranks skip a collective. Also accumulation."""
    grids = {"film": (2, 3, 4), "icon": (1, 2, 2), "clip": (2, 4, 4)}
    first = make_plan(MODEL, {"film": ("h2", (0, 1)), "icon": ("whole", (0,))}, 2, grids=grids)
    second = make_plan(
        MODEL, {"film": ("h2", (0, 1)), "icon": ("whole", (0,)), "clip": ("whole", (1,))}, 2, grids=grids
    )
    runs = [
        run_of((first, second), dtype="fp64", steps=steps, accumulate=accumulate, parallel=parallel)
        for steps, accumulate, parallel in ((3, 1, "ddp"), (2, 2, "ddp"), (2, 2, "fsdp"))
    ]
    for run, ranks in zip(runs, train_all(runs, tmp_path, 2), strict=True):
        assert distance(ranks[0], train_alone(run)) < 1e-12


TRACED: list[tuple[Placed, int, Checkpoint]] = [
    (placed, rounds, checkpoint)
    for placed, rounds in ((MIXED[2], 1), (SPLIT[2], 2), (WHOLE[2], 0))
    for checkpoint in CHECKPOINTS
]
"""Placements, how many rounds bring keys in a pass, and what is recomputed."""


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> list[list[RankTraining]]:
    """One step of each, with its spans."""
    plans = [make_plan(MODEL, placed, 2, checkpoint=checkpoint) for placed, _, checkpoint in TRACED]
    return train_all([run_of((plan,), trace=True) for plan in plans], tmp_path_factory.mktemp("traced"), 2)


def test_exchanges_of_a_layer_by_checkpointing_mode(traced: list[list[RankTraining]]) -> None:
    """R exchanges in and one back a pass: again in recomputation under full checkpointing, not under selective."""
    for (_, rounds, checkpoint), ranks in zip(TRACED, traced, strict=True):
        a_pass = rounds + 1 if rounds else 0
        for rank in ranks:
            passes = [s.name.split(".")[0] for s in rank.spans if s.lane == "network" and s.layer == 1]
            found = {name: passes.count(name) for name in ("forward", "recompute", "backward")}
            again = a_pass if checkpoint == "full" else 0
            assert found == {"forward": a_pass, "recompute": again, "backward": a_pass}, checkpoint


def test_spans_are_those_of_the_program(traced: list[list[RankTraining]]) -> None:
    """In its order: every operation of every pass of every layer once, linear work included."""
    phases: tuple[Pass, ...] = ("forward", "recompute", "backward")
    for (placed, _, checkpoint), ranks in zip(TRACED, traced, strict=True):
        program = make_plan(MODEL, placed, 2, checkpoint=checkpoint).program
        for rank, layer, phase in itertools.product(ranks, range(program.num_layers), phases):
            computed = [s.name for s in rank.spans if (s.lane, s.layer) == ("compute", layer)]
            assert [name for name in computed if name.startswith(f"{phase}.")] == [
                program.span(phase, op)
                for op in program.ranks[rank.rank].ops(phase)
                if op.kind in ("project", "attend", "whole", "finish", "relinear")
            ]


def test_nothing_piles_up_over_steps_of_other_batches(pytestconfig: pytest.Config) -> None:
    """--training 20: five hundred steps. Groups and files do not grow, and memory not once all plans were seen.

    The second run's plans make process groups of their own, more than are kept at a time; none is left at its end.
    """
    scale = pytestconfig.getoption("--training")
    num_ranks, steps = (4, 25 * scale) if scale >= FULL_CHECK else (2, 20)
    plans = tuple(random_plan(seed, num_ranks) for seed in range(min(steps // 2, 100)))
    own_groups = tuple(random_plan(seed, num_ranks, "per_sequence") for seed in range(10))
    runs = [run_of(plans, steps=steps), run_of(own_groups, steps=10)]
    answers = run_ranks(count_each_step, [msgspec.json.encode(runs)] * num_ranks, timeout_s=60, deadline_s=3000)
    for answer in answers:
        counts, others = msgspec.json.decode(answer, type=list[list[Counts]])
        print([(c.groups, c.files, c.resident_bytes // 1_000_000) for c in counts[:: max(1, len(counts) // 10)]])
        assert {count.groups for count in [*counts, others[-1]]} == {1}
        assert max(count.files for count in counts[1:]) <= counts[0].files
        if scale >= FULL_CHECK:
            later = [count.resident_bytes for count in counts[len(counts) // 2 :]]
            assert max(later) < 1.02 * later[0]


def random_plan(seed: int, num_ranks: int, engine: Engine = "coalesced") -> object:
    """Some sequences of random grids, splits and ranks."""
    rng = random.Random(seed)
    configs = ["whole", "h2", "q2", "k2"] + (["h4", "q2k2", "k3", "h2q2"] if num_ranks == 4 else [])
    placed, grids = {}, {}
    for index in range(rng.randint(2, 6)):
        config = parse_config(rng.choice(configs).replace("h2q2", "q2h2"))
        placed[f"s{seed}-{index}"] = (str(config), tuple(rng.sample(range(num_ranks), config.degree)))
        grids[f"s{seed}-{index}"] = (rng.choice((1, 1, 2, 3)), rng.randint(1, 6), rng.randint(1, 6))
    return make_plan(MODEL, placed, num_ranks, grids=grids, checkpoint=rng.choice(CHECKPOINTS), engine=engine)
