"""Noise by counter-based streams: every rank's factors depend on the seed, the batch, the rank, the stage and the kind
of operation, and on nothing else, so that all policies and engines face the same noise."""

from __future__ import annotations

import numpy as np

from zellige.cluster import Cluster
from zellige.sim.options import Noise
from zellige.sim.scripts import CALLS, LANES, WAITS

SLOTS = WAITS
"""Factors of a stage: one for each metric of compute, and then one for each lane."""


class Factors:
    """Factors of one step of ``num_stages`` stages, drawn with Philox keyed by (seed, batch), counted by rank."""

    def __init__(self, noise: Noise, cluster: Cluster, num_stages: int) -> None:
        shape = (num_stages, SLOTS + LANES)
        self._factors: list[list[list[float]]] = []
        self._stalls: list[list[int]] = []
        for rank in range(cluster.num_ranks):
            bits = np.random.Philox(key=[noise.seed, noise.batch], counter=[0, 0, 0, rank])
            random = np.random.Generator(bits)
            stalled = random.random(num_stages) < noise.stall_rate
            normal = random.standard_normal(shape)
            factors = np.exp(noise.jitter * normal - noise.jitter**2 / 2)
            slow = rank == noise.slow_rank or cluster.node_of(rank) == noise.slow_node
            if slow:
                factors[:, :CALLS] *= noise.slow_factor
            self._factors.append(factors.tolist())
            self._stalls.append((stalled * noise.stall_ns).tolist())

    def work(self, duration: int, rank: int, stage: int, metric: int) -> int:
        """The duration of an operation; the first of a stage takes a stall upon it."""
        stall = self._stalls[rank][stage]
        if stall:
            self._stalls[rank][stage] = 0
        return round(duration * self._factors[rank][stage][metric]) + stall

    def transfer(self, duration: int, rank: int, stage: int, lane: int) -> int:
        """The duration of a transfer whose meeting's first rank is ``rank``."""
        return max(1, round(duration * self._factors[rank][stage][SLOTS + lane]))
