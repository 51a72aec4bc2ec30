"""The exchanges of one split sequence that is alone: in order, with the load that each puts on the busiest ports.

They are the exchanges that :mod:`zellige.lowering` makes of such a sequence, reduced to what a price needs. Loads are
bytes for each token of the largest shard and element of a head; positions of the rank list are laid out node by node.
Rounds of a ring are no two alike between nodes: in each, other positions have their peers on the other side.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from zellige.cluster import Cluster, CollectiveOp
from zellige.collectives import nic_pool, node_rate
from zellige.shards import RING_GRADIENT_BYTES, WIRE_BYTES, ParallelConfig

Counts = NDArray[np.int64]


class Load(NamedTuple):
    """An exchange: the busiest link inside a node, rank towards the network, and node's network ports.

    ``op`` and ``num_ranks`` choose the bandwidth inside the node.
    """

    local: int
    remote: int
    pool: int
    op: CollectiveOp
    num_ranks: int


class PassLoads(NamedTuple):
    """A pass of a layer: exchanges that everything waits for, and for each ring round after the first the one that
    runs beside the round before."""

    exposed: tuple[Load, ...]
    hidden: tuple[Load, ...]


class _Flows(NamedTuple):
    """Rows in and out of every position, local and remote, and in and out of every node."""

    local: Counts
    remote: Counts
    pool: Counts

    def scaled(self, factor: int) -> _Flows:
        return _Flows(self.local * factor, self.remote * factor, self.pool * factor)

    def turned(self) -> _Flows:
        """The same rows on their way back."""
        return _Flows(self.local[::-1], self.remote[::-1], self.pool[::-1])

    def plus(self, other: _Flows) -> _Flows:
        return _Flows(self.local + other.local, self.remote + other.remote, self.pool + other.pool)

    def load(self, op: CollectiveOp, num_ranks: int) -> Load:
        return Load(int(self.local.max()), int(self.remote.max()), int(self.pool.max()), op, num_ranks)


@lru_cache(maxsize=8192)
def pass_loads(
    config: ParallelConfig, num_nodes: int, heads: int, kv_heads: int, *, packed: bool
) -> tuple[PassLoads, PassLoads]:
    """Forward and backward of a layer.

    ``heads`` and ``kv_heads`` are what a position computes. ``packed`` has one exchange in, one a ring round, one back
    (a coalesced engine); otherwise each tensor of the first round goes alone (USP's implementations).
    """
    query = _query_flows(config, num_nodes).scaled(heads * WIRE_BYTES)
    keys = [_key_flows(config, num_nodes, t).scaled(2 * kv_heads * WIRE_BYTES) for t in range(config.k)]
    gradients = [_gradient(flows, t) for t, flows in enumerate(keys)]
    at_once: CollectiveOp = "all_gather" if config.q > 1 and not packed else "all_to_all"
    block = config.degree if config.k == 1 else max(config.q * config.h, 2)
    own = _peers(config, {0}) if packed else block
    if packed:
        first = [query.plus(keys[0]).load("all_to_all", own)]
    else:
        first = [*_alone(query, config), *_each(keys[0], at_once, block)]
    hidden = tuple(_round(config, keys[t], {t}, packed) for t in range(1, config.k))
    forward = PassLoads((*first, *_alone(query.turned(), config)), hidden)
    later = []
    for t in range(1, config.k):
        flows, shifts = keys[t], {t}
        if t >= 2:
            flows, shifts = flows.plus(gradients[t - 2]), {t, t - 2}
        later.append(_round(config, flows, shifts, packed))
    last = range(max(0, config.k - 2), config.k)
    if packed:
        total = query.turned()
        for t in last:
            total = total.plus(gradients[t])
        back = [total.load("all_to_all", _peers(config, set(last), own=config.h))]
    else:
        back = [*_alone(query.turned(), config)]
        back += _each(gradients[0], at_once, block) if 0 in last else []
        ring = [gradients[t] for t in last if t]
        if ring:
            total = ring[0] if len(ring) == 1 else ring[0].plus(ring[1])
            back.append(total.load("send_recv", config.degree))
    return forward, PassLoads((*_alone(query, config), *back), tuple(later))


def load_ns(cluster: Cluster, load: Load, rows: int, ranks_in_node: float) -> float:
    """Nanoseconds of an exchange's busiest port, for shards of ``rows`` tokens x head elements."""
    inside = load.local * rows
    local = inside / node_rate(cluster, load.op, load.num_ranks, inside)
    if cluster.network is None or not load.remote:
        return local
    remote = load.remote * rows / cluster.network.nic_gb_per_s
    return max(local, remote, load.pool * rows / nic_pool(cluster, ranks_in_node))


def _alone(query: _Flows, config: ParallelConfig) -> list[Load]:
    """Q, dO, O or dQ by itself; nothing where heads are not split."""
    return [query.load("all_to_all", config.h)] if config.h > 1 else []


def _each(both: _Flows, op: CollectiveOp, num_ranks: int) -> list[Load]:
    """K and V, or dK and dV, one after the other."""
    return 2 * [_Flows(*(part // 2 for part in both)).load(op, num_ranks)]


def _round(config: ParallelConfig, flows: _Flows, shifts: set[int], packed: bool) -> Load:
    if packed:
        return flows.load("all_to_all", _peers(config, shifts))
    return flows.load("send_recv", config.degree)


def _gradient(keys: _Flows, ring_round: int) -> _Flows:
    width = RING_GRADIENT_BYTES if ring_round else WIRE_BYTES
    return _Flows(*(part * width // WIRE_BYTES for part in keys.turned()))


def _peers(config: ParallelConfig, shifts: set[int], own: int = 1) -> int:
    """How many ranks a position meets in a packed exchange, ``own`` of them in its own block (itself included)."""
    both_ways = {shift % config.k for shift in shifts} | {-shift % config.k for shift in shifts}
    outside = 0 if 0 in both_ways else own
    return max(2, config.q * config.h * len(both_ways) + outside)


@lru_cache(maxsize=4096)
def _query_flows(config: ParallelConfig, num_nodes: int) -> _Flows:
    """Q of one head, from the owners of a query block to its workers."""
    worker = np.repeat(np.arange(config.degree), config.h)
    owner = worker // config.h * config.h + np.tile(np.arange(config.h), config.degree)
    return _flows(config, num_nodes, owner, worker)


@lru_cache(maxsize=32768)
def _key_flows(config: ParallelConfig, num_nodes: int, ring_round: int) -> _Flows:
    """K of one head, from the owners of a ring position to the workers that read it in this round."""
    q, h, k = config.q, config.h, config.k
    workers = np.arange(config.degree)
    ring = (workers // h % k + ring_round) % k
    blocks = np.arange(q)[None, :] * k + ring[:, None]
    owner = (blocks[:, :, None] * h + np.arange(h)[None, None, :]).reshape(-1)
    return _flows(config, num_nodes, owner, np.repeat(workers, q * h))


def _flows(config: ParallelConfig, nodes: int, source: Counts, destination: Counts) -> _Flows:
    degree = config.degree
    moves = source != destination
    source, destination = source[moves], destination[moves]
    here, there = source * nodes // degree, destination * nodes // degree
    inside = here == there

    def count(chosen: NDArray[np.bool_]) -> Counts:
        ways = (destination[chosen], source[chosen])
        return np.stack([np.bincount(way, minlength=degree) for way in ways]).astype(np.int64)

    pool = [np.bincount(way[~inside], minlength=nodes) for way in (there, here)]
    return _Flows(count(inside), count(~inside), np.stack(pool).astype(np.int64))
