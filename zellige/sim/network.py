"""Shared links: transfers that run at the same time share ports max-min fairly (fidelity ``flow``).

networkx holds the topology: ranks, the switch or host bridge of a node, its NICs, the fabric between nodes. A port is
an edge with a capacity. A meeting's transfer is one job: it uses its ports in proportion, never runs faster than alone,
and gets its rate by progressive filling. A switch does not block; a PCIe host bridge does.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from zellige.cluster import Cluster
from zellige.collectives import nic_pool
from zellige.sim.scripts import Channel

if TYPE_CHECKING:
    import networkx as nx

Usage = tuple[tuple[int, int], ...]
"""(port, units a nanosecond) of a job at full rate; a unit is a byte over :data:`UNITS`."""

Restart = tuple[int, int]
"""(subject, end) of a job whose end changed."""

UNITS = 1_000_000


def topology(cluster: Cluster) -> nx.DiGraph[str]:
    """The cluster as a graph; edges with a ``capacity`` (bytes per nanosecond, one way) are ports."""
    import networkx as nx

    graph: nx.DiGraph[str] = nx.DiGraph()
    link = max(point.bus_gb_per_s for point in cluster.node_link.fits)
    for node in range(cluster.num_nodes):
        into, out = f"bridge {node} in", f"bridge {node} out"
        graph.add_edge(into, out, capacity=bridge_capacity(cluster))
        for rank in range(node * cluster.ranks_per_node, (node + 1) * cluster.ranks_per_node):
            graph.add_edge(f"rank {rank} out", into, capacity=link)
            graph.add_edge(out, f"rank {rank} in", capacity=link)
            if cluster.network is not None and cluster.num_nodes > 1:
                graph.add_edge(f"rank {rank} out", f"nics {node} out", capacity=cluster.network.nic_gb_per_s)
                graph.add_edge(f"nics {node} in", f"rank {rank} in", capacity=cluster.network.nic_gb_per_s)
        if cluster.network is not None and cluster.num_nodes > 1:
            pool = nic_pool(cluster, cluster.ranks_per_node)
            graph.add_edge(f"nics {node} out", "fabric", capacity=pool)
            graph.add_edge("fabric", f"nics {node} in", capacity=pool)
    return graph


def bridge_capacity(cluster: Cluster) -> float:
    """What passes between the ranks of a node at once: the most that a fit shows where it is PCIe, else no limit."""
    if "PCIe" not in cluster.node_link.kind:
        return math.inf
    return max(point.num_ranks * point.bus_gb_per_s for point in cluster.node_link.fits)


def _label(start: str, stop: str) -> str:
    """A port's name for people: ``rank 3 link out``, ``rank 3 NIC in``, ``node 0 NICs out``, ``node 0 bridge``."""
    if start.startswith("bridge") and stop.startswith("bridge"):
        return f"node {start.split()[1]} bridge"
    for end, other, way in ((start, stop, "out"), (stop, start, "in")):
        if end.startswith("rank"):
            return f"rank {end.split()[1]} {'NIC' if other.startswith('nics') else 'link'} {way}"
    way, nics = ("out", start) if stop == "fabric" else ("in", stop)
    return f"node {nics.split()[1]} NICs {way}"


class Ports:
    """The topology as arrays: capacities by port, and the ports between two ranks."""

    def __init__(self, cluster: Cluster) -> None:
        graph = topology(cluster)
        limited = [(a, b, data["capacity"]) for a, b, data in graph.edges(data=True) if data["capacity"] < math.inf]
        self._numbers = {(a, b): number for number, (a, b, _) in enumerate(limited)}
        self.names = [f"{a} - {b}" for a, b, _ in limited]
        self.labels = [_label(a, b) for a, b, _ in limited]
        self.capacities = [math.floor(capacity * UNITS) + 1 for _, _, capacity in limited]
        self._graph = graph
        self._paths: dict[tuple[int, int], tuple[int, ...]] = {}

    def path(self, source: int, destination: int) -> tuple[int, ...]:
        """Ports from one rank to another."""
        pair = (source, destination)
        if pair not in self._paths:
            import networkx as nx

            nodes: list[str] = nx.shortest_path(self._graph, f"rank {source} out", f"rank {destination} in")
            edges = itertools.pairwise(nodes)
            self._paths[pair] = tuple(self._numbers[edge] for edge in edges if edge in self._numbers)
        return self._paths[pair]


