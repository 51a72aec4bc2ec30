"""A rank among others: meeting them, agreeing with them before the first collective, and naming those that fail.

Ranks meet through a store. Before any collective, and again for every new program, each shows what it is about to run
(:func:`agree`): plan and program digests, versions. A rank that does not come, or holds something else, is an error on
every rank. When an exchange fails, the ranks that are still there say so in the store, and the others are named
(:meth:`Session.explain`).
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Literal

import msgspec
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

import zellige
from zellige.errors import LostRankError, MissingRankError, PreflightError, TooFewRanksError, ZelligeError
from zellige.exec.devices import group_options, rank_device
from zellige.exec.transports import connect
from zellige.program import Program
from zellige.units import count_of

Backend = Literal["gloo", "nccl"]

POLL_SECONDS = 0.01
GRACE_SECONDS = 2.0
"""How long a rank that saw an exchange fail waits for the others to say the same."""


def fingerprint(program: Program, **more: str) -> dict[str, str]:
    """What ranks must have in common to run a program."""
    return {
        "plan": program.plan,
        "program": program.digest,
        "zellige": zellige.__version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        **more,
    }


@dataclass
class Session:
    """One rank's place among ``num_ranks``. In folder ``lives`` every local rank holds a lock while it lives.

    ``launcher`` is the line to the process that started a rank of this machine.
    """

    rank: int
    num_ranks: int
    store: Store
    timeout_s: float
    lives: Path | None = None
    launcher: Connection | None = field(default=None, repr=False)
    _agreed: int = 0
    _life: IO[str] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.lives is not None:
            # Locked first and named then, so that a named file whose lock is free is that of a rank that has ended.
            starting = self.lives / f"starting{self.rank}"
            self._life = starting.open("w")
            fcntl.flock(self._life, fcntl.LOCK_EX)
            starting.rename(self.lives / f"rank{self.rank}")

    def serve(self, answer: Callable[[bytes], bytes]) -> None:
        """Answer what the launcher asks, one request after another, until it says that there is no more."""
        if self.launcher is None:
            raise AssertionError("only ranks that a launcher started can be asked")
        while request := self.launcher.recv_bytes():
            self.launcher.send_bytes(answer(request))

    def agree(self, shown: Mapping[str, str]) -> None:
        """Compare with all ranks.

        Raises :class:`PreflightError` on every rank where they differ, :class:`MissingRankError` or
        :class:`LostRankError` where one does not come.
        """
        prefix = f"agree{self._agreed}"
        self._agreed += 1
        self.store.set(f"{prefix}/{self.rank}", msgspec.json.encode(dict(shown)).decode())
        missing = self._await_keys(prefix, range(self.num_ranks), self.timeout_s)
        where = f"rank {self.rank} of {self.num_ranks}, preflight {self._agreed}"
        if missing and all(self._has_ended(rank) for rank in missing):
            raise LostRankError(
                f"{_ranks(missing)} ended before the start", where=where, fix="look at the first error of that rank"
            )
        if missing:
            raise MissingRankError(
                f"{_ranks(missing)} did not come to the start within {self.timeout_s:g} s",
                where=where,
                fix="start every rank of the program, or allow more time",
            )
        found = [
            msgspec.json.decode(self.store.get(f"{prefix}/{rank}"), type=dict[str, str])
            for rank in range(self.num_ranks)
        ]
        self._compare(found)

    def _compare(self, found: Sequence[dict[str, str]]) -> None:
        details = []
        for key in found[0]:
            values: dict[str, list[int]] = {}
            for rank, shown in enumerate(found):
                values.setdefault(shown.get(key, "(nothing)"), []).append(rank)
            if len(values) > 1:
                details += [f"{key}: {value or '(none)'} on {_ranks(ranks)}" for value, ranks in values.items()]
        if details:
            raise PreflightError(
                "ranks are about to run different things",
                where=f"rank {self.rank} of {self.num_ranks}",
                details=tuple(details),
                fix="give every rank the same plan, and the same versions",
            )

    def _await_keys(self, prefix: str, ranks: Sequence[int], seconds: float) -> list[int]:
        """Ranks without a key after at most ``seconds``; a rank that has ended is not waited for."""
        deadline = time.monotonic() + seconds
        missing = list(ranks)
        while True:
            missing = [rank for rank in missing if not self.store.check([f"{prefix}/{rank}"])]
            if not missing or time.monotonic() > deadline:
                return missing
            if all(self._has_ended(rank) for rank in missing):
                return missing
            time.sleep(POLL_SECONDS)

    def _has_ended(self, rank: int) -> bool:
        """Whether a local rank's process is known to be gone: its lock is free."""
        if self.lives is None or rank == self.rank:
            return False
        with contextlib.suppress(OSError), (self.lives / f"rank{rank}").open() as life:
            fcntl.flock(life, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return True
        return False

    def explain(self, error: Exception, operation: str, ranks: tuple[int, ...]) -> ZelligeError:
        """The error of a failed exchange: which operation, and which of its ranks are gone or did not come."""
        self.store.set(f"fault/{self.rank}", operation)
        others = [rank for rank in range(self.num_ranks) if rank != self.rank]
        silent = self._await_keys("fault", others, min(GRACE_SECONDS, self.timeout_s))
        ended = [rank for rank in others if self._has_ended(rank)]
        # Who said so itself and then ended is no cause while somebody is silent.
        lost = [rank for rank in silent if rank in ended] or ([] if silent else ended)
        cause = str(error).splitlines()[0] if str(error) else type(error).__name__
        where = f"rank {self.rank} of {self.num_ranks}, in {operation} among {_ranks(ranks)}"
        if lost:
            return LostRankError(
                f"{_ranks(lost)} ended before {operation} was done",
                where=where,
                details=(cause,),
                fix="look at the first error of that rank",
            )
        return MissingRankError(
            f"{_ranks(silent) if silent else 'a rank'} did not come to {operation} within {self.timeout_s:g} s",
            where=where,
            details=(cause,),
            fix="allow more time, or look at what that rank does instead",
        )


def require_ranks(program: Program, available: int) -> None:
    """Raise :class:`TooFewRanksError` for a program of more ranks than there are."""
    if program.num_ranks > available:
        raise TooFewRanksError(
            f"the plan is for {count_of(program.num_ranks, 'rank')}, and there are {available}",
            fix=f"start {count_of(program.num_ranks, 'rank')}, or plan for {available}",
        )


@contextlib.contextmanager
def connected(session: Session, backend: Backend, shown: Mapping[str, str]) -> Iterator[Session]:
    """Agree with all ranks, then join the process group; leaves it at the end, whatever happens.

    Under NCCL the rank's GPU becomes the current device. After a failure communicators are aborted there: an orderly
    end would wait for kernels that wait for a lost peer. The group's own time-out is twice the session's, so that
    whoever watches exchanges speaks before NCCL ends the process.
    """
    device = rank_device(backend, session.rank)
    session.agree(shown)
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)
    timeout = datetime.timedelta(seconds=session.timeout_s * (2 if on_gpu else 1))
    try:
        dist.init_process_group(
            backend,
            store=PrefixStore("group", session.store),
            rank=session.rank,
            world_size=session.num_ranks,
            timeout=timeout,
            pg_options=group_options(backend, timeout),
            device_id=device if on_gpu else None,
        )
        connect(None, device)
        dist.barrier()
    except RuntimeError as error:
        raise session.explain(error, "the first barrier", tuple(range(session.num_ranks))) from error
    try:
        yield session
    except BaseException:
        _leave(aborts=on_gpu)
        raise
    _leave(aborts=False)


def _leave(*, aborts: bool) -> None:
    if aborts:
        dist.distributed_c10d._abort_process_group()
    else:
        dist.destroy_process_group()


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) > 8:
        return f"ranks {ranks[0]} to {ranks[-1]} ({len(ranks)})"
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
