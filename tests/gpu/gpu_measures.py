"""Times of kernels, fusion, copies and engine layers, beside what the catalog says of the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from gpu_report import Bench, Row, Timing, timed_row
from torch import Tensor

from zellige import catalog
from zellige.analytic import BACKWARD_ATTENTION, BACKWARD_GEMM, attention_rate
from zellige.exec.attention import make_layer
from zellige.exec.kernels import Packing
from zellige.exec.loopback import Loopback
from zellige.placement import Engine as EngineName
from zellige.program import Assignment, Heads, Program, build_program
from zellige.shards import parse_config

DTYPE = torch.bfloat16
MODEL = "wan2.1-t2v-1.3b"

BUCKETS = [
    (256, 256, 1),
    (832, 480, 1),
    (1280, 720, 1),
    (1920, 1080, 1),
    (832, 480, 33),
    (832, 480, 81),
    (1280, 720, 81),
    (1280, 720, 161),
]
"""Width, height and frames: the lengths that analytic prices are asked for."""

Shape = tuple[str, int, int, int]
"""A name, queries, keys and heads of one attention task."""


def bucket_lengths() -> list[tuple[str, int]]:
    """Names and token counts of the buckets."""
    model = catalog.load_model(MODEL)
    found = []
    for width, height, frames in BUCKETS:
        grid = model.grid(*model.snap_size(width, height), model.snap_frames(frames))
        found.append((f"{width}x{height}x{frames}", grid[0] * grid[1] * grid[2]))
    return found


def attention_shapes() -> list[Shape]:
    """Whole sequences of every bucket, then one long sequence as each axis splits it."""
    shapes = [(f"{name} whole", length, length, 12) for name, length in bucket_lengths()]
    _, length = bucket_lengths()[-2]
    shapes += [
        ("720p 81 frames, h4", length, length, 3),
        ("720p 81 frames, h12", length, length, 1),
        ("720p 81 frames, q8", length // 8, length, 12),
        ("720p 81 frames, k8 (one round)", length // 8, length // 8, 12),
        ("720p 81 frames, h4k2 (one round)", length // 2, length // 2, 3),
    ]
    return shapes


def tensors(bench: Bench, tokens: int, heads: int, count: int) -> list[Tensor]:
    """Random numbers drawn on the device."""
    return [torch.randn(tokens, heads, 128, device=bench.device, dtype=DTYPE) for _ in range(count)]


def measure_attention(bench: Bench, shape: Shape, *, backward: bool) -> Row:
    """One task alone: TFLOP/s, and the catalog's at the same tile length."""
    name, queries, keys, heads = shape
    queries, keys = bench.scaled(queries), bench.scaled(keys)
    packing = Packing((queries,), (keys,))
    (q, grad), (k, v) = tensors(bench, queries, heads, 2), tensors(bench, keys, heads, 2)
    out, lse = bench.kernel.forward(q, k, v, packing)
    flops = 4.0 * queries * keys * heads * 128
    if backward:
        timing = bench.time(lambda: bench.kernel.backward(grad, q, k, v, out, lse, packing))
        flops *= BACKWARD_ATTENTION
    else:
        timing = bench.time(lambda: bench.kernel.forward(q, k, v, packing))
    figures = {"tflops": flops / timing.median / 1e3, "queries": queries, "keys": keys, "heads": heads}
    if bench.known is not None:
        points = bench.known.attention_for(128).points
        due = attention_rate(points, min(queries, keys), backward=backward) / 1e3
        figures |= {"catalog_tflops": due, "measured_over_catalog": figures["tflops"] / due}
    return timed_row("attention", f"{name}, {'backward' if backward else 'forward'}", timing, figures)


def measure_gemms(bench: Bench, tokens: int, *, backward: bool) -> Row:
    """The linear layers of one block: four projections and a feed-forward; as fraction of peak."""
    geometry = catalog.load_model(MODEL).geometry
    width, hidden = bench.scaled(geometry.hidden_dim), bench.scaled(geometry.ffn_dim)
    tokens = bench.scaled(tokens)
    pairs = [(width, width, 4), (width, hidden, 1), (hidden, width, 1)]
    made = [
        (
            torch.randn(tokens, inside, device=bench.device, dtype=DTYPE),
            torch.randn(outside, inside, device=bench.device, dtype=DTYPE),
            torch.randn(tokens, outside, device=bench.device, dtype=DTYPE),
            times,
        )
        for inside, outside, times in pairs
    ]

    def run() -> None:
        for rows, weight, grad, times in made:
            for _ in range(times):
                if backward:
                    grad @ weight
                    grad.T @ rows
                else:
                    rows @ weight.T

    timing = bench.time(run)
    flops = sum(2.0 * tokens * inside * outside * times for inside, outside, times in pairs)
    figures = {"tokens": tokens, "tflops": flops * (BACKWARD_GEMM if backward else 1) / timing.median / 1e3}
    if bench.known is not None:
        compute = bench.known.compute
        figures |= {
            "fraction_of_peak": figures["tflops"] / compute.bf16_tflops,
            "catalog_fraction": compute.gemm_fraction,
        }
    return timed_row("gemm", f"{tokens} tokens, {'backward' if backward else 'forward'}", timing, figures)


