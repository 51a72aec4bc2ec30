"""The catalog cut: which buckets are fillers, which anchors (arXiv 2608.01150, Eq. 4)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec


class CatalogCut(msgspec.Struct, frozen=True):
    """``k`` fillers of the buckets sorted by whole price, and the dispersion that every k from 1 leaves."""

    k: int
    dispersion: tuple[float, ...]


def catalog_cut(whole_ns: Sequence[int]) -> CatalogCut:
    """The contiguous two-class split of log prices with the least within-class sum of squares (Fisher 1958).

    ``whole_ns`` is ascending. Ties take the smallest k. With one bucket, or all prices equal, everything is filler.
    """
    if not whole_ns:
        raise ValueError("a catalog needs at least one bucket")
    if list(whole_ns) != sorted(whole_ns):
        raise ValueError("whole prices must ascend")
    if whole_ns[0] == whole_ns[-1]:
        return CatalogCut(len(whole_ns), ())
    logs = [math.log(price / whole_ns[0]) for price in whole_ns]
    dispersion = tuple(_spread(logs[:k]) + _spread(logs[k:]) for k in range(1, len(logs)))
    least = min(dispersion)
    tolerance = 1e-12 * max(1.0, _spread(logs))
    k = next(index for index, value in enumerate(dispersion, 1) if value <= least + tolerance)
    return CatalogCut(k, dispersion)


def _spread(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values)
