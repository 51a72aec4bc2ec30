"""The coalesced engine beside peers, on the same tensors and ranks in one run: a process group and exchanges for each
sequence (this project's ``per_sequence`` engine), and yunchang's Ulysses layer. Outputs and gradients must be equal.

yunchang has no attention that runs on a CPU (the report says what fails), so its layer gets the same CPU kernel as the
others; its exchanges, copies and autograd are its own. It splits every sequence over all ranks, and only lengths and
heads that the ranks divide.

``python benchmarks/engine_peers.py [--ranks N] [--repeats N] [--json]`` (needs the extra ``peers``)
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

from zellige.errors import MissingExtraError
from zellige.exec.attention import Engine
from zellige.exec.execute import make_communicators
from zellige.exec.kernels import CpuFlash, Packing
from zellige.exec.launch import run_ranks
from zellige.exec.session import Session, connected
from zellige.placement import Engine as EngineName
from zellige.program import Assignment, Heads, Program, build_program
from zellige.shards import parse_config
from zellige.units import format_time

HEADS = Heads(4, 4, 64)
WARMUP = 2
TOLERANCE = 2e-6
"""Largest difference from yunchang's output and gradients, relative to the largest value: fp32, the same kernel."""

BATCHES = {
    "many short": [(64 + 32 * (n % 5), True) for n in range(48)],
    "one long, many short": [(2048, True), *((96, False) for _ in range(80))],
}
"""Lengths, and whether a sequence must be split; yunchang splits all."""

Layer = Callable[[], tuple[Tensor, ...]]


class Case(msgspec.Struct, frozen=True):
    """One way to run one batch on all ranks."""

    batch: str
    name: str
    program: Program
    is_peer: bool = False


class Measured(msgspec.Struct, frozen=True):
    """A rank's repeats of a case: wall and CPU times, collectives of one layer, and the difference from the peer."""

    layer_ns: list[int]
    cpu_ns: list[int]
    collectives: int
    difference: float


def make_cases(num_ranks: int) -> list[Case]:
    """For each batch: all split in one packed exchange, all split one by one, by yunchang; whole where it may be."""
    cases = []
    for batch, lengths in BATCHES.items():
        everything = [(length, True) for length, _ in lengths]
        split = place(everything, num_ranks, "coalesced")
        cases += [
            Case(batch, "all split, coalesced", split),
            Case(batch, "all split, per_sequence", place(everything, num_ranks, "per_sequence")),
            Case(batch, "all split, yunchang", split, is_peer=True),
        ]
        if everything != lengths:
            cases.append(Case(batch, "short ones whole, coalesced", place(lengths, num_ranks, "coalesced")))
    return cases


def place(lengths: list[tuple[int, bool]], num_ranks: int, engine: EngineName) -> Program:
    """Split sequences by heads over all ranks in order, whole ones dealt in turn."""
    everyone, split = tuple(range(num_ranks)), parse_config(f"h{num_ranks}")
    placed = [
        Assignment(f"{n}", length, split, everyone)
        if is_split
        else Assignment(f"{n}", length, parse_config("whole"), (n % num_ranks,))
        for n, (length, is_split) in enumerate(lengths)
    ]
    return build_program(placed, HEADS, num_ranks=num_ranks, engine=engine)


class _KernelOfAll(torch.autograd.Function):
    """The CPU kernel on ``[1, tokens, heads, head_dim]``, for the layer of the peer."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (tensor[0].contiguous() for tensor in (q, k, v))
        packing = Packing((len(q),), (len(k),))
        out, lse = CpuFlash().forward(q, k, v, packing)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.packing = packing
        return out[None]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        found = CpuFlash().backward(grads[0][0].contiguous(), *ctx.saved_tensors, ctx.packing)
        return tuple(gradient[None] for gradient in found)


def attend(q: Tensor, k: Tensor, v: Tensor, **options: object) -> Tensor:
    """What the peer's layer calls; refuses options that the kernel has not."""
    if (
        options.pop("softmax_scale") != q.shape[3] ** -0.5
        or options.pop("window_size") != (-1, -1)
        or any(options.values())
    ):
        raise ValueError(f"the CPU kernel has none of {options}")
    result: Tensor = _KernelOfAll.apply(q, k, v)  # type: ignore[no-untyped-call]
    return result


