"""A training step of a rank: micro-steps of forward, loss and backward, gradient reduction, optimizer.

The loss is a mean over all visual tokens of the step, on whatever ranks they are: every rank adds up its own tokens,
each weighted by 1 over the number of all, and gradients are summed over ranks. So neither depends on the plan. Ranks
without tokens run everything with empty tensors, because collectives wait for them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor, nn

from zellige.exec.attention import Engine
from zellige.exec.data import RankBatch, SequenceShape, draw_sample, rank_batch, token_positions
from zellige.exec.kernels import Kernel, accumulation_dtype
from zellige.exec.layer import LayerRun
from zellige.exec.recorder import Recorder
from zellige.exec.session import Session
from zellige.exec.stream import RankStream, rank_stream
from zellige.exec.transports import Communicators
from zellige.model import ModelSpec
from zellige.program import Program

Parallel = Literal["ddp", "fsdp"]


class TrainingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A program, and the shapes of its sequences in the order of its segments."""

    program: Program
    shapes: tuple[SequenceShape, ...]

    @property
    def num_visual(self) -> int:
        """Tokens that the loss is a mean of."""
        return sum(shape.num_visual for shape in self.shapes)


@dataclass(frozen=True)
class RankPlan:
    """A plan made ready on a rank."""

    plan: TrainingPlan
    run: LayerRun
    rows: Tensor
    communicators: Communicators

    @property
    def stream(self) -> RankStream:
        """The rank's packed stream."""
        return self.run.stream


def prepare(
    plan: TrainingPlan,
    model: ModelSpec,
    network: nn.Module,
    session: Session,
    communicators: Communicators,
    *,
    kernel: Kernel,
    dtype: torch.dtype,
    device: torch.device,
    recorder: Recorder,
) -> RankPlan:
    """Engine, stream and rotary angles of a plan on this rank."""
    crosses = model.text.attention == "cross"
    text_rows = [shape.text_tokens if crosses else 0 for shape in plan.shapes]
    stream = rank_stream(plan.program, session.rank, text_rows, device)
    engine = Engine(
        plan.program,
        session.rank,
        communicators.transports,
        kernel,
        dtype=dtype,
        device=device,
        recorder=recorder,
        explain=session.explain,
    )
    positions = token_positions(model, plan.shapes, stream).to(device)
    find_angles: Any = network.angles
    cosine, sine = find_angles(positions, accumulation_dtype(dtype))
    lengths = torch.tensor([piece.num_tokens for piece in stream.pieces], dtype=torch.long)
    rows = torch.repeat_interleave(torch.arange(len(lengths)), lengths).to(device)
    return RankPlan(plan, LayerRun(engine, stream, cosine, sine), rows, communicators)


def distribute(network: nn.Module, parallel: Parallel, dtype: torch.dtype, device: torch.device) -> nn.Module:
    """The network under DDP, or under FSDP2 with a shard group for each block; gradients are sums over ranks in both.

    With FSDP2 parameters stay in the type that they are in (fp32), and bf16 is what is gathered and computed in.
    """
    if parallel == "ddp":
        from torch.nn.parallel import DistributedDataParallel

        return DistributedDataParallel(network)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    mixed = dtype in (torch.bfloat16, torch.float16)
    policy = MixedPrecisionPolicy(
        param_dtype=dtype if mixed else None, reduce_dtype=torch.float32 if mixed else None, cast_forward_inputs=False
    )
    blocks: Any = network.blocks
    for block in [*blocks, network]:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    for module in network.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            # Else the factor would travel as an operation that gloo does not have.
            module.set_force_sum_reduction_for_comms(True)
    return network


class StepResult(msgspec.Struct, frozen=True):
    """What a step did, the same on every rank."""

    loss: float
    gradient_norm: float


class TrainStep:
    """Runs training steps of a distributed network, with AdamW."""

    def __init__(
        self,
        model: ModelSpec,
        network: nn.Module,
        parallel: Parallel,
        *,
        seed: int,
        learning_rate: float,
        dtype: torch.dtype,
        device: torch.device,
        recorder: Recorder,
    ) -> None:
        self.network = network
        self.optimizer = torch.optim.AdamW(
            [parameter for parameter in network.parameters() if parameter.requires_grad], lr=learning_rate
        )
        self._model, self._parallel, self._seed = model, parallel, seed
        self._dtype, self._device, self._recorder = dtype, device, recorder

    def __call__(self, plans: Sequence[RankPlan], number: int) -> StepResult:
        """Step ``number`` over micro-steps of these plans; every rank must call it with the same ones."""
        total = sum(plan.plan.num_visual for plan in plans)
        loss = torch.zeros((), dtype=torch.float64, device=self._device)
        self.optimizer.zero_grad(set_to_none=True)
        for micro_step, plan in enumerate(plans):
            with self._synchronized(micro_step == len(plans) - 1):
                loss += self._micro_step(plan, number, micro_step, total)
        dist.all_reduce(loss)
        norm = self._gradient_norm()
        start = self._recorder.now()
        self.optimizer.step()
        self._recorder.add("optimizer", "compute", start)
        return StepResult(loss.item(), norm)

    def _micro_step(self, plan: RankPlan, number: int, micro_step: int, total: int) -> Tensor:
        batch = self.batch(plan, number, micro_step, total)
        predictions = self.network(batch, plan.run, plan.rows)
        loss = flow_loss(predictions, batch)
        # DDP takes the mean over ranks of what every rank hands it; the sum is wanted.
        (loss * (dist.get_world_size() if self._parallel == "ddp" else 1)).backward()  # type: ignore[no-untyped-call]
        return loss.detach().double()

    def batch(self, plan: RankPlan, number: int, micro_step: int, total: int) -> RankBatch:
        """This rank's tokens of a micro-step; ``total`` counts the visual tokens of the whole step."""
        shapes = plan.plan.shapes
        samples = [
            draw_sample(self._model, shapes[piece.segment], self._seed, number, micro_step)
            for piece in plan.stream.pieces
        ]
        return rank_batch(
            self._model, shapes, plan.stream, samples, total_tokens=total, device=self._device, dtype=self._dtype
        )

    @contextlib.contextmanager
    def _synchronized(self, last: bool) -> Iterator[None]:
        """Gradients travel in the last micro-step alone."""
        network: Any = self.network
        if self._parallel == "fsdp":
            network.set_requires_gradient_sync(last)
            yield
        else:
            with contextlib.nullcontext() if last else network.no_sync():
                yield

    def _gradient_norm(self) -> float:
        """The norm of all gradients together."""
        squares = torch.zeros((), dtype=torch.float64, device=self._device)
        for parameter in self.network.parameters():
            if parameter.grad is not None:
                squares += own_part(parameter.grad).double().square().sum()
        if self._parallel == "fsdp":
            dist.all_reduce(squares)
        return squares.sqrt().item()


def own_part(tensor: Tensor) -> Tensor:
    """This rank's part of a sharded tensor, or the tensor."""
    from torch.distributed.tensor import DTensor

    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def flow_loss(predictions: Tensor, batch: RankBatch) -> Tensor:
    """This rank's part of the loss: squared errors, the mean over a token's values, weighted and added up."""
    wide = accumulation_dtype(predictions.dtype)
    errors = (predictions.to(wide) - batch.targets.to(wide)).square().mean(1)
    return (errors * batch.weights.to(wide)).sum()
