"""The engine on gloo ranks: bit by bit what one process computes, whatever the transport."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec
import pytest
import torch
from oracle.engine_reference import ENGINES, Tensors, random_inputs, random_program, scatter
from oracle.trace_format import violations
from rank_tasks import (
    DTYPES,
    PlanResult,
    PlanRun,
    hash_of,
    open_and_close_fifty_times,
    run_checkpointed,
    run_on_the_last_two,
    run_plans,
    sleep_on_rank_0,
)

from zellige.chrome_trace import chrome_events
from zellige.exec.attention import expected_bytes
from zellige.exec.execute import execute_attention
from zellige.exec.kernels import CpuFlash
from zellige.exec.launch import RankTask, run_ranks
from zellige.exec.loopback import Loopback
from zellige.files import decode_json, readable_json
from zellige.placement import Engine
from zellige.program import Assignment, Heads, Program, build_program
from zellige.program_parts import Pass
from zellige.shards import parse_config
from zellige.trace import Trace

pytestmark = pytest.mark.dist


def plan(*placed: tuple[int, str, tuple[int, ...]], num_ranks: int, engine: Engine = "coalesced") -> Program:
    """Sequences of (length, configuration, ranks)."""
    return build_program(
        [Assignment(f"s{n}", length, parse_config(config), ranks) for n, (length, config, ranks) in enumerate(placed)],
        Heads(4, 2, 8),
        num_ranks=num_ranks,
        engine=engine,
    )


def in_one_process(run: PlanRun) -> list[Tensors]:
    """Output and gradients of every rank's tokens, by loopback."""
    dtype = DTYPES[run.dtype]
    inputs = random_inputs(run.program, dtype, run.seed)
    own = [scatter(run.program, inputs, rank) for rank in range(run.program.num_ranks)]
    own = [Tensors(*(tensor.to(dtype) for tensor in tensors)) for tensors in own]
    loopback = Loopback(run.program, CpuFlash(), dtype=dtype)
    outs, saved = loopback.forward([(t.first, t.second, t.third) for t in own])
    grads = loopback.backward(saved, [t.fourth for t in own])
    return [Tensors(out, *grad) for out, grad in zip(outs, grads, strict=True)]


def due(run: PlanRun, rank: int) -> tuple[int, int]:
    """Exchanges and sent bytes of a rank in forward and backward, as the program says."""
    forward = expected_bytes(run.program, rank, "forward", DTYPES[run.dtype])
    backward = expected_bytes(run.program, rank, "backward", DTYPES[run.dtype])
    return forward[0] + backward[0], forward[1] + backward[1]


