"""Measurements that obey known laws, so that what comes out of a profile can be told exactly."""

from __future__ import annotations

from collections.abc import Callable

from zellige.calibration import HostInfo
from zellige.catalog import load_cluster, load_model
from zellige.op_terms import KEPT, LIVE, kept_terms, live_terms
from zellige.profile.grid import Probe, probe_program
from zellige.profile.table import Setting, operations
from zellige.profile.timing import ProbeResult, Sample
from zellige.workload import make_bucket

HOST = HostInfo(machine="here", processor="made", cores=2, python="3.11", torch="2.13", zellige="0")

TRUTH = {
    "calls": 50_000.0,
    "entries": 7_000.0,
    "tokens": 4_000.0,
    "token_doublings": 0.0,
    "pairs": 2.0,
    "query_rows": 100.0,
    "key_rows": 60.0,
    "merged_rows": 40.0,
    "rows": 30.0,
    "operations": 900.0,
}
"""Nanoseconds by term, the same for every operation."""

BYTES = {"calls": 1e6, "tokens": 9_000.0, "stage_tokens": 2_000.0, "entries": 300.0, "layer_tokens": 512.0}


def setting(cluster: str = "cpux2") -> Setting:
    model = load_model("tiny-dit")
    shapes = ((256, 256, 1), (832, 480, 1), (832, 480, 9), (1280, 720, 9))
    buckets = tuple(make_bucket(model, *shape) for shape in shapes)
    return Setting(model, load_cluster(cluster), buckets, "full")


def made_result(place: Setting, probe: Probe, pace_ns: int = 1000) -> ProbeResult:
    program = probe_program(probe, place.model, place.checkpoint)
    slow = pace_ns / 1000
    samples = [
        Sample(key=key, terms=dict(terms), ns=slow * sum(TRUTH[t] * n for t, n in terms.items()), spread=0.01)
        for key, terms in operations(program, probe.rank)
    ]
    for key, terms in ((KEPT, kept_terms(program, probe.rank)), (LIVE, live_terms(program, probe.rank))):
        size = sum(BYTES.get(t, 0.0) * n for t, n in terms.items())
        samples.append(Sample(key=key, terms=dict(terms), ns=size, spread=0.0))
    return ProbeResult(
        probe=probe.key,
        samples=tuple(samples),
        own_ns=round(sum(sample.ns for sample in samples)),
        spread=0.01,
        weight_bytes=2_000_000,
        seconds=0.5,
        pace_ns=pace_ns,
    )


def made_measure(place: Setting, paces: Callable[[int], int] = lambda _: 1000) -> Callable[[Probe], ProbeResult]:
    count = 0

    def measure(probe: Probe) -> ProbeResult:
        nonlocal count
        count += 1
        return made_result(place, probe, paces(count))

    return measure
