"""What the exchanges of a program take on a cluster: who meets whom, for how long the transfer lasts, what calls cost.

An exchange is an irregular all-to-all: a transfer takes as long as its busiest port, ``max(bytes in, bytes out) /
bandwidth``. Ports are a rank's link inside the node, a rank's way to a NIC, and the NICs of a node, of which an
exchange has the share of the ranks that have messages in it. A rank meets its **real peers**: those that it has
messages with. It starts when all of these have come, and is done after the longest port time among them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from zellige.cluster import Cluster, CollectiveOp
from zellige.collectives import call_ns, latency_ns, nic_pool, node_rate
from zellige.errors import DeadLinkError
from zellige.program import Program
from zellige.program_parts import Exchange
from zellige.shards import ParallelConfig

AllToAll = Literal["flat", "two_step"]
"""Packed exchanges go to their destinations directly, or inside the node first and then between equal places."""

Transfer = tuple[int, int, int]
"""Source, destination, bytes."""

BACKWARD_CALLS = {"all_to_all": 2, "all_gather": 2, "send_recv": 1}
"""Calls of the backward pass for each call of a program: collectives cost twice their forward (as in the prices), while
a program's backward already has twice the ring steps."""


class Meeting(msgspec.Struct, frozen=True):
    """``members`` meet ``peers`` (themselves among them), and are done ``transfer_ns`` after the last of these came."""

    members: tuple[int, ...]
    peers: tuple[int, ...]
    transfer_ns: int


class ExchangePrice(msgspec.Struct, frozen=True):
    """An exchange: ``call_ns`` of latency and host time on every rank that enters, then its meetings.

    ``transfers`` are what travels, with the bytes of every message.
    """

    call_ns: int
    meetings: tuple[Meeting, ...]
    transfers: tuple[Transfer, ...]


class Speed(NamedTuple):
    """The fit that sets the bandwidth inside a node; ``num_ranks`` 0 takes the ranks that a rank really meets."""

    op: CollectiveOp
    num_ranks: int


def exchange_prices(program: Program, cluster: Cluster, all_to_all: AllToAll = "flat") -> tuple[ExchangePrice, ...]:
    """The price of every exchange of a program, in order; raises :class:`DeadLinkError`."""
    known: dict[tuple[int, tuple[int, ...], Speed], tuple[tuple[Transfer, ...], tuple[Meeting, ...]]] = {}
    prices = []
    for exchange in program.exchanges:
        group = program.groups[exchange.group]
        config = program.segments[group.segments[0]].config
        speed = Speed("all_to_all", 0) if group.packed else unpacked_speed(exchange, config)
        two_step = all_to_all == "two_step" and group.packed and cluster.num_nodes > 1
        key = (id(exchange.messages), exchange.ranks, speed)
        if key not in known:
            transfers = tuple((m.source, m.destination, program.message_bytes(m)) for m in exchange.messages)
            known[key] = transfers, meetings(cluster, transfers, exchange.ranks, speed, two_step=two_step)
        transfers, meet = known[key]
        calls = _calls_ns(cluster, exchange, config, packed=group.packed)
        if two_step:
            calls += latency_ns(cluster, "all_to_all", cluster.ranks_per_node, 1)
        prices.append(ExchangePrice(math.ceil(calls), meet, transfers))
    return tuple(prices)


def unpacked_speed(exchange: Exchange, config: ParallelConfig) -> Speed:
    """The fit of an exchange that carries one sequence's tensors, as the prices choose it."""
    if any(part.ring_round > 0 for part in exchange.parts):
        return Speed("send_recv", config.degree)
    if all(part.tensor in ("q", "o", "do", "dq") for part in exchange.parts):
        return Speed("all_to_all", config.h)
    block = config.degree if config.k == 1 else max(config.q * config.h, 2)
    return Speed("all_gather" if config.q > 1 else "all_to_all", block)


def _calls_ns(cluster: Cluster, exchange: Exchange, config: ParallelConfig, *, packed: bool) -> float:
    nodes = cluster.footprint(exchange.ranks)
    total = 0.0
    for op in exchange.calls:
        size = config.h if op == "all_to_all" and not packed else len(exchange.ranks)
        repeats = BACKWARD_CALLS[op] if exchange.phase == "backward" else 1
        total += repeats * call_ns(cluster, op, size, nodes)
    return total


