"""Fidelity ``additive``: what every rank's step takes if it never waits for another, as prices add up.

Exchanges in and back are exposed in full; those of ring rounds run beside the attention of the round before. Gathers
and reductions are left out.
"""

from __future__ import annotations

from zellige.sim.machine import COMPUTING, TRANSFER, WAITING, Record
from zellige.sim.options import SimOptions
from zellige.sim.scripts import CALLS, COMPUTE, ENTER, EXPOSED, METRICS, SLOWDOWN, WAIT, Scripts

ATTEND = METRICS.index("attend")


class RankWalk:
    """One rank's walk through one stage, alone, from time 0."""

    __slots__ = ("metrics", "records", "time")

    def __init__(self, scripts: Scripts, rank: int, kind: int, options: SimOptions) -> None:
        self.time = 0
        self.metrics = [0] * len(METRICS)
        self.records: list[Record] = []
        arrives = 0
        instructions = scripts.parts[kind][rank]
        for place, (code, first, second, third, call, call_name) in enumerate(instructions):
            if code == COMPUTE:
                self._work(rank, first, second, third, beside=max(0, arrives - self.time), speeds=options.slow_speed)
                self._work(rank, call, CALLS, call_name)
            elif code == ENTER:
                channel = scripts.channels[second]
                transfer = channel.meetings[channel.freed_by[rank]].transfer_ns
                self.records.append((TRANSFER, rank, second, 0, self.time, self.time + transfer, 0, rank))
                arrives = self.time + transfer
                following = instructions[place + 1]
                if following[0] != COMPUTE or following[2] != ATTEND or not following[1]:
                    self._wait(rank, second, arrives)
            elif code == WAIT:
                self._wait(rank, second, arrives)

    def _work(
        self, rank: int, duration: int, metric: int, name: int, *, beside: int = 0, speeds: tuple[int, int] = (1, 1)
    ) -> None:
        """Work, of which the first part may run ``beside`` a transfer, at low speed."""
        if not duration:
            return
        slow, full = speeds
        if beside * slow >= duration * full:
            wall = -(-duration * full // slow)
        else:
            wall = beside - -(duration * full - beside * slow) // full
        self.metrics[metric] += duration
        self.metrics[SLOWDOWN] += wall - duration
        self.records.append((COMPUTING, rank, name, 0, self.time, self.time + wall, 0, -1))
        self.time += wall

    def _wait(self, rank: int, channel: int, until: int) -> None:
        if until > self.time:
            self.metrics[EXPOSED] += until - self.time
            self.records.append((WAITING, rank, channel, 0, self.time, until, 0, -1))
            self.time = until
