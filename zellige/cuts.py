"""Explore the catalog cut: what every number of fillers does to plan quality and planning time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import ClassVar

import msgspec

from zellige.errors import InfeasibleError, TimeLimitError
from zellige.placement import Problem
from zellige.plan.cut import catalog_cut


class CutBucket(msgspec.Struct, frozen=True, kw_only=True):
    """A bucket of the catalog, its whole price, and its role under the chosen cut."""

    bucket: str
    whole_ns: int
    role: str


class CutRow(msgspec.Struct, frozen=True, kw_only=True):
    """Plans with the k cheapest buckets as fillers, means over batches; None where some batch has no plan."""

    k: int
    dispersion: float | None
    step_time_ns: int | None
    gap: float | None
    num_split: int | None
    planning_ns: int | None
    reason: str = ""


class CutReport(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``cut``."""

    SCHEMA: ClassVar[str] = "zellige.cut/1"

    schema: str = "zellige.cut/1"
    k: int
    batches: int
    buckets: tuple[CutBucket, ...]
    dispersion: tuple[float, ...]
    rows: tuple[CutRow, ...]


def explore_cut(problems: Sequence[Problem], progress: Callable[[], None] = lambda: None) -> CutReport:
    """Plan all batches with every k of one catalog: the buckets of the first problem.

    ``k`` 0 makes every bucket an anchor, ``k`` = their number none. OR-Tools is loaded here, not with the module.
    """
    from zellige.plan.two_stage import buckets_by_price

    first = problems[0]
    buckets = buckets_by_price(first)
    prices = [first.whole(bucket).time_ns for bucket in buckets]
    cut = catalog_cut(prices)
    rows = []
    for k in range(len(buckets) + 1):
        dispersion = cut.dispersion[k - 1] if 1 <= k <= len(cut.dispersion) else None
        rows.append(_row(problems, k, dispersion, progress))
    return CutReport(
        k=cut.k,
        batches=len(problems),
        buckets=tuple(
            CutBucket(bucket=bucket.name, whole_ns=price, role="filler" if index < cut.k else "anchor")
            for index, (bucket, price) in enumerate(zip(buckets, prices, strict=True))
        ),
        dispersion=cut.dispersion,
        rows=tuple(rows),
    )


def _row(problems: Sequence[Problem], k: int, dispersion: float | None, progress: Callable[[], None]) -> CutRow:
    from zellige.plan.two_stage import anchor_buckets, plan_with_anchors

    plans, planning = [], []
    for problem in problems:
        started = time.perf_counter_ns()
        try:
            plans.append(plan_with_anchors(problem, anchor_buckets(problem, k)))
        except (InfeasibleError, TimeLimitError) as error:
            return CutRow(
                k=k, dispersion=dispersion, step_time_ns=None, gap=None, num_split=None, planning_ns=None,
                reason=error.message,
            )  # fmt: skip
        planning.append(time.perf_counter_ns() - started)
        progress()
    return CutRow(
        k=k,
        dispersion=dispersion,
        step_time_ns=round(statistics.fmean(plan.makespan_ns for plan in plans)),
        gap=sum(plan.makespan_ns for plan in plans) / sum(plan.bound_ns for plan in plans) - 1,
        num_split=sum(plan.num_split for plan in plans),
        planning_ns=round(statistics.fmean(planning)),
    )
