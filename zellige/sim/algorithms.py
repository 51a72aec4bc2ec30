"""What collectives over all ranks take, by algorithm: parameter gathers, gradient reductions.

``num_bytes`` is always the full buffer. Inside a node the catalog's fit counts (measured before fitted before assumed:
its ``origin`` is part of the answer); rings over nodes are as fast as their slowest hop, and have one network latency
for each node they leave (SimAI's calbusbw); two levels add up. Reduce-scatter runs at the fit of all-gather (nccl-tests
on 8 x A100: 213 and 205 GB/s at 1 GiB). NVLS sums in the switch of a Hopper node.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from zellige.cluster import Cluster
from zellige.collectives import node_fit
from zellige.exchange_prices import nic_pool, over_link

Algorithm = Literal["ring", "hierarchical", "nvls"]

NVLS_FITS = {"h100-80gb": (17.4, 374.0), "h200": (18.2, 385.0)}
"""Latency in us and all-reduce bus bandwidth in GB/s of 8 ranks: alpha-beta fits of nccl-tests
(ai-dynamo/aiconfigurator, NCCL 2.27)."""

NVLS_SOURCE = "fitted: nccl-tests all-reduce on 8 ranks with NVLS, ai-dynamo/aiconfigurator"


class CollectiveTime(msgspec.Struct, frozen=True, kw_only=True):
    """The time of one collective, and where its constants come from."""

    algorithm: Algorithm
    latency_ns: int
    transfer_ns: int
    source: str

    @property
    def time_ns(self) -> int:
        """Latency and transfer."""
        return self.latency_ns + self.transfer_ns


def all_gather(cluster: Cluster, num_bytes: int, algorithm: Algorithm | None = None) -> CollectiveTime:
    """Every rank gets all of a buffer that is sharded over all ranks; the faster algorithm unless one is named."""
    if algorithm is not None:
        return _gather(cluster, num_bytes, algorithm)
    choices: tuple[Algorithm, ...] = ("ring", "hierarchical") if cluster.num_nodes > 1 else ("ring",)
    return min((_gather(cluster, num_bytes, choice) for choice in choices), key=lambda c: c.time_ns)


def reduce_scatter(cluster: Cluster, num_bytes: int, algorithm: Algorithm | None = None) -> CollectiveTime:
    """Every rank gets the sum of its shard of a buffer that all ranks hold: the time of the gather."""
    return all_gather(cluster, num_bytes, algorithm)


def all_reduce(cluster: Cluster, num_bytes: int, algorithm: Algorithm | None = None) -> CollectiveTime:
    """Every rank gets the sum of a buffer that all ranks hold."""
    if algorithm is None:
        choices: list[Algorithm] = ["ring"]
        choices += ["hierarchical"] if cluster.num_nodes > 1 else []
        choices += ["nvls"] if has_nvls(cluster) else []
        return min((all_reduce(cluster, num_bytes, choice) for choice in choices), key=lambda c: c.time_ns)
    if algorithm == "nvls":
        return _nvls(cluster, num_bytes)
    if algorithm == "ring" or cluster.num_nodes == 1:
        once = _gather(cluster, num_bytes, "ring")
        return msgspec.structs.replace(once, latency_ns=2 * once.latency_ns, transfer_ns=2 * once.transfer_ns)
    node, nodes = cluster.ranks_per_node, cluster.num_nodes
    fit = node_fit(cluster, "all_gather", node)
    inside = 2 * over_link(num_bytes * (node - 1) / node, fit.bytes_per_ns, cluster, "link of the node")
    between = 2 * over_link(num_bytes * (nodes - 1) / nodes, nic_pool(cluster, node), cluster, "NICs of a node")
    return CollectiveTime(
        algorithm="hierarchical",
        latency_ns=math.ceil(2 * fit.latency_ns + 2 * (nodes - 1) * _network_latency(cluster)),
        transfer_ns=math.ceil(inside + between),
        source=_source(cluster),
    )


def has_nvls(cluster: Cluster) -> bool:
    """Whether the switch of the (only) node can sum, and there is a fit of it."""
    return cluster.num_nodes == 1 and cluster.ranks_per_node == 8 and cluster.device.name in NVLS_FITS


def _gather(cluster: Cluster, num_bytes: int, algorithm: Algorithm) -> CollectiveTime:
    ranks, nodes, node = cluster.num_ranks, cluster.num_nodes, cluster.ranks_per_node
    fit = node_fit(cluster, "all_gather", min(ranks, node))
    latency = fit.latency_ns if ranks > 1 else 0.0
    if nodes == 1:
        transfer = over_link(num_bytes * (ranks - 1) / ranks, fit.bytes_per_ns, cluster, "link of the node")
        algorithm = "ring"
    else:
        latency += (nodes - 1) * _network_latency(cluster)
        pool = nic_pool(cluster, node)
        if algorithm == "ring":
            slowest = min(fit.bytes_per_ns, pool) if node > 1 else pool
            transfer = over_link(num_bytes * (ranks - 1) / ranks, slowest, cluster, "ring over the nodes")
        else:
            transfer = over_link(num_bytes * (nodes - 1) / nodes, pool, cluster, "NICs of a node")
            transfer += over_link(num_bytes * (node - 1) / node, fit.bytes_per_ns, cluster, "link of the node")
    return CollectiveTime(
        algorithm=algorithm,
        latency_ns=math.ceil(latency),
        transfer_ns=math.ceil(transfer),
        source=_source(cluster),
    )


def _nvls(cluster: Cluster, num_bytes: int) -> CollectiveTime:
    latency_us, bus = NVLS_FITS[cluster.device.name]
    ranks = cluster.num_ranks
    return CollectiveTime(
        algorithm="nvls",
        latency_ns=math.ceil(latency_us * 1e3),
        transfer_ns=math.ceil(2 * num_bytes * (ranks - 1) / ranks / bus),
        source=NVLS_SOURCE,
    )


def _network_latency(cluster: Cluster) -> float:
    return cluster.network.latency_us * 1e3 if cluster.network is not None else 0.0


def _source(cluster: Cluster) -> str:
    parts = [f"{cluster.node_link.origin}: {cluster.node_link.source}"]
    if cluster.network is not None:
        parts.append(f"{cluster.network.origin}: {cluster.network.source}")
    return "; ".join(parts)