def meetings(
    cluster: Cluster, transfers: Sequence[Transfer], ranks: Iterable[int], speed: Speed, *, two_step: bool = False
) -> tuple[Meeting, ...]:
    """Who meets whom: ranks with the same peers are one meeting, in order of their first rank."""
    ranks = tuple(ranks)
    steps = two_steps(cluster, transfers) if two_step else [transfers]
    peers: dict[int, set[int]] = {rank: {rank} for rank in ranks}
    for hops in (transfers, *(steps if two_step else ())):
        for source, destination, _ in hops:
            peers[source].add(destination)
            peers[destination].add(source)
    busy: dict[int, float] = dict.fromkeys(ranks, 0.0)
    for step in steps:
        for rank, time in port_times(cluster, step, ranks, peers, speed).items():
            busy[rank] += time
    members: dict[frozenset[int], list[int]] = {}
    for rank in ranks:
        members.setdefault(frozenset(peers[rank]), []).append(rank)
    return tuple(
        Meeting(tuple(own), tuple(sorted(met)), math.ceil(max(busy[rank] for rank in met)))
        for met, own in members.items()
    )


def two_steps(cluster: Cluster, transfers: Iterable[Transfer]) -> list[list[Transfer]]:
    """The hops of a two-step all-to-all: inside the node to the place of the destination, then between nodes."""
    per_node = cluster.ranks_per_node
    inside: dict[tuple[int, int], int] = {}
    between: dict[tuple[int, int], int] = {}
    for source, destination, size in transfers:
        turn = source // per_node * per_node + destination % per_node
        if turn != source:
            inside[source, turn] = inside.get((source, turn), 0) + size
        if turn != destination:
            between[turn, destination] = between.get((turn, destination), 0) + size
    return [[(s, d, size) for (s, d), size in hops.items()] for hops in (inside, between)]


def port_times(
    cluster: Cluster,
    transfers: Iterable[Transfer],
    ranks: Sequence[int],
    peers: Mapping[int, set[int]],
    speed: Speed,
) -> dict[int, float]:
    """Nanoseconds of the busiest port that each rank uses."""
    per_node = cluster.ranks_per_node
    local = {rank: [0, 0] for rank in ranks}
    remote = {rank: [0, 0] for rank in ranks}
    pool: dict[int, list[int]] = {}
    for source, destination, size in transfers:
        here, there = source // per_node, destination // per_node
        side = local if here == there else remote
        side[source][1] += size
        side[destination][0] += size
        if here != there:
            pool.setdefault(here, [0, 0])[1] += size
            pool.setdefault(there, [0, 0])[0] += size
    present: dict[int, int] = {}
    for rank in ranks:
        present[rank // per_node] = present.get(rank // per_node, 0) + (len(peers[rank]) > 1)
    times = {}
    known: dict[tuple[int, int], float] = {}
    for rank in ranks:
        load = (speed.num_ranks or len(peers[rank]), max(local[rank]))
        if load not in known:
            rate = node_rate(cluster, speed.op, *load)
            known[load] = over_link(load[1], rate, cluster, "link of the node")
        time = known[load]
        if any(remote[rank]):
            node = rank // per_node
            time = max(time, over_link(max(remote[rank]), _nic(cluster), cluster, "NIC"))
            time = max(time, over_link(max(pool[node]), nic_pool(cluster, present[node]), cluster, "NICs of a node"))
        times[rank] = time
    return times


def _nic(cluster: Cluster) -> float:
    return cluster.network.nic_gb_per_s if cluster.network is not None else math.inf


def over_link(size: float, bytes_per_ns: float, cluster: Cluster, what: str) -> float:
    """Nanoseconds of ``size`` bytes over a link; raises :class:`DeadLinkError` where it has no bandwidth."""
    if size <= 0:
        return 0.0
    if not bytes_per_ns > 0:
        raise DeadLinkError(
            f"{size:,.0f} bytes have to cross a {what} of {cluster.name}, which has no bandwidth",
            fix="give the link a bandwidth above zero, or plan without splits over it",
        )
    return size / bytes_per_ns
