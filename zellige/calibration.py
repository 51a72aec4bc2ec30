"""What was measured of a machine, and how it is used: laws of operations, links, memory, noise, and where they hold.

A **law** says what an operation takes: a sum of non-negative coefficients times the operation's terms
(:mod:`zellige.op_terms`), so it rises with every one of them. A calibration stands in the header of a measured price
table; :func:`calibrated` puts its links and its call time in the place of a catalog cluster's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

from zellige.cluster import Cluster, LinkPoint
from zellige.files import NonNegativeInt, PositiveInt
from zellige.memory import MemoryModel
from zellige.units import count_of

Coefficient = Annotated[float, msgspec.Meta(ge=0, le=1e18)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1e6)]

MOST_PACE = 100
"""A machine is not this much slower or faster than it usually is."""


class Law(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``key`` is the operation's (:func:`zellige.op_terms.law_key`), ``per_unit`` nanoseconds (or bytes) by term.

    ``error`` is the mean absolute relative error of the samples left out one by one, ``worst`` the largest.
    """

    key: str
    per_unit: dict[str, Coefficient]
    samples: PositiveInt
    error: Share
    worst: Share

    def __hash__(self) -> int:
        """Equal laws have one hash: tables stand in the keys of caches."""
        return hash((self.key, tuple(sorted(self.per_unit.items())), self.samples, self.error, self.worst))

    def of(self, terms: Mapping[str, float]) -> float:
        """Nanoseconds (or bytes) of something with these terms."""
        return sum(each * terms.get(term, 0.0) for term, each in self.per_unit.items())


class HostInfo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The machine and the versions that something was measured with; equal ones can use each other's tables."""

    machine: str
    processor: str
    cores: PositiveInt
    python: str
    torch: str
    zellige: str


def host_differences(found: HostInfo, here: HostInfo) -> list[str]:
    """What two machines differ in, as ``torch '2.9' (here '2.13')``; what is not known here does not count."""
    left, right = msgspec.to_builtins(found), msgspec.to_builtins(here)
    return [f"{key} {left[key]!r} (here {right[key]!r})" for key in left if left[key] != right[key] and right[key]]


class Interference(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What co-located sequences add to a rank's step beyond their prices, by shard, sequence and received byte.

    ``per_step_ns`` is what every rank takes besides. All of it is in the table's prices and in ``step_ns`` already.
    ``held_out`` and ``held_out_before`` are the mean absolute errors of plans that it was not fitted on, with it and
    without.
    """

    per_split_ns: Annotated[float, msgspec.Meta(ge=-1e18, le=1e18)]
    per_sequence_ns: Annotated[float, msgspec.Meta(ge=-1e18, le=1e18)]
    per_byte_ns: Annotated[float, msgspec.Meta(ge=-1e18, le=1e18)]
    per_step_ns: Annotated[float, msgspec.Meta(ge=-1e18, le=1e18)]
    plans: PositiveInt
    held_out: Share
    held_out_before: Share


class Calibration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Measurements of one machine for one model and mode.

    ``step_ns`` is what a rank's step takes whatever is placed on it; ``noise`` the median relative spread (half of the
    middle 80 %) of repeated measurements. ``pace_ns`` is what a fixed piece of work took, the median over probes, to
    which all times are brought; ``drift`` is how much longer it took at worst than at first. Memory is a rank's: state
    that every plan holds, and what tensors may use. ``shares_cores``: links were measured with more
    ranks than cores. ``together``: how many ranks measured probes beside each other and exchanged for real; 1 is one
    rank alone, whose exchanges were answered on the spot. ``jitter`` is the spread of single operations, the mean by
    time. ``link_error`` is the mean error of the links' fits on sizes left out, ``link_strided`` what strided rank sets
    took over contiguous ones.
    """

    host: HostInfo
    device: Literal["cpu", "cuda"]
    dtype: Literal["fp64", "fp32", "bf16"]
    laws: tuple[Law, ...]
    links: tuple[LinkPoint, ...]
    link_ranks: PositiveInt
    shares_cores: bool
    call_us: Coefficient
    step_ns: NonNegativeInt
    pace_ns: PositiveInt
    noise: Share
    drift: Annotated[float, msgspec.Meta(ge=-1, le=1e6)]
    seconds: Coefficient
    base_bytes: PositiveInt
    usable_bytes: PositiveInt
    interference: Interference | None = None
    together: PositiveInt = 1
    jitter: Share = 0.0
    link_error: Share = 0.0
    link_strided: Share = 1.0

    def law(self, key: str) -> Law | None:
        """The law of an operation, if there is one."""
        return next((law for law in self.laws if law.key == key), None)


def calibrated(cluster: Cluster, calibration: Calibration) -> Cluster:
    """The cluster with measured links and call time; what was not measured stays as it was."""
    link = cluster.node_link
    if calibration.links:
        link = msgspec.structs.replace(
            link,
            fits=calibration.links,
            measured=None,
            origin="measured",
            source=f"measured on {calibration.host.machine} with {count_of(calibration.link_ranks, 'rank')}",
        )
    host = msgspec.structs.replace(
        cluster.host,
        collective_us=max(calibration.call_us, 1e-6),
        ring_step_us=max(calibration.call_us, 1e-6),
        source=f"measured on {calibration.host.machine}",
    )
    return msgspec.structs.replace(cluster, node_link=link, host=host)


def calibrated_memory(memory: MemoryModel, calibration: Calibration) -> MemoryModel:
    """The memory of a set-up, with measured state and usable bytes."""
    return msgspec.structs.replace(memory, base_bytes=calibration.base_bytes, usable_bytes=calibration.usable_bytes)
