"""The packed stream of a rank: which token, modulation vector and text row belongs to which piece and which stage.

A **piece** is what a rank owns of one sequence; pieces stand in the order of :meth:`zellige.program.Program.pieces`. A
**stage** is what one operation of the program computes linear work for: a batch of whole sequences, or the rank's own
tokens of a group. Stages are neighbouring pieces, so everything about them is a slice.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from zellige.exec.kernels import Packing
from zellige.program import Program
from zellige.program_parts import Range

StageKey = tuple[Literal["whole", "group"], int]


@dataclass(frozen=True)
class Piece:
    """Own tokens ``[start, stop)`` of a segment, and the text rows that they attend to: none without tokens."""

    segment: int
    start: int
    stop: int
    text_rows: int

    @property
    def num_tokens(self) -> int:
        """Own tokens."""
        return self.stop - self.start


@dataclass(frozen=True)
class Stage:
    """Slices of tokens, pieces and text rows; ``rows`` ``[tokens]`` counts pieces from the stage's first.

    ``cross`` packs local queries with their text, None where a stage has neither.
    """

    tokens: slice
    pieces: slice
    text: slice
    rows: Tensor
    cross: Packing | None


@dataclass(frozen=True)
class RankStream:
    """All pieces of a rank, and its stages."""

    pieces: tuple[Piece, ...]
    stages: dict[StageKey, Stage]
    num_tokens: int
    num_text_rows: int


def rank_stream(program: Program, rank: int, text_rows: Sequence[int], device: torch.device) -> RankStream:
    """The stream of a rank; ``text_rows`` are the text tokens of every segment that enter by cross-attention."""
    pieces = tuple(
        Piece(index, start, stop, text_rows[index] if start < stop else 0)
        for index, (start, stop) in program.pieces(rank)
    )
    places = program.positions(rank)
    keys: list[tuple[StageKey, int]] = [
        (("whole", batch), len(members)) for batch, members in enumerate(program.ranks[rank].whole)
    ]
    keys += [
        (("group", number), sum(index in places for index in group.segments))
        for number, group in enumerate(program.groups)
        if rank in group.ranks
    ]
    stages: dict[StageKey, Stage] = {}
    first = _Start(0, 0, 0)
    for key, count in keys:
        stages[key], first = _stage(pieces[first.piece : first.piece + count], first, device)
    return RankStream(pieces, stages, first.token, first.text)


@dataclass(frozen=True)
class _Start:
    """Where the next stage begins."""

    piece: int
    token: int
    text: int


def _stage(pieces: Sequence[Piece], first: _Start, device: torch.device) -> tuple[Stage, _Start]:
    lengths = [piece.num_tokens for piece in pieces]
    rows = torch.repeat_interleave(torch.arange(len(pieces)), torch.tensor(lengths, dtype=torch.long))
    texts = [piece.text_rows for piece in pieces]
    entries = [(queries, keys) for queries, keys in zip(lengths, texts, strict=True) if queries and keys]
    last = _Start(first.piece + len(pieces), first.token + sum(lengths), first.text + sum(texts))
    cross = Packing(tuple(q for q, _ in entries), tuple(k for _, k in entries)) if entries else None
    stage = Stage(
        tokens=slice(first.token, last.token),
        pieces=slice(first.piece, last.piece),
        text=slice(first.text, last.text),
        rows=rows.to(device),
        cross=cross,
    )
    return stage, last


def token_bounds(stream: RankStream) -> list[Range]:
    """Where the tokens of every piece stand in the stream."""
    stops = list(itertools.accumulate((piece.num_tokens for piece in stream.pieces), initial=0))
    return list(itertools.pairwise(stops))
