"""From repeated measurements to one figure each: medians, spread, and what a machine did meanwhile.

Times that cannot be (zero, negative, no number) are an error that names the operation: none ever enters a table.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, NamedTuple

import msgspec

from zellige.errors import BadTimingError
from zellige.files import PositiveInt
from zellige.op_terms import KEPT, LIVE, OUTSIDE, Terms, law_key, op_terms, outside_terms
from zellige.program import Program
from zellige.program_parts import PASSES

THROTTLED = 0.15
"""A machine whose reference work takes this much longer than at first is called throttled (or shared)."""


Size = Annotated[float, msgspec.Meta(gt=0, le=1e18)]
"""Nanoseconds or bytes: above zero, and a number."""

Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class Sample(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The median nanoseconds (or bytes) of an operation with these terms, and its spread (see :func:`spread`)."""

    key: str
    terms: dict[str, Annotated[float, msgspec.Meta(ge=0, le=1e18)]]
    ns: Size
    spread: Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class ProbeResult(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="unit", tag="probe"):
    """What a probe measured: its operations and memory, and the step of its rank (all layers of the probe).

    ``pace_ns`` is what a fixed piece of work took around its steps, the median, to which they all were brought.
    """

    probe: str
    samples: Annotated[tuple[Sample, ...], msgspec.Meta(min_length=1)]
    own_ns: PositiveInt
    spread: Annotated[float, msgspec.Meta(ge=0, le=1e9)]
    weight_bytes: PositiveInt
    seconds: Seconds
    pace_ns: PositiveInt


class LinkResult(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="unit", tag="links"):
    """What exchanges between ``num_ranks`` ranks took, by operation, ranks and size, and how long that lasted."""

    num_ranks: PositiveInt
    samples: tuple[Sample, ...]
    seconds: Seconds


class Step(NamedTuple):
    """A measured step: own nanoseconds, and nanoseconds by (span name, layer)."""

    own_ns: float
    spans: Mapping[tuple[str, int], float]


def median(values: Sequence[float], what: str) -> float:
    """The median of times; raises :class:`BadTimingError` where one of them cannot be a time."""
    wrong = [value for value in values if not math.isfinite(value) or value <= 0]
    if wrong or not values:
        raise BadTimingError(
            f"{what} took {wrong[0] if wrong else 'no measured'} nanoseconds",
            where=f"{len(wrong)} of {len(values)} repeats",
            fix="profile again; if it stays so, the clock of this machine cannot resolve the operation",
        )
    return statistics.median(values)


def spread(values: Sequence[float]) -> float:
    """Half of the middle 80 % over the median: about the standard deviation of normal noise, without its outliers."""
    if len(values) < 3:
        return 0.0
    ordered = sorted(values)
    cut = (len(ordered) - 1) / 10
    low, high = _at(ordered, cut), _at(ordered, len(ordered) - 1 - cut)
    return max(0.0, high - low) / 2 / statistics.median(ordered)


def _at(ordered: Sequence[float], place: float) -> float:
    first = math.floor(place)
    rest = place - first
    return ordered[first] if not rest else ordered[first] * (1 - rest) + ordered[first + 1] * rest


def operations(program: Program, rank: int) -> Iterator[tuple[str, Terms]]:
    """The law and terms of every operation of a rank's layer, in the order of its samples; the outside last."""
    for phase in PASSES:
        for op in program.ranks[rank].ops(phase):
            if op.kind != "keep":
                yield law_key(program, phase, op), op_terms(program, rank, op)
    yield OUTSIDE, outside_terms(program, rank)


def samples_of(program: Program, rank: int, steps: Sequence[Step]) -> tuple[Sample, ...]:
    """A sample for every operation of a rank, over all layers and steps; issues and waits give packs and unpacks."""
    found = []
    layers = range(program.num_layers)
    for phase in PASSES:
        for op in program.ranks[rank].ops(phase):
            if op.kind == "keep":
                continue
            name = program.span(phase, op)
            names = [name]
            if op.kind == "issue":
                names = [f"{name}.pack", f"{name}.enter"]
            elif op.kind == "wait":
                names = [f"{name.removesuffix('.wait')}.unpack"]
            times = [sum(step.spans[each, layer] for each in names) for step in steps for layer in layers]
            found.append(
                Sample(
                    key=law_key(program, phase, op),
                    terms=dict(op_terms(program, rank, op)),
                    ns=median(times, name),
                    spread=spread(times),
                )
            )
    rest = [step.own_ns - sum(step.spans.values()) for step in steps]
    terms = dict(outside_terms(program, rank))
    return (*found, Sample(key=OUTSIDE, terms=terms, ns=median(rest, "what is outside"), spread=spread(rest)))


def merged(by_rank: Sequence[Sequence[Sample]]) -> tuple[Sample, ...]:
    """The samples of ranks that ran the same operations, as one: the mean of times and of spreads."""
    return tuple(
        msgspec.structs.replace(
            same[0],
            ns=statistics.fmean(sample.ns for sample in same),
            spread=statistics.fmean(sample.spread for sample in same),
        )
        for same in zip(*by_rank, strict=True)
    )


def at_one_pace(results: Sequence[ProbeResult]) -> tuple[ProbeResult, ...]:
    """The results as if the machine had kept its median pace all along; bytes stay as they are.

    A shared machine drifts by tens of per cent in minutes, while repeats of one probe agree within a few.
    """
    if not results:
        return ()
    usual = statistics.median(result.pace_ns for result in results)
    return tuple(
        msgspec.structs.replace(
            result,
            samples=tuple(_scaled(sample, usual / result.pace_ns) for sample in result.samples),
            own_ns=max(1, round(result.own_ns * usual / result.pace_ns)),
        )
        for result in results
    )


def _scaled(sample: Sample, factor: float) -> Sample:
    if sample.key in (KEPT, LIVE):
        return sample
    return msgspec.structs.replace(sample, ns=sample.ns * factor)


def operation_jitter(results: Sequence[ProbeResult]) -> float:
    """The spread of single operations, the mean over those of all probes by their time."""
    timed = [sample for result in results for sample in result.samples if sample.key not in (KEPT, LIVE)]
    return sum(sample.spread * sample.ns for sample in timed) / sum(sample.ns for sample in timed)


def drift(paces: Sequence[int]) -> float:
    """How much slower the slowest pace was than the first: 0 is a machine that kept its speed."""
    return max(paces) / paces[0] - 1 if paces else 0.0
