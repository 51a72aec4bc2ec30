"""A plan, lowered once into what every rank does in a layer, in order: the value that is simulated, executed and checked.

One layer is three passes: ``forward``, ``recompute`` (what checkpointing repeats) and ``backward``. In each a rank walks
its list of operations (:class:`Op`):

* ``project``: linear work on its split tokens that attention waits for; ``finish``: the linear work that waits for it;
* ``issue`` and ``wait``: enter an exchange, and need what it brought;
* ``attend``: its tasks of one ring round, split sequences only; ``whole``: everything of a batch of whole sequences;
* ``relinear``: the linear work of all its tokens again (recompute where attention is kept).

**Groups** of split sequences share exchanges: all of them (``coalesced``), those of one pure-Ulysses configuration on one
rank list (``group``), or none (``per_sequence``). A group of R ring rounds has R exchanges in and one back in each pass
(``coalesced`` and packed groups; an unpacked one has an exchange for each tensor). Exchange ``in<t>`` brings K and V of
round t, ``in0`` also Q. Backward sends dO, then K and V of rounds from 1 on again; gradients of K and V of round t leave
with ``in<t+2>``, when they are complete, or with ``back``. A row is one token's vector of one head
(:mod:`zellige.shards` counts them).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import ClassVar, Literal

import msgspec

from zellige.cluster import CollectiveOp
from zellige.files import NonNegativeInt, PositiveInt, digest
from zellige.memory import Checkpoint
from zellige.placement import Engine
from zellige.shards import RING_GRADIENT_BYTES, WIRE_BYTES, AttentionShape, ParallelConfig
from zellige.units import format_bytes, format_count

Pass = Literal["forward", "recompute", "backward"]
OpKind = Literal["project", "issue", "wait", "attend", "whole", "finish", "relinear"]
Tensor = Literal["q", "k", "v", "o", "do", "dq", "dk", "dv"]
Range = tuple[int, int]
"""Half-open."""

PASSES: tuple[Pass, ...] = ("forward", "recompute", "backward")


class Share(msgspec.Struct, frozen=True, array_like=True):
    """What one position of a sequence's rank list owns and computes: half-open token and head ranges.

    ``keys[t]`` are the key ranges of ring round t. Empty ``queries`` or ``heads`` mean that it computes nothing.
    """

    owned: Range
    queries: Range
    heads: Range
    kv_heads: Range
    keys: tuple[tuple[Range, ...], ...]

    @property
    def has_work(self) -> bool:
        """Whether the position computes any attention."""
        return self.queries[0] < self.queries[1] and self.heads[0] < self.heads[1]


class Segment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A sequence of ``length`` tokens, its split, its ordered ranks, and the share of each of them."""

    sequence: str
    length: PositiveInt
    config: ParallelConfig
    ranks: tuple[NonNegativeInt, ...]
    shares: tuple[Share, ...]

    def __str__(self) -> str:
        return f"{self.sequence} ({self.length:,} tokens, {self.config} on {','.join(map(str, self.ranks))})"


