"""What collectives over all ranks take, by algorithm: parameter gathers, gradient reductions.

``num_bytes`` is always the full buffer. Inside a node a measured table of the collective counts where the cluster has
one, under the algorithm ``nccl``, which is whatever NCCL chose when it was measured; else the formulas of rings over
the catalog's fit of all-gather (its ``origin`` is part of the answer). Rings over nodes are as fast as their slowest
hop, and have one network latency for each node they leave (SimAI's calbusbw); two levels add up. NVLS sums in the
switch of a Hopper node.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from zellige.cluster import Cluster
from zellige.collectives import NodeOp, nic_pool, node_latency_ns, node_rate, node_table, provenance
from zellige.exchange_prices import over_link

Algorithm = Literal["ring", "hierarchical", "nvls", "nccl"]

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
    return _choose(cluster, num_bytes, algorithm, "all_gather")


def reduce_scatter(cluster: Cluster, num_bytes: int, algorithm: Algorithm | None = None) -> CollectiveTime:
    """Every rank gets the sum of its shard of a buffer that all ranks hold."""
    return _choose(cluster, num_bytes, algorithm, "reduce_scatter")


def _choose(cluster: Cluster, num_bytes: int, algorithm: Algorithm | None, op: NodeOp) -> CollectiveTime:
    if algorithm is None and _is_measured(cluster, op):
        algorithm = "nccl"
    if algorithm is not None:
        return _shard(cluster, num_bytes, algorithm, op)
    choices: tuple[Algorithm, ...] = ("ring", "hierarchical") if cluster.num_nodes > 1 else ("ring",)
    return min((_shard(cluster, num_bytes, choice, op) for choice in choices), key=lambda c: c.time_ns)


def all_reduce(cluster: Cluster, num_bytes: int, algorithm: Algorithm | None = None) -> CollectiveTime:
    """Every rank gets the sum of a buffer that all ranks hold."""
    if algorithm is None:
        if _is_measured(cluster, "all_reduce"):
            return _measured(cluster, num_bytes, "all_reduce")
        choices: list[Algorithm] = ["ring"]
        choices += ["hierarchical"] if cluster.num_nodes > 1 else []
        choices += ["nvls"] if has_nvls(cluster) else []
        return min((all_reduce(cluster, num_bytes, choice) for choice in choices), key=lambda c: c.time_ns)
    if algorithm == "nccl":
        return _measured(cluster, num_bytes, "all_reduce")
    if algorithm == "nvls":
        return _nvls(cluster, num_bytes)
    if algorithm == "ring" or cluster.num_nodes == 1:
        once = _shard(cluster, num_bytes, "ring", "all_gather")
        return msgspec.structs.replace(once, latency_ns=2 * once.latency_ns, transfer_ns=2 * once.transfer_ns)
    node, nodes = cluster.ranks_per_node, cluster.num_nodes
    inside = _inside(cluster, num_bytes, "reduce_scatter") + _inside(cluster, num_bytes, "all_gather")
    between = 2 * over_link(num_bytes * (nodes - 1) / nodes, nic_pool(cluster, node), cluster, "NICs of a node")
    latency = node_latency_ns(cluster, "reduce_scatter", node) + node_latency_ns(cluster, "all_gather", node)
    return CollectiveTime(
        algorithm="hierarchical",
        latency_ns=math.ceil(latency + 2 * (nodes - 1) * _network_latency(cluster)),
        transfer_ns=math.ceil(inside + between),
        source=_source(cluster),
    )


def has_nvls(cluster: Cluster) -> bool:
    """Whether the switch of the (only) node can sum, and there is a fit of it."""
    return cluster.num_nodes == 1 and cluster.ranks_per_node == 8 and cluster.device.name in NVLS_FITS


def _is_measured(cluster: Cluster, op: NodeOp) -> bool:
    return cluster.num_nodes == 1 and node_table(cluster, op, cluster.num_ranks) is not None


def _measured(cluster: Cluster, num_bytes: int, op: NodeOp) -> CollectiveTime:
    """A table's time; all ranks are those of one node."""
    ranks, measured = cluster.num_ranks, cluster.node_link.measured
    assert measured is not None
    received = num_bytes * (ranks - 1) / ranks * (2 if op == "all_reduce" else 1)
    return CollectiveTime(
        algorithm="nccl",
        latency_ns=math.ceil(node_latency_ns(cluster, op, ranks)),
        transfer_ns=math.ceil(
            over_link(received, node_rate(cluster, op, ranks, received), cluster, "link of the node")
        ),
        source=f"{provenance(cluster, op, ranks)}: {measured.source}",
    )


def _inside(cluster: Cluster, num_bytes: int, op: NodeOp) -> float:
    """Nanoseconds of a gather or scatter among the ranks of a node, latency not counted."""
    node = min(cluster.ranks_per_node, cluster.num_ranks)
    received = num_bytes * (node - 1) / node
    return over_link(received, node_rate(cluster, op, node, received), cluster, "link of the node")


def _shard(cluster: Cluster, num_bytes: int, algorithm: Algorithm, op: NodeOp) -> CollectiveTime:
    """A gather or reduce-scatter over all ranks."""
    ranks, nodes, node = cluster.num_ranks, cluster.num_nodes, cluster.ranks_per_node
    if algorithm == "nccl":
        return _measured(cluster, num_bytes, op)
    latency = node_latency_ns(cluster, op, min(ranks, node)) if ranks > 1 else 0.0
    if nodes == 1:
        transfer = _inside(cluster, num_bytes, op) if ranks > 1 else 0.0
        algorithm = "ring"
    else:
        latency += (nodes - 1) * _network_latency(cluster)
        pool = nic_pool(cluster, node)
        if algorithm == "ring":
            received = num_bytes * (ranks - 1) / ranks
            slowest = min(node_rate(cluster, op, node, received), pool) if node > 1 else pool
            transfer = over_link(received, slowest, cluster, "ring over the nodes")
        else:
            transfer = over_link(num_bytes * (nodes - 1) / nodes, pool, cluster, "NICs of a node")
            transfer += _inside(cluster, num_bytes, op) if node > 1 else 0.0
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
    link, node = cluster.node_link, cluster.ranks_per_node
    parts = [f"{link.origin}: {link.source}"]
    if link.measured is not None and node_table(cluster, "all_gather", node) is not None:
        parts = [f"{provenance(cluster, 'all_gather', node)}: {link.measured.source}"]
    if cluster.network is not None:
        parts.append(f"{cluster.network.origin}: {cluster.network.source}")
    return "; ".join(parts)
