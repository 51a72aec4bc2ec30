"""What ranks do in the tests of training; functions of a module, for ranks find them by name."""

from __future__ import annotations

import gc
import os
import resource
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from zellige.exec.launch import run_ranks
from zellige.exec.session import Session, connected
from zellige.exec.training import RankTraining, Trainer, TrainingRun, run_training


class Runs(msgspec.Struct, frozen=True):
    """Runs of one process group, and the folder that rank 0 leaves gradients in."""

    runs: list[TrainingRun]
    folder: str


def train_all(runs: list[TrainingRun], folder: Path, num_ranks: int) -> list[list[RankTraining]]:
    """All runs in one start of ranks; answers by run and rank, gradients of the first steps in the folder."""
    payload = msgspec.json.encode(Runs(runs, str(folder)))
    answers = run_ranks(train_each, [payload] * num_ranks, timeout_s=120, deadline_s=1500)
    by_rank = [msgspec.json.decode(answer, type=list[RankTraining]) for answer in answers]
    return [[answer[number] for answer in by_rank] for number in range(len(runs))]


def train_each(session: Session, payload: bytes) -> bytes:
    """Runs one after another; gradients of their first steps as ``gradients<n>.pt``."""
    given = msgspec.json.decode(payload, type=Runs)
    done = []
    with connected(session, "gloo", {"task": "train_each"}):
        for number, run in enumerate(given.runs):

            def keep(trainer: Trainer, step: int, number: int = number) -> None:
                if step == 0:
                    found = whole_gradients(trainer)
                    if session.rank == 0:
                        torch.save(found, Path(given.folder) / f"gradients{number}.pt")

            done.append(run_training(session, run, keep))
    return msgspec.json.encode(done)


def whole_gradients(trainer: Trainer) -> dict[str, Tensor]:
    """Gradients of all parameters, gathered; every rank takes part."""
    found = {}
    for name, parameter in trainer.train_step.network.named_parameters():
        grad: Any = parameter.grad
        found[name.removeprefix("module.")] = grad.full_tensor() if isinstance(grad, DTensor) else grad.clone()
    return found


class Counts(msgspec.Struct, frozen=True):
    """What a rank holds after a step."""

    groups: int
    files: int
    resident_bytes: int


def count_each_step(session: Session, payload: bytes) -> bytes:
    """Runs; what the rank holds after every tenth step of each, and after its end."""
    runs = msgspec.json.decode(payload, type=list[TrainingRun])
    counts: list[list[Counts]] = [[] for _ in runs]
    with connected(session, "gloo", {"task": "count_each_step"}):
        for found, run in zip(counts, runs, strict=True):

            def count(_: object, step: int, found: list[Counts] = found) -> None:
                if step % 10 == 9:
                    found.append(count_now())

            run_training(session, run, count)
            found.append(count_now())
    return msgspec.json.encode(counts)


def count_now() -> Counts:
    """Groups, open files and resident memory of this process."""
    gc.collect()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    return Counts(len(dist.distributed_c10d._world.pg_map), len(os.listdir("/proc/self/fd")), resident)
