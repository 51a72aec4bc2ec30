"""A priced program as lists of instructions that the machine steps through, and the channels on which ranks meet.

A step is a list of **stages**: the forward of every layer, then recompute and backward of every layer from the last to
the first, then the end of the step (optimizer). A stage's instructions are the same in every layer.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from zellige.errors import UnequalGathersError
from zellige.exchange_prices import Meeting, Transfer
from zellige.op_prices import OpPrices
from zellige.program import Program
from zellige.program_parts import Op, Pass
from zellige.sim.algorithms import CollectiveTime
from zellige.sim.options import SimOptions
from zellige.sim.state import StateTraffic

COMPUTE, ENTER, AHEAD, WAIT, END = range(5)
"""Instruction codes."""

Instruction = tuple[int, int, int, int, int, int]
"""(COMPUTE, duration, metric, name, call, name of the call): work, and then the call of an exchange, which nothing
slows down. (ENTER or WAIT, lane, channel, stage offset, 0, 0), (AHEAD, lane, channel, depth, 0, 0), (END, 0, ..)."""

EXCHANGE, GATHER, REDUCE = range(3)
LANES = 3
"""Communication streams of a rank: what enters one of them runs in order."""

METRICS = (
    "project", "attend", "whole", "finish", "relinear", "optimizer", "calls", "slowdown", "jitter",
    "wait_exchange", "wait_gather", "wait_reduce", "exchange", "gather", "reduce",
)  # fmt: skip
"""What a rank's time is made of; ``wait_x`` is for partners that have not come, ``x`` for an exposed transfer."""

OPTIMIZER, CALLS, SLOWDOWN, JITTER, WAITS, EXPOSED = 5, 6, 7, 8, 9, 12
"""Places in :data:`METRICS`; the last two are the first of :data:`LANES` places."""

FORWARD, BACKWARD, LAST = range(3)
"""Kinds of stages."""


class Channel:
    """An exchange of a program, or a collective over all ranks: who meets whom, and what travels."""

    __slots__ = ("freed_by", "lane", "meetings", "name", "needed_by", "received", "sizes", "transfers")

    def __init__(self, name: str, lane: int, meetings: Sequence[Meeting], transfers: Sequence[Transfer]) -> None:
        self.name = name
        self.lane = lane
        self.meetings = tuple(meetings)
        self.transfers = tuple(transfers)
        self.sizes = [len(meeting.peers) for meeting in self.meetings]
        self.freed_by = {rank: index for index, meeting in enumerate(self.meetings) for rank in meeting.members}
        needed: dict[int, list[int]] = {}
        for index, meeting in enumerate(self.meetings):
            for rank in meeting.peers:
                needed.setdefault(rank, []).append(index)
        self.needed_by = {rank: tuple(indexes) for rank, indexes in needed.items()}
        self.received: dict[int, int] = {}
        for _, destination, size in self.transfers:
            self.received[destination] = self.received.get(destination, 0) + size


class Scripts(msgspec.Struct, kw_only=True):
    """What every rank does in a step: ``parts[kind][rank]`` are the instructions of a stage of that kind."""

    num_ranks: int
    num_layers: int
    channels: list[Channel]
    names: list[str]
    parts: list[list[list[Instruction]]]

    @property
    def num_stages(self) -> int:
        """Two for each layer, and the last."""
        return 2 * self.num_layers + 1

    def kind(self, stage: int) -> int:
        """What a stage is."""
        return FORWARD if stage < self.num_layers else BACKWARD if stage < 2 * self.num_layers else LAST

    def layer(self, stage: int) -> int:
        """The layer of a stage; the last stage counts as the first layer's."""
        return stage if stage < self.num_layers else max(0, 2 * self.num_layers - 1 - stage)


def make_scripts(prices: OpPrices, options: SimOptions, state: StateTraffic | None, num_layers: int) -> Scripts:
    """The scripts of a step of ``num_layers`` layers; ``state`` None leaves gathers and reductions out."""
    program = prices.program
    scripts = Scripts(num_ranks=program.num_ranks, num_layers=num_layers, channels=[], names=[], parts=[[], [], []])
    passes: tuple[Pass, ...] = ("forward", "recompute", "backward")
    makers = {phase: _PassMaker(prices, phase, scripts, options) for phase in passes}
    for rank in range(program.num_ranks):
        scripts.parts[FORWARD].append(makers["forward"].instructions(rank))
        scripts.parts[BACKWARD].append(
            [*makers["recompute"].instructions(rank), *makers["backward"].instructions(rank)]
        )
        scripts.parts[LAST].append([])
    if state is not None:
        _add_state(scripts, state, options)
    for part in scripts.parts:
        for instructions in part:
            instructions.append((END, 0, 0, 0, 0, 0))
    return scripts


