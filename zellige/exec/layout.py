"""How a rank lays out its attention: local tokens, classes of head pieces, packed entries by ring round.

A worker computes a block of query heads. Where a cut falls inside a K/V group the block is taken apart into at most
three **pieces** whose K/V heads divide their heads, so that no K or V is copied for a query head. Pieces of equal head
counts form a **class**; a class is one packed kernel call in a ring round. Sequences with ring rounds have classes of
their own, for their output is accumulated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from zellige.exec.kernels import Packing
from zellige.program import Program
from zellige.program_parts import Range, Share

IntArray = npt.NDArray[np.int64]


class Piece(NamedTuple):
    """A run of query heads and the run of K/V heads that they read, the one a multiple of the other."""

    heads: Range
    kv_heads: Range


class ClassKey(NamedTuple):
    """Entries that one call takes: with ring rounds or without, heads, K/V heads."""

    is_ring: bool
    heads: int
    kv_heads: int


class Entry(NamedTuple):
    """A piece of a segment at one position, and where its queries begin in its class."""

    segment: int
    position: int
    piece: Piece
    first_query: int


class RoundCall(NamedTuple):
    """One packed call of a class in a round. ``queries`` picks its tokens of the class (None: all of them).

    ``first_key`` gives, by place of an entry in the class, where its keys begin; an entry without keys is missing.
    """

    packing: Packing
    queries: IntArray | None
    first_key: dict[int, int]
    num_keys: int


@dataclass(frozen=True)
class HeadClass:
    """A class with its entries in order, its first row among the rows of all classes, and its call in every round."""

    key: ClassKey
    entries: tuple[Entry, ...]
    num_queries: int
    first_row: int
    calls: tuple[RoundCall | None, ...]
    first_kv_row: tuple[int, ...]

    @property
    def num_rows(self) -> int:
        """Query rows."""
        return self.num_queries * self.key.heads

    def kv_rows(self, ring_round: int) -> int:
        """K rows of a round (V has as many)."""
        call = self.calls[ring_round]
        return 0 if call is None else call.num_keys * self.key.kv_heads


def head_pieces(share: Share, num_heads: int, num_kv_heads: int) -> list[Piece]:
    """The pieces of a head block: what is left of a first K/V group, whole groups, what is begun of a last one."""
    group = num_heads // num_kv_heads
    start, stop = share.heads
    inner_start, inner_stop = -(-start // group) * group, stop // group * group
    if inner_start > inner_stop:
        return [Piece((start, stop), (start // group, start // group + 1))]
    pieces = []
    if start < inner_start:
        pieces.append(Piece((start, inner_start), (start // group, start // group + 1)))
    if inner_start < inner_stop:
        pieces.append(Piece((inner_start, inner_stop), (inner_start // group, inner_stop // group)))
    if inner_stop < stop:
        pieces.append(Piece((inner_stop, stop), (inner_stop // group, inner_stop // group + 1)))
    return pieces


class WorkerLayout:
    """The classes of a group on a rank, and the rows of Q, K and V in them."""

    def __init__(self, program: Program, group: int, rank: int) -> None:
        self.rounds = program.groups[group].rounds
        self._program = program
        self._places = program.positions(rank)
        self.classes = self._build(group)
        self.query_rows = sum(head_class.num_rows for head_class in self.classes)
        self.kv_rows = tuple(sum(c.kv_rows(t) for c in self.classes) for t in range(self.rounds))
        self._by_segment: dict[int, list[tuple[HeadClass, int, Entry]]] = {}
        for head_class in self.classes:
            for place, entry in enumerate(head_class.entries):
                self._by_segment.setdefault(entry.segment, []).append((head_class, place, entry))

    def _build(self, group: int) -> tuple[HeadClass, ...]:
        members: dict[ClassKey, list[Entry]] = {}
        program = self._program
        for index in program.groups[group].segments:
            position = self._places.get(index)
            segment = program.segments[index]
            if position is None or not segment.shares[position].has_work:
                continue
            share = segment.shares[position]
            for piece in head_pieces(share, program.num_heads, program.num_kv_heads):
                heads, kv_heads = _size(piece.heads), _size(piece.kv_heads)
                entries = members.setdefault(ClassKey(segment.config.k > 1, heads, kv_heads), [])
                first = entries[-1].first_query + self._queries(entries[-1]) if entries else 0
                entries.append(Entry(index, position, piece, first))
        classes: list[HeadClass] = []
        row, kv_row = 0, [0] * self.rounds
        for key in sorted(members):
            entries = members[key]
            queries = entries[-1].first_query + self._queries(entries[-1])
            calls = tuple(self._call(entries, queries, t) for t in range(self.rounds))
            classes.append(HeadClass(key, tuple(entries), queries, row, calls, tuple(kv_row)))
            row += classes[-1].num_rows
            kv_row = [first + classes[-1].kv_rows(t) for t, first in enumerate(kv_row)]
        return tuple(classes)

    def _share(self, entry: Entry) -> Share:
        return self._program.segments[entry.segment].shares[entry.position]

    def _queries(self, entry: Entry) -> int:
        return _size(self._share(entry).queries)

    def _call(self, entries: list[Entry], num_queries: int, ring_round: int) -> RoundCall | None:
        """The packed call of a round: entries with keys only."""
        lengths_q, lengths_k, picked = [], [], []
        first_key: dict[int, int] = {}
        num_keys = 0
        for place, entry in enumerate(entries):
            share = self._share(entry)
            keys = share.keys[ring_round] if ring_round < len(share.keys) else ()
            if not keys:
                continue
            first_key[place] = num_keys
            lengths_q.append(_size(share.queries))
            lengths_k.append(sum(map(_size, keys)))
            num_keys += lengths_k[-1]
            picked.append(np.arange(entry.first_query, entry.first_query + lengths_q[-1]))
        if not picked:
            return None
        tokens = np.concatenate(picked)
        packing = Packing(tuple(lengths_q), tuple(lengths_k))
        return RoundCall(packing, None if len(tokens) == num_queries else tokens, first_key, num_keys)

    def query_rows_of(self, segment: int, tokens: Range, heads: Range) -> IntArray:
        """Rows of (token, head) pairs, token by token, among the query rows of all classes."""
        wanted = np.arange(*heads)
        base, width = np.zeros_like(wanted), np.zeros_like(wanted)
        for head_class, _, entry in self._by_segment[segment]:
            inside = (wanted >= entry.piece.heads[0]) & (wanted < entry.piece.heads[1])
            first = entry.first_query - self._share(entry).queries[0]
            heads_of_class = head_class.key.heads
            base[inside] = head_class.first_row + first * heads_of_class + wanted[inside] - entry.piece.heads[0]
            width[inside] = heads_of_class
        return (np.arange(*tokens)[:, None] * width[None, :] + base[None, :]).reshape(-1)

    def kv_rows_of(self, segment: int, ring_round: int, tokens: Range, heads: Range) -> IntArray:
        """Rows of (token, K/V head) pairs, token by token, among the K rows of all classes in a round."""
        wanted = np.arange(*heads)
        base, width = np.zeros_like(wanted), np.zeros_like(wanted)
        for head_class, place, entry in self._by_segment[segment]:
            inside = (wanted >= entry.piece.kv_heads[0]) & (wanted < entry.piece.kv_heads[1])
            call = head_class.calls[ring_round]
            if call is None or place not in call.first_key:
                continue
            first = call.first_key[place] + self._key_place(self._share(entry), ring_round, tokens) - tokens[0]
            kv_heads = head_class.key.kv_heads
            base[inside] = head_class.first_kv_row[ring_round] + first * kv_heads
            base[inside] += wanted[inside] - entry.piece.kv_heads[0]
            width[inside] = kv_heads
        return (np.arange(*tokens)[:, None] * width[None, :] + base[None, :]).reshape(-1)

    @staticmethod
    def _key_place(share: Share, ring_round: int, tokens: Range) -> int:
        """How many keys of the round stand before a token range that lies within one of its key ranges."""
        before = 0
        for start, stop in share.keys[ring_round]:
            if start <= tokens[0] and tokens[1] <= stop:
                return before + tokens[0] - start
            before += stop - start
        raise AssertionError(f"tokens {tokens} are not among the keys {share.keys[ring_round]}")


def _size(bounds: Range) -> int:
    return bounds[1] - bounds[0]
