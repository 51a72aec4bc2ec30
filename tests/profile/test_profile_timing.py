from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle.made_measurements import made_result, setting

from zellige.errors import BadTimingError
from zellige.op_terms import OUTSIDE
from zellige.profile.grid import Probe, probe_program
from zellige.profile.timing import Step, at_one_pace, drift, median, samples_of, spread
from zellige.shards import ParallelConfig


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf, 0.0, -1.0])
def test_no_time_that_cannot_be_one_becomes_a_figure(wrong: float) -> None:
    with pytest.raises(BadTimingError) as caught:
        median([5.0, wrong, 6.0], "forward.whole0")
    assert "forward.whole0" in str(caught.value)
    assert "1 of 3" in caught.value.where


def test_nothing_measured_is_no_figure() -> None:
    with pytest.raises(BadTimingError, match="no measured"):
        median([], "x")


@given(st.lists(st.floats(1, 1e9), min_size=1, max_size=30))
def test_medians_are_medians(values: list[float]) -> None:
    assert median(values, "x") == statistics.median(values)


@given(st.lists(st.floats(1, 1e6), min_size=3, max_size=40), st.floats(0.1, 10))
def test_spread_has_no_unit(values: list[float], factor: float) -> None:
    assert spread([value * factor for value in values]) == pytest.approx(spread(values), rel=1e-6, abs=1e-9)


def test_spread_is_half_of_the_middle_80_per_cent() -> None:
    assert spread([float(value) for value in range(100, 111)]) == pytest.approx(4 / 105)
    assert spread([7.0, 7.0, 7.0]) == 0
    assert spread([1.0, 2.0]) == 0


def test_samples_are_medians_over_layers_and_steps() -> None:
    place = setting()
    probe = Probe(place.buckets[1], ParallelConfig(1, 2, 1))
    program = probe_program(probe, place.model, "full")
    names = [program.span(phase, op) for phase in ("forward",) for op in program.ranks[1].ops(phase)]
    assert names == [
        "forward.split.project", "forward.split.in0", "forward.split.in0.wait", "forward.split.attend0",
        "forward.split.back", "forward.split.back.wait", "forward.split.finish",
    ]  # fmt: skip

    def step(factor: int) -> Step:
        spans = {}
        for phase in ("forward", "recompute", "backward"):
            for op in program.ranks[1].ops(phase):
                name = program.span(phase, op)
                parts = [name]
                if op.kind == "issue":
                    parts = [f"{name}.pack", f"{name}.enter"]
                elif op.kind == "wait":
                    parts = [name.removesuffix(".wait") + ".unpack"]
                for layer in range(program.num_layers):
                    for part in parts:
                        spans[part, layer] = 10 * factor + layer
        return Step(sum(spans.values()) + 77, spans)

    samples = samples_of(program, 1, [step(1), step(2), step(9)])
    by_key = {sample.key: sample for sample in samples}
    assert by_key["forward.project"].ns == 20.5
    assert by_key["forward.first.pack"].ns == 41
    assert by_key["backward.back.unpack"].ns == 20.5
    assert by_key[OUTSIDE].ns == 77
    assert len(samples) == 3 * 7 + 1


def test_a_span_without_time_stops_the_probe() -> None:
    place = setting()
    probe = Probe(place.buckets[0], ParallelConfig())
    program = probe_program(probe, place.model, "full")
    spans = {(f"{phase}.whole0", layer): 5 for phase in ("forward", "recompute", "backward") for layer in (0, 1)}
    assert samples_of(program, 0, [Step(100, spans)])
    with pytest.raises(BadTimingError, match=r"backward\.whole0"):
        samples_of(program, 0, [Step(100, {**spans, ("backward.whole0", 1): 0})])


def test_a_drifting_machine_is_brought_to_one_pace() -> None:
    place = setting()
    probes = [Probe(bucket, ParallelConfig()) for bucket in place.buckets]
    steady = [made_result(place, probe, 1000) for probe in probes]
    drifting = [made_result(place, probe, pace) for probe, pace in zip(probes, (800, 1000, 1000, 1600), strict=True)]
    for a, b in zip(at_one_pace(drifting), steady, strict=True):
        assert [s.ns for s in a.samples] == pytest.approx([s.ns for s in b.samples])
    assert drift([result.pace_ns for result in drifting]) == pytest.approx(1.0)
    assert at_one_pace([]) == ()
