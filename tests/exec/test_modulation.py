"""Functions with a backward of their own, held against autograd's, and layers of every catalog model."""

from __future__ import annotations

import pytest
import torch
from oracle.training_reference import dit_errors, make_plan, reference_network, tiny_model
from torch.autograd import gradcheck

from zellige.catalog import names
from zellige.exec.data import SequenceShape, draw_sample, to_patches
from zellige.exec.kernels import Packing, Reference
from zellige.exec.modulation import gated, modulate, packed_attention, rms_norm, rotate
from zellige.exec.plans import shrunk_grid
from zellige.exec.training import TrainingRun

ROWS = torch.tensor([0, 0, 0, 2, 2])
"""Five tokens of three pieces; the second piece is empty."""


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def test_modulation_by_piece_is_what_it_says() -> None:
    tokens, scale, shift = draw(5, 4), draw(3, 4), draw(3, 4)
    assert torch.allclose(modulate(tokens, scale, shift, ROWS), shift[ROWS] + tokens * (1 + scale)[ROWS])
    assert gradcheck(lambda *x: modulate(*x, ROWS), (tokens, scale, shift))
    assert gradcheck(lambda *x: gated(*x, ROWS), (tokens, draw(5, 4), scale))


def test_the_norm_is_torchs() -> None:
    tokens, weight = draw(5, 2, 4), draw(4)
    assert torch.allclose(rms_norm(tokens, weight, 1e-6), torch.nn.functional.rms_norm(tokens, (4,), weight, 1e-6))
    assert gradcheck(lambda x, w: rms_norm(x, w, 1e-6), (tokens, weight))


def test_rotation_keeps_lengths_and_turns_by_position() -> None:
    tokens, angles = draw(5, 2, 6), torch.randn(5, 3, dtype=torch.float64)
    turned = rotate(tokens, angles.cos(), angles.sin())
    assert torch.allclose(turned.norm(dim=-1), tokens.norm(dim=-1))
    pairs = (
        torch.view_as_complex(tokens.detach().view(5, 2, 3, 2)) * torch.polar(torch.ones_like(angles), angles)[:, None]
    )
    assert torch.allclose(turned, torch.view_as_real(pairs).flatten(-2))


def test_cross_attention_of_nothing_has_gradients_of_nothing() -> None:
    packing = Packing((3, 2), (2, 4))
    assert gradcheck(
        lambda *x: packed_attention(Reference(), packing, *x), (draw(5, 2, 3), draw(6, 2, 3), draw(6, 2, 3))
    )
    inputs = [torch.zeros(0, 2, 3, requires_grad=True) for _ in range(3)]
    packed_attention(Reference(), None, *inputs).sum().backward()
    assert all(tensor.grad is not None and tensor.grad.shape == (0, 2, 3) for tensor in inputs)


@pytest.mark.parametrize("name", names("models"))
def test_every_catalog_model_trains_by_its_geometry(name: str) -> None:
    """Grouped K/V heads, joint text, other patches: a loss that is finite, and a gradient for every parameter."""
    model = tiny_model(name)
    shape = SequenceShape(sequence="clip", grid=(1, 2, 3), text_tokens=3)
    run = TrainingRun(plans=(make_plan(model, {"clip": ("whole", (0,))}, 1, grids={"clip": shape.grid}),), model=model)
    network = reference_network(run)
    loss = dit_errors(run, network, shape, 0, 0)  # type: ignore[arg-type]
    loss.backward()
    assert torch.isfinite(loss)
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_samples_depend_on_sequence_step_and_seed_alone() -> None:
    model = tiny_model()
    shape = SequenceShape(sequence="clip", grid=(2, 2, 3), text_tokens=4)
    first, again = draw_sample(model, shape, 0, 5), draw_sample(model, shape, 0, 5)
    assert all(torch.equal(a, b) for a, b in ((first.noisy, again.noisy), (first.text, again.text)))
    other = [draw_sample(model, shape, 1, 5), draw_sample(model, shape, 0, 6), draw_sample(model, shape, 0, 5, 1)]
    assert not any(torch.equal(first.clean, sample.clean) for sample in other)
    assert first.clean.shape == (16, 2, 4, 6)
    by_channel = to_patches(model, first.clean, channels_last=False)
    assert torch.equal(by_channel[7].view(16, 1, 2, 2), first.clean[:, 1:2, 0:2, 2:4])
    assert torch.equal(to_patches(model, first.clean, channels_last=True)[7].view(1, 2, 2, 16).permute(3, 0, 1, 2),
                       first.clean[:, 1:2, 0:2, 2:4])  # fmt: skip


def test_a_grid_shrinks_in_its_proportion_and_keeps_its_frames() -> None:
    assert shrunk_grid((41, 45, 80), 1) == (41, 45, 80)
    assert shrunk_grid((41, 45, 80), 100) == (41, 4, 8)
    assert shrunk_grid((41, 45, 80), 10**9) == (41, 1, 1)
