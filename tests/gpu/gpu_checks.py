"""Checks of kernels and engine in bf16 against attention by its definition in fp64, on the device of a run."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from gpu_report import Bench, Row, checked_row
from oracle.engine_reference import ENGINES, Tensors, gather, random_inputs, rms_errors, scatter, whole_attention
from torch import Tensor

from zellige.errors import KernelError
from zellige.exec.attention import Engine
from zellige.exec.kernels import Packing, Reference
from zellige.exec.lanes import InLine, Lanes, SideStream
from zellige.exec.loopback import Loopback
from zellige.exec.merge import merge_partial
from zellige.exec.session import Session, connected
from zellige.exec.transports import TRANSPORTS, connect
from zellige.placement import Engine as EngineName
from zellige.program import Assignment, Heads, Program, build_program
from zellige.shards import parse_config

DTYPE = torch.bfloat16
LIMIT = 0.01
"""Largest error of a bf16 tensor relative to its norm: rounding of operands alone costs 0.001 to 0.01."""

LSE_LIMIT = 0.005

KernelCase = tuple[str, tuple[int, ...], tuple[int, ...], tuple[int, int], int]

KERNEL_CASES: list[KernelCase] = [
    ("equal lengths", (256,) * 8, (256,) * 8, (12, 12), 128),
    ("one long entry among short ones", (4096, *(64,) * 40), (4096, *(64,) * 40), (12, 12), 128),
    ("other numbers of keys than queries", (300, 17, 1, 128), (77, 1024, 5, 129), (8, 2), 128),
    ("one query each, grouped heads", (1,) * 5, (7, 300, 1, 64, 130), (8, 2), 64),
    ("one query each", (1,) * 5, (7, 300, 1, 64, 130), (4, 4), 64),
    ("one key each", (5, 200), (1, 1), (6, 3), 64),
    ("one K/V head", (130, 131), (513, 3), (5, 1), 64),
    ("three heads of one sequence", (2048,), (2048,), (3, 3), 128),
    ("head_dim 80", (333, 65), (65, 333), (4, 4), 80),
    ("head_dim 256", (200, 100), (100, 200), (2, 2), 256),
    ("three thousand short entries", tuple(8 + n % 57 for n in range(3000)), (33,) * 3000, (4, 4), 64),
]


def relative(found: Tensor, exact: Tensor) -> float:
    """The norm of the difference over the norm (at least that of elements of 0.01); NaN where anything is."""
    floor = 0.01 * exact.numel() ** 0.5
    return ((found.double() - exact.double()).norm() / exact.double().norm().clamp(min=floor)).item()


def poison(device: torch.device, megabytes: int) -> None:
    """Leave NaN in memory that the allocator hands out next, so that an element that is never written shows."""
    blocks = [
        torch.full((size * 2**18,), torch.nan, device=device) for size in (1, 4, 16, 64, 256) if size <= megabytes
    ]
    blocks += [torch.full((2**n,), torch.nan, device=device) for n in range(6, 18) for _ in range(4)]
    del blocks


def draw(bench: Bench, tokens: int, heads: int, head_dim: int, generator: torch.Generator) -> Tensor:
    """Random numbers, the same on any device."""
    return torch.randn(tokens, heads, head_dim, generator=generator).to(DTYPE).to(bench.device)


def check_kernel(bench: Bench, case: KernelCase) -> Row:
    """Output, log-sum-exp and gradients of one packed call."""
    name, lengths_q, lengths_k, (heads, kv_heads), head_dim = case
    if bench.rehearsal:
        lengths_q, lengths_k = lengths_q[:20], lengths_k[:20]
    packing = Packing(tuple(map(bench.scaled, lengths_q)), tuple(map(bench.scaled, lengths_k)))
    generator = torch.Generator().manual_seed(len(name))
    q, grad = (draw(bench, packing.cu_q[-1], heads, head_dim, generator) for _ in range(2))
    k, v = (draw(bench, packing.cu_k[-1], kv_heads, head_dim, generator) for _ in range(2))
    exact, exact_lse = Reference().forward(q.double(), k.double(), v.double(), packing)
    wanted = Reference().backward(grad.double(), q.double(), k.double(), v.double(), exact, exact_lse, packing)
    poison(bench.device, 4 if bench.rehearsal else 256)
    out, lse = bench.kernel.forward(q, k, v, packing)
    gradients = bench.kernel.backward(grad, q, k, v, out, lse, packing)
    errors = {
        "out": relative(out, exact),
        "lse": (lse - exact_lse).abs().max().item(),
        **{key: relative(a, b) for key, a, b in zip(("dq", "dk", "dv"), gradients, wanted, strict=True)},
    }
    limits = dict.fromkeys(("out", "dq", "dk", "dv"), LIMIT)
    return checked_row("kernel", name, errors, {**limits, "lse": LSE_LIMIT})


def check_ring_backward(bench: Bench) -> Row:
    """Two ring rounds merged, and their backward with the log-sum-exp of all keys."""
    generator = torch.Generator().manual_seed(5)
    queries, keys = bench.scaled(700), bench.scaled(1500) + 2
    cut = keys // 3
    q, grad = (draw(bench, queries, 8, 128, generator) for _ in range(2))
    k, v = (draw(bench, keys, 2, 128, generator) for _ in range(2))
    every = Packing((queries,), (keys,))
    exact, exact_lse = Reference().forward(q.double(), k.double(), v.double(), every)
    wanted = Reference().backward(grad.double(), q.double(), k.double(), v.double(), exact, exact_lse, every)
    parts = [(slice(0, cut), Packing((queries,), (cut,))), (slice(cut, keys), Packing((queries,), (keys - cut,)))]
    out = torch.zeros(q.shape, device=bench.device)
    lse = torch.full(q.shape[:2], -torch.inf, device=bench.device)
    for own, packing in parts:
        out, lse = merge_partial(out, lse, *bench.kernel.forward(q, k[own], v[own], packing))
    merged = out.to(DTYPE)
    gradients = [bench.kernel.backward(grad, q, k[own], v[own], merged, lse, packing) for own, packing in parts]
    errors = {
        "out": relative(merged, exact),
        "lse": (lse - exact_lse).abs().max().item(),
        "dq": relative(gradients[0][0].float() + gradients[1][0].float(), wanted[0]),
        "dk": relative(torch.cat([gradients[0][1], gradients[1][1]]), wanted[1]),
        "dv": relative(torch.cat([gradients[0][2], gradients[1][2]]), wanted[2]),
    }
    limits = dict.fromkeys(("out", "dq", "dk", "dv"), LIMIT)
    return checked_row("kernel", "two ring rounds, merged", errors, {**limits, "lse": LSE_LIMIT})


def check_empty_entries(bench: Bench) -> Row:
    """Entries without queries or keys are refused before any kernel."""
    refused = 0
    for lengths_q, lengths_k in (((0, 3), (4, 4)), ((3, 3), (4, 0))):
        try:
            Packing(lengths_q, lengths_k)
        except KernelError:
            refused += 1
    return checked_row("kernel", "empty entries", {"accepted": 2.0 - refused}, {"accepted": 0.0})


def random_plan(bench: Bench, seed: int, num_ranks: int, engine: EngineName) -> Program:
    """Sequences with any split on any ranks; head_dim is one that flash attention has code for."""
    rng = random.Random(seed)
    texts = ["whole", "h2", "q2", "k2"] + (["h2k2", "q2k2", "q4", "k4", "q3", "k3", "h4"] if num_ranks >= 4 else [])
    heads = rng.choice([(4, 4), (6, 3), (8, 2), (5, 1), (12, 12)])
    placed = []
    for index in range(rng.randint(2, 9)):
        config = parse_config(rng.choice(texts))
        length = bench.scaled(rng.choice([1, 2, 5, 100, 257, 640, 1024]) + rng.randint(0, 30))
        placed.append(Assignment(f"s{index}", length, config, tuple(rng.sample(range(num_ranks), config.degree))))
    return build_program(placed, Heads(*heads, rng.choice([64, 128])), num_ranks=num_ranks, engine=engine)


def run_loopback(
    bench: Bench,
    program: Program,
    inputs: list[Tensors],
    *,
    late: bool = False,
    lanes: Callable[[], Lanes] = InLine,
) -> list[Tensors]:
    """Output and gradients of every sequence, from all ranks of a program in this process."""
    own = [Tensors(*(t.to(bench.device) for t in scatter(program, inputs, r))) for r in range(program.num_ranks)]
    loopback = Loopback(program, bench.kernel, dtype=DTYPE, device=bench.device, poison=True, late=late, lanes=lanes)
    outs, saved = loopback.forward([(t.first, t.second, t.third) for t in own])
    grads = loopback.backward(saved, [t.fourth for t in own])
    return gather(program, [Tensors(out, *grad) for out, grad in zip(outs, grads, strict=True)])


def check_engine(bench: Bench, engine: EngineName, num_ranks: int, plans: int) -> Row:
    """Random plans: squares of errors summed over plans, against those of the same sequences on one rank."""
    squares = {"split": [0.0] * 4, "whole": [0.0] * 4}
    sequences = 0
    for seed in range(plans):
        program = random_plan(bench, 1000 * num_ranks + seed, num_ranks, engine)
        drawn = [Tensors(*(t.to(bench.device) for t in s)) for s in random_inputs(program, DTYPE, seed)]
        wanted = [whole_attention(t) for t in drawn]
        alone = build_program(
            [Assignment(s.sequence, s.length, parse_config("whole"), (0,)) for s in program.segments],
            Heads(program.num_heads, program.num_kv_heads, program.head_dim),
            num_ranks=1,
        )
        order = [s.sequence for s in program.segments]
        places = [order.index(s.sequence) for s in alone.segments]
        for kind, errors in (
            ("split", rms_errors(run_loopback(bench, program, drawn), wanted)),
            ("whole", rms_errors(run_loopback(bench, alone, [drawn[p] for p in places]), [wanted[p] for p in places])),
        ):
            squares[kind] = [total + error**2 for total, error in zip(squares[kind], errors, strict=True)]
        sequences += len(program.segments)
    names = ("out", "dq", "dk", "dv")
    ratios = {n: (a / b) ** 0.5 for n, a, b in zip(names, squares["split"], squares["whole"], strict=True)}
    note = f"{plans} plans, {sequences} sequences; errors over those of one rank"
    return checked_row("engine", f"{engine} on {num_ranks} ranks", ratios, dict.fromkeys(names, 2.0), note)


def check_order(bench: Bench, name: str, late: bool, lanes: Callable[[], Lanes]) -> Row:
    """Other times of exchanges and whole sequences change no bit, with deterministic kernels."""
    differences = 0
    torch.use_deterministic_algorithms(True)
    try:
        for seed in range(1 if bench.rehearsal else 9):
            program = random_plan(bench, 77 + seed, 4, ENGINES[seed % 3])
            inputs = random_inputs(program, DTYPE, seed)
            plain = run_loopback(bench, program, inputs)
            found = run_loopback(bench, program, inputs, late=late, lanes=lanes)
            differences += sum(
                not torch.equal(a, b)
                for left, right in zip(found, plain, strict=True)
                for a, b in zip(left, right, strict=True)
            )
    finally:
        torch.use_deterministic_algorithms(False)
    return checked_row("engine", name, {"tensors_that_differ": float(differences)}, {"tensors_that_differ": 0.0})


def check_one_rank_group(bench: Bench, transport: str) -> Row:
    """A process group of one rank: set-up, the first exchange, an engine on its transport, waiting, and the end."""
    session = Session(0, 1, dist.HashStore(), timeout_s=60)
    program = build_program(
        [Assignment(f"s{n}", bench.scaled(300 + n), parse_config("whole"), (0,)) for n in range(5)],
        Heads(4, 2, 64),
        num_ranks=1,
    )
    inputs = random_inputs(program, DTYPE, 1)
    own = [tensor.to(bench.device) for tensor in scatter(program, inputs, 0)]
    with connected(session, "nccl" if bench.device.type == "cuda" else "gloo", {"check": transport}):
        connect(None, bench.device)
        empty = own[0].new_empty((0, 64))
        blocking = TRANSPORTS[transport](None, datetime.timedelta(seconds=30)).start(empty, [0], empty, [0])
        blocking.wait()
        made = TRANSPORTS[transport](None, None)
        pending = made.start(empty, [0], empty, [0])
        pending.wait()
        undone = float(not blocking.is_done())
        if bench.device.type == "cuda":
            torch.cuda.synchronize()
        undone += not pending.is_done()
        engine = Engine(program, 0, {(0,): made}, bench.kernel, dtype=DTYPE, device=bench.device)
        q, k, v = (tensor.requires_grad_() for tensor in own[:3])
        out = engine(q, k, v)
        gradients = torch.autograd.grad(out, (q, k, v), own[3])
    found = gather(program, [Tensors(out.detach(), *gradients)])
    wanted = [whole_attention(Tensors(*(t.to(bench.device) for t in s))) for s in inputs]
    worst = max(relative(a, b) for x, y in zip(found, wanted, strict=True) for a, b in zip(x, y, strict=True))
    return checked_row("group", transport, {"undone": undone, "error": worst}, {"undone": 0.0, "error": LIMIT})


def kernel_checks(bench: Bench) -> None:
    """Packed calls against the definition."""
    for case in KERNEL_CASES:
        bench.attempt("kernel", case[0], partial(check_kernel, bench, case))
    bench.attempt("kernel", "two ring rounds, merged", partial(check_ring_backward, bench))
    bench.attempt("kernel", "empty entries", partial(check_empty_entries, bench))


def engine_checks(bench: Bench) -> None:
    """Random plans of all engines, and other orders of events."""
    for engine in ENGINES:
        for num_ranks in (4,) if bench.rehearsal else (2, 4, 8):
            plans = 1 if bench.rehearsal else 6
            run = partial(check_engine, bench, engine, num_ranks, plans)
            bench.attempt("engine", f"{engine} on {num_ranks} ranks", run, needs_s=8)
    beside: Callable[[], Lanes] = partial(SideStream, bench.device) if bench.device.type == "cuda" else InLine
    for name, late, lanes in (
        ("twice the same", False, InLine),
        ("late exchanges", True, InLine),
        ("whole sequences on a side stream", False, beside),
        ("both", True, beside),
    ):
        bench.attempt("engine", name, partial(check_order, bench, name, late, lanes), needs_s=6)


def group_checks(bench: Bench) -> None:
    """A process group of this one rank."""
    for transport in TRANSPORTS:
        bench.attempt("group", transport, partial(check_one_rank_group, bench, transport), needs_s=8)
