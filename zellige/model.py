"""Diffusion transformers by their geometry: token grids, FLOPs, parameter counts."""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from zellige.files import NonNegativeInt, PositiveInt
from zellige.units import ceil_div, count_of


class Geometry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The transformer blocks; of MMDiT's ``num_layers``, the last ``num_single_layers`` are single-stream."""

    hidden_dim: PositiveInt
    num_layers: PositiveInt
    num_single_layers: NonNegativeInt = 0
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
        if self.num_single_layers > self.num_layers:
            raise ValueError(f"num_single_layers {self.num_single_layers} is more than num_layers {self.num_layers}")


class Text(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The text condition and how it enters.

    ``cross``: by cross-attention in every block; each rank of a split holds all text tokens. ``joint``: text tokens
    stand before the visual ones in one sequence, are owned and split like them, and attend with them (MMDiT).
    """

    tokens: NonNegativeInt
    dim: PositiveInt
    attention: Literal["cross", "joint"]
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
    """The frame rate and frame count that the model was trained at; one frame: an image model."""

    fps: PositiveInt
    num_frames: PositiveInt
    source: str


class Modulation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the timestep enters: one vector per sequence, or one per token."""

    per_token: bool
    source: str


class OutsideBlocks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of embeddings, text refiners and the head."""

    parameters: PositiveInt
    source: str


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A diffusion transformer, as a catalog file holds it; ``family`` says what its blocks are made of."""

    SCHEMA: ClassVar[str] = "zellige.model/1"

    schema: str = "zellige.model/1"
    name: str
    title: str
    family: Literal["wan", "ltx", "mmdit", "cogvideox"]
    geometry: Geometry
    text: Text
    latent: Latent
    native: Native
    modulation: Modulation
    outside_blocks: OutsideBlocks

    @property
    def takes_videos(self) -> bool:
        """Whether clips of more than one frame can train."""
        return self.native.num_frames > 1

    def sequence_length(self, num_tokens: int) -> int:
        """Tokens that attend together: the visual ones, and the text where attention is joint."""
        return num_tokens + (self.text.tokens if self.text.attention == "joint" else 0)

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
            raise ValueError(f"{count_of(num_frames, 'frame')} are not {self.latent.vae_stride_t}n+1")
        rows, columns = self.pixels_per_token
        latent_frames = (num_frames - 1) // self.latent.vae_stride_t + 1
        return ceil_div(latent_frames, self.latent.patch_t), ceil_div(height, rows), ceil_div(width, columns)

    def linear_flops_per_token(self) -> int:
        """Forward FLOPs of a block's GEMMs for one token: self-attention 8 d^2, FFN 4 d f, and cross q and o 4 d^2."""
        d, f = self.geometry.hidden_dim, self.geometry.ffn_dim
        return (12 if self.text.attention == "cross" else 8) * d * d + 4 * d * f

    def cross_attention_flops_per_token(self) -> int:
        """Forward FLOPs of a block's cross-attention core for one token: 4 T d; none where attention is joint."""
        return 4 * self.text.tokens * self.geometry.hidden_dim if self.text.attention == "cross" else 0

    def text_flops(self) -> int:
        """Forward FLOPs of a block's text-side K and V projections for one sequence: 4 d^2 T; none where joint."""
        return 4 * self.geometry.hidden_dim**2 * self.text.tokens if self.text.attention == "cross" else 0

    def attention_flops(self, num_queries: int, num_keys: int, num_heads: int) -> int:
        """Forward FLOPs of a self-attention core in one block: 4 per query, key and element of a head."""
        return 4 * num_queries * num_keys * num_heads * self.geometry.head_dim

    def layer_parameters(self) -> int:
        """Parameters of the largest block, counted from the public implementation of the family.

        wan: self- and cross-attention with biases and query/key norms, FFN, an affine norm, a table of six vectors.
        ltx: the same without the affine norm. mmdit: two streams of qkv, projection, FFN and a d -> 6d modulation.
        cogvideox: attention, FFN, and two 512 -> 6d modulations.
        """
        d, f, head = self.geometry.hidden_dim, self.geometry.ffn_dim, self.geometry.head_dim
        ffn = 2 * d * f + f + d
        attention = 4 * d * d + 4 * d
        if self.family == "mmdit":
            return 2 * (attention + 2 * head + ffn + 6 * d * d + 6 * d)
        if self.family == "cogvideox":
            return attention + 4 * head + ffn + 2 * (512 * 6 * d + 6 * d + 2 * d)
        affine = 2 * d if self.family == "wan" else 0
        return 2 * (attention + 2 * d) + ffn + affine + 6 * d

    def num_parameters(self) -> int:
        """Parameters of the whole model: the blocks, and what the catalog says is outside them."""
        geometry = self.geometry
        d, f = geometry.hidden_dim, geometry.ffn_dim
        single = d * (3 * d + f) + 3 * d + f + (d + f) * d + d + 2 * geometry.head_dim + 3 * d * d + 3 * d
        double_layers = geometry.num_layers - geometry.num_single_layers
        blocks = double_layers * self.layer_parameters() + geometry.num_single_layers * single
        return blocks + self.outside_blocks.parameters

    def sequence_flops(self, num_tokens: int, *, linear_factor: float, attention_factor: float) -> float:
        """FLOPs of one sequence over all layers, text-side projections left out.

        The factors count passes: forward 1 and 1, a step with full recompute 4 and 4.5 (backward: 2 and 2.5 forwards).
        """
        length = self.sequence_length(num_tokens)
        attention = self.attention_flops(length, length, self.geometry.num_heads)
        attention += length * self.cross_attention_flops_per_token()
        linear = length * self.linear_flops_per_token()
        return self.geometry.num_layers * (linear_factor * linear + attention_factor * attention)
