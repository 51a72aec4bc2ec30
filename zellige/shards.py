"""Who owns which tokens, who computes what, and which rows travel: the one place that counts them.

A sequence of L tokens on ``degree = q*h*k`` ranks. Index ``n = (i*k + l)*h + j`` in its ordered rank list

* **owns** tokens ``[L*n//degree, L*(n+1)//degree)``: all linear work happens on owners;
* **computes** attention of query block ``(i, l)`` (queries are cut q*k ways, and the h owners of a block are neighbours
  in the list) for head block ``j``, against all keys of that head block.

K and V of a head block reach a worker at once for q and h, and in k rounds for k: round t of worker ``(i, l, j)``
brings the keys owned by ranks whose ring coordinate is ``(l + t) % k``. Only finished output rows travel back.

K and V of round 0 are kept from forward to backward (they take the place of the worker's own K and V), and their
gradients return in bf16; those of later ring rounds are sent again in backward, and their gradients return in fp32.
This is what USP moves: all-to-all once, ring passes again with fp32 gradients.

A **row** is one token's vector of one head (``head_dim`` elements). Heads that do not divide are legal here (the engine
copes with them); :func:`legal_heads` says what the planner uses.
"""

from __future__ import annotations

import re

import msgspec

from zellige.errors import UsageError

WIRE_BYTES = 2
"""Bytes an element on the wire for Q, K, V, O and their gradients (bf16)."""

RING_GRADIENT_BYTES = 4
"""Bytes an element of dK and dV of later ring rounds (fp32, as yunchang's ring accumulates them)."""

_CONFIG = re.compile(r"(?:q(?P<q>[1-9]\d{0,5}))?(?:h(?P<h>[1-9]\d{0,5}))?(?:k(?P<k>[1-9]\d{0,5}))?", re.ASCII)


class ParallelConfig(msgspec.Struct, frozen=True, order=True, forbid_unknown_fields=True):
    """Split factors of the query axis (q), the head axis (h) and the key/value axis (k).

    h is what others call the Ulysses degree, k the ring degree, q all-gather context parallelism.
    """

    q: int = 1
    h: int = 1
    k: int = 1

    def __post_init__(self) -> None:
        if min(self.q, self.h, self.k) < 1:
            raise ValueError(f"split factors must be at least 1, got q={self.q} h={self.h} k={self.k}")

    @property
    def degree(self) -> int:
        """The number of ranks that share the sequence."""
        return self.q * self.h * self.k

    @property
    def is_split(self) -> bool:
        """Whether more than one rank takes part."""
        return self.degree > 1

    def __str__(self) -> str:
        parts = [f"{axis}{factor}" for axis, factor in (("q", self.q), ("h", self.h), ("k", self.k)) if factor > 1]
        return "".join(parts) or "whole"


WHOLE = ParallelConfig()


def parse_config(text: str) -> ParallelConfig:
    """Read ``h4k2``, ``q2h3`` or ``whole``; raises :class:`UsageError` on anything else."""
    if text == "whole":
        return WHOLE
    match = _CONFIG.fullmatch(text)
    if not text or match is None:
        raise UsageError(
            f"{text!r} is not a split", fix="write the factors in the order q, h, k: h4k2, q2, h6, or whole"
        )
    return ParallelConfig(**{axis: int(factor or 1) for axis, factor in match.groupdict().items()})


class AttentionShape(msgspec.Struct, frozen=True):
    """The attention of one sequence in one layer: L tokens, query heads and K/V heads of ``head_dim`` elements."""

    length: int
    num_heads: int
    num_kv_heads: int
    head_dim: int


def legal_heads(num_heads: int, num_kv_heads: int, limit: int | None = None) -> list[int]:
    """The head splits a planner may use: h divides the heads, and h and the K/V heads divide one another."""
    top = num_heads if limit is None else min(num_heads, limit)
    return [h for h in range(1, top + 1) if num_heads % h == 0 and (num_kv_heads % h == 0 or h % num_kv_heads == 0)]


