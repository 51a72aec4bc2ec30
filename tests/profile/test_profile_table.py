from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle.made_measurements import HOST, TRUTH, made_measure, made_result, setting

from zellige.calibration import calibrated
from zellige.catalog import load_cluster
from zellige.cluster import LINK_OPS
from zellige.collectives import node_rate, provenance
from zellige.errors import BadTimingError, FormatError, ModelMismatchError, TimeLimitError, UsageError
from zellige.files import canonical_json, decode_json
from zellige.measuring import require_here
from zellige.op_terms import OUTSIDE
from zellige.prices import PriceTable, check_table, legal_configs
from zellige.profile.compute import Measure
from zellige.profile.estimate import estimate_profile, work_estimate
from zellige.profile.grid import PROBE_LAYERS, Probe, core, probe_program, probes, required
from zellige.profile.journal import Journal, JournalHeader, journal_path
from zellige.profile.profiler import Budget, profile
from zellige.profile.table import Setting, operations, without_wire
from zellige.profile.timing import LinkResult, ProbeResult, Sample
from zellige.shards import WHOLE
from zellige.sim.state import GRADIENT_BYTES, PARAMETER_BYTES, state_traffic
from zellige.validation_report import estimate_lines
from zellige.workload import make_bucket


class Clock:
    """A clock that only measuring moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def moved(self, measure: Measure, seconds: Callable[[Probe], float] = lambda _: 1.0) -> Measure:
        """The same measurements, which take time: a second each, unless told otherwise."""

        def measured(probe: Probe) -> ProbeResult:
            self.now += seconds(probe)
            return msgspec.structs.replace(measure(probe), seconds=seconds(probe))

        return measured


def make(
    place: Setting,
    out: Path,
    units: float = math.inf,
    *,
    measure: Measure | None = None,
    links: Callable[[], LinkResult] | None = None,
    end_to_end: bool = False,
) -> PriceTable:
    """A table with time for so many units."""
    clock = Clock()
    table, _ = profile(
        place, out, host=HOST, device="cpu", dtype="fp32", measure=clock.moved(measure or made_measure(place)),
        links=links, budget=Budget(seconds=units, clock=clock), end_to_end=end_to_end,
    )  # fmt: skip
    return table


def core_only(place: Setting) -> int:
    return len(core(*place[:3]))


def true_ns(place: Setting, probe: Probe) -> float:
    """What a sequence adds to a rank's step, by the true laws: everything but what sequences share."""
    program = probe_program(probe, place.model, "full")
    total = 0.0
    for key, terms in operations(program, probe.rank):
        work = sum(TRUTH[term] * count for term, count in terms.items() if term not in ("calls", "operations"))
        total += work * (1 if key == OUTSIDE else place.model.geometry.num_layers)
    return total


def test_prices_are_what_a_sequence_adds(tmp_path: Path) -> None:
    place = setting()
    table = make(place, tmp_path / "t.json")
    check_table(table, place.model, place.cluster, "full", "t")
    assert len(table.rows) == len(place.buckets) * len(legal_configs(place.model, place.cluster))
    dry = without_wire(table, place.model, place.cluster)
    for row in dry.rows:
        bucket = next(b for b in place.buckets if b.name == row.bucket)
        assert row.price.packed_ns == pytest.approx(true_ns(place, Probe(bucket, row.config)), rel=2e-3)


def test_fitted_prices_agree_with_measured_ones_and_say_so(tmp_path: Path) -> None:
    place = setting("cpux4")
    everything = make(place, tmp_path / "a.json")
    fewest = make(place, tmp_path / "b.json", core_only(place))
    assert everything.sources == ("measured",)
    assert fewest.sources == ("fitted", "measured")
    alike = [probe for probe in core(*place[:3]) if probe.layers == PROBE_LAYERS and not probe.beside]
    measured = {(probe.bucket.name, probe.config) for probe in alike}
    for row, exact in zip(fewest.rows, everything.rows, strict=True):
        assert (row.price.source == "measured") == ((row.bucket, row.config) in measured)
        assert row.price.packed_ns == pytest.approx(exact.price.packed_ns, rel=0.02)
        assert row.price.kept_bytes == pytest.approx(exact.price.kept_bytes, rel=1e-6)
        assert row.price.live_bytes == pytest.approx(exact.price.live_bytes, rel=0.02)