def why_not_as_it_is() -> list[str]:
    """What stops yunchang's own attention on a CPU, by trying."""
    from yunchang import UlyssesAttention
    from yunchang.kernels import AttnType
    from yunchang.kernels.attention import pytorch_attn_forward

    q = torch.zeros(1, 4, 2, 8)
    attempts: dict[str, Callable[[], object]] = {
        "UlyssesAttention(attn_type=FA)": lambda: UlyssesAttention(None, attn_type=AttnType.FA),
        "attention of the TORCH_* types and of its ring": lambda: pytorch_attn_forward(q, q, q, op_type="flash"),
        "the same with op_type='efficient'": lambda: pytorch_attn_forward(q, q, q, op_type="efficient"),
    }
    found = []
    for name, attempt in attempts.items():
        try:
            attempt()
        except (AssertionError, NotImplementedError) as error:
            found.append(f"{name}: {type(error).__name__}: {str(error).splitlines()[0][:110]}")
    _, lse = pytorch_attn_forward(q, q, q, op_type="math", causal=False)
    if not lse.any():
        found.append("op_type='math' runs and gives a log-sum-exp of zeros, which ring rounds would be merged by")
    return found


def measure_task(session: Session, payload: bytes) -> bytes:
    """All cases in turn, again and again, so that whatever else the machine does hits all alike."""
    repeats, cases = msgspec.json.decode(payload, type=tuple[int, list[Case]])
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[session.rank % len(cores)]})
    with connected(session, "gloo", {"benchmark": "engine_peers"}):
        runners = [_Runner(session, case) for case in cases]
        for turn in range(WARMUP + repeats):
            for runner in runners:
                runner.once(record=turn >= WARMUP)
        peers = {runner.case.batch: runner for runner in runners if runner.case.is_peer}
        return msgspec.json.encode([runner.measured(peers[runner.case.batch]) for runner in runners])


class _Runner:
    """One case on this rank. ``found`` has each sequence's own rows of output and gradients, by name."""

    def __init__(self, session: Session, case: Case) -> None:
        self.case = case
        self.found: dict[str, list[Tensor]] = {}
        program = case.program
        self._pieces = [(program.segments[i].sequence, bounds) for i, bounds in program.pieces(session.rank)]
        self._sizes = [stop - start for _, (start, stop) in self._pieces]
        inputs = rank_tensors(program, session.rank)
        self._layer = peer_layer(inputs, self._sizes) if case.is_peer else engine_layer(session, program, inputs)
        self._times: list[tuple[int, int]] = []
        self._collectives = 0

    def once(self, *, record: bool) -> None:
        """One layer, forward and backward, from a barrier on."""
        dist.barrier()
        with CountedExchanges() as counted:
            start, cpu = time.perf_counter_ns(), time.thread_time_ns()
            tensors = self._layer()
            elapsed, used = time.perf_counter_ns() - start, time.thread_time_ns() - cpu
        if record:
            self._times.append((elapsed, used))
        self._collectives = counted.calls
        rows = zip(*(torch.split(tensor.detach(), self._sizes) for tensor in tensors), strict=True)
        self.found = {name: list(parts) for (name, _), parts in zip(self._pieces, rows, strict=True)}

    def measured(self, peer: _Runner) -> Measured:
        """All repeats, and the largest difference from the peer's rows on this rank."""
        worst = 0.0
        for name, (start, stop) in peer._pieces:
            for mine, theirs in zip(self.found.get(name, []), peer.found[name], strict=False):
                same = mine if len(mine) == len(theirs) else mine[start:stop]
                difference = (same - theirs).abs().max() / theirs.abs().max().clamp(min=1)
                worst = max(worst, difference.item())
        layers, cpus = zip(*self._times, strict=True)
        return Measured(list(layers), list(cpus), self._collectives, worst)


class CountedExchanges:
    """Counts all-to-alls inside the block."""

    def __enter__(self) -> CountedExchanges:
        self.calls, self._original = 0, dist.all_to_all_single
        dist.all_to_all_single = self._count
        return self

    def _count(self, *arguments: Any, **options: Any) -> Any:
        self.calls += 1
        return self._original(*arguments, **options)

    def __exit__(self, *_: object) -> None:
        dist.all_to_all_single = self._original


def rank_tensors(program: Program, rank: int) -> list[Tensor]:
    """Q, K, V and the output's gradient of the rank's tokens; a sequence has the same numbers in every program."""
    columns: list[list[Tensor]] = [[], [], [], []]
    for index, (start, stop) in program.pieces(rank):
        segment = program.segments[index]
        generator = torch.Generator().manual_seed(int(segment.sequence))
        for column in columns:
            whole = torch.randn(segment.length, HEADS.num_heads, HEADS.head_dim, generator=generator)
            column.append(whole[start:stop])
    return [torch.cat(column) for column in columns]


