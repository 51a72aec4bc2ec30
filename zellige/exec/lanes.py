"""Where whole sequences run: in line with everything else, or on a CUDA stream beside it.

Exchanges run on a stream of NCCL's own in either case: whole sequences are enqueued right behind the start of an
exchange, so they fill the time until its end. In line, a rank idles when an exchange takes longer than the batch that
was put under it; beside (:class:`SideStream`), the second batch may then start as soon as the first one is done.

Nothing of a layer depends on whole sequences before its end: :meth:`Lanes.join` is the only place where the two meet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch


class Lanes(Protocol):
    """How a layer runs work that nothing else of the layer waits for."""

    def aside(self, work: Callable[[], None]) -> None:
        """Run ``work`` at any time from here to the next :meth:`join`."""

    def join(self) -> None:
        """Order everything that comes after this call behind all work that was put aside."""


class InLine:
    """At once, on the current stream: CPU ranks, and CUDA ranks unless told otherwise."""

    def aside(self, work: Callable[[], None]) -> None:
        """See :class:`Lanes`."""
        work()

    def join(self) -> None:
        """See :class:`Lanes`."""


class SideStream:
    """On a CUDA stream of its own: for passes whose whole work writes nothing that other work of the layer writes too.

    Attention alone is such a pass. A training layer is not: whole and split sequences add to the same parameter
    gradients, so it runs in line.

    Memory stays safe without ``record_stream``: tensors that the side stream reads outlive the pass, and the pass ends
    with :meth:`join`; what is allocated here is reused here alone, and every call waits for the main stream first.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def aside(self, work: Callable[[], None]) -> None:
        """See :class:`Lanes`."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            work()

    def join(self) -> None:
        """See :class:`Lanes`."""
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
