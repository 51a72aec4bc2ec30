"""How packed exchanges travel between processes: one interface, two ways.

* :class:`AllToAll`: one ``all_to_all_single`` with uneven splits. NCCL posts a send and a receive for every pair of
  ranks, empty ones included.
* :class:`PeerToPeer`: one batch of sends and receives among ranks that have something for each other. A rank without
  any posts nothing, so the communicator's first use must be a real collective (the engine's preflight is one).

An exchange is entered by all of its ranks in the order of the program; both ways then need no more than that. Rows that
stay on their rank never reach a transport.
"""

from __future__ import annotations

import datetime
import warnings
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from zellige.exec.devices import group_options


class Pending(Protocol):
    """An exchange in flight; its buffers stay alive until it is done."""

    def wait(self) -> None:
        """Order what follows behind the exchange; raises ``RuntimeError`` on a time-out or a lost peer.

        The host blocks under gloo. Under NCCL the current stream waits and the host goes on, unless it has a time-out.
        """

    def is_done(self) -> bool:
        """Whether the receive buffer is filled; never blocks."""


class Transport(Protocol):
    """Packed exchanges among a communicator's ranks. Counts what it was given to send and to fill."""

    sent_bytes: int
    received_bytes: int
    exchanges: int

    def start(
        self, send: Tensor, send_counts: Sequence[int], receive: Tensor, receive_counts: Sequence[int]
    ) -> Pending:
        """Begin an exchange of rows, counted by rank of the communicator."""


class _Counters:
    """Bytes and exchanges as handed to the communicator."""

    def __init__(self) -> None:
        self.sent_bytes = 0
        self.received_bytes = 0
        self.exchanges = 0

    def count(self, send: Tensor, send_counts: Sequence[int], receive: Tensor, receive_counts: Sequence[int]) -> None:
        """Add one exchange; sizes of buffers must be those of the counts."""
        if send.shape[0] != sum(send_counts) or receive.shape[0] != sum(receive_counts):
            raise ValueError(f"buffers of {len(send)} and {len(receive)} rows for {send_counts} and {receive_counts}")
        self.sent_bytes += send.numel() * send.element_size()
        self.received_bytes += receive.numel() * receive.element_size()
        self.exchanges += 1


class _Works:
    """Work handles of torch.distributed, with the buffers that they use.

    Buffers are held until the waiting stream is ordered behind the exchange: memory that is freed then is reused after
    it on that stream, which is what the caching allocator counts on.
    """

    def __init__(self, works: list[dist.Work], host_timeout: datetime.timedelta | None, *buffers: Tensor) -> None:
        self._works = works
        self._host_timeout = host_timeout
        self._buffers = buffers

    def wait(self) -> None:
        """See :class:`Pending`."""
        for work in self._works:
            if self._host_timeout is None:
                work.wait()
            else:
                work.wait(self._host_timeout)
        self._buffers = ()

    def is_done(self) -> bool:
        """See :class:`Pending`."""
        return all(work.is_completed() for work in self._works)


class AllToAll(_Counters):
    """All ranks of a communicator in one uneven all-to-all."""

    name = "all-to-all"

    def __init__(self, group: dist.ProcessGroup | None, host_timeout: datetime.timedelta | None = None) -> None:
        super().__init__()
        self._group = group
        self._host_timeout = host_timeout

    def start(
        self, send: Tensor, send_counts: Sequence[int], receive: Tensor, receive_counts: Sequence[int]
    ) -> Pending:
        """See :class:`Transport`."""
        self.count(send, send_counts, receive, receive_counts)
        work = dist.all_to_all_single(
            receive, send, list(receive_counts), list(send_counts), group=self._group, async_op=True
        )
        return _Works([work], self._host_timeout, send, receive)


