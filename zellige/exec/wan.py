"""The blocks of diffusers' ``WanTransformer3DModel`` on a packed stream, weights and modules untouched.

What the model's own forward does one batch element at a time happens here for all pieces of a rank at once: patch
embedding of its tokens, rotary positions of each of them, one timestep for every sequence, and cross-attention of local
queries to the whole text of their sequence (no exchange: every rank of a split has the text). Self-attention goes
through the engine. Weights stay those of the model that was handed over: train here, save there.

Written for diffusers 0.42 (``models/transformers/transformer_wan.py``); text-to-video models, without image
conditioning and without fused projections. The structure is checked, whatever the version says.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from zellige.errors import KernelError, MissingExtraError
from zellige.exec.data import RankBatch
from zellige.exec.layer import LayerRun
from zellige.exec.modulation import gated, modulate, packed_attention, rms_norm, rotate
from zellige.exec.stage_inputs import StageInputs
from zellige.model import ModelSpec

SUPPORTED = "0.42"
"""The diffusers release whose module this follows; patch releases of it are taken."""

_MODEL_PARTS = ("rope", "patch_embedding", "condition_embedder", "blocks", "norm_out", "proj_out", "scale_shift_table")
_BLOCK_PARTS = ("norm1", "attn1", "attn2", "norm2", "ffn", "norm3", "scale_shift_table")
_ATTENTION_PARTS = ("to_q", "to_k", "to_v", "to_out", "norm_q", "norm_k", "heads")


def require_wan(model: ModelSpec) -> None:
    """Raise :class:`MissingExtraError` without diffusers or for another release, :class:`KernelError` for no Wan."""
    try:
        import diffusers
    except ModuleNotFoundError:
        raise MissingExtraError("a Wan model needs diffusers", fix="pip install -e '.[wan]' in the checkout") from None
    if diffusers.__version__.rpartition(".")[0] != SUPPORTED:
        raise MissingExtraError(
            f"the Wan adapter follows diffusers {SUPPORTED}, and {diffusers.__version__} is installed",
            fix=f"pip install 'diffusers>={SUPPORTED}.0,<{SUPPORTED}.99'",
        )
    geometry = model.geometry
    if model.text.attention != "cross" or geometry.num_kv_heads != geometry.num_heads:
        raise KernelError(f"{model.name} is not of Wan's kind", fix="--network dit runs every catalog model")


def make_wan(model: ModelSpec) -> nn.Module:
    """A ``WanTransformer3DModel`` of a catalog model's geometry, with random weights.

    Raises as :func:`require_wan`.
    """
    require_wan(model)
    from diffusers.models.transformers.transformer_wan import WanTransformer3DModel

    geometry, latent = model.geometry, model.latent
    made: nn.Module = WanTransformer3DModel(
        patch_size=(latent.patch_t, latent.patch_h, latent.patch_w),
        num_attention_heads=geometry.num_heads,
        attention_head_dim=geometry.head_dim,
        in_channels=latent.channels,
        out_channels=latent.channels,
        text_dim=model.text.dim,
        ffn_dim=geometry.ffn_dim,
        num_layers=geometry.num_layers,
    )
    return made


def check_structure(model: nn.Module) -> None:
    """Raise :class:`KernelError` for a module that is not what the adapter was written for, and say what is missing."""
    missing = [name for name in _MODEL_PARTS if not hasattr(model, name)]
    blocks: list[Any] = list(getattr(model, "blocks", ()))
    for number, block in enumerate(blocks):
        missing += [f"blocks.{number}.{name}" for name in _BLOCK_PARTS if not hasattr(block, name)]
        for attention in (getattr(block, "attn1", None), getattr(block, "attn2", None)):
            missing += [f"blocks.{number}: {name}" for name in _ATTENTION_PARTS if not hasattr(attention, name)]
    if missing or not blocks:
        raise KernelError(
            f"{type(model).__name__} is not the Wan transformer of diffusers {SUPPORTED}",
            details=(f"it has no {', '.join(missing[:6]) or 'blocks'}",),
            fix=f"a WanTransformer3DModel of diffusers {SUPPORTED}",
        )
    wrong = [number for number, block in enumerate(blocks) if _unsupported(block)]
    if wrong or getattr(model.condition_embedder, "image_embedder", None) is not None:
        raise KernelError(
            "Wan models with image conditioning, fused projections or dropout do not run packed",
            fix="a text-to-video model as it is loaded",
        )


def _unsupported(block: Any) -> bool:
    return any(
        attention.add_k_proj is not None or getattr(attention, "fused_projections", False) or attention.to_out[1].p > 0
        for attention in (block.attn1, block.attn2)
    )


class WanBlock(nn.Module):
    """A block of the model in two parts around self-attention; see :class:`zellige.exec.stage_inputs.Block`."""

    def __init__(self, block: Any) -> None:
        super().__init__()
        self.inner: Any = block

    def forward(self, run: LayerRun, index: int, hidden: Tensor, modulation: Tensor, text: Tensor) -> Tensor:
        """The block's output for the rank's own tokens ``[tokens, hidden]``."""
        return run.layer(self, index, hidden, modulation, text)

    def before(self, inputs: StageInputs) -> tuple[Tensor, Tensor, Tensor]:
        """Q, K and V, normalised over all heads and rotated."""
        attention, (shift, scale, *_) = self.inner.attn1, self._vectors(inputs)
        normed = self.inner.norm1(_wide(inputs.hidden))
        tokens = modulate(normed, scale, shift, inputs.rows).type_as(inputs.hidden)
        q, k = (
            _heads(attention, rms_norm(linear(tokens), norm.weight, norm.eps))
            for linear, norm in ((attention.to_q, attention.norm_q), (attention.to_k, attention.norm_k))
        )
        return (
            rotate(q, inputs.cosine, inputs.sine),
            rotate(k, inputs.cosine, inputs.sine),
            _heads(attention, attention.to_v(tokens)),
        )

    def after(self, inputs: StageInputs, out: Tensor) -> Tensor:
        """What follows self-attention: projection, cross-attention, MLP."""
        block = self.inner
        _, _, gate, mlp_shift, mlp_scale, mlp_gate = self._vectors(inputs)
        projected = block.attn1.to_out[0](out.flatten(1))
        hidden = gated(inputs.hidden, projected, gate, inputs.rows).type_as(inputs.hidden)
        hidden = hidden + self._cross(inputs, block.norm2(_wide(hidden)).type_as(hidden))
        tokens = modulate(block.norm3(_wide(hidden)), mlp_scale, mlp_shift, inputs.rows).type_as(hidden)
        mlp = _wide(block.ffn(tokens))
        return gated(hidden, mlp, mlp_gate, inputs.rows).type_as(hidden)

    def _vectors(self, inputs: StageInputs) -> tuple[Tensor, ...]:
        vectors: Tensor = self.inner.scale_shift_table + _wide(inputs.modulation)
        return vectors.unbind(1)

    def _cross(self, inputs: StageInputs, tokens: Tensor) -> Tensor:
        attention = self.inner.attn2
        q = _heads(attention, rms_norm(attention.to_q(tokens), attention.norm_q.weight, attention.norm_q.eps))
        k = _heads(attention, rms_norm(attention.to_k(inputs.text), attention.norm_k.weight, attention.norm_k.eps))
        v = _heads(attention, attention.to_v(inputs.text))
        crossed: Tensor = attention.to_out[0](packed_attention(inputs.kernel, inputs.cross, q, k, v).flatten(1))
        return crossed


def _heads(attention: Any, tokens: Tensor) -> Tensor:
    return tokens.view(len(tokens), attention.heads, tokens.shape[1] // attention.heads)


def _wide(tensor: Tensor) -> Tensor:
    """In fp32, as the model's own forward does; fp64 stays."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


