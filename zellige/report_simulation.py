"""Tables for people, of what the simulator says: causes, noise, additivity, sensitivity."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from zellige.compare import Comparison
from zellige.placement import Plan
from zellige.report import memory_lines, plain_table, tight
from zellige.sensitivity import Effect, Sensitivity
from zellige.sim import Additivity
from zellige.sim.results import RankTime, SimReport
from zellige.sim.stats import Summary
from zellige.units import count_of, format_bytes, format_time, share_of

_PARTS = (
    "slow-down: what compute loses to transfers beside it;"
    " wait: for ranks that have not come to an exchange, a gather or a reduction"
)
CAUSES_LEGEND = (
    "means over ranks, which add up to the step; calls: latency and host time of exchanges;"
    f" {_PARTS}, and for the slowest rank at the end; exchange: exposed transfers; gathers: exposed parameter gathers"
    " and gradient reductions; other: optimizer, and jitter of compute"
)
RANKS_LEGEND = (
    "a rank's parts add up to the step; exchange: exposed transfers, latency and host time of exchanges;"
    f" {_PARTS}; state: exposed parameter gathers and gradient reductions, and the optimizer; idle: done, until the"
    " slowest rank is; memory: at its peak"
)
JITTER_LEGEND = "jitter: what noise adds to compute, or takes from it"
PAIRED_LEGEND = (
    "95 % of it: confidence interval, of the mean relative to it, and of the difference; longer than best: pair by"
    " pair, on the same batches, and under the same noise where there is any; best wins: pairs in which the best"
    " policy's step is shorter"
)
ADDITIVITY_LEGEND = (
    "each % is beside the column before it; later rank: another one is done later; rest: what no cause accounts for"
)
SENSITIVITY_LEGEND = (
    "x0.5 to x1.5: by how much placement shortens the step with the knob at so much of its value;"
    " flips at: where the verdict changes"
)
"""What the columns of the tables are."""


def simulation_lines(report: SimReport, plan: Plan, reserved_bytes: int = 0) -> list[str]:
    """What was simulated, the step beside the plan's own prediction, and the memory."""
    return [
        f"{plan.policy} ({report.engine} engine) on {report.cluster}, {report.model}: fidelity {report.fidelity}",
        f"step {format_time(report.step_time_ns)}; the plan's additive prices say {format_time(plan.makespan_ns)}",
        f"{share_of(report.layers_simulated, report.num_layers, 'layer')} stepped through,"
        f" {count_of(report.events, 'event')}",
        *memory_lines(report.peak_memory_bytes, report.memory_limit_bytes, reserved_bytes),
    ]


def rank_parts(rank: RankTime) -> dict[str, int]:
    """A rank's step by the columns of :func:`simulation_table`, nanoseconds that add up to the step."""
    return {
        "compute": rank.compute_ns,
        "exchange": rank.calls_ns + rank.exchange_ns,
        "wait": rank.wait_ns + rank.gather_wait_ns + rank.reduce_wait_ns,
        "slow-\ndown": rank.slowdown_ns,
        "state": rank.gather_ns + rank.reduce_ns + rank.work_ns.get("optimizer", 0),
        "jitter": rank.jitter_ns,
        "idle": rank.idle_ns,
    }


def simulation_table(report: SimReport) -> Table:
    """Each rank's step by cause (:func:`rank_parts`); jitter only where there is any."""
    ranks = [rank_parts(rank) for rank in report.ranks]
    titles = [title for title in ranks[0] if title != "jitter" or any(parts[title] for parts in ranks)]
    table = plain_table("rank", *titles, "memory")
    for rank, parts in zip(report.ranks, ranks, strict=True):
        cells = [tight(format_time(parts[title])) for title in titles]
        table.add_row(str(rank.rank), *cells, tight(format_bytes(rank.peak_memory_bytes)))
    return table


def simulation_legend(report: SimReport) -> list[str]:
    """What the columns of :func:`simulation_table` are."""
    noisy = any(rank.jitter_ns for rank in report.ranks)
    return [RANKS_LEGEND + (f"; {JITTER_LEGEND}" if noisy else "")]


def causes_table(comparison: Comparison) -> Table:
    """Where a rank's simulated step goes, the mean over ranks."""
    table = plain_table("policy", "compute", "calls", "wait", "ex-\nchange", "gath-\ners", "slow-\ndown", "other")
    for row in comparison.rows:
        if row.causes is None:
            continue
        c = row.causes
        wait, other = c.wait_ns + c.idle_ns, c.optimizer_ns + c.jitter_ns
        parts = (c.compute_ns, c.calls_ns, wait, c.exchange_ns, c.gather_ns, c.slowdown_ns, other)
        table.add_row(row.policy, *(tight(format_time(part)) for part in parts))
    return table


def paired_table(comparison: Comparison) -> Table:
    """Means with their intervals, and every policy against the best, pair by pair."""
    table = plain_table("policy", "mean\nstep", "95 %\nof it", "longer\nthan best", "95 %\nof it", "best\nwins")
    for row in comparison.rows:
        if row.interval_ns is None:
            continue
        mean = row.interval_ns
        cells = [tight(format_time(round(mean.mean))), _interval_cell(mean.mean, mean.low, mean.high)]
        if row.paired is None:
            cells += ["-", "-", "-"]
        else:
            ratio = row.paired.ratio
            span = f"{100 * (ratio.low - 1):.2f}..{100 * (ratio.high - 1):.2f}%"
            cells += [f"{100 * (ratio.mean - 1):.2f}%", span, f"{100 * row.paired.win_rate:.0f}%"]
        table.add_row(row.policy, *cells)
    return table


