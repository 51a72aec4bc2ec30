"""What a simulated step comes to: each rank's time by cause, the memory timeline, and how far from additive it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from zellige.files import NonNegativeInt
from zellige.placement import Engine
from zellige.sim.options import Fidelity
from zellige.sim.scripts import CALLS, EXPOSED, JITTER, METRICS, OPTIMIZER, SLOWDOWN, WAITS


class RankTime(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rank's step by cause; the parts add up to the step.

    ``work_ns`` is compute by kind of operation, at full speed and without noise; ``calls_ns`` latency and host time of
    exchanges; ``slowdown_ns`` what compute lost to transfers beside it. ``wait_ns`` is for partners of exchanges that
    have not come, ``exchange_ns`` for their transfers; gathers and reductions likewise. ``idle_ns``: the rank is done.
    """

    rank: NonNegativeInt
    work_ns: dict[str, int]
    calls_ns: int
    slowdown_ns: int
    jitter_ns: int
    wait_ns: int
    exchange_ns: int
    gather_wait_ns: int
    gather_ns: int
    reduce_wait_ns: int
    reduce_ns: int
    idle_ns: int
    peak_memory_bytes: int

    @property
    def compute_ns(self) -> int:
        """Work of all kinds but the optimizer."""
        return sum(time for kind, time in self.work_ns.items() if kind != "optimizer")

    @property
    def busy_ns(self) -> int:
        """The time at which the rank is done."""
        return self.total_ns - self.idle_ns

    @property
    def total_ns(self) -> int:
        """The step."""
        return (
            sum(self.work_ns.values()) + self.calls_ns + self.slowdown_ns + self.jitter_ns + self.wait_ns
            + self.exchange_ns + self.gather_wait_ns + self.gather_ns + self.reduce_wait_ns + self.reduce_ns
            + self.idle_ns
        )  # fmt: skip


class MemoryPoint(msgspec.Struct, frozen=True, array_like=True):
    """Memory in use on a rank from a time on."""

    time_ns: int
    used_bytes: int


class SimReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One simulated step. ``memory`` is the timeline of the fullest rank; ``sources`` name the constants' origins.

    ``layers_simulated`` of ``num_layers`` were stepped through, the others repeat them.
    """

    SCHEMA: ClassVar[str] = "zellige.simulation/1"

    schema: str = "zellige.simulation/1"
    fidelity: Fidelity
    program: str
    engine: Engine
    cluster: str
    model: str
    step_time_ns: NonNegativeInt
    num_layers: int
    layers_simulated: int
    events: int
    ranks: tuple[RankTime, ...]
    memory: tuple[MemoryPoint, ...]
    memory_limit_bytes: int
    sources: tuple[str, ...]

    @property
    def slowest(self) -> RankTime:
        """The rank that is done last (ties: the first)."""
        return max(self.ranks, key=lambda rank: (rank.busy_ns, -rank.rank))

    @property
    def peak_memory_bytes(self) -> int:
        """The memory of the fullest rank."""
        return max(rank.peak_memory_bytes for rank in self.ranks)

    def mean(self, cause: str) -> float:
        """A part of :class:`RankTime`, the mean over ranks."""
        return float(sum(getattr(rank, cause) for rank in self.ranks)) / len(self.ranks)


class Additivity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A simulated step minus the additive one, split by cause on the rank that the additive model calls slowest.

    The causes add up to the difference: waits for partners (of exchanges, gathers and reductions), exchanges (less,
    where work hides them), slow-down beside transfers, latency and host time of calls, gathers, reductions, the
    optimizer, jitter, and ``later_ns``, the time by which another rank is done after this one. ``contention_ns`` is
    flow minus event, where flow was simulated.
    """

    additive_ns: int
    simulated_ns: int
    rank: int
    wait_ns: int
    exchange_ns: int
    slowdown_ns: int
    gather_ns: int
    reduce_ns: int
    optimizer_ns: int
    jitter_ns: int
    later_ns: int
    calls_ns: int = 0
    contention_ns: int = 0

    @property
    def ratio(self) -> float:
        """Simulated over additive."""
        return self.simulated_ns / self.additive_ns

    @property
    def explained_ns(self) -> int:
        """The sum of all causes: the difference, but for contention, which is in the exchanges and waits already."""
        return (
            self.wait_ns + self.exchange_ns + self.slowdown_ns + self.gather_ns + self.reduce_ns + self.optimizer_ns
            + self.jitter_ns + self.later_ns + self.calls_ns
        )  # fmt: skip

    @property
    def unexplained_ns(self) -> int:
        """What no cause accounts for."""
        return self.simulated_ns - self.additive_ns - self.explained_ns


def rank_time(rank: int, metrics: Sequence[int], finish: int, step: int, peak_memory_bytes: int) -> RankTime:
    """A rank's time from its metrics."""
    return RankTime(
        rank=rank,
        work_ns={METRICS[index]: metrics[index] for index in range(OPTIMIZER + 1)},
        calls_ns=metrics[CALLS],
        slowdown_ns=metrics[SLOWDOWN],
        jitter_ns=metrics[JITTER],
        wait_ns=metrics[WAITS],
        exchange_ns=metrics[EXPOSED],
        gather_wait_ns=metrics[WAITS + 1],
        gather_ns=metrics[EXPOSED + 1],
        reduce_wait_ns=metrics[WAITS + 2],
        reduce_ns=metrics[EXPOSED + 2],
        idle_ns=step - finish,
        peak_memory_bytes=peak_memory_bytes,
    )


def additivity(additive: SimReport, simulated: SimReport, flow: SimReport | None = None) -> Additivity:
    """Where a simulated step differs from the additive one."""
    slowest = additive.slowest
    there = simulated.ranks[slowest.rank]
    return Additivity(
        additive_ns=additive.step_time_ns,
        simulated_ns=simulated.step_time_ns,
        rank=slowest.rank,
        wait_ns=there.wait_ns + there.gather_wait_ns + there.reduce_wait_ns,
        exchange_ns=there.exchange_ns - slowest.exchange_ns,
        slowdown_ns=there.slowdown_ns - slowest.slowdown_ns,
        gather_ns=there.gather_ns,
        reduce_ns=there.reduce_ns,
        optimizer_ns=there.work_ns["optimizer"],
        jitter_ns=there.jitter_ns,
        later_ns=there.idle_ns,
        calls_ns=there.calls_ns - slowest.calls_ns,
        contention_ns=flow.step_time_ns - simulated.step_time_ns if flow is not None else 0,
    )
