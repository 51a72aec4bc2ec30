"""Merging attention over parts of the keys by their log-sum-exps, on the worker that computed them."""

from __future__ import annotations

import torch
from torch import Tensor


def merge_partial(out: Tensor, lse: Tensor, part: Tensor, part_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Output ``[queries, heads, head_dim]`` and log-sum-exp ``[queries, heads]`` over the keys of both parts.

    A log-sum-exp of -inf (or +inf, as some kernels write) says that a part had no keys: it weighs nothing, whatever its
    output holds; where neither had any, the result is 0 and -inf. Sums are taken in the type of ``out``.
    """
    first, second = _without_keys(lse), _without_keys(part_lse)
    top = torch.maximum(first, second)
    top = torch.where(torch.isneginf(top), torch.zeros_like(top), top)
    weight, part_weight = torch.exp(first - top), torch.exp(second - top)
    total = weight + part_weight
    share = torch.where(total == 0, torch.ones_like(total), total)
    merged = _weighted(out, weight / share) + _weighted(part.to(out.dtype), part_weight / share)
    return merged, top + torch.log(total)


def _without_keys(lse: Tensor) -> Tensor:
    return torch.where(torch.isposinf(lse), torch.full_like(lse, -torch.inf), lse)


def _weighted(out: Tensor, weight: Tensor) -> Tensor:
    """Rows by weight; a weight of 0 gives 0 even where a row holds NaN."""
    weight = weight[..., None]
    return torch.where(weight == 0, torch.zeros_like(out), out * weight)
