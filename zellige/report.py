"""Tables for people: rich renderables and lines of text, nothing computed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

from zellige.compare import Comparison
from zellige.cuts import CutReport
from zellige.inspection import Inspection
from zellige.outcomes import NOT_SIMULATED
from zellige.placement import Plan
from zellige.profile import ProfileEstimate
from zellige.rows import Row
from zellige.schedule import Schedule
from zellige.sim.results import SimReport
from zellige.theory import Theory
from zellige.units import format_bytes, format_percent, format_time
from zellige.workload import Drop

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
        _gap_cell(row.gap or 0.0),
    ]


def _memory_cell(row: Row) -> str:
    if row.fits:
        return tight(format_bytes(row.peak_memory_bytes or 0))
    over = row.memory_over_bytes / 1e9
    return f"OOM+{over:.1f}GB" if over < 10 else f"OOM+{over:.0f}GB"


def _planning_cell(planning_ns: int | None) -> str:
    if planning_ns is None:
        return "-"
    milliseconds = planning_ns / 1e6
    return f"{milliseconds:.0f}ms" if milliseconds < 9_999 else f"{milliseconds / 1e3:.0f}s"


def _gap_cell(gap: float) -> str:
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
    batches = "1 batch" if comparison.batches == 1 else f"{comparison.batches} batches"
    return [
        f"{batches}, {first.num_sequences:,} sequences, {comparison.num_tokens:,} tokens"
        f" ({100 * comparison.video_share:.0f} % video)",
        f"{comparison.cluster}, {comparison.model}, {comparison.sharding}, checkpointing {comparison.checkpoint},"
        f" {format_bytes(comparison.memory_limit_bytes)} usable a GPU",
        f"prices: {', '.join(comparison.prices)}; fidelity: {comparison.fidelity} ({FIDELITY[comparison.fidelity]})",
        *_noise_lines(comparison),
    ]


def _noise_lines(comparison: Comparison) -> list[str]:
    if comparison.noise is None:
        return []
    noise = comparison.noise
    return [f"jitter {noise.jitter:g} from seed {noise.seed} on, the same for all; {comparison.replicas} steps a batch"]


def comparison_footer(comparison: Comparison) -> list[str]:
    """Reasons, notes of the rows, and the verdict."""
    lines = [
        "ratio: step over the best that fits; max/mean: of rank times; bytes: moved by attention; split: sequences on",
        "several ranks; plan: planning time; gap: to a bound for any placement under the row's own engine",
    ]
    if comparison.fidelity != "additive":
        lines.append("max/mean is of ranks' times without waiting, gap of the plan's sums of prices, not of this step")
    lines += [f"{row.policy}: {_why(row)}" for row in comparison.rows if row.reason]
    lines += [f"{row.policy}: {note}" for row in comparison.rows for note in row.notes if note]
    lines += comparison.notes
    return [*lines, f"verdict: {comparison.verdict}"] if comparison.verdict else lines


def _why(row: Row) -> str:
    return row.reason if NOT_SIMULATED in row.reason else f"no plan: {row.reason}"


def _blocks_lines(plan: Plan) -> list[str]:
    if plan.blocks_bound_ns is None:
        return []
    above = plan.makespan_ns / plan.blocks_bound_ns - 1
    return [f"{format_percent(above)} above the bound {format_time(plan.blocks_bound_ns)} of plans on aligned blocks"]


NEARLY_FULL = 0.97
"""Of the memory limit; validation on CPU ranks found errors of 1 to 4 %."""


def plan_lines(plan: Plan) -> list[str]:
    """A plan in a few lines."""
    split: dict[str, int] = {}
    whole: dict[int, int] = {}
    for placement in plan.placements:
        if placement.config.is_split:
            label = f"{placement.bucket} as {placement.config} on ranks {','.join(map(str, placement.ranks))}"
            split[label] = split.get(label, 0) + 1
        else:
            whole[placement.ranks[0]] = whole.get(placement.ranks[0], 0) + 1
    lines = [
        f"{plan.policy} ({plan.engine} engine): step {format_time(plan.makespan_ns)},"
        f" {format_percent(plan.gap)} above the bound {format_time(plan.bound_ns)} ({plan.bound})",
        *_blocks_lines(plan),
        f"{plan.num_split} of {len(plan.placements)} sequences split; max/mean rank time {plan.max_over_mean:.3f}",
        f"peak memory {format_bytes(plan.peak_memory_bytes)} of {format_bytes(plan.memory_limit_bytes)}"
        + ("" if plan.fits else f": {format_bytes(plan.peak_memory_bytes - plan.memory_limit_bytes)} over the limit"),
    ]
    if plan.fits and plan.peak_memory_bytes > NEARLY_FULL * plan.memory_limit_bytes:
        lines.append("  nearly full: predictions of memory are off by some per cent (docs/validate.md)")
    lines += [f"  {count} x {label}" for label, count in sorted(split.items())[:SHOWN_SPLITS]]
    if len(split) > SHOWN_SPLITS:
        lines.append(f"  ... and {len(split) - SHOWN_SPLITS} more")
    if whole:
        lines.append(
            f"whole sequences a rank: {', '.join(f'{r}: {n}' for r, n in sorted(whole.items())[:SHOWN_SPLITS])}"
        )
    return [*lines, *plan.notes, f"digest {plan.digest}"]


def schedule_lines(schedule: Schedule) -> list[str]:
    """A schedule in a few lines: its totals, then each micro-step."""
    least = schedule.least_micro_steps
    proof = schedule.least_proof if least > 1 else f"{schedule.policy} fits no plan into fewer"
    few = f"no fewer do: {proof}" if schedule.solver.status == "fewest" else f"at least {least}: {schedule.least_proof}"
    lines = [
        f"{schedule.policy} ({schedule.engine} engine): {schedule.num_sequences} sequences in"
        f" {schedule.num_micro_steps} micro-steps of one optimizer step, {format_time(schedule.step_time_ns)} in all,"
        f" {format_percent(schedule.gap)} above the bound {format_time(schedule.bound_ns)} ({schedule.bound})",
        few,
        f"peak memory {format_bytes(schedule.peak_memory_bytes)} of {format_bytes(schedule.memory_limit_bytes)}",
    ]
    for number, plan in enumerate(schedule.plans, 1):
        lines.append(
            f"  micro-step {number}: {format_time(plan.makespan_ns)}, {len(plan.placements)} sequences,"
            f" {plan.num_split} split; max/mean rank time {plan.max_over_mean:.3f},"
            f" peak memory {format_bytes(plan.peak_memory_bytes)}"
        )
    return [*lines, *schedule.notes, f"digest {schedule.digest}"]


def drop_lines(drops: Sequence[Drop], total: int) -> list[str]:
    """Each dropped clip, why, and the nearest bucket that would keep it."""
    lines = [f"{len(drops)} of {total} clips dropped"]
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


def inspection_lines(result: Inspection) -> list[str]:
    """Tokens, grid, splits and shards of a clip."""
    time, rows, columns = result.grid
    lines = [
        f"{result.width}x{result.height}, {result.frames} {'frame' if result.frames == 1 else 'frames'},"
        f" {result.model}: {result.tokens:,} tokens",
        f"grid {time} x {rows} x {columns} (time x height x width)",
        f"legal h: {' '.join(map(str, result.legal_h))}",
    ]
    if result.shards:
        sizes: dict[int, int] = {}
        for shard in result.shards:
            sizes[shard] = sizes.get(shard, 0) + 1
        parts = " + ".join(f"{count} x {size:,}" for size, count in sorted(sizes.items(), reverse=True))
        lines.append(f"shards: {parts} = {sum(result.shards):,} tokens, no padding")
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
    """The sorted prices with their roles, and what every k does to the plan; bars are to scale, prices in log."""
    prices = Table(box=SIMPLE_HEAD, padding=(0, 0), show_edge=False, pad_edge=False)
    for title, justify in (("bucket", "left"), ("whole price", "right"), ("role", "left"), ("log price", "left")):
        prices.add_column(title, justify="right" if justify == "right" else "left", no_wrap=True)
    logs = [math.log(bucket.whole_ns) for bucket in report.buckets]
    for bucket, value in zip(report.buckets, logs, strict=True):
        bar = _bar(value - min(logs), (max(logs) - min(logs)) or 1.0)
        prices.add_row(bucket.bucket, format_time(bucket.whole_ns), bucket.role, bar)
    by_k = Table(box=SIMPLE_HEAD, padding=(0, 0), show_edge=False, pad_edge=False)
    for title in ("k", "dispersion", "step", "gap", "split", "planning"):
        by_k.add_column(title, justify="right", no_wrap=True)
    by_k.add_column("dispersion", no_wrap=True)
    top = max(report.dispersion, default=1.0) or 1.0
    for row in report.rows:
        spread = "-" if row.dispersion is None else f"{row.dispersion:.2f}"
        mark = "*" if row.k == report.k else " "
        cells = ["-", "no plan", "-", "-"]
        if row.step_time_ns is not None:
            planning = format_time(row.planning_ns or 0)
            cells = [format_time(row.step_time_ns), _gap_cell(row.gap or 0.0), str(row.num_split), planning]
        by_k.add_row(f"{mark}{row.k}", spread, *cells, _bar(row.dispersion or 0.0, top))
    return [prices, by_k]


def _bar(value: float, top: float) -> str:
    return "█" * round(BAR_WIDTH * value / top)


def theory_tables(result: Theory) -> list[tuple[str, Table]]:
    """The three statements, a table each, with what they say."""
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
        ("one sequence: disjoint groups are N / (largest group) slower than joint placement", imbalance),
        ("one giant and m fillers: the same step takes 1 split jointly, m + 1 in disjoint groups", splits),
        ("gangs: laminar rank sets reach their load without waiting, others need not", waits),
    ]


def simulation_lines(report: SimReport, plan: Plan) -> list[str]:
    """What was simulated, and the step beside the plan's own prediction."""
    return [
        f"{plan.policy} ({report.engine} engine) on {report.cluster}, {report.model}: fidelity {report.fidelity}",
        f"step {format_time(report.step_time_ns)}; the plan's additive prices say {format_time(plan.makespan_ns)}",
        f"{report.layers_simulated} of {report.num_layers} layers stepped through, {report.events:,} events",
    ]


