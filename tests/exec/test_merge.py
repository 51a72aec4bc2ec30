"""Merging partial attention, with parts that had no keys."""

from __future__ import annotations

import itertools

import pytest
import torch

from zellige.exec.merge import merge_partial

INF = torch.inf


def part(value: float, lse: float) -> tuple[torch.Tensor, torch.Tensor]:
    """One query, one head, two elements."""
    return torch.full((1, 1, 2), value, dtype=torch.float64), torch.full((1, 1), lse, dtype=torch.float64)


@pytest.mark.parametrize("empty", [-INF, INF])
@pytest.mark.parametrize("content", [0.0, torch.nan, 7.0])
def test_a_part_without_keys_weighs_nothing(empty: float, content: float) -> None:
    for first, second in itertools.permutations([part(content, empty), part(3.0, 0.5)]):
        out, lse = merge_partial(*first, *second)
        assert out.tolist() == [[[3.0, 3.0]]]
        assert lse.tolist() == [[0.5]]


@pytest.mark.parametrize("kinds", list(itertools.product([-INF, INF], repeat=2)))
def test_two_parts_without_keys_give_zero_and_no_weight(kinds: tuple[float, float]) -> None:
    out, lse = merge_partial(*part(torch.nan, kinds[0]), *part(5.0, kinds[1]))
    assert out.tolist() == [[[0.0, 0.0]]]
    assert lse.tolist() == [[-INF]]


@pytest.mark.parametrize("gap", [0.0, 5.0, 88.0, 500.0, -500.0])
def test_any_gap_between_parts_merges_without_overflow(gap: float) -> None:
    out, lse = merge_partial(*part(1.0, 700.0), *part(2.0, 700.0 + gap))
    weight = 1 / (1 + torch.exp(torch.tensor(-gap, dtype=torch.float64)).item())
    assert out[0, 0, 0].item() == pytest.approx(1 + weight)
    wanted = torch.logaddexp(torch.tensor(700.0).double(), torch.tensor(700.0 + gap).double())
    assert lse.item() == pytest.approx(wanted.item())


def test_a_fault_in_a_part_with_keys_is_not_hidden() -> None:
    out, _ = merge_partial(*part(torch.nan, 1.0), *part(2.0, 1.0))
    assert out.isnan().all()


def test_a_narrow_part_is_merged_in_the_wide_type() -> None:
    wide = torch.full((1, 1, 2), 1 / 3, dtype=torch.float32)
    narrow = torch.full((1, 1, 2), 2.0, dtype=torch.bfloat16)
    out, lse = merge_partial(wide, torch.zeros(1, 1), narrow, torch.zeros(1, 1))
    assert out.dtype == lse.dtype == torch.float32
    torch.testing.assert_close(out, torch.full((1, 1, 2), (1 / 3 + 2) / 2))
