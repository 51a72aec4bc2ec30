"""How long a profile would take: the same units that it would measure, by analytic prices."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import ClassVar

import msgspec

from zellige.analytic import analytic_price
from zellige.cluster import Cluster
from zellige.memory import Checkpoint
from zellige.model import ModelSpec
from zellige.prices import Price
from zellige.profile.compute import BOX_NS, FEWEST, MOST, WARM_UPS, fewest_steps
from zellige.profile.grid import Probe, core, probes
from zellige.profile.table import Setting
from zellige.shards import WHOLE, ParallelConfig
from zellige.workload import Bucket


class UnitEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """A probe by its name in journals, how often it is run (warm-ups included), and the device time of that.

    ``core``: no table can do without it, so ``--minutes`` does not cut it.
    """

    unit: str
    core: bool
    steps: int
    time_ns: int


class BucketEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """The probes of a bucket, and the device time that they take."""

    bucket: str
    num_probes: int
    time_ns: int


class ProfileEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """Device time of a whole profile of compute; one device measures the local work of any split.

    ``link_ranks``: how many ranks take part in the exchanges that are timed besides, empty where none are.
    """

    SCHEMA: ClassVar[str] = "zellige.profile_estimate/2"

    schema: str = "zellige.profile_estimate/2"
    model: str
    cluster: str
    device: str
    warm_ups: int
    fewest: int
    most: int
    units: tuple[UnitEstimate, ...]
    buckets: tuple[BucketEstimate, ...]
    link_ranks: tuple[int, ...]
    time_ns: int
    source: str

    @property
    def on_cpu(self) -> bool:
        """Whether a core of a CPU would measure, and not a GPU."""
        return is_cpu(self.device)


def is_cpu(device: str) -> bool:
    """Whether a device of the catalog is a core of a CPU, which its name says."""
    return "cpu" in device.lower()


def estimate_profile(setting: Setting, link_ranks: Sequence[int]) -> ProfileEstimate:
    """Estimate every unit of a profile from analytic prices: forward, recompute and backward, no exchanges."""
    first = set(core(*setting[:3]))
    units, by_bucket = [], {bucket.name: (0, 0) for bucket in setting.buckets}
    for probe in probes(*setting[:3]):
        once = work_estimate(setting, probe)
        steps = WARM_UPS + min(MOST, max(fewest_steps(probe), BOX_NS // max(1, once)))
        units.append(UnitEstimate(unit=probe.key, core=probe in first, steps=steps, time_ns=steps * once))
        count, time_ns = by_bucket[probe.bucket.name]
        by_bucket[probe.bucket.name] = count + 1, time_ns + steps * once
    return ProfileEstimate(
        model=setting.model.name,
        cluster=setting.cluster.name,
        device=setting.cluster.device.name,
        warm_ups=WARM_UPS,
        fewest=FEWEST,
        most=MOST,
        units=tuple(units),
        buckets=tuple(
            BucketEstimate(bucket=name, num_probes=count, time_ns=time_ns)
            for name, (count, time_ns) in by_bucket.items()
        ),
        link_ranks=tuple(link_ranks),
        time_ns=sum(unit.time_ns for unit in units),
        source="analytic",
    )


def work_estimate(setting: Setting, probe: Probe) -> int:
    """Nanoseconds of a probe's step by analytic prices: the work of its rank, without exchanges."""
    layers = min(probe.layers, setting.model.geometry.num_layers)
    split = _layer_ns(setting.model, setting.cluster, probe.bucket, probe.config, setting.checkpoint)
    whole = [
        count * _layer_ns(setting.model, setting.cluster, bucket, WHOLE, setting.checkpoint)
        for bucket, count in ((probe.bucket, probe.beside), *probe.others)
    ]
    return layers * (probe.count * split + sum(whole))


@lru_cache(maxsize=4096)
def _layer_ns(
    model: ModelSpec, cluster: Cluster, bucket: Bucket, config: ParallelConfig, checkpoint: Checkpoint
) -> int:
    price: Price = analytic_price(model, cluster, bucket.num_tokens, config, 1, checkpoint)
    return (price.linear_ns + price.attention_ns + price.recompute_ns) // model.geometry.num_layers