def on_ranks(task: RankTask, run: PlanRun, num_ranks: int) -> list[bytes]:
    """A task on ranks that all get the same plan."""
    return run_ranks(task, [msgspec.json.encode(run)] * num_ranks, timeout_s=30, deadline_s=120)


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_ranks_compute_what_one_process_does_bit_by_bit(num_ranks: int) -> None:
    """Many plans in one process group; lengths change between them while some ranks' sizes repeat (case 17)."""
    runs = [
        PlanRun(
            random_program(seed, num_ranks, ENGINES[seed % 3]),
            seed,
            ("fp64", "fp32", "bf16")[seed // 3 % 3],
            ("all-to-all", "peer-to-peer")[seed % 2],
        )
        for seed in range(36 if num_ranks == 2 else 24)
    ]
    payload = msgspec.json.encode(runs)
    answers = run_ranks(run_plans, [payload] * num_ranks, timeout_s=30, deadline_s=120)
    results = [msgspec.json.decode(answer, type=list[PlanResult]) for answer in answers]
    for number, run in enumerate(runs):
        wanted = in_one_process(run)
        for rank in range(num_ranks):
            found = results[rank][number]
            assert found.hash == hash_of(wanted[rank]), (run.seed, rank)
            assert (found.exchanges, found.sent_bytes) == due(run, rank)


RING = plan((23, "k4", (0, 1, 2, 3)), (17, "k3", (3, 1, 0)), (5, "whole", (2,)), num_ranks=4)


@pytest.mark.parametrize("transport", ["all-to-all", "peer-to-peer"])
def test_31_a_slow_rank_among_rounds_of_one_buffer(transport: str) -> None:
    run = PlanRun(RING, 3, "fp32", "peer-to-peer" if transport == "peer-to-peer" else "all-to-all")
    answers = on_ranks(sleep_on_rank_0, run, 4)
    assert [answer.decode() for answer in answers] == [hash_of(tensors) for tensors in in_one_process(run)]


@pytest.mark.parametrize("engine", ["coalesced", "per_sequence"])
def test_22_engines_that_are_closed_leave_nothing(engine: Engine) -> None:
    program = plan((9, "h2", (0, 1)), (8, "q2", (1, 2)), (7, "k2", (2, 0)), num_ranks=3, engine=engine)
    for answer in on_ranks(open_and_close_fifty_times, PlanRun(program, 0, "fp32", "all-to-all"), 3):
        early, late = msgspec.json.decode(answer, type=list[dict[str, int]])
        assert late["groups"] == early["groups"] == 1
        # Sockets of a peer close a moment later; a leak would be 45 groups of sockets and threads.
        assert late["threads"] <= early["threads"] + 4
        assert late["files"] <= early["files"] + 4


@pytest.mark.parametrize("transport", ["all-to-all", "peer-to-peer"])
def test_23_an_engine_on_part_of_the_world(transport: str) -> None:
    program = plan((9, "h2", (0, 1)), (8, "k2", (1, 0)), (4, "whole", (1,)), num_ranks=2)
    run = PlanRun(program, 0, "fp32", "peer-to-peer" if transport == "peer-to-peer" else "all-to-all")
    answers = on_ranks(run_on_the_last_two, run, 3)
    assert [answer.decode() for answer in answers] == ["idle", *(hash_of(t) for t in in_one_process(run))]


def test_checkpointing_repeats_the_forward_exchanges_and_changes_no_bit() -> None:
    program = plan((9, "h2", (0, 1)), (8, "k2", (1, 0)), (4, "whole", (1,)), num_ranks=2)
    run = PlanRun(program, 0, "fp32", "all-to-all")
    wanted = in_one_process(run)
    for rank, answer in enumerate(on_ranks(run_checkpointed, run, 2)):
        found = msgspec.json.decode(answer, type=PlanResult)
        assert found.hash == hash_of(wanted[rank])
        assert found.exchanges == 3 + 3 + 3


@pytest.mark.parametrize("engine", ENGINES)
def test_an_execution_is_measured_under_the_names_of_its_program(engine: Engine) -> None:
    program = plan(
        (40, "h2", (0, 1)), (30, "q2", (1, 0)), (20, "k2", (0, 1)), (9, "whole", (1,)), num_ranks=2, engine=engine
    )
    done = execute_attention(program, dtype="bf16", layers=2, timeout_s=30, verify=True)
    assert done.worst_error is not None
    assert done.worst_error < 0.05
    assert done.received_bytes == program.layer_bytes("forward") + program.layer_bytes("backward")
    assert done.trace.program == program.digest
    names = {span.name for span in done.trace.spans}
    passes: tuple[Pass, ...] = ("forward", "backward")
    known = {program.span(phase, op) for work in program.ranks for phase in passes for op in work.ops(phase)}
    copies = {f"{name}.{kind}" for name in known for kind in ("pack", "unpack", "enter")}
    assert names <= known | copies
    assert {"forward.whole0", "backward.whole0"} <= names
    for rank in range(2):
        for phase in passes:
            received = sum(
                span.bytes
                for span in done.trace.spans
                if span.rank == rank and span.lane == "network" and span.layer == 1 and span.name.startswith(phase)
            )
            assert received == expected_bytes(program, rank, phase, torch.bfloat16)[2]
    if engine == "coalesced":
        flying, whole = (
            next(s for s in done.trace.spans if (s.rank, s.layer, s.lane) == (1, 1, lane) and s.name == name)
            for lane, name in (("network", "forward.split.in0"), ("compute", "forward.whole0"))
        )
        assert flying.start_ns <= whole.start_ns
        assert whole.stop_ns <= flying.stop_ns
    document = chrome_events(done.trace)
    assert violations(document) == []
    phases = Counter(event["ph"] for event in document["traceEvents"])
    assert (phases["X"], phases["s"] > 0) == (len(done.trace.spans), True)


@pytest.mark.slow
def test_ranks_may_be_started_by_torchrun(tmp_path: Path) -> None:
    program = plan((40, "h2", (0, 1)), (20, "k2", (0, 1)), (9, "whole", (1,)), num_ranks=2)
    (tmp_path / "program.json").write_text(readable_json(program))
    trace = tmp_path / "trace.json"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"),
            *("--master-addr=127.0.0.1", "--master-port=0", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"),
            *("-m", "zellige.exec", str(tmp_path / "program.json"), "--verify", "--trace", str(trace)),
        ],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert "largest error against unsharded fp64 attention" in done.stdout
    assert decode_json(trace.read_text(), Trace, "trace.json").program == program.digest
