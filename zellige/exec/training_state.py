"""Checkpoints of a training run: every rank's own part of parameters and optimizer state, complete or not there at all.

A checkpoint is a folder ``step<N>`` with a file for each rank. Files are written under another name and renamed, and
``latest.json`` names the folder only when all ranks have written theirs, so that a run which is killed at any moment
leaves the last complete checkpoint. Files are read as data (``torch.load(weights_only=True)``). Samples depend on step
and sequence id alone, so the step is all that data needs.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from zellige.errors import FileError, FormatError, PreflightError
from zellige.files import NonNegativeInt, PositiveInt, decode_json, read_text, readable_json, write_text
from zellige.units import count_of

KEPT_CHECKPOINTS = 2
"""Older ones are removed."""


class CheckpointRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The last complete checkpoint: how many steps are done, and what a run must have in common with it."""

    SCHEMA: ClassVar[str] = "zellige.checkpoint/1"

    schema: str = "zellige.checkpoint/1"
    steps_done: NonNegativeInt
    num_ranks: PositiveInt
    run: str


def folder_of(directory: Path, steps_done: int) -> Path:
    """Where a checkpoint lies."""
    return directory / f"step{steps_done:07d}"


def read_record(directory: Path) -> CheckpointRecord | None:
    """The last complete checkpoint, or None."""
    path = directory / "latest.json"
    return decode_json(read_text(path), CheckpointRecord, str(path)) if path.exists() else None


def save_state(
    directory: Path, network: nn.Module, optimizer: torch.optim.Optimizer, steps_done: int, run: str, rank: int
) -> None:
    """Write this rank's part; all ranks must call it. ``run`` is the digest of what must not change."""
    folder = folder_of(directory, steps_done)
    folder.mkdir(parents=True, exist_ok=True)
    state = {
        "steps_done": steps_done,
        "network": {name: _own(tensor) for name, tensor in network.state_dict().items()},
        "optimizer": _map_tensors(optimizer.state_dict(), _own),
        "random": torch.get_rng_state(),
    }
    draft = folder / f"draft{rank}"
    torch.save(state, draft)
    draft.replace(folder / f"rank{rank}.pt")
    dist.barrier()
    if rank == 0:
        record = CheckpointRecord(steps_done=steps_done, num_ranks=dist.get_world_size(), run=run)
        write_text(directory / "latest.json", readable_json(record))
        for old in sorted(directory.glob("step*"))[:-KEPT_CHECKPOINTS]:
            shutil.rmtree(old)
    dist.barrier()


def load_state(directory: Path, network: nn.Module, optimizer: torch.optim.Optimizer, run: str, rank: int) -> int:
    """Take up the last complete checkpoint; returns how many steps are done.

    Raises :class:`FileError` where there is none, :class:`PreflightError` where it is of another run.
    """
    record = require_record(directory)
    if (record.run, record.num_ranks) != (run, dist.get_world_size()):
        raise PreflightError(
            "the checkpoint is of another run",
            where=str(directory),
            details=(f"it was written by {count_of(record.num_ranks, 'rank')}, and there are {dist.get_world_size()}",),
            fix="resume with the plans, model, seed and settings that it was made with",
        )
    path = folder_of(directory, record.steps_done) / f"rank{rank}.pt"
    if not path.exists():
        raise FileError(
            f"the checkpoint lacks the part of rank {rank}",
            where=str(path),
            fix="a folder that all ranks see; or leave --resume out",
        )
    state = read_part(path)
    wanted = network.state_dict()
    network.load_state_dict({name: _like(tensor, wanted[name]) for name, tensor in state["network"].items()})
    _load_optimizer(optimizer, state["optimizer"])
    torch.set_rng_state(state["random"])
    return record.steps_done


def require_record(directory: Path) -> CheckpointRecord:
    """The record of the last complete checkpoint; raises :class:`FileError` where there is none."""
    record = read_record(directory)
    if record is None:
        raise FileError(
            "there is no complete checkpoint to resume from", where=str(directory), fix="leave --resume out"
        )
    return record


def read_part(path: Path) -> dict[str, Any]:
    """A rank's part, as data; raises :class:`FormatError` for a file that is damaged or holds anything else."""
    try:
        state = torch.load(path, weights_only=True)
    except Exception as error:  # torch raises half a dozen kinds for files that are cut or are something else
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FormatError(
            "this part of the checkpoint is damaged",
            where=str(path),
            details=(reason,),
            fix="resume from a copy, or start anew in another --out",
        ) from None
    if not isinstance(state, dict) or not {"network", "optimizer", "random"} <= state.keys():
        raise FormatError("this is no part of a checkpoint", where=str(path), fix="start anew in another --out")
    return state


def _load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Moments become sharded as their parameters are; the step count stays a plain number."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, moments in state["state"].items():
        for name, tensor in moments.items():
            if isinstance(tensor, Tensor) and tensor.dim() > 0:
                moments[name] = _like(tensor, parameters[index])
    optimizer.load_state_dict(state)


def _own(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _like(tensor: Tensor, wanted: Tensor) -> Tensor:
    if not isinstance(wanted, DTensor):
        return tensor
    return DTensor.from_local(
        tensor, wanted.device_mesh, wanted.placements, run_check=False, shape=wanted.shape, stride=wanted.stride()
    )


def _map_tensors(value: Any, change: Any) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: _map_tensors(inner, change) for key, inner in value.items()}
    if isinstance(value, list):
        return [_map_tensors(inner, change) for inner in value]
    return value
