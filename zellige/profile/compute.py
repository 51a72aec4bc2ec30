"""Measuring a probe: one rank of its program alone on one device, warmed up and repeated; torch is imported here."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from typing import Any, Literal

import msgspec

import zellige
from zellige.calibration import HostInfo
from zellige.errors import MissingExtraError
from zellige.memory import Checkpoint
from zellige.model import ModelSpec
from zellige.op_terms import KEPT, LIVE, memory_terms
from zellige.profile.grid import Probe, probe_program
from zellige.profile.timing import ProbeResult, Sample, Step, median, samples_of, spread

DeviceName = Literal["cpu", "cuda"]
DTypeName = Literal["fp64", "fp32", "bf16"]
WARM_UPS = 2
REPEATS = 5
Measure = Callable[[Probe], ProbeResult]


def host_info(device: DeviceName) -> HostInfo:
    """The machine and its versions; raises :class:`MissingExtraError` without torch or without the device."""
    torch = _torch()
    if device == "cuda" and not torch.cuda.is_available():
        raise MissingExtraError("there is no CUDA device here", fix="--device cpu measures this machine's cores")
    return HostInfo(
        machine=platform.node() or "unknown",
        processor=torch.cuda.get_device_name() if device == "cuda" else _processor(),
        cores=_cores(),
        python=platform.python_version(),
        torch=str(torch.__version__),
        zellige=zellige.__version__,
    )


def _torch() -> Any:
    try:
        import torch
    except ModuleNotFoundError:
        raise MissingExtraError("measuring needs torch", fix="pip install 'zellige[exec]'") from None
    return torch


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor() -> str:
    return platform.processor() or platform.machine()


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

    from zellige.exec.trial import alone, pace, pinned

    def measure(probe: Probe) -> ProbeResult:
        with pinned(0):
            return measure_probe(probe)

    def measure_probe(probe: Probe) -> ProbeResult:
        began, before = time.monotonic(), pace(torch.device(device))
        trial = trial_of(probe, model, checkpoint, dtype)
        ready = alone(trial, probe.rank, torch.device(device))
        for _ in range(WARM_UPS):
            ready.timed()
        steps = [_step(ready.timed()) for _ in range(REPEATS)]
        peak = ready.memory()
        terms = dict(memory_terms(trial.program, probe.rank))
        own = [step.own_ns for step in steps]
        return ProbeResult(
            probe=probe.key,
            samples=(
                *samples_of(trial.program, probe.rank, steps),
                byte_sample(KEPT, terms, peak.kept_bytes),
                byte_sample(LIVE, terms, peak.peak_bytes - peak.kept_bytes),
            ),
            own_ns=round(median(own, probe.key)),
            spread=spread(own),
            weight_bytes=sum(weight.numel() * weight.element_size() for weight in ready.model.parameters()),
            seconds=time.monotonic() - began,
            pace_ns=(before + pace(torch.device(device))) // 2,
        )

    return measure


def byte_sample(key: str, terms: dict[str, float], size: int) -> Sample:
    """A sample of memory, which is counted once and not repeated."""
    return Sample(key=key, terms=terms, ns=median([float(size)], key), spread=0.0)


def _step(times: Any) -> Step:
    """A step from :class:`zellige.exec.trial.StepTimes`."""
    spans: dict[tuple[str, int], int] = {}
    for span in times.spans:
        spans[span.name, span.layer] = spans.get((span.name, span.layer), 0) + span.ns
    return Step(times.own_ns, spans)
