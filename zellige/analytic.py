"""Analytic price components: formulas over catalog constants, for any model, cluster, bucket, split and footprint."""

from __future__ import annotations

import math
from collections.abc import Sequence

from zellige.cluster import AttentionPoint, Cluster
from zellige.collectives import link_sources, own_calls_ns
from zellige.exchange_loads import load_ns, pass_loads
from zellige.memory import Checkpoint, kept_bytes, live_bytes
from zellige.model import ModelSpec
from zellige.prices import (
    MAX_DEGREE,
    Price,
    PriceHeader,
    PriceRow,
    PriceTable,
    attention_shape,
    footprints,
    legal_configs,
)
from zellige.shards import (
    WIRE_BYTES,
    AttentionShape,
    ParallelConfig,
    owned_range,
    query_range,
    sequence_bytes,
)
from zellige.workload import Bucket

BACKWARD_GEMM = 2.0
"""Backward over forward FLOPs of a GEMM (stas00/ml-engineering, training/performance)."""

BACKWARD_ATTENTION = 2.5
"""Backward over forward FLOPs of flash attention: five matrix products against two (FlashAttention paper's count)."""

ELEMENTWISE_PASSES = 25
"""Reads and writes of one hidden state per token and block in norms, RoPE, gates and modulation; counted in a Wan block
as 20 to 30 (assumed: the middle). Backward is taken as twice the forward."""

MERGE_BYTES = 10
GRADIENT_MERGE_BYTES = 30
"""HBM bytes an element that a ring round after the first adds: reading and writing the fp32 accumulator and reading the
bf16 partial, of O in forward and of dQ, dK and dV in backward (counted here)."""

OVERLAP_SLOWDOWN = 0.13
"""How much longer compute takes while an exchange runs beside it (assumed: 1.13, measured values range from 1.0 to 1.8;
NVIDIA/nccl#1428 explains it by HBM traffic of the exchange)."""

SLOWEST_ATTENTION = 0.25
"""Below the shortest length of a throughput table the rate falls along its slope, to this share of its first value."""


def analytic_table(
    model: ModelSpec,
    cluster: Cluster,
    buckets: Sequence[Bucket],
    checkpoint: Checkpoint,
    *,
    max_degree: int = MAX_DEGREE,
) -> PriceTable:
    """Components of every bucket under every legal configuration and footprint, all marked ``analytic``."""
    configs = legal_configs(model, cluster, max_degree)
    rows = tuple(
        PriceRow(
            bucket=bucket.name,
            num_tokens=bucket.num_tokens,
            config=config,
            num_nodes=nodes,
            price=analytic_price(model, cluster, bucket.num_tokens, config, nodes, checkpoint),
        )
        for bucket in buckets
        for config in configs
        for nodes in footprints(cluster, config.degree)
    )
    header = PriceHeader(
        kind="components",
        model=model.name,
        cluster=cluster.name,
        device=cluster.device.name,
        dtype="bf16",
        checkpoint=checkpoint,
        assumptions=_assumptions(cluster, model.geometry.head_dim),
    )
    return PriceTable(header=header, rows=rows)


def analytic_price(
    model: ModelSpec,
    cluster: Cluster,
    length: int,
    config: ParallelConfig,
    num_nodes: int,
    checkpoint: Checkpoint,
) -> Price:
    """Components of one sequence of ``length`` visual tokens; the price is the largest shard's."""
    shape = attention_shape(model, length)
    last = config.degree - 1
    start, stop = owned_range(shape.length, config, last)
    shard = stop - start
    linear = _linear_ns(model, cluster, shard)
    core, attention = _attention_ns(model, cluster, shape, config, shard)
    alone, packed = (_exchange_ns(cluster, shape, config, num_nodes, core, packed=p) for p in (False, True))
    layers = model.geometry.num_layers
    full = checkpoint == "full"
    recompute = linear[0] if checkpoint != "none" else 0.0
    recompute += attention[0] if full else 0.0
    alone_ns, packed_ns = (sum(passes) + (passes[0] if full else 0.0) for passes in (alone, packed))
    passes = 4 if full else 3
    moved = sequence_bytes(shape, config)
    return Price(
        linear_ns=math.ceil(layers * sum(linear)),
        attention_ns=math.ceil(layers * sum(attention)),
        exchange_ns=math.ceil(layers * alone_ns),
        packed_exchange_ns=math.ceil(layers * packed_ns),
        launch_ns=math.ceil(layers * passes * own_calls_ns(cluster, config, num_nodes)),
        recompute_ns=math.ceil(layers * recompute),
        kept_bytes=kept_bytes(model, shape, config, checkpoint),
        live_bytes=live_bytes(model, shape, config),
        comm_bytes=layers * (moved.forward * (2 if full else 1) + moved.backward),
        source="analytic",
    )


def attention_rate(points: Sequence[AttentionPoint], length: int, *, backward: bool) -> float:
    """FLOPs per nanosecond of the attention kernel at a length: linear in log2(length) between the table's points."""
    values = [(math.log2(p.length), p.backward_tflops if backward else p.forward_tflops) for p in points]
    if len(values) == 1:
        return values[-1][1] * 1e3
    position = math.log2(max(length, 1))
    if position >= values[-1][0]:
        return values[-1][1] * 1e3
    index = next(i for i in range(1, len(values)) if position <= values[i][0])
    (x0, y0), (x1, y1) = values[index - 1], values[index]
    rate = y0 + (y1 - y0) * (position - x0) / (x1 - x0)
    return max(rate, SLOWEST_ATTENTION * values[0][1]) * 1e3


