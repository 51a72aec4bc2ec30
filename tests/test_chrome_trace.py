"""The export to the Trace Event Format, checked by its rules."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle.trace_format import violations

from zellige.chrome_trace import chrome_events
from zellige.files import canonical_json, decode_json
from zellige.trace import Counter, CounterPoint, Lane, Span, Trace


def span(name: str, rank: int, lane: Lane, start: int, stop: int, **more: int) -> Span:
    return Span(name=name, rank=rank, lane=lane, start_ns=start, duration_ns=stop - start, **more)


EXCHANGE = "forward.split.in0"


def trace(*spans: Span, measured: bool = False, num_ranks: int = 2, counters: tuple[Counter, ...] = ()) -> Trace:
    return Trace(
        origin="measured" if measured else "simulated",
        program="sha256:0",
        engine="coalesced",
        num_ranks=num_ranks,
        ranks_per_node=2,
        spans=tuple(sorted(spans, key=lambda s: (s.start_ns, s.rank, s.lane, s.name))),
        counters=counters,
    )


def rendezvous(*, measured: bool = False) -> Trace:
    """Rank 2 comes to the exchange at 1.5 us, rank 0 at 4 us, and both are done at 6 us."""
    call = "enter" if measured else "call"
    more = ({"last_rank": 0}, {"last_rank": 0, "waited_ns": 2500})
    late, early = ({}, {}) if measured else more
    memory = Counter(name="rank 0 memory", unit="bytes", points=(CounterPoint(0, 100), CounterPoint(4500, 250)))
    link = Counter(name="rank 2 link in", node=1, unit="GB/s", points=(CounterPoint(4000, 1.5), CounterPoint(6000, 0)))
    return trace(
        span("forward.split.project", 0, "compute", 0, 3000),
        span(f"{EXCHANGE}.{call}", 0, "wait", 3000, 4000),
        span(EXCHANGE, 0, "network", 4000, 6000, bytes=64, **late),
        span("forward.whole0", 0, "compute", 4000, 4500),
        span(f"{EXCHANGE}.{call}", 2, "wait", 500, 1500),
        span(EXCHANGE, 2, "network", 4000, 6000, bytes=64, **early),
        span("fsdp.gather", 2, "network", 1000, 5000),
        num_ranks=4,
        counters=(memory, link),
        measured=measured,
    )


def by_phase(document: dict[str, Any], phase: str) -> list[dict[str, Any]]:
    return [event for event in document["traceEvents"] if event["ph"] == phase]


@pytest.mark.parametrize("measured", [False, True])
def test_a_rendezvous_keeps_the_rules(measured: bool) -> None:
    document = chrome_events(rendezvous(measured=measured))
    assert violations(document) == []
    names = {e["tid"]: e["args"]["name"] for e in by_phase(document, "M") if e["name"] == "thread_name"}
    slices = [(e["pid"], names[e["tid"]], e["name"], e["ts"], e["dur"]) for e in by_phase(document, "X")]
    assert (1, "rank 0 compute", "forward.whole0", 4.0, 0.5) in slices
    assert (2, "rank 2 exchange", EXCHANGE, 4.0, 2.0) in slices
    assert (2, "rank 2 gather", "fsdp.gather", 1.0, 4.0) in slices
    (source,), (target,) = by_phase(document, "s"), by_phase(document, "f")
    assert (names[source["tid"]], source["ts"]) == ("rank 0 compute", 3.0)
    assert (names[target["tid"]], target["ts"], target["bp"]) == ("rank 2 exchange", 4.0, "e")
    samples = [(e["pid"], e["name"], e["ts"], e["args"]) for e in by_phase(document, "C")]
    assert samples == [
        (1, "rank 0 memory", 0.0, {"bytes": 100}),
        (2, "rank 2 link in", 4.0, {"GB/s": 1.5}),
        (1, "rank 0 memory", 4.5, {"bytes": 250}),
        (2, "rank 2 link in", 6.0, {"GB/s": 0}),
    ]
    nodes = [e["args"]["name"] for e in by_phase(document, "M") if e["name"] == "process_name"]
    assert nodes == ["node 0", "node 1"]


def test_who_waited_for_nobody_gets_no_arrow() -> None:
    both = [span(f"{EXCHANGE}.call", rank, "wait", 0, 1000) for rank in (0, 1)]
    both += [span(EXCHANGE, rank, "network", 1000, 2000, last_rank=0) for rank in (0, 1)]
    assert by_phase(chrome_events(trace(*both)), "s") == []


@given(
    spans=st.lists(
        st.builds(
            lambda rank, lane, start, duration: span("forward.x", rank, lane, start, start + duration),
            st.integers(0, 3),
            st.sampled_from(["compute", "copy", "wait", "network"]),
            st.integers(0, 50),
            st.integers(0, 20),
        ),
        max_size=30,
    )
)
def test_spans_that_overlap_get_rows_of_their_own(spans: list[Span]) -> None:
    document = chrome_events(trace(*spans, num_ranks=4))
    assert violations(document) == []
    assert len(by_phase(document, "X")) == len(spans)


def test_traces_are_files() -> None:
    made = rendezvous()
    assert decode_json(canonical_json(made).decode(), Trace, "trace.json") == made
    assert canonical_json(chrome_events(made)) == canonical_json(chrome_events(rendezvous()))


def _break(phase: str, **changes: Any) -> Callable[[list[dict[str, Any]]], None]:
    def apply(events: list[dict[str, Any]]) -> None:
        next(event for event in reversed(events) if event["ph"] == phase).update(changes)

    return apply


@pytest.mark.parametrize(
    ("spoil", "word"),
    [
        (_break("X", ph="i"), "phase 'i'"),
        (_break("X", dur=-1.0), "before the beginning"),
        (_break("X", tid="7"), "tid is '7'"),
        (_break("X", tid=999), "has no name"),
        (_break("M", args={}), "does not say anything"),
        (_break("s", id=7), "has ends"),
        (_break("f", bp="x"), "does not bind"),
        (_break("f", ts=6.1), "hangs in the air"),
        (_break("C", ts=0.5), "goes back"),
        (_break("C", args={"GB/s": -1}), "counter"),
        (lambda events: next(e for e in events if e["name"] == "forward.split.project").update(dur=3.5), "ends after"),
    ],
)
def test_the_rules_tell_right_from_wrong(spoil: Callable[[list[dict[str, Any]]], None], word: str) -> None:
    document = copy.deepcopy(chrome_events(rendezvous()))
    spoil(document["traceEvents"])
    assert any(word in text for text in violations(document)), violations(document)
