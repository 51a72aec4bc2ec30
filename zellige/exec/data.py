"""Synthetic training data: latents, noise, timestep and text of a sequence, from its id and the step alone.

Every rank that owns a part of a sequence draws the same sample and takes its own tokens, so a plan changes nothing
about the data. Flow matching: the model sees ``(1 - sigma) clean + sigma noise`` and is taught ``noise - clean``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import torch
from torch import Tensor

from zellige.exec.stream import Piece, RankStream
from zellige.model import ModelSpec

TIMESTEPS = 1000.0
"""The timestep that stands for pure noise."""


class SequenceShape(msgspec.Struct, frozen=True, kw_only=True):
    """A sequence by its id, its grid of visual tokens (time, rows, columns), and its text tokens."""

    sequence: str
    grid: tuple[int, int, int]
    text_tokens: int

    @property
    def num_visual(self) -> int:
        """Tokens of the grid."""
        time, rows, columns = self.grid
        return time * rows * columns


class Sample(NamedTuple):
    """One sequence at one step: latents and noise ``[channels, frames, height, width]``, sigma in 0..1, text rows."""

    clean: Tensor
    noise: Tensor
    sigma: float
    text: Tensor

    @property
    def noisy(self) -> Tensor:
        """What the model sees."""
        return (1 - self.sigma) * self.clean + self.sigma * self.noise

    @property
    def target(self) -> Tensor:
        """What the model is taught."""
        return self.noise - self.clean


def draw_sample(model: ModelSpec, shape: SequenceShape, seed: int, step: int, micro_step: int = 0) -> Sample:
    """The sample of a sequence, in fp32 on CPU; equal for equal arguments whatever the plan."""
    key = f"{seed}/{shape.sequence}/{step}/{micro_step}".encode()
    generator = torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(key).digest()[:8], "big") >> 1)
    latent, (time, rows, columns) = model.latent, shape.grid
    size = (latent.channels, time * latent.patch_t, rows * latent.patch_h, columns * latent.patch_w)
    sigma = float(torch.rand((), generator=generator))
    clean, noise = torch.randn(size, generator=generator), torch.randn(size, generator=generator)
    return Sample(clean, noise, sigma, torch.randn(shape.text_tokens, model.text.dim, generator=generator))


def to_patches(model: ModelSpec, latents: Tensor, *, channels_last: bool) -> Tensor:
    """``[tokens, values]`` of latents; a token's values run over (channel, t, y, x), or over (t, y, x, channel)."""
    latent = model.latent
    time, rows, columns = (
        size // patch
        for size, patch in zip(latents.shape[1:], (latent.patch_t, latent.patch_h, latent.patch_w), strict=True)
    )
    cells = latents.reshape(latents.shape[0], time, latent.patch_t, rows, latent.patch_h, columns, latent.patch_w)
    order = (1, 3, 5, 2, 4, 6, 0) if channels_last else (1, 3, 5, 0, 2, 4, 6)
    return cells.permute(*order).reshape(time * rows * columns, -1)


@dataclass(frozen=True)
class RankBatch:
    """A rank's own tokens of a batch, in the order of its stream.

    ``patches`` and ``targets`` are ``[tokens, values]`` (zeros for text tokens of joint attention), ``weights``
    ``[tokens]`` add up to 1 over all ranks, ``timesteps`` ``[pieces]``. ``text`` holds text rows; ``text_places`` says
    which tokens they are where attention is joint, and is None where they are attended to across.
    """

    patches: Tensor
    targets: Tensor
    weights: Tensor
    timesteps: Tensor
    text: Tensor
    text_places: Tensor | None


@dataclass
class _Columns:
    patches: list[Tensor]
    targets: list[Tensor]
    weights: list[Tensor]
    text: list[Tensor]
    text_places: list[Tensor]


def rank_batch(
    model: ModelSpec,
    shapes: Sequence[SequenceShape],
    stream: RankStream,
    samples: Sequence[Sample],
    *,
    total_tokens: int,
    device: torch.device,
    dtype: torch.dtype,
) -> RankBatch:
    """The rank's part of samples (one for each piece of the stream); every visual token of the batch weighs as much."""
    values = model.latent.channels * model.latent.patch_t * model.latent.patch_h * model.latent.patch_w
    columns = _Columns(
        [torch.zeros(0, values)], [torch.zeros(0, values)], [torch.zeros(0)], [torch.zeros(0, model.text.dim)], []
    )
    first = 0
    for piece, sample in zip(stream.pieces, samples, strict=True):
        _add_piece(model, shapes[piece.segment], piece, sample, first, columns)
        first += piece.num_tokens
    joint = model.text.attention == "joint"
    places = torch.cat([torch.zeros(0, dtype=torch.long), *columns.text_places])
    return RankBatch(
        patches=torch.cat(columns.patches).to(device, dtype),
        targets=torch.cat(columns.targets).to(device, dtype),
        weights=torch.cat(columns.weights).to(device, torch.float64) / total_tokens,
        timesteps=torch.tensor([TIMESTEPS * sample.sigma for sample in samples], device=device, dtype=torch.float32),
        text=torch.cat(columns.text).to(device, dtype),
        text_places=places.to(device) if joint else None,
    )


def _add_piece(
    model: ModelSpec, shape: SequenceShape, piece: Piece, sample: Sample, first: int, columns: _Columns
) -> None:
    """Append one piece, whose tokens begin at ``first`` in the stream."""
    text_tokens = shape.text_tokens if model.text.attention == "joint" else 0
    if text_tokens:
        start, stop = min(piece.start, text_tokens), min(piece.stop, text_tokens)
        columns.text.append(sample.text[start:stop])
        columns.text_places.append(torch.arange(first, first + stop - start))
        blank = torch.zeros(stop - start, columns.patches[0].shape[1])
        columns.patches.append(blank)
        columns.targets.append(blank)
        columns.weights.append(torch.zeros(stop - start))
    elif piece.text_rows:
        columns.text.append(sample.text)
    own = slice(max(0, piece.start - text_tokens), max(0, piece.stop - text_tokens))
    if own.start < own.stop:
        columns.patches.append(to_patches(model, sample.noisy, channels_last=False)[own])
        columns.targets.append(to_patches(model, sample.target, channels_last=True)[own])
        columns.weights.append(torch.ones(own.stop - own.start))


def token_positions(model: ModelSpec, shapes: Sequence[SequenceShape], stream: RankStream) -> Tensor:
    """(time, row, column) of every token of a rank, ``[tokens, 3]``; text tokens of joint attention are at 0."""
    found = [torch.zeros(0, 3, dtype=torch.long)]
    for piece in stream.pieces:
        shape = shapes[piece.segment]
        grid = torch.cartesian_prod(*(torch.arange(size) for size in shape.grid))
        if model.text.attention == "joint":
            grid = torch.cat([torch.zeros(shape.text_tokens, 3, dtype=torch.long), grid])
        found.append(grid[piece.start : piece.stop])
    return torch.cat(found)
