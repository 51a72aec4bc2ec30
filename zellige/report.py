"""Tables for people: rich renderables and lines of text, nothing computed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

from zellige.check import Report
from zellige.compare import Comparison
from zellige.outcomes import NOT_SIMULATED
from zellige.placement import Plan
from zellige.rows import Row
from zellige.schedule import Schedule
from zellige.shards import ParallelConfig
from zellige.units import count_of, format_bytes, format_percent, format_time, share_of
from zellige.workload import Drop, parse_shape

COMPARISON_LEGEND = (
    "ratio: step over the best that fits; max/mean: the slowest rank's time over the mean; bytes/usp: what attention"
    " moves, over what USP moves; split: sequences on several ranks; memory: of the fullest rank; plan: planning time;"
    " gap: to a bound for any placement under the row's own engine"
)
SIMULATED_LEGEND = "max/mean is of ranks' times without waiting, gap of the plan's sums of prices, not of this step"
BREAKDOWN_LEGEND = (
    "means over ranks, which add up to the step; communication: exposed transfers and calls;"
    " idle: done, until the slowest rank is"
)
SPREAD_LEGEND = "std dev: of the step, from batch to batch; best in: batches in which no other that fits is shorter"
"""What the columns of the tables are."""

SHOWN_DROPS = 20
SHOWN_SPLITS = 24


def comparison_table(comparison: Comparison) -> Table:
    """One row a policy, the best in bold; step times are means over batches where there are several."""
    table = plain_table("policy", "step", "ratio", "max/\nmean", "bytes/\nusp", "split", "memory", "plan", "gap")
    for row in comparison.rows:
        table.add_row(*_cells(row), style="bold" if row.ratio_to_best == 1.0 else "")
    return table


def breakdown_table(comparison: Comparison) -> Table:
    """Where a rank's step goes, the mean over ranks: compute, exposed communication, idle until the slowest is done."""
    table = plain_table("policy", "step", "compute", "communication", "idle")
    for row in comparison.rows:
        if row.step_time_ns is not None:
            parts = (row.step_time_ns, row.compute_ns, row.communication_ns, row.wait_ns)
            table.add_row(row.policy, *(tight(format_time(part)) for part in parts))
    return table


def spread_table(comparison: Comparison) -> Table:
    """Over many batches: mean and standard deviation of the step, and how often each policy is the best that fits."""
    table = plain_table("policy", "mean step", "std dev", "best in")
    for row in comparison.rows:
        if row.step_time_ns is not None:
            spread = format_time(row.step_time_stdev_ns)
            table.add_row(row.policy, format_time(row.step_time_ns), spread, f"{100 * row.win_rate:.0f} %")
    return table


