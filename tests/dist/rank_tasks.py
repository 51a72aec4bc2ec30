"""What ranks do in the tests of this folder; functions of a module, for ranks find them by name."""

from __future__ import annotations

import datetime
import hashlib
import os
import signal
import time
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from oracle.engine_reference import Tensors, random_inputs, scatter
from torch import Tensor

from zellige.errors import PreflightError
from zellige.exec.attention import Engine
from zellige.exec.execute import TransportName, make_communicators
from zellige.exec.kernels import CpuFlash, Packing
from zellige.exec.session import Session, connected, fingerprint, require_ranks
from zellige.exec.transports import Communicators, Pending, Transport
from zellige.exec.watch import ExchangeWatch
from zellige.program import Program

DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16}


class PlanRun(msgspec.Struct, frozen=True):
    """A program to run on random inputs of a seed."""

    program: Program
    seed: int
    dtype: str
    transport: TransportName


class PlanResult(msgspec.Struct, frozen=True):
    """A hash of a rank's output and gradients, and what it moved in forward and backward."""

    hash: str
    exchanges: int
    sent_bytes: int


def hash_of(tensors: Tensors) -> str:
    """A hash of the bits of output and gradients."""
    flat = torch.cat([tensor.detach().reshape(-1).view(torch.uint8) for tensor in tensors])
    return hashlib.sha256(flat.numpy().tobytes()).hexdigest()


def run_engine(engine: Engine, own: Tensors) -> Tensors:
    """Output and gradients of a rank's tokens."""
    q, k, v = (tensor.clone().requires_grad_() for tensor in own[:3])
    out = engine(q, k, v)
    return Tensors(out, *torch.autograd.grad(out, (q, k, v), own.fourth))


def make_engine(program: Program, session: Session, communicators: Communicators, dtype: torch.dtype) -> Engine:
    """The engine of this rank."""
    return Engine(program, session.rank, communicators.transports, CpuFlash(), dtype=dtype, explain=session.explain)


def own_tokens(run: PlanRun, rank: int) -> Tensors:
    """This rank's tokens of the seed's inputs; the same as in one process."""
    dtype = DTYPES[run.dtype]
    inputs = random_inputs(run.program, dtype, run.seed)
    own = scatter(run.program, inputs, rank)
    return Tensors(*(tensor.to(dtype) for tensor in own))


def run_plans(session: Session, payload: bytes) -> bytes:
    """Many plans in one process group, each agreed upon before its first exchange."""
    runs = msgspec.json.decode(payload, type=list[PlanRun])
    results = []
    with connected(session, "gloo", {"task": "run_plans"}):
        for run in runs:
            session.agree(fingerprint(run.program, dtype=run.dtype))
            communicators = make_communicators(run.program, session, run.transport)
            engine = make_engine(run.program, session, communicators, DTYPES[run.dtype])
            found = run_engine(engine, own_tokens(run, session.rank))
            results.append(PlanResult(hash_of(found), communicators.exchanges, communicators.sent_bytes))
            communicators.close()
    return msgspec.json.encode(results)


def run_one(session: Session, payload: bytes) -> bytes:
    """One plan, with the checks that an execution makes first."""
    run = msgspec.json.decode(payload, type=PlanRun)
    require_ranks(run.program, session.num_ranks)
    with connected(session, "gloo", fingerprint(run.program)):
        communicators = make_communicators(run.program, session, run.transport)
        engine = make_engine(run.program, session, communicators, DTYPES[run.dtype])
        for _ in range(3):
            found = run_engine(engine, own_tokens(run, session.rank))
    return hash_of(found).encode()


class DyingKernel(CpuFlash):
    """Kills its process at the second call: in the middle of a layer."""

    calls = 0

    def forward(self, q: Tensor, k: Tensor, v: Tensor, packing: Packing) -> tuple[Tensor, Tensor]:
        """Compute once, then die."""
        self.calls += 1
        if self.calls > 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(q, k, v, packing)


class SlowKernel(CpuFlash):
    """Sleeps before it computes."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def forward(self, q: Tensor, k: Tensor, v: Tensor, packing: Packing) -> tuple[Tensor, Tensor]:
        """Sleep, then compute."""
        time.sleep(self._seconds)
        return super().forward(q, k, v, packing)


def run_with_kernel(session: Session, run: PlanRun, kernel: CpuFlash, times: int) -> Tensors:
    """A plan a number of times, with a kernel of one's own."""
    with connected(session, "gloo", fingerprint(run.program)):
        communicators = make_communicators(run.program, session, run.transport)
        engine = Engine(
            run.program,
            session.rank,
            communicators.transports,
            kernel,
            dtype=DTYPES[run.dtype],
            explain=session.explain,
        )
        for _ in range(times):
            found = run_engine(engine, own_tokens(run, session.rank))
    return found


def die_on_last_rank(session: Session, payload: bytes) -> bytes:
    """The last rank's process is killed while the others exchange with it."""
    run = msgspec.json.decode(payload, type=PlanRun)
    last = session.rank == session.num_ranks - 1
    return hash_of(run_with_kernel(session, run, DyingKernel() if last else CpuFlash(), 3)).encode()


def sleep_on_rank_0(session: Session, payload: bytes) -> bytes:
    """Rank 0 is slow in every ring round; the others run ahead as far as exchanges let them."""
    run = msgspec.json.decode(payload, type=PlanRun)
    return hash_of(run_with_kernel(session, run, SlowKernel(0.02 if session.rank == 0 else 0), 2)).encode()


