"""What transports ask of torch.distributed, with its calls replaced."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from zellige.exec.transports import TRANSPORTS, AllToAll, Communicators, PeerToPeer


class Work:
    """A handle that is over when it is told so; writes down how it was waited for."""

    def __init__(self) -> None:
        self.done = False
        self.waits: list[tuple[object, ...]] = []

    def wait(self, *timeout: object) -> bool:
        self.waits.append(timeout)
        return True

    def is_completed(self) -> bool:
        return self.done


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Calls of all-to-all and of batches, with a handle in place of each."""
    calls: list[Any] = []

    def all_to_all_single(
        output: Tensor,
        tensor: Tensor,
        output_splits: list[int] | None = None,
        input_splits: list[int] | None = None,
        **options: Any,
    ) -> Work:
        calls.append((output, tensor, output_splits, input_splits, options))
        return Work()

    class Operation:
        def __init__(self, action: object, tensor: Tensor, peer: int, group: object) -> None:
            assert group is None
            self.said = ("send" if action is dist.isend else "receive", len(tensor), peer)

    def batch(operations: list[Operation]) -> list[Work]:
        calls.append([operation.said for operation in operations])
        return [Work() for _ in operations]

    monkeypatch.setattr(dist, "all_to_all_single", all_to_all_single)
    monkeypatch.setattr(dist, "batch_isend_irecv", batch)
    monkeypatch.setattr(dist, "P2POp", Operation)
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda _: [4, 5, 6, 7])
    monkeypatch.setattr(dist, "get_world_size", lambda _: 4)
    monkeypatch.setattr(dist, "get_rank", lambda: 5)
    monkeypatch.setattr(dist, "get_backend", lambda _: "gloo")
    return calls


def test_an_all_to_all_has_uneven_splits_and_does_not_block(network: list[Any]) -> None:
    send, receive = torch.zeros(5, 8), torch.zeros(3, 8)
    AllToAll(None).start(send, [2, 0, 3, 0], receive, [0, 0, 1, 2])
    ((output, tensor, output_splits, input_splits, options),) = network
    assert output is receive
    assert tensor is send
    assert (output_splits, input_splits) == ([0, 0, 1, 2], [2, 0, 3, 0])
    assert options == {"group": None, "async_op": True}


def test_only_real_peers_are_sent_to_in_one_batch(network: list[Any]) -> None:
    PeerToPeer(None).start(torch.zeros(5, 8), [2, 0, 3, 0], torch.zeros(3, 8), [0, 0, 1, 2])
    assert network == [[("send", 2, 4), ("send", 3, 6), ("receive", 1, 6), ("receive", 2, 7)]]


def test_a_rank_without_peers_posts_nothing_and_waits_for_nothing(network: list[Any]) -> None:
    pending = PeerToPeer(None).start(torch.zeros(0, 8), [0] * 4, torch.zeros(0, 8), [0] * 4)
    pending.wait()
    assert pending.is_done()
    assert network == []


@pytest.mark.parametrize("name", TRANSPORTS)
@pytest.mark.parametrize("limit", [None, datetime.timedelta(seconds=3)])
def test_a_host_time_out_is_handed_to_every_wait(
    name: str, limit: datetime.timedelta | None, network: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Work] = []

    class Counted(Work):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    monkeypatch.setattr(f"{__name__}.Work", Counted)
    pending = TRANSPORTS[name](None, limit).start(torch.zeros(2, 8), [0, 0, 2, 0], torch.zeros(2, 8), [0, 0, 2, 0])
    assert not pending.is_done()
    pending.wait()
    assert [work.waits for work in made] == [[() if limit is None else (limit,)]] * len(made)
    for work in made:
        work.done = True
    assert pending.is_done()
    assert made


def test_a_communicator_is_used_by_all_of_its_ranks_first(network: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every new group at once, in the order in which all ranks make them; those of others are not, nor is the world."""
    made: list[list[int]] = []

    def new_group(ranks: list[int], *, timeout: datetime.timedelta, pg_options: object) -> str:
        assert timeout == datetime.timedelta(seconds=9)
        assert pg_options is None
        made.append(ranks)
        return f"group of {ranks}"

    monkeypatch.setattr(dist, "new_group", new_group)
    found = Communicators(
        [(0, 1), (2, 3), (0, 1, 2, 3), (1, 2)],
        "peer-to-peer",
        timeout=datetime.timedelta(seconds=9),
    )
    assert made == [[4, 5], [6, 7], [5, 6]]
    assert [options["group"] for *_, options in network] == ["group of [4, 5]", "group of [5, 6]"]
    assert all(tensor.dtype == torch.uint8 and len(tensor) == 4 for _, tensor, *_ in [call[:2] for call in network])
    assert set(found.transports) == {(0, 1), (0, 1, 2, 3), (1, 2)}
