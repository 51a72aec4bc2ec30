"""What an exchange costs on a cluster: tables and fits inside a node, NIC shares between nodes.

time = latency + max(bytes from the node / bus bandwidth, bytes from other nodes / the NIC share), where bytes are
those that the busiest rank receives. Inside a node a **measured** table of nccl-tests counts where the cluster has one
for just this operation and number of ranks (log-log in size: its floor is the latency, the rest the transfer); else an
alpha-beta **fit** of nccl-tests ``busbw`` (bytes received over time), between the catalog's numbers of ranks; else a
**formula** over the fit of all-gather. Profiled links bring fits of reduce-scatter as well. Between nodes every rank
has its fair share of its node's NICs, as in SimAI's calbusbw.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import Literal

import msgspec

from zellige.cluster import Cluster, CollectiveOp, CollectiveTable, StateOp, TimedSize
from zellige.shards import ParallelConfig

NodeOp = CollectiveOp | StateOp

Provenance = Literal["measured", "scaled", "fitted", "assumed", "formula"]
"""Where a time inside a node comes from: a table, a table of other links, a fit, a guess, or another operation's."""

FLOOR_BYTES = 8192
"""Up to this size a table's times are its floor (the medians of the bundled tables are taken over it)."""


CLEAR_OF_FLOOR = 4
"""Times of at least so many floors are for their most part transfer."""


class LinkFit(msgspec.Struct, frozen=True):
    """An alpha-beta model: nanoseconds of latency, and bandwidth in bytes per nanosecond (which is GB/s)."""

    latency_ns: float
    bytes_per_ns: float


def node_fit(cluster: Cluster, op: NodeOp, num_ranks: int) -> LinkFit:
    """The fit for an operation on ``num_ranks`` ranks of one node.

    Interpolated linearly in log2(ranks) between the catalog's fits and held constant beyond them.
    """
    points = sorted((p for p in cluster.node_link.fits if p.op == op), key=lambda point: point.num_ranks)
    position = math.log2(max(num_ranks, 1))
    below = [p for p in points if p.num_ranks <= num_ranks] or points[:1]
    above = [p for p in points if p.num_ranks >= num_ranks] or points[-1:]
    low, high = below[-1], above[0]
    span = math.log2(high.num_ranks) - math.log2(low.num_ranks)
    weight = (position - math.log2(low.num_ranks)) / span if span > 0 else 0.0
    latency = low.latency_us + weight * (high.latency_us - low.latency_us)
    bandwidth = low.bus_gb_per_s + weight * (high.bus_gb_per_s - low.bus_gb_per_s)
    return LinkFit(latency_ns=latency * 1e3, bytes_per_ns=bandwidth)


def node_table(cluster: Cluster, op: NodeOp, num_ranks: int) -> CollectiveTable | None:
    """The measured table of just this operation and number of ranks of a node, if the cluster has one."""
    measured = cluster.node_link.measured
    return None if measured is None else measured.find(op, num_ranks)


def node_latency_ns(cluster: Cluster, op: NodeOp, num_ranks: int) -> float:
    """What an operation takes inside a node without any bytes."""
    table = node_table(cluster, op, num_ranks)
    if table is not None:
        return table.floor_us * 1e3
    return node_fit(cluster, fitted_op(cluster, op), num_ranks).latency_ns * _rounds(op)


def node_rate(cluster: Cluster, op: NodeOp, num_ranks: int, received_bytes: float) -> float:
    """Bytes per nanosecond that a rank receives from its node in a transfer of this size, latency not counted.

    Of a table, never above the best rate of the points that take several floors: what little exceeds the floor of a
    small one says nothing of bandwidth. ``received_bytes`` are the busiest rank's, of a buffer of
    ``num_ranks / (num_ranks - 1)`` as many; an all-reduce receives its buffer's share twice.
    """
    table = node_table(cluster, op, num_ranks)
    if table is None:
        return node_fit(cluster, fitted_op(cluster, op), num_ranks).bytes_per_ns
    assert cluster.node_link.measured is not None
    share = _rounds(op) * (num_ranks - 1) / num_ranks
    rate = peak = share * max(
        point.size_bytes / (point.time_us - table.floor_us) / 1e3
        for point in table.points
        if point is table.points[-1] or point.time_us >= CLEAR_OF_FLOOR * table.floor_us
    )
    if received_bytes > 0:
        beyond_floor = (table_us(table, received_bytes / share) - table.floor_us) * 1e3
        rate = peak if beyond_floor * peak <= received_bytes else received_bytes / beyond_floor
    return rate * cluster.node_link.measured.bandwidth_scale


