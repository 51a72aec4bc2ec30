"""Devices of ranks, and how a rank joins and leaves an NCCL group, with CUDA and NCCL replaced."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from zellige.errors import MissingExtraError, TooFewRanksError
from zellige.exec import session as session_module
from zellige.exec.devices import group_options, rank_device, require_backend
from zellige.exec.session import Session, connected


@pytest.fixture
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.delenv("LOCAL_RANK", raising=False)


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize(
    ("rank", "environment", "index"), [(2, {}, 2), (9, {"LOCAL_RANK": "1"}, 1), (1, {"LOCAL_RANK": "3"}, 3)]
)
def test_a_rank_takes_the_gpu_of_its_local_rank(rank: int, environment: dict[str, str], index: int) -> None:
    assert rank_device("nccl", rank, environment) == torch.device("cuda", index)


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize(("rank", "environment"), [(4, {}), (0, {"LOCAL_RANK": "4"})])
def test_two_ranks_never_share_a_gpu(rank: int, environment: dict[str, str]) -> None:
    with pytest.raises(TooFewRanksError, match="LOCAL_RANK") as caught:
        rank_device("nccl", rank, environment)
    assert "has 4 GPUs" in str(caught.value)


def test_gloo_ranks_take_the_cpu_and_nccl_wants_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rank_device("gloo", 3) == torch.device("cpu")
    assert group_options("gloo", datetime.timedelta(seconds=1)) is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(MissingExtraError, match="no CUDA device") as caught:
        rank_device("nccl", 0)
    assert caught.value.exit_code == 6


def test_nccl_is_looked_for_before_ranks_start(monkeypatch: pytest.MonkeyPatch) -> None:
    require_backend("gloo", 10_000)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(MissingExtraError, match="no CUDA device") as caught:
        require_backend("nccl", 1)
    assert "--backend gloo" in caught.value.fix
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    with pytest.raises(MissingExtraError, match="no NCCL"):
        require_backend("nccl", 1)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    require_backend("nccl", 1)
    with pytest.raises(TooFewRanksError, match="2 ranks, and this machine has 1 GPU"):
        require_backend("nccl", 2)


class Nccl:
    """torch.distributed and torch.cuda, as far as joining goes: what was called, and with what."""

    class Options:
        def __init__(self, *, is_high_priority_stream: bool) -> None:
            self.is_high_priority_stream = is_high_priority_stream
            self._timeout = datetime.timedelta(minutes=10)

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.joined: dict[str, Any] = {}
        monkeypatch.setattr(dist, "ProcessGroupNCCL", Nccl, raising=False)
        monkeypatch.setattr(dist, "init_process_group", self._join)
        monkeypatch.setattr(torch.cuda, "set_device", lambda device: self.calls.append(f"device {device.index}"))
        monkeypatch.setattr(session_module, "connect", self._connect)
        for name in ("barrier", "destroy_process_group"):
            monkeypatch.setattr(dist, name, self._noting(name))
        monkeypatch.setattr(dist.distributed_c10d, "_abort_process_group", self._noting("abort"))

    def _noting(self, name: str) -> Callable[[], None]:
        return lambda: self.calls.append(name)

    def _join(self, backend: str, **options: Any) -> None:
        self.calls.append(f"join {backend}")
        self.joined = options

    def _connect(self, group: object, device: torch.device) -> None:
        assert group is None
        self.calls.append(f"connect on {device}")


def lonely() -> Session:
    return Session(0, 1, dist.HashStore(), timeout_s=7)


@pytest.mark.usefixtures("four_gpus")
def test_a_rank_sets_its_device_joins_connects_and_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    nccl = Nccl(monkeypatch)
    with connected(lonely(), "nccl", {"what": "test"}):
        nccl.calls.append("work")
    assert nccl.calls == [
        "device 0",
        "join nccl",
        "connect on cuda:0",
        "barrier",
        "work",
        "destroy_process_group",
    ]
    assert nccl.joined["device_id"] == torch.device("cuda", 0)
    assert nccl.joined["timeout"] == datetime.timedelta(seconds=14)
    options = nccl.joined["pg_options"]
    assert options.is_high_priority_stream
    # torch warns where the two differ, and writes into what it was given.
    assert options._timeout == nccl.joined["timeout"]
    assert group_options("nccl", options._timeout) is not options


@pytest.mark.usefixtures("four_gpus")
def test_after_a_failure_communicators_are_aborted_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    nccl = Nccl(monkeypatch)
    with pytest.raises(ZeroDivisionError), connected(lonely(), "nccl", {"what": "test"}):
        raise ZeroDivisionError
    assert nccl.calls[-1] == "abort"
    assert "destroy_process_group" not in nccl.calls


def test_gloo_ranks_leave_in_order_after_a_failure(tmp_path: Path) -> None:
    session = Session(0, 1, dist.FileStore(str(tmp_path / "store"), 1), timeout_s=7)
    with pytest.raises(ZeroDivisionError), connected(session, "gloo", {"what": "test"}):
        raise ZeroDivisionError(dist.get_world_size())
    assert not dist.is_initialized()