def plain_table(first: str, *numbers: str) -> Table:
    """A table that fits 80 columns."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 0), show_edge=False, pad_edge=False)
    table.add_column(first, no_wrap=True)
    for title in numbers:
        table.add_column(title, justify="right", no_wrap=True)
    return table


def _cells(row: Row) -> list[str]:
    if row.step_time_ns is None:
        return [row.policy, "-", "-", "-", "-", "-", "no plan", "-", "-"]
    return [
        row.policy,
        tight(format_time(row.step_time_ns)),
        f"{row.ratio_to_best:.3f}" if row.ratio_to_best else "-",
        f"{row.max_over_mean:.2f}",
        "-" if row.comm_relative_to_usp is None else f"{row.comm_relative_to_usp:.2f}",
        f"{row.num_split}",
        _memory_cell(row),
        _planning_cell(row.planning_ns),
        gap_cell(row.gap or 0.0),
    ]


def _memory_cell(row: Row) -> str:
    if row.fits:
        return tight(format_bytes(row.peak_memory_bytes or 0))
    over = row.memory_over_bytes / 1e9
    if over >= 10_000:
        return f"OOM+{over / 1e3:.0f}TB"
    return f"OOM+{over:.1f}GB" if over < 10 else f"OOM+{over:.0f}GB"


def _planning_cell(planning_ns: int | None) -> str:
    if planning_ns is None:
        return "-"
    milliseconds = planning_ns / 1e6
    return f"{milliseconds:.0f}ms" if milliseconds < 9_999 else f"{milliseconds / 1e3:.0f}s"


def gap_cell(gap: float) -> str:
    """How far a step is above a bound, short."""
    if gap >= 9:
        return f"{100 * gap:.0e}%" if gap >= 1000 else f"{100 * gap:.0f}%"
    return f"{100 * gap:.2f}%" if gap < 0.1 else f"{100 * gap:.0f}%"


def tight(text: str) -> str:
    """A quantity that never breaks over lines."""
    return text.replace(" ", "")


FIDELITY = {
    "additive": "no waiting, no shared links, no overlap between sequences",
    "event": "simulated: waiting, streams, parameter traffic; no shared links",
    "flow": "simulated: waiting, streams, parameter traffic, shared links",
}


def comparison_lines(comparison: Comparison) -> list[str]:
    """What stands above and below the table."""
    first = comparison.rows[0]
    kept_free = f" ({format_bytes(comparison.reserved_bytes)} kept free)" if comparison.reserved_bytes else ""
    return [
        f"{count_of(comparison.batches, 'batch')}, {count_of(first.num_sequences, 'sequence')},"
        f" {count_of(comparison.num_tokens, 'token')} ({100 * comparison.video_share:.0f} % video)",
        f"{comparison.cluster}, {comparison.model}, {comparison.sharding}, checkpointing {comparison.checkpoint},"
        f" {format_bytes(comparison.memory_limit_bytes)} usable a GPU{kept_free}",
        f"prices: {', '.join(comparison.prices)}; fidelity: {comparison.fidelity} ({FIDELITY[comparison.fidelity]})",
        *_noise_lines(comparison),
    ]


def _noise_lines(comparison: Comparison) -> list[str]:
    if comparison.noise is None:
        return []
    noise = comparison.noise
    steps = f"{count_of(comparison.replicas, 'step')} a batch"
    return [f"jitter {noise.jitter:g} from seed {noise.seed} on, the same for all; {steps}"]


def comparison_footer(comparison: Comparison) -> list[str]:
    """Reasons, notes of the rows, memory that is nearly full, and the verdict."""
    lines = [f"{row.policy}: {_why(row)}" for row in comparison.rows if row.reason]
    lines += [f"{row.policy}: {note}" for row in comparison.rows for note in row.notes if note]
    lines += comparison.notes
    limit, reserved = comparison.memory_limit_bytes, comparison.reserved_bytes
    full = [row for row in comparison.rows if row.fits and is_nearly_full(row.peak_memory_bytes or 0, limit, reserved)]
    if full:
        lines.append(f"{', '.join(row.policy for row in full)}: {NEARLY_FULL_WARNING}")
    return [*lines, f"verdict: {comparison.verdict}"] if comparison.verdict else lines


def _why(row: Row) -> str:
    return row.reason if NOT_SIMULATED in row.reason else f"no plan: {row.reason}"


def _blocks_lines(plan: Plan) -> list[str]:
    if plan.blocks_bound_ns is None:
        return []
    above = plan.makespan_ns / plan.blocks_bound_ns - 1
    return [f"{format_percent(above)} above the bound {format_time(plan.blocks_bound_ns)} of plans on aligned blocks"]


NEARLY_FULL = 0.97
"""Of the usable memory; validation on CPU ranks found errors of 1 to 4 %."""

NEARLY_FULL_WARNING = (
    "memory nearly full, and predictions of it are off by some per cent (docs/validate.md);"
    " --reserve 5% keeps so much free"
)


def is_nearly_full(peak_bytes: int, limit_bytes: int, reserved_bytes: int) -> bool:
    """Whether a peak within the limit leaves little of what is usable, reserve included."""
    return NEARLY_FULL * (limit_bytes + reserved_bytes) < peak_bytes <= limit_bytes


def memory_lines(peak_bytes: int, limit_bytes: int, reserved_bytes: int = 0) -> list[str]:
    """The fullest rank's memory beside the limit, and a warning where there is little between them."""
    text = f"peak memory {format_bytes(peak_bytes)} of {format_bytes(limit_bytes)}"
    if reserved_bytes:
        text += f" ({format_bytes(reserved_bytes)} beside it kept free)"
    if peak_bytes > limit_bytes:
        text += f": {format_bytes(peak_bytes - limit_bytes)} over the limit"
    warning = f"  {NEARLY_FULL_WARNING}"
    return [text, *([warning] if is_nearly_full(peak_bytes, limit_bytes, reserved_bytes) else [])]


