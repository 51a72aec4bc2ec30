"""Training runs: a plan, or several in turn, step after step on ranks that are there already.

:func:`run_training` is a rank's part. :func:`execute_training` starts the ranks on this machine; ``torchrun -m
zellige.exec --plan`` runs it on those of a cluster.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Literal

import msgspec
import torch
import torch.distributed as dist
from torch import nn

from zellige.exec.devices import rank_device, require_backend
from zellige.exec.dit import PackedDit
from zellige.exec.execute import DTYPES, DTypeName, TransportName, make_communicators, select_kernel
from zellige.exec.kernels import accumulation_dtype
from zellige.exec.launch import run_ranks
from zellige.exec.live_memory import LiveBytes
from zellige.exec.metrics import MetricsLog, StepMetrics
from zellige.exec.recorder import Recorder
from zellige.exec.session import Backend, Session, connected, fingerprint, require_ranks
from zellige.exec.step import Parallel, RankPlan, StepResult, TrainingPlan, TrainStep, distribute, own_part, prepare
from zellige.exec.training_state import load_state, require_record, save_state
from zellige.exec.wan import PackedWan, make_wan, require_wan
from zellige.files import digest
from zellige.model import ModelSpec
from zellige.trace import Span, Trace
from zellige.units import count_of, format_bytes, format_time

NetworkName = Literal["dit", "wan"]

COLLECTIVE_FAILURES = ("gloo/transport", "nccl error", "connection closed by peer", "connection reset", "timed out")
"""What gloo and NCCL say when a peer is gone or late."""

READY_PLANS = 8
"""Plans that are kept ready, of the most recently used."""


class TrainingRun(msgspec.Struct, frozen=True, kw_only=True):
    """What to run: step n takes ``accumulate`` plans from the n-th such bundle on, round and round.

    ``directory`` gets metrics and, every ``save_every`` steps, a checkpoint (0: none); ``resume`` goes on from the
    last. ``trace`` records the spans of the last step; ``measure_memory`` counts live tensors in the second (on CPU).
    """

    plans: tuple[TrainingPlan, ...]
    model: ModelSpec
    network: NetworkName = "dit"
    parallel: Parallel = "ddp"
    dtype: DTypeName = "fp32"
    steps: int = 1
    accumulate: int = 1
    learning_rate: float = 1e-4
    seed: int = 0
    backend: Backend = "gloo"
    transport: TransportName = "all-to-all"
    directory: str = ""
    save_every: int = 0
    resume: bool = False
    trace: bool = False
    measure_memory: bool = False

    @property
    def digest(self) -> str:
        """The digest of everything that decides the loss curve."""
        plans = [[plan.program.digest, msgspec.to_builtins(plan.shapes)] for plan in self.plans]
        settings = [self.network, self.parallel, self.dtype, self.accumulate, self.learning_rate, self.seed]
        return digest([plans, msgspec.to_builtins(self.model), settings, self.transport])

    def plans_of(self, step: int) -> list[int]:
        """The plans of a step's micro-steps."""
        return [(step * self.accumulate + micro) % len(self.plans) for micro in range(self.accumulate)]


