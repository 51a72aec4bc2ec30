"""Analytic memory: parameters and optimizer state, what a sequence keeps, and what the running layer needs.

A rank holds ``base`` (parameters, gradients, optimizer state), plus what its sequences keep over all layers (kept bytes
add up), plus the live memory of the layer being run: the largest segment for engines that run one after another, all of
the rank's tokens for the coalesced engine.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from zellige.cluster import Cluster
from zellige.errors import StateTooLargeError, UsageError
from zellige.model import ModelSpec
from zellige.shards import (
    RING_GRADIENT_BYTES,
    WIRE_BYTES,
    AttentionShape,
    ParallelConfig,
    kv_head_range,
    owned_range,
    query_range,
)
from zellige.units import count_of, format_bytes, share_or_bytes

Checkpoint = Literal["full", "selective", "none"]
Sharding = Literal["ddp", "zero2", "zero3"]
SHARDINGS: tuple[Sharding, ...] = ("ddp", "zero2", "zero3")


class MemoryModel(msgspec.Struct, frozen=True, kw_only=True):
    """Per-rank memory of a set-up: ``usable_bytes`` of the device, ``base_bytes`` of state.

    ``reserved_bytes`` are kept free beside the usable ones (:func:`with_reserve`).
    """

    usable_bytes: int
    base_bytes: int
    sharding: Sharding
    checkpoint: Checkpoint
    reserved_bytes: int = 0

    @property
    def room_bytes(self) -> int:
        """What is left for sequences."""
        return self.usable_bytes - self.base_bytes


def memory_model(model: ModelSpec, cluster: Cluster, sharding: Sharding, checkpoint: Checkpoint) -> MemoryModel:
    """The memory of a set-up; raises :class:`StateTooLargeError` when state alone exceeds a device."""
    base = state_bytes(model, sharding, cluster.num_ranks)
    usable = cluster.device.usable_bytes
    if base >= usable:
        raise StateTooLargeError(
            f"{model.name} under {sharding} needs {format_bytes(base)} of state on every GPU,"
            f" more than the {format_bytes(usable)} it can use",
            where=f"{state_formula(sharding)}, P = {model.num_parameters() / 1e9:.2f}e9, on"
            f" {count_of(cluster.num_ranks, 'rank')}",
            details=(
                f"{cluster.device.name} reports {cluster.device.memory.capacity_mib:,} MiB"
                f" = {format_bytes(cluster.device.memory.capacity_mib * 2**20)}; nothing is left for activations",
            ),
            fix=_what_fits(model, cluster, sharding),
        )
    return MemoryModel(usable_bytes=usable, base_bytes=base, sharding=sharding, checkpoint=checkpoint)


def with_reserve(memory: MemoryModel, reserve: str) -> MemoryModel:
    """The memory of a set-up with a share or a size (``5%``, ``2GB``) of what is usable kept free.

    Raises :class:`UsageError` for text that is neither, and where nothing would be left for sequences.
    """
    return keep_free(memory, share_or_bytes(reserve, memory.usable_bytes, "--reserve"))


def keep_free(memory: MemoryModel, reserved_bytes: int) -> MemoryModel:
    """The memory of a set-up with so many of its usable bytes kept free; raises as :func:`with_reserve`."""
    if reserved_bytes >= memory.room_bytes:
        raise UsageError(
            f"a reserve of {format_bytes(reserved_bytes)} a GPU leaves nothing for sequences",
            where=f"{format_bytes(memory.usable_bytes)} usable, of which {format_bytes(memory.base_bytes)} is state",
            fix="--reserve 5%",
        )
    return msgspec.structs.replace(
        memory,
        usable_bytes=memory.usable_bytes - reserved_bytes,
        reserved_bytes=memory.reserved_bytes + reserved_bytes,
    )


def state_bytes(model: ModelSpec, sharding: Sharding, num_ranks: int) -> int:
    """Bytes a rank of parameters, gradients and AdamW state in mixed precision.

    ddp 16 P (stas00/ml-engineering: bf16 weights and gradients, fp32 master, m, v); zero2 2 P + 18 P/N and zero3
    18 P/N + 4 largest layers' parameters (deepspeedai/DeepSpeed stage_1_and_2.py, stage3.py; fp32 gradients).
    """
    parameters = model.num_parameters()
    if sharding == "ddp":
        return 16 * parameters
    if sharding == "zero2":
        return 2 * parameters + 18 * parameters // num_ranks
    return 18 * parameters // num_ranks + 4 * model.layer_parameters()


def state_formula(sharding: Sharding) -> str:
    """The formula of :func:`state_bytes`, for messages."""
    return {"ddp": "16 P", "zero2": "2 P + 18 P/N", "zero3": "18 P/N + 4 x largest layer"}[sharding]


def layer_bytes_per_token(model: ModelSpec) -> int:
    """Activations of one block per token, nothing checkpointed: 50 d + 4 f in bf16 (counted on the Wan block).

    Joint attention has no cross-attention, whose six tensors (q, q norm, output, projection, norm, residual) are 12 d.
    A per-token timestep adds its six modulation vectors.
    """
    geometry = model.geometry
    per_token = 6 * geometry.hidden_dim * WIRE_BYTES if model.modulation.per_token else 0
    tensors = 50 if model.text.attention == "cross" else 38
    return tensors * geometry.hidden_dim + 4 * geometry.ffn_dim + per_token


def kept_bytes(model: ModelSpec, shape: AttentionShape, config: ParallelConfig, checkpoint: Checkpoint) -> int:
    """What the largest shard keeps from forward to backward, over all layers.

    ``full``: the block's input. ``selective``: the block's input, and Q, K, V and O where attention was computed.
    ``none``: everything, with what attention saved in place of the owner's own Q, K and V; of a ring also the owner's K
    and V, which later rounds send again (the other modes compute them again).
    """
    shard = _shard(shape, config)
    hidden = model.geometry.hidden_dim * WIRE_BYTES
    layers = model.geometry.num_layers
    if checkpoint == "full":
        return layers * shard * hidden
    own_kv = 2 * shard * shape.num_kv_heads * shape.head_dim * WIRE_BYTES
    computed = _saved_split(shape, config) if config.is_split else 2 * shard * hidden + own_kv
    if checkpoint == "selective":
        output_at_owner = shard * hidden if config.is_split else 0
        return layers * (shard * hidden + computed + output_at_owner)
    sent_again = own_kv if config.k > 1 else 0
    beyond_own = max(0, computed - shard * hidden - own_kv) + sent_again if config.is_split else 0
    return layers * (shard * layer_bytes_per_token(model) + beyond_own)


def live_bytes(model: ModelSpec, shape: AttentionShape, config: ParallelConfig) -> int:
    """What the layer being run needs for the largest shard: its activations, and a split's Q, K, V, O and gradients.

    A split saves Q and O of its query block and the K and V of round 0. In attention's backward it also holds dO,
    dQ, dK and dV (and a second round of K and V for ring); by then the FFN's activations (4 f a token) are free again.
    """
    shard = _shard(shape, config)
    live = shard * layer_bytes_per_token(model)
    if not config.is_split:
        return live
    one_round = _kv_round(shape, config)
    rounds, width = (2, RING_GRADIENT_BYTES) if config.k > 1 else (1, WIRE_BYTES)
    working = 2 * _query_block(shape, config) + (rounds - 1) * one_round + rounds * one_round * width // WIRE_BYTES
    freed = 4 * model.geometry.ffn_dim * shard
    return live + _saved_split(shape, config) + max(0, working - freed)


def _shard(shape: AttentionShape, config: ParallelConfig) -> int:
    start, stop = owned_range(shape.length, config, config.degree - 1)
    return stop - start


def _query_block(shape: AttentionShape, config: ParallelConfig) -> int:
    start, stop = query_range(shape.length, config, config.degree - 1)
    heads = -(-shape.num_heads // config.h)
    return (stop - start) * heads * shape.head_dim * WIRE_BYTES


def _kv_round(shape: AttentionShape, config: ParallelConfig) -> int:
    """Bytes of K and V that one round brings (all of them without ring), the worker's own rows included."""
    first, last = kv_head_range(shape, config, config.degree - 1)
    return 2 * -(-shape.length // config.k) * (last - first) * shape.head_dim * WIRE_BYTES


def _saved_split(shape: AttentionShape, config: ParallelConfig) -> int:
    """Bytes of Q, O and round 0's K and V where a split's attention is computed."""
    return 2 * _query_block(shape, config) + _kv_round(shape, config)


def _what_fits(model: ModelSpec, cluster: Cluster, sharding: Sharding) -> str:
    if sharding != "zero3":
        sharded = state_bytes(model, "zero3", cluster.num_ranks)
        parameters, ranks = model.num_parameters(), cluster.num_ranks
        if sharded < cluster.device.usable_bytes:
            return (
                f"--sharding zero3: {format_bytes(16 * parameters // ranks)} of state over"
                f" {count_of(ranks, 'rank')}"
                f" (16 P/N, bf16 gradients; {format_bytes(18 * parameters // ranks)} with fp32 gradients, 18 P/N,"
                " which is what is planned with)"
            )
    ranks = cluster.num_ranks
    while state_bytes(model, "zero3", ranks) >= cluster.device.usable_bytes:
        ranks *= 2
        if ranks > 65_536:
            return "a device with more memory: one gathered layer alone is too much for this one"
    return f"--sharding zero3 on {count_of(ranks, 'rank')} or more"
