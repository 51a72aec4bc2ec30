"""A price table from what was measured: a row for every bucket and split, which says if it was measured or fitted.

A sequence's price is what it adds to a rank's step: what its operations take, without the cost of the calls, which
sequences share. Of a pair that was measured, the operations' own times count, of the probe with the most sequences,
whose share of the calls is the least; of others their laws, in a stage as full as plans have. Calls of a sequence
alone are ``launch_ns``; what a packed exchange's calls cost is the calibration's ``call_us``, and what a step costs
whatever is in it, ``step_ns``. What travels is priced by the formulas with the measured links.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

import msgspec

from zellige.analytic import analytic_price
from zellige.calibration import Calibration, HostInfo, Law, calibrated
from zellige.cluster import Cluster
from zellige.errors import BadTimingError
from zellige.memory import Checkpoint
from zellige.model import ModelSpec
from zellige.op_terms import KEPT, LIVE, OUTSIDE, Terms, kept_terms, live_terms
from zellige.prices import Price, PriceHeader, PriceRow, PriceTable, footprints, legal_configs
from zellige.profile.communication import fit_links
from zellige.profile.fit import fit_laws
from zellige.profile.grid import PROBE_LAYERS, Probe, crowd, probe_program, probes
from zellige.profile.timing import LinkResult, ProbeResult, Sample, at_one_pace, drift, operation_jitter, operations
from zellige.shards import WHOLE, ParallelConfig
from zellige.units import format_percent
from zellige.workload import Bucket

FULL_PASSES, KEPT_PASSES = 4, 3
"""Forwards that a step's calls are counted in, with recomputation and without (:meth:`Problem.shared_calls_ns`)."""

STAGE_SHARE = 0.5
"""The largest stage's share of a rank's tokens, for prices, which add up: whole sequences run in two batches."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """All that a profile found out; links, where there are any, were measured on ``host.cores`` cores."""

    host: HostInfo
    device: Literal["cpu", "cuda"]
    dtype: Literal["fp64", "fp32", "bf16"]
    results: tuple[ProbeResult, ...]
    links: LinkResult | None = None
    together: int = 1


class Setting(NamedTuple):
    """What a table is for."""

    model: ModelSpec
    cluster: Cluster
    buckets: tuple[Bucket, ...]
    checkpoint: Checkpoint


class Parts(NamedTuple):
    """Nanoseconds of a sequence's step on the rank of its largest shard, by what they are spent on."""

    linear: float
    attention: float
    recompute: float
    copies: float
    calls: float

    @property
    def total(self) -> float:
        """All of it."""
        return sum(self)


def sequence_parts(setting: Setting, probe: Probe, laws: Mapping[str, Law], measured: ProbeResult | None) -> Parts:
    """What one sequence of a probe takes; from its samples where it was measured, else by the laws."""
    program = probe_program(probe, setting.model, setting.checkpoint)
    own = iter(measured.samples) if measured else None
    linear = attention = recompute = copies = calls = 0.0
    layers = setting.model.geometry.num_layers
    for key, terms in operations(program, probe.rank):
        law = _find(laws, key)
        times = 1 if key == OUTSIDE else layers
        call = _shared_ns(law, terms)
        whole_ns = law.of(terms) if own is None else _same(next(own), key).ns
        work = times * max(0.0, whole_ns - call) / probe.count
        if key == OUTSIDE:
            calls += law.of({"operations": layers / program.num_layers * terms.get("operations", 0.0)})
        elif not key.endswith(".whole"):
            calls += times * call
        phase, _, kind = key.partition(".")
        if kind.endswith("pack"):
            copies += work
        elif phase == "recompute":
            recompute += work
        elif kind == "attend":
            attention += work
        elif kind == "whole":
            share = law.per_unit.get("pairs", 0.0) * terms.get("pairs", 0.0) / max(law.of(terms) - call, 1e-9)
            attention += work * min(1.0, share)
            linear += work * (1 - min(1.0, share))
        else:
            linear += work
    return Parts(linear, attention, recompute, copies, calls)


def _shared_ns(law: Law, terms: Terms) -> float:
    """What an operation takes however many sequences are in it."""
    return law.of({term: terms.get(term, 0.0) for term in ("calls", "operations")})


def _find(laws: Mapping[str, Law], key: str) -> Law:
    if key not in laws:
        raise BadTimingError(f"nothing of {key} was measured", fix="profile for longer: --minutes")
    return laws[key]


def _same(sample: Sample, key: str) -> Sample:
    if sample.key != key:
        raise BadTimingError(f"a probe measured {sample.key} where its program has {key}", fix="remove the journal")
    return sample


