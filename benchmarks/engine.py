"""The attention engine on two CPU ranks: one exchange for all sequences against exchanges of their own, and what mixing
whole and split sequences wins. Everything is measured in one run, in turn, and reported as ratios.

``python benchmarks/engine.py [--repeats N] [--json]``
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time

import msgspec
import torch
import torch.distributed as dist

from zellige.exec.attention import Engine
from zellige.exec.execute import AttentionRun, make_communicators, rank_inputs
from zellige.exec.kernels import CpuFlash
from zellige.exec.launch import run_ranks
from zellige.exec.recorder import Recorder
from zellige.exec.session import Session, connected
from zellige.placement import Engine as EngineName
from zellige.program import Assignment, Heads, Program, build_program
from zellige.shards import parse_config
from zellige.trace import Span
from zellige.units import format_bytes, format_percent, format_time

HEADS = Heads(4, 4, 64)
WARMUP = 2


class Entry(msgspec.Struct, frozen=True):
    """A program with its name in the report."""

    name: str
    program: Program


class Measured(msgspec.Struct, frozen=True):
    """Layer times of one program on one rank, and where the time of all repeats went."""

    layer_ns: list[int]
    cpu_ns: list[int]
    exchanges: int
    received_bytes: int
    copy_ns: int
    compute_ns: int
    wait_ns: int
    spans: list[Span]


def make_programs() -> list[Entry]:
    """Two batches: many short split sequences (a), and one long sequence among short ones (b).

    Lengths are those of a CPU: a rank here computes a thousand times slower than a GPU and enters an exchange about as
    fast, so that sequences of a hundred tokens have the proportions that thousands have there.
    """
    splits = ["h2", "q2", "k2", "h2"]
    crowd = [(f"clip{n}", 64 + 16 * (n % 5), splits[n % 4]) for n in range(48)]
    crowd += [(f"image{n}", 64, "whole") for n in range(24)]
    long_and_short = [("film", 2048, "h2"), *((f"image{n}", 96, "whole") for n in range(80))]
    whole = [(name, length, "whole") for name, length, _ in long_and_short]
    split = [(name, length, "h2") for name, length, _ in long_and_short]
    return [
        Entry("a coalesced", place(crowd, "coalesced")),
        Entry("a per_sequence", place(crowd, "per_sequence")),
        Entry("b mixed", place(long_and_short, "coalesced")),
        Entry("b all whole", place(whole, "coalesced")),
        Entry("b all split", place(split, "coalesced")),
        Entry("b all split, per_sequence", place(split, "per_sequence")),
    ]


def place(batch: list[tuple[str, int, str]], engine: EngineName) -> Program:
    """Split sequences on both ranks, whole ones longest first on the rank with less attention."""
    loads = [0, 0]
    placed = []
    for name, length, text in sorted(batch, key=lambda sequence: -sequence[1]):
        config = parse_config(text)
        ranks = (0, 1) if config.is_split else (loads.index(min(loads)),)
        for rank in ranks:
            loads[rank] += length**2 // len(ranks)
        placed.append(Assignment(name, length, config, ranks))
    return build_program(placed, HEADS, num_ranks=2, engine=engine)


def measure_task(session: Session, payload: bytes) -> bytes:
    """Run all programs in turn, again and again, so that whatever else the machine does hits all alike."""
    repeats, entries = msgspec.json.decode(payload, type=tuple[int, list[Entry]])
    # A core for each rank, as each GPU has one rank: an idle rank must not lend its core to the other.
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[session.rank % len(cores)]})
    with connected(session, "gloo", {"benchmark": "engine"}):
        runners = [_Runner(session, entry.program) for entry in entries]
        for turn in range(WARMUP + repeats):
            for runner in runners:
                runner.once(record=turn >= WARMUP)
        return msgspec.json.encode([runner.measured() for runner in runners])


class _Runner:
    """One program on this rank."""

    def __init__(self, session: Session, program: Program) -> None:
        self._recorder = Recorder(session.rank, enabled=True)
        self._communicators = make_communicators(program, session, "all-to-all")
        self._engine = Engine(
            program,
            session.rank,
            self._communicators.transports,
            CpuFlash(),
            dtype=torch.float32,
            recorder=self._recorder,
            explain=session.explain,
        )
        self._inputs = rank_inputs(AttentionRun(program=program), session.rank, torch.device("cpu"))
        self._layers: list[tuple[int, int, list[Span]]] = []

    def once(self, *, record: bool) -> None:
        """One layer, forward and backward, from a barrier on."""
        q, k, v = (tensor.requires_grad_() for tensor in self._inputs[:3])
        dist.barrier()
        self._recorder.restart()
        start, cpu = time.perf_counter_ns(), time.thread_time_ns()
        torch.autograd.grad(self._engine(q, k, v), (q, k, v), self._inputs[3])
        elapsed, used = time.perf_counter_ns() - start, time.thread_time_ns() - cpu
        if record:
            self._layers.append((elapsed, used, self._recorder.spans))

    def measured(self) -> Measured:
        """All repeats."""
        runs = self._communicators.exchanges // (len(self._layers) + WARMUP)
        moved = self._communicators.received_bytes // (len(self._layers) + WARMUP)
        spans = [span for _, _, found in self._layers for span in found]
        median = sorted(self._layers, key=lambda layer: layer[0])[len(self._layers) // 2]
        spent = {lane: sum(s.duration_ns for s in spans if s.lane == lane) for lane in ("copy", "compute", "wait")}
        return Measured(
            layer_ns=[elapsed for elapsed, _, _ in self._layers],
            cpu_ns=[used for _, used, _ in self._layers],
            exchanges=runs,
            received_bytes=moved,
            copy_ns=spent["copy"],
            compute_ns=spent["compute"],
            wait_ns=spent["wait"],
            spans=median[2],
        )


class Line(msgspec.Struct, frozen=True):
    """A program's figures: layer times are of the slowest rank, CPU times of the busiest one, in every repeat.

    CPU times leave out what other processes of the machine take, and all waiting.
    """

    name: str
    layer_ns: list[int]
    cpu_ns: list[int]
    exchanges: int
    received_bytes: int
    copy_share: float
    wait_share: float

    @property
    def median_ns(self) -> int:
        """The median layer."""
        return int(statistics.median(self.layer_ns))


def lines(entries: list[Entry], ranks: list[list[Measured]]) -> list[Line]:
    """Figures of all programs."""
    found = []
    for number, entry in enumerate(entries):
        mine = [rank[number] for rank in ranks]
        busy = sum(m.copy_ns + m.compute_ns for m in mine)
        total = sum(sum(m.layer_ns) for m in mine)
        found.append(
            Line(
                name=entry.name,
                layer_ns=[max(times) for times in zip(*(m.layer_ns for m in mine), strict=True)],
                cpu_ns=[max(times) for times in zip(*(m.cpu_ns for m in mine), strict=True)],
                exchanges=mine[0].exchanges,
                received_bytes=sum(m.received_bytes for m in mine),
                copy_share=sum(m.copy_ns for m in mine) / busy,
                wait_share=sum(m.wait_ns for m in mine) / total,
            )
        )
    return found


def ratios(over: list[int], under: list[int]) -> str:
    """Median and quartiles of one program's times over another's, repeat by repeat."""
    low, middle, high = statistics.quantiles((a / b for a, b in zip(over, under, strict=True)), n=4)
    return f"{middle:.2f} (quartiles {low:.2f} to {high:.2f})"


COMPARED = [
    ("a per_sequence", "a coalesced"),
    ("b all whole", "b mixed"),
    ("b all split", "b mixed"),
    ("b all split, per_sequence", "b mixed"),
]


def report(found: list[Line], chain: list[list[Span]]) -> str:
    """The tables."""
    by_name = {line.name: line for line in found}
    out = [f"{'program':<26} {'layer':>9} {'exchanges':>9} {'received':>9} {'copies':>8} {'waits':>8}"]
    for line in found:
        out.append(
            f"{line.name:<26} {format_time(line.median_ns):>9} {line.exchanges:>9}"
            f" {format_bytes(line.received_bytes):>9} {format_percent(line.copy_share):>8}"
            f" {format_percent(line.wait_share):>8}"
        )
    out.append("")
    for over, under in COMPARED:
        slow, fast = by_name[over], by_name[under]
        out.append(f"{over} / {under}: {ratios(slow.layer_ns, fast.layer_ns)}")
        out.append(f"    CPU time of the busiest rank: {ratios(slow.cpu_ns, fast.cpu_ns)}")
    out += ["", "the median layer of 'b mixed', rank by rank"]
    for spans in chain:
        ordered = sorted((s for s in spans if s.lane != "network"), key=lambda s: s.start_ns)
        out += [
            f"  rank {s.rank}  {format_time(s.start_ns):>8}  {format_time(s.duration_ns):>8}  {s.lane:<7}  {s.name}"
            for s in ordered
        ]
    return "\n".join(out)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    entries = make_programs()
    payload = msgspec.json.encode((options.repeats, entries))
    answers = run_ranks(measure_task, [payload] * 2, timeout_s=120)
    ranks = [msgspec.json.decode(answer, type=list[Measured]) for answer in answers]
    found = lines(entries, ranks)
    if options.json:
        print(msgspec.json.encode(found).decode())
    else:
        mixed = next(number for number, entry in enumerate(entries) if entry.name == "b mixed")
        print(report(found, [rank[mixed].spans for rank in ranks]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