def test_a_machine_that_drifts_gives_the_same_table(tmp_path: Path) -> None:
    place = setting()
    steady = make(place, tmp_path / "a.json")
    paces = (900, 1000, 1500)
    drifting = make(place, tmp_path / "b.json", measure=made_measure(place, lambda count: paces[count % 3]))
    assert drifting.header.calibration is not None
    assert drifting.header.calibration.drift > 0.4
    assert [r.price.packed_ns for r in drifting.rows] == pytest.approx(
        [r.price.packed_ns for r in steady.rows], rel=1e-3
    )


def test_a_killed_profile_resumes_and_loses_nothing(tmp_path: Path) -> None:
    place, out = setting(), tmp_path / "t.json"
    whole = make(place, tmp_path / "whole.json", links=made_links)
    done: list[str] = []

    def dies(probe: Probe) -> ProbeResult:
        if len(done) == len(probes(*place[:3])) - 3:
            raise KeyboardInterrupt
        done.append(probe.key)
        return made_result(place, probe)

    with pytest.raises(KeyboardInterrupt):
        make(place, out, measure=dies, links=made_links)
    journal = journal_path(out)
    with journal.open("ab") as file:
        file.write(b'{"probe":"half a li')
    again: list[str] = []

    def goes_on(probe: Probe) -> ProbeResult:
        again.append(probe.key)
        return made_result(place, probe)

    resumed = make(place, out, measure=goes_on, links=no_links)
    assert not set(done) & set(again)
    assert len(done) + len(again) == len(probes(*place[:3]))
    assert canonical_json(resumed) == canonical_json(whole)


def test_a_journal_of_something_else_is_refused_by_name(tmp_path: Path) -> None:
    place, out = setting(), tmp_path / "t.json"
    make(place, out)
    other = msgspec.structs.replace(HOST, torch="9.9")
    own = JournalHeader(host=HOST, model="tiny-dit", cluster="cpux2", device="cpu", dtype="fp32", checkpoint="full")
    Journal(journal_path(out), own).close()
    changes: tuple[dict[str, object], ...] = (
        {"model": "x"},
        {"host": other},
        {"checkpoint": "none"},
        {"device": "cuda"},
        {"together": 2},
    )
    for change, name in zip(changes, ("model", "torch", "checkpoint", "device", "together"), strict=True):
        header = msgspec.structs.replace(own, **change)
        with pytest.raises(ModelMismatchError, match=name):
            Journal(journal_path(out), header)
    journal_path(out).write_text("nonsense\n")
    with pytest.raises(FormatError, match="journal"):
        make(place, out)


def test_a_table_of_another_machine_is_refused_by_name(tmp_path: Path) -> None:
    table = make(setting(), tmp_path / "t.json")
    require_here(table, HOST, "t.json")
    for change in ({"machine": "there"}, {"torch": "1.0"}, {"zellige": "9"}, {"cores": 64}):
        with pytest.raises(ModelMismatchError, match=next(iter(change))):
            require_here(table, msgspec.structs.replace(HOST, **change), "t.json")


def test_a_table_reads_back_equal(tmp_path: Path) -> None:
    table = make(setting(), tmp_path / "t.json")
    assert decode_json(canonical_json(table).decode(), PriceTable, "t") == table


def test_no_wrong_time_enters_a_table(tmp_path: Path) -> None:
    place, out = setting(), tmp_path / "t.json"

    def broken(probe: Probe) -> ProbeResult:
        if probe.count > 1:
            raise BadTimingError("forward.whole0 took 0 nanoseconds")
        return made_result(place, probe)

    with pytest.raises(BadTimingError):
        make(place, out, measure=broken)
    assert not out.exists()
    assert "whole0 took" not in journal_path(out).read_text()


def test_end_to_end_tables_have_one_figure_and_price_no_program(tmp_path: Path) -> None:
    place = setting()
    table, parts = make(place, tmp_path / "e.json", end_to_end=True), make(place, tmp_path / "c.json")
    for one, several in zip(table.rows, parts.rows, strict=True):
        assert one.price.packed_ns == several.price.packed_ns + several.price.launch_ns
        assert one.price.attention_ns == one.price.exchange_ns == 0
    with pytest.raises(ModelMismatchError, match="end_to_end"):
        check_table(table, place.model, place.cluster, "full", "e")