def table_us(table: CollectiveTable, size_bytes: float) -> float:
    """Microseconds of a buffer by a table, log-log between its points, with its floor up to ``FLOOR_BYTES``.

    Beyond the last point, what exceeds the floor grows with the bytes.
    """
    last = table.points[-1]
    if size_bytes >= last.size_bytes:
        return table.floor_us + (last.time_us - table.floor_us) * size_bytes / last.size_bytes
    index = bisect_left(table.points, size_bytes, key=_size)
    high = table.points[index]
    low_size = table.points[index - 1].size_bytes if index else min(FLOOR_BYTES, high.size_bytes - 1)
    low_time = table.points[index - 1].time_us if index else table.floor_us
    if size_bytes <= low_size:
        return low_time
    weight = math.log(size_bytes / low_size) / math.log(high.size_bytes / low_size)
    return low_time * math.exp(weight * math.log(high.time_us / low_time))


def fitted_op(cluster: Cluster, op: NodeOp) -> NodeOp:
    """The operation whose fits stand for an operation: its own where there are any, else those of all-gather.

    On 8 x A100 nccl-tests has 213 GB/s for reduce-scatter and 205 for all-gather at 512 MiB.
    """
    return op if any(point.op == op for point in cluster.node_link.fits) else "all_gather"


def provenance(cluster: Cluster, op: NodeOp, num_ranks: int) -> Provenance:
    """Where the time of an operation inside a node comes from."""
    measured = cluster.node_link.measured
    if measured is not None and measured.find(op, num_ranks) is not None:
        return "measured" if measured.bandwidth_scale == 1.0 else "scaled"
    if fitted_op(cluster, op) != op:
        return "formula"
    origin = cluster.node_link.origin
    return "measured" if origin == "measured" else "fitted" if origin == "fitted" else "assumed"


def link_sources(cluster: Cluster) -> tuple[str, ...]:
    """What times inside a node rest on, a line for each provenance, with its source."""
    link = cluster.node_link
    lines = []
    if link.measured is not None:
        by_ranks: dict[int, list[str]] = {}
        for table in link.measured.tables:
            by_ranks.setdefault(table.num_ranks, []).append(table.op)
        covered: dict[tuple[str, ...], list[int]] = {}
        for num_ranks, ops in by_ranks.items():
            covered.setdefault(tuple(ops), []).append(num_ranks)
        what = "; ".join(f"{', '.join(ops)} on {', '.join(map(str, ranks))} ranks" for ops, ranks in covered.items())
        scale = link.measured.bandwidth_scale
        kind = "measured" if scale == 1.0 else f"scaled ({scale:g} of the bandwidth of {link.measured.title})"
        lines.append(f"exchanges in a node: {kind}: {what}: {link.measured.source}")
    start = "other exchanges in a node" if lines else "exchanges in a node"
    return (*lines, f"{start}: {link.origin}: {link.source}")


def _rounds(op: NodeOp) -> int:
    """An all-reduce is a reduce-scatter and an all-gather."""
    return 2 if op == "all_reduce" else 1


def _size(point: TimedSize) -> int:
    return point.size_bytes


def nic_pool(cluster: Cluster, num_ranks: float) -> float:
    """Bytes per nanosecond that ``num_ranks`` ranks of a node have of its NICs, together and each way."""
    if cluster.network is None:
        return math.inf
    return cluster.network.nics_per_node * cluster.network.nic_gb_per_s * num_ranks / cluster.ranks_per_node


def latency_ns(cluster: Cluster, op: CollectiveOp, num_ranks: int, num_nodes: int) -> float:
    """Latency of one call."""
    local = node_latency_ns(cluster, op, num_ranks)
    if num_nodes > 1 and cluster.network is not None:
        return max(local, cluster.network.latency_us * 1e3)
    return local


def call_ns(cluster: Cluster, op: CollectiveOp, num_ranks: int, num_nodes: int) -> float:
    """Latency and host time of one call."""
    host = cluster.host.ring_step_us if op == "send_recv" else cluster.host.collective_us
    return latency_ns(cluster, op, num_ranks, num_nodes) + host * 1e3


def own_calls_ns(cluster: Cluster, config: ParallelConfig, num_nodes: int) -> float:
    """Calls of one forward pass of one layer, where the sequence shares none.

    Q, K, V and O are an all-to-all each, K and V an all-gather each, ring rounds after the first a step each (as USP's
    implementations call them). Backward makes twice the calls.
    """
    total = 0.0
    if config.h > 1:
        total += 4 * call_ns(cluster, "all_to_all", config.h, num_nodes)
    if config.q > 1:
        total += 2 * call_ns(cluster, "all_gather", config.degree, num_nodes)
    if config.k > 1:
        total += (config.k - 1) * call_ns(cluster, "send_recv", config.degree, num_nodes)
    return total


def packed_calls_ns(cluster: Cluster, num_ranks: int, num_nodes: int, num_rounds: int = 1) -> float:
    """Calls of one forward pass of one layer, where all sequences share them: one exchange in a round, one back."""
    return (num_rounds + 1) * call_ns(cluster, "all_to_all", num_ranks, num_nodes)
