"""Streams: the plans that one would make one by one, in order, bounded ahead; and what happens when something ends."""

from __future__ import annotations

import dataclasses
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle.batches import BATCHES, make_problem, problem_of
from test_cache import reordered

from zellige import catalog
from zellige.errors import InternalError, LostPlannerError, NoRoomError, UnknownNameError, UsageError
from zellige.placement import Plan, Problem
from zellige.plan import plan_batch, worker
from zellige.plan.cache import PlanCache
from zellige.plan.policies import POLICIES, Policy
from zellige.plan.stream import plan_line, plan_stream
from zellige.plan.worker import Failure, Request, Start


def is_running(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def ends_soon(pid: int, seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not is_running(pid)


@settings(max_examples=2)
@given(
    picks=st.lists(st.tuples(st.integers(0, len(BATCHES) - 1), st.integers(0, 99)), min_size=4, max_size=8),
    policy=st.sampled_from(("zellige-paper", "dp", "static")),
    ahead=st.integers(1, 6),
    max_entries=st.sampled_from([1, 100]),
)
def test_a_stream_is_sequential_planning(
    picks: list[tuple[int, int]], policy: str, ahead: int, max_entries: int
) -> None:
    """Byte for byte, whatever set-ups follow one another, however far ahead and however many plans are kept."""
    problems = [reordered(problem_of(index), random.Random(seed), f"batch-{seed}") for index, seed in picks]
    with plan_stream(problems, policy, ahead=ahead, max_entries=max_entries) as plans:
        lines = [plan_line(plan) for plan in plans]
        assert plans.worker_id is None, "ended with the last plan"
    assert lines == [plan_line(plan_batch(problem, policy)) for problem in problems]


def test_batches_are_read_no_further_ahead_than_told_and_their_errors_keep_their_place() -> None:
    read = 0

    def batches() -> Iterator[Problem]:
        nonlocal read
        for _ in range(7):
            read += 1
            yield problem_of(read % 3)
        raise UsageError("the eighth batch cannot be read")

    stream = plan_stream(batches(), "dp", ahead=3)
    for taken in range(1, 8):
        next(stream)
        assert read == min(taken + 2, 7)
    assert stream.kept == 4
    process = stream.worker_id
    with pytest.raises(UsageError, match="eighth batch"):
        next(stream)
    assert process is not None
    assert ends_soon(process)


def test_a_batch_without_a_plan_fails_in_its_place() -> None:
    """The plans before it come; the error is the planner's own, and says which batch and how many micro-steps."""
    heavy = make_problem([(832, 480, 81)] * 120)
    stream = plan_stream([problem_of(0), heavy, problem_of(1)], "zellige-paper", engine="coalesced")
    assert next(stream).batch == "batch"
    with pytest.raises(NoRoomError) as caught:
        next(stream)
    assert caught.value.where.startswith("batch batch: ")
    assert "which would need 3 micro-steps" in caught.value.fix
    with pytest.raises(StopIteration):
        next(stream)
    assert stream.worker_id is None


def test_a_killed_worker_is_an_error_and_no_hang() -> None:
    slow = make_problem([(832, 480, 81)] * 2 + [(1280, 720, 81)] * 3 + [(512, 512, 1)] * 40, "a800x16")
    problems = [problem_of(0), *([slow] * 4)]
    stream = plan_stream(problems, "joint", ahead=5)
    next(stream)
    assert stream.worker_id is not None
    os.kill(stream.worker_id, signal.SIGKILL)
    with pytest.raises(LostPlannerError, match="SIGKILL") as caught:
        list(stream)
    assert caught.value.exit_code == 6
    assert "batch batch" in caught.value.where
    assert stream.worker_id is None


@pytest.mark.slow
def test_a_worker_that_falls_silent_is_given_up() -> None:
    stream = plan_stream([problem_of(0)] * 3, "dp", ahead=1, timeout_s=20.0)
    next(stream)
    process = stream.worker_id
    assert process is not None
    os.kill(process, signal.SIGSTOP)
    stream._timeout_s = 0.2
    with pytest.raises(LostPlannerError, match=r"within 0\.2 s"):
        next(stream)
    assert ends_soon(process)


def test_a_worker_that_cannot_start_is_an_error(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture) -> None:
    monkeypatch.setattr("zellige.plan.stream.command", lambda: [sys.executable, "-c", "raise SystemExit('no room')"])
    with pytest.raises(LostPlannerError, match="ended with status 1"), plan_stream([problem_of(0)], "dp") as plans:
        list(plans)
    assert "no room" in capfd.readouterr().err


def test_a_bug_in_the_planner_is_told_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def stumble(problem: Problem) -> Plan:
        raise ZeroDivisionError("a bug")

    monkeypatch.setitem(POLICIES, "dp", Policy(stumble, "group", "for this test"))
    answer = worker._answer(PlanCache(), problem_of(0), Start(policy="dp", engine=None, max_entries=1))
    assert isinstance(answer, Failure)
    assert type(answer.error()) is InternalError
    assert "ZeroDivisionError: a bug" in answer.message
    assert "stumble" in "".join(answer.details)


def test_errors_survive_the_way_by_code() -> None:
    failure = Failure(code="ZL204", message="no room", where="here", details=("a", "b"), fix="more")
    error = failure.error()
    assert type(error) is NoRoomError
    assert (error.message, error.where, error.details, error.fix) == ("no room", "here", ("a", "b"), "more")
    assert Failure(code="ZL999", message="?").error().code == "ZL900"


def test_set_ups_survive_the_way() -> None:
    """Every bundled cluster and model is the same on the other side."""
    for cluster in catalog.names("clusters"):
        loaded = catalog.load_cluster(cluster)
        assert msgspec.json.decode(msgspec.json.encode(loaded), type=type(loaded)) == loaded
    for model in catalog.names("models"):
        spec = catalog.load_model(model)
        assert msgspec.json.decode(msgspec.json.encode(spec), type=type(spec)) == spec
    for index in range(3):
        problem = dataclasses.replace(problem_of(index))
        sent = msgspec.json.encode(Request(problem=problem))
        assert msgspec.json.decode(sent, type=Request).problem == problem


def test_what_is_wrong_at_once_is_said_at_once() -> None:
    with pytest.raises(UnknownNameError):
        plan_stream([], "dpp")
    with pytest.raises(UsageError):
        plan_stream([], "dp", ahead=0)
    assert list(plan_stream([], "dp")) == []


TRAINER = """
    import sys, time
    sys.path.insert(0, sys.argv[1])
    from oracle.batches import problem_of
    from zellige.plan.stream import plan_stream

    stream = plan_stream((problem_of(0) for _ in range(10**6)), "dp", ahead=2)
    next(stream)
    print(stream.worker_id, flush=True)
    {last}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("last", "end"),
    [("time.sleep(60)", signal.SIGKILL), ("", None)],
)
def test_no_worker_outlives_its_trainer(last: str, end: signal.Signals | None) -> None:
    """A script without a main guard, killed or ended without closing anything."""
    program = textwrap.dedent(TRAINER).format(last=last)
    tests = str(Path(__file__).parent.parent)
    trainer = subprocess.Popen(
        [sys.executable, "-c", program, tests], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert trainer.stdout is not None
        process = int(trainer.stdout.readline())
        assert process != trainer.pid
        if end is not None:
            trainer.send_signal(end)
        trainer.communicate(timeout=30)
        assert ends_soon(process)
    finally:
        trainer.kill()
        trainer.communicate()
