"""Other clusters than the one there is: ``nic.bandwidth=2x``, ``link.latency=5us``, and where a verdict flips.

A setting is a knob and either a factor (``2x``, ``0.5x``) or a value in the knob's unit. What was changed stands in the
cluster's name, as ``a800x8[device=h200,nic.bandwidth=2x]``, and its links count as assumed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable

import msgspec

from zellige.cluster import AttentionSpeed, Cluster, Device, MeasuredTables, TimedSize
from zellige.errors import UsageError
from zellige.files import did_you_mean

_SETTING = re.compile(
    r"(?P<knob>[a-z_.]+)=(?P<value>\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?P<unit>x|us|GB/s|TFLOP/s)?", re.ASCII
)

_CHANGED = re.compile(r"(?P<base>.+)\[(?P<changes>[^\[\]=]+=[^\[\]]+)\]")


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


def _changed_tables(measured: MeasuredTables | None, name: str, factor: float) -> MeasuredTables | None:
    """Measured tables with another bandwidth, or another floor below the same transfers."""
    if measured is None:
        return None
    measured = msgspec.structs.replace(measured, source=f"changed from {measured.source}")
    if name == "bus_gb_per_s":
        return msgspec.structs.replace(measured, bandwidth_scale=measured.bandwidth_scale * factor)
    tables = []
    for table in measured.tables:
        more = table.floor_us * (factor - 1)
        points = tuple(TimedSize(point.size_bytes, point.time_us + more) for point in table.points)
        tables.append(msgspec.structs.replace(table, floor_us=table.floor_us + more, points=points))
    return msgspec.structs.replace(measured, tables=tuple(tables))


def _link(name: str, unit: str) -> Knob:
    """A number of all fits inside the node; it is read as the largest, and all change by the same factor."""

    def read(cluster: Cluster) -> float:
        return max(float(getattr(point, name)) for point in cluster.node_link.fits)

    def write(cluster: Cluster, value: float) -> Cluster:
        factor = value / read(cluster)
        fits = tuple(
            msgspec.structs.replace(point, **{name: getattr(point, name) * factor}) for point in cluster.node_link.fits
        )
        measured = _changed_tables(cluster.node_link.measured, name, factor)
        link = msgspec.structs.replace(cluster.node_link, fits=fits, measured=measured, origin="assumed")
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


def what_if(cluster: Cluster, settings: Iterable[str] = (), device: Device | None = None) -> Cluster:
    """The cluster under several settings, one a knob, and with another device; its own device changes nothing.

    Raises :class:`UsageError` for what is not a setting, a knob that stands twice, and values that no cluster can have.
    """
    if device is not None and device.name != cluster.device.name:
        cluster = _named(msgspec.structs.replace(cluster, device=device), cluster, f"device={device.name}")
    seen: set[str] = set()
    for text in sorted(settings):
        changed = apply_setting(cluster, text)
        knob = text.split("=")[0]
        if knob in seen:
            raise UsageError(f"{knob} is set twice", fix="one --set for each")
        seen.add(knob)
        try:
            cluster = msgspec.convert(msgspec.to_builtins(changed), Cluster)
        except (msgspec.ValidationError, OverflowError) as error:
            raise UsageError(f"no cluster can have {text}: {error}", fix=f"a value above zero, as {knob}=2x") from None
    return cluster


def apply_setting(cluster: Cluster, text: str) -> Cluster:
    """The cluster under a setting such as ``nic.bandwidth=2x``; raises :class:`UsageError` for anything else."""
    match = _SETTING.fullmatch(text)
    if match is None:
        raise UsageError(
            f"{text!r} is not a setting",
            fix=f"write it as nic.bandwidth=2x or link.latency=5us; known: {', '.join(KNOBS)}",
        )
    name, unit = match["knob"], match["unit"] or ""
    knob = find_knob(name)
    if unit not in ("x", "", knob.unit):
        raise UsageError(f"{name} is in {knob.unit or 'numbers'}, not {unit}", fix=f"{name}=2x, for twice what it is")
    value = float(match["value"])
    changed = knob.write(cluster, knob.read(cluster) * value if unit == "x" else value)
    return _named(changed, cluster, f"{name}={value:g}{unit}")


def find_knob(name: str) -> Knob:
    """The knob of a name; raises :class:`UsageError` with the known ones."""
    if name not in KNOBS:
        raise UsageError(f"there is no setting {name!r}", fix=f"{did_you_mean(name, KNOBS)}known: {', '.join(KNOBS)}")
    return KNOBS[name]


def base_name(name: str) -> str:
    """A cluster's name without what was changed."""
    match = _CHANGED.fullmatch(name)
    return match["base"] if match else name


def changes(name: str) -> tuple[str, ...]:
    """What was changed of a cluster, by its name; nothing where it is as it is."""
    match = _CHANGED.fullmatch(name)
    return tuple(match["changes"].split(",")) if match else ()


def _named(changed: Cluster, cluster: Cluster, text: str) -> Cluster:
    name = f"{base_name(cluster.name)}[{','.join((*changes(cluster.name), text))}]"
    return msgspec.structs.replace(changed, name=name)


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
