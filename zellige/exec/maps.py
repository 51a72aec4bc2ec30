"""Index maps of a program on a rank: which rows go into a send buffer, and where received rows belong.

Built once for a program and kept (:func:`rank_maps`). A **unit** is ``head_dim`` elements of the compute type; a row of
the wider type takes ``ring_units`` of them, so that one buffer carries both. A send buffer holds, for every rank that
enters, the exchange's parts in order, in each the segments in order, in each the tokens and heads in order. A receive
buffer holds the same from every rank, and at its end the rows that stay on their rank.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from zellige.errors import WireBytesError
from zellige.exec.kernels import Packing
from zellige.exec.layout import IntArray, WorkerLayout
from zellige.program import Program
from zellige.program_parts import Exchange, Part, Range, Tensor

CACHED_PROGRAMS = 64
"""Maps that are kept, of the most recently used programs and ranks."""


class Level(NamedTuple):
    """Gradient rows to add: targets are distinct, so that the order of additions is fixed by the order of levels.

    ``target`` is None where every row gets one, in order.
    """

    target: torch.Tensor | None
    source: torch.Tensor


class Picked(NamedTuple):
    """Units of one source (the parts are numbered) that fill a buffer from ``first`` on."""

    source: int
    first: int
    units: torch.Tensor


@dataclass(frozen=True)
class Added:
    """Gradients of K or V that come back in one part, in levels; sources are units of the receive buffer."""

    part: Part
    levels: tuple[Level, ...]


@dataclass(frozen=True)
class ExchangeMap:
    """One exchange on a rank: what fills the send buffer, and (``stay``) the end of the receive buffer.

    Counts are units for each rank that enters. ``gathers`` index the receive buffer, by part.
    """

    exchange: int
    send: tuple[Picked, ...]
    stay: tuple[Picked, ...]
    num_staying: int
    send_counts: tuple[int, ...]
    receive_counts: tuple[int, ...]
    gathers: dict[Part, torch.Tensor]
    added: tuple[Added, ...]

    @property
    def num_received(self) -> int:
        """Units that travel to this rank."""
        return sum(self.receive_counts)


@dataclass(frozen=True)
class GroupMap:
    """A group on a rank: the local tokens of its segments, and the worker's layout."""

    tokens: Range
    layout: WorkerLayout
    queries: dict[tuple[int, int], torch.Tensor]
    """By (class, round): the tokens of the class that the round's call takes, where it does not take all."""


@dataclass(frozen=True)
class WholeBatch:
    """A batch of whole sequences: local tokens, and their packing."""

    tokens: Range
    packing: Packing


@dataclass(frozen=True)
class RankMaps:
    """Everything that a rank needs to run a program, and that depends on nothing else."""

    num_tokens: int
    groups: dict[int, GroupMap]
    exchanges: dict[int, ExchangeMap]
    whole: tuple[WholeBatch, ...]
    num_whole_tokens: int


_cache: OrderedDict[tuple[str, int, int, str], RankMaps] = OrderedDict()


def rank_maps(program: Program, rank: int, ring_units: int, device: torch.device) -> RankMaps:
    """The maps of a rank; equal programs share them. Keyed by the program's digest, never by sizes of one rank."""
    key = (program.digest, rank, ring_units, str(device))
    if key not in _cache:
        _cache[key] = _Builder(program, rank, ring_units, device).build()
        while len(_cache) > CACHED_PROGRAMS:
            _cache.popitem(last=False)
    _cache.move_to_end(key)
    return _cache[key]


class _Block(NamedTuple):
    """Rows of one part of one segment between an owner and a worker."""

    part: Part
    segment: int
    tokens: Range
    heads: Range

    @property
    def num_rows(self) -> int:
        return (self.tokens[1] - self.tokens[0]) * (self.heads[1] - self.heads[0])


