from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle.made_measurements import TRUTH, made_result, setting

from zellige.cluster import LinkPoint
from zellige.profile.communication import fit_links
from zellige.profile.fit import fit_law, fit_laws, past_floor
from zellige.profile.grid import required
from zellige.profile.timing import Sample


def sample(ns: float, **terms: float) -> Sample:
    return Sample(key="x", terms=terms, ns=ns, spread=0.0)


@settings(deadline=None, max_examples=30)
@given(st.floats(0, 1e6), st.floats(0.5, 1e3), st.lists(st.integers(1, 5000), min_size=4, max_size=9, unique=True))
def test_a_line_is_found_again(call: float, per_token: float, tokens: list[int]) -> None:
    law = fit_law("x", [sample(call + per_token * n, calls=1.0, tokens=float(n)) for n in tokens])
    for n in (1, 77, 4999):
        assert law.of({"calls": 1, "tokens": n}) == pytest.approx(call + per_token * n, rel=1e-4)
    assert law.worst < 1e-3


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.floats(1, 1e6), st.integers(1, 100), st.integers(1, 1000)), min_size=3, max_size=12))
def test_laws_never_fall(points: list[tuple[float, int, int]]) -> None:
    law = fit_law("x", [sample(ns, entries=float(a), tokens=float(b)) for ns, a, b in points])
    assert all(value >= 0 for value in law.per_unit.values())
    assert law.of({"entries": 3, "tokens": 7}) <= law.of({"entries": 3, "tokens": 8}) + 1e-9


def test_left_out_errors_are_those_of_fits_without_the_sample() -> None:
    points = [sample(10.0, tokens=1.0), sample(20.0, tokens=2.0), sample(45.0, tokens=3.0)]
    law = fit_law("x", points)
    slopes = [fit_law("x", [p for p in points if p is not out]).per_unit["tokens"] for out in points]
    errors = [abs(slope * p.terms["tokens"] / p.ns - 1) for slope, p in zip(slopes, points, strict=True)]
    assert law.error == pytest.approx(sum(errors) / 3)
    assert law.worst == pytest.approx(max(errors))


def test_one_wild_sample_moves_little() -> None:
    line = [sample(1000.0 + 10 * n, calls=1.0, tokens=float(n)) for n in range(10, 400, 30)]
    law = fit_law("x", [*line, sample(40_000.0, calls=1.0, tokens=200.0)])
    assert law.of({"calls": 1, "tokens": 200}) == pytest.approx(3000, rel=0.03)


def test_required_probes_tell_all_laws_apart() -> None:
    place = setting()
    laws = fit_laws([made_result(place, probe) for probe in required(*place[:3])])
    assert {law.key.split(".")[0] for law in laws} == {"forward", "recompute", "backward", "memory", "outside"}
    for law in laws:
        assert law.samples >= 6, law.key
        assert law.error < 0.02, law.key
    whole = next(law for law in laws if law.key == "forward.whole")
    found = {term: each for term, each in whole.per_unit.items() if each > 1e-6}
    assert found == pytest.approx({t: TRUTH[t] for t in ("calls", "entries", "tokens", "pairs")}, rel=1e-3)


def test_memory_of_tiny_probes_says_nothing_of_tokens() -> None:
    tiny = [sample(100.0, calls=1.0, tokens=float(n)) for n in (1, 2, 3)]
    large = [sample(100.0 * n, calls=1.0, tokens=float(n)) for n in range(2, 9)]
    assert past_floor([*tiny, *large]) == large
    assert past_floor(tiny) == tiny
    assert past_floor([]) == []


def test_links_are_found_again() -> None:
    samples = [
        Sample(key=f"{op}.{ranks}", terms={"calls": 1.0, "bytes": float(size)}, ns=5000.0 + size / rate, spread=0.0)
        for op, ranks, rate in (("all_to_all", 2, 2.0), ("all_to_all", 8, 0.5), ("send_recv", 2, 4.0))
        for size in (1024, 65536, 1 << 20)
    ]
    links = fit_links(samples)
    assert [(p.op, p.num_ranks) for p in links.points] == [("all_to_all", 2), ("all_to_all", 8), ("send_recv", 2)]
    assert [p.latency_us for p in links.points] == pytest.approx([5.0] * 3)
    assert [p.bus_gb_per_s for p in links.points] == pytest.approx([2.0, 0.5, 4.0])
    assert links.error < 1e-6
    assert isinstance(links.points[0], LinkPoint)


def test_what_each_doubling_of_a_stage_costs_is_found_again() -> None:
    stages = [float(1 << power) * odd for power in range(4, 11) for odd in (1.0, 1.4)]

    def cost(tokens: float) -> float:
        return 5e4 + tokens * (300 + 40 * math.log2(tokens))

    def terms(tokens: float) -> dict[str, float]:
        return {"calls": 1.0, "tokens": tokens, "token_doublings": tokens * math.log2(tokens)}

    law = fit_law("x", [sample(cost(tokens), **terms(tokens)) for tokens in stages])
    assert law.of(terms(4096.0)) == pytest.approx(cost(4096.0), rel=1e-3)
    straight = fit_law("x", [sample(cost(n), calls=1.0, tokens=n) for n in stages])
    assert straight.of({"calls": 1.0, "tokens": 4096.0}) < 0.95 * cost(4096.0)
