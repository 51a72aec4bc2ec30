"""Other clusters than the one there is: ``nic.bandwidth=2x``, ``link.latency=5us``, and where a verdict flips.

A setting is a knob and either a factor (``2x``, ``0.5x``) or a value in the knob's unit. What was changed stands in the
cluster's name, and its links count as assumed.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable

import msgspec

from zellige.cluster import AttentionSpeed, Cluster
from zellige.errors import UsageError

_SETTING = re.compile(
    r"(?P<knob>[a-z_.]+)=(?P<value>\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?P<unit>x|us|GB/s|TFLOP/s)?", re.ASCII
)


class Knob(msgspec.Struct, frozen=True):
    """One number of a cluster (or several that change together): its unit, how to read it, and how to change it."""

    unit: str
    read: Callable[[Cluster], float]
    write: Callable[[Cluster, float], Cluster]


def _network(name: str) -> Knob:
    """A number of the network; a cluster of one node has none."""
    units = {"nic_gb_per_s": "GB/s", "latency_us": "us", "nics_per_node": ""}

    def read(cluster: Cluster) -> float:
        if cluster.network is None:
            raise UsageError(
                f"{cluster.name} has one node, and no NICs to change",
                fix="link.bandwidth, or a cluster of several nodes",
            )
        return float(getattr(cluster.network, name))

    def write(cluster: Cluster, value: float) -> Cluster:
        assert cluster.network is not None
        number: float = round(value) if name == "nics_per_node" else value
        network = msgspec.structs.replace(cluster.network, origin="assumed", **{name: number})
        return msgspec.structs.replace(cluster, network=network)

    return Knob(units[name], read, write)


def _link(name: str, unit: str) -> Knob:
    """A number of all fits inside the node; it is read as the largest, and all change by the same factor."""

    def read(cluster: Cluster) -> float:
        return max(float(getattr(point, name)) for point in cluster.node_link.fits)

    def write(cluster: Cluster, value: float) -> Cluster:
        factor = value / read(cluster)
        fits = tuple(
            msgspec.structs.replace(point, **{name: getattr(point, name) * factor}) for point in cluster.node_link.fits
        )
        link = msgspec.structs.replace(cluster.node_link, fits=fits, origin="assumed")
        return msgspec.structs.replace(cluster, node_link=link)

    return Knob(unit, read, write)


def _device(part: str, name: str, unit: str) -> Knob:
    """A number of the device's compute or memory."""

    def read(cluster: Cluster) -> float:
        return float(getattr(getattr(cluster.device, part), name))

    def write(cluster: Cluster, value: float) -> Cluster:
        changed = msgspec.structs.replace(getattr(cluster.device, part), **{name: value})
        return msgspec.structs.replace(cluster, device=msgspec.structs.replace(cluster.device, **{part: changed}))

    return Knob(unit, read, write)


def _attention() -> Knob:
    """The attention kernel's throughput at its longest length; all points change by the same factor."""

    def read(cluster: Cluster) -> float:
        return cluster.device.attention.points[-1].forward_tflops

    def write(cluster: Cluster, value: float) -> Cluster:
        factor = value / read(cluster)

        def faster(speed: AttentionSpeed) -> AttentionSpeed:
            points = tuple(
                msgspec.structs.replace(
                    point, forward_tflops=point.forward_tflops * factor, backward_tflops=point.backward_tflops * factor
                )
                for point in speed.points
            )
            return msgspec.structs.replace(speed, points=points)

        device = msgspec.structs.replace(
            cluster.device,
            attention=faster(cluster.device.attention),
            other_attention=tuple(faster(other) for other in cluster.device.other_attention),
        )
        return msgspec.structs.replace(cluster, device=device)

    return Knob("TFLOP/s", read, write)


def _calls() -> Knob:
    """Host time of a collective; ring steps change by the same factor."""

    def write(cluster: Cluster, value: float) -> Cluster:
        factor = value / cluster.host.collective_us
        host = msgspec.structs.replace(
            cluster.host, collective_us=value, ring_step_us=cluster.host.ring_step_us * factor
        )
        return msgspec.structs.replace(cluster, host=host)

    return Knob("us", lambda cluster: cluster.host.collective_us, write)


KNOBS: dict[str, Knob] = {
    "nic.bandwidth": _network("nic_gb_per_s"),
    "nic.count": _network("nics_per_node"),
    "nic.latency": _network("latency_us"),
    "link.bandwidth": _link("bus_gb_per_s", "GB/s"),
    "link.latency": _link("latency_us", "us"),
    "compute": _device("compute", "bf16_tflops", "TFLOP/s"),
    "attention": _attention(),
    "memory.bandwidth": _device("memory", "bandwidth_gb_per_s", "GB/s"),
    "host.calls": _calls(),
}


def apply_setting(cluster: Cluster, text: str) -> Cluster:
    """The cluster under a setting such as ``nic.bandwidth=2x``; raises :class:`UsageError` for anything else."""
    match = _SETTING.fullmatch(text)
    if match is None:
        raise UsageError(f"{text!r} is not a setting", fix="write it as nic.bandwidth=2x or link.latency=5us")
    name, unit = match["knob"], match["unit"] or ""
    if name not in KNOBS:
        close = difflib.get_close_matches(name, KNOBS, n=1)
        raise UsageError(
            f"there is no setting {name!r}", fix=(f"{close[0]} ? " if close else "") + f"known: {', '.join(KNOBS)}"
        )
    knob = KNOBS[name]
    if unit not in ("x", "", knob.unit):
        raise UsageError(f"{name} is in {knob.unit or 'numbers'}, not {unit}", fix=f"{name}=2x, for twice what it is")
    value = float(match["value"])
    changed = knob.write(cluster, knob.read(cluster) * value if unit == "x" else value)
    return msgspec.structs.replace(changed, name=f"{cluster.name},{text}")


class Flip(msgspec.Struct, frozen=True, kw_only=True):
    """Where a verdict changes along one knob: the value nearest to the present one, or None where none was found."""

    knob: str
    unit: str
    present: float
    value: float | None
    below: str
    above: str


def flip_point(
    cluster: Cluster, name: str, verdict: Callable[[Cluster], str], *, widest: float = 16.0, tolerance: float = 0.02
) -> Flip:
    """Look for the nearest change of ``verdict`` between a ``widest``-th of a knob's value and ``widest`` times it.

    Looks at every half doubling away from the present value, then bisects to ``tolerance``; verdicts that change twice
    within a step are missed.
    """
    knob = KNOBS[name]
    present = knob.read(cluster)
    first = verdict(cluster)

    def at(exponent: float) -> str:
        return verdict(knob.write(cluster, present * 2**exponent))

    for half_doublings in range(1, math.ceil(2 * math.log2(widest)) + 1):
        for direction in (-1, 1):
            inside, outside = direction * (half_doublings - 1) / 2, direction * half_doublings / 2
            other = at(outside)
            if other == first:
                continue
            while abs(outside - inside) > math.log2(1 + tolerance):
                middle = (inside + outside) / 2
                inside, outside = (middle, outside) if at(middle) == first else (inside, middle)
            below, above = (other, first) if direction < 0 else (first, other)
            value = present * 2**outside
            return Flip(knob=name, unit=knob.unit, present=present, value=value, below=below, above=above)
    return Flip(knob=name, unit=knob.unit, present=present, value=None, below=first, above=first)
