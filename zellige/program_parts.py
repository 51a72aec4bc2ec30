"""The pieces of a program: what a rank owns and computes, what travels, and in which order."""

from __future__ import annotations

from typing import Literal

import msgspec

from zellige.cluster import CollectiveOp
from zellige.files import NonNegativeInt, PositiveInt
from zellige.shards import ParallelConfig
from zellige.units import count_of

Pass = Literal["forward", "recompute", "backward"]
OpKind = Literal["project", "issue", "wait", "keep", "attend", "whole", "finish", "relinear"]
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
        return f"{self.sequence} ({count_of(self.length, 'token')}, {self.config} on {','.join(map(str, self.ranks))})"


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

    ``ranks`` enter it. ``calls`` are the calls that an engine of this kind makes for it (an all-to-all and then an
    all-gather are two), none where an unpacked group's rows all stay on their ranks. Messages are sorted, without empty
    ones and without what stays.
    """

    name: str
    phase: Literal["forward", "backward"]
    group: int
    parts: tuple[Part, ...]
    ranks: tuple[NonNegativeInt, ...]
    calls: tuple[CollectiveOp, ...]
    messages: tuple[Message, ...]

    @property
    def is_local(self) -> bool:
        """Whether nothing travels and no rank enters: rows are kept where they are."""
        return not self.calls


class Op(msgspec.Struct, frozen=True, array_like=True):
    """One operation. ``index`` is an exchange (issue, wait, keep), a group (project, attend, finish), a batch."""

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
