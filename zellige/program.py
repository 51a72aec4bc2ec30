"""A plan, lowered once into what every rank does in a layer, in order: what is simulated, executed and checked.

One layer is three passes: ``forward``, ``recompute`` (what checkpointing repeats) and ``backward``. In each a rank
walks its list of operations (:class:`zellige.program_parts.Op`):

* ``project``: linear work on its split tokens that attention waits for; ``finish``: linear work that waits for it;
* ``issue`` and ``wait``: enter an exchange, and need what it brought; ``keep``: take what stays where none is needed;
* ``attend``: its tasks of one ring round, split sequences only; ``whole``: everything of a batch of whole sequences;
* ``relinear``: the linear work of all its tokens again (recompute where attention is kept).

**Groups** of split sequences share exchanges: all of them (``coalesced``), those of one pure-Ulysses configuration on
one rank list (``group``), or none (``per_sequence``). A group of R ring rounds has R exchanges in and one back in each
pass (``coalesced`` and packed groups; an unpacked one has an exchange for each tensor that travels). Exchange ``in<t>``
brings K and V of round t, ``in0`` also Q. Backward sends dO, then K and V of rounds from 1 on again; gradients of K and
V of round t leave with ``in<t+2>``, when they are complete, or with ``back``. A row is one token's vector of one head
(:mod:`zellige.shards` counts them).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator
from functools import cached_property
from typing import ClassVar

import msgspec

from zellige import waits
from zellige.errors import ProgramError
from zellige.files import PositiveInt, digest
from zellige.lowering import (
    PHASES,
    Assignment,
    ExchangeBuilder,
    Heads,
    make_groups,
    make_segments,
    make_works,
)
from zellige.memory import Checkpoint
from zellige.placement import Engine, Placement, Plan, Problem, micro_batches
from zellige.program_parts import PASSES, Exchange, Group, Message, Op, Pass, Range, RankWork, Segment, Task
from zellige.shards import RING_GRADIENT_BYTES, WIRE_BYTES, AttentionShape
from zellige.units import count_of, format_bytes, format_count

__all__ = ["Assignment", "Heads", "Program", "build_program", "lower", "shrink"]


PRINTED = 16
"""Ranks and exchanges that a printed program shows."""


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
        """The rank-local token layout: (segment, owned tokens); whole batches first, then group by group, in order."""
        places = self.positions(rank)
        order = [index for part in self.ranks[rank].whole for index in part]
        order += [index for group in self.groups for index in group.segments if index in places]
        return [(index, self.segments[index].shares[places[index]].owned) for index in order]

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
        if op.kind in ("issue", "wait", "keep"):
            exchange = self.exchanges[op.index]
            name = f"{phase}.{self.groups[exchange.group].name}.{exchange.name}"
            return name if op.kind == "issue" else f"{name}.{op.kind}"
        suffix = str(op.ring_round) if op.kind == "attend" else ""
        return f"{phase}.{self.groups[op.index].name}.{op.kind}{suffix}"

    def __str__(self) -> str:
        return "\n".join(_describe(self))


def _describe(program: Program) -> Iterator[str]:
    split = [segment for segment in program.segments if segment.config.is_split]
    yield (
        f"program {program.digest[7:19]} for engine {program.engine}: {count_of(program.num_ranks, 'rank')},"
        f" {count_of(program.num_layers, 'layer')}, {program.num_heads}/{program.num_kv_heads} heads of"
        f" {program.head_dim}"
    )
    yield (
        f"{count_of(len(program.segments), 'sequence')}, {len(split)} split, in"
        f" {count_of(len(program.groups), 'group')};"
        f" checkpoint {program.checkpoint}"
    )
    yield f"{'rank':>4}  {'tokens':>10}  {'whole':>5}  {'split':>5}  {'exchanges':>9}  {'received a layer':>16}"
    received = [0] * program.num_ranks
    for exchange in program.exchanges:
        for message in exchange.messages:
            received[message.destination] += program.message_bytes(message)
    for work in program.ranks[:PRINTED]:
        whole = sum(map(len, work.whole))
        issues = sum(op.kind == "issue" for op in work.forward + work.backward)
        yield (
            f"{work.rank:>4}  {format_count(program.owned_tokens(work.rank)):>10}  {whole:>5}"
            f"  {len(program.positions(work.rank)) - whole:>5}  {issues:>9}  {format_bytes(received[work.rank]):>16}"
        )
    if program.num_ranks > PRINTED:
        yield f"  and {count_of(program.num_ranks - PRINTED, 'more rank')}"
    for exchange in program.exchanges[:PRINTED]:
        rows = sum(message.rows + message.ring_rows for message in exchange.messages)
        yield (
            f"  {exchange.phase}.{program.groups[exchange.group].name}.{exchange.name}:"
            f" {count_of(rows, 'row')} in {count_of(len(exchange.messages), 'message')}"
            f" among {count_of(len(exchange.ranks), 'rank')}"
        )
    if len(program.exchanges) > PRINTED:
        yield f"  and {count_of(len(program.exchanges) - PRINTED, 'more exchange')}"


def lower(plan: Plan | Iterable[Placement], problem: Problem) -> Program:
    """The program of a plan (for the plan's engine), or of bare placements (for the problem's).

    Raises :class:`ProgramError` for a placement outside the batch or the cluster, and for several micro-batches, which
    are as many programs.
    """
    placements = plan.placements if isinstance(plan, Plan) else tuple(plan)
    parts = len(micro_batches(placements))
    if parts > 1:
        raise ProgramError(
            f"the plan runs {parts} micro-batches one after another, and a program is a layer of one",
            fix="a policy without micro-batches, or lower each of Plan.parts for itself",
        )
    engine, goal = (plan.engine, plan.makespan_ns) if isinstance(plan, Plan) else (problem.engine, 0)
    lengths = {s.id: problem.model.sequence_length(s.bucket.num_tokens) for s in problem.batch.sequences}
    unknown = [placement.sequence for placement in placements if placement.sequence not in lengths]
    if unknown:
        raise ProgramError(
            f"sequence {unknown[0]} is placed, but not in batch {problem.batch.name}",
            fix="lower a plan with the batch that it was made for",
        )
    geometry = problem.model.geometry
    return build_program(
        [Assignment(p.sequence, lengths[p.sequence], p.config, p.ranks) for p in placements],
        Heads(geometry.num_heads, geometry.num_kv_heads, geometry.head_dim),
        num_ranks=problem.cluster.num_ranks,
        engine=engine,
        num_layers=geometry.num_layers,
        checkpoint=problem.memory.checkpoint,
        plan=plan.digest if isinstance(plan, Plan) else "",
        first_batch=waits.first_batch(_coalesced(problem), placements, goal) if engine == "coalesced" else None,
    )


def _coalesced(problem: Problem) -> Problem:
    return problem if problem.engine == "coalesced" else dataclasses.replace(problem, engine="coalesced")


def build_program(
    assignments: Iterable[Assignment],
    heads: Heads,
    *,
    num_ranks: int,
    engine: Engine = "coalesced",
    num_layers: int = 1,
    checkpoint: Checkpoint = "none",
    plan: str = "",
    first_batch: Collection[str] | None = None,
) -> Program:
    """The program of sequences in placement order; raises :class:`ProgramError` for ranks that do not exist.

    ``first_batch`` are the whole sequences that a coalesced engine runs first on their ranks; None: half of the tokens
    of each rank.
    """
    ordered = sorted(assignments, key=lambda assignment: -assignment.config.degree)
    segments = make_segments(ordered, heads, num_ranks)
    groups = make_groups(segments, engine, num_ranks)
    exchanges: list[Exchange] = []
    builder = ExchangeBuilder(segments, heads)
    sides = {
        phase: [builder.add(phase, index, group, exchanges) for index, group in enumerate(groups)] for phase in PHASES
    }
    works = make_works(num_ranks, segments, groups, sides, exchanges, engine, checkpoint, first_batch)
    return Program(
        plan=plan,
        engine=engine,
        num_ranks=num_ranks,
        num_layers=num_layers,
        checkpoint=checkpoint,
        num_heads=heads.num_heads,
        num_kv_heads=heads.num_kv_heads,
        head_dim=heads.head_dim,
        segments=segments,
        groups=groups,
        exchanges=tuple(exchanges),
        ranks=works,
    )


def shrink(program: Program, divisor: int) -> Program:
    """The same program for sequences ``divisor`` times shorter (at least one token), to run it on slower ranks."""
    return build_program(
        [Assignment(s.sequence, max(1, s.length // divisor), s.config, s.ranks) for s in program.segments],
        Heads(program.num_heads, program.num_kv_heads, program.head_dim),
        num_ranks=program.num_ranks,
        engine=program.engine,
        num_layers=program.num_layers,
        checkpoint=program.checkpoint,
        plan=program.plan,
    )
