"""How long a profile would take: every bucket under every split, one layer on one device, warmed up and repeated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from zellige.analytic import analytic_table
from zellige.cluster import Cluster
from zellige.memory import Checkpoint, MemoryModel
from zellige.model import ModelSpec
from zellige.workload import Bucket

WARM_UPS = 3
REPEATS = 10


class BucketEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """The splits of a bucket that fit, and the device time to measure one layer of each."""

    bucket: str
    num_configs: int
    skipped: int
    time_ns: int


class ProfileEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """Device time of a whole profile of compute; one device measures the local work of any split."""

    SCHEMA: ClassVar[str] = "zellige.profile_estimate/1"

    schema: str = "zellige.profile_estimate/1"
    model: str
    cluster: str
    device: str
    warm_ups: int
    repeats: int
    buckets: tuple[BucketEstimate, ...]
    time_ns: int
    source: str


def estimate_profile(
    model: ModelSpec, cluster: Cluster, buckets: Sequence[Bucket], memory: MemoryModel, checkpoint: Checkpoint
) -> ProfileEstimate:
    """Estimate from analytic prices: a layer's forward, recompute and backward of the largest shard, no exchanges.

    Local work does not depend on the footprint, so each configuration counts once; what does not fit is skipped.
    """
    runs, layers = WARM_UPS + REPEATS, model.geometry.num_layers
    table = analytic_table(model, cluster, buckets, checkpoint).by_bucket()
    rows = []
    for bucket in buckets:
        local = {config: price for (config, _), price in table[bucket.name].items()}
        fitting = [price for price in local.values() if price.memory_bytes <= memory.room_bytes]
        work = sum((price.linear_ns + price.attention_ns + price.recompute_ns) // layers for price in fitting)
        rows.append(
            BucketEstimate(
                bucket=bucket.name,
                num_configs=len(fitting),
                skipped=len(local) - len(fitting),
                time_ns=runs * work,
            )
        )
    return ProfileEstimate(
        model=model.name,
        cluster=cluster.name,
        device=cluster.device.name,
        warm_ups=WARM_UPS,
        repeats=REPEATS,
        buckets=tuple(rows),
        time_ns=sum(row.time_ns for row in rows),
        source="analytic",
    )
