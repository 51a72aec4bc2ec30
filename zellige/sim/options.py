"""What a simulation is told besides the program: streams, overlap, state traffic, noise."""

from __future__ import annotations

from typing import Literal

import msgspec

from zellige.analytic import OVERLAP_SLOWDOWN
from zellige.errors import UsageError
from zellige.exchange_prices import AllToAll

Fidelity = Literal["additive", "event", "flow"]
FIDELITIES: tuple[Fidelity, ...] = ("additive", "event", "flow")


class Noise(msgspec.Struct, frozen=True, kw_only=True):
    """What makes steps differ. All of it is drawn from ``seed`` and ``batch``, never from the plan.

    ``jitter`` is the sigma of a lognormal factor (of mean 1) on every operation and transfer. ``slow_rank`` and
    ``slow_node`` (-1: none) take ``slow_factor`` times as long to compute. A rank stalls for ``stall_ns`` in a layer's
    pass with probability ``stall_rate``.
    """

    seed: int = 0
    batch: int = 0
    jitter: float = 0.0
    slow_rank: int = -1
    slow_node: int = -1
    slow_factor: float = 1.0
    stall_rate: float = 0.0
    stall_ns: int = 0

    @property
    def is_silent(self) -> bool:
        """Whether every step is the same."""
        slow = (self.slow_rank >= 0 or self.slow_node >= 0) and self.slow_factor != 1.0
        return not (self.jitter or slow or (self.stall_rate and self.stall_ns))

    @property
    def repeats(self) -> bool:
        """Whether all layers of a rank still take the same time."""
        return not (self.jitter or (self.stall_rate and self.stall_ns))


class SimOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to simulate.

    ``one_stream``: exchanges hold up the rank instead of running beside it. ``slowdown``: how much longer compute takes
    while a transfer runs on its rank. ``prefetch``: layers whose parameters are gathered ahead. ``state_traffic``:
    parameter gathers, gradient reductions and the optimizer. ``repeat_layers``: simulate layers until they repeat, and
    multiply. ``trace``: keep all spans.
    """

    one_stream: bool = False
    slowdown: float = OVERLAP_SLOWDOWN
    prefetch: int = 1
    state_traffic: bool = True
    all_to_all: AllToAll = "flat"
    repeat_layers: bool = True
    trace: bool = False
    noise: Noise = Noise()

    def __post_init__(self) -> None:
        if self.prefetch < 0 or not 0 <= self.slowdown <= 10:
            raise UsageError(
                f"prefetch {self.prefetch} and slowdown {self.slowdown} must not be negative, nor slowdown above 10"
            )
        noise = self.noise
        if noise.jitter < 0 or noise.slow_factor <= 0 or noise.stall_ns < 0 or not 0 <= noise.stall_rate <= 1:
            raise UsageError(
                f"jitter {noise.jitter}, slow_factor {noise.slow_factor}, stall_rate {noise.stall_rate} or stall_ns"
                f" {noise.stall_ns} is out of range"
            )

    @property
    def slow_speed(self) -> tuple[int, int]:
        """Work done in a nanosecond beside a transfer, and without one, in whole units."""
        return 1000, 1000 + round(1000 * self.slowdown)


DEFAULTS = SimOptions()
