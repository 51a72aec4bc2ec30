"""Bytes of tensors that are alive on a CPU rank: counted, since the host's allocator says nothing of tensors.

Every storage that an operation returns is counted from then until it is freed. On a GPU the caching allocator's own
peak is read instead.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Peak(NamedTuple):
    """Bytes at the fullest moment, and those that forward leaves for backward."""

    peak_bytes: int
    kept_bytes: int


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts storages that are made inside the block; ``peak`` is the most that were alive at once."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self._seen: dict[int, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation and count what it returns."""
        given = {leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._count(leaf, given)
        return result

    def _count(self, tensor: Tensor, given: set[int]) -> None:
        """A view of what was there before is nothing new."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen or key in given or not size:
            return
        self._seen[key] = size
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._free, key)

    def _free(self, key: int) -> None:
        self.live -= self._seen.pop(key)


def cpu_peak(forward: Callable[[], Tensor], backward: Callable[[Tensor], None]) -> Peak:
    """The peak of a step on a CPU rank, beyond what was alive before it; kept is what forward leaves alive."""
    counter = LiveBytes()
    with counter:
        loss = forward()
        kept = counter.live
        backward(loss)
    return Peak(counter.peak, kept)


def cuda_peak(forward: Callable[[], Tensor], backward: Callable[[Tensor], None]) -> Peak:
    """The same on the current GPU, as its caching allocator counts."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    loss = forward()
    kept = torch.cuda.memory_allocated() - before
    backward(loss)
    torch.cuda.synchronize()
    return Peak(torch.cuda.max_memory_allocated() - before, kept)
