"""Traces: what they add up to, and their export."""

from __future__ import annotations

from zellige.files import canonical_json, decode_json
from zellige.trace import Span, Trace, chrome_events


def test_a_trace_exports_to_the_trace_event_format() -> None:
    spans = (
        Span(name="forward.split.in0", rank=1, lane="network", start_ns=1500, duration_ns=500, bytes=64),
        Span(name="forward.whole0", rank=0, lane="compute", start_ns=0, duration_ns=2500),
    )
    trace = Trace(origin="simulated", program="sha256:0", engine="coalesced", num_ranks=2, spans=spans)
    assert (trace.duration_ns, trace.time_in("network"), trace.time_in("compute", 1)) == (2500, 500, 0)
    events = chrome_events(trace)["traceEvents"]
    timed = [event for event in events if event["ph"] == "X"]
    assert [(e["pid"], e["name"], e["ts"], e["dur"]) for e in timed] == [
        (1, "forward.split.in0", 1.5, 0.5),
        (0, "forward.whole0", 0.0, 2.5),
    ]
    assert decode_json(canonical_json(trace).decode(), Trace, "trace.json") == trace
