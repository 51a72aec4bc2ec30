"""How fast a machine is just now: a fixed piece of work, timed beside whatever is measured.

The core of a virtual machine has several speeds and keeps each for seconds, as others come and go on its twin: 11, 14
or 17 ms for the same products here. What a step is made of does not slow down alike: attention and large products
follow them fully, while Python, autograd and copies lose 0.4 to 0.75 as much (in logarithms). So the work is of both
kinds, about equal parts: products and attention, and a small block forward and backward.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from zellige.exec.meters import CpuMeter, EventMeter

PACE_WIDTH, PACE_HEADS = 128, 4
LONG_TOKENS, LONG_LENGTH = 1000, 400
"""The first part: an MLP of so many tokens twice, and attention of so many three times; some 10 ms of a core."""

SHORT_TOKENS, SHORT_REPEATS = 40, 5
"""The second: a block of so many tokens, forward and backward, so often; some 10 ms as well.

Steps of six programs, 900 in all, brought to this pace differ by 5 % from each other, where they differ by 16 to 20 %
as they are, and by 7 % at the pace of the first part alone.
"""


class Pace:
    """A fixed piece of work that says how fast a device is just now."""

    def __init__(self, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(0)

        def values(*shape: int) -> Tensor:
            drawn = torch.randn(shape, generator=generator).to(device)
            return drawn.div(shape[-1] ** 0.5)

        width = PACE_WIDTH
        self._tokens = values(LONG_TOKENS, width)
        self._up, self._down = values(4 * width, width).requires_grad_(), values(width, 4 * width).requires_grad_()
        self._heads = values(1, PACE_HEADS, LONG_LENGTH, width // PACE_HEADS)
        self._few = values(SHORT_TOKENS, width)
        self._mixing, self._out = values(3 * width, width).requires_grad_(), values(width, width).requires_grad_()
        self._scales = values(6, width).requires_grad_()
        self._weights = (self._up, self._down, self._mixing, self._out, self._scales)
        self._meter = CpuMeter(0) if device.type == "cpu" else EventMeter(0)
        self.now()
        self._last = self.now()

    def now(self) -> int:
        """Nanoseconds that the work takes."""
        self._meter.restart()
        with torch.no_grad():
            for _ in range(2):
                self._mlp(functional.layer_norm(self._tokens, (PACE_WIDTH,)))
            for _ in range(3):
                functional.scaled_dot_product_attention(self._heads, self._heads, self._heads)
        with torch.enable_grad():
            for _ in range(SHORT_REPEATS):
                torch.autograd.grad(self._block(self._few).square().mean(), self._weights)
        return self._meter.stop()[1]

    def _mlp(self, tokens: Tensor) -> Tensor:
        wide = functional.linear(tokens, self._up)
        narrow: Tensor = functional.linear(functional.gelu(wide, approximate="tanh"), self._down)
        return narrow

    def _block(self, tokens: Tensor) -> Tensor:
        """A modulated transformer block."""
        scale, shift, gate, scale_mlp, shift_mlp, gate_mlp = self._scales
        normal = functional.layer_norm(tokens, (PACE_WIDTH,)) * (1 + scale) + shift
        mixed = functional.linear(normal, self._mixing).view(len(tokens), 3, PACE_HEADS, -1)
        heads = functional.scaled_dot_product_attention(*mixed.permute(1, 2, 0, 3).unsqueeze(1))
        tokens = tokens + gate * functional.linear(heads[0].transpose(0, 1).reshape(len(tokens), -1), self._out)
        normal = functional.layer_norm(tokens, (PACE_WIDTH,)) * (1 + scale_mlp) + shift_mlp
        result: Tensor = tokens + gate_mlp * self._mlp(normal)
        return result

    def renew(self) -> None:
        """Take the pace here: time has gone by since the last step."""
        self._last = self.now()

    def between(self) -> int:
        """The mean of the pace that was taken last, and of the pace now, which is the last from here on."""
        before, self._last = self._last, self.now()
        return (before + self._last) // 2
