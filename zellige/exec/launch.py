"""Ranks as processes of this machine: started together, watched, and never left behind.

A rank that fails or dies ends all: the others get a moment to report what they saw, then they are killed. Ranks end by
themselves when the launcher's process is gone. Ranks meet through a file store in a private folder, and talk over the
loopback interface alone.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path

import msgspec
import torch
from torch.distributed import FileStore  # type: ignore[attr-defined]

from zellige.errors import InternalError, LostRankError, ZelligeError
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
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    hold, watched = context.Pipe()
    with tempfile.TemporaryDirectory(prefix="zellige-ranks-") as folder:
        processes = [
            context.Process(
                target=_rank_main, args=(task, payload, rank, len(payloads), folder, timeout_s, watched), daemon=True
            )
            for rank, payload in enumerate(payloads)
        ]
        try:
            for process in processes:
                process.start()
            if watch is not None:
                watch([process.pid for process in processes if process.pid is not None])
            _await_all(processes, deadline_s)
        finally:
            _kill(processes)
            hold.close()
            watched.close()
        return _answers(Path(folder), [process.exitcode for process in processes])


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
    task: RankTask, payload: bytes, rank: int, num_ranks: int, folder: str, timeout_s: float, watched: Connection
) -> None:
    """A rank's process, from its first line to its exit status."""
    threading.Thread(target=_end_with_launcher, args=(watched,), daemon=True).start()
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    place = Path(folder)
    try:
        store = FileStore(str(place / "store"), num_ranks)
        session = Session(rank, num_ranks, store, timeout_s, lives=place)
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
