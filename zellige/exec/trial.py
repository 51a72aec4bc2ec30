"""Training steps for measuring: the packed DiT under a program, forward, loss and backward, with every span timed.

A trial runs on real ranks, or on one rank **alone**: its exchanges are then answered by a transport that fills every
receive buffer from a store of random rows, so that one device can do the local work of any rank of any program. Both
are the same code. What no placement changes is left out: the gradient reduction and the optimizer.

Spans of CPU ranks are timed by the thread's own CPU time, which other processes on the machine do not lengthen; spans
of a GPU by events on its stream. A whole step is also timed by the wall clock.
"""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

from zellige.exec.attention import Engine, Explain
from zellige.exec.data import RankBatch, SequenceShape, draw_sample, rank_batch, token_positions
from zellige.exec.dit import PackedDit
from zellige.exec.execute import DTYPES, DTypeName, make_communicators, select_kernel
from zellige.exec.heap import keep_freed_memory
from zellige.exec.kernels import accumulation_dtype
from zellige.exec.layer import LayerRun
from zellige.exec.live_memory import Peak, cpu_peak, cuda_peak
from zellige.exec.meters import CpuMeter, EventMeter, Meter
from zellige.exec.pace import Pace
from zellige.exec.session import Backend, Session, connected, fingerprint
from zellige.exec.stream import RankStream, rank_stream
from zellige.exec.transports import Communicators, Transport
from zellige.model import ModelSpec
from zellige.program import Program


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """What to run: ``shapes`` by segment of the program; the first ``warm_ups`` steps are not reported.

    Beyond ``repeats`` come more steps, up to ``most``, while those of the slowest rank add up to less than ``box_ns``
    (where a trial has the ranks to itself: several in turn run ``repeats`` steps each).
    ``memory`` counts what tensors need, in the first step that warms up, which takes longer for it.
    """

    program: Program
    model: ModelSpec
    shapes: tuple[SequenceShape, ...]
    dtype: DTypeName = "fp32"
    seed: int = 0
    warm_ups: int = 1
    repeats: int = 5
    most: int = 0
    box_ns: int = 0
    backend: Backend = "gloo"
    memory: bool = False


class SpanTime(msgspec.Struct, frozen=True, array_like=True):
    """A span of a step, by its program name."""

    name: str
    layer: int
    ns: int


class StepTimes(msgspec.Struct, frozen=True, kw_only=True):
    """A step of one rank: ``own_ns`` is the rank's own time (CPU time of its thread, or time of its GPU).

    ``pace_ns`` is what a fixed piece of work took on the rank just before and after, the mean: the machine's speed.
    """

    wall_ns: int
    own_ns: int
    spans: tuple[SpanTime, ...]
    pace_ns: int = 0

    @property
    def outside_ns(self) -> int:
        """Own time outside all spans: embeddings, head, loss, autograd's bookkeeping."""
        return self.own_ns - sum(span.ns for span in self.spans)


class RankTrial(msgspec.Struct, frozen=True, kw_only=True):
    """The reported steps of one rank; memory (beyond the weights) where it was asked for.

    ``kept_bytes`` is what forward leaves for backward, ``peak_bytes`` the fullest moment.
    """

    rank: int
    steps: tuple[StepTimes, ...]
    weight_bytes: int
    peak_bytes: int = 0
    kept_bytes: int = 0