def timed_profile(place: Setting, out: Path, seconds: float, per_unit: Callable[[Probe], float]) -> tuple[float, int]:
    """How long a profile took that was given so long, and how many probes it measured; -1 where it gave up."""
    clock, count = Clock(), 0

    def measure(probe: Probe) -> ProbeResult:
        nonlocal count
        count += 1
        return made_result(place, probe)

    try:
        profile(
            place, out, host=HOST, device="cpu", dtype="fp32", measure=clock.moved(measure, per_unit),
            links=None, budget=Budget(seconds=seconds, clock=clock),
        )  # fmt: skip
    except TimeLimitError:
        return clock.now, -1
    return clock.now, count


@settings(deadline=None, max_examples=12)
@given(st.floats(0.5, 400), st.lists(st.floats(0.01, 30), min_size=5, max_size=5), st.booleans())
def test_a_profile_overruns_by_one_unit_at_most(
    tmp_path_factory: pytest.TempPathFactory, seconds: float, durations: list[float], by_size: bool
) -> None:
    place = setting()

    def per_unit(probe: Probe) -> float:
        if by_size:
            return durations[0] + durations[1] * work_estimate(place, probe) / 1e9
        return durations[sum(map(ord, probe.key)) % 5]

    took, count = timed_profile(place, tmp_path_factory.mktemp("budget") / "t.json", seconds, per_unit)
    everything = sum(per_unit(probe) for probe in probes(*place[:3]))
    longest = max(per_unit(probe) for probe in probes(*place[:3]))
    assert took <= seconds + longest
    if everything <= seconds:
        assert count == len(probes(*place[:3]))
    if count == -1:
        assert took >= seconds


def test_what_is_expected_to_end_too_late_is_passed_over(tmp_path: Path) -> None:
    """With units as long as their work says, only the core can overrun; shorter ones fill the time that is left."""
    place = setting("cpux4")
    per_unit = {probe: 1e-3 + work_estimate(place, probe) / 1e9 for probe in probes(*place[:3])}
    first = sum(per_unit[probe] for probe in core(*place[:3]))
    everything = sum(per_unit.values())
    least = min(per_unit.values())
    seconds = first + 0.4 * (everything - first)
    took, count = timed_profile(place, tmp_path / "t.json", seconds, per_unit.__getitem__)
    assert took <= seconds + 1e-9
    assert len(core(*place[:3])) < count < len(per_unit)
    assert seconds - took < 20 * least


def test_a_core_that_was_not_finished_is_an_error_and_the_next_profile_goes_on(tmp_path: Path) -> None:
    place, out = setting(), tmp_path / "t.json"
    for _ in range(3):
        with pytest.raises(TimeLimitError, match="of the") as caught:
            make(place, out, units=4)
        assert "goes on" in caught.value.fix
        assert str(journal_path(out)) in caught.value.where
    table = make(place, out, units=3)
    assert table.header.calibration is not None
    assert canonical_json(table) == canonical_json(make(place, tmp_path / "once.json", units=core_only(place)))
    assert probes(*place[:3])[: core_only(place)] == core(*place[:3])


def test_the_core_is_as_small_on_every_cluster() -> None:
    for name in ("cpux2", "cpux4", "cpux8", "a800x8"):
        place = setting("cpux2")._replace(cluster=load_cluster(name))
        assert len(core(*place[:3])) == 15
    one = setting()._replace(buckets=setting().buckets[:1])
    assert {probe.config.degree for probe in core(*one[:3])} == {1, 2}


def test_an_estimate_lists_the_units_that_are_measured(tmp_path: Path) -> None:
    for cluster in ("cpux2", "cpux4"):
        place, out, measured = setting(cluster), tmp_path / f"{cluster}.json", list[str]()

        def measure(probe: Probe, place: Setting = place, measured: list[str] = measured) -> ProbeResult:
            measured.append(probe.key)
            return made_result(place, probe)

        make(place, out, measure=measure)
        told = estimate_profile(place, (2,))
        assert [unit.unit for unit in told.units] == measured
        assert [unit.unit for unit in told.units if unit.core] == [probe.key for probe in core(*place[:3])]
        assert sum(row.num_probes for row in told.buckets) == len(measured)
        assert sum(row.time_ns for row in told.buckets) == told.time_ns == sum(unit.time_ns for unit in told.units)
        assert all(4 <= unit.steps <= 8 for unit in told.units)
        text = "\n".join(estimate_lines(told))
        assert "minutes of a CPU core" in text
        assert "GPU" not in text
        assert "reduce_scatter" in text
    hopper = setting()._replace(cluster=load_cluster("h100x8"))
    assert "GPU minutes" in "\n".join(estimate_lines(estimate_profile(hopper, ())))


