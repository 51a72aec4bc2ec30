"""Attention of a program for real: ranks as processes, layers forward and backward, spans and bytes measured."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Literal

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

from zellige.exec.attention import Engine
from zellige.exec.devices import rank_device, require_backend
from zellige.exec.kernels import CpuFlash, Kernel, Packing, Reference
from zellige.exec.launch import run_ranks
from zellige.exec.recorder import Recorder
from zellige.exec.session import Backend, Session, connected, fingerprint, require_ranks
from zellige.exec.transports import Communicators
from zellige.exec.watch import ExchangeWatch, end_process
from zellige.program import Program
from zellige.trace import Span, Trace
from zellige.units import count_of, format_bytes, format_time

DTypeName = Literal["fp64", "fp32", "bf16"]
TransportName = Literal["all-to-all", "peer-to-peer"]
DTYPES: dict[DTypeName, torch.dtype] = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16}


class AttentionRun(msgspec.Struct, frozen=True, kw_only=True):
    """What to run: random inputs from ``seed``; ``verify`` compares every rank's tokens with unsharded fp64 attention.

    The first ``warmup`` layers are run and not recorded.
    """

    program: Program
    dtype: DTypeName = "fp32"
    seed: int = 0
    layers: int = 1
    warmup: int = 1
    backend: Backend = "gloo"
    transport: TransportName = "all-to-all"
    verify: bool = False


class RankSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank did in the recorded layers; exchanges and bytes are of one layer, forward and backward together."""

    rank: int
    tokens: int
    exchanges: int
    sent_bytes: int
    received_bytes: int
    compute_ns: int
    copy_ns: int
    wait_ns: int
    worst_error: float | None


class Execution(msgspec.Struct, frozen=True, kw_only=True):
    """A measured trace, and a summary by rank. ``worst_error`` is relative to the largest value; None if not asked."""

    trace: Trace
    ranks: tuple[RankSummary, ...]
    layer_ns: int
    kernel: str

    @property
    def received_bytes(self) -> int:
        """Bytes that all ranks together receive in one layer."""
        return sum(rank.received_bytes for rank in self.ranks)

    @property
    def worst_error(self) -> float | None:
        """The largest error of any rank."""
        errors = [rank.worst_error for rank in self.ranks if rank.worst_error is not None]
        return max(errors, default=None)


class RankResult(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's answer to its launcher."""

    summary: RankSummary
    spans: tuple[Span, ...]
    kernel: str


def execute_attention(
    program: Program,
    *,
    dtype: DTypeName = "fp32",
    seed: int = 0,
    layers: int = 1,
    timeout_s: float = 60.0,
    deadline_s: float | None = None,
    backend: Backend = "gloo",
    transport: TransportName = "all-to-all",
    num_ranks: int | None = None,
    verify: bool = False,
) -> Execution:
    """Run a program's attention on processes of this machine; asserts the bytes of every pass.

    ``timeout_s`` bounds every exchange, ``deadline_s`` the whole run. ``num_ranks`` are those to be had (default: as
    many as the program needs, or the GPUs there are). Raises :class:`zellige.errors.TooFewRanksError`, or
    :class:`zellige.exec.launch.RanksFailedError` with every rank's error.
    """
    require_backend(backend, program.num_ranks)
    require_ranks(program, program.num_ranks if num_ranks is None else num_ranks)
    run = AttentionRun(
        program=program,
        dtype=dtype,
        seed=seed,
        layers=layers,
        backend=backend,
        transport=transport,
        verify=verify,
    )
    payload = msgspec.json.encode(run)
    answers = run_ranks(attention_task, [payload] * program.num_ranks, timeout_s=timeout_s, deadline_s=deadline_s)
    return collect(run, [msgspec.json.decode(answer, type=RankResult) for answer in answers])


def collect(run: AttentionRun, results: Sequence[RankResult]) -> Execution:
    """One execution from the answers of all ranks, in their order."""
    program = run.program
    spans = sorted((span for r in results for span in r.spans), key=lambda s: (s.start_ns, s.rank, s.lane, s.name))
    trace = Trace(
        origin="measured",
        program=program.digest,
        engine=program.engine,
        num_ranks=program.num_ranks,
        spans=tuple(spans),
        notes=(
            f"attention only: {count_of(run.layers, 'layer')}, {run.dtype}, random inputs of seed {run.seed}",
            f"{run.backend}, {run.transport}, kernel {results[0].kernel}",
        ),
    )
    return Execution(
        trace=trace,
        ranks=tuple(result.summary for result in results),
        layer_ns=trace.duration_ns // run.layers,
        kernel=results[0].kernel,
    )


def attention_task(session: Session, payload: bytes) -> bytes:
    """A rank's part of :func:`execute_attention`."""
    run = msgspec.json.decode(payload, type=AttentionRun)
    require_ranks(run.program, session.num_ranks)
    shown = fingerprint(run.program, dtype=run.dtype, backend=run.backend, transport=run.transport)
    with connected(session, run.backend, shown):
        return msgspec.json.encode(run_attention(session, run))


def summary(done: Execution) -> str:
    """A table of ranks, and what one layer took."""
    lines = [
        f"{'rank':>4}  {'tokens':>8}  {'exchanges':>9}  {'received':>9}  {'compute':>8}  {'copies':>8}  {'waits':>8}"
    ]
    lines += [
        f"{r.rank:>4}  {r.tokens:>8,}  {r.exchanges:>9}  {format_bytes(r.received_bytes):>9}"
        f"  {format_time(r.compute_ns):>8}  {format_time(r.copy_ns):>8}  {format_time(r.wait_ns):>8}"
        for r in done.ranks
    ]
    lines.append(f"a layer takes {format_time(done.layer_ns)}, forward and backward, with kernel {done.kernel}")
    if done.worst_error is not None:
        lines.append(f"largest error against unsharded fp64 attention: {done.worst_error:.2g}")
    return "\n".join(lines)


def make_communicators(program: Program, session: Session, transport: TransportName) -> Communicators:
    """A communicator for every set of ranks that enters an exchange of the program."""
    sets = [exchange.ranks for exchange in program.exchanges if not exchange.is_local]
    return Communicators(sets, transport, timeout=datetime.timedelta(seconds=session.timeout_s))


def run_attention(session: Session, run: AttentionRun) -> RankResult:
    """Run the layers on this rank; the process group must be there."""
    program, rank = run.program, session.rank
    device = rank_device(run.backend, rank)
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)
    kernel = select_kernel(device, DTYPES[run.dtype])
    recorder = Recorder(rank, synchronize=torch.cuda.synchronize if on_gpu else None)
    watch = ExchangeWatch(session.timeout_s, end_process(session.explain)) if on_gpu else None
    communicators = make_communicators(program, session, run.transport)
    engine = Engine(
        program,
        rank,
        communicators.transports,
        kernel,
        dtype=DTYPES[run.dtype],
        device=device,
        recorder=recorder,
        explain=session.explain,
        watch=watch,
    )
    inputs = rank_inputs(run, rank, device)
    for layer in range(-run.warmup, run.layers):
        if layer == 0:
            dist.barrier()
            recorder.enabled = True
            recorder.restart()
            before = (communicators.exchanges, communicators.sent_bytes, communicators.received_bytes)
        recorder.layer = max(layer, 0)
        q, k, v = (tensor.requires_grad_() for tensor in inputs[:3])
        out = engine(q, k, v)
        gradients = torch.autograd.grad(out, (q, k, v), inputs[3])
    recorder.enabled = False
    error = _worst_error(run, rank, (out.detach(), *gradients)) if run.verify else None
    summary = _summary(engine, communicators, before, run.layers, error)
    if watch is not None:
        watch.close()
    communicators.close()
    return RankResult(summary=summary, spans=tuple(recorder.spans), kernel=kernel.name)


