"""Traces: what they add up to."""

from __future__ import annotations

import msgspec

from zellige.files import canonical_json, decode_json
from zellige.trace import Span, Trace


def test_a_trace_adds_up_and_is_a_file() -> None:
    spans = (
        Span(name="forward.split.in0", rank=1, lane="network", start_ns=1500, duration_ns=500, bytes=64),
        Span(name="forward.whole0", rank=0, lane="compute", start_ns=0, duration_ns=2500),
    )
    trace = Trace(origin="simulated", program="sha256:0", engine="coalesced", num_ranks=2, spans=spans)
    assert (trace.duration_ns, trace.time_in("network"), trace.time_in("compute", 1)) == (2500, 500, 0)
    assert decode_json(canonical_json(trace).decode(), Trace, "trace.json") == trace
    assert (trace.node_of(1), msgspec.structs.replace(trace, ranks_per_node=1).node_of(1)) == (0, 1)