class PackedWan(nn.Module):
    """The whole model: patches and text in, a prediction for every token of the rank out.

    Parameters are the handed model's own; it is held beside them, so that ``model`` can be saved as ever.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        check_structure(model)
        given: Any = model
        self._given = (model,)
        self.patch_embedding, self.condition_embedder = given.patch_embedding, given.condition_embedder
        self.blocks = nn.ModuleList(WanBlock(block) for block in given.blocks)
        self.norm_out, self.proj_out = given.norm_out, given.proj_out
        self.scale_shift_table = given.scale_shift_table
        # Not registered: DDP would send its tables around in every step.
        self._rope = (given.rope,)

    @property
    def model(self) -> nn.Module:
        """The model that was handed over."""
        return self._given[0]

    def angles(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Rotary angles of a rank's tokens, from the model's own tables."""
        rope: Any = self._rope[0]
        widths = (rope.t_dim, rope.h_dim, rope.w_dim)
        tables = []
        for table in (rope.freqs_cos, rope.freqs_sin):
            axes = [
                part.to(positions.device)[positions[:, axis]] for axis, part in enumerate(table.split(widths, dim=1))
            ]
            tables.append(torch.cat(axes, 1).to(dtype))
        return tables[0][:, 0::2], tables[1][:, 1::2]

    def forward(self, batch: RankBatch, run: LayerRun, rows: Tensor) -> Tensor:
        """Predictions ``[tokens, values]``; ``rows`` says which piece a token is of."""
        weight = self.patch_embedding.weight
        hidden = functional.linear(batch.patches, weight.flatten(1), self.patch_embedding.bias)
        embedder: Any = self.condition_embedder
        features = embedder.timesteps_proj(batch.timesteps)
        time = embedder.time_embedder(features.to(next(embedder.time_embedder.parameters()).dtype)).type_as(batch.text)
        modulation = embedder.time_proj(embedder.act_fn(time)).unflatten(1, (6, -1))
        text = embedder.text_embedder(batch.text)
        for index, block in enumerate(self.blocks):
            hidden = block(run, index, hidden, modulation, text)
        shift, scale = (self.scale_shift_table + time[:, None]).unbind(1)
        wide = _wide(hidden)
        normed = modulate(self.norm_out(wide), scale.to(wide.dtype), shift.to(wide.dtype), rows)
        predicted: Tensor = self.proj_out(normed.type_as(hidden))
        return predicted