def stay_away_from_an_exchange(session: Session, payload: bytes) -> bytes:
    """The last rank agrees to everything and then does something else."""
    run = msgspec.json.decode(payload, type=PlanRun)
    if session.rank < session.num_ranks - 1:
        return hash_of(run_with_kernel(session, run, CpuFlash(), 1)).encode()
    with connected(session, "gloo", fingerprint(run.program)):
        time.sleep(60)
    return b""


def stay_away_from_the_start(session: Session, payload: bytes) -> bytes:
    """The last rank never comes to the preflight."""
    if session.rank == session.num_ranks - 1:
        time.sleep(60)
    return run_one(session, payload)


def die_before_the_start(session: Session, payload: bytes) -> bytes:
    """The last rank is killed before the preflight."""
    if session.rank == session.num_ranks - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return run_one(session, payload)


def sleep_long(session: Session, payload: bytes) -> bytes:
    """Sleep, far from any collective."""
    del session, payload
    time.sleep(120)
    return b""


def write_pid_and_sleep(session: Session, payload: bytes) -> bytes:
    """Leave the process id in a folder, then sleep."""
    (Path(payload.decode()) / f"pid{session.rank}").write_text(str(os.getpid()))
    time.sleep(120)
    return b""


def open_and_close_fifty_times(session: Session, payload: bytes) -> bytes:
    """Communicators of overlapping rank sets, made and closed; groups, threads and descriptors before and after."""
    run = msgspec.json.decode(payload, type=PlanRun)
    counts = []
    with connected(session, "gloo", fingerprint(run.program)):
        for turn in range(50):
            communicators = make_communicators(run.program, session, run.transport)
            engine = make_engine(run.program, session, communicators, DTYPES[run.dtype])
            run_engine(engine, own_tokens(run, session.rank))
            communicators.close()
            if turn in (4, 49):
                counts.append(
                    {
                        "groups": len(dist.distributed_c10d._world.pg_map),
                        "threads": len(os.listdir("/proc/self/task")),
                        "files": len(os.listdir("/proc/self/fd")),
                    }
                )
    return msgspec.json.encode(counts)


def run_on_the_last_two(session: Session, payload: bytes) -> bytes:
    """An engine on ranks 1 and 2 of three, while rank 0 idles."""
    run = msgspec.json.decode(payload, type=PlanRun)
    timeout = datetime.timedelta(seconds=session.timeout_s)
    answer = "idle"
    with connected(session, "gloo", {"task": "sub-group"}):
        group = dist.new_group([1, 2], timeout=timeout)
        if session.rank > 0:
            communicators = Communicators([(0, 1)], run.transport, group=group, timeout=timeout)
            place = session.rank - 1
            engine = Engine(run.program, place, communicators.transports, CpuFlash(), dtype=DTYPES[run.dtype])
            answer = hash_of(run_engine(engine, own_tokens(run, place)))
    return answer.encode()


class StreamOrdered:
    """A transport whose waits return at once, as NCCL's do; receive buffers stay as they are."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def start(self, *arguments: Any) -> Pending:
        """Start the exchange, and hide that it can be waited for."""
        return NeverBlocks(self._transport.start(*arguments))


class NeverBlocks:
    """An exchange that can be polled."""

    def __init__(self, pending: Pending) -> None:
        self.is_done = pending.is_done

    def wait(self) -> None:
        """Return at once."""


def watch_while_the_last_rank_stays_away(session: Session, payload: bytes) -> bytes:
    """Waits do not block, then the main thread hangs; the watch writes what it saw to a folder, and ends the rank."""
    folder, run = msgspec.json.decode(payload, type=tuple[str, PlanRun])
    with connected(session, "gloo", fingerprint(run.program)):
        if session.rank == session.num_ranks - 1:
            time.sleep(120)

        def alarm(failure: Exception, operation: str, ranks: tuple[int, ...]) -> None:
            error = session.explain(failure, operation, ranks)
            (Path(folder) / f"rank{session.rank}").write_text(str(error))
            os._exit(error.exit_code)

        made = make_communicators(run.program, session, run.transport).transports
        engine = Engine(
            run.program,
            session.rank,
            {ranks: StreamOrdered(transport) for ranks, transport in made.items()},
            CpuFlash(),
            dtype=DTYPES[run.dtype],
            watch=ExchangeWatch(1.0, alarm),
        )
        engine(*own_tokens(run, session.rank)[:3])
        time.sleep(120)
    return b""


def run_checkpointed(session: Session, payload: bytes) -> bytes:
    """A plan under activation checkpointing: forward runs again inside backward, on every rank in the same order."""
    from torch.utils.checkpoint import checkpoint

    run = msgspec.json.decode(payload, type=PlanRun)
    own = own_tokens(run, session.rank)
    with connected(session, "gloo", fingerprint(run.program)):
        communicators = make_communicators(run.program, session, run.transport)
        engine = make_engine(run.program, session, communicators, DTYPES[run.dtype])
        q, k, v = (tensor.clone().requires_grad_() for tensor in own[:3])
        out = checkpoint(engine, q, k, v, use_reentrant=False)
        out.backward(own.fourth)
        found = Tensors(out, *(tensor.grad for tensor in (q, k, v)))
    return msgspec.json.encode(PlanResult(hash_of(found), communicators.exchanges, communicators.sent_bytes))


def answer_requests(session: Session, payload: bytes) -> bytes:
    """Answer requests with payload, rank, and request; ``fail`` and ``die`` are what they say, on the last rank."""
    last = session.rank == session.num_ranks - 1

    def answer(request: bytes) -> bytes:
        if request == b"fail" and last:
            raise PreflightError("the last rank does not want to")
        if request == b"die" and last:
            os.kill(os.getpid(), signal.SIGKILL)
        return payload + b" %d " % session.rank + request

    session.serve(answer)
    return b""
