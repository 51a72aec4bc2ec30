"""Head pieces, packed entries and index maps of a rank."""

from __future__ import annotations

import random

import pytest
import torch
from oracle.engine_reference import ENGINES, random_program

from zellige.exec.layout import Piece, WorkerLayout, head_pieces
from zellige.exec.maps import rank_maps
from zellige.placement import Engine
from zellige.program_parts import Share


def share(start: int, stop: int) -> Share:
    """A share of these query heads."""
    return Share(owned=(0, 1), queries=(0, 1), heads=(start, stop), kv_heads=(0, 0), keys=())


@pytest.mark.parametrize(
    ("block", "heads", "pieces"),
    [
        ((0, 12), (12, 12), [((0, 12), (0, 12))]),
        ((3, 6), (12, 12), [((3, 6), (3, 6))]),
        ((0, 14), (28, 7), [((0, 12), (0, 3)), ((12, 14), (3, 4))]),
        ((14, 28), (28, 7), [((14, 16), (3, 4)), ((16, 28), (4, 7))]),
        ((9, 18), (28, 7), [((9, 12), (2, 3)), ((12, 16), (3, 4)), ((16, 18), (4, 5))]),
        ((1, 3), (8, 2), [((1, 3), (0, 1))]),
        ((2, 5), (5, 1), [((2, 5), (0, 1))]),
    ],
)
def test_a_head_block_is_taken_apart_where_it_cuts_a_group(
    block: tuple[int, int], heads: tuple[int, int], pieces: list[Piece]
) -> None:
    assert head_pieces(share(*block), *heads) == pieces


def test_pieces_cover_a_block_once_and_divide() -> None:
    rng = random.Random(2)
    for _ in range(300):
        kv_heads, group = rng.randint(1, 6), rng.randint(1, 6)
        start = rng.randrange(kv_heads * group)
        stop = rng.randint(start + 1, kv_heads * group)
        pieces = head_pieces(share(start, stop), kv_heads * group, kv_heads)
        assert [head for piece in pieces for head in range(*piece.heads)] == list(range(start, stop))
        for piece in pieces:
            size, kv_size = piece.heads[1] - piece.heads[0], piece.kv_heads[1] - piece.kv_heads[0]
            assert size % kv_size == 0
            ratio = size // kv_size
            assert [head // group for head in range(*piece.heads)] == [
                piece.kv_heads[0] + place // ratio for place in range(size)
            ]


@pytest.mark.parametrize("engine", ENGINES)
def test_calls_hold_the_tasks_of_the_program(engine: Engine) -> None:
    """A rank's packed calls of a round cover queries x keys x heads of the program's tasks, and nothing else."""
    for seed in range(30):
        program = random_program(seed, 4, engine)
        for rank in range(4):
            for group, members in enumerate(program.groups):
                layout = WorkerLayout(program, group, rank)
                for t in range(members.rounds):
                    due = sum(
                        (task.queries[1] - task.queries[0]) * task.num_keys * (task.heads[1] - task.heads[0])
                        for task in program.tasks(rank, group, t)
                    )
                    found = 0
                    for head_class in layout.classes:
                        call = head_class.calls[t]
                        if call is not None:
                            sizes = zip(call.packing.lengths_q, call.packing.lengths_k, strict=True)
                            found += head_class.key.heads * sum(queries * keys for queries, keys in sizes)
                    assert found == due


@pytest.mark.parametrize("engine", ENGINES)
def test_every_gradient_that_returns_is_added_once_and_a_level_never_names_a_row_twice(engine: Engine) -> None:
    """Additions to distinct rows have one result on any device; the order of levels is then the order of the sum."""
    for seed in range(30):
        program = random_program(seed, 4, engine)
        for rank in range(4):
            maps = rank_maps(program, rank, 2, torch.device("cpu"))
            for exchange in maps.exchanges.values():
                for added in exchange.added:
                    rows = 0
                    for level in added.levels:
                        width = 2 if added.part.is_ring_gradient else 1
                        rows += len(level.source) // width
                        if level.target is not None:
                            assert len(level.target) == len(level.target.unique()) == len(level.source) // width
                    sources = [level.source for level in added.levels]
                    assert len(torch.cat(sources).unique()) == sum(map(len, sources)) if sources else rows == 0
