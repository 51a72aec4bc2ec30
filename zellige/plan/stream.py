"""Plans for a run of batches, made ahead of the trainer by a process of its own, in the order of the batches.

    with plan_stream(problems, "zellige", ahead=4) as plans:
        for plan in plans:
            ...

``problems`` is read as plans are taken, so it may be endless. At most ``ahead`` batches are under way: sent, but not
taken yet. What a plan is depends on its batch alone (:mod:`zellige.plan.cache`), not on those before it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import IO, Self

import msgspec

from zellige.errors import LostPlannerError, UsageError
from zellige.files import canonical_json
from zellige.placement import Engine, Plan, Problem
from zellige.plan.cache import DEFAULT_ENTRIES
from zellige.plan.policies import find_policy
from zellige.plan.worker import Answer, Failure, Request, Start, command

DEFAULT_AHEAD = 4
SECONDS_TO_END = 2.0
"""How long a worker may take to end once its input is closed; then it is killed."""


def plan_stream(
    problems: Iterable[Problem],
    policy: str = "zellige",
    *,
    engine: Engine | None = None,
    ahead: int = DEFAULT_AHEAD,
    timeout_s: float | None = None,
    max_entries: int = DEFAULT_ENTRIES,
) -> PlanStream:
    """An iterator over the plans of batches, planned ahead in another process.

    ``timeout_s`` bounds the wait for one plan; ``max_entries`` is how many plans the worker keeps. Raises
    :class:`UnknownNameError` for the policy at once; while iterating, the error of a batch in its place (the stream
    ends there), and :class:`LostPlannerError` where the worker died or fell silent.
    """
    find_policy(policy)
    if ahead < 1:
        raise UsageError(f"{ahead} batches ahead is none", fix="1 or more")
    start = Start(policy=policy, engine=engine, max_entries=max_entries)
    return PlanStream(problems, start, ahead, timeout_s)


def plan_line(plan: Plan) -> bytes:
    """A plan as one line of canonical JSON without wall-clock time: equal for equal batches and settings."""
    return (
        canonical_json(msgspec.structs.replace(plan, solver=msgspec.structs.replace(plan.solver, planning_ns=0)))
        + b"\n"
    )


class PlanStream(Iterator[Plan]):
    """See :func:`plan_stream`. ``kept`` counts the plans that were dealt from kept ones.

    The worker starts with the first plan that is asked for and ends with the stream: when that is exhausted, fails, is
    closed, leaves its ``with`` block, or is no longer referred to.
    """

    def __init__(self, problems: Iterable[Problem], start: Start, ahead: int, timeout_s: float | None) -> None:
        self.kept = 0
        self._problems = iter(problems)
        self._start = start
        self._ahead = ahead
        self._timeout_s = timeout_s
        self._names: deque[str] = deque()
        self._setting: Problem | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._reader: threading.Thread | None = None
        self._refusal: Exception | None = None
        self._exhausted = self._closed = False

    @property
    def worker_id(self) -> int | None:
        """The process id of the worker, None where none runs."""
        return None if self._process is None else self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def __next__(self) -> Plan:
        try:
            self._send_ahead()
            if self._names:
                return self._take()
            raise self._refusal or StopIteration
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the worker; nothing comes after. Closing twice is no error."""
        self._closed = True
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(OSError):
            _pipe(process.stdin).close()
        try:
            process.wait(SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if self._reader is not None:
            self._reader.join(SECONDS_TO_END)

    def _send_ahead(self) -> None:
        """Send batches until ``ahead`` of them are under way."""
        while not self._exhausted and not self._closed and len(self._names) < self._ahead:
            problem = self._next_problem()
            if problem is None:
                self._exhausted = True
                return
            if self._process is None:
                self._process = self._launch()
                self._send(self._start)
            self._names.append(problem.batch.name)
            self._send(self._request(problem))
        if self._closed:
            self._names.clear()

    def _next_problem(self) -> Problem | None:
        """The next batch; an error in its place waits until the plans before it have been taken."""
        try:
            return next(self._problems, None)
        except Exception as error:
            self._refusal = error
            return None

    def _launch(self) -> subprocess.Popen[bytes]:
        """A worker outside of this process's group, so that Ctrl-C reaches this process alone."""
        process = subprocess.Popen(command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0)
        self._reader = threading.Thread(target=_read, args=(_pipe(process.stdout), self._answers), daemon=True)
        self._reader.start()
        return process

    def _request(self, problem: Problem) -> Request:
        """What the worker does not know yet: the batch, or where the set-up is new, everything."""
        known = self._setting is not None and dataclasses.replace(self._setting, batch=problem.batch) == problem
        self._setting = problem
        # A copy, since the problem itself also holds what was computed from it.
        return Request(batch=problem.batch) if known else Request(problem=dataclasses.replace(problem))

    def _send(self, value: Start | Request) -> None:
        """Write a line; a worker that is gone is found out where its answer is missing."""
        assert self._process is not None
        pipe = _pipe(self._process.stdin)
        with contextlib.suppress(BrokenPipeError):
            pipe.write(msgspec.json.encode(value) + b"\n")
            pipe.flush()

    def _take(self) -> Plan:
        """The next answer, which is for the batch that waits longest."""
        name = self._names[0]
        try:
            line = self._answers.get(timeout=self._timeout_s)
        except queue.Empty:
            raise LostPlannerError(
                f"no plan came within {self._timeout_s:g} s",
                where=f"batch {name}",
                fix="a longer time-out, or a policy that plans faster",
            ) from None
        if not line:
            raise self._lost(name)
        self._names.popleft()
        answer = msgspec.json.decode(line, type=Answer | Failure)
        if isinstance(answer, Failure):
            place = f"batch {name}" + (f": {answer.where}" if answer.where else "")
            raise msgspec.structs.replace(answer, where=place).error()
        self.kept += answer.kept
        return answer.plan

    def _lost(self, name: str) -> LostPlannerError:
        assert self._process is not None
        try:
            status = self._process.wait(SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            how = "closed its output"
        else:
            how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        waiting = len(self._names)
        return LostPlannerError(
            f"the planning process {how}",
            where=f"batch {name}" + (f", and {waiting - 1} behind it" if waiting > 1 else ""),
            fix="if memory ran out, a smaller --ahead or a lighter policy; what it wrote stands on stderr",
        )


def _read(source: IO[bytes], answers: queue.SimpleQueue[bytes]) -> None:
    """Hand answers on, and an empty line at the end; a line that breaks off counts as the end."""
    with source:
        for line in source:
            if line.endswith(b"\n"):
                answers.put(line)
    answers.put(b"")


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None, "both ends were asked for"
    return pipe