class PeerToPeer(_Counters):
    """One batch of sends and receives among real peers: under NCCL one group call, which cannot dead-lock."""

    name = "peer-to-peer"

    def __init__(self, group: dist.ProcessGroup | None, host_timeout: datetime.timedelta | None = None) -> None:
        super().__init__()
        self._group = group
        self._host_timeout = host_timeout
        self._ranks = dist.get_process_group_ranks(group if group is not None else dist.group.WORLD)

    def start(
        self, send: Tensor, send_counts: Sequence[int], receive: Tensor, receive_counts: Sequence[int]
    ) -> Pending:
        """See :class:`Transport`."""
        self.count(send, send_counts, receive, receive_counts)
        operations = []
        for action, buffer, counts in ((dist.isend, send, send_counts), (dist.irecv, receive, receive_counts)):
            parts = torch.split(buffer, list(counts))
            operations += [
                dist.P2POp(action, part, peer, self._group)
                for peer, part in zip(self._ranks, parts, strict=True)
                if len(part)
            ]
        works = dist.batch_isend_irecv(operations) if operations else []
        return _Works(works, self._host_timeout, send, receive)


TRANSPORTS: dict[str, Callable[[dist.ProcessGroup | None, datetime.timedelta | None], Transport]] = {
    "all-to-all": AllToAll,
    "peer-to-peer": PeerToPeer,
}


def connect(group: dist.ProcessGroup | None, device: torch.device) -> None:
    """A byte from every rank to every rank: the first use of a communicator, by all of its ranks.

    NCCL connects two ranks when they first exchange something, and a batch of sends and receives that only some ranks
    enter must not be a communicator's first use.
    """
    size = dist.get_world_size(group)
    ones = torch.ones(size, dtype=torch.uint8, device=device)
    dist.all_to_all_single(torch.empty_like(ones), ones, group=group)


class Communicators:
    """The process groups of a program: the world (or a given group) for one that all ranks enter, others made once.

    Every rank of the parent group must construct it, for new groups are made by all, in the same order. On a GPU
    ``host_timeout`` makes every wait block the host, up to that time, and raise: for checks, not for speed.
    """

    def __init__(
        self,
        rank_sets: Sequence[tuple[int, ...]],
        transport: str,
        *,
        group: dist.ProcessGroup | None = None,
        timeout: datetime.timedelta,
        host_timeout: datetime.timedelta | None = None,
    ) -> None:
        world = dist.get_process_group_ranks(group if group is not None else dist.group.WORLD)
        self._made: list[dist.ProcessGroup] = []
        self._transports: dict[tuple[int, ...], Transport] = {}
        mine = dist.get_rank()
        backend = dist.get_backend(group)
        device = torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else torch.device("cpu")
        for ranks in dict.fromkeys(rank_sets):
            globals_ = [world[rank] for rank in ranks]
            if globals_ == world:
                communicator = group
            else:
                # A new group does not inherit the time-out of its parent, so it is always given.
                options = group_options(backend, timeout)
                communicator = dist.new_group(globals_, timeout=timeout, pg_options=options)
                if mine in globals_:
                    self._made.append(communicator)
            if mine in globals_:
                if communicator is not None:
                    # The world's first use was the preflight's.
                    connect(communicator, device)
                self._transports[ranks] = TRANSPORTS[transport](communicator, host_timeout)

    @property
    def transports(self) -> dict[tuple[int, ...], Transport]:
        """By the ranks that enter; those that this rank belongs to."""
        return dict(self._transports)

    @property
    def sent_bytes(self) -> int:
        """Bytes handed over to send, over all communicators."""
        return sum(transport.sent_bytes for transport in self._transports.values())

    @property
    def received_bytes(self) -> int:
        """Bytes of filled buffers, over all communicators."""
        return sum(transport.received_bytes for transport in self._transports.values())

    @property
    def exchanges(self) -> int:
        """Exchanges entered, over all communicators."""
        return sum(transport.exchanges for transport in self._transports.values())

    def close(self) -> None:
        """Destroy the groups that were made here; dropping them alone leaks threads and sockets."""
        for communicator in self._made:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                dist.destroy_process_group(communicator)
        self._made = []
        self._transports = {}
