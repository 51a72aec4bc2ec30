"""What the measuring commands do: find the setting, measure a table, run plans, compare, and put analytic beside it."""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec

from zellige.analytic import analytic_table
from zellige.calibration import HostInfo
from zellige.catalog import load_cluster, load_model
from zellige.cluster import LinkPoint
from zellige.errors import ModelMismatchError, UsageError
from zellige.files import decode_json, read_text, readable_json, write_text
from zellige.memory import Checkpoint
from zellige.placement import Plan, Problem
from zellige.prices import PriceTable
from zellige.profile.compute import host_info, probe_measure
from zellige.profile.grid import probes
from zellige.profile.profiler import Budget, Progress, profile
from zellige.profile.table import Setting
from zellige.sources import Options, batches_of, build_problem, read_source
from zellige.trials import How, Runs, run_plans
from zellige.validate import SetupReport, Validation, interference_table, validate
from zellige.validation_plans import corners, crowded, policy_plans, rotation, suite_batch
from zellige.workload import Batch, make_bucket, parse_shape

SUITE = "suite"
TERMS = ("linear_ns", "attention_ns", "recompute_ns", "exchange_ns", "launch_ns", "kept_bytes", "live_bytes")
"""Terms of a price that analytic and measured tables share."""

DeviceName = Literal["cpu", "cuda"]
Report = Callable[[Any, Any], None]


class MeasuringSetting(msgspec.Struct, frozen=True, kw_only=True):
    """What a profile is for, and how many probes there are."""

    setting: Any
    num_probes: int


def find_batch(argument: str, model: str, report: Report) -> tuple[Batch, str, str]:
    """A batch, and the cluster and model that it comes with; ``suite`` is the validation suite's own."""
    if argument == SUITE:
        name = model or "tiny-dit"
        return suite_batch(load_model(name)), "cpux8", name
    source = read_source(argument, Options(model=model))
    name = model or source.model
    if not name:
        raise UsageError(f"{source.label} does not say for which model", fix="--model tiny-dit")
    batch, drops = next(iter(batches_of(source, load_model(name), Options(model=name))))
    if drops:
        report(source, drops)
    return batch, source.cluster, name


def measuring_setting(
    argument: str, cluster: str, model: str, checkpoint: Checkpoint, report: Report
) -> MeasuringSetting:
    """The setting of a profile."""
    batch, own_cluster, name = find_batch(argument, model, report)
    if not (cluster or own_cluster):
        raise UsageError(f"{argument} does not say for which cluster", fix="--cluster cpux2")
    setting = Setting(load_model(name), load_cluster(cluster or own_cluster), batch.buckets, checkpoint)
    return MeasuringSetting(setting=setting, num_probes=len(probes(*setting[:3])))


def measure_table(
    wanted: MeasuringSetting,
    out: Path,
    *,
    device: DeviceName,
    seconds: float,
    links: bool,
    end_to_end: bool = False,
    advance: Callable[[], None] = lambda: None,
) -> tuple[PriceTable, Progress]:
    """Measure a table; links need gloo ranks of this machine and are left as they are on a GPU."""
    setting: Setting = wanted.setting
    dtype: Literal["fp32", "bf16"] = "fp32" if device == "cpu" else "bf16"
    host = host_info(device)
    ranks = setting.cluster.num_ranks
    return profile(
        setting,
        out,
        host=host,
        device=device,
        dtype=dtype,
        measure=probe_measure(setting.model, setting.checkpoint, device, dtype),
        links=lambda: node_links(ranks) if links and device == "cpu" and ranks > 1 else (),
        link_ranks=ranks,
        budget=Budget(seconds=seconds),
        end_to_end=end_to_end,
        advance=advance,
    )


