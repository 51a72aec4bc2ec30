"""The process that plans ahead: requests in on its standard input, answers out, one JSON value a line.

It is a fresh interpreter (:func:`command`), so it shares nothing with a trainer's threads or devices and runs nothing
of the trainer's main module. It never outlives its parent: it ends when its input does, or when its parent changes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from typing import BinaryIO

import msgspec

from zellige.errors import InternalError, ZelligeError
from zellige.placement import Engine, Plan, Problem
from zellige.plan.cache import PlanCache
from zellige.plan.compiled import prefer_compiled
from zellige.plan.micro_steps import plan_one_step, trial_planner
from zellige.plan.policies import find_policy
from zellige.workload import Batch

SECONDS_BETWEEN_LOOKS = 1.0
"""How often the worker looks whether its parent is still there; a closed input is noticed at once."""

TRACEBACK_LINES = 6


class Start(msgspec.Struct, frozen=True, kw_only=True, tag="start"):
    """What the worker is for, sent first: a policy, its engine, and how many plans to keep."""

    policy: str
    engine: Engine | None
    max_entries: int


class Request(msgspec.Struct, frozen=True, kw_only=True, tag="request"):
    """A batch to plan; ``problem`` holds the set-up where it differs from the request before, and the batch too."""

    batch: Batch | None = None
    problem: Problem | None = None


class Answer(msgspec.Struct, frozen=True, kw_only=True, tag="plan"):
    """A plan, and whether it was dealt from a kept one."""

    plan: Plan
    kept: bool


class Failure(msgspec.Struct, frozen=True, kw_only=True, tag="error"):
    """An error in place of a plan, by its code."""

    code: str
    message: str
    where: str = ""
    details: tuple[str, ...] = ()
    fix: str = ""

    def error(self) -> ZelligeError:
        """The error as it was raised."""
        kinds = {kind.code: kind for kind in _kinds(ZelligeError)}
        kind = kinds.get(self.code, InternalError)
        return kind(self.message, where=self.where, details=self.details, fix=self.fix)


def _kinds(kind: type[ZelligeError]) -> Iterator[type[ZelligeError]]:
    """A kind of error and those below it, as the module of errors defines them."""
    if kind.__module__ == ZelligeError.__module__:
        yield kind
        for below in kind.__subclasses__():
            yield from _kinds(below)


_PROGRAM = "import sys; parent, *sys.path = sys.argv[1:]; from zellige.plan.worker import main; main(int(parent))"


def command() -> list[str]:
    """The command line of a worker for this process, with this process's search path."""
    return [sys.executable, "-P", "-c", _PROGRAM, str(os.getpid()), *sys.path]


def main(parent: int) -> None:
    """Plan what comes in until nothing does, or until ``parent`` is no longer the parent's process id.

    From the second plan on in compiled loops, where there are any: the first does not wait until they are loaded.
    """
    source, sink = _own_streams()
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(source, requests), daemon=True).start()
    threading.Thread(target=_end_with_parent, args=(parent,), daemon=True).start()
    start = msgspec.json.decode(requests.get(), type=Start)
    engine = start.engine or find_policy(start.policy).engine
    cache = PlanCache(start.max_entries)
    setting: Problem | None = None
    while True:
        request = msgspec.json.decode(requests.get(), type=Request)
        setting = _pose(request, setting)
        answer = _answer(cache, dataclasses.replace(setting, engine=engine), start)
        with contextlib.suppress(BrokenPipeError):
            sink.write(msgspec.json.encode(answer) + b"\n")
            sink.flush()
        prefer_compiled()


def _pose(request: Request, setting: Problem | None) -> Problem:
    if request.problem is not None:
        return request.problem
    if setting is None or request.batch is None:
        raise InternalError("a request without a set-up or a batch")
    return dataclasses.replace(setting, batch=request.batch)


def _answer(cache: PlanCache, problem: Problem, start: Start) -> Answer | Failure:
    hits = cache.hits
    try:
        trial = trial_planner(start.policy, start.engine)
        plan = plan_one_step(problem, lambda posed: cache.plan(posed, start.policy, start.engine), trial)
    except ZelligeError as error:
        return Failure(code=error.code, message=error.message, where=error.where, details=error.details, fix=error.fix)
    except Exception as error:
        lines = traceback.format_exc().splitlines()[-TRACEBACK_LINES:]
        return Failure(code=InternalError.code, message=f"{type(error).__name__}: {error}", details=tuple(lines))
    return Answer(plan=plan, kept=cache.hits > hits)


def _own_streams() -> tuple[BinaryIO, BinaryIO]:
    """The pipes to the parent, out of reach of whatever else reads or prints in this process."""
    source = os.fdopen(os.dup(0), "rb")
    sink = os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    return source, sink


def _read(source: BinaryIO, requests: queue.SimpleQueue[bytes]) -> None:
    for line in source:
        requests.put(line)
    os._exit(0)


def _end_with_parent(parent: int) -> None:
    """For a parent whose end of the pipe lives on in a child of its own."""
    while os.getppid() == parent:
        time.sleep(SECONDS_BETWEEN_LOOKS)
    os._exit(0)
