"""The engine on all ranks of a program in one process, against attention that nobody split.

``pytest --plans 1000`` runs a thousand random plans instead of the usual share.
"""

from __future__ import annotations

import msgspec
import pytest
import torch
from oracle.engine_reference import (
    ENGINES,
    Tensors,
    gather,
    random_inputs,
    random_program,
    rms_errors,
    scatter,
    whole_attention,
    worst_error,
)

from zellige.errors import CyclicWaitError, KernelError, WireBytesError
from zellige.exec.kernels import CpuFlash, Kernel, PlainSdpa, Reference
from zellige.exec.loopback import Loopback
from zellige.placement import Engine
from zellige.program import Assignment, Heads, Program, build_program
from zellige.program_checks import check_program
from zellige.program_parts import Op
from zellige.shards import parse_config, sequence_bytes

RANKS = (1, 2, 4, 8)


def run(
    program: Program, inputs: list[Tensors], kernel: Kernel | None = None, *, poison: bool = True
) -> tuple[list[Tensors], Loopback]:
    """Output and gradients of every sequence. Receive buffers hold NaN until something is received."""
    dtype = inputs[0].first.dtype if inputs else torch.float64
    own = [scatter(program, inputs, rank) for rank in range(program.num_ranks)]
    loopback = Loopback(program, kernel or CpuFlash(), dtype=dtype, poison=poison)
    outs, saved = loopback.forward([(t.first, t.second, t.third) for t in own])
    grads = loopback.backward(saved, [t.fourth for t in own])
    return gather(program, [Tensors(out, *grad) for out, grad in zip(outs, grads, strict=True)]), loopback


