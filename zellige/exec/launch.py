"""Ranks as processes of this machine: started together, watched, and never left behind.

A rank that fails or dies ends all: the others get a moment to report what they saw, then they are killed. Ranks end by
themselves when the launcher's process is gone. Ranks meet through a file store in a private folder, and talk over the
loopback interface alone.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch
from torch.distributed import FileStore  # type: ignore[attr-defined]

from zellige.errors import InternalError, LostRankError, ZelligeError
from zellige.exec.heap import keep_freed_memory
from zellige.exec.session import Session

RankTask = Callable[[Session, bytes], bytes]
"""What a rank does: its session and the payload in, its answer out. A function of a module, for it goes by name."""

PRELOADED = ["zellige.exec.launch", "torch.fx.experimental.symbolic_shapes", "torch._dynamo", "torch.distributed.fsdp"]
"""Imported once, before ranks are forked; autograd, optimizers and sharding import the rest at their first use."""

REPORT_SECONDS = 4.0
"""How long ranks may take to report, once one of them has failed."""


class RankReport(msgspec.Struct, frozen=True, kw_only=True):
    """How a rank ended: the error that it raised (code and text), or the signal or status that ended its process."""

    rank: int
    code: str = ""
    exit_code: int = 0
    text: str = ""
    fix: str = ""


class RanksFailedError(LostRankError):
    """Ranks that failed; ``reports`` has every rank's own error, and the exit code is the first cause's."""

    def __init__(self, reports: Sequence[RankReport], cause: RankReport) -> None:
        super().__init__(
            cause.text.removeprefix(f"error[{cause.code}] ").splitlines()[0],
            where=f"rank {cause.rank}",
            details=tuple(line for report in reports for line in _lines(report)),
            fix=cause.fix,
        )
        self.reports = tuple(reports)
        self.code = cause.code or LostRankError.code  # type: ignore[misc]
        self.exit_code = cause.exit_code or LostRankError.exit_code  # type: ignore[misc]


def _lines(report: RankReport) -> list[str]:
    return [f"rank {report.rank}: {line}" for line in report.text.splitlines()]


class StartedRanks(NamedTuple):
    """Rank processes, a line to each of them, and the folder where they leave answers and errors."""

    processes: list[multiprocessing.process.BaseProcess]
    lines: list[Connection]
    folder: Path

    def ended(self) -> list[bytes]:
        """End what still runs; the ranks' answers, or :class:`RanksFailedError` with every rank's error."""
        _kill(self.processes)
        return _answers(self.folder, [process.exitcode for process in self.processes])


@contextlib.contextmanager
def started_ranks(task: RankTask, payloads: Sequence[bytes], timeout_s: float) -> Iterator[StartedRanks]:
    """One process for each payload; none outlives the block."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    hold, watched = context.Pipe()
    lines = [context.Pipe() for _ in payloads]
    with tempfile.TemporaryDirectory(prefix="zellige-ranks-") as folder:
        shared = len(payloads), folder, timeout_s, watched
        processes: list[multiprocessing.process.BaseProcess] = [
            context.Process(target=_rank_main, args=(task, payload, rank, *shared, theirs), daemon=True)
            for rank, (payload, (_, theirs)) in enumerate(zip(payloads, lines, strict=True))
        ]
        try:
            for process in processes:
                process.start()
            yield StartedRanks(processes, [ours for ours, _ in lines], Path(folder))
        finally:
            _kill(processes)
            for end in (hold, watched, *(end for line in lines for end in line)):
                end.close()


def run_ranks(
    task: RankTask,
    payloads: Sequence[bytes],
    *,
    timeout_s: float = 60.0,
    deadline_s: float | None = None,
    watch: Callable[[list[int]], None] | None = None,
) -> list[bytes]:
    """Run a task on one process for each payload; returns the ranks' answers.

    ``timeout_s`` bounds every meeting and exchange, ``deadline_s`` the whole run. ``watch`` is told the process ids
    once they run. Raises :class:`RanksFailedError` with every rank's error; no process outlives the call.
    """
    with started_ranks(task, payloads, timeout_s) as ranks:
        if watch is not None:
            watch([process.pid for process in ranks.processes if process.pid is not None])
        _await_all(ranks.processes, deadline_s)
        return ranks.ended()


@contextlib.contextmanager
def staying_ranks(
    task: RankTask, payload: bytes, num_ranks: int, *, timeout_s: float = 60.0
) -> Iterator[Callable[[bytes], list[bytes]]]:
    """Ranks whose task serves requests (:meth:`Session.serve`): a function that asks all, and waits for their answers.

    A request is not empty. Raises :class:`RanksFailedError` where a rank fails or ends, when it is asked or at the end.
    """
    with started_ranks(task, [payload] * num_ranks, timeout_s) as ranks:

        def ask(request: bytes) -> list[bytes]:
            _tell(ranks, request)
            found: dict[Connection, bytes] = {}
            while len(found) < num_ranks:
                silent = [line for line in ranks.lines if line not in found]
                ready = wait([*silent, *(process.sentinel for process in ranks.processes)])
                found.update((line, line.recv_bytes()) for line in silent if line in ready)
                if len(found) < num_ranks and not all(process.is_alive() for process in ranks.processes):
                    _give_up(ranks)
            return [found[line] for line in ranks.lines]

        yield ask
        _tell(ranks, b"")
        _await_all(ranks.processes, timeout_s)
        ranks.ended()


