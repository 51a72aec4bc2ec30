"""Sweeps: the same lines whatever the processes, a run that was killed goes on, and other settings are refused."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import joblib
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from joblib._parallel_backends import ThreadingBackend

from zellige.catalog import load_cluster, load_model
from zellige.compare import compare
from zellige.errors import FileError, FormatError, MissingExtraError, ModelMismatchError, SchemaVersionError
from zellige.outcomes import Fidelities, Outcome
from zellige.rows import tally
from zellige.sim import Noise, SimOptions
from zellige.sources import Options, build_problems, kept_batches, read_source, source_setup
from zellige.sweep import Setting, Task, run_sweep, strip
from zellige.sweep_file import SweepFile, SweepHeader

POLICIES = ("dp", "static-coalesced")
NOISE = SimOptions(noise=Noise(jitter=0.01))
OPTIONS = Options(cluster="a800x4", model="wan2.1-t2v-1.3b", batches=6)
SOURCE = read_source("gen:openvid", OPTIONS)
MODEL, CLUSTER = load_model("wan2.1-t2v-1.3b"), load_cluster("a800x4")


def setting_of(**more: Any) -> Setting:
    base: dict[str, Any] = {"engine": None, "policies": POLICIES, "how": Fidelities()}
    return Setting(cluster=CLUSTER, model=MODEL, sharding="zero3", checkpoint="full", **base | more)


def tasks() -> Iterator[Task]:
    setup = source_setup(SOURCE, OPTIONS)
    for number, batch in enumerate(kept_batches(SOURCE, MODEL, OPTIONS, lambda *_: None)):
        yield Task(number, batch, setup)


def header_of(digest: str = "sha256:0", **more: Any) -> SweepHeader:
    base: dict[str, Any] = {"version": "1", "cluster": "a", "model": "b", "fidelity": "additive", "source": ("s",)}
    return SweepHeader(digest=digest, policies=POLICIES, **base | more)


OUTCOMES = [strip(outcomes) for outcomes in run_sweep(setting_of(), tasks())]


def test_a_sweep_says_what_a_comparison_says() -> None:
    """Prices are shared and plans are kept: neither shows."""
    problems = build_problems(SOURCE, OPTIONS, lambda *_: None)
    rows, totals = tally([outcome for outcomes in OUTCOMES for outcome in outcomes], {}, paired=False)
    there = compare(problems, POLICIES)
    assert [msgspec.structs.replace(row, planning_ns=None) for row in there.rows] == rows
    assert (totals.batches, totals.num_tokens) == (6, sum(problem.batch.num_tokens for problem in problems))


class CountingBackend(ThreadingBackend):  # type: ignore[misc]
    """A back end of our own, which counts what it is given."""

    given = 0

    def submit(self, func: Any, callback: Any = None) -> Any:
        CountingBackend.given += 1
        return super().submit(func, callback)


@pytest.mark.parametrize("backend", ["threading", "counting"])
def test_any_back_end_of_joblib_makes_the_same_outcomes(backend: str) -> None:
    joblib.register_parallel_backend("counting", CountingBackend)
    CountingBackend.given = 0
    with joblib.parallel_config(backend=backend):
        found = [strip(outcomes) for outcomes in run_sweep(setting_of(), tasks(), jobs=2)]
    assert found == OUTCOMES
    assert (CountingBackend.given > 0) == (backend == "counting"), "the work goes to the back end that is named"


def test_processes_make_the_same_outcomes_under_noise() -> None:
    setting = setting_of(
        how=Fidelities(fidelity="event", options=NOISE, replicas=2), policies=("dp", "static-coalesced")
    )
    few = list(tasks())[:2]
    alone = [strip(outcomes) for outcomes in run_sweep(setting, few)]
    assert [strip(outcomes) for outcomes in run_sweep(setting, few, jobs=2)] == alone
    assert all(len(outcome.replica_ns) == 2 for outcomes in alone for outcome in outcomes)


def test_batches_are_drawn_as_they_are_needed() -> None:
    """A sweep over very many batches starts at once, and holds one round of them."""
    many = Options(cluster="a800x4", model="wan2.1-t2v-1.3b", batches=100_000)
    source = read_source("gen:openvid", many)
    drawn = 0

    def counted() -> Iterator[Task]:
        nonlocal drawn
        for number, batch in enumerate(kept_batches(source, MODEL, many, lambda *_: None)):
            drawn += 1
            yield Task(number, batch, source_setup(source, many))

    results = run_sweep(setting_of(policies=("dp",)), counted())
    assert strip(next(results))[0].name == "openvid-0"
    assert drawn == 1
    later = next(kept_batches(source, MODEL, many, lambda *_: None, 5))
    assert later == list(kept_batches(SOURCE, MODEL, OPTIONS, lambda *_: None))[5]


def test_several_jobs_need_joblib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "joblib", None)
    with pytest.raises(MissingExtraError, match="joblib") as caught:
        next(run_sweep(setting_of(), tasks(), jobs=2))
    assert "sweep" in caught.value.fix
    assert strip(next(run_sweep(setting_of(), tasks()))) == OUTCOMES[0], "one job needs nothing"


# --- the file


def write_all(path: Path) -> bytes:
    with SweepFile(path, header_of()) as file:
        for outcomes in OUTCOMES[file.num_batches :]:
            file.append(outcomes)
    return path.read_bytes()


def test_a_file_holds_what_was_written(tmp_path: Path) -> None:
    write_all(tmp_path / "a.jsonl")
    with SweepFile(tmp_path / "a.jsonl", header_of()) as file:
        assert file.num_batches == 6
        assert list(file) == list(file) == [outcome for outcomes in OUTCOMES for outcome in outcomes]


@settings(max_examples=60)
@given(kept=st.integers(0, 10_000))
def test_a_run_that_was_ended_goes_on_to_the_same_bytes(kept: int) -> None:
    """Wherever the file was cut: in the header, inside a line, between the policies of a batch."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        whole = write_all(Path(folder) / "whole.jsonl")
        torn = Path(folder) / "torn.jsonl"
        torn.write_bytes(whole[: kept % (len(whole) + 1)])
        with SweepFile(torn, header_of()) as file:
            assert file.num_batches <= 6
        assert write_all(torn) == whole


