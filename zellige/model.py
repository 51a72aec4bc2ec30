"""Diffusion transformers by their geometry: token grids, FLOPs, parameter counts."""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from zellige.files import NonNegativeInt, PositiveInt
from zellige.units import ceil_div


class Geometry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The transformer blocks."""

    hidden_dim: PositiveInt
    num_layers: PositiveInt
    num_heads: PositiveInt
    num_kv_heads: PositiveInt
    head_dim: PositiveInt
    ffn_dim: PositiveInt
    source: str

    def __post_init__(self) -> None:
        if self.num_heads * self.head_dim != self.hidden_dim:
            raise ValueError(
                f"num_heads {self.num_heads} x head_dim {self.head_dim} is not hidden_dim {self.hidden_dim}"
            )
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_kv_heads {self.num_kv_heads} does not divide num_heads {self.num_heads}")


class Text(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The text condition and how it enters: by cross-attention in every block."""

    tokens: NonNegativeInt
    dim: PositiveInt
    attention: Literal["cross"]
    source: str


class Latent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """VAE strides and the patch: how pixels become tokens."""

    vae_stride_t: PositiveInt
    vae_stride_h: PositiveInt
    vae_stride_w: PositiveInt
    channels: PositiveInt
    patch_t: PositiveInt
    patch_h: PositiveInt
    patch_w: PositiveInt
    source: str


class Native(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The frame rate and frame count that the model was trained at."""

    fps: PositiveInt
    num_frames: PositiveInt
    source: str


class Modulation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the timestep enters: one vector per sequence, or one per token."""

    frequency_dim: PositiveInt
    per_token: bool
    source: str


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A video diffusion transformer of the Wan family (self- and cross-attention), as a catalog file holds it."""

    SCHEMA: ClassVar[str] = "zellige.model/1"

    schema: str = "zellige.model/1"
    name: str
    title: str
    geometry: Geometry
    text: Text
    latent: Latent
    native: Native
    modulation: Modulation

    @property
    def pixels_per_token(self) -> tuple[int, int]:
        """Rows and columns of pixels that one token covers."""
        return self.latent.vae_stride_h * self.latent.patch_h, self.latent.vae_stride_w * self.latent.patch_w

    def snap_frames(self, num_frames: int) -> int:
        """The most frames, not above ``num_frames``, that the causal VAE takes: stride*n + 1."""
        stride = self.latent.vae_stride_t
        return (num_frames - 1) // stride * stride + 1

    def snap_size(self, width: int, height: int) -> tuple[int, int]:
        """Width and height after padding up to whole tokens."""
        rows, columns = self.pixels_per_token
        return ceil_div(width, columns) * columns, ceil_div(height, rows) * rows

    def grid(self, width: int, height: int, num_frames: int) -> tuple[int, int, int]:
        """Tokens along (time, height, width); frames must obey the frame rule."""
        if num_frames != self.snap_frames(num_frames):
            raise ValueError(f"{num_frames} frames are not {self.latent.vae_stride_t}n+1")
        rows, columns = self.pixels_per_token
        latent_frames = (num_frames - 1) // self.latent.vae_stride_t + 1
        return ceil_div(latent_frames, self.latent.patch_t), ceil_div(height, rows), ceil_div(width, columns)

    def linear_flops_per_token(self) -> int:
        """Forward FLOPs of a block's GEMMs for one token: 12 d^2 + 4 d f (self qkvo, cross q and o, FFN)."""
        d, f = self.geometry.hidden_dim, self.geometry.ffn_dim
        return 12 * d * d + 4 * d * f

    def cross_attention_flops_per_token(self) -> int:
        """Forward FLOPs of a block's cross-attention core for one token: 4 T d."""
        return 4 * self.text.tokens * self.geometry.hidden_dim

    def text_flops(self) -> int:
        """Forward FLOPs of a block's text-side K and V projections for one sequence: 4 d^2 T."""
        return 4 * self.geometry.hidden_dim**2 * self.text.tokens

    def attention_flops(self, num_queries: int, num_keys: int, num_heads: int) -> int:
        """Forward FLOPs of a self-attention core in one block: 4 per query, key and element of a head."""
        return 4 * num_queries * num_keys * num_heads * self.geometry.head_dim

    def layer_parameters(self) -> int:
        """Parameters of one block (self-attention, cross-attention, FFN, norms, modulation), biases included."""
        d, f = self.geometry.hidden_dim, self.geometry.ffn_dim
        attention = 4 * d * d + 4 * d + 2 * d
        return 2 * attention + (2 * d * f + f + d) + 2 * d + 6 * d

    def num_parameters(self) -> int:
        """Parameters of the whole model, counted from the Wan blocks (Wan-Video/Wan2.1 wan/modules/model.py)."""
        d, channels = self.geometry.hidden_dim, self.latent.channels
        patch = channels * self.latent.patch_t * self.latent.patch_h * self.latent.patch_w
        embeddings = patch * d + d
        text = self.text.dim * d + d + d * d + d
        time = self.modulation.frequency_dim * d + d + d * d + d + 6 * d * d + 6 * d
        head = d * patch + patch + 2 * d
        return embeddings + text + time + head + self.geometry.num_layers * self.layer_parameters()

    def sequence_flops(self, num_tokens: int, *, linear_factor: float, attention_factor: float) -> float:
        """FLOPs of one sequence over all layers, text-side projections left out.

        The factors count passes: forward 1 and 1, a step with full recompute 4 and 4.5 (facts: backward 2 and 2.5).
        """
        heads = self.geometry.num_heads
        attention = self.attention_flops(num_tokens, num_tokens, heads)
        attention += num_tokens * self.cross_attention_flops_per_token()
        linear = num_tokens * self.linear_flops_per_token()
        return self.geometry.num_layers * (linear_factor * linear + attention_factor * attention)