def calibrate(setting: Setting, measured: Measured) -> Calibration:
    """The calibration of a machine from its probes."""
    laws = fit_laws(at_one_pace(measured.results))
    by_key = {law.key: law for law in laws}
    weights = measured.results[0].weight_bytes
    layers = probe_program(Probe(setting.buckets[0], WHOLE), setting.model, setting.checkpoint).num_layers
    scale = setting.model.num_parameters() / _probe_parameters(setting.model, layers)
    links = fit_links(measured.links.samples) if measured.links else None
    link_ranks = measured.links.num_ranks if measured.links else 1
    state = by_key[LIVE].per_unit.get("calls", 0.0) + by_key[KEPT].per_unit.get("calls", 0.0)
    return Calibration(
        host=measured.host,
        device=measured.device,
        dtype=measured.dtype,
        laws=laws,
        links=links.points if links else (),
        link_error=links.error if links else 0.0,
        link_strided=links.strided if links else 1.0,
        link_ranks=link_ranks,
        together=measured.together,
        jitter=operation_jitter(measured.results),
        shares_cores=measured.device == "cpu" and link_ranks > measured.host.cores,
        call_us=_call_us(setting, by_key),
        step_ns=_step_ns(setting, by_key),
        pace_ns=round(statistics.median(result.pace_ns for result in measured.results)),
        noise=statistics.median(result.spread for result in measured.results),
        drift=drift([result.pace_ns for result in measured.results]),
        seconds=sum(result.seconds for result in measured.results) + (measured.links.seconds if measured.links else 0),
        base_bytes=math.ceil(scale * (weights + state)),
        usable_bytes=setting.cluster.device.usable_bytes,
    )


def _probe_parameters(model: ModelSpec, layers: int) -> int:
    geometry = msgspec.structs.replace(model.geometry, num_layers=layers, num_single_layers=0)
    return msgspec.structs.replace(model, geometry=geometry).num_parameters()


def _call_us(setting: Setting, laws: Mapping[str, Law]) -> float:
    """What a packed exchange's calls cost a rank: the calls of a split sequence's layer, by exchange and forward.

    The engine's price has ``(rounds + 1)`` exchanges a forward, and their latency, which the links have, comes off.
    """
    passes = FULL_PASSES if setting.checkpoint == "full" else KEPT_PASSES
    found = []
    for config in legal_configs(setting.model, setting.cluster):
        program = probe_program(Probe(setting.buckets[0], config), setting.model, setting.checkpoint)
        keys = [key for key, _ in operations(program, config.degree - 1) if key != OUTSIDE]
        if config.is_split and all(key in laws for key in keys):
            total = sum(laws[key].per_unit.get("calls", 0.0) for key in keys)
            found.append(total / (passes * (config.k + 1)) / 1e3)
    return statistics.fmean(found) if found else 0.0


def _step_ns(setting: Setting, laws: Mapping[str, Law]) -> int:
    """What a rank's step takes whatever is in it: the outside, and the calls of its batches of whole sequences.

    As in a plan with splits: two batches, and a group's operations without ring rounds.
    """
    splits = [config for config in legal_configs(setting.model, setting.cluster) if config.is_split and config.k == 1]
    probe = Probe(setting.buckets[0], splits[-1] if splits else WHOLE, 1, 2)
    program = probe_program(probe, setting.model, setting.checkpoint)
    layers = setting.model.geometry.num_layers
    total = 0.0
    for key, terms in operations(program, probe.rank):
        if key == OUTSIDE:
            more = layers / program.num_layers
            total += _shared_ns(laws[key], {"calls": 1.0, "operations": more * terms.get("operations", 0.0)})
        elif key.endswith(".whole"):
            total += layers * _shared_ns(laws[key], terms)
    return math.ceil(total)


def price_table(setting: Setting, measured: Measured, *, end_to_end: bool = False) -> PriceTable:
    """The table; ``end_to_end`` has a step's whole time in one figure, as the paper measures it."""
    calibration = calibrate(setting, measured)
    known = {result.probe: result for result in at_one_pace(measured.results)}
    rows = tuple(_rows(setting, calibration, known, end_to_end))
    header = PriceHeader(
        kind="end_to_end" if end_to_end else "components",
        model=setting.model.name,
        cluster=setting.cluster.name,
        device=setting.cluster.device.name,
        dtype=measured.dtype,
        checkpoint=setting.checkpoint,
        assumptions=_notes(calibration),
        calibration=calibration,
    )
    return PriceTable(header=header, rows=rows)