def engine_layer(session: Session, program: Program, inputs: list[Tensor]) -> Layer:
    """A layer of this project's engine: output and gradients."""
    transports = make_communicators(program, session, "all-to-all").transports
    engine = Engine(program, session.rank, transports, CpuFlash(), dtype=torch.float32, explain=session.explain)

    def run() -> tuple[Tensor, ...]:
        q, k, v = (tensor.requires_grad_() for tensor in inputs[:3])
        out = engine(q, k, v)
        return out, *torch.autograd.grad(out, (q, k, v), inputs[3])

    return run


def peer_layer(inputs: list[Tensor], sizes: list[int]) -> Layer:
    """yunchang's layer for each sequence in turn, as its authors' models call it; output and gradients."""
    from yunchang import UlyssesAttention
    from yunchang.kernels import AttnType

    attention = UlyssesAttention(dist.group.WORLD, attn_type=AttnType.TORCH_MATH)
    attention.attn_fn = attend

    def run() -> tuple[Tensor, ...]:
        q, k, v = (tensor.requires_grad_() for tensor in inputs[:3])
        parts = zip(*(torch.split(tensor, sizes) for tensor in (q, k, v)), strict=True)
        out = torch.cat([attention(*(tensor[None] for tensor in part))[0] for part in parts])
        return out, *torch.autograd.grad(out, (q, k, v), inputs[3])

    return run


class Line(msgspec.Struct, frozen=True):
    """A case's figures: the slowest rank's layer and the busiest rank's CPU time, in every repeat."""

    batch: str
    name: str
    layer_ns: list[int]
    cpu_ns: list[int]
    collectives: int
    difference: float


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All cases, and what yunchang's own attention answers on a CPU."""

    schema: str = "zellige.engine-peers/1"
    ranks: int
    torch: str
    yunchang: str
    lines: list[Line]
    peers_own_attention: list[str]


def make_report(cases: list[Case], ranks: list[list[Measured]]) -> Report:
    """Figures of all cases; raises where outputs or gradients differ."""
    found = [
        Line(
            batch=case.batch,
            name=case.name,
            layer_ns=[max(times) for times in zip(*(m.layer_ns for m in mine), strict=True)],
            cpu_ns=[max(times) for times in zip(*(m.cpu_ns for m in mine), strict=True)],
            collectives=max(m.collectives for m in mine),
            difference=max(m.difference for m in mine),
        )
        for case, mine in zip(cases, zip(*ranks, strict=True), strict=True)
    ]
    for line in found:
        if not line.difference <= TOLERANCE:
            raise AssertionError(f"{line.batch}, {line.name}: differs from yunchang's by {line.difference:.2g}")
    return Report(
        ranks=len(ranks),
        torch=str(torch.__version__),
        yunchang=importlib.metadata.version("yunchang"),
        lines=found,
        peers_own_attention=why_not_as_it_is(),
    )


def table(report: Report) -> str:
    """The report as text; times as multiples of the batch's first case, repeat by repeat."""
    out = [f"{report.ranks} gloo ranks, torch {report.torch}, yunchang {report.yunchang}"]
    for batch in dict.fromkeys(line.batch for line in report.lines):
        lines = [line for line in report.lines if line.batch == batch]
        out += [
            "",
            f"{batch:<28} {'layer':>9} {'fastest':>9} {'all-to-alls':>11} {'difference':>10}   layer, CPU / first",
        ]
        for line in lines:
            shares = (ratio(line.layer_ns, lines[0].layer_ns), ratio(line.cpu_ns, lines[0].cpu_ns))
            times = [format_time(int(time_ns)) for time_ns in (statistics.median(line.layer_ns), min(line.layer_ns))]
            out.append(
                f"{line.name:<28} {times[0]:>9} {times[1]:>9} {line.collectives:>11} {line.difference:>10.2g}"
                f"   {'   '.join(shares)}"
            )
    return "\n".join([*out, "", "yunchang's own attention on a CPU:", *report.peers_own_attention])


def ratio(over: list[int], under: list[int]) -> str:
    """Median and quartiles of one case's times over another's."""
    low, middle, high = statistics.quantiles((a / b for a, b in zip(over, under, strict=True)), n=4)
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2, choices=(2, 4))
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if importlib.util.find_spec("yunchang") is None:
        missing = MissingExtraError("yunchang is not installed", fix="pip install 'zellige[peers]'")
        print(missing, file=sys.stderr)
        return missing.exit_code
    cases = make_cases(options.ranks)
    payload = msgspec.json.encode((options.repeats, cases))
    answers = run_ranks(measure_task, [payload] * options.ranks, timeout_s=120)
    report = make_report(cases, [msgspec.json.decode(answer, type=list[Measured]) for answer in answers])
    print(msgspec.json.encode(report).decode() if options.json else table(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