def _tell(ranks: StartedRanks, request: bytes) -> None:
    """Send all ranks the same bytes; one that has ended is an error."""
    try:
        for line in ranks.lines:
            line.send_bytes(request)
    except OSError:
        _give_up(ranks)
        raise


def _give_up(ranks: StartedRanks) -> None:
    """Let ranks that wait for a request go, hear what the others report, and raise their errors."""
    for line in ranks.lines:
        with contextlib.suppress(OSError):
            line.send_bytes(b"")
    _await_all(ranks.processes, REPORT_SECONDS)
    ranks.ended()


def _await_all(processes: Sequence[multiprocessing.process.BaseProcess], deadline_s: float | None) -> None:
    """Return when all have ended, some time after one has failed, or at the deadline."""
    deadline = None if deadline_s is None else time.monotonic() + deadline_s
    running = list(processes)
    while running:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        if not wait([process.sentinel for process in running], timeout=left):
            return
        ended = [process for process in running if not process.is_alive()]
        running = [process for process in running if process not in ended]
        for process in ended:
            if process.exitcode != 0:
                soon = time.monotonic() + REPORT_SECONDS
                deadline = soon if deadline is None else min(deadline, soon)


def _kill(processes: Sequence[multiprocessing.process.BaseProcess]) -> None:
    """End what still runs: a rank inside a collective does not listen to anything milder."""
    for process in processes:
        if process.pid is not None and process.is_alive():
            process.kill()
    for process in processes:
        if process.pid is not None:
            process.join()


def _answers(folder: Path, exit_codes: Sequence[int | None]) -> list[bytes]:
    reports = []
    for rank, status in enumerate(exit_codes):
        error = folder / f"error{rank}.json"
        if error.exists():
            reports.append(msgspec.json.decode(error.read_bytes(), type=RankReport))
        elif status != 0 or not (folder / f"answer{rank}").exists():
            reports.append(_silent_end(rank, status))
    if reports:
        raise RanksFailedError(reports, _first_cause(reports))
    return [(folder / f"answer{rank}").read_bytes() for rank in range(len(exit_codes))]


def _silent_end(rank: int, status: int | None) -> RankReport:
    if status is not None and status < 0:
        how = f"killed by signal {-status} ({signal.Signals(-status).name})"
    else:
        how = f"ended with status {status}"
    text = f"error[{LostRankError.code}] the process of rank {rank} was {how}, without a report"
    fix = LostRankError.way_out
    if status == -signal.SIGKILL:
        fix = "if nobody ended it, memory ran out: fewer ranks, a larger --shrink, or a smaller model"
    text += f"\n  try: {fix}"
    return RankReport(rank=rank, code=LostRankError.code, exit_code=LostRankError.exit_code, text=text, fix=fix)


def _first_cause(reports: Sequence[RankReport]) -> RankReport:
    """An error of the work itself before those of ranks that only missed another; else the first report."""
    consequences = {"ZL613", "ZL614"}
    own = [report for report in reports if report.code not in consequences]
    return (own or list(reports))[0]


def _rank_main(
    task: RankTask,
    payload: bytes,
    rank: int,
    num_ranks: int,
    folder: str,
    timeout_s: float,
    watched: Connection,
    launcher: Connection,
) -> None:
    """A rank's process, from its first line to its exit status."""
    threading.Thread(target=_end_with_launcher, args=(watched,), daemon=True).start()
    torch.set_num_threads(1)
    keep_freed_memory()
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    place = Path(folder)
    try:
        store = FileStore(str(place / "store"), num_ranks)
        session = Session(rank, num_ranks, store, timeout_s, lives=place, launcher=launcher)
        answer = task(session, payload)
        (place / f"answer{rank}").write_bytes(answer)
        status = 0
    except ZelligeError as error:
        status = error.exit_code
        _report(place, rank, error)
    except Exception:
        status = InternalError.exit_code
        _report(place, rank, InternalError(f"rank {rank} failed", details=tuple(traceback.format_exc().splitlines())))
    # Not through interpreter shutdown: a thread inside a broken collective would hold it up.
    os._exit(status)


def _report(folder: Path, rank: int, error: ZelligeError) -> None:
    report = RankReport(rank=rank, code=error.code, exit_code=error.exit_code, text=str(error), fix=error.fix)
    draft = folder / f"draft{rank}"
    draft.write_bytes(msgspec.json.encode(report))
    draft.replace(folder / f"error{rank}.json")


def _end_with_launcher(watched: Connection) -> None:
    """End this process when the launcher's is gone: its end of the pipe closes with it."""
    try:
        watched.recv_bytes()
    except (EOFError, OSError):
        os._exit(LostRankError.exit_code)