def measure_fusion(bench: Bench, name: str, lengths: Sequence[int], *, backward: bool) -> Row:
    """A batch in one packed call, against a call for each sequence; equal lengths against a dense batch of the kernel,
    a long first sequence against calls of its own and of all others.
    """
    lengths = [bench.scaled(length) for length in (lengths[:6] if bench.rehearsal else lengths)]
    packing = Packing(tuple(lengths), tuple(lengths))
    q, k, v, grad = tensors(bench, sum(lengths), 12, 4)
    out, lse = bench.kernel.forward(q, k, v, packing)
    apart = [
        (slice(first, first + length), Packing((length,), (length,)))
        for first, length in zip(packing.cu_q, lengths, strict=False)
    ]

    def call(own: slice, one: Packing) -> object:
        if backward:
            return bench.kernel.backward(grad[own], q[own], k[own], v[own], out[own], lse[own], one)
        return bench.kernel.forward(q[own], k[own], v[own], one)

    together = bench.time(lambda: call(slice(None), packing))
    separate = bench.time(lambda: [call(own, one) for own, one in apart])
    figures = {"sequences": len(lengths), "separate_over_packed": separate.median / together.median}
    if len(set(lengths)) == 1:
        dense = _dense(bench, (q, k, v, grad), len(lengths), backward=backward)
        figures["packed_over_dense"] = together.median / dense.median
    elif lengths[0] == max(lengths) and lengths.count(lengths[0]) == 1:
        rest = tuple(lengths[1:])
        two = [apart[0], (slice(lengths[0], None), Packing(rest, rest))]
        figures["two_calls_over_packed"] = bench.time(lambda: [call(own, one) for own, one in two]).median / (
            together.median
        )
    return timed_row("fusion", f"{name}, {'backward' if backward else 'forward'}", together, figures)


def _dense(bench: Bench, packed: Sequence[Tensor], entries: int, *, backward: bool) -> Timing:
    """The same kernel on a batch of equal lengths, without packing."""
    q, k, v, grad = (t.view(entries, -1, *t.shape[1:]) for t in packed)
    longest = (q.shape[1], k.shape[1])
    run = partial(torch.ops.aten._flash_attention_forward, q, k, v, None, None, *longest, 0.0, False, False)
    if not backward:
        return bench.time(run)
    out, lse, *_ = run()
    state = torch.zeros(2, dtype=torch.uint64, device=q.device)
    back = torch.ops.aten._flash_attention_backward
    return bench.time(lambda: back(grad, q, k, v, out, lse, None, None, *longest, 0.0, False, state, state[:0]))


