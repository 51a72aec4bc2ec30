"""Training steps for measuring: the packed DiT under a program, forward, loss and backward, with every span timed.

A trial runs on real ranks, or on one rank **alone**: its exchanges are then answered by a transport that fills every
receive buffer from a store of random rows, so that one device can do the local work of any rank of any program. Both
are the same code. What no placement changes is left out: the gradient reduction and the optimizer.

Spans of CPU ranks are timed by the thread's own CPU time, which other processes on the machine do not lengthen; spans
of a GPU by events on its stream. A whole step is also timed by the wall clock.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from zellige.exec.attention import Engine, Explain
from zellige.exec.data import RankBatch, SequenceShape, draw_sample, rank_batch, token_positions
from zellige.exec.dit import PackedDit
from zellige.exec.execute import DTYPES, DTypeName, make_communicators, select_kernel
from zellige.exec.kernels import accumulation_dtype
from zellige.exec.layer import LayerRun
from zellige.exec.live_memory import Peak, cpu_peak, cuda_peak
from zellige.exec.meters import CpuMeter, EventMeter, Meter
from zellige.exec.session import Backend, Session, connected, fingerprint
from zellige.exec.stream import RankStream, rank_stream
from zellige.exec.transports import Transport
from zellige.model import ModelSpec
from zellige.program import Program


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """What to run: ``shapes`` by segment of the program; the first ``warm_ups`` steps are not reported.

    Beyond ``repeats`` come more steps, up to ``most``, while those of the slowest rank add up to less than ``box_ns``.
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
) -> RankStep:
    """Everything that a rank needs; the model's weights are equal on all ranks.

    ``explain`` says why an exchange failed.
    """
    program, model, dtype = trial.program, trial.model, DTYPES[trial.dtype]
    torch.manual_seed(trial.seed)
    network = PackedDit(model).to(device, dtype)
    text = [shape.text_tokens if model.text.attention == "cross" else 0 for shape in trial.shapes]
    stream = rank_stream(program, rank, text, device)
    meter = CpuMeter(rank) if device.type == "cpu" else EventMeter(rank)
    engine = Engine(
        program, rank, transports, select_kernel(device, dtype), dtype=dtype, device=device, recorder=meter,
        explain=explain,
    )  # fmt: skip
    angles = network.angles(token_positions(model, trial.shapes, stream).to(device), accumulation_dtype(dtype))
    return RankStep(network, LayerRun(engine, stream, *angles), _batch(trial, stream, device), _rows(stream), meter)


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
    transport = AloneTransport(program.head_dim, DTYPES[trial.dtype], device)
    sets = {exchange.ranks for exchange in program.exchanges if not exchange.is_local}
    return prepare(trial, rank, dict.fromkeys(sets, transport), device)


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
    """A rank's part of several trials, one after another (for :func:`zellige.exec.launch.run_ranks`)."""
    trials = msgspec.json.decode(payload, type=list[Trial])
    shown = fingerprint(trials[0].program, trials=str(len(trials)))
    with pinned(session.rank), connected(session, trials[0].backend, shown):
        return msgspec.json.encode([run_trial(session, trial) for trial in trials])


def staying_task(session: Session, payload: bytes) -> bytes:
    """A rank's part of trials that come one by one (for :func:`zellige.exec.launch.staying_ranks`)."""
    del payload

    def answer(request: bytes) -> bytes:
        return msgspec.json.encode(run_trial(session, msgspec.json.decode(request, type=Trial)))

    with pinned(session.rank), connected(session, "gloo", {"torch": str(torch.__version__)}):
        session.serve(answer)
    return b""


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
    """Run a trial's rank without the others."""
    with pinned(0):
        return _steps(trial, rank, alone(trial, rank, device), device, int)


def _steps(trial: Trial, rank: int, ready: RankStep, device: torch.device, most: Callable[[int], int]) -> RankTrial:
    """All steps of a rank; ``most`` meets the other ranks and finds the largest of a value."""
    pace, peak = Pace(device), Peak(0, 0)
    for number in range(trial.warm_ups):
        most(0)
        if trial.memory and number == 0:
            peak = ready.memory()
        else:
            ready.timed()
    steps: list[StepTimes] = []

    def goes_on() -> bool:
        spent = most(sum(step.own_ns for step in steps))
        return len(steps) < trial.repeats or (len(steps) < trial.most and spent < trial.box_ns)

    while goes_on():
        steps.append(pace.around(ready.timed))
    return RankTrial(
        rank=rank,
        steps=tuple(steps),
        weight_bytes=sum(weight.numel() * weight.element_size() for weight in ready.model.parameters()),
        peak_bytes=peak.peak_bytes,
        kept_bytes=peak.kept_bytes,
    )


PACE_TOKENS, PACE_WIDTH, PACE_HEADS, PACE_LENGTH = 1000, 128, 4, 400
"""The reference work: an MLP of so many tokens twice, and attention of so many three times. Some 10 ms on one core.

It slows down as a step does where a machine's neighbours take cache and memory from it (measured on a shared machine: a
step's time goes with the 0.98th power of it), which products of small matrices alone do not.
"""


class Pace:
    """A fixed piece of work that says how fast a device is just now."""

    def __init__(self, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(0)

        def values(*shape: int) -> Tensor:
            drawn = torch.randn(shape, generator=generator).to(device)
            return drawn.div(shape[-1] ** 0.5)

        self._tokens = values(PACE_TOKENS, PACE_WIDTH)
        self._up, self._down = values(4 * PACE_WIDTH, PACE_WIDTH), values(PACE_WIDTH, 4 * PACE_WIDTH)
        self._heads = values(1, PACE_HEADS, PACE_LENGTH, PACE_WIDTH // PACE_HEADS)
        self._meter = CpuMeter(0) if device.type == "cpu" else EventMeter(0)
        self.now()
        self._last = self.now()

    def now(self) -> int:
        """Nanoseconds that the work takes."""
        self._meter.restart()
        with torch.no_grad():
            for _ in range(2):
                wide = functional.linear(functional.layer_norm(self._tokens, (PACE_WIDTH,)), self._up)
                functional.linear(functional.gelu(wide, approximate="tanh"), self._down)
            for _ in range(3):
                functional.scaled_dot_product_attention(self._heads, self._heads, self._heads)
        return self._meter.stop()[1]

    def around(self, step: Callable[[], StepTimes]) -> StepTimes:
        """A step, with the pace before it (which is that behind the step before) and behind it."""
        done, before = step(), self._last
        self._last = self.now()
        return msgspec.structs.replace(done, pace_ns=(before + self._last) // 2)