NO_WORK: Instruction = (COMPUTE, 0, 0, 0, 0, 0)


class _PassMaker:
    """Instructions of one pass; every exchange gets a channel of its own in every pass that issues it."""

    def __init__(self, prices: OpPrices, phase: Pass, scripts: Scripts, options: SimOptions) -> None:
        self._prices = prices
        self._phase = phase
        self._scripts = scripts
        self._one_stream = options.one_stream
        self._channels: dict[int, int] = {}
        self._names: dict[Op, int] = {}

    def instructions(self, rank: int) -> list[Instruction]:
        program = self._prices.program
        durations = self._prices.compute[self._phase][rank]
        result: list[Instruction] = []
        work = NO_WORK
        for op, duration in zip(program.ranks[rank].ops(self._phase), durations, strict=True):
            if op.kind == "keep":
                continue
            if op.kind == "issue":
                channel = self._channel(program, op)
                call = self._prices.exchanges[op.index].call_ns
                result.append((*work[:4], call, self._name(program, op, ".call")))
                result.append((ENTER, EXCHANGE, channel, 0, 0, 0))
                work = NO_WORK
                if self._one_stream:
                    result.append((WAIT, EXCHANGE, channel, 0, 0, 0))
                continue
            if work[1]:
                result.append(work)
            work = NO_WORK
            if op.kind != "wait":
                work = (COMPUTE, duration, METRICS.index(op.kind), self._name(program, op), 0, 0)
            elif not self._one_stream:
                result.append((WAIT, EXCHANGE, self._channel(program, Op("issue", op.index)), 0, 0, 0))
        return [*result, work] if work[1] else result

    def _channel(self, program: Program, op: Op) -> int:
        if op.index not in self._channels:
            price = self._prices.exchanges[op.index]
            self._channels[op.index] = len(self._scripts.channels)
            name = program.span(self._phase, op)
            self._scripts.channels.append(Channel(name, EXCHANGE, price.meetings, price.transfers))
        return self._channels[op.index]

    def _name(self, program: Program, op: Op, suffix: str = "") -> int:
        if op not in self._names:
            self._names[op] = len(self._scripts.names)
            self._scripts.names.append(program.span(self._phase, op) + suffix)
        return self._names[op]


def _add_state(scripts: Scripts, state: StateTraffic, options: SimOptions) -> None:
    """Gathers ahead of every stage, reductions after backward, and the optimizer at the end."""

    def channel(name: str, lane: int, time: CollectiveTime) -> int:
        everyone = tuple(range(scripts.num_ranks))
        scripts.channels.append(
            Channel(name, lane, [Meeting(everyone, everyone, time.time_ns)], state.transfers(time, lane == GATHER))
        )
        return len(scripts.channels) - 1

    if state.gather is not None:
        gather = channel("fsdp.gather", GATHER, state.gather)
        for kind in (FORWARD, BACKWARD):
            for instructions in scripts.parts[kind]:
                instructions[:0] = [(AHEAD, GATHER, gather, options.prefetch, 0, 0), (WAIT, GATHER, gather, 0, 0, 0)]
    reduce = channel("fsdp.reduce", REDUCE, state.reduce)
    for instructions in scripts.parts[BACKWARD]:
        instructions.append((ENTER, REDUCE, reduce, 0, 0, 0))
    optimizer = len(scripts.names)
    scripts.names.append("optimizer")
    last = None if state.last_gather is None else channel("fsdp.gather_all", GATHER, state.last_gather)
    for instructions in scripts.parts[LAST]:
        instructions += [(WAIT, REDUCE, reduce, -1, 0, 0), (COMPUTE, state.optimizer_ns, OPTIMIZER, optimizer, 0, 0)]
        if last is not None:
            instructions += [(ENTER, GATHER, last, 0, 0, 0), (WAIT, GATHER, last, 0, 0, 0)]


def check_collectives(scripts: Scripts) -> None:
    """Raise :class:`UnequalGathersError` where ranks enter a collective of a stage in different numbers."""
    for part in scripts.parts:
        counts: list[dict[int, int]] = []
        for instructions in part:
            entered: dict[int, int] = {}
            for code, lane, channel, *_ in instructions:
                if code in (ENTER, AHEAD) and lane != EXCHANGE:
                    entered[channel] = entered.get(channel, 0) + 1
            counts.append(entered)
        for rank, entered in enumerate(counts):
            if entered != counts[0]:
                channel = min(c for c in {*entered, *counts[0]} if entered.get(c, 0) != counts[0].get(c, 0))
                raise UnequalGathersError(
                    f"rank {rank} enters {scripts.channels[channel].name} {entered.get(channel, 0)} times in a layer,"
                    f" and rank 0 {counts[0].get(channel, 0)} times",
                    fix="all ranks of a shard group gather and reduce every layer, also without tokens of their own",
                )
