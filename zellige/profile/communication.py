"""Links as measured: exchanges of several sizes between the ranks that there are, and an alpha-beta fit of each.

A fit is latency + bytes / bandwidth with neither negative, by relative errors, for each operation and number of ranks.
Contiguous and strided rank sets are fitted together: on one node they are the same link, and their difference is a
part of the fit's error. With more ranks than cores the times say how processes share cores, not how fast a link is.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from zellige.cluster import LinkPoint
from zellige.profile.fit import fit_law
from zellige.profile.timing import Sample, median, spread

SIZES = (1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 22)
"""Bytes that a rank receives."""

FASTEST_GB_PER_S = 1e6
"""What stands for a bandwidth that no size of exchange showed an end of."""


class Links(NamedTuple):
    """Fits of a node's links, and the mean error of the fits on sizes left out."""

    points: tuple[LinkPoint, ...]
    error: float


class Timed(Protocol):
    """Times of one operation on one rank, as :class:`zellige.exec.wire.WireTime` has them."""

    @property
    def op(self) -> str:
        """All-to-all, all-gather, or a send."""

    @property
    def num_ranks(self) -> int:
        """Ranks that took part."""

    @property
    def received_bytes(self) -> int:
        """Bytes that each of them received."""

    @property
    def times_ns(self) -> tuple[int, ...]:
        """Nanoseconds by repeat; empty on ranks that took no part."""


def measure_links(num_ranks: int, *, repeats: int = 15, timeout_s: float = 60.0) -> list[list[Timed]]:
    """Times of every rank, from processes of this machine."""
    import msgspec

    from zellige.exec.launch import run_ranks
    from zellige.exec.wire import WireTask, WireTime, wire_task

    groups = tuple(sorted({2, num_ranks} | ({4} if num_ranks >= 4 else set())))
    payload = msgspec.json.encode(WireTask(sizes=SIZES, groups=groups, repeats=repeats))
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
                key=f"{same[0].op}.{same[0].num_ranks}",
                terms={"calls": 1.0, "bytes": float(same[0].received_bytes)},
                ns=median(slowest, what),
                spread=spread(slowest),
            )
        )
    return samples


def fit_links(samples: Sequence[Sample]) -> Links:
    """Alpha-beta fits by operation and number of ranks."""
    points, errors = [], []
    for key in sorted({sample.key for sample in samples}):
        op, ranks = key.split(".")
        law = fit_law(key, [sample for sample in samples if sample.key == key])
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
    return Links(tuple(points), statistics.fmean(errors))
