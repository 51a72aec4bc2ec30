"""diffusers' Wan on the packed stream: its own forward and backward, to rounding; and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from oracle.training_reference import GRIDS, make_plan, reference_network, tiny_model, wan_errors

from zellige.errors import KernelError, MissingExtraError
from zellige.exec.attention import Engine
from zellige.exec.data import draw_sample, rank_batch, token_positions
from zellige.exec.kernels import CpuFlash
from zellige.exec.layer import LayerRun
from zellige.exec.step import flow_loss
from zellige.exec.stream import rank_stream
from zellige.exec.training import TrainingRun
from zellige.exec.wan import PackedWan, check_structure, make_wan
from zellige.memory import Checkpoint

MODEL = tiny_model()


def run_of(checkpoint: Checkpoint, dtype: str) -> TrainingRun:
    plan = make_plan(MODEL, dict.fromkeys(GRIDS, ("whole", (0,))), 1, checkpoint=checkpoint)
    return TrainingRun(plans=(plan,), model=MODEL, network="wan", dtype=dtype)  # type: ignore[arg-type]


@pytest.mark.parametrize("checkpoint", ["full", "selective", "none"])
def test_packed_blocks_compute_what_the_models_own_forward_does(checkpoint: Checkpoint) -> None:
    """An image, a video and more in one stream, each with its own text and timestep; fp32, within 1e-5."""
    run = run_of(checkpoint, "fp32")
    plan, network = run.plans[0], reference_network(run)
    wanted = sum(wan_errors(run, network, shape, 3, 0) for shape in plan.shapes) / plan.num_visual
    wanted.backward()
    gradients = {name: parameter.grad.clone() for name, parameter in network.named_parameters()}
    network.zero_grad()
    packed = PackedWan(network)
    stream = rank_stream(plan.program, 0, [shape.text_tokens for shape in plan.shapes], torch.device("cpu"))
    angles = packed.angles(token_positions(MODEL, plan.shapes, stream), torch.float32)
    samples = [draw_sample(MODEL, plan.shapes[piece.segment], 0, 3) for piece in stream.pieces]
    batch = rank_batch(
        MODEL, plan.shapes, stream, samples, total_tokens=plan.num_visual, device=torch.device("cpu"),
        dtype=torch.float32,
    )  # fmt: skip
    rows = torch.repeat_interleave(
        torch.arange(len(stream.pieces)), torch.tensor([piece.num_tokens for piece in stream.pieces])
    )
    engine = Engine(plan.program, 0, {}, CpuFlash(), dtype=torch.float32)
    loss = flow_loss(packed(batch, LayerRun(engine, stream, *angles), rows), batch)
    loss.backward()
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-6)
    assert packed.model is network
    for name, parameter in network.named_parameters():
        wanted_grad = gradients[name]
        assert (parameter.grad - wanted_grad).abs().max() <= 1e-5 * wanted_grad.abs().max(), name


def broken(part: str) -> Any:
    network: Any = make_wan(MODEL)
    *path, last = part.split(".")
    owner = network
    for name in path:
        owner = owner[int(name)] if name.isdecimal() else getattr(owner, name)
    delattr(owner, last)
    return network


@pytest.mark.parametrize("part", ["proj_out", "blocks.1.norm3", "blocks.0.attn1.norm_q"])
def test_a_module_of_another_structure_is_refused_by_what_it_lacks(part: str) -> None:
    with pytest.raises(KernelError, match="not the Wan transformer of diffusers") as caught:
        check_structure(broken(part))
    assert part.rpartition(".")[2] in "".join(caught.value.details)


def test_fused_projections_and_image_conditioning_are_refused() -> None:
    network: Any = make_wan(MODEL)
    for block in network.blocks:
        block.attn1.fuse_projections()
    with pytest.raises(KernelError, match="image conditioning, fused projections"):
        PackedWan(network)


def test_another_release_of_diffusers_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diffusers.__version__", "0.39.0")
    with pytest.raises(MissingExtraError, match=r"follows diffusers 0\.42, and 0\.39\.0 is installed"):
        make_wan(MODEL)


def test_a_model_that_is_not_wans_kind_is_sent_to_the_other_network() -> None:
    with pytest.raises(KernelError, match="not of Wan's kind"):
        make_wan(tiny_model("flux.1-dev"))