class Group(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Split segments that share exchanges: indexes into ``Program.segments``, the ranks that enter, and ring rounds.

    ``packed``: one exchange carries all tensors that travel together.
    """

    name: str
    segments: tuple[int, ...]
    ranks: tuple[NonNegativeInt, ...]
    rounds: PositiveInt
    packed: bool


class Part(msgspec.Struct, frozen=True, array_like=True):
    """A tensor that an exchange carries, and the ring round it belongs to (0 for Q, O and their gradients)."""

    tensor: Tensor
    ring_round: int = 0

    @property
    def is_ring_gradient(self) -> bool:
        """Whether its rows travel in the wider type: dK and dV of ring rounds after the first."""
        return self.tensor in ("dk", "dv") and self.ring_round > 0

    @property
    def to_worker(self) -> bool:
        """Whether rows go from owners to workers (and not back)."""
        return self.tensor in ("q", "k", "v", "do")


class Message(msgspec.Struct, frozen=True, array_like=True):
    """Rows from one rank to another in one exchange: ``rows`` in the wire type, ``ring_rows`` in the wider one."""

    source: int
    destination: int
    rows: int
    ring_rows: int


class Exchange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One exchange of a group; ``in0``, ``in1`` .. or ``back``, with the tensor's name where tensors go one by one.

    ``ranks`` enter it. ``calls`` are the calls that an engine of this kind makes for it (an unpacked all-gather after an
    all-to-all is two). Messages are sorted, without empty ones and without what stays on its rank.
    """

    name: str
    phase: Literal["forward", "backward"]
    group: int
    parts: tuple[Part, ...]
    ranks: tuple[NonNegativeInt, ...]
    calls: tuple[CollectiveOp, ...]
    messages: tuple[Message, ...]


class Op(msgspec.Struct, frozen=True, array_like=True):
    """One operation of a rank. ``index`` is an exchange (issue, wait), a group (project, attend, finish), or a part."""

    kind: OpKind
    index: int = 0
    ring_round: int = 0


class RankWork(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rank's ordered work. ``whole`` are its whole segments in batches; each is one block-diagonal attention call."""

    rank: NonNegativeInt
    whole: tuple[tuple[int, ...], ...]
    forward: tuple[Op, ...]
    recompute: tuple[Op, ...]
    backward: tuple[Op, ...]

    def ops(self, phase: Pass) -> tuple[Op, ...]:
        """The operations of a pass."""
        return {"forward": self.forward, "recompute": self.recompute, "backward": self.backward}[phase]


class Task(msgspec.Struct, frozen=True):
    """One attention task: queries x keys x heads of a segment on a rank, in one ring round."""

    segment: int
    position: int
    queries: Range
    keys: tuple[Range, ...]
    heads: Range
    kv_heads: Range

    @property
    def num_keys(self) -> int:
        """Keys that the task reads."""
        return sum(stop - start for start, stop in self.keys)


class Program(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """What every rank does in a layer. Segments stand in the one global order: split degree descending, then placement.

    ``plan`` is the digest of the plan it was lowered from, empty for bare placements.
    """

    SCHEMA: ClassVar[str] = "zellige.program/1"

    schema: str = "zellige.program/1"
    plan: str = ""
    engine: Engine
    num_ranks: PositiveInt
    num_layers: PositiveInt
    checkpoint: Checkpoint
    num_heads: PositiveInt
    num_kv_heads: PositiveInt
    head_dim: PositiveInt
    segments: tuple[Segment, ...]
    groups: tuple[Group, ...]
    exchanges: tuple[Exchange, ...]
    ranks: tuple[RankWork, ...]

    @cached_property
    def digest(self) -> str:
        """``sha256:`` and the hash of the canonical form."""
        return digest(self)

    def shape(self, segment: Segment) -> AttentionShape:
        """The attention of a segment."""
        return AttentionShape(segment.length, self.num_heads, self.num_kv_heads, self.head_dim)

    @cached_property
    def _members(self) -> tuple[dict[int, int], ...]:
        """For each rank the segments it takes part in, and its position in them."""
        members: tuple[dict[int, int], ...] = tuple({} for _ in range(self.num_ranks))
        for index, segment in enumerate(self.segments):
            for position, rank in enumerate(segment.ranks):
                members[rank][index] = position
        return members

    def positions(self, rank: int) -> dict[int, int]:
        """The segments that a rank takes part in, in global order, and its position in each."""
        return self._members[rank]

    def pieces(self, rank: int) -> list[tuple[int, Range]]:
        """The rank-local token layout: (segment, owned tokens); whole batches first, then split segments, in order."""
        whole = [index for part in self.ranks[rank].whole for index in part]
        split = [index for index in self.positions(rank) if self.segments[index].config.is_split]
        places = self.positions(rank)
        return [(index, self.segments[index].shares[places[index]].owned) for index in whole + split]

    def owned_tokens(self, rank: int, group: int | None = None) -> int:
        """Tokens whose linear work a rank does: its split tokens of a group, or all of its tokens."""
        chosen = None if group is None else set(self.groups[group].segments)
        return sum(stop - start for index, (start, stop) in self.pieces(rank) if chosen is None or index in chosen)

    def tasks(self, rank: int, group: int, ring_round: int) -> Iterator[Task]:
        """The non-empty attention tasks of a rank in one round of a group, in global order."""
        places = self.positions(rank)
        for index in self.groups[group].segments:
            segment = self.segments[index]
            if index not in places or ring_round >= segment.config.k:
                continue
            share = segment.shares[places[index]]
            if share.has_work and share.keys[ring_round]:
                yield Task(index, places[index], share.queries, share.keys[ring_round], share.heads, share.kv_heads)

    def message_bytes(
        self, message: Message, element_bytes: int = WIRE_BYTES, ring_bytes: int = RING_GRADIENT_BYTES
    ) -> int:
        """Bytes of a message, given the bytes an element of both types."""
        return self.head_dim * (message.rows * element_bytes + message.ring_rows * ring_bytes)

    def layer_bytes(self, phase: Pass, element_bytes: int = WIRE_BYTES, ring_bytes: int = RING_GRADIENT_BYTES) -> int:
        """Bytes that all ranks together receive in one pass of one layer."""
        issued = {op.index for work in self.ranks for op in work.ops(phase) if op.kind == "issue"}
        return sum(
            self.message_bytes(message, element_bytes, ring_bytes)
            for index in sorted(issued)
            for message in self.exchanges[index].messages
        )

    @property
    def step_bytes(self) -> int:
        """Bytes that all ranks together receive in attention over a whole step."""
        return self.num_layers * sum(self.layer_bytes(phase) for phase in PASSES)

    def span(self, phase: Pass, op: Op) -> str:
        """The name that a span of this operation bears in every trace, simulated or measured."""
        if op.kind in ("whole", "relinear"):
            return f"{phase}.{op.kind}{op.index if op.kind == 'whole' else ''}"
        if op.kind in ("issue", "wait"):
            exchange = self.exchanges[op.index]
            name = f"{phase}.{self.groups[exchange.group].name}.{exchange.name}"
            return f"{name}.wait" if op.kind == "wait" else name
        suffix = str(op.ring_round) if op.kind == "attend" else ""
        return f"{phase}.{self.groups[op.index].name}.{op.kind}{suffix}"

    def __str__(self) -> str:
        return "\n".join(_describe(self))


def _describe(program: Program) -> Iterator[str]:
    split = [segment for segment in program.segments if segment.config.is_split]
    yield (
        f"program {program.digest[7:19]} for engine {program.engine}: {program.num_ranks} ranks,"
        f" {program.num_layers} layers, {program.num_heads}/{program.num_kv_heads} heads of {program.head_dim}"
    )
    yield (
        f"{len(program.segments)} sequences, {len(split)} split, in {len(program.groups)} groups;"
        f" checkpoint {program.checkpoint}"
    )
    yield f"{'rank':>4}  {'tokens':>10}  {'whole':>5}  {'split':>5}  {'exchanges':>9}  {'received a layer':>16}"
    received = [0] * program.num_ranks
    for exchange in program.exchanges:
        for message in exchange.messages:
            received[message.destination] += program.message_bytes(message)
    for work in program.ranks:
        whole = sum(map(len, work.whole))
        issues = sum(op.kind == "issue" for op in work.forward + work.backward)
        yield (
            f"{work.rank:>4}  {format_count(program.owned_tokens(work.rank)):>10}  {whole:>5}"
            f"  {len(program.positions(work.rank)) - whole:>5}  {issues:>9}  {format_bytes(received[work.rank]):>16}"
        )
    for exchange in program.exchanges[:12]:
        rows = sum(message.rows + message.ring_rows for message in exchange.messages)
        yield (
            f"  {exchange.phase}.{program.groups[exchange.group].name}.{exchange.name}:"
            f" {format_count(rows)} rows in {len(exchange.messages)} messages among {len(exchange.ranks)} ranks"
        )
    if len(program.exchanges) > 12:
        yield f"  and {len(program.exchanges) - 12} more exchanges"