def _summary(
    engine: Engine, communicators: Communicators, before: tuple[int, int, int], layers: int, error: float | None
) -> RankSummary:
    spans = engine.layer.recorder.spans

    def spent(lane: str) -> int:
        return sum(span.duration_ns for span in spans if span.lane == lane)

    return RankSummary(
        rank=engine.rank,
        tokens=engine.layer.maps.num_tokens,
        exchanges=(communicators.exchanges - before[0]) // layers,
        sent_bytes=(communicators.sent_bytes - before[1]) // layers,
        received_bytes=(communicators.received_bytes - before[2]) // layers,
        compute_ns=spent("compute"),
        copy_ns=spent("copy"),
        wait_ns=spent("wait"),
        worst_error=error,
    )


def select_kernel(device: torch.device, dtype: torch.dtype) -> Kernel:
    """The kernel for a device and a type: CPU flash, CUDA flash for 16 bits, else the reference."""
    if device.type == "cpu":
        return CpuFlash()
    if dtype in (torch.bfloat16, torch.float16):
        from zellige.exec.cuda_kernels import cuda_kernel

        return cuda_kernel()
    return Reference()


def sequence_inputs(run: AttentionRun, segment: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Q, K, V and the output's gradient of a whole sequence, from the seed and its place alone."""
    program = run.program
    generator = torch.Generator().manual_seed(run.seed * 1_000_003 + segment)
    length = program.segments[segment].length

    def draw(heads: int) -> Tensor:
        return torch.randn(length, heads, program.head_dim, generator=generator).to(DTYPES[run.dtype])

    return draw(program.num_heads), draw(program.num_kv_heads), draw(program.num_kv_heads), draw(program.num_heads)


def rank_inputs(run: AttentionRun, rank: int, device: torch.device) -> list[Tensor]:
    """The rank's own tokens of Q, K, V and the output's gradient, in the program's layout."""
    program = run.program
    columns: list[list[Tensor]] = [[], [], [], []]
    for index, (start, stop) in program.pieces(rank):
        for column, tensor in zip(columns, sequence_inputs(run, index), strict=True):
            column.append(tensor[start:stop])
    heads = (program.num_heads, program.num_kv_heads, program.num_kv_heads, program.num_heads)
    empty = [torch.zeros(0, count, program.head_dim, dtype=DTYPES[run.dtype]) for count in heads]
    return [torch.cat([nothing, *column]).to(device) for nothing, column in zip(empty, columns, strict=True)]


def _worst_error(run: AttentionRun, rank: int, found: tuple[Tensor, ...]) -> float:
    """The largest difference of a rank's output and gradients from unsharded fp64, relative to the largest value."""
    worst, first = 0.0, 0
    for index, (start, stop) in run.program.pieces(rank):
        q, k, v, grad = (tensor.double() for tensor in sequence_inputs(run, index))
        packing = Packing((len(q),), (len(q),))
        out, lse = CpuFlash().forward(q, k, v, packing)
        wanted = (out, *CpuFlash().backward(grad, q, k, v, out, lse, packing))
        for tensor, exact in zip(found, wanted, strict=True):
            mine = tensor[first : first + stop - start].cpu().double()
            if len(mine):
                difference = (mine - exact[start:stop]).abs().max().item()
                worst = max(worst, difference / max(1.0, exact.abs().max().item()))
        first += stop - start
    return worst