def _rows(
    setting: Setting, calibration: Calibration, known: Mapping[str, ProbeResult], end_to_end: bool
) -> Iterable[PriceRow]:
    laws = {law.key: law for law in calibration.laws}
    longest = max(bucket.num_tokens for bucket in setting.buckets)
    tried = [probe for probe in probes(*setting[:3]) if probe.key in known and probe.is_plain]
    alike = [probe for probe in tried if probe.layers == PROBE_LAYERS]
    most_of = {(probe.bucket, probe.config): probe for probe in sorted(alike, key=lambda probe: probe.count)}
    for bucket in setting.buckets:
        for config in legal_configs(setting.model, setting.cluster):
            probe = most_of.get((bucket, config), Probe(bucket, config, crowd(bucket, longest)))
            measured = known.get(probe.key)
            parts = sequence_parts(setting, probe, laws, measured)
            for nodes in footprints(setting.cluster, config.degree):
                price = _price(setting, calibration, bucket, config, nodes, parts, laws)
                price = msgspec.structs.replace(price, source="measured" if measured else "fitted")
                if end_to_end:
                    price = _in_one(price)
                yield PriceRow(
                    bucket=bucket.name, num_tokens=bucket.num_tokens, config=config, num_nodes=nodes, price=price
                )


def _in_one(price: Price) -> Price:
    return msgspec.structs.replace(
        price,
        linear_ns=price.packed_ns + price.launch_ns,
        attention_ns=0, exchange_ns=0, packed_exchange_ns=None, launch_ns=0, recompute_ns=0,
    )  # fmt: skip


def _price(
    setting: Setting,
    calibration: Calibration,
    bucket: Bucket,
    config: ParallelConfig,
    nodes: int,
    parts: Parts,
    laws: Mapping[str, Law],
) -> Price:
    cluster = calibrated(setting.cluster, calibration)
    formula = analytic_price(setting.model, cluster, bucket.num_tokens, config, nodes, setting.checkpoint)
    program = probe_program(Probe(bucket, config), setting.model, setting.checkpoint)
    layers = setting.model.geometry.num_layers
    kept = {**kept_terms(program, config.degree - 1, layers), "calls": 0.0}
    live = {**live_terms(program, config.degree - 1), "calls": 0.0}
    live["stage_tokens"] *= STAGE_SHARE
    packed = formula.exchange_ns if formula.packed_exchange_ns is None else formula.packed_exchange_ns
    return Price(
        linear_ns=max(1, round(parts.linear)),
        attention_ns=round(parts.attention),
        recompute_ns=round(parts.recompute),
        exchange_ns=formula.exchange_ns + round(parts.copies),
        packed_exchange_ns=packed + round(parts.copies),
        launch_ns=round(parts.calls) if config.is_split else 0,
        kept_bytes=round(laws[KEPT].of(kept)),
        live_bytes=round(laws[LIVE].of(live)),
        comm_bytes=formula.comm_bytes,
        source="fitted",
    )


def _notes(calibration: Calibration) -> tuple[str, ...]:
    host = calibration.host
    timed = [law for law in calibration.laws if not law.key.startswith("memory")]
    worst = max(timed, key=lambda law: law.error)
    links = "links not measured"
    if calibration.links:
        ops = ", ".join(sorted({point.op for point in calibration.links}))
        links = (
            f"links measured with {calibration.link_ranks} ranks ({ops}); fits predict left-out sizes within"
            f" {format_percent(calibration.link_error, 0)}, strided ranks take {calibration.link_strided:.2f} times"
            " contiguous ones"
        )
    median = statistics.median(law.error for law in timed)
    return (
        f"measured on {host.machine} ({host.processor}, {host.cores} cores), torch {host.torch}, {calibration.dtype},"
        + (" one rank alone" if calibration.together == 1 else f" {calibration.together} ranks beside each other"),
        f"laws predict left-out probes within {format_percent(median, 1)} (median; worst {worst.key}:"
        f" {format_percent(worst.error, 1)}); repeats spread by {format_percent(calibration.noise, 1)}",
        links + (", which share cores: no measure of a link" if calibration.shares_cores else ""),
        "gradient reduction and optimizer are the same for every plan and are not in the prices",
    )


def without_wire(table: PriceTable, model: ModelSpec, cluster: Cluster) -> PriceTable:
    """The table without what travels: exchanges keep what they cost a rank itself (packing, unpacking)."""
    calibration = table.header.calibration
    used = cluster if calibration is None else calibrated(cluster, calibration)
    rows = []
    for row in table.rows:
        formula = analytic_price(model, used, row.num_tokens, row.config, row.num_nodes, table.header.checkpoint)
        packed = formula.exchange_ns if formula.packed_exchange_ns is None else formula.packed_exchange_ns
        own = row.price.exchange_ns if row.price.packed_exchange_ns is None else row.price.packed_exchange_ns
        price = msgspec.structs.replace(
            row.price,
            exchange_ns=max(0, row.price.exchange_ns - formula.exchange_ns),
            packed_exchange_ns=max(0, own - packed),
        )
        rows.append(msgspec.structs.replace(row, price=price))
    return msgspec.structs.replace(table, rows=tuple(rows))
