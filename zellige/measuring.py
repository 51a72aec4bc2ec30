"""What the measuring commands do: find the setting, measure a table, run plans, compare, and put analytic beside it."""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec

from zellige.analytic import analytic_table
from zellige.calibration import Calibration, HostInfo
from zellige.catalog import load_cluster, load_model
from zellige.errors import ModelMismatchError, UsageError
from zellige.files import make_folder, readable_json, write_text
from zellige.memory import Checkpoint
from zellige.op_terms import KEPT
from zellige.outcomes import NO_PLAN
from zellige.placement import Plan, Problem
from zellige.plan import find_policy
from zellige.predictions import interference_table
from zellige.prices import PriceTable, read_table, stamped
from zellige.profile.communication import link_groups, link_result
from zellige.profile.compute import host_info, probe_measure
from zellige.profile.estimate import is_cpu
from zellige.profile.grid import probes
from zellige.profile.host import available_cores
from zellige.profile.profiler import Budget, Progress, profile
from zellige.profile.table import Setting
from zellige.recorded_runs import read_runs, recorded_cluster
from zellige.shards import WIRE_BYTES
from zellige.sources import Options, batches_of, build_problem, read_source
from zellige.trials import How, Runs, run_plans
from zellige.units import format_percent
from zellige.validate import SetupReport, Validation, validate
from zellige.validation_plans import POLICIES, corners, crowded, policy_plans, rotation, suite_batch
from zellige.workload import Batch, make_bucket, parse_shape

SUITE = "suite"
CPU_CLUSTERS = (("cpux2", 2), ("cpux4", 4), ("cpux8", 8))
"""Bundled clusters of processes of this machine, and their ranks."""

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


def own_device(setting: Setting) -> DeviceName:
    """What measures a cluster unless somebody says otherwise: a core for a cluster of cores, else a GPU."""
    return "cpu" if is_cpu(setting.cluster.device.name) else "cuda"


def measured_link_ranks(setting: Setting, device: DeviceName) -> tuple[int, ...]:
    """How many ranks exchange when links are measured; none on a GPU, whose links stay the cluster's own."""
    ranks = setting.cluster.num_ranks
    return link_groups(ranks) if ranks > 1 and device == "cpu" else ()


def measure_table(
    wanted: MeasuringSetting,
    out: Path,
    *,
    device: DeviceName,
    seconds: float,
    links: bool,
    alone: bool = False,
    end_to_end: bool = False,
    advance: Callable[[], None] = lambda: None,
) -> tuple[PriceTable, Progress]:
    """Measure a table; links need gloo ranks of this machine and are left as they are on a GPU.

    ``alone``: one rank measures, even where each of the cluster's would have a core.
    """
    setting: Setting = wanted.setting
    dtype: Literal["fp32", "bf16"] = "fp32" if device == "cpu" else "bf16"
    host = host_info(device)
    ranks = setting.cluster.num_ranks
    together = 1 if alone else ranks_together(setting, device, host)
    with probe_measure(setting.model, setting.checkpoint, device, dtype, together) as measure:
        return profile(
            setting,
            out,
            host=host,
            device=device,
            dtype=dtype,
            measure=measure,
            links=(lambda: link_result(ranks)) if links and measured_link_ranks(setting, device) else None,
            budget=Budget(seconds=seconds),
            together=together,
            end_to_end=end_to_end,
            advance=advance,
        )