def node_links(num_ranks: int) -> tuple[LinkPoint, ...]:
    """Fits of exchanges between processes of this machine."""
    from zellige.profile.communication import fit_links, measure_links, wire_samples

    return fit_links(wire_samples(measure_links(num_ranks))).points


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What to validate, as the command line says it."""

    batch: str = SUITE
    prices: str = ""
    clusters: tuple[str, ...] = ("cpux8", "cpux2")
    model: str = "tiny-dit"
    device: DeviceName = "cpu"
    alone: bool = False
    plans: int = 18
    policies: tuple[str, ...] = ()
    repeats: int = 3
    seconds: float = 30.0
    measured: str = ""
    save: Path | None = None
    at_pace: bool = True
    interference: Path | None = None


def run_validation(wanted: Wanted, report: Report, say: Callable[[str], None]) -> Validation:
    """Measure what is missing, run the plans of every cluster, and compare."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="zellige-validate-") as scratch:
        folder = wanted.save or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        setups = tuple(_setup(name, wanted, folder, report, say) for name in wanted.clusters)
    return Validation(setups=setups, seconds=time.monotonic() - began)


def _setup(cluster: str, wanted: Wanted, folder: Path, report: Report, say: Callable[[str], None]) -> SetupReport:
    batch, _, model = find_batch(wanted.batch, wanted.model, report)
    table = _table(cluster, batch, model, wanted, folder, say)
    problem = build_problem(batch, cluster=cluster, model=model, prices=table, checkpoint=table.header.checkpoint)
    runs = _runs(cluster, problem, wanted, folder, say)
    if wanted.interference is not None:
        write_text(wanted.interference, readable_json(interference_table(table, runs, problem)))
    return validate(runs, problem, at_pace=wanted.at_pace)


def _table(
    cluster: str, batch: Batch, model: str, wanted: Wanted, folder: Path, say: Callable[[str], None]
) -> PriceTable:
    """The given table, which must be of this machine, or one that is measured now."""
    if wanted.prices:
        table = decode_json(read_text(Path(wanted.prices)), PriceTable, wanted.prices)
        if not wanted.measured:
            require_here(table, host_info(wanted.device), wanted.prices)
        return table
    setting = Setting(load_model(model), load_cluster(cluster), batch.buckets, "full")
    say(f"{cluster}: measuring prices for at most about {wanted.seconds:.0f} s")
    told = MeasuringSetting(setting=setting, num_probes=0)
    out = folder / f"{cluster}.prices.json"
    table, done = measure_table(told, out, device=wanted.device, seconds=wanted.seconds, links=True)
    write_text(out, readable_json(table))
    if done.throttled:
        say(f"warning: this machine was up to {done.drift:.0%} slower than at first: others use it, or it throttles")
    return table


def require_here(table: PriceTable, host: HostInfo, where: str) -> None:
    """Refuse a table of another machine or version, by name: what runs here says nothing about it."""
    calibration = table.header.calibration
    if calibration is None:
        raise UsageError("this table was not measured", where=where, fix="zellige-sim profile measures one")
    found, wanted = msgspec.to_builtins(calibration.host), msgspec.to_builtins(host)
    for key in wanted:
        if found[key] != wanted[key]:
            raise ModelMismatchError(
                f"this table was measured with {key} {found[key]!r}, and here it is {wanted[key]!r}",
                where=where,
                fix="zellige-sim profile measures one here",
            )


def _runs(cluster: str, problem: Problem, wanted: Wanted, folder: Path, say: Callable[[str], None]) -> Runs:
    if wanted.measured:
        return decode_json(read_text(Path(wanted.measured)), Runs, wanted.measured)
    plans = suite_plans(problem, wanted.plans, wanted.policies)
    how: How = "alone" if wanted.alone or wanted.device == "cuda" else "ranks"
    say(f"{cluster}: running {len(plans)} plans, {1 + wanted.repeats} steps each")
    observed = run_plans(
        plans,
        lambda plan: dataclasses.replace(problem, engine=plan.engine),
        how=how,
        device=wanted.device,
        repeats=wanted.repeats,
    )
    runs = Runs(
        cluster=problem.cluster.name,
        model=problem.model.name,
        cores=host_info(wanted.device).cores,
        plans=tuple(plan for _, plan in plans),
        observed=tuple(observed),
    )
    write_text(folder / f"{cluster}.runs.json", readable_json(runs))
    return runs


