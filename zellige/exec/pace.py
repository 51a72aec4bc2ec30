"""How fast a machine is just now: a fixed piece of work, timed beside whatever is measured."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from zellige.exec.meters import CpuMeter, EventMeter

PACE_TOKENS, PACE_WIDTH, PACE_HEADS, PACE_LENGTH = 1000, 128, 4, 400
"""The reference work: an MLP of so many tokens twice, and attention of so many three times. Some 10 ms on one core.

It slows down as a step does where a machine's neighbours take cache and memory from it (measured on a shared machine: a
step's time goes with the 0.86th to 0.98th power of it), which products of small matrices alone do not.
"""


class Pace:
    """A fixed piece of work that says how fast a device is just now."""

    def __init__(self, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(0)

        def values(*shape: int) -> Tensor:
            drawn = torch.randn(shape, generator=generator).to(device)
            return drawn.div(shape[-1] ** 0.5)

        self._tokens = values(PACE_TOKENS, PACE_WIDTH)
        self._up, self._down = values(4 * PACE_WIDTH, PACE_WIDTH), values(PACE_WIDTH, 4 * PACE_WIDTH)
        self._heads = values(1, PACE_HEADS, PACE_LENGTH, PACE_WIDTH // PACE_HEADS)
        self._meter = CpuMeter(0) if device.type == "cpu" else EventMeter(0)
        self.now()
        self._last = self.now()

    def now(self) -> int:
        """Nanoseconds that the work takes."""
        self._meter.restart()
        with torch.no_grad():
            for _ in range(2):
                wide = functional.linear(functional.layer_norm(self._tokens, (PACE_WIDTH,)), self._up)
                functional.linear(functional.gelu(wide, approximate="tanh"), self._down)
            for _ in range(3):
                functional.scaled_dot_product_attention(self._heads, self._heads, self._heads)
        return self._meter.stop()[1]

    def renew(self) -> None:
        """Take the pace here: time has gone by since the last step."""
        self._last = self.now()

    def between(self) -> int:
        """The mean of the pace that was taken last, and of the pace now, which is the last from here on."""
        before, self._last = self._last, self.now()
        return (before + self._last) // 2