def fill(capacities: Sequence[int], jobs: Sequence[Usage]) -> list[float]:
    """Max-min fair rates, at most 1, of jobs: raise all alike until a port is full, fix the jobs that use it, go on."""
    rates = [1.0] * len(jobs)
    left: dict[int, float] = {}
    users: dict[int, list[tuple[int, int]]] = {}
    for job, usage in enumerate(jobs):
        for port, units in usage:
            users.setdefault(port, []).append((job, units))
            left[port] = float(capacities[port])
    rising = set(range(len(jobs)))
    while rising:
        demand = {port: sum(units for job, units in users[port] if job in rising) for port in users}
        levels = {port: left[port] / need for port, need in demand.items() if need}
        if not levels:
            break
        port = min(levels, key=lambda p: (levels[p], p))
        level = levels[port]
        if level >= 1.0:
            break
        fixed = sorted({job for job, _ in users[port] if job in rising})
        rising.difference_update(fixed)
        for job in fixed:
            rates[job] = level
            for used, units in jobs[job]:
                left[used] = max(0.0, left[used] - level * units)
    return rates


class _Job:
    __slots__ = ("left", "rate", "since", "usage")

    def __init__(self, usage: Usage, duration: int, time: int) -> None:
        self.usage = usage
        self.left = float(duration)
        self.rate = 1.0
        self.since = time


class Network:
    """Running transfers and their rates."""

    def __init__(self, cluster: Cluster, channels: Sequence[Channel], *, recorded: bool = False) -> None:
        self.ports = self._ports = Ports(cluster)
        self.pieces: list[tuple[int, int, int, float]] | None = [] if recorded else None
        self._channels = channels
        self._known: dict[int, list[Usage]] = {}
        self._jobs: dict[int, _Job] = {}
        self._users: list[dict[int, int]] = [{} for _ in self._ports.capacities]
        self._load = [0] * len(self._ports.capacities)
        self._slowed: set[int] = set()

    def start(self, subject: int, channel: int, meeting: int, duration: int, time: int) -> list[Restart]:
        """Add a job; the ends of all jobs that change, its own among them."""
        job = self._jobs[subject] = _Job(self.usages(channel)[meeting], duration, time)
        crowded = False
        for port, units in job.usage:
            self._users[port][subject] = units
            self._load[port] += units
            crowded = crowded or self._load[port] > self._ports.capacities[port]
        own = (subject, time + duration)
        if not crowded:
            return [own]
        changed = self._share(job.usage, time)
        return changed if any(restart[0] == subject for restart in changed) else [*changed, own]

    def stop(self, subject: int, time: int) -> list[Restart]:
        """Remove a job that is done; the ends of all jobs that change."""
        job = self._jobs.pop(subject)
        if self.pieces is not None and time > job.since:
            self.pieces.append((subject, job.since, time, job.rate))
        for port, units in job.usage:
            del self._users[port][subject]
            self._load[port] -= units
        self._slowed.discard(subject)
        return self._share(job.usage, time) if self._slowed else []

    def usages(self, number: int) -> list[Usage]:
        """What every meeting of a channel uses at full rate.

        Alone, an exchange takes what its price says, also where that is more than a port seems to carry: then its
        meetings share out the port.
        """
        if number not in self._known:
            channel = self._channels[number]
            used: list[dict[int, int]] = [{} for _ in channel.meetings]
            for source, destination, size in channel.transfers:
                ports = used[channel.freed_by[destination]]
                for port in self._ports.path(source, destination):
                    ports[port] = ports.get(port, 0) + size * UNITS
            total: dict[int, int] = {}
            for meeting, ports in zip(channel.meetings, used, strict=True):
                for port, size in ports.items():
                    ports[port] = size // meeting.transfer_ns
                    total[port] = total.get(port, 0) + ports[port]
            for ports in used:
                for port, units in ports.items():
                    ports[port] = units * min(total[port], self._ports.capacities[port]) // max(1, total[port])
            self._known[number] = [tuple(sorted(ports.items())) for ports in used]
        return self._known[number]

    def _share(self, usage: Usage, time: int) -> list[Restart]:
        """New rates of all jobs that share ports with these, directly or through others."""
        subjects = self._neighbours(port for port, _ in usage)
        rates = fill(self._ports.capacities, [self._jobs[subject].usage for subject in subjects])
        changed = []
        for subject, rate in zip(subjects, rates, strict=True):
            job = self._jobs[subject]
            if rate == job.rate:
                continue
            if self.pieces is not None and time > job.since:
                self.pieces.append((subject, job.since, time, job.rate))
            job.left = max(0.0, job.left - (time - job.since) * job.rate)
            job.since, job.rate = time, rate
            (self._slowed.add if rate < 1.0 else self._slowed.discard)(subject)
            changed.append((subject, time + math.ceil(job.left / rate)))
        return changed

    def _neighbours(self, ports: Iterable[int]) -> list[int]:
        seen: set[int] = set()
        pending = list(ports)
        visited = set(pending)
        while pending:
            for subject in self._users[pending.pop()]:
                if subject not in seen:
                    seen.add(subject)
                    fresh = [port for port, _ in self._jobs[subject].usage if port not in visited]
                    visited.update(fresh)
                    pending += fresh
        return sorted(seen)