def _interval_cell(mean: float, low: float, high: float) -> str:
    return f"{100 * (low / mean - 1):+.2f}..{100 * (high / mean - 1):+.2f}%" if mean else "-"


def additivity_tables(comparison: Comparison) -> Iterator[tuple[str, Table]]:
    """Sums against events against shared links, and the difference of the first two by cause."""
    steps = plain_table("policy", "prices", "sums", "", "events", "", "shared\nlinks", "")
    causes = plain_table("policy", *CAUSE_TITLES)
    for row in comparison.rows:
        if row.additivity is None:
            continue
        one = row.additivity
        steps.add_row(row.policy, tight(format_time(row.plan_ns or 0)), *step_cells(one, row.plan_ns or 0))
        causes.add_row(row.policy, *cause_cells(one))
    yield "a step by the plan's prices, the sums of the program's operations, events, and shared links", steps
    yield "events minus sums by cause, in % of the sums", causes


CAUSE_TITLES = (
    "wait",
    "ex-\nchange",
    "gath-\ners",
    "slow-\ndown",
    "launch\nhost",
    "opti-\nmizer",
    "later\nrank",
    "rest",
)


def step_cells(one: Additivity, plan_ns: int) -> list[str]:
    """Three steps, each with what it is more than the one before."""
    flow = one.simulated_ns + one.contention_ns
    return [
        tight(format_time(one.additive_ns)),
        f"{100 * (one.additive_ns / plan_ns - 1):+.2f}%" if plan_ns else "-",
        tight(format_time(one.simulated_ns)),
        f"{100 * (one.ratio - 1):+.2f}%",
        tight(format_time(flow)),
        f"{100 * (flow / one.simulated_ns - 1):+.2f}%",
    ]


def cause_cells(one: Additivity) -> list[str]:
    """The causes in per cent of the additive step; jitter is never among them."""
    parts = (
        one.wait_ns, one.exchange_ns, one.gather_ns + one.reduce_ns, one.slowdown_ns, one.calls_ns, one.optimizer_ns,
        one.later_ns, one.unexplained_ns,
    )  # fmt: skip
    return [f"{100 * part / one.additive_ns:+.2f}" if part else "0" for part in parts]


def additivity_table(one: Additivity) -> Table:
    """The causes of one plan's difference, a line each."""
    table = plain_table("cause", "time", "of the sums")
    named = (
        ("sums", one.additive_ns), ("wait for partners", one.wait_ns), ("exposed exchange", one.exchange_ns),
        ("exposed gathers", one.gather_ns), ("exposed reductions", one.reduce_ns),
        ("overlap slow-down", one.slowdown_ns), ("launch and host", one.calls_ns), ("optimizer", one.optimizer_ns),
        ("another rank is later", one.later_ns), ("unexplained", one.unexplained_ns), ("events", one.simulated_ns),
        ("shared links", one.contention_ns), ("flow", one.simulated_ns + one.contention_ns),
    )  # fmt: skip
    for name, part in named:
        table.add_row(name, tight(format_time(part)), f"{100 * part / one.additive_ns:+.2f}%")
    return table


def summary_lines(report: SimReport, summary: Summary) -> list[str]:
    """Replicas of a noisy step."""
    mean = summary.mean_ns
    return [
        f"{count_of(summary.replicas, 'replica')}: mean step {format_time(round(mean.mean))}"
        f" (95 %: {format_time(round(mean.low))} to {format_time(round(mean.high))}),"
        f" standard deviation {format_time(round(summary.stdev_ns))},"
        f" {format_time(summary.least_ns)} to {format_time(summary.most_ns)}",
        f"the table is of the first, {format_time(report.step_time_ns)}",
    ]


def sensitivity_table(result: Sensitivity) -> Table:
    """One row a knob: the gain of the moldable plan at half to one and a half of its value, and the flip."""
    table = plain_table("knob", "now", "x0.5", "x0.9", "x1.1", "x1.5", "flips at")
    for effect in result.effects:
        gains = [f"{100 * point.gain:.1f}%" if point.gain is not None else "-" for point in effect.points]
        table.add_row(effect.knob, f"{_number(effect.present)}{effect.unit}", *gains, _flip_cell(effect))
    return table


def _flip_cell(effect: Effect) -> str:
    flip = effect.flip
    if flip.value is None:
        return "-"
    return f"{'<' if flip.value < flip.present else '>'}{_number(flip.value)}{flip.unit}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def sensitivity_lines(result: Sensitivity) -> list[str]:
    """What stands above the table, and the flips in words."""
    present = result.present
    gain = f"{100 * present.gain:.1f} %" if present.gain is not None else "-"
    lines = [
        f"{result.cluster}, {result.model}, fidelity {result.fidelity}: {present.verdict};"
        f" {present.best} is best, placement gains {gain}; the gain with one constant changed:"
    ]
    for effect in result.effects:
        flip = effect.flip
        if flip.value is not None:
            below = flip.value < flip.present
            lines.append(
                f"the verdict flips at {flip.knob} {'<' if below else '>'} {_number(flip.value)} {flip.unit}"
                f" (now {_number(flip.present)}): {flip.below if below else flip.above}"
            )
    if len(lines) == 1:
        lines.append("no single constant flips the verdict between an eighth and eight times its value")
    if result.skipped:
        lines.append(f"one node has no {' or '.join(result.skipped)}")
    return lines
