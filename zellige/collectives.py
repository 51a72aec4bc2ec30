"""What an exchange costs on a cluster: fitted alpha-beta models inside a node, NIC shares between nodes.

time = latency + max(bytes from the node / bus bandwidth, bytes from other nodes / the NIC share), where bytes are
those that the busiest rank receives. Inside a node the fits are of nccl-tests ``busbw`` (bytes received over time), by
operation and number of ranks. Between nodes every rank has its fair share of its node's NICs, as in SimAI's calbusbw.
"""

from __future__ import annotations

import math

import msgspec

from zellige.cluster import Cluster, CollectiveOp
from zellige.shards import ParallelConfig


class LinkFit(msgspec.Struct, frozen=True):
    """An alpha-beta model: nanoseconds of latency, and bandwidth in bytes per nanosecond (which is GB/s)."""

    latency_ns: float
    bytes_per_ns: float


def node_fit(cluster: Cluster, op: CollectiveOp, num_ranks: int) -> LinkFit:
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


def nic_share(cluster: Cluster) -> float:
    """Bytes per nanosecond that a rank gets of its node's NICs when all ranks of the node talk."""
    network = cluster.network
    if network is None:
        return math.inf
    return min(network.nic_gb_per_s, network.nics_per_node * network.nic_gb_per_s / cluster.ranks_per_node)


def transfer_ns(
    cluster: Cluster, op: CollectiveOp, num_ranks: int, received_bytes: float, remote_fraction: float
) -> float:
    """Time of an exchange without its latency.

    ``received_bytes`` by the busiest rank, of which ``remote_fraction`` comes from other nodes.
    """
    local = received_bytes * (1 - remote_fraction) / node_fit(cluster, op, num_ranks).bytes_per_ns
    return max(local, received_bytes * remote_fraction / nic_share(cluster))


def latency_ns(cluster: Cluster, op: CollectiveOp, num_ranks: int, num_nodes: int) -> float:
    """Latency of one call."""
    local = node_fit(cluster, op, num_ranks).latency_ns
    if num_nodes > 1 and cluster.network is not None:
        return max(local, cluster.network.latency_us * 1e3)
    return local


def remote_fraction(group: int, ranks_in_node: int) -> float:
    """The share of a rank's peers, in a group laid out node by node, that sit on other nodes."""
    if group <= 1 or ranks_in_node >= group:
        return 0.0
    return (group - ranks_in_node) / (group - 1)


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