def coordinates(config: ParallelConfig, index: int) -> tuple[int, int, int]:
    """The (i, l, j) of a position in the rank list: query block, ring position, head block."""
    block, j = divmod(index, config.h)
    i, ring = divmod(block, config.k)
    return i, ring, j


def owned_range(length: int, config: ParallelConfig, index: int) -> tuple[int, int]:
    """The half-open token range that position ``index`` owns."""
    degree = config.degree
    return length * index // degree, length * (index + 1) // degree


def query_range(length: int, config: ParallelConfig, index: int) -> tuple[int, int]:
    """The half-open token range whose queries position ``index`` computes: the union of its h owners' tokens."""
    degree, block = config.degree, index // config.h
    return length * block * config.h // degree, length * (block + 1) * config.h // degree


def head_range(shape: AttentionShape, config: ParallelConfig, index: int) -> tuple[int, int]:
    """The half-open range of query heads that position ``index`` computes."""
    j = index % config.h
    return shape.num_heads * j // config.h, shape.num_heads * (j + 1) // config.h


def kv_head_range(shape: AttentionShape, config: ParallelConfig, index: int) -> tuple[int, int]:
    """The half-open range of K/V heads that the query heads of position ``index`` read; empty if it has none."""
    start, stop = head_range(shape, config, index)
    if start == stop:
        return 0, 0
    return start * shape.num_kv_heads // shape.num_heads, -(-stop * shape.num_kv_heads // shape.num_heads)


def key_ranges(length: int, config: ParallelConfig, index: int, ring_round: int) -> list[tuple[int, int]]:
    """The half-open token ranges whose keys reach position ``index`` in a round, its own tokens included.

    Sorted, disjoint; over all k rounds they cover ``[0, length)`` exactly once.
    """
    _, ring, _ = coordinates(config, index)
    source_ring = (ring + ring_round) % config.k
    degree = config.degree
    ranges = []
    for i in range(config.q):
        first = (i * config.k + source_ring) * config.h
        start, stop = length * first // degree, length * (first + config.h) // degree
        if start < stop:
            ranges.append((start, stop))
    return ranges


def _has_queries(length: int, config: ParallelConfig, index: int) -> bool:
    """Whether the query block of position ``index`` has any token; without one it needs no keys."""
    start, stop = query_range(length, config, index)
    return start < stop


def query_rows(shape: AttentionShape, config: ParallelConfig, source: int, destination: int) -> int:
    """Q rows that ``source`` sends to ``destination`` in a forward pass.

    dO travels the same way; O and dQ travel from ``destination`` back to ``source`` in the same number.
    """
    if source == destination or source // config.h != destination // config.h:
        return 0
    start, stop = owned_range(shape.length, config, source)
    first, last = head_range(shape, config, destination)
    return (stop - start) * (last - first)


def kv_rows(shape: AttentionShape, config: ParallelConfig, source: int, destination: int, ring_round: int) -> int:
    """K rows (and as many V rows, counted apart) that ``source`` sends to ``destination`` in one ring round.

    dK and dV travel from ``destination`` back to ``source`` in the same number.
    """
    ring_source = coordinates(config, source)[1]
    ring_destination = coordinates(config, destination)[1]
    if source == destination or ring_source != (ring_destination + ring_round) % config.k:
        return 0
    if not _has_queries(shape.length, config, destination):
        return 0
    start, stop = owned_range(shape.length, config, source)
    first, last = kv_head_range(shape, config, destination)
    return (stop - start) * (last - first)


class ReceivedRows(msgspec.Struct, frozen=True):
    """Rows that one position receives in one layer, by phase. K and V (and dK and dV) are counted together."""

    query: int
    kv_by_round: tuple[int, ...]
    output: int
    kv_gradient_by_round: tuple[int, ...]

    @property
    def kv(self) -> int:
        """K and V rows over all rounds."""
        return sum(self.kv_by_round)

    @property
    def kv_gradient(self) -> int:
        """dK and dV rows over all rounds."""
        return sum(self.kv_gradient_by_round)


