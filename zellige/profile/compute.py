"""Measuring a probe: warmed up and repeated, by one rank alone on one device, or by ranks beside each other.

The step that warms up is the one whose memory is counted. Where every rank has a core, ranks measure **together**: they
exchange for real, and share the machine's memory and caches as they do when they train. torch is imported here.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec

from zellige.calibration import HostInfo
from zellige.errors import MissingExtraError
from zellige.memory import Checkpoint
from zellige.model import ModelSpec
from zellige.op_terms import KEPT, LIVE, kept_terms, live_terms
from zellige.profile.grid import Probe, probe_buckets, probe_program
from zellige.profile.host import local_host
from zellige.profile.timing import ProbeResult, Sample, Step, median, merged, operations, samples_of, spread
from zellige.program import Program

DeviceName = Literal["cpu", "cuda"]
DTypeName = Literal["fp64", "fp32", "bf16"]
WARM_UPS = 1
FEWEST, MIXED, MOST = 3, 5, 7
BOX_NS = 350_000_000
"""Measured steps of a probe: at least so many, and more of short ones, while they fit into the box."""

TIMEOUT_S = 120.0
"""How long ranks that measure together wait for each other."""

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


class Ran(Protocol):
    """What a rank measured, as :class:`zellige.exec.trial.RankTrial` has it."""

    @property
    def steps(self) -> Sequence[Taken]:
        """Its steps."""

    @property
    def weight_bytes(self) -> int:
        """Of the model's parameters."""

    @property
    def kept_bytes(self) -> int:
        """What forward leaves for backward."""

    @property
    def peak_bytes(self) -> int:
        """The fullest moment, beyond the parameters."""


RunTrial = Callable[[Any, int], Mapping[int, Ran]]
"""Runs a trial for the sake of one of its ranks: what that rank measured, and others that ran beside it."""


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
        raise MissingExtraError("measuring needs torch", fix="pip install -e '.[exec]' in the checkout") from None
    return torch


def fewest_steps(probe: Probe) -> int:
    """Measured steps of a probe, at least: more for one of all buckets, on which laws of full stages rest."""
    return MIXED if probe.others else FEWEST


def trial_of(probe: Probe, model: ModelSpec, checkpoint: Checkpoint, dtype: DTypeName, num_ranks: int = 0) -> Any:
    """The trial of a probe: its program on a model of as many layers as the probe runs."""
    from zellige.exec.data import SequenceShape
    from zellige.exec.trial import Trial

    program = probe_program(probe, model, checkpoint, num_ranks)
    geometry = msgspec.structs.replace(model.geometry, num_layers=program.num_layers, num_single_layers=0)
    buckets = probe_buckets(probe, model, num_ranks)
    grids = {name: model.grid(bucket.width, bucket.height, bucket.num_frames) for name, bucket in buckets.items()}
    return Trial(
        program=program,
        model=msgspec.structs.replace(model, geometry=geometry),
        shapes=tuple(
            SequenceShape(sequence=segment.sequence, grid=grids[segment.sequence], text_tokens=model.text.tokens)
            for segment in program.segments
        ),
        dtype=dtype,
        warm_ups=WARM_UPS,
        repeats=fewest_steps(probe),
        most=MOST,
        box_ns=BOX_NS,
        memory=True,
    )


@contextlib.contextmanager
def probe_measure(
    model: ModelSpec, checkpoint: Checkpoint, device: DeviceName, dtype: DTypeName, together: int = 1
) -> Iterator[Measure]:
    """How probes are measured on this machine: on a core or a GPU, alone, or by ``together`` ranks on cores.

    Ranks start with the first probe, and stay.
    """
    with contextlib.ExitStack() as stack:
        run = _alone(device) if together == 1 else _together(together, stack)

        def measure(probe: Probe) -> ProbeResult:
            began = time.monotonic()
            trial = trial_of(probe, model, checkpoint, dtype, together if together > 1 else 0)
            return probe_result(probe, trial.program, run(trial, probe.rank), lambda: time.monotonic() - began)

        yield measure


def _alone(device: DeviceName) -> RunTrial:
    import torch

    from zellige.exec.trial import run_one_alone

    place = torch.device(device)
    return lambda trial, rank: {rank: run_one_alone(trial, rank, place)}


def _together(num_ranks: int, stack: contextlib.ExitStack) -> RunTrial:
    from zellige.exec.launch import staying_ranks
    from zellige.exec.trial import RankTrial, staying_task

    started: list[Callable[[bytes], list[bytes]]] = []

    def run(trial: Any, rank: int) -> Mapping[int, Ran]:
        del rank
        if not started:
            started.append(stack.enter_context(staying_ranks(staying_task, b"", num_ranks, timeout_s=TIMEOUT_S)))
        answers = started[0](msgspec.json.encode(trial))
        return {rank: msgspec.json.decode(answer, type=RankTrial) for rank, answer in enumerate(answers)}

    return run


def probe_result(probe: Probe, program: Program, ranks: Mapping[int, Ran], seconds: Callable[[], float]) -> ProbeResult:
    """What a probe measured, at one pace: by its rank, and by those that did the same, the mean of their medians."""
    wanted = list(operations(program, probe.rank))
    alike = [rank for rank in sorted(ranks) if list(operations(program, rank)) == wanted]
    usual = round(median([float(step.pace_ns) for rank in alike for step in ranks[rank].steps], "the pace"))
    steps = {rank: [_step(step, usual / step.pace_ns) for step in ranks[rank].steps] for rank in alike}
    own = [[step.own_ns for step in steps[rank]] for rank in alike]
    mine = ranks[probe.rank]
    return ProbeResult(
        probe=probe.key,
        samples=(
            *merged([samples_of(program, rank, steps[rank]) for rank in alike]),
            byte_sample(KEPT, dict(kept_terms(program, probe.rank)), mine.kept_bytes),
            byte_sample(LIVE, dict(live_terms(program, probe.rank)), mine.peak_bytes - mine.kept_bytes),
        ),
        own_ns=round(statistics.fmean(median(times, probe.key) for times in own)),
        spread=statistics.fmean(spread(times) for times in own),
        weight_bytes=mine.weight_bytes,
        seconds=seconds(),
        pace_ns=usual,
    )


def byte_sample(key: str, terms: dict[str, float], size: int) -> Sample:
    """A sample of memory, which is counted once and not repeated."""
    return Sample(key=key, terms=terms, ns=median([float(size)], key), spread=0.0)


def _step(times: Taken, factor: float) -> Step:
    """A step as a machine of another pace would have run it; what took some time still takes some."""
    spans: dict[tuple[str, int], float] = {}
    for span in times.spans:
        spans[span.name, span.layer] = spans.get((span.name, span.layer), 0.0) + factor * span.ns
    return Step(factor * times.own_ns, spans)
