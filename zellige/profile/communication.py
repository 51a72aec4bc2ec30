"""Links as measured: exchanges of several sizes between the ranks that there are, and an alpha-beta fit of each.

A fit is latency + bytes / bandwidth with neither negative, by relative errors, for each operation and number of ranks.
Contiguous and strided rank sets are fitted together: on one node they are the same link, and their difference is a
part of the fit's error, which is also told apart (:attr:`Links.strided`). With more ranks than cores the times say how
processes share cores, not how fast a link is.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from zellige.cluster import LINK_OPS, LinkPoint
from zellige.profile.fit import fit_law
from zellige.profile.timing import LinkResult, Sample, median, spread

SIZES = (1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 22)
"""Bytes that a rank receives."""

FASTEST_GB_PER_S = 1e6
"""What stands for a bandwidth that no size of exchange showed an end of."""


STRIDED = ".strided"
"""The end of the key of samples of strided rank sets."""


class Links(NamedTuple):
    """Fits of a node's links, and the mean error of the fits on sizes left out.

    ``strided`` is what strided rank sets take over contiguous ones, the median over operations and sizes; 1 where there
    are none.
    """

    points: tuple[LinkPoint, ...]
    error: float
    strided: float


class Timed(Protocol):
    """Times of one operation on one rank, as :class:`zellige.exec.wire.WireTime` has them."""

    @property
    def op(self) -> str:
        """All-to-all, all-gather, reduce-scatter, or a send."""

    @property
    def num_ranks(self) -> int:
        """Ranks that took part."""

    @property
    def strided(self) -> bool:
        """Whether others stood between them."""

    @property
    def received_bytes(self) -> int:
        """Bytes that each of them received."""

    @property
    def times_ns(self) -> tuple[int, ...]:
        """Nanoseconds by repeat; empty on ranks that took no part."""


START_S, ROW_S = 3.0, 0.1
"""What starting ranks takes, and timing one operation at one size in one rank set (about; measured on two cores)."""


def link_groups(num_ranks: int) -> tuple[int, ...]:
    """How many ranks take part in the exchanges that are measured."""
    return tuple(sorted({2, num_ranks} | ({4} if num_ranks >= 4 else set())))


def links_s(num_ranks: int) -> float:
    """Seconds that measuring links is expected to take: ranks start once, and exchange a while for each row."""
    contiguous = len(link_groups(num_ranks))
    strided = sum(num_ranks // size > 1 for size in link_groups(num_ranks))
    return START_S + ROW_S * len(LINK_OPS) * len(SIZES) * (contiguous + strided)


def link_result(num_ranks: int) -> LinkResult:
    """The links between processes of this machine, measured."""
    began = time.monotonic()
    samples = wire_samples(measure_links(num_ranks))
    return LinkResult(num_ranks=num_ranks, samples=tuple(samples), seconds=time.monotonic() - began)


def measure_links(num_ranks: int, *, repeats: int = 15, timeout_s: float = 60.0) -> list[list[Timed]]:
    """Times of every rank, from processes of this machine."""
    import msgspec

    from zellige.exec.launch import run_ranks
    from zellige.exec.wire import WireTask, WireTime, wire_task

    payload = msgspec.json.encode(WireTask(sizes=SIZES, groups=link_groups(num_ranks), repeats=repeats))
    answers = run_ranks(wire_task, [payload] * num_ranks, timeout_s=timeout_s, deadline_s=4 * timeout_s)
    return [list(msgspec.json.decode(answer, type=list[WireTime])) for answer in answers]


def wire_samples(by_rank: Sequence[Sequence[Timed]]) -> list[Sample]:
    """A sample for every operation, group and size: the median over repeats of the slowest rank."""
    samples = []
    for same in zip(*by_rank, strict=True):
        present = [times for times in same if times.times_ns]
        slowest = [max(each) for each in zip(*(times.times_ns for times in present), strict=True)]
        what = f"{same[0].op} of {same[0].received_bytes} bytes"
        samples.append(
            Sample(
                key=f"{same[0].op}.{same[0].num_ranks}{STRIDED if same[0].strided else ''}",
                terms={"calls": 1.0, "bytes": float(same[0].received_bytes)},
                ns=median(slowest, what),
                spread=spread(slowest),
            )
        )
    return samples


def fit_links(samples: Sequence[Sample]) -> Links:
    """Alpha-beta fits by operation and number of ranks."""
    points, errors = [], []
    for key in sorted({sample.key.removesuffix(STRIDED) for sample in samples}):
        op, ranks = key.split(".")
        law = fit_law(key, [sample for sample in samples if sample.key.removesuffix(STRIDED) == key])
        per_byte = law.per_unit.get("bytes", 0.0)
        points.append(
            LinkPoint(
                op=op,  # type: ignore[arg-type]
                num_ranks=int(ranks),
                latency_us=max(law.per_unit.get("calls", 0.0) / 1e3, 1e-3),
                bus_gb_per_s=1 / per_byte if per_byte else FASTEST_GB_PER_S,
            )
        )
        errors.append(law.error)
    return Links(tuple(points), statistics.fmean(errors) if errors else 0.0, _strided(samples))


def _strided(samples: Sequence[Sample]) -> float:
    times = {(sample.key, sample.terms["bytes"]): sample.ns for sample in samples}
    ratios = [
        ns / times[key.removesuffix(STRIDED), size]
        for (key, size), ns in times.items()
        if key.endswith(STRIDED) and (key.removesuffix(STRIDED), size) in times
    ]
    return statistics.median(ratios) if ratios else 1.0