def measure_copies(bench: Bench, name: str, contiguous: int) -> Row:
    """Rows of 128 elements gathered by an index, in runs of ``contiguous``: what packing costs."""
    rows = bench.scaled(4_000_000)
    source = torch.randn(rows, 128, device=bench.device).to(DTYPE)
    target = torch.empty_like(source)
    blocks = torch.randperm(max(1, rows // contiguous), generator=torch.Generator().manual_seed(0))
    index = (blocks[:, None] * contiguous + torch.arange(contiguous)[None, :]).reshape(-1)
    index = index[index < rows].to(bench.device)
    timing = bench.time(lambda: torch.index_select(source, 0, index, out=target[: len(index)]))
    moved = 2.0 * len(index) * 256 + 8 * len(index)
    figures = {"gb_per_s": moved / timing.median}
    if bench.known is not None:
        figures["share_of_peak"] = figures["gb_per_s"] / bench.known.memory.bandwidth_gb_per_s
    return timed_row("copies", name, timing, figures)


def mixed_plan(bench: Bench, engine: EngineName) -> Program:
    """Two videos split over eight ranks, and images whole on all of them."""
    lengths = dict(bucket_lengths())
    placed = [
        Assignment("film", bench.scaled(lengths["1280x720x81"]), parse_config("h4k2"), tuple(range(8))),
        Assignment("clip", bench.scaled(lengths["832x480x81"]), parse_config("h2"), (2, 5)),
    ]
    placed += [
        Assignment(f"short{n}", bench.scaled(lengths["832x480x33"] - n), parse_config("h2"), (n, (n + 3) % 8))
        for n in range(8)
    ]
    placed += [
        Assignment(f"image {size} {n}", bench.scaled(lengths[size]), parse_config("whole"), (n % 8,))
        for size in ("1280x720x1", "832x480x1", "256x256x1")
        for n in range(3 if bench.rehearsal else 32)
    ]
    return build_program(placed, Heads(12, 12, 128), num_ranks=8, engine=engine)


def measure_engine(bench: Bench, engine: EngineName) -> Row:
    """All ranks of a layer one after another, forward and backward, against their kernel calls alone."""
    program = mixed_plan(bench, engine)
    loopback = Loopback(program, bench.kernel, dtype=DTYPE, device=bench.device)
    counts = [layer.maps.num_tokens for layer in loopback.layers]
    inputs = [tuple(tensors(bench, count, 12, 3)) for count in counts]
    grads = [tensors(bench, count, 12, 1)[0] for count in counts]

    def run() -> None:
        _, saved = loopback.forward([(t[0], t[1], t[2]) for t in inputs])
        loopback.backward(saved, grads)

    layer = bench.time(run, budget_s=4)
    alone = bench.time(kernel_calls(bench, program), budget_s=4)
    moved = sum(move.sent_bytes for move in loopback.moved.values())
    figures = {
        "tokens": sum(counts),
        "layer_over_kernels": layer.median / alone.median,
        "exchanged_bytes": moved,
    }
    return timed_row("layer", f"{engine}, eight ranks in turn, forward and backward", layer, figures)


def kernel_calls(bench: Bench, program: Program) -> Callable[[], None]:
    """The packed calls of all ranks, forward and backward, on tensors that are there already."""
    calls = []
    for rank in range(program.num_ranks):
        layer = make_layer(program, rank, bench.kernel, DTYPE, bench.device)
        found = [(batch.packing, 12, 12) for batch in layer.maps.whole]
        for mapped in layer.maps.groups.values():
            for head_class in mapped.layout.classes:
                sizes = (head_class.key.heads, head_class.key.kv_heads)
                found += [(call.packing, *sizes) for call in head_class.calls if call is not None]
        for packing, heads, kv_heads in found:
            q, grad = tensors(bench, packing.cu_q[-1], heads, 2)
            k, v = tensors(bench, packing.cu_k[-1], kv_heads, 2)
            calls.append((q, k, v, grad, packing))

    def run() -> None:
        for q, k, v, grad, packing in calls:
            out, lse = bench.kernel.forward(q, k, v, packing)
            bench.kernel.backward(grad, q, k, v, out, lse, packing)

    return run


FUSED = [
    ("64 images of 256 tokens", (256,) * 64),
    ("64 images of 480p", (1560,) * 64),
    ("32 images of 720p", (3600,) * 32),
    ("images of three sizes", (256, 1560, 3600) * 24),
    ("one video and 200 small images", (32760, *(256,) * 200)),
]


def attention_measures(bench: Bench) -> None:
    """Attention tasks one by one, forward and backward."""
    for shape in attention_shapes():
        for backward in (False, True):
            needs = 4e-14 * 4 * shape[1] * shape[2] * shape[3] * 128 * (2.5 if backward else 1) + 1
            run = partial(measure_attention, bench, shape, backward=backward)
            bench.attempt("attention", f"{shape[0]}, {'backward' if backward else 'forward'}", run, needs_s=needs)


def gemm_measures(bench: Bench) -> None:
    """Linear layers at bucket lengths."""
    for _, tokens in bucket_lengths()[:-1]:
        for backward in (False, True):
            bench.attempt("gemm", f"{tokens} tokens", partial(measure_gemms, bench, tokens, backward=backward))


def fusion_measures(bench: Bench) -> None:
    """Batches in one packed call and in many."""
    for name, lengths in FUSED:
        for backward in (False, True):
            run = partial(measure_fusion, bench, name, lengths, backward=backward)
            bench.attempt("fusion", name, run, needs_s=4)


def copy_measures(bench: Bench) -> None:
    """Gathers of rows, as packing makes them."""
    for name, contiguous in (("rows at random", 1), ("runs of 3 rows", 3), ("runs of 12 rows", 12), ("in order", 4096)):
        bench.attempt("copies", name, partial(measure_copies, bench, name, contiguous))


def layer_measures(bench: Bench) -> None:
    """Whole layers."""
    engines: tuple[EngineName, ...] = ("coalesced", "per_sequence")
    for engine in engines:
        bench.attempt("layer", engine, partial(measure_engine, bench, engine), needs_s=25)