def gemm_ns(cluster: Cluster, flops: float) -> float:
    """Nanoseconds of GEMMs."""
    compute = cluster.device.compute
    return flops / (compute.bf16_tflops * compute.gemm_fraction * 1e3)


def elementwise_ns(model: ModelSpec, cluster: Cluster, num_tokens: int, passes: int = ELEMENTWISE_PASSES) -> float:
    """Nanoseconds of reading or writing the hidden state of some tokens ``passes`` times."""
    moved = num_tokens * passes * model.geometry.hidden_dim * WIRE_BYTES
    return moved / cluster.device.memory.bandwidth_gb_per_s


def core_ns(
    model: ModelSpec, cluster: Cluster, num_queries: int, num_keys: int, num_heads: int, tile: int, *, backward: bool
) -> float:
    """Nanoseconds of a layer's self-attention core: a forward's FLOPs at the throughput of a pass.

    ``tile`` is the length that sets the kernel's throughput; backward has ``BACKWARD_ATTENTION`` times the FLOPs.
    """
    points = cluster.device.attention_for(model.geometry.head_dim).points
    flops = model.attention_flops(num_queries, num_keys, num_heads)
    return flops / attention_rate(points, tile, backward=backward)


def cross_ns(model: ModelSpec, cluster: Cluster, num_tokens: int, *, backward: bool) -> float:
    """Nanoseconds of a layer's cross-attention core for some visual tokens, counted as :func:`core_ns` does."""
    points = cluster.device.attention_for(model.geometry.head_dim).points
    flops = num_tokens * model.cross_attention_flops_per_token()
    return flops / attention_rate(points, model.text.tokens, backward=backward)


def merge_ns(cluster: Cluster, num_elements: int, *, backward: bool) -> float:
    """Nanoseconds that a ring round after the first adds for merging ``num_elements`` of its partial results."""
    width = GRADIENT_MERGE_BYTES if backward else MERGE_BYTES
    return num_elements * width / cluster.device.memory.bandwidth_gb_per_s


def _linear_ns(model: ModelSpec, cluster: Cluster, shard: int) -> tuple[float, float]:
    """Forward and backward of a layer's GEMMs and elementwise passes on one shard; the text side is not split."""
    gemm = gemm_ns(cluster, shard * model.linear_flops_per_token() + model.text_flops())
    forward = gemm + elementwise_ns(model, cluster, shard)
    return forward, BACKWARD_GEMM * forward


def _attention_ns(
    model: ModelSpec, cluster: Cluster, shape: AttentionShape, config: ParallelConfig, shard: int
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Forward and backward of a layer's self-attention core on the largest shard, and of it with cross-attention."""
    start, stop = query_range(shape.length, config, config.degree - 1)
    heads = shape.num_heads // config.h
    tile = min(stop - start, -(-shape.length // config.k))
    forward, backward = (
        core_ns(model, cluster, stop - start, shape.length, heads, tile, backward=late) for late in (False, True)
    )
    backward *= BACKWARD_ATTENTION
    across = (
        cross_ns(model, cluster, shard, backward=False),
        BACKWARD_ATTENTION * cross_ns(model, cluster, shard, backward=True),
    )
    return (forward, backward), (forward + across[0], backward + across[1])


def _exchange_ns(
    cluster: Cluster,
    shape: AttentionShape,
    config: ParallelConfig,
    num_nodes: int,
    core: tuple[float, float],
    *,
    packed: bool,
) -> tuple[float, float]:
    """Forward and backward of what a layer's exchanges add to its compute: exposed transfer, overlap, and merges.

    Ring rounds after the first run beside the round before. What is longer than that round is exposed, and while both
    run the round is slower; each then adds a merge. ``core`` is the self-attention of all rounds.
    """
    if not config.is_split:
        return 0.0, 0.0
    start, stop = owned_range(shape.length, config, config.degree - 1)
    rows = (stop - start) * shape.head_dim
    heads, kv_heads = shape.num_heads // config.h, max(shape.num_kv_heads // config.h, 1)
    merged = shape.length // (config.q * config.k) * heads * shape.head_dim
    in_node = config.degree / num_nodes
    result = []
    both = pass_loads(config, num_nodes, heads, kv_heads, packed=packed)
    for late, loads, whole_core in zip((False, True), both, core, strict=True):
        merge = merge_ns(cluster, merged, backward=late)
        total = sum(load_ns(cluster, load, rows, in_node) for load in loads.exposed)
        work = whole_core / config.k
        for load in loads.hidden:
            moving = load_ns(cluster, load, rows, in_node)
            total += merge + max(moving - work, moving * OVERLAP_SLOWDOWN / (1 + OVERLAP_SLOWDOWN))
            work = whole_core / config.k + merge
        result.append(total)
    return result[0], result[1]


def _assumptions(cluster: Cluster, head_dim: int) -> tuple[str, ...]:
    """What the formulas take for granted, with the origin of every constant."""
    compute = cluster.device.compute
    attention = cluster.device.attention_for(head_dim)
    lines = [
        f"GEMM at {compute.gemm_fraction:.2f} of {compute.bf16_tflops:g} TFLOP/s: {compute.source}",
        f"attention throughput by length ({attention.kernel}, head_dim {attention.head_dim}): {attention.source}",
        *link_sources(cluster),
        f"calls that are not packed: {cluster.host.source}",
        f"{ELEMENTWISE_PASSES} elementwise passes a block (assumed, counted 20-30), backward twice the forward",
        f"backward is {BACKWARD_GEMM:g}x forward for GEMMs, {BACKWARD_ATTENTION:g}x for attention",
    ]
    if cluster.network is not None:
        lines.append(f"between nodes ({cluster.network.kind}, {cluster.network.origin}): {cluster.network.source}")
    return tuple(lines)
