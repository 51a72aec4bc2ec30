"""Timing exchanges between real ranks: all-to-alls, all-gathers, reduce-scatters, sends, by size and number of ranks.

All-to-alls are uneven, as plans make them. A reduce-scatter adds up gradients in fp32; gloo has one of its own (the
list form, equal parts as sharded parameters have them). dK and dV of attention do not travel by it: they go to their
owners in an all-to-all, and what adding them up takes there is the unpacking of the engine's own exchanges.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable

import msgspec
import torch
import torch.distributed as dist

from zellige.cluster import LINK_OPS, LinkOp
from zellige.exec.session import Backend, Session, connected
from zellige.exec.trial import pinned

GRADIENT_BYTES = 4


class WireTask(msgspec.Struct, frozen=True, kw_only=True):
    """What to time: every operation at every size (bytes that the busiest rank receives).

    ``repeats`` times, or as often as fits into ``seconds``, but ``fewest`` times at least.
    """

    sizes: tuple[int, ...]
    groups: tuple[int, ...]
    repeats: int = 15
    fewest: int = 5
    seconds: float = 0.1
    warm_ups: int = 2
    backend: Backend = "gloo"


class WireTime(msgspec.Struct, frozen=True, kw_only=True):
    """Wall nanoseconds of one operation on ``num_ranks`` ranks, from a barrier to the last rank, by repeat."""

    op: LinkOp
    num_ranks: int
    strided: bool
    received_bytes: int
    times_ns: tuple[int, ...]


def wire_task(session: Session, payload: bytes) -> bytes:
    """A rank's part; every rank answers its own times, in the same order."""
    task = msgspec.json.decode(payload, type=WireTask)
    with pinned(session.rank), connected(session, task.backend, {"wire": payload.decode()}):
        return msgspec.json.encode(_times(session, task))


def _times(session: Session, task: WireTask) -> list[WireTime]:
    found = []
    for ranks, strided in rank_groups(session.num_ranks, task.groups):
        group = dist.new_group(list(ranks), timeout=datetime.timedelta(seconds=session.timeout_s))
        for op in LINK_OPS:
            for size in task.sizes:
                times: tuple[int, ...] = ()
                if session.rank in ranks:
                    times = _timed(_call(op, size, ranks, group), ranks[0], group, task)
                found.append(
                    WireTime(op=op, num_ranks=len(ranks), strided=strided, received_bytes=size, times_ns=times)
                )
        dist.barrier()
        if session.rank in ranks:
            dist.destroy_process_group(group)
    return found


def rank_groups(num_ranks: int, sizes: tuple[int, ...]) -> list[tuple[tuple[int, ...], bool]]:
    """Rank sets to time, contiguous, and strided where that is something else."""
    found: list[tuple[tuple[int, ...], bool]] = []
    for size in sizes:
        if 2 <= size <= num_ranks:
            found.append((tuple(range(size)), False))
            stride = num_ranks // size
            if stride > 1:
                found.append((tuple(range(0, stride * size, stride)), True))
    return found


def _call(op: LinkOp, size: int, ranks: tuple[int, ...], group: dist.ProcessGroup) -> Callable[[], None]:
    """One exchange in which every rank receives ``size`` bytes, unevenly where the operation can."""
    others = len(ranks) - 1
    if op == "all_to_all":
        counts = _uneven(size, len(ranks), ranks.index(dist.get_rank()))
        sends = [_uneven(size, len(ranks), place)[ranks.index(dist.get_rank())] for place in range(len(ranks))]
        receive, send = torch.empty(sum(counts), dtype=torch.uint8), torch.zeros(sum(sends), dtype=torch.uint8)
        return lambda: _done(dist.all_to_all_single(receive, send, counts, sends, group=group, async_op=True))
    if op == "all_gather":
        part = torch.zeros(max(1, size // others), dtype=torch.uint8)
        parts = [torch.empty_like(part) for _ in ranks]
        return lambda: _done(dist.all_gather(parts, part, group=group, async_op=True))
    if op == "reduce_scatter":
        own = torch.empty(max(1, size // others // GRADIENT_BYTES), dtype=torch.float32)
        whole = [torch.zeros_like(own) for _ in ranks]
        return lambda: _done(dist.reduce_scatter(own, whole, group=group, async_op=True))
    return _ring_step(size, ranks, group)


def _ring_step(size: int, ranks: tuple[int, ...], group: dist.ProcessGroup) -> Callable[[], None]:
    place = ranks.index(dist.get_rank())
    send, receive = torch.zeros(size, dtype=torch.uint8), torch.empty(size, dtype=torch.uint8)
    after, before = ranks[(place + 1) % len(ranks)], ranks[place - 1]

    def step() -> None:
        operations = [dist.P2POp(dist.isend, send, after, group), dist.P2POp(dist.irecv, receive, before, group)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    return step


def _done(work: dist.Work) -> None:
    work.wait()


def _uneven(size: int, ranks: int, place: int) -> list[int]:
    """Bytes from each rank, none from itself: shares of 1, 2, .. of the whole, as irregular plans have them."""
    weights = [0 if rank == place else 1 + (rank - place) % ranks for rank in range(ranks)]
    return [size * weight // sum(weights) for weight in weights]


def _timed(call: Callable[[], None], first: int, group: dist.ProcessGroup, task: WireTask) -> tuple[int, ...]:
    began = time.perf_counter()
    for _ in range(task.warm_ups):
        _once(call, group)
    once = (time.perf_counter() - began) / task.warm_ups
    # All ranks must repeat equally often: the first one says how often that is.
    repeats = torch.tensor([min(task.repeats, max(task.fewest, int(task.seconds / once)))])
    dist.broadcast(repeats, first, group)
    return tuple(_once(call, group) for _ in range(int(repeats)))


def _once(call: Callable[[], None], group: dist.ProcessGroup) -> int:
    dist.barrier(group)
    began = time.perf_counter_ns()
    call()
    return time.perf_counter_ns() - began
