"""Measuring a probe: one rank of its program alone on one device, warmed up and repeated; torch is imported here.

The step that warms up is the one whose memory is counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from zellige.calibration import HostInfo
from zellige.errors import MissingExtraError
from zellige.memory import Checkpoint
from zellige.model import ModelSpec
from zellige.op_terms import KEPT, LIVE, kept_terms, live_terms
from zellige.profile.grid import Probe, probe_program
from zellige.profile.host import local_host
from zellige.profile.timing import ProbeResult, Sample, Step, median, samples_of, spread

DeviceName = Literal["cpu", "cuda"]
DTypeName = Literal["fp64", "fp32", "bf16"]
WARM_UPS = 1
FEWEST, MOST = 3, 7
BOX_NS = 350_000_000
"""Measured steps of a probe: at least so many, and more of short ones, while they fit into the box."""

Measure = Callable[[Probe], ProbeResult]


class Span(Protocol):
    """A span of a step, as :class:`zellige.exec.trial.SpanTime` has it."""

    @property
    def name(self) -> str:
        """Its name in the program."""

    @property
    def layer(self) -> int:
        """The layer that it is of."""

    @property
    def ns(self) -> int:
        """Own nanoseconds."""


class Taken(Protocol):
    """A step as it was taken, as :class:`zellige.exec.trial.StepTimes` has it."""

    @property
    def own_ns(self) -> int:
        """Own nanoseconds of the rank."""

    @property
    def pace_ns(self) -> int:
        """What a fixed piece of work took around it."""

    @property
    def spans(self) -> Sequence[Span]:
        """What the step is made of."""


AnyStep = TypeVar("AnyStep", bound=Taken)


def host_info(device: DeviceName) -> HostInfo:
    """The machine and its versions; raises :class:`MissingExtraError` without torch or without the device."""
    torch = _torch()
    if device == "cuda" and not torch.cuda.is_available():
        raise MissingExtraError("there is no CUDA device here", fix="--device cpu measures this machine's cores")
    here = msgspec.structs.replace(local_host(), torch=str(torch.__version__))
    return msgspec.structs.replace(here, processor=torch.cuda.get_device_name()) if device == "cuda" else here


def _torch() -> Any:
    try:
        import torch
    except ModuleNotFoundError:
        raise MissingExtraError("measuring needs torch", fix="pip install 'zellige[exec]'") from None
    return torch


def trial_of(probe: Probe, model: ModelSpec, checkpoint: Checkpoint, dtype: DTypeName) -> Any:
    """The trial of a probe: its program on a model of as many layers as the probe runs."""
    from zellige.exec.data import SequenceShape
    from zellige.exec.trial import Trial

    program = probe_program(probe, model, checkpoint)
    geometry = msgspec.structs.replace(model.geometry, num_layers=program.num_layers, num_single_layers=0)
    bucket = probe.bucket
    grid = model.grid(bucket.width, bucket.height, bucket.num_frames)
    shapes = tuple(
        SequenceShape(sequence=segment.sequence, grid=grid, text_tokens=model.text.tokens)
        for segment in program.segments
    )
    return Trial(program=program, model=msgspec.structs.replace(model, geometry=geometry), shapes=shapes, dtype=dtype)


def probe_measure(model: ModelSpec, checkpoint: Checkpoint, device: DeviceName, dtype: DTypeName) -> Measure:
    """How probes are measured on a device of this machine: on one thread of it, or on one GPU."""
    import torch

    from zellige.exec.trial import Pace, alone, pinned

    place = torch.device(device)

    def measure(probe: Probe) -> ProbeResult:
        with pinned(0):
            return measure_probe(probe)

    def measure_probe(probe: Probe) -> ProbeResult:
        began = time.monotonic()
        trial = trial_of(probe, model, checkpoint, dtype)
        ready = alone(trial, probe.rank, place)
        peak = ready.memory()
        pace = Pace(place)
        taken = measured_steps(lambda: pace.around(ready.timed))
        usual = round(median([float(step.pace_ns) for step in taken], "the pace"))
        steps = [_step(step, usual / step.pace_ns) for step in taken]
        own = [step.own_ns for step in steps]
        return ProbeResult(
            probe=probe.key,
            samples=(
                *samples_of(trial.program, probe.rank, steps),
                byte_sample(KEPT, dict(kept_terms(trial.program, probe.rank)), peak.kept_bytes),
                byte_sample(LIVE, dict(live_terms(trial.program, probe.rank)), peak.peak_bytes - peak.kept_bytes),
            ),
            own_ns=round(median(own, probe.key)),
            spread=spread(own),
            weight_bytes=sum(weight.numel() * weight.element_size() for weight in ready.model.parameters()),
            seconds=time.monotonic() - began,
            pace_ns=usual,
        )

    return measure


def measured_steps(step: Callable[[], AnyStep]) -> list[AnyStep]:
    """Steps one after another: ``FEWEST`` of long ones, up to ``MOST`` while their own times fit into the box."""
    steps: list[AnyStep] = []
    while len(steps) < FEWEST or (len(steps) < MOST and sum(done.own_ns for done in steps) < BOX_NS):
        steps.append(step())
    return steps


def byte_sample(key: str, terms: dict[str, float], size: int) -> Sample:
    """A sample of memory, which is counted once and not repeated."""
    return Sample(key=key, terms=terms, ns=median([float(size)], key), spread=0.0)


def _step(times: Taken, factor: float) -> Step:
    """A step as a machine of another pace would have run it; what took some time still takes some."""
    spans: dict[tuple[str, int], float] = {}
    for span in times.spans:
        spans[span.name, span.layer] = spans.get((span.name, span.layer), 0.0) + factor * span.ns
    return Step(factor * times.own_ns, spans)