class _Builder:
    """Builds the maps of one rank."""

    def __init__(self, program: Program, rank: int, ring_units: int, device: torch.device) -> None:
        self.program = program
        self.rank = rank
        self.ring_units = ring_units
        self.device = device
        self.places = program.positions(rank)
        self.first_token: dict[int, int] = {}
        self.num_tokens = 0
        for index, (start, stop) in program.pieces(rank):
            self.first_token[index] = self.num_tokens
            self.num_tokens += stop - start

    def build(self) -> RankMaps:
        groups = {g: self._group(g) for g, group in enumerate(self.program.groups) if self.rank in group.ranks}
        exchanges = {
            index: self._exchange(index, exchange, groups[exchange.group])
            for index, exchange in enumerate(self.program.exchanges)
            if self.rank in exchange.ranks
        }
        whole = []
        first = 0
        for batch in self.program.ranks[self.rank].whole:
            lengths = tuple(self.program.segments[index].length for index in batch)
            whole.append(WholeBatch((first, first + sum(lengths)), Packing(lengths, lengths)))
            first += sum(lengths)
        return RankMaps(self.num_tokens, groups, exchanges, tuple(whole), first)

    def _group(self, group: int) -> GroupMap:
        mine = [index for index in self.program.groups[group].segments if index in self.places]
        sizes = [self._owned_size(index) for index in mine]
        start = self.first_token[mine[0]] if mine else self.num_tokens
        layout = WorkerLayout(self.program, group, self.rank)
        queries = {
            (number, t): self._tensor(call.queries)
            for number, head_class in enumerate(layout.classes)
            for t, call in enumerate(head_class.calls)
            if call is not None and call.queries is not None
        }
        return GroupMap((start, start + sum(sizes)), layout, queries)

    def _owned_size(self, index: int) -> int:
        start, stop = self.program.segments[index].shares[self.places[index]].owned
        return stop - start

    def _exchange(self, index: int, exchange: Exchange, group: GroupMap) -> ExchangeMap:
        sent, stays, send_counts = self._outgoing(exchange, group)
        num_staying = sum(len(picked.units) for picked in stays)
        incoming, receive_counts = self._incoming(exchange)
        gathers: dict[Part, torch.Tensor] = {}
        added = []
        for part in exchange.parts:
            blocks = [(block, unit) for block, unit in incoming if block.part == part]
            targets = [self._target_rows(block, group) for block, _ in blocks]
            target = np.concatenate(targets) if targets else np.zeros(0, np.int64)
            sources = [np.arange(block.num_rows) * self._width(part) + unit for block, unit in blocks]
            source = np.concatenate(sources) if sources else np.zeros(0, np.int64)
            if part.tensor in ("dk", "dv"):
                size = self._num_targets(part, group)
                added.append(Added(part, self._levels(target, source, self._width(part), size)))
            else:
                gathers[part] = self._gather(exchange, target, source, self._num_targets(part, group))
        return ExchangeMap(index, sent, stays, num_staying, send_counts, receive_counts, gathers, tuple(added))

    def _outgoing(
        self, exchange: Exchange, group: GroupMap
    ) -> tuple[tuple[Picked, ...], tuple[Picked, ...], tuple[int, ...]]:
        """What fills the send buffer, what stays, and counts for each rank that enters."""
        sent: list[Picked] = []
        stays: list[Picked] = []
        counts = []
        first = 0
        for peer in exchange.ranks:
            picked, place = (stays, 0) if peer == self.rank else (sent, first)
            blocks = list(self._blocks(exchange, self.rank, peer))
            for number, part in enumerate(exchange.parts):
                rows = [self._source_rows(block, group) for block in blocks if block.part == part]
                if rows:
                    units = self._expand(np.concatenate(rows), part)
                    picked.append(Picked(number, place, self._tensor(units)))
                    place += len(units)
            counts.append(0 if peer == self.rank else place - first)
            first += counts[-1]
        self._check(exchange, counts, sends=True)
        return tuple(sent), tuple(stays), tuple(counts)

    def _incoming(self, exchange: Exchange) -> tuple[list[tuple[_Block, int]], tuple[int, ...]]:
        """Blocks with the unit where each begins in the receive buffer, and counts for each rank that enters."""
        found: list[tuple[_Block, int]] = []
        unit = 0
        counts = []
        for peer in [*(peer for peer in exchange.ranks if peer != self.rank), self.rank]:
            start = unit
            for block in self._blocks(exchange, peer, self.rank):
                found.append((block, unit))
                unit += block.num_rows * self._width(block.part)
            counts.append((peer, 0 if peer == self.rank else unit - start))
        by_rank = dict(counts)
        ordered = [by_rank[peer] for peer in exchange.ranks]
        self._check(exchange, ordered, sends=False)
        return found, tuple(ordered)

    def _check(self, exchange: Exchange, counts: list[int], *, sends: bool) -> None:
        """The layout must agree with the row count that the program carries."""
        due = dict.fromkeys(exchange.ranks, 0)
        for message in exchange.messages:
            near, far = (message.source, message.destination) if sends else (message.destination, message.source)
            if near == self.rank:
                due[far] += message.rows + message.ring_rows * self.ring_units
        if list(due.values()) != counts:
            raise WireBytesError(
                f"rank {self.rank} would {'send' if sends else 'receive'} other rows than the program says",
                where=f"{exchange.phase}.{self.program.groups[exchange.group].name}.{exchange.name}",
                details=(f"units by rank: {counts}, program: {list(due.values())}",),
            )

    def _blocks(self, exchange: Exchange, source: int, destination: int) -> Iterator[_Block]:
        """What travels from one rank to another, in the order of the buffers."""
        program = self.program
        here, there = program.positions(source), program.positions(destination)
        shared = [index for index in program.groups[exchange.group].segments if index in here and index in there]
        for part in exchange.parts:
            for index in shared:
                segment = program.segments[index]
                owner, worker = (here[index], there[index]) if part.to_worker else (there[index], here[index])
                heads = _carried_heads(program, index, part, owner, worker)
                tokens = segment.shares[owner].owned
                if heads is not None and tokens[0] < tokens[1]:
                    yield _Block(part, index, tokens, heads)

    def _width(self, part: Part) -> int:
        return self.ring_units if part.is_ring_gradient else 1

    def _expand(self, rows: IntArray, part: Part) -> IntArray:
        width = self._width(part)
        return rows if width == 1 else (rows[:, None] * width + np.arange(width)[None, :]).reshape(-1)

    def _source_rows(self, block: _Block, group: GroupMap) -> IntArray:
        return self._owner_rows(block, group) if block.part.to_worker else self._worker_rows(block, group)

    def _target_rows(self, block: _Block, group: GroupMap) -> IntArray:
        return self._worker_rows(block, group) if block.part.to_worker else self._owner_rows(block, group)

    def _owner_rows(self, block: _Block, group: GroupMap) -> IntArray:
        """Rows of the group's local tokens, in a tensor of all heads."""
        num_heads = self._num_heads(block.part.tensor)
        owned = self.program.segments[block.segment].shares[self.places[block.segment]].owned
        first = self.first_token[block.segment] - group.tokens[0] - owned[0]
        tokens = np.arange(*block.tokens) + first
        return (tokens[:, None] * num_heads + np.arange(*block.heads)[None, :]).reshape(-1)

    def _worker_rows(self, block: _Block, group: GroupMap) -> IntArray:
        if block.part.tensor in ("q", "o", "do", "dq"):
            return group.layout.query_rows_of(block.segment, block.tokens, block.heads)
        return group.layout.kv_rows_of(block.segment, block.part.ring_round, block.tokens, block.heads)

    def _num_heads(self, tensor: Tensor) -> int:
        return self.program.num_heads if tensor in ("q", "o", "do", "dq") else self.program.num_kv_heads

    def _num_worker_rows(self, part: Part, group: GroupMap) -> int:
        is_query = part.tensor in ("q", "o", "do", "dq")
        return group.layout.query_rows if is_query else group.layout.kv_rows[part.ring_round]

    def _num_owner_rows(self, part: Part, group: GroupMap) -> int:
        return (group.tokens[1] - group.tokens[0]) * self._num_heads(part.tensor)

    def _num_targets(self, part: Part, group: GroupMap) -> int:
        return self._num_worker_rows(part, group) if part.to_worker else self._num_owner_rows(part, group)

    def _gather(self, exchange: Exchange, target: IntArray, source: IntArray, size: int) -> torch.Tensor:
        """Where each target row comes from; every one must come from one place."""
        inverse = np.full(size, -1, np.int64)
        inverse[target] = source
        if len(target) != size or (inverse < 0).any():
            raise WireBytesError(f"rows of {exchange.name} on rank {self.rank} would be missing, or come twice")
        return self._tensor(inverse)

    def _levels(self, target: IntArray, source: IntArray, width: int, size: int) -> tuple[Level, ...]:
        """Additions in levels: the n-th contribution to each target is in level n, by rank that sent it."""
        if not len(target):
            return ()
        order = np.argsort(target, kind="stable")
        ranked = target[order]
        starts = np.r_[True, ranked[1:] != ranked[:-1]]
        run = np.maximum.accumulate(np.where(starts, np.arange(len(ranked)), 0))
        level = np.arange(len(ranked)) - run
        found = []
        for number in range(int(level.max()) + 1):
            chosen = order[level == number]
            units = (source[chosen][:, None] + np.arange(width)[None, :]).reshape(-1)
            everywhere = len(chosen) == size
            found.append(Level(None if everywhere else self._tensor(target[chosen]), self._tensor(units)))
        return tuple(found)

    def _tensor(self, values: IntArray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64)).to(self.device)


def _carried_heads(program: Program, index: int, part: Part, owner: int, worker: int) -> Range | None:
    """The heads of an owner's tokens that a worker needs in a part's round; None where it needs none."""
    segment = program.segments[index]
    config, share = segment.config, segment.shares[worker]
    if not share.has_work or part.ring_round >= config.k:
        return None
    if part.tensor in ("q", "o", "do", "dq"):
        return share.heads if owner // config.h == worker // config.h else None
    ring = (worker // config.h + part.ring_round) % config.k
    return share.kv_heads if owner // config.h % config.k == ring else None
