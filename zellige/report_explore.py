"""Tables for people, of what there is before a plan: a clip and its splits, the catalog cut, the theorems."""

from __future__ import annotations

import math

from rich.box import SIMPLE_HEAD
from rich.table import Table

from zellige.cuts import CutReport
from zellige.inspection import Inspection
from zellige.report import gap_cell, plain_table, tight
from zellige.theory import Theory
from zellige.units import count_of, format_bytes, format_time

INSPECTION_LEGEND = (
    "split: q, h and k ranks (h: heads, Ulysses; k: ring; q: all-gather); time x ranks: what it takes of the cluster;"
    " memory: of each rank; moved a step: received by all its ranks together",
    "prices: analytic, per step",
)
PRICES_LEGEND = "whole price: a step on one rank, not split; log price: to scale from the cheapest to the dearest"
CUT_LEGEND = (
    "fillers: so many of the cheapest buckets are packed around the others, the anchors, which are placed first;"
    " dispersion: spread of log prices within fillers and within anchors, least at the chosen cut (*); gap: of the step"
    " to its bound; split: sequences on several ranks; the bars show the dispersion"
)
"""What the columns of the tables are."""


def inspection_lines(result: Inspection) -> list[str]:
    """Tokens, grid, splits and shards of a clip."""
    time, rows, columns = result.grid
    lines = [
        f"{result.width}x{result.height}, {count_of(result.frames, 'frame')},"
        f" {result.model}: {count_of(result.tokens, 'token')}",
        f"grid {time} x {rows} x {columns} (time x height x width)",
        f"legal h: {' '.join(map(str, result.legal_h))}",
    ]
    if result.shards:
        sizes: dict[int, int] = {}
        for shard in result.shards:
            sizes[shard] = sizes.get(shard, 0) + 1
        parts = " + ".join(f"{count} x {size:,}" for size, count in sorted(sizes.items(), reverse=True))
        lines.append(f"shards: {parts} = {count_of(sum(result.shards), 'token')}, no padding")
    return lines + list(result.notes)


SHOWN_CONFIGS = 3


def inspection_table(result: Inspection, *, show_all: bool) -> Table:
    """The configurations that fit (the three fastest of each degree, or all), the fastest of each degree first."""
    table = plain_table("split", "ranks", "time a rank", "time x ranks", "memory", "moved a step")
    shown: dict[int, int] = {}
    for row in result.configs:
        shown[row.degree] = shown.get(row.degree, 0) + 1
        if shown[row.degree] > SHOWN_CONFIGS and not show_all:
            continue
        label = "".join(f"{axis}{n}" for axis, n in (("q", row.q), ("h", row.h), ("k", row.k)) if n > 1) or "whole"
        table.add_row(
            label,
            str(row.degree),
            format_time(row.time_ns),
            format_time(row.time_ns * row.degree),
            format_bytes(row.memory_bytes),
            format_bytes(row.comm_bytes),
        )
    return table


BAR_WIDTH = 24


def cut_tables(report: CutReport) -> list[Table]:
    """The sorted prices with their roles, and what every number of fillers does to the plan; bars are to scale."""
    prices = Table(box=SIMPLE_HEAD, padding=(0, 0), show_edge=False, pad_edge=False)
    for title, justify in (("bucket", "left"), ("whole price", "right"), ("role", "left"), ("log price", "left")):
        prices.add_column(title, justify="right" if justify == "right" else "left", no_wrap=True)
    logs = [math.log(bucket.whole_ns) for bucket in report.buckets]
    for bucket, value in zip(report.buckets, logs, strict=True):
        bar = _bar(value - min(logs), (max(logs) - min(logs)) or 1.0)
        prices.add_row(bucket.bucket, format_time(bucket.whole_ns), bucket.role, bar)
    by_k = Table(box=SIMPLE_HEAD, padding=(0, 0), show_edge=False, pad_edge=False)
    for title in ("fillers", "dispersion", "step", "gap", "split", "planning"):
        by_k.add_column(title, justify="right", no_wrap=True)
    by_k.add_column("", no_wrap=True)
    top = max(report.dispersion, default=1.0) or 1.0
    for row in report.rows:
        spread = "-" if row.dispersion is None else f"{row.dispersion:.2f}"
        mark = "*" if row.k == report.k else " "
        cells = ["-", "no plan", "-", "-"]
        if row.step_time_ns is not None:
            planning = format_time(row.planning_ns or 0)
            cells = [format_time(row.step_time_ns), gap_cell(row.gap or 0.0), str(row.num_split), planning]
        by_k.add_row(f"{mark}{row.k}", spread, *cells, _bar(row.dispersion or 0.0, top))
    return [prices, by_k]


def _bar(value: float, top: float) -> str:
    return "█" * round(BAR_WIDTH * value / top)


def theory_tables(result: Theory) -> list[tuple[str, Table, str]]:
    """The three statements: what each says, its table, and what the columns are."""
    imbalance = plain_table("ranks", "largest group", "joint", "disjoint", "ratio", "N / group")
    for row in result.imbalance:
        times = (tight(format_time(row.joint_ns)), tight(format_time(row.disjoint_ns)))
        imbalance.add_row(str(row.num_ranks), str(row.largest_group), *times, f"{row.ratio:g}", f"{row.limit:g}")
    splits = plain_table("ranks", "fillers", "step", "giant on N-1", "splits, joint", "splits, disjoint")
    for count in result.splits:
        times = (tight(format_time(count.step_ns)), tight(format_time(count.next_best_ns)))
        totals = (str(count.joint_splits), str(count.disjoint_splits))
        splits.add_row(str(count.num_ranks), str(count.num_fillers), *times, *totals)
    waits = plain_table("rank sets", "load", "best order")
    for wait in result.waits:
        waits.add_row(wait.rank_sets, tight(format_time(wait.additive_ns)), tight(format_time(wait.best_order_ns)))
    return [
        (
            "one sequence: disjoint groups are N / (largest group) slower than joint placement",
            imbalance,
            "joint, disjoint: the shortest step; ratio: of the two; N / group: what it tends to",
        ),
        (
            "one giant and m fillers: the same step takes 1 split jointly, m + 1 in disjoint groups",
            splits,
            "fillers: m; giant on N-1: the step with the giant on one rank less; splits: sequences that must be split",
        ),
        (
            "gangs: laminar rank sets reach their load without waiting, others need not",
            waits,
            "load: of the fullest rank; best order: the step, in the order that waits least",
        ),
    ]
