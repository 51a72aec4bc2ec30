"""A packed diffusion transformer of a catalog model's geometry, for training steps without any other package.

Blocks have modulated self-attention (grouped K/V heads where the model has them, normalised Q and K, rotary positions
on three axes), cross-attention to text where the model attends across, and an MLP. Where attention is joint, text
tokens stand in the stream itself. Models with two streams of weights (MMDiT) are run with one: the geometry of
attention, and so everything that a plan is about, is the same.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec
import torch
from torch import Tensor, nn
from torch.nn import functional

from zellige.exec.data import RankBatch
from zellige.exec.kernels import accumulation_dtype
from zellige.exec.layer import LayerRun
from zellige.exec.modulation import gated, modulate, packed_attention, rms_norm, rotate
from zellige.exec.stage_inputs import StageInputs
from zellige.model import ModelSpec

ModelSize = Literal["full", "small", "tiny"]
SIZES: dict[ModelSize, tuple[int, int, int, int, int] | None] = {
    "full": None,
    "small": (4, 32, 4, 64, 64),
    "tiny": (2, 16, 2, 8, 32),
}
"""Layers, head_dim, FFN width over hidden width, text tokens and text width; heads stay, for plans split them."""

TIME_WIDTH = 256
ROTARY_BASE = 10_000.0


def resized(model: ModelSpec, size: ModelSize) -> ModelSpec:
    """The model made small enough for a CPU, with the heads that plans were made for."""
    shrunk = SIZES[size]
    if shrunk is None:
        return model
    layers, head_dim, widening, text_tokens, text_dim = shrunk
    hidden = model.geometry.num_heads * head_dim
    geometry = msgspec.structs.replace(
        model.geometry,
        hidden_dim=hidden,
        head_dim=head_dim,
        ffn_dim=widening * hidden,
        num_layers=layers,
        num_single_layers=0,
    )
    text = msgspec.structs.replace(model.text, tokens=min(text_tokens, model.text.tokens), dim=text_dim)
    return msgspec.structs.replace(model, geometry=geometry, text=text)


def rotary_angles(positions: Tensor, head_dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine ``[tokens, head_dim / 2]`` of (time, row, column); rows and columns take a third each."""
    side = 2 * (head_dim // 6)
    parts = []
    for axis, width in enumerate((head_dim - 2 * side, side, side)):
        powers = torch.arange(0, width, 2, dtype=torch.float64) / max(width, 1)
        parts.append(positions[:, axis, None].double() / ROTARY_BASE**powers)
    angles = torch.cat(parts, 1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def time_features(timesteps: Tensor, width: int) -> Tensor:
    """Sinusoids of timesteps ``[pieces]`` -> ``[pieces, width]``, cosines first."""
    powers = torch.arange(width // 2, dtype=torch.float32, device=timesteps.device) / (width // 2)
    angles = timesteps[:, None].float() * torch.exp(-math.log(10_000.0) * powers)
    return torch.cat([angles.cos(), angles.sin()], 1)


class DitBlock(nn.Module):
    """One block in two parts around self-attention; see :class:`zellige.exec.stage_inputs.Block`."""

    def __init__(self, model: ModelSpec) -> None:
        super().__init__()
        geometry = model.geometry
        self._heads, self._kv_heads, self._head_dim = geometry.num_heads, geometry.num_kv_heads, geometry.head_dim
        hidden, kv_width = geometry.hidden_dim, geometry.num_kv_heads * geometry.head_dim
        self.crosses = model.text.attention == "cross"
        self.table = nn.Parameter(torch.randn(1, 6, hidden) / hidden**0.5)
        self.to_q, self.to_k = nn.Linear(hidden, hidden), nn.Linear(hidden, kv_width)
        self.to_v, self.to_out = nn.Linear(hidden, kv_width), nn.Linear(hidden, hidden)
        self.norm_q = nn.Parameter(torch.ones(geometry.head_dim))
        self.norm_k = nn.Parameter(torch.ones(geometry.head_dim))
        if self.crosses:
            self.cross_q, self.cross_out = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)
            self.cross_k, self.cross_v = nn.Linear(hidden, kv_width), nn.Linear(hidden, kv_width)
            self.cross_norm = nn.LayerNorm(hidden)
        self.up, self.down = nn.Linear(hidden, geometry.ffn_dim), nn.Linear(geometry.ffn_dim, hidden)

    def forward(self, run: LayerRun, index: int, hidden: Tensor, modulation: Tensor, text: Tensor) -> Tensor:
        """The block's output for the rank's own tokens ``[tokens, hidden]``."""
        return run.layer(self, index, hidden, modulation, text)

    def before(self, inputs: StageInputs) -> tuple[Tensor, Tensor, Tensor]:
        """Q, K and V, normalised and rotated."""
        shift, scale, *_ = self._vectors(inputs)
        tokens = modulate(_norm(inputs.hidden, scale), scale, shift, inputs.rows).type_as(inputs.hidden)
        q, k = self._heads_of(self.to_q(tokens)), self._heads_of(self.to_k(tokens))
        q, k = rms_norm(q, self.norm_q, 1e-6), rms_norm(k, self.norm_k, 1e-6)
        return (
            rotate(q, inputs.cosine, inputs.sine),
            rotate(k, inputs.cosine, inputs.sine),
            self._heads_of(self.to_v(tokens)),
        )

    def after(self, inputs: StageInputs, out: Tensor) -> Tensor:
        """What follows self-attention: projection, cross-attention, MLP."""
        _, _, gate, mlp_shift, mlp_scale, mlp_gate = self._vectors(inputs)
        hidden = gated(inputs.hidden, self.to_out(out.flatten(1)), gate, inputs.rows).type_as(inputs.hidden)
        if self.crosses:
            hidden = hidden + self._cross(inputs, hidden)
        tokens = modulate(_norm(hidden, mlp_scale), mlp_scale, mlp_shift, inputs.rows).type_as(hidden)
        mlp = self.down(functional.gelu(self.up(tokens), approximate="tanh")).to(mlp_gate.dtype)
        return gated(hidden, mlp, mlp_gate, inputs.rows).type_as(hidden)

    def _vectors(self, inputs: StageInputs) -> tuple[Tensor, ...]:
        wide = accumulation_dtype(inputs.modulation.dtype)
        return (self.table.to(wide) + inputs.modulation.to(wide)).unbind(1)

    def _heads_of(self, tokens: Tensor) -> Tensor:
        return tokens.view(len(tokens), tokens.shape[1] // self._head_dim, self._head_dim)

    def _cross(self, inputs: StageInputs, hidden: Tensor) -> Tensor:
        norm, wide = self.cross_norm, accumulation_dtype(hidden.dtype)
        weights = norm.weight.to(wide), norm.bias.to(wide)
        tokens = functional.layer_norm(hidden.to(wide), hidden.shape[-1:], *weights).type_as(hidden)
        q = self._heads_of(self.cross_q(tokens))
        k, v = self._heads_of(self.cross_k(inputs.text)), self._heads_of(self.cross_v(inputs.text))
        crossed: Tensor = self.cross_out(packed_attention(inputs.kernel, inputs.cross, q, k, v).flatten(1))
        return crossed


def _norm(hidden: Tensor, like: Tensor) -> Tensor:
    """Layer norm without weights, in the type of the modulation: fp32 where the model is fp32 or less."""
    return functional.layer_norm(hidden.to(like.dtype), hidden.shape[-1:], eps=1e-6)


class PackedDit(nn.Module):
    """The whole model: patches and text in, a prediction for every token of the rank out."""

    def __init__(self, model: ModelSpec) -> None:
        super().__init__()
        geometry, latent = model.geometry, model.latent
        self._head_dim = geometry.head_dim
        hidden = geometry.hidden_dim
        values = latent.channels * latent.patch_t * latent.patch_h * latent.patch_w
        self.patch_embedding = nn.Linear(values, hidden)
        self.text_embedding = nn.Sequential(
            nn.Linear(model.text.dim, hidden), nn.GELU(approximate="tanh"), nn.Linear(hidden, hidden)
        )
        self.time_embedding = nn.Sequential(nn.Linear(TIME_WIDTH, hidden), nn.SiLU(), nn.Linear(hidden, hidden))
        self.time_projection = nn.Linear(hidden, 6 * hidden)
        self.blocks = nn.ModuleList(DitBlock(model) for _ in range(geometry.num_layers))
        self.head_table = nn.Parameter(torch.randn(1, 2, hidden) / hidden**0.5)
        self.head = nn.Linear(hidden, values)

    def angles(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Rotary angles of a rank's tokens."""
        return rotary_angles(positions, self._head_dim, dtype)

    def forward(self, batch: RankBatch, run: LayerRun, rows: Tensor) -> Tensor:
        """Predictions ``[tokens, values]``; ``rows`` says which piece a token is of."""
        dtype = batch.patches.dtype
        time = self.time_embedding(time_features(batch.timesteps, TIME_WIDTH).to(dtype))
        modulation = self.time_projection(functional.silu(time)).unflatten(1, (6, -1))
        text = self.text_embedding(batch.text)
        hidden = self.patch_embedding(batch.patches)
        if batch.text_places is not None:
            hidden = hidden.index_copy(0, batch.text_places, text)
            text = text[:0]
        for index, block in enumerate(self.blocks):
            hidden = block(run, index, hidden, modulation, text)
        wide = accumulation_dtype(dtype)
        shift, scale = (self.head_table.to(wide) + time[:, None].to(wide)).unbind(1)
        head: Tensor = self.head(modulate(_norm(hidden, scale), scale, shift, rows).type_as(hidden))
        return head