@pytest.fixture
def plans(request: pytest.FixtureRequest) -> list[tuple[int, int, Engine]]:
    """Seeds, ranks and engines of the random plans, dealt to 1, 2, 4 and 8 ranks and to the engines in turn."""
    count = int(request.config.getoption("--plans"))
    return [(seed, RANKS[seed % 4], ENGINES[seed // 4 % 3]) for seed in range(count)]


def assert_exchanges(program: Program, loopback: Loopback) -> None:
    """Exchanges follow from the engine's groups; bytes are compared with the program's by the loopback itself."""
    for phase in ("forward", "backward"):
        entered = [e for e in program.exchanges if e.phase == phase and not e.is_local]
        assert loopback.moved[phase].exchanges == len(entered)
        if program.engine == "coalesced":
            rounds = max((segment.config.k for segment in program.segments), default=1)
            assert len(entered) == (rounds + 1 if program.groups else 0)


@pytest.mark.parametrize("block", range(4))
def test_random_plans_are_exact(block: int, plans: list[tuple[int, int, Engine]]) -> None:
    for seed, num_ranks, engine in plans[block::4]:
        program = random_program(seed, num_ranks, engine)
        for dtype, limit in ((torch.float64, 1e-9), (torch.float32, 1e-5)):
            inputs = random_inputs(program, dtype, seed)
            found, loopback = run(program, inputs)
            assert worst_error(found, [whole_attention(t) for t in inputs]) < limit, (seed, num_ranks, engine, dtype)
            assert_exchanges(program, loopback)


@pytest.mark.parametrize("block", range(4))
def test_narrow_types_lose_no_more_than_twice_what_one_rank_loses(
    block: int, plans: list[tuple[int, int, Engine]]
) -> None:
    squares = {"split": [0.0] * 4, "whole": [0.0] * 4}
    for seed, num_ranks, engine in plans[block::4]:
        program = random_program(seed, num_ranks, engine)
        inputs = random_inputs(program, torch.bfloat16, seed)
        if not inputs:
            continue
        wanted = [whole_attention(t) for t in inputs]
        alone = on_one_rank(program)
        for name, where in (("split", program), ("whole", alone)):
            found, loopback = run(where, inputs_for(where, program, inputs))
            assert_exchanges(where, loopback)
            errors = rms_errors(inputs_for(program, where, found), wanted)
            squares[name] = [total + error**2 for total, error in zip(squares[name], errors, strict=True)]
    for split, whole in zip(squares["split"], squares["whole"], strict=True):
        assert split**0.5 <= 2 * whole**0.5


def on_one_rank(program: Program) -> Program:
    """The same sequences, whole on one rank."""
    whole = parse_config("whole")
    return build_program(
        [Assignment(segment.sequence, segment.length, whole, (0,)) for segment in program.segments],
        Heads(program.num_heads, program.num_kv_heads, program.head_dim),
        num_ranks=1,
    )


def inputs_for(target: Program, source: Program, tensors: list[Tensors]) -> list[Tensors]:
    """Tensors in the order of another program's segments."""
    by_name = {segment.sequence: t for segment, t in zip(source.segments, tensors, strict=True)}
    return [by_name[segment.sequence] for segment in target.segments]


@pytest.mark.parametrize("engine", ENGINES)
def test_two_runs_are_equal_bit_by_bit(engine: Engine) -> None:
    for seed in range(12):
        program = random_program(seed, 4, engine)
        for dtype in (torch.float32, torch.bfloat16):
            inputs = random_inputs(program, dtype, seed)
            first, _ = run(program, inputs)
            second, _ = run(program, inputs, poison=False)
            for left, right in zip(first, second, strict=True):
                assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def test_bytes_are_those_of_the_row_count() -> None:
    for seed in range(12):
        program = random_program(seed, 8, ENGINES[seed % 3])
        due = [sequence_bytes(program.shape(segment), segment.config) for segment in program.segments]
        _, narrow = run(program, random_inputs(program, torch.bfloat16)) if due else (None, None)
        if narrow is not None:
            assert narrow.moved["forward"].sent_bytes == sum(moved.forward for moved in due)
            assert narrow.moved["backward"].sent_bytes == sum(moved.backward for moved in due)
            _, wide = run(program, random_inputs(program, torch.float64))
            assert wide.moved["forward"].sent_bytes == 4 * narrow.moved["forward"].sent_bytes


def test_whole_sequences_are_the_plain_kernel() -> None:
    program = build_program(
        [Assignment(f"s{n}", length, parse_config("whole"), (n % 2,)) for n, length in enumerate((5, 9, 5, 5, 12))],
        Heads(4, 2, 8),
        num_ranks=2,
    )
    inputs = random_inputs(program, torch.float32)
    found, loopback = run(program, inputs)
    alone, _ = run(on_one_rank(program), inputs)
    assert loopback.moved["forward"].exchanges == loopback.moved["backward"].sent_bytes == 0
    for left, right in zip(found, alone, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def test_another_kernel_gives_the_same_numbers() -> None:
    for seed in range(6):
        program = random_program(seed, 4)
        inputs = random_inputs(program, torch.float64, seed)
        found, _ = run(program, inputs, Reference())
        assert worst_error(found, [whole_attention(t) for t in inputs]) < 1e-9


def test_a_kernel_without_log_sum_exp_refuses_ring_rounds() -> None:
    heads = Heads(4, 4, 8)
    ring = build_program([Assignment("clip", 12, parse_config("h2k2"), (0, 1, 2, 3))], heads, num_ranks=4)
    with pytest.raises(KernelError, match="no log-sum-exp") as caught:
        Loopback(ring, PlainSdpa(), dtype=torch.float32)
    assert "clip" in caught.value.where
    gathered = build_program([Assignment("clip", 12, parse_config("q2h2"), (0, 1, 2, 3))], heads, num_ranks=4)
    inputs = random_inputs(gathered, torch.float64)
    found, _ = run(gathered, inputs, PlainSdpa())
    assert worst_error(found, [whole_attention(t) for t in inputs]) < 1e-9


def test_a_program_with_other_rows_than_the_layout_is_refused() -> None:
    program = random_program(3, 4)
    exchange = program.exchanges[0]
    message = msgspec.structs.replace(exchange.messages[0], rows=exchange.messages[0].rows + 1)
    changed = msgspec.structs.replace(exchange, messages=(message, *exchange.messages[1:]))
    broken = msgspec.structs.replace(program, exchanges=(changed, *program.exchanges[1:]))
    with pytest.raises(WireBytesError, match="other rows than the program says"):
        Loopback(broken, CpuFlash(), dtype=torch.float32)


def test_ranks_that_wait_for_one_another_are_found_not_waited_for() -> None:
    heads = Heads(2, 2, 4)
    edges = [Assignment(f"s{n}", 6, parse_config("h2"), (n, (n + 1) % 3)) for n in range(3)]
    program = build_program(edges, heads, num_ranks=3, engine="group")
    check_program(program)
    works = []
    for rank, work in enumerate(program.ranks):
        # Rank n enters the exchange of edge n first, and of edge n - 1 after it.
        def later(op: Op, rank: int = rank) -> bool:
            group = program.exchanges[op.index].group if op.kind in ("issue", "wait") else op.index
            return group != rank

        works.append(msgspec.structs.replace(work, forward=tuple(sorted(work.forward, key=later))))
    circle = msgspec.structs.replace(program, ranks=tuple(works))
    inputs = random_inputs(circle, torch.float64)
    with pytest.raises(CyclicWaitError, match="no rank can go on"):
        run(circle, inputs)
