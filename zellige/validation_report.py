"""Validation and profiles as text and tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from zellige.cluster import LINK_OPS
from zellige.prices import PriceTable
from zellige.profile.profiler import Progress
from zellige.units import count_of, format_percent, format_time
from zellige.validate import ModelReport, PairRow, SetupReport

if TYPE_CHECKING:
    from zellige.interference import Residual
    from zellige.measuring import AnalyticErrors
    from zellige.profile.estimate import ProfileEstimate


def _percent(fraction: float) -> str:
    return format_percent(fraction, 1)


def _signed(fraction: float) -> str:
    return format_percent(fraction, 1, signed=True)


def profile_lines(table: PriceTable, done: Progress, path: str) -> list[str]:
    """What a profile measured and how well it fits."""
    calibration = table.header.calibration
    assert calibration is not None
    counts = {source: sum(row.price.source == source for row in table.rows) for source in table.sources}
    lines = [
        f"{len(table.rows)} prices written to {path}: " + ", ".join(f"{n} {source}" for source, n in counts.items()),
        f"{done.measured} probes measured now, {done.resumed} taken from the journal, {done.left} left to the fit;"
        f" {calibration.seconds:.0f} s of measuring",
        *table.header.assumptions,
    ]
    if done.throttled:
        slower = format_percent(done.drift, 0)
        lines.append(f"warning: this machine was up to {slower} slower than at first: shared, or throttled")
    return lines


def estimate_lines(result: ProfileEstimate) -> list[str]:
    """What a profile would measure and take, by bucket and in all."""
    core = sum(unit.core for unit in result.units)
    steps = f"{result.warm_ups} + {result.fewest} to {result.most} steps"
    lines = [
        f"{result.model} on one {result.device}: {count_of(len(result.units), 'probe')} for {result.cluster}, {steps}"
        f" each; {core} of them in any case"
    ]
    names: dict[str, list[str]] = {row.bucket: [] for row in result.buckets}
    for unit in result.units:
        bucket, _, rest = unit.unit.partition(":")
        names[bucket].append(rest.removesuffix("+0"))
    for row in result.buckets:
        lines.append(f"  {row.bucket}: {count_of(row.num_probes, 'probe')}, {format_time(row.time_ns)}")
        lines.append(f"    {' '.join(names[row.bucket])}")
    if result.link_ranks:
        lines.append(f"  links: {', '.join(LINK_OPS)} among {', '.join(map(str, result.link_ranks))} ranks")
    what = "minutes of a CPU core" if result.on_cpu else "GPU minutes"
    lines.append(f"about {result.time_ns / 60e9:.1f} {what}, estimated from {result.source} prices, links not counted")
    if result.on_cpu:
        lines.append("a core's analytic prices are an order of magnitude, and building a probe counts as well")
    return lines


def validation_lines(setup: SetupReport) -> list[str]:
    """The report of one cluster in sentences."""
    lines = [
        f"{setup.cluster}, {setup.model}: {len(setup.plans)} plans, none used to fit prices. Basis: {setup.basis}.",
        f"noise of a plan's steps {_percent(setup.noise)}; work took {setup.pace:.2f} times as long as in the profile",
    ]
    for model in setup.models:
        lines += _model_lines(model)
    lines.append(
        f"order by additive prices: {setup.certain} of {len(setup.pairs)} pairs are certain,"
        f" of these {setup.certain_right} in the measured order"
    )
    lines.append(
        "interference brings sums nearer to plans that it was not fitted on, and keeps their order"
        if setup.interference_helps
        else "interference brings sums no nearer to plans it was not fitted on, or upsets their order: leave it off"
    )
    if setup.policy_pairs:
        lines.append(
            "policies, how much longer the first takes than the second by the replay, and whether the order is sure:"
        )
        lines += _policy_lines(setup.policy_pairs)
    return lines


def _policy_lines(pairs: Sequence[PairRow]) -> list[str]:
    """A line for each two policies: by the replay, and what each model says of it."""
    by_names: dict[tuple[str, str], list[PairRow]] = {}
    for pair in pairs:
        by_names.setdefault((pair.first, pair.second), []).append(pair)
    return [
        f"    {second} over {first}: replayed {_signed(rows[0].measured - 1)}; "
        + "; ".join(f"{row.model} {_signed(row.predicted - 1)}, order {row.verdict}" for row in rows)
        for (first, second), rows in by_names.items()
    ]


def _model_lines(model: ModelReport) -> list[str]:
    order, replay = model.order, model.replay
    against = (
        f"{model.model}: makespan against replay {_percent(replay.mape.mean)}"
        f" [{_percent(replay.mape.low)}, {_percent(replay.mape.high)}]"
        f" (signed {_signed(replay.signed)}, worst {_percent(replay.worst)})"
    )
    if model.wall is not None:
        against += f", against the wall clock {_percent(model.wall.mape.mean)} (signed {_signed(model.wall.signed)})"
    lines = [
        against,
        f"    rank time {_percent(model.rank_time.mape.mean)} (signed {_signed(model.rank_time.signed)}),"
        f" memory {_percent(model.memory.mape.mean)} (signed {_signed(model.memory.signed)})",
        f"    order: tau {order.tau_clear.mean:.2f} [{order.tau_clear.low:.2f}, {order.tau_clear.high:.2f}] over"
        f" {order.clear_pairs} pairs that differ by more than {_percent(order.threshold)};"
        f" tau-b {order.kendall.mean:.2f}, Spearman {order.spearman.mean:.2f}, pairwise {_percent(order.pairwise)},"
        f" regret of the best {_percent(order.regret)}",
    ]
    if model.wall_order is not None:
        wall = model.wall_order
        lines.append(
            f"    order of the wall clock: tau {wall.tau_clear.mean:.2f} over {wall.clear_pairs} pairs that differ by"
            f" more than {_percent(wall.threshold)}, regret {_percent(wall.regret)}"
        )
    return [*lines, _residual_line("ranks", model.residual), _residual_line("steps", model.step_residual)]


def _residual_line(what: str, terms: Residual) -> str:
    return (
        f"    residual of {what}: {terms.per_split_ns / 1e6:+.3f} ms a split, {terms.per_sequence_ns / 1e6:+.3f} ms a"
        f" sequence, {terms.per_byte_ns:+.4f} ns a byte, {terms.per_chain_ns:+.3f} ns a ns of chain;"
        f" these explain {format_percent(terms.explained, 0)} of it"
    )


def validation_tables(setup: SetupReport) -> list[Any]:
    """A table of plans."""
    from zellige.report import plain_table, tight

    names = {"additive": "sum", "additive+interference": "sum+i", "event+interference": "event+i"}
    models = (names.get(model.model, model.model) for model in setup.models)
    table = plain_table("plan", "engine", "replay", "noise", "wall", *models)
    for plan in setup.plans:
        table.add_row(
            plan.label,
            {"per_sequence": "per_seq", "coalesced": "coal"}.get(plan.engine, plan.engine),
            format_time(plan.replay_ns),
            tight(_percent(plan.noise)),
            "-" if plan.wall_ns is None else format_time(plan.wall_ns),
            *(tight(_signed(plan.predicted_ns[model.model] / plan.replay_ns - 1)) for model in setup.models),
        )
    return [table]


def error_lines(errors: AnalyticErrors) -> list[str]:
    """Analytic against measured, by term."""
    lines = [f"{errors.table}, measured on {errors.machine}: analytic over measured"]
    for term in errors.terms:
        lines.append(f"  {term.term:14s} {term.ratio:7.2f}x  ({term.low:.2f}x to {term.high:.2f}x, {term.rows} prices)")
    lines += [f"  {note}" for note in errors.notes]
    lines.append(f"measuring took {errors.seconds / 60:.1f} minutes of this device")
    if errors.steps is None:
        lines.append("the analytic order of splits is as good as the measured one here: measuring gains no step time")
    else:
        lines.append(
            f"choosing splits by measured prices saves {format_time(errors.gain_ns)} a split sequence (mean over"
            f" buckets and degrees): measuring pays for itself after {errors.steps:,} such steps"
        )
    return lines