def ranks_together(setting: Setting, device: DeviceName, host: HostInfo) -> int:
    """How many ranks measure beside each other: all of a cluster's where each has a core, else one alone."""
    ranks = setting.cluster.num_ranks
    return ranks if device == "cpu" and ranks <= host.cores else 1


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What to validate, as the command line says it."""

    batch: str = SUITE
    prices: str = ""
    clusters: tuple[str, ...] = ("cpux2",)
    model: str = "tiny-dit"
    device: DeviceName = "cpu"
    alone: bool = False
    plans: int = 18
    policies: tuple[str, ...] = POLICIES
    repeats: int = 4
    seconds: float = 39.0
    measured: str = ""
    save: Path | None = None
    at_pace: bool = True
    interference: Path | None = None


def run_validation(wanted: Wanted, report: Report, say: Callable[[str], None]) -> Validation:
    """Measure what is missing, run the plans of every cluster, and compare; runs that are there need their table."""
    began = time.monotonic()
    _refuse_at_once(wanted)
    with tempfile.TemporaryDirectory(prefix="zellige-validate-") as scratch:
        folder = wanted.save or Path(scratch)
        make_folder(folder)
        setups = tuple(_setup(name, wanted, folder, report, say) for name in _clusters(wanted))
    return Validation(setups=setups, seconds=time.monotonic() - began)


def _clusters(wanted: Wanted) -> tuple[str, ...]:
    """Whose plans are compared: those that are named, or the recorded one, or the one that has a core for each rank."""
    if wanted.clusters:
        return wanted.clusters
    return (recorded_cluster(wanted.measured) if wanted.measured else local_cluster(available_cores()),)


def _refuse_at_once(wanted: Wanted) -> None:
    """Raise :class:`UsageError` for what is known to be wrong before minutes of measuring.

    :class:`MissingExtraError` where runs need torch or a device that is not here.
    """
    for name in wanted.policies:
        find_policy(name)
    for option, values in (("--policy", wanted.policies), ("--cluster", wanted.clusters)):
        for value, count in Counter(values).items():
            if count > 1:
                raise UsageError(f"{option} {value} is given {count} times", fix=f"each {option} once")
    if not wanted.measured:
        host_info(wanted.device)
        return
    if not wanted.prices:
        raise UsageError(
            f"--measured {wanted.measured} says what ran, and not by which prices to predict it",
            fix="--prices with the table beside it (--save DIR keeps both)",
        )
    for field in ("plans", "policies", "repeats", "alone", "device", "seconds", "save"):
        if getattr(wanted, field) != getattr(Wanted(), field):
            option = {"policies": "policy", "seconds": "minutes"}.get(field, field)
            raise UsageError(f"--{option} says how plans run, and --measured runs none", fix=f"leave --{option} out")


def _setup(cluster: str, wanted: Wanted, folder: Path, report: Report, say: Callable[[str], None]) -> SetupReport:
    batch, _, model = find_batch(wanted.batch, wanted.model, report)
    table = _table(cluster, batch, model, wanted, folder, say)
    problem = build_problem(batch, cluster=cluster, model=model, prices=table, checkpoint=table.header.checkpoint)
    runs = _runs(cluster, problem, wanted, folder, say)
    found = validate(runs, problem, at_pace=wanted.at_pace)
    if wanted.interference is not None:
        write_text(wanted.interference, readable_json(stamped(interference_table(table, runs, problem))))
        if not found.interference_helps:
            say(f"warning: {cluster}: interference does not help on plans that it was not fitted on; it was written")
    return found


def _table(
    cluster: str, batch: Batch, model: str, wanted: Wanted, folder: Path, say: Callable[[str], None]
) -> PriceTable:
    """The given table, which must be of this machine, or one that is measured now."""
    if wanted.prices:
        table = read_table(wanted.prices)
        if table.digest:
            say(f"warning: {wanted.prices}: this table is {table.digest}, no program wrote it as it is")
        if not wanted.measured:
            require_here(table, host_info(wanted.device), wanted.prices)
        return table
    setting = Setting(load_model(model), load_cluster(cluster), batch.buckets, "full")
    say(f"{cluster}: measuring prices for at most about {wanted.seconds:.0f} s")
    told = MeasuringSetting(setting=setting, num_probes=0)
    out = folder / f"{cluster}.prices.json"
    table, done = measure_table(told, out, device=wanted.device, seconds=wanted.seconds, links=True, alone=wanted.alone)
    write_text(out, readable_json(stamped(table)))
    if done.throttled:
        slower = format_percent(done.drift, 0)
        say(f"warning: this machine was up to {slower} slower than at first: others use it, or it throttles")
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
        return read_runs(wanted.measured, problem)
    plans = suite_plans(problem, wanted.plans, wanted.policies, say)
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


def suite_plans(
    problem: Problem, count: int, policies: tuple[str, ...], say: Callable[[str], None] = lambda _: None
) -> list[tuple[str, Plan]]:
    """The rotation, the corners, the crowded plans, and policies' own; says which policies have no plan."""
    plans = corners(problem)
    if any(sequence.bucket.is_video for sequence in problem.batch.sequences):
        plans = [*rotation(problem, count), *plans, *crowded(problem)]
    for name in policies:
        try:
            plans += policy_plans(problem, (name,))
        except NO_PLAN as error:
            say(f"{name} has no plan for this batch: {error.message}")
    return plans


def local_cluster(cores: int) -> str:
    """The largest bundled cluster of CPU ranks that so many cores have one for each rank of; the least if none."""
    return max((name for name, ranks in CPU_CLUSTERS if ranks <= cores), default=CPU_CLUSTERS[0][0])


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
    notes: tuple[str, ...] = ()


def analytic_errors(path: str, name: str = "") -> AnalyticErrors:
    """Put the formulas with the catalog's constants beside a measured table, of cluster or device ``name`` if given."""
    table = read_table(path)
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
        notes=_memory_notes(calibration),
    )


def _memory_notes(calibration: Calibration) -> tuple[str, ...]:
    """Why kept and live bytes are not what formulas say: the width of an element, and what is outside of the layers."""
    law = calibration.law(KEPT)
    if law is None:
        return ()
    width = {"fp64": 8, "fp32": 4, "bf16": 2}[calibration.dtype]
    outside = (law.per_unit.get(term, 0.0) for term in ("tokens", "entries"))
    return (
        f"bytes: formulas count {WIRE_BYTES} an element (bf16), this table {width} ({calibration.dtype})",
        "kept_bytes: formulas count what layers keep; embeddings and head keep {:,.0f} bytes a token and {:,.0f} a"
        " sequence besides, once, whatever the depth (layers: {:,.0f} a token each)".format(
            *outside, law.per_unit.get("layer_tokens", 0.0)
        ),
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