def received_rows(shape: AttentionShape, config: ParallelConfig, index: int) -> ReceivedRows:
    """What position ``index`` receives in one layer; equals the sums of :func:`query_rows` and :func:`kv_rows`."""
    own_start, own_stop = owned_range(shape.length, config, index)
    own = own_stop - own_start
    query_start, query_stop = query_range(shape.length, config, index)
    first, last = head_range(shape, config, index)
    kv_first, kv_last = kv_head_range(shape, config, index)
    kv_heads = kv_last - kv_first if query_start < query_stop else 0
    _, ring, _ = coordinates(config, index)
    by_round = []
    blocks_by_round = []
    for ring_round in range(config.k):
        # Blocks that take this position's keys in this round sit ring_round behind it in the ring.
        blocks = [(i * config.k + (ring - ring_round) % config.k) * config.h for i in range(config.q)]
        blocks_by_round.append(sum(_has_queries(shape.length, config, block) for block in blocks))
        keys = sum(stop - start for start, stop in key_ranges(shape.length, config, index, ring_round))
        by_round.append(2 * (keys - (own if ring_round == 0 else 0)) * kv_heads)
    kv_heads_of_blocks = sum(
        stop - start for start, stop in (kv_head_range(shape, config, block) for block in range(config.h))
    )
    return ReceivedRows(
        query=(query_stop - query_start - own) * (last - first),
        kv_by_round=tuple(by_round),
        output=own * (shape.num_heads - (last - first)),
        kv_gradient_by_round=tuple(
            2 * own * (blocks * kv_heads_of_blocks - (kv_heads if ring_round == 0 else 0))
            for ring_round, blocks in enumerate(blocks_by_round)
        ),
    )


class LayerBytes(msgspec.Struct, frozen=True):
    """Bytes that one position receives in one layer: ``forward`` (also the recomputed one) and ``backward``."""

    forward: int
    backward: int


def received_bytes(shape: AttentionShape, config: ParallelConfig, index: int) -> LayerBytes:
    """Bytes on the wire into position ``index``, per layer, exact for any length.

    Forward: Q, K, V in and O back. Backward: dO in, K and V of later ring rounds again, dQ, dK and dV back.
    """
    rows = received_rows(shape, config, index)
    row_bytes = shape.head_dim * WIRE_BYTES
    first_gradient, *later_gradients = rows.kv_gradient_by_round
    resent = sum(rows.kv_by_round[1:])
    return LayerBytes(
        forward=row_bytes * (rows.query + rows.kv + rows.output),
        backward=row_bytes * (rows.query + rows.output + resent + first_gradient)
        + shape.head_dim * RING_GRADIENT_BYTES * sum(later_gradients),
    )


def sequence_bytes(shape: AttentionShape, config: ParallelConfig) -> LayerBytes:
    """The sum of :func:`received_bytes` over all positions: what the whole sequence moves in one layer.

    Gradients of K and V are as many rows as K and V, sent the other way, so only those are counted.
    """
    query = output = first_round = all_rounds = 0
    round_keys = [
        sum(stop - start for start, stop in key_ranges(shape.length, config, ring * config.h, 0))
        for ring in range(config.k)
    ]
    for index in range(config.degree):
        own_start, own_stop = owned_range(shape.length, config, index)
        own = own_stop - own_start
        start, stop = query_range(shape.length, config, index)
        first, last = head_range(shape, config, index)
        query += (stop - start - own) * (last - first)
        output += own * (shape.num_heads - (last - first))
        if start < stop:
            kv_first, kv_last = kv_head_range(shape, config, index)
            first_round += 2 * (round_keys[coordinates(config, index)[1]] - own) * (kv_last - kv_first)
            all_rounds += 2 * (shape.length - own) * (kv_last - kv_first)
    later = all_rounds - first_round
    row_bytes = shape.head_dim * WIRE_BYTES
    return LayerBytes(
        forward=row_bytes * (query + all_rounds + output),
        backward=row_bytes * (query + output + later + first_round) + shape.head_dim * RING_GRADIENT_BYTES * later,
    )
