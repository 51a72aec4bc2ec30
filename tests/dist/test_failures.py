"""Ranks that disagree, die or do not come: a coded error on every rank within seconds, and no process left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest
from rank_tasks import (
    PlanRun,
    die_before_the_start,
    die_on_last_rank,
    run_one,
    sleep_long,
    stay_away_from_an_exchange,
    stay_away_from_the_start,
    watch_while_the_last_rank_stays_away,
)

from zellige.errors import MissingExtraError, TooFewRanksError
from zellige.exec.execute import execute_attention
from zellige.exec.launch import RanksFailedError, RankTask, run_ranks
from zellige.program import Assignment, Heads, Program, build_program
from zellige.shards import parse_config

pytestmark = pytest.mark.dist

TIMEOUT_S = 5.0
SOON_S = 30.0
"""Time-out, grace and report, and what a loaded machine adds; a hang would take the minute that tasks sleep."""


def plan(length: int = 24, num_ranks: int = 3) -> Program:
    """Sequences in a ring, in a gather, and whole ones, so that every rank exchanges and computes."""
    placed = [
        (length, "k3", (0, 1, 2)),
        (length, "q2", (1, 2)),
        (6, "whole", (0,)),
        (5, "whole", (1,)),
        (7, "whole", (2,)),
    ]
    assignments = [Assignment(f"s{n}", size, parse_config(text), ranks) for n, (size, text, ranks) in enumerate(placed)]
    return build_program(assignments, Heads(4, 2, 8), num_ranks=num_ranks)


def payload(program: Program) -> bytes:
    return msgspec.json.encode(PlanRun(program, 0, "fp32", "all-to-all"))


def failure(task: RankTask, payloads: Sequence[bytes]) -> RanksFailedError:
    """The error of a run that must fail soon and leave no process."""
    pids: list[int] = []
    start = time.monotonic()
    with pytest.raises(RanksFailedError) as caught:
        run_ranks(task, payloads, timeout_s=TIMEOUT_S, deadline_s=60, watch=pids.extend)
    assert time.monotonic() - start < SOON_S
    assert len(pids) == len(payloads)
    assert not any(is_running(pid) for pid in pids)
    return caught.value


def is_running(pid: int) -> bool:
    """Whether a process is there and not a zombie."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def codes(error: RanksFailedError) -> dict[int, str]:
    return {report.rank: report.code for report in error.reports}


def test_19_a_rank_with_another_plan_is_an_error_on_every_rank() -> None:
    error = failure(run_one, [payload(plan()), payload(plan()), payload(plan(length=25))])
    assert codes(error) == {0: "ZL612", 1: "ZL612", 2: "ZL612"}
    assert error.exit_code == 6
    for report in error.reports:
        assert "on ranks 0, 1" in report.text
        assert "on rank 2" in report.text
        assert "program: sha256:" in report.text


def test_20_a_message_that_one_side_leaves_out_is_an_error_before_any_exchange() -> None:
    program = plan()
    first = program.exchanges[0]
    changed = msgspec.structs.replace(first, messages=first.messages[1:])
    broken = msgspec.structs.replace(program, exchanges=(changed, *program.exchanges[1:]))
    error = failure(run_one, [payload(program), payload(program), payload(broken)])
    assert codes(error) == {0: "ZL612", 1: "ZL612", 2: "ZL612"}


def test_a_killed_rank_is_named_by_every_other() -> None:
    error = failure(die_on_last_rank, [payload(plan())] * 3)
    assert codes(error) == {0: "ZL614", 1: "ZL614", 2: "ZL614"}
    assert "SIGKILL" in error.reports[2].text
    for report in error.reports[:2]:
        assert "rank 2 ended before" in report.text
        assert "forward.split." in report.text


def test_a_rank_that_is_killed_before_the_start_is_named() -> None:
    error = failure(die_before_the_start, [payload(plan())] * 3)
    assert codes(error) == {0: "ZL614", 1: "ZL614", 2: "ZL614"}
    assert "SIGKILL" in error.reports[2].text
    for report in error.reports[:2]:
        assert "rank 2 ended before the start" in report.text


def test_a_rank_that_does_not_come_to_the_start_is_named() -> None:
    error = failure(stay_away_from_the_start, [payload(plan())] * 3)
    assert codes(error) == {0: "ZL613", 1: "ZL613", 2: "ZL614"}
    for report in error.reports[:2]:
        assert "rank 2 did not come to the start within 5 s" in report.text


def test_a_rank_that_does_not_come_to_an_exchange_is_named_with_the_exchange() -> None:
    error = failure(stay_away_from_an_exchange, [payload(plan())] * 3)
    assert codes(error) == {0: "ZL613", 1: "ZL613", 2: "ZL614"}
    for report in error.reports[:2]:
        assert "rank 2 did not come to forward.split." in report.text


def test_a_rank_whose_waits_do_not_block_is_ended_by_its_watch_and_names_the_missing_one(tmp_path: Path) -> None:
    message = msgspec.json.encode((str(tmp_path), PlanRun(plan(), 0, "fp32", "all-to-all")))
    error = failure(watch_while_the_last_rank_stays_away, [message] * 3)
    assert codes(error)[0] == codes(error)[1] == "ZL614"
    for rank in (0, 1):
        assert "status 6" in error.reports[rank].text
        said = (tmp_path / f"rank{rank}").read_text()
        assert "error[ZL613] rank 2 did not come to forward.split." in said
        assert "no exchange has ended for 1 s" in said


def test_a_plan_for_more_ranks_than_there_are_is_refused_by_all() -> None:
    error = failure(run_one, [payload(plan(num_ranks=4))] * 3)
    assert codes(error) == {0: "ZL611", 1: "ZL611", 2: "ZL611"}
    assert "the plan is for 4 ranks, and there are 3" in error.reports[0].text
    start = time.monotonic()
    with pytest.raises(TooFewRanksError, match="for 4 ranks, and there are 2"):
        execute_attention(plan(num_ranks=4), num_ranks=2)
    with pytest.raises(MissingExtraError, match="no CUDA device"):
        execute_attention(plan(), backend="nccl")
    assert time.monotonic() - start < 1


def test_a_run_past_its_deadline_is_ended() -> None:
    pids: list[int] = []
    with pytest.raises(RanksFailedError) as caught:
        run_ranks(sleep_long, [b""] * 2, timeout_s=TIMEOUT_S, deadline_s=2, watch=pids.extend)
    assert codes(caught.value) == {0: "ZL614", 1: "ZL614"}
    assert not any(is_running(pid) for pid in pids)


def test_ranks_end_with_a_launcher_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "launcher.py"
    here = str(Path(__file__).parent)
    script.write_text(
        textwrap.dedent(f"""
        import sys
        sys.path[:0] = [{here!r}, {str(Path(here).parent)!r}]
        from rank_tasks import write_pid_and_sleep
        from zellige.exec.launch import run_ranks
        if __name__ == "__main__":
            run_ranks(write_pid_and_sleep, [{str(tmp_path)!r}.encode()] * 2)
        """)
    )
    launcher = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        files = [tmp_path / f"pid{rank}" for rank in range(2)]
        wait_for(lambda: all(file.exists() and file.read_text() for file in files), 60)
        pids = [int(file.read_text()) for file in files]
        assert all(is_running(pid) for pid in pids)
    finally:
        os.kill(launcher.pid, signal.SIGKILL)
        launcher.wait()
    wait_for(lambda: not any(is_running(pid) for pid in pids), 10)


def wait_for(condition: Callable[[], bool], seconds: float) -> None:
    """Return when the condition holds; fail after so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
