"""Tables for people, of what the simulator says: causes, noise, additivity, sensitivity; nothing is computed here."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from zellige.compare import Comparison
from zellige.report import plain_table, tight
from zellige.sensitivity import Effect, Sensitivity
from zellige.sim import Additivity
from zellige.sim.results import SimReport
from zellige.sim.stats import Summary
from zellige.units import format_time


def causes_table(comparison: Comparison) -> Table:
    """Where a rank's simulated step goes, the mean over ranks."""
    table = plain_table("policy", "compute", "calls", "wait", "ex-\nchange", "gath-\ners", "slow-\ndown", "other")
    for row in comparison.rows:
        if row.causes is None:
            continue
        c = row.causes
        other = c.optimizer_ns + c.jitter_ns + c.idle_ns
        parts = (c.compute_ns, c.calls_ns, c.wait_ns, c.exchange_ns, c.gather_ns, c.slowdown_ns, other)
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
        f"{summary.replicas} replicas: mean step {format_time(round(mean.mean))}"
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