def made_links() -> LinkResult:
    samples = [
        Sample(
            key=f"{op}.{key}", terms={"calls": 1.0, "bytes": float(size)}, ns=far * (5000.0 + size / rate), spread=0.0
        )
        for op, rate in (("all_to_all", 2.0), ("all_gather", 4.0), ("reduce_scatter", 1.0), ("send_recv", 8.0))
        for key, far in (("2", 1.0), ("2.strided", 1.2))
        for size in (1024, 65536, 1 << 20)
    ]
    return LinkResult(num_ranks=4, samples=tuple(samples), seconds=3.0)


def no_links() -> LinkResult:
    raise AssertionError("links are in the journal")


def test_measured_links_price_exchanges_and_reductions(tmp_path: Path) -> None:
    place = setting("cpux4")
    table = make(place, tmp_path / "t.json", links=made_links)
    calibration = table.header.calibration
    assert calibration is not None
    assert {point.op for point in calibration.links} == set(LINK_OPS)
    assert calibration.link_strided == pytest.approx(1.2)
    assert calibration.link_ranks == 4
    assert calibration.shares_cores
    assert any("reduce_scatter" in line and "1.20 times" in line for line in table.header.assumptions)
    used = calibrated(place.cluster, calibration)
    assert provenance(used, "reduce_scatter", 2) == "measured"
    assert provenance(place.cluster, "reduce_scatter", 2) == "formula"
    rates = {op: node_rate(used, op, 2, 1 << 20) for op in ("all_gather", "reduce_scatter")}
    assert rates["all_gather"] == pytest.approx(4 * rates["reduce_scatter"], rel=0.02)
    # A step's gradient reduction in the simulator is priced by the reduce-scatters, its gathers by the all-gathers.
    traffic = state_traffic(place.model, used, "zero3")
    assert traffic.gather is not None
    per_byte = traffic.gather.transfer_ns / PARAMETER_BYTES, traffic.reduce.transfer_ns / GRADIENT_BYTES
    assert per_byte[1] == pytest.approx(4 * per_byte[0], rel=0.05)


def test_probes_cover_every_pair_once() -> None:
    place = setting("cpux4")
    wanted = probes(*place[:3])
    assert len(set(wanted)) == len(wanted)
    pairs = {(p.bucket, p.config) for p in wanted if p.count == 1 and p.is_plain and p.layers == PROBE_LAYERS}
    assert pairs == {(b, c) for b in place.buckets for c in legal_configs(place.model, place.cluster)}
    assert {p.config for p in required(*place[:3])} == set(legal_configs(place.model, place.cluster))
    assert len({p.key for p in wanted}) == len(wanted)
    assert any(p.config == WHOLE and p.count > 1 for p in wanted)
    assert any(p.beside and p.config.is_split for p in wanted)


def test_one_bucket_alone_is_priced_apart_from_its_calls(tmp_path: Path) -> None:
    place = setting()._replace(buckets=setting().buckets[-1:])
    dry = without_wire(make(place, tmp_path / "t.json", core_only(place)), place.model, place.cluster)
    whole = next(row.price for row in dry.rows if row.config == WHOLE)
    assert whole.packed_ns == pytest.approx(true_ns(place, Probe(place.buckets[0], WHOLE)), rel=0.05)


def test_a_batch_that_no_split_fits_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    place = setting()
    short = place._replace(buckets=(make_bucket(place.model, 16, 16, 1),))
    measured: list[Probe] = []

    def measure(probe: Probe) -> ProbeResult:
        measured.append(probe)
        return made_result(short, probe)

    with pytest.raises(UsageError, match="long enough"):
        make(short, tmp_path / "t.json", measure=measure)
    assert not measured
    assert not (tmp_path / "t.journal.jsonl").exists()