def simulation_table(report: SimReport) -> Table:
    """Each rank's step by cause: compute, exposed exchanges and calls, waits, gathers and reductions, idle."""
    table = plain_table("rank", "compute", "exchange", "wait", "slow-\ndown", "state", "idle", "memory")
    for rank in report.ranks:
        state = rank.gather_wait_ns + rank.gather_ns + rank.reduce_wait_ns + rank.reduce_ns
        state += rank.work_ns.get("optimizer", 0)
        parts = (rank.compute_ns, rank.calls_ns + rank.exchange_ns, rank.wait_ns, rank.slowdown_ns, state, rank.idle_ns)
        cells = [tight(format_time(part)) for part in parts]
        table.add_row(str(rank.rank), *cells, tight(format_bytes(rank.peak_memory_bytes)))
    return table


def estimate_lines(result: ProfileEstimate) -> list[str]:
    """What a profile would take, by bucket and in all."""
    runs = f"{result.warm_ups} + {result.repeats} runs of a layer"
    lines = [f"{result.model} on one {result.device}, every bucket and split of {result.cluster}, {runs} each:"]
    for row in result.buckets:
        skipped = f" ({row.skipped} do not fit)" if row.skipped else ""
        lines.append(f"  {row.bucket}: {row.num_configs} splits{skipped}, {format_time(row.time_ns)}")
    minutes = result.time_ns / 60e9
    return [*lines, f"about {minutes:.1f} GPU minutes, estimated from {result.source} prices"]
