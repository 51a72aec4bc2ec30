"""Which device a rank computes on, and how NCCL is set up on it."""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from zellige.errors import MissingExtraError, TooFewRanksError
from zellige.units import count_of


def rank_device(backend: str, rank: int, environment: Mapping[str, str] = os.environ) -> torch.device:
    """The device of a rank: the CPU under gloo; under NCCL the GPU that LOCAL_RANK names, else ``rank`` of all GPUs.

    Raises :class:`MissingExtraError` without a GPU, and :class:`TooFewRanksError` where two ranks of a machine would
    share one, which NCCL refuses. Ranks over several machines must come with LOCAL_RANK (torchrun sets it).
    """
    if backend != "nccl":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise MissingExtraError("there is no CUDA device for NCCL", fix="the gloo backend runs on CPU ranks")
    devices, local = torch.cuda.device_count(), int(environment.get("LOCAL_RANK", rank))
    if local >= devices:
        named = "LOCAL_RANK" if "LOCAL_RANK" in environment else "the rank (there is no LOCAL_RANK)"
        raise TooFewRanksError(
            f"{named} is {local}, and this machine has {count_of(devices, 'GPU')}",
            where=f"rank {rank}",
            fix="start one rank for each GPU of a machine, and set LOCAL_RANK (torchrun does)",
        )
    return torch.device("cuda", local)


def require_backend(backend: str, num_ranks: int) -> None:
    """Raise where ranks on this machine could not talk: NCCL takes a GPU for each, and a torch that has it.

    Raises :class:`MissingExtraError` or :class:`TooFewRanksError`, before any rank is started.
    """
    if backend != "nccl":
        return
    if not torch.cuda.is_available():
        raise MissingExtraError("there is no CUDA device for NCCL", fix="--backend gloo runs on CPU ranks")
    if not dist.is_nccl_available():
        raise MissingExtraError("this torch has no NCCL", fix="--backend gloo runs on CPU ranks; or torch for CUDA")
    devices = torch.cuda.device_count()
    if devices < num_ranks:
        raise TooFewRanksError(
            f"NCCL takes a GPU for each of {count_of(num_ranks, 'rank')}, and this machine has"
            f" {count_of(devices, 'GPU')}",
            fix=f"plan for {devices}, start torchrun on more machines, or --backend gloo on CPU ranks",
        )


def group_options(backend: str, timeout: datetime.timedelta) -> Any:
    """Options of one process group; torch writes into them, so every group needs its own.

    NCCL gets a stream of high priority: an exchange is not to queue behind attention.
    """
    if backend != "nccl":
        return None
    options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
    options._timeout = timeout
    return options