def plan_lines(plan: Plan, prices: Sequence[str] = (), reserved_bytes: int = 0) -> list[str]:
    """A plan in a few lines; ``prices`` says where its prices come from."""
    split: dict[tuple[int, ParallelConfig, tuple[int, ...], str], int] = {}
    whole: dict[int, int] = {}
    for placement in plan.placements:
        if placement.config.is_split:
            longest_first = -math.prod(size or 1 for size in parse_shape(placement.bucket))
            key = (longest_first, placement.config, placement.ranks, placement.bucket)
            split[key] = split.get(key, 0) + 1
        else:
            whole[placement.ranks[0]] = whole.get(placement.ranks[0], 0) + 1
    lines = [
        f"{plan.policy} ({plan.engine} engine): step {format_time(plan.makespan_ns)},"
        f" {format_percent(plan.gap)} above the bound {format_time(plan.bound_ns)} ({plan.bound})",
        *_blocks_lines(plan),
        *_origin_lines(prices),
        f"{share_of(plan.num_split, len(plan.placements), 'sequence')} split;"
        f" max/mean rank time {plan.max_over_mean:.3f}",
        *memory_lines(plan.peak_memory_bytes, plan.memory_limit_bytes, reserved_bytes),
    ]
    lines += [
        f"  {count} x {bucket} as {config} on ranks {','.join(map(str, ranks))}"
        for (_, config, ranks, bucket), count in sorted(split.items())[:SHOWN_SPLITS]
    ]
    if len(split) > SHOWN_SPLITS:
        lines.append(f"  ... and {len(split) - SHOWN_SPLITS} more")
    if whole:
        lines.append(
            f"whole sequences a rank: {', '.join(f'{r}: {n}' for r, n in sorted(whole.items())[:SHOWN_SPLITS])}"
        )
    return [*lines, *plan.notes, f"digest {plan.digest}"]


def _origin_lines(prices: Sequence[str]) -> list[str]:
    return [f"prices: {', '.join(prices)}"] if prices else []


def schedule_lines(schedule: Schedule, prices: Sequence[str] = (), reserved_bytes: int = 0) -> list[str]:
    """A schedule in a few lines: its totals, then each micro-step."""
    least = schedule.least_micro_steps
    proof = schedule.least_proof if least > 1 else f"{schedule.policy} fits no plan into fewer"
    few = f"no fewer do: {proof}" if schedule.solver.status == "fewest" else f"at least {least}: {schedule.least_proof}"
    lines = [
        f"{schedule.policy} ({schedule.engine} engine): {count_of(schedule.num_sequences, 'sequence')} in"
        f" {count_of(schedule.num_micro_steps, 'micro-step')} of one optimizer step,"
        f" {format_time(schedule.step_time_ns)} in all,"
        f" {format_percent(schedule.gap)} above the bound {format_time(schedule.bound_ns)} ({schedule.bound})",
        *_origin_lines(prices),
        few,
        *memory_lines(schedule.peak_memory_bytes, schedule.memory_limit_bytes, reserved_bytes),
    ]
    for number, plan in enumerate(schedule.plans, 1):
        lines.append(
            f"  micro-step {number}: {format_time(plan.makespan_ns)},"
            f" {count_of(len(plan.placements), 'sequence')},"
            f" {plan.num_split} split; max/mean rank time {plan.max_over_mean:.3f},"
            f" peak memory {format_bytes(plan.peak_memory_bytes)}"
        )
    return [*lines, *schedule.notes, f"digest {schedule.digest}"]


def findings_lines(report: Report) -> list[str]:
    """What a check found in one file, each finding with its way out."""
    lines = [f"{report.file}: {count_of(len(report.findings), 'finding')}", *(f"  {line}" for line in report.summary)]
    for finding in report.findings:
        lines.append(f"  [{finding.code}] {finding.message}" + (f" ({finding.where})" if finding.where else ""))
        if finding.fix:
            lines.append(f"      try: {finding.fix}")
    return lines


def drop_lines(drops: Sequence[Drop], total: int) -> list[str]:
    """Each dropped clip, why, and the nearest bucket that would keep it."""
    lines = [f"{share_of(len(drops), total, 'clip')} dropped"]
    for drop in drops[:SHOWN_DROPS]:
        where = f" ({drop.clip.where})" if drop.clip.where else ""
        kept = f"; kept by {drop.suggestion}" if drop.suggestion else ""
        lines.append(f"  {drop.clip.id}{where} {drop.clip.shape}: {drop.reason}{kept}")
    if len(drops) > SHOWN_DROPS:
        lines.append(f"  ... and {len(drops) - SHOWN_DROPS} more")
    if suggested(drops):
        lines.append(f"  buckets that would keep them: {', '.join(suggested(drops))}")
    return lines


def suggested(drops: Iterable[Drop]) -> list[str]:
    """The distinct suggestions, in order of first need."""
    return list(dict.fromkeys(drop.suggestion for drop in drops if drop.suggestion))