class RankTraining(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's answer: the steps that it ran, and what was measured of them."""

    rank: int
    first_step: int
    losses: tuple[float, ...]
    gradient_norms: tuple[float, ...]
    step_ns: tuple[int, ...]
    peak_memory_bytes: int | None
    spans: tuple[Span, ...]


class Training(msgspec.Struct, frozen=True, kw_only=True):
    """A finished run; the trace is of its last step."""

    SCHEMA: ClassVar[str] = "zellige.training/1"

    schema: str = "zellige.training/1"
    ranks: tuple[RankTraining, ...]
    trace: Trace | None

    @property
    def losses(self) -> tuple[float, ...]:
        """The loss of every step that was run."""
        return self.ranks[0].losses


def make_network(run: TrainingRun, device: torch.device) -> nn.Module:
    """The network, equal on all ranks; under FSDP2 parameters stay in fp32 (fp64 for fp64)."""
    torch.manual_seed(run.seed)
    network = PackedWan(make_wan(run.model)) if run.network == "wan" else PackedDit(run.model)
    dtype = DTYPES[run.dtype]
    if run.parallel == "fsdp" and dtype != torch.float64:
        dtype = torch.float32
    network = network.to(device, dtype)
    if run.parallel == "ddp":
        # Modulation is computed in fp32, from tables in fp32; a shard group must have one type.
        for name, parameter in network.named_parameters():
            if name.endswith("table"):
                parameter.data = parameter.data.to(accumulation_dtype(dtype))
    return network


class Trainer:
    """A rank in the middle of a run."""

    def __init__(self, session: Session, run: TrainingRun) -> None:
        self.session, self.run = session, run
        self.device, dtype = rank_device(run.backend, session.rank), DTYPES[run.dtype]
        on_gpu = self.device.type == "cuda"
        self.recorder = Recorder(session.rank, synchronize=torch.cuda.synchronize if on_gpu else None)
        self.bare = make_network(run, self.device)
        self.kernel = select_kernel(self.device, dtype)
        network = distribute(self.bare, run.parallel, dtype, self.device)
        self.train_step = TrainStep(
            run.model,
            network,
            run.parallel,
            seed=run.seed,
            learning_rate=run.learning_rate,
            dtype=dtype,
            device=self.device,
            recorder=self.recorder,
        )
        self._ready: OrderedDict[int, RankPlan] = OrderedDict()

    def ready(self, index: int) -> RankPlan:
        """A plan, prepared; all ranks prepare and drop plans in the same order, for that may make process groups."""
        if index not in self._ready:
            plan = self.run.plans[index]
            self._ready[index] = prepare(
                plan,
                self.run.model,
                self.bare,
                self.session,
                make_communicators(plan.program, self.session, self.run.transport),
                kernel=self.kernel,
                dtype=DTYPES[self.run.dtype],
                device=self.device,
                recorder=self.recorder,
            )
        self._ready.move_to_end(index)
        while len(self._ready) > max(READY_PLANS, self.run.accumulate):
            self._ready.popitem(last=False)[1].communicators.close()
        return self._ready[index]

    def step(self, number: int) -> StepMetrics:
        """Run one step, and say what it did."""
        plans = [self.ready(index) for index in self.run.plans_of(number)]
        before = _moved(plans)
        start = time.perf_counter_ns()
        result = self._explained(plans, number)
        took = time.perf_counter_ns() - start
        exchanges, received = (after - earlier for after, earlier in zip(_moved(plans), before, strict=True))
        return StepMetrics(
            step=number,
            loss=result.loss,
            gradient_norm=result.gradient_norm,
            tokens=sum(plan.plan.num_visual for plan in plans),
            step_ns=took,
            exchanges=exchanges,
            received_bytes=received,
            plan=plans[0].plan.program.plan or plans[0].plan.program.digest,
        )

    def _explained(self, plans: Sequence[RankPlan], number: int) -> StepResult:
        """The step; a collective that fails becomes an error that names ranks."""
        try:
            return self.train_step(plans, number)
        except RuntimeError as error:
            if not is_collective_failure(error):
                raise
            raise self.session.explain(error, f"step {number}", tuple(range(self.session.num_ranks))) from error

    def state_bytes(self) -> int:
        """Parameters and optimizer state of this rank."""
        tensors: list[torch.Tensor] = list(self.train_step.network.parameters())
        for moments in self.train_step.optimizer.state.values():
            tensors += [value for value in moments.values() if isinstance(value, torch.Tensor)]
        return sum(own_part(tensor).nbytes for tensor in tensors)

    def close(self) -> None:
        """Leave the process groups that plans made."""
        for plan in self._ready.values():
            plan.communicators.close()


def is_collective_failure(error: RuntimeError) -> bool:
    """Whether an error is one of communication, not of what this rank computed."""
    if isinstance(error, dist.DistError):
        return True
    text = str(error).lower()
    return any(word in text for word in COLLECTIVE_FAILURES)


def _moved(plans: Sequence[RankPlan]) -> tuple[int, int]:
    communicators = {id(plan.communicators): plan.communicators for plan in plans}.values()
    return sum(c.exchanges for c in communicators), sum(c.received_bytes for c in communicators)


def run_training(
    session: Session, run: TrainingRun, after_step: Callable[[Trainer, int], None] | None = None
) -> RankTraining:
    """Run the steps on this rank; the process group must be there. ``after_step`` is called with each step's number."""
    trainer = Trainer(session, run)
    directory = Path(run.directory) if run.directory else None
    network, optimizer = trainer.train_step.network, trainer.train_step.optimizer
    first = 0
    if directory is not None and run.resume:
        first = load_state(directory, network, optimizer, run.digest, session.rank)
    log = MetricsLog(directory, steps_done=first) if directory is not None and session.rank == 0 else None
    done: list[StepMetrics] = []
    peak: int | None = None
    for number in range(first, run.steps):
        measured = run.measure_memory and number == min(first + 1, run.steps - 1)
        metrics, step_peak = _one_step(trainer, number, measures=measured)
        peak = step_peak if step_peak is not None else peak
        done.append(metrics)
        if log is not None:
            log.write(metrics)
        if directory is not None and run.save_every and (number + 1) % run.save_every == 0:
            save_state(directory, network, optimizer, number + 1, run.digest, session.rank)
        if after_step is not None:
            after_step(trainer, number)
    if log is not None:
        log.close()
    trainer.close()
    return RankTraining(
        rank=session.rank,
        first_step=first,
        losses=tuple(metrics.loss for metrics in done),
        gradient_norms=tuple(metrics.gradient_norm for metrics in done),
        step_ns=tuple(metrics.step_ns for metrics in done),
        peak_memory_bytes=peak,
        spans=tuple(trainer.recorder.spans),
    )


def _one_step(trainer: Trainer, number: int, *, measures: bool) -> tuple[StepMetrics, int | None]:
    """A step, recorded if it is the traced one; with the fullest rank's peak memory where that is known."""
    recorder, run = trainer.recorder, trainer.run
    on_gpu = trainer.device.type == "cuda"
    if run.trace and number == run.steps - 1:
        dist.barrier()
        recorder.enabled = True
        recorder.restart()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    counter = LiveBytes() if measures and not on_gpu else None
    with counter or contextlib.nullcontext():
        metrics = trainer.step(number)
    recorder.enabled = False
    if counter is None and not on_gpu:
        return metrics, None
    own = torch.cuda.max_memory_allocated() if counter is None else trainer.state_bytes() + counter.peak
    fullest = torch.tensor(own, device=trainer.device)
    dist.all_reduce(fullest, dist.ReduceOp.MAX)
    return msgspec.structs.replace(metrics, peak_memory_bytes=int(fullest)), own


def training_task(session: Session, payload: bytes) -> bytes:
    """A rank's part of :func:`execute_training`."""
    run = msgspec.json.decode(payload, type=TrainingRun)
    with training_session(session, run):
        return msgspec.json.encode(run_training(session, run))


@contextlib.contextmanager
def training_session(session: Session, run: TrainingRun) -> Iterator[None]:
    """Agree with all ranks about the run, and join the process group."""
    for plan in run.plans:
        require_ranks(plan.program, session.num_ranks)
    around = f"steps {run.steps}, save {run.save_every}, resume {run.resume}, trace {run.trace}, {run.measure_memory}"
    shown = fingerprint(run.plans[0].program, run=run.digest, backend=run.backend, settings=around)
    with connected(session, run.backend, shown):
        yield


def execute_training(
    run: TrainingRun,
    *,
    timeout_s: float = 60.0,
    deadline_s: float | None = None,
    watch: Callable[[list[int]], None] | None = None,
) -> Training:
    """Run it on processes of this machine, one a rank of the first plan.

    Raises :class:`zellige.exec.launch.RanksFailedError` with every rank's error; no process outlives the call.
    """
    require_runnable(run)
    payload = msgspec.json.encode(run)
    num_ranks = run.plans[0].program.num_ranks
    answers = run_ranks(training_task, [payload] * num_ranks, timeout_s=timeout_s, deadline_s=deadline_s, watch=watch)
    return collect_training(run, [msgspec.json.decode(answer, type=RankTraining) for answer in answers])


def require_runnable(run: TrainingRun) -> None:
    """Raise what ranks of this machine would raise once started: a back end, a package or a checkpoint not there."""
    require_backend(run.backend, run.plans[0].program.num_ranks)
    if run.network == "wan":
        require_wan(run.model)
    if run.resume:
        require_record(Path(run.directory))


def collect_training(run: TrainingRun, ranks: Sequence[RankTraining]) -> Training:
    """One run from the answers of all ranks, in their order."""
    program = run.plans[run.plans_of(run.steps - 1)[0]].program
    spans = sorted((span for r in ranks for span in r.spans), key=lambda s: (s.start_ns, s.rank, s.lane, s.name))
    trace = Trace(
        origin="measured",
        program=program.digest,
        engine=program.engine,
        num_ranks=program.num_ranks,
        spans=tuple(spans),
        notes=(
            f"a training step: {run.network} of {count_of(run.model.geometry.num_layers, 'layer')}, {run.parallel},"
            f" {run.dtype}",
            f"{run.backend}, {run.transport}",
        ),
    )
    return Training(ranks=tuple(ranks), trace=trace if run.trace and spans else None)


def _rank_lines(run: TrainingRun, done: Training) -> list[str]:
    """A line a rank, with the columns that have values: steps may all be done, and memory is measured on demand."""
    columns = {
        f"{'rank':>4}": [f"{rank.rank:>4}" for rank in done.ranks],
        f"{'tokens':>9}": [f"{sum(p.program.owned_tokens(rank.rank) for p in run.plans):>9,}" for rank in done.ranks],
        f"{'median step':>11}": [
            f"{format_time(int(statistics.median(rank.step_ns))):>11}" for rank in done.ranks if rank.step_ns
        ],
        f"{'peak memory':>11}": [
            f"{format_bytes(rank.peak_memory_bytes):>11}" for rank in done.ranks if rank.peak_memory_bytes is not None
        ],
    }
    kept = {title: cells for title, cells in columns.items() if len(cells) == len(done.ranks)}
    return ["  ".join(kept), *("  ".join(cells) for cells in zip(*kept.values(), strict=True))]


def training_lines(run: TrainingRun, done: Training) -> list[str]:
    """What a person wants to know of a run."""
    first = done.ranks[0]
    lines = [
        f"{run.network} of {run.model.name}, {count_of(run.model.geometry.num_layers, 'layer')} of"
        f" {run.model.geometry.hidden_dim},"
        f" {run.parallel}, {run.dtype}, checkpoint {run.plans[0].program.checkpoint}",
        *_rank_lines(run, done),
    ]
    if first.losses:
        shown = {first.first_step: first.losses[0], first.first_step + len(first.losses) - 1: first.losses[-1]}
        lines.append("loss " + ", ".join(f"{loss:.6f} at step {step}" for step, loss in shown.items()))
    else:
        lines.append(f"all {count_of(first.first_step, 'step')} done already")
    if run.directory:
        lines.append(f"metrics of every step: {Path(run.directory) / 'metrics.jsonl'}")
    return lines