def test_a_file_is_one_run_s_alone_until_that_closes_it(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with SweepFile(path, header_of()) as file:
        file.append(OUTCOMES[0])
        with pytest.raises(FileError, match="another process is writing") as caught:
            SweepFile(path, header_of())
        assert "another file" in caught.value.fix
        file.append(OUTCOMES[1])
    file.close()
    with SweepFile(path, header_of()) as file:
        assert file.num_batches == 2
        assert list(file) == [*OUTCOMES[0], *OUTCOMES[1]]


def test_results_of_another_setting_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    before = write_all(path)
    with pytest.raises(ModelMismatchError, match="another setting") as caught:
        SweepFile(path, header_of("sha256:1", cluster="c"))
    assert caught.value.details == ("cluster: a there, c here",)
    with pytest.raises(ModelMismatchError) as caught:
        SweepFile(path, header_of("sha256:1"))
    assert "contents" in caught.value.details[0]
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda data: b"clips\n" + data, FormatError),
        (lambda _: b"no results", FormatError),
        (lambda _: b"{}\n", FormatError),
        (lambda data: data.replace(b"zellige.sweep/1", b"zellige.sweep/2"), SchemaVersionError),
        (lambda data: data.replace(b'"batch":1', b'"batch":5', 1), FormatError),
        (lambda data: data.replace(b'"policy":"dp"', b'"policy":"usp"', 1), FormatError),
        (lambda data: data.replace(b'"engine":"per_sequence"', b'"engine":"other"', 1), FormatError),
        (lambda data: data.replace(b'{"batch":2', b'"batch":2', 1), FormatError),
    ],
)
def test_what_is_no_file_of_results_is_left_alone(tmp_path: Path, change: Any, error: type[Exception]) -> None:
    path = tmp_path / "a.jsonl"
    spoilt = change(write_all(path))
    path.write_bytes(spoilt)
    with pytest.raises(error):
        SweepFile(path, header_of())
    assert path.read_bytes() == spoilt


def test_lines_are_canonical_and_free_of_the_clock() -> None:
    assert all(outcome.planning_ns == 0 for outcomes in OUTCOMES for outcome in outcomes)
    assert msgspec.json.decode(msgspec.json.encode(OUTCOMES[0][0], order="sorted"), type=Outcome) == OUTCOMES[0][0]
