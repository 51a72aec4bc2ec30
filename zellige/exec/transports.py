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


class Pending(Protocol):
    """An exchange in flight; its buffers stay alive until it is done."""

    def wait(self) -> None:
        """Return when the receive buffer is filled; raises ``RuntimeError`` on a time-out or a lost peer."""


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
    """Work handles of torch.distributed, with the buffers that they use."""

    def __init__(self, works: list[dist.Work], *buffers: Tensor) -> None:
        self._works = works
        self._buffers = buffers

    def wait(self) -> None:
        """See :class:`Pending`."""
        for work in self._works:
            work.wait()
        self._buffers = ()


class AllToAll(_Counters):
    """All ranks of a communicator in one uneven all-to-all."""

    name = "all-to-all"

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        super().__init__()
        self._group = group

    def start(
        self, send: Tensor, send_counts: Sequence[int], receive: Tensor, receive_counts: Sequence[int]
    ) -> Pending:
        """See :class:`Transport`."""
        self.count(send, send_counts, receive, receive_counts)
        work = dist.all_to_all_single(
            receive, send, list(receive_counts), list(send_counts), group=self._group, async_op=True
        )
        return _Works([work], send, receive)


class PeerToPeer(_Counters):
    """One batch of sends and receives among real peers."""

    name = "peer-to-peer"

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        super().__init__()
        self._group = group
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
        return _Works(works, send, receive)


TRANSPORTS: dict[str, Callable[[dist.ProcessGroup | None], Transport]] = {
    "all-to-all": AllToAll,
    "peer-to-peer": PeerToPeer,
}


class Communicators:
    """The process groups of a program: the world (or a given group) for one that all ranks enter, others made once.

    Every rank of the parent group must construct it, for new groups are made by all, in the same order.
    """

    def __init__(
        self,
        rank_sets: Sequence[tuple[int, ...]],
        transport: str,
        *,
        group: dist.ProcessGroup | None = None,
        timeout: datetime.timedelta,
    ) -> None:
        world = dist.get_process_group_ranks(group if group is not None else dist.group.WORLD)
        self._made: list[dist.ProcessGroup] = []
        self._transports: dict[tuple[int, ...], Transport] = {}
        mine = dist.get_rank()
        for ranks in dict.fromkeys(rank_sets):
            globals_ = [world[rank] for rank in ranks]
            if globals_ == world:
                communicator = group
            else:
                # A new group does not inherit the time-out of its parent, so it is always given.
                communicator = dist.new_group(globals_, timeout=timeout)
                if mine in globals_:
                    self._made.append(communicator)
            if mine in globals_:
                self._transports[ranks] = TRANSPORTS[transport](communicator)

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
