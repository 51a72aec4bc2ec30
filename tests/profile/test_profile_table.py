from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from oracle.made_measurements import HOST, TRUTH, made_measure, made_result, setting

from zellige.errors import BadTimingError, FormatError, ModelMismatchError
from zellige.files import canonical_json, decode_json
from zellige.measuring import require_here
from zellige.op_terms import OUTSIDE
from zellige.prices import PriceTable, check_table, legal_configs
from zellige.profile.grid import Probe, probe_program, probes, required
from zellige.profile.journal import Journal, JournalHeader, journal_path
from zellige.profile.profiler import Budget, measure_probes, profile
from zellige.profile.table import Setting, operations, without_wire
from zellige.profile.timing import ProbeResult
from zellige.shards import WHOLE


class Clock:
    """A clock that moves by a second whenever somebody looks."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def make(place: Setting, out: Path, seconds: float = 1e9, **more: object) -> PriceTable:
    budget = Budget(seconds=seconds, clock=Clock())
    table, _ = profile(
        place, out, host=HOST, device="cpu", dtype="fp32", measure=more.pop("measure", made_measure(place)),  # type: ignore[arg-type]
        links=lambda: (), link_ranks=1, budget=budget, **more,  # type: ignore[arg-type]
    )  # fmt: skip
    return table


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
    place = setting("cpux8")
    everything = make(place, tmp_path / "a.json")
    fewest = make(place, tmp_path / "b.json", seconds=0.0)
    assert everything.sources == ("measured",)
    assert fewest.sources == ("fitted", "measured")
    measured = {probe.key for probe in required(*place[:3])}
    for row, exact in zip(fewest.rows, everything.rows, strict=True):
        bucket = next(b for b in place.buckets if b.name == row.bucket)
        assert (row.price.source == "measured") == (Probe(bucket, row.config).key in measured)
        assert row.price.packed_ns == pytest.approx(exact.price.packed_ns, rel=0.02)
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
    whole = make(place, tmp_path / "whole.json")
    done: list[str] = []

    def dies(probe: Probe) -> ProbeResult:
        if len(done) == 7:
            raise KeyboardInterrupt
        done.append(probe.key)
        return made_result(place, probe)

    with pytest.raises(KeyboardInterrupt):
        make(place, out, measure=dies)
    journal = journal_path(out)
    with journal.open("ab") as file:
        file.write(b'{"probe":"half a li')
    again: list[str] = []

    def goes_on(probe: Probe) -> ProbeResult:
        again.append(probe.key)
        return made_result(place, probe)

    resumed = make(place, out, measure=goes_on)
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
    )
    for change, name in zip(changes, ("model", "torch", "checkpoint", "device"), strict=True):
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


def test_the_budget_cuts_what_can_be_fitted(tmp_path: Path) -> None:
    place = setting("cpux8")
    wanted, needed = probes(*place[:3]), required(*place[:3])
    header = JournalHeader(host=HOST, model="m", cluster="c", device="cpu", dtype="fp32", checkpoint="full")
    journal = Journal(tmp_path / "j", header)
    results, progress = measure_probes(wanted, needed, journal, made_measure(place), Budget(seconds=5, clock=Clock()))
    journal.close()
    assert len(results) == progress.measured == len(needed)
    assert progress.left == len(wanted) - len(needed) > 0
    assert wanted[: len(needed)] == needed


def test_probes_cover_every_pair_once() -> None:
    place = setting("cpux4")
    wanted = probes(*place[:3])
    assert len(set(wanted)) == len(wanted)
    pairs = {(p.bucket, p.config) for p in wanted if p.count == 1 and not p.beside}
    assert pairs == {(b, c) for b in place.buckets for c in legal_configs(place.model, place.cluster)}
    assert {p.config for p in required(*place[:3])} == set(legal_configs(place.model, place.cluster))
    assert any(p.config == WHOLE and p.count > 1 for p in wanted)
    assert any(p.beside and p.config.is_split for p in wanted)


def test_one_bucket_alone_is_priced_apart_from_its_calls(tmp_path: Path) -> None:
    place = setting()._replace(buckets=setting().buckets[-1:])
    dry = without_wire(make(place, tmp_path / "t.json", seconds=0.0), place.model, place.cluster)
    whole = next(row.price for row in dry.rows if row.config == WHOLE)
    assert whole.packed_ns == pytest.approx(true_ns(place, Probe(place.buckets[0], WHOLE)), rel=0.05)