class AloneTransport:
    """Answers an exchange on the spot: receive buffers are filled from random rows, which cost what a copy costs.

    Zeros would make softmax and its gradients degenerate, and unset memory may hold values that slow a CPU down.
    """

    def __init__(self, head_dim: int, dtype: torch.dtype, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(0)
        self._store = torch.randn(4096, head_dim, generator=generator).to(device, dtype)
        self.sent_bytes = self.received_bytes = self.exchanges = 0

    def start(
        self, send: Tensor, send_counts: Sequence[int], receive: Tensor, receive_counts: Sequence[int]
    ) -> AloneTransport:
        """See :class:`zellige.exec.transports.Transport`."""
        del send_counts, receive_counts
        self.sent_bytes += send.numel() * send.element_size()
        self.received_bytes += receive.numel() * receive.element_size()
        self.exchanges += 1
        for start in range(0, len(receive), len(self._store)):
            part = receive[start : start + len(self._store)]
            part.copy_(self._store[: len(part)])
        return self

    def wait(self) -> None:
        """The rows are there."""

    def is_done(self) -> bool:
        """The rows are there."""
        return True


@dataclass
class RankStep:
    """A rank, ready to step: its model, its tokens, its engine and meter."""

    model: PackedDit
    run: LayerRun
    batch: RankBatch
    rows: Tensor
    meter: Meter

    def forward(self) -> Tensor:
        """The loss of the rank's own tokens."""
        output = self.model(self.batch, self.run, self.rows)
        error = (output.float() - self.batch.targets.float()).square().mean(1)
        loss: Tensor = (error.double() * self.batch.weights).sum()
        return loss

    def backward(self, loss: Tensor) -> None:
        """Gradients of all parameters, which are dropped at once."""
        loss.backward()  # type: ignore[no-untyped-call]
        self.model.zero_grad(set_to_none=True)

    def memory(self) -> Peak:
        """Bytes of one step beyond the weights, counted."""
        measure = cuda_peak if self.rows.is_cuda else cpu_peak
        return measure(self.forward, self.backward)

    def timed(self) -> StepTimes:
        """One step, measured."""
        self.meter.restart()
        self.backward(self.forward())
        wall, own = self.meter.stop()
        spans = tuple(SpanTime(name, layer, ns) for name, layer, ns in self.meter.durations())
        return StepTimes(wall_ns=wall, own_ns=own, spans=spans)


def prepare(
    trial: Trial,
    rank: int,
    transports: Mapping[tuple[int, ...], Transport],
    device: torch.device,
    explain: Explain | None = None,
    network: PackedDit | None = None,
) -> RankStep:
    """Everything that a rank needs; the model's weights are equal on all ranks.

    ``explain`` says why an exchange failed; ``network`` is the model, where it is there already.
    """
    program, model, dtype = trial.program, trial.model, DTYPES[trial.dtype]
    network = make_network(trial, device) if network is None else network
    text = [shape.text_tokens if model.text.attention == "cross" else 0 for shape in trial.shapes]
    stream = rank_stream(program, rank, text, device)
    meter = CpuMeter(rank) if device.type == "cpu" else EventMeter(rank)
    engine = Engine(
        program, rank, transports, select_kernel(device, dtype), dtype=dtype, device=device, recorder=meter,
        explain=explain,
    )  # fmt: skip
    angles = network.angles(token_positions(model, trial.shapes, stream).to(device), accumulation_dtype(dtype))
    return RankStep(network, LayerRun(engine, stream, *angles), _batch(trial, stream, device), _rows(stream), meter)


def make_network(trial: Trial, device: torch.device) -> PackedDit:
    """The model of a trial, its weights drawn from the seed."""
    torch.manual_seed(trial.seed)
    return PackedDit(trial.model).to(device, DTYPES[trial.dtype])


def _batch(trial: Trial, stream: RankStream, device: torch.device) -> RankBatch:
    samples = [draw_sample(trial.model, trial.shapes[p.segment], trial.seed, 0) for p in stream.pieces]
    total = sum(shape.num_visual for shape in trial.shapes)
    return rank_batch(
        trial.model, trial.shapes, stream, samples, total_tokens=total, device=device, dtype=DTYPES[trial.dtype]
    )


def _rows(stream: RankStream) -> Tensor:
    lengths = torch.tensor([piece.num_tokens for piece in stream.pieces], dtype=torch.long)
    return torch.repeat_interleave(torch.arange(len(stream.pieces)), lengths)


def alone(trial: Trial, rank: int, device: torch.device) -> RankStep:
    """A rank of a program without the others."""
    program = trial.program
    sets = {exchange.ranks for exchange in program.exchanges if not exchange.is_local}
    # One for each set: the engine adds up what all of them sent.
    transports = {ranks: AloneTransport(program.head_dim, DTYPES[trial.dtype], device) for ranks in sets}
    return prepare(trial, rank, transports, device)


@contextlib.contextmanager
def pinned(rank: int) -> Iterator[None]:
    """One thread, on one core (where the system can say so), inside the block."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if cores:
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    try:
        yield
    finally:
        if cores:
            os.sched_setaffinity(0, set(cores))
        torch.set_num_threads(threads)


def trial_task(session: Session, payload: bytes) -> bytes:
    """A rank's part of several trials, in turn (for :func:`zellige.exec.launch.run_ranks`)."""
    trials = msgspec.json.decode(payload, type=list[Trial])
    shown = fingerprint(trials[0].program, trials=str(len(trials)))
    with pinned(session.rank), connected(session, trials[0].backend, shown):
        return msgspec.json.encode(run_in_rounds(session, trials))


def staying_task(session: Session, payload: bytes) -> bytes:
    """A rank's part of trials that come one by one (for :func:`zellige.exec.launch.staying_ranks`)."""
    del payload

    def answer(request: bytes) -> bytes:
        return msgspec.json.encode(run_trial(session, msgspec.json.decode(request, type=Trial)))

    with pinned(session.rank), connected(session, "gloo", {"torch": str(torch.__version__)}):
        session.serve(answer)
    return b""


def run_in_rounds(session: Session, trials: Sequence[Trial]) -> list[RankTrial]:
    """A step of each trial, then the next of each: what slows a machine down for seconds meets all of them alike.

    So steps also find the caches that another program left, as they do in training. The process group must be there.
    """
    device = torch.device("cpu")
    sets = [exchange.ranks for trial in trials for exchange in trial.program.exchanges if not exchange.is_local]
    with contextlib.closing(
        Communicators(sets, "all-to-all", timeout=datetime.timedelta(seconds=session.timeout_s))
    ) as communicators:
        networks: dict[tuple[ModelSpec, DTypeName, int], PackedDit] = {}
        running = []
        for trial in trials:
            key = (trial.model, trial.dtype, trial.seed)
            networks.setdefault(key, make_network(trial, device))
            ready = prepare(
                trial, session.rank, communicators.transports, device, session.explain, network=networks[key]
            )
            running.append(Running(trial, ready))
        pace = Pace(device)
        for number in range(max(trial.warm_ups + trial.repeats for trial in trials)):
            for each in running:
                if number < each.trial.warm_ups + each.trial.repeats:
                    _most_of_all(session, 0)
                    each.step(number, pace, lambda: _most_of_all(session, 0))
        return [each.result(session.rank) for each in running]


NOTHING = Peak(0, 0)


@dataclass
class Running:
    """A trial that is on its way: what its steps so far have measured."""

    trial: Trial
    ready: RankStep
    steps: list[StepTimes] = field(default_factory=list)
    peak: Peak = NOTHING

    def step(self, number: int, pace: Pace, meet: Callable[[], object] = lambda: None) -> None:
        """Step ``number``: one that warms up, or one that is measured, the pace taken on both sides of it.

        ``meet`` brings ranks together behind the first of these.
        """
        if number < self.trial.warm_ups:
            if self.trial.memory and number == 0:
                self.peak = self.ready.memory()
            else:
                self.ready.timed()
            return
        pace.renew()
        meet()
        self.measure(pace)

    def measure(self, pace: Pace) -> None:
        """A step, with the pace that was taken last (before it) and the pace behind it."""
        done = self.ready.timed()
        self.steps.append(msgspec.structs.replace(done, pace_ns=pace.between()))

    def result(self, rank: int) -> RankTrial:
        """What the rank measured."""
        return RankTrial(
            rank=rank,
            steps=tuple(self.steps),
            weight_bytes=sum(weight.numel() * weight.element_size() for weight in self.ready.model.parameters()),
            peak_bytes=self.peak.peak_bytes,
            kept_bytes=self.peak.kept_bytes,
        )


def run_trial(session: Session, trial: Trial) -> RankTrial:
    """Run a trial on this rank; the process group must be there."""
    communicators = make_communicators(trial.program, session, "all-to-all")
    try:
        ready = prepare(trial, session.rank, communicators.transports, torch.device("cpu"), session.explain)
        return _steps(trial, session.rank, ready, torch.device("cpu"), lambda value: _most_of_all(session, value))
    finally:
        communicators.close()


def _most_of_all(session: Session, value: int) -> int:
    """The largest of the ranks' values; no rank goes on before all have come."""
    values = torch.tensor([value], dtype=torch.long)
    try:
        dist.all_reduce(values, dist.ReduceOp.MAX)
    except RuntimeError as error:
        raise session.explain(error, "the meeting before a step", tuple(range(session.num_ranks))) from error
    return int(values.item())


def run_one_alone(trial: Trial, rank: int, device: torch.device) -> RankTrial:
    """Run a trial's rank without the others; what this process frees from here on, it keeps."""
    keep_freed_memory()
    with pinned(0):
        return _steps(trial, rank, alone(trial, rank, device), device, int)


def _steps(trial: Trial, rank: int, ready: RankStep, device: torch.device, most: Callable[[int], int]) -> RankTrial:
    """All steps of a rank; ``most`` meets the other ranks and finds the largest of a value."""
    pace, running = Pace(device), Running(trial, ready)
    for number in range(trial.warm_ups):
        most(0)
        running.step(number, pace)

    def goes_on() -> bool:
        taken = running.steps
        spent = most(sum(step.own_ns for step in taken))
        return len(taken) < trial.repeats or (len(taken) < trial.most and spent < trial.box_ns)

    while goes_on():
        running.measure(pace)
    return running.result(rank)