def suite_plans(problem: Problem, count: int, policies: tuple[str, ...]) -> list[tuple[str, Plan]]:
    """The rotation, the corners, the crowded plans, and policies' own."""
    plans = corners(problem)
    if any(sequence.bucket.is_video for sequence in problem.batch.sequences):
        plans = [*rotation(problem, count), *plans, *crowded(problem)]
    return [*plans, *policy_plans(problem, policies)]


class TermError(msgspec.Struct, frozen=True, kw_only=True):
    """Analytic over measured of one term: the median over rows, the middle 80 %, and how many rows."""

    term: str
    rows: int
    ratio: float
    low: float
    high: float


class AnalyticErrors(msgspec.Struct, frozen=True, kw_only=True):
    """Analytic prices against a measured table, by term.

    ``seconds`` is what measuring took. ``gain_ns`` is how much longer a step takes where plans follow the analytic
    order of splits instead of the measured one (the mean over buckets, at degree 1 to all ranks): measuring pays for
    itself after ``steps`` steps, None where it gains nothing.
    """

    SCHEMA: ClassVar[str] = "zellige.analytic_errors/1"

    schema: str = "zellige.analytic_errors/1"
    table: str
    machine: str
    terms: tuple[TermError, ...]
    seconds: float
    gain_ns: int
    steps: int | None


def analytic_errors(path: str, name: str = "") -> AnalyticErrors:
    """Put the formulas with the catalog's constants beside a measured table, of cluster or device ``name`` if given."""
    table = decode_json(read_text(Path(path)), PriceTable, path)
    calibration = table.header.calibration
    if calibration is None:
        raise UsageError("this table was not measured", where=path, fix="zellige-sim profile measures one")
    if name not in ("", table.header.cluster, table.header.device, table.header.model):
        raise ModelMismatchError(
            f"this table is for {table.header.model} on {table.header.cluster}, not for {name!r}",
            where=path,
            fix=f"catalog show {table.header.cluster} --errors {path}",
        )
    model, cluster = load_model(table.header.model), load_cluster(table.header.cluster)
    shapes = {row.bucket: parse_shape(row.bucket) for row in table.rows}
    buckets = [make_bucket(model, width, height, frames or 1) for width, height, frames in shapes.values()]
    formulas = analytic_table(model, cluster, buckets, table.header.checkpoint).by_bucket()
    terms: dict[str, list[float]] = {}
    for row in table.rows:
        formula = formulas[row.bucket][row.config, row.num_nodes]
        for term in TERMS:
            found, said = getattr(row.price, term), getattr(formula, term)
            if found and said:
                terms.setdefault(term, []).append(said / found)
        terms.setdefault("all time", []).append(formula.packed_ns / row.price.packed_ns)
    gain = _gain(table, formulas)
    return AnalyticErrors(
        table=path,
        machine=calibration.host.machine,
        terms=tuple(_term_error(term, values) for term, values in terms.items()),
        seconds=calibration.seconds,
        gain_ns=gain,
        steps=None if gain <= 0 else max(1, round(calibration.seconds * 1e9 / gain)),
    )


def _term_error(term: str, ratios: list[float]) -> TermError:
    ordered = sorted(ratios)
    return TermError(
        term=term,
        rows=len(ordered),
        ratio=statistics.median(ordered),
        low=ordered[len(ordered) // 10],
        high=ordered[-1 - len(ordered) // 10],
    )


def _gain(table: PriceTable, formulas: Any) -> int:
    """The mean, over buckets and degrees, of measured time lost by choosing the analytic favourite."""
    lost = []
    for bucket, prices in table.by_bucket().items():
        for degree in sorted({config.degree for config, _ in prices}):
            same = [key for key in prices if key[0].degree == degree]
            chosen = min(same, key=lambda key: (formulas[bucket][key].packed_ns, key))
            best = min(prices[key].packed_ns for key in same)
            lost.append(prices[chosen].packed_ns - best)
    return round(statistics.fmean(lost)) if lost else 0
