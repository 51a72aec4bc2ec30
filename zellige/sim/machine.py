"""The machine: ranks that step through their scripts, and meet on channels.

A rank computes one operation at a time; what it enters on a lane runs beside it, in order. A meeting starts when the
last of its peers has come, and frees its members when its transfer is done. Compute on a rank with a running transfer
is slower. Work is counted in units that make both speeds whole numbers, so that results do not depend on how often a
rank's speed changed, or on the order of simultaneous events.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop

from zellige.errors import StuckError
from zellige.sim.events import MET, TRANSFER_DONE, WORK_DONE, EventQueue
from zellige.sim.network import Network, Restart
from zellige.sim.noise import Factors
from zellige.sim.options import SimOptions
from zellige.sim.scripts import (
    AHEAD,
    CALLS,
    COMPUTE,
    ENTER,
    EXPOSED,
    JITTER,
    LANES,
    METRICS,
    OPTIMIZER,
    SLOWDOWN,
    WAIT,
    WAITS,
    Instruction,
    Scripts,
)

COMPUTING, TRANSFER, WAITING = range(3)
"""Kinds of recorded spans."""

LINK = 3
"""The kind of a record that says how fast a meeting's transfer ran for a time, where links are shared."""

Record = tuple[int, int, int, int, int, int, int, int]
"""(kind, rank, name or channel, stage, start, stop) of a span, and two more: how long the rank had waited in a transfer
when it started, and who came last (else 0 and -1). Of a link: the meeting, and its rate in parts of FULL_RATE."""

FULL_RATE = 10**9

MEETING_BITS = 16
MEETING_MASK = (1 << MEETING_BITS) - 1
"""The bits of an event's subject that number a meeting of a visit."""

RUNNING = -1
"""What a rank that waits for nothing waits for."""


class Visit:
    """One use of a channel, in one stage: who is still missing in each meeting, and what has started."""

    __slots__ = ("arrived", "missing", "started", "unfinished")

    def __init__(self, missing: list[int]) -> None:
        self.missing = missing
        self.arrived: dict[int, int] = {}
        self.started = [-1] * len(missing)
        self.unfinished = len(missing)


class Machine:
    """One simulated step."""

    def __init__(
        self, scripts: Scripts, options: SimOptions, factors: Factors | None = None, network: Network | None = None
    ) -> None:
        ranks = scripts.num_ranks
        self.scripts = scripts
        self.events = 0
        self.slow, self.full = options.slow_speed
        self.factors = factors
        self.network = network
        self.records: list[Record] | None = [] if options.trace else None
        self.metrics = [[0] * len(METRICS) for _ in range(ranks)]
        self.finished: list[list[tuple[int, ...]]] = [[] for _ in range(ranks)]
        self.collectives: dict[int, tuple[int, int]] = {}
        self._queue = EventQueue()
        self._counts = [0] * ranks
        self._job_counts: dict[int, int] = {}
        self._num_channels = len(scripts.channels)
        self._pause = self._behind = -1
        self._stage = [0] * ranks
        self._ops: list[list[Instruction]] = list(scripts.parts[scripts.kind(0)])
        self._place = [0] * ranks
        self._ahead = [0] * ranks
        # A rank's operation: its end at full speed, begin, name, the call after it and its name; what was left of the
        # work at a time, and when it ends at the present speed. Whoever does not work has an end in the past.
        self._work = [(0, 0, 0, 0, 0)] * ranks
        self._left = [0] * ranks
        self._since = [0] * ranks
        self._until = [0] * ranks
        self._transfers = [0] * ranks
        self._waits_for = [RUNNING] * ranks
        self._waits_since = [0] * ranks
        self._visits: dict[int, Visit] = {}
        self._entered: list[list[deque[int]]] = [[deque() for _ in range(ranks)] for _ in range(LANES)]

    def run(self, pause_after: int = -1) -> None:
        """Simulate until all ranks are done with a stage, or to the end, from where it stands.

        Raises :class:`StuckError` where ranks wait for ever.
        """
        self._pause = pause_after
        self._behind = sum(stage <= pause_after for stage in self._stage) if pause_after >= 0 else -1
        if not self.events:
            for rank in range(self.scripts.num_ranks):
                self._advance(rank, 0)
        heap, counts, jobs, work = self._queue.heap, self._counts, self._job_counts, self._work
        taken = self.events
        while heap and self._behind:
            time, number, kind, subject = heappop(heap)
            taken += 1
            if kind == WORK_DONE:
                if number == counts[subject]:
                    if self.records is not None:
                        self._record_work(subject, time)
                    self.metrics[subject][SLOWDOWN] += time - work[subject][0]
                    self._advance(subject, time)
            elif kind == MET or self.network is None or jobs.get(subject) == number:
                self._transfer_done(subject, time)
        self.events = taken
        if self._behind and any(stage < self.scripts.num_stages for stage in self._stage):
            raise self._stuck()

    def link_records(self) -> list[Record]:
        """How fast every transfer ran, from time to time, where links are shared."""
        if self.network is None or self.network.pieces is None:
            return []
        records = []
        for subject, start, stop, rate in self.network.pieces:
            key, index = subject >> MEETING_BITS, subject & MEETING_MASK
            stage, number = divmod(key, self._num_channels)
            rank = self.scripts.channels[number].meetings[index].members[0]
            records.append((LINK, rank, number, stage, start, stop, index, round(rate * FULL_RATE)))
        return records

    def grow(self, num_layers: int) -> bool:
        """Make it a step of more layers; whether that is still possible: no rank may have turned back."""
        if max(self._stage) >= self.scripts.num_layers:
            return False
        self.scripts.num_layers = num_layers
        return True

    # --- a rank

    def _advance(self, rank: int, time: int) -> None:
        """Step through instructions until one takes time."""
        ops, place = self._ops[rank], self._place[rank]
        row = self.metrics[rank]
        while True:
            code, first, second, third, call, call_name = ops[place]
            place += 1
            if code == COMPUTE:
                row[second] += first
                row[CALLS] += call
                if self.factors is not None and second != OPTIMIZER:
                    first, call = self._noisy(rank, first, second, call)
                if first or call:
                    self._work[rank] = (time + first + call, time, third, call, call_name)
                    self._since[rank] = time
                    self._left[rank] = left = first * self.full
                    self._until[rank] = until = time - -left // self.slow if self._transfers[rank] else time + first
                    self._counts[rank] = self._queue.push(until + call, WORK_DONE, rank)
                    break
            elif code == ENTER:
                self._enter(rank, first, (self._stage[rank] + third) * self._num_channels + second, time)
            elif code == WAIT:
                key = (self._stage[rank] + third) * self._num_channels + second
                if key in self._entered[first][rank]:
                    self._waits_for[rank], self._waits_since[rank] = key, time
                    self._until[rank] = time
                    break
            elif code == AHEAD:
                self._enter_ahead(rank, first, second, third, time)
            else:
                self.finished[rank].append((time, *row))
                stage = self._stage[rank] = self._stage[rank] + 1
                self._behind -= stage == self._pause + 1
                if stage == self.scripts.num_stages:
                    self._until[rank] = time
                    return
                ops = self._ops[rank] = self.scripts.parts[self.scripts.kind(stage)][rank]
                place = 0
        self._place[rank] = place

    def _enter_ahead(self, rank: int, lane: int, channel: int, depth: int, time: int) -> None:
        last = min(self._stage[rank] + depth, self.scripts.num_stages - 2)
        while self._ahead[rank] <= last:
            self._ahead[rank] += 1
            self._enter(rank, lane, (self._ahead[rank] - 1) * self._num_channels + channel, time)

    def _noisy(self, rank: int, duration: int, metric: int, call: int) -> tuple[int, int]:
        """The work and the call as they really take, the difference counted."""
        assert self.factors is not None
        nominal, stage = duration + call, self._stage[rank]
        duration = self.factors.work(duration, rank, stage, metric)
        call = self.factors.work(call, rank, stage, CALLS)
        self.metrics[rank][JITTER] += duration + call - nominal
        return duration, call

    def _record_work(self, rank: int, time: int) -> None:
        _, began, name, call, call_name = self._work[rank]
        stage, until = self._stage[rank], self._until[rank]
        assert self.records is not None
        if until > began:
            self.records.append((COMPUTING, rank, name, stage, began, until, 0, -1))
        if call:
            self.records.append((COMPUTING, rank, call_name, stage, until, time, 0, -1))

    def _change_transfers(self, ranks: tuple[int, ...], time: int, change: int) -> None:
        """Count the running transfers of ranks; their compute changes speed with the first and the last."""
        for rank in ranks:
            before = self._transfers[rank]
            after = self._transfers[rank] = before + change
            if time >= self._until[rank] or (before and after):
                continue
            done = (time - self._since[rank]) * (self.slow if before else self.full)
            left = self._left[rank] = self._left[rank] - done
            self._since[rank] = time
            until = self._until[rank] = time - -left // (self.slow if after else self.full)
            self._counts[rank] = self._queue.push(until + self._work[rank][3], WORK_DONE, rank)

    # --- meetings

    def _enter(self, rank: int, lane: int, key: int, time: int) -> None:
        entered = self._entered[lane][rank]
        entered.append(key)
        if len(entered) == 1:
            self._arrive(rank, key, time)

    def _arrive(self, rank: int, key: int, time: int) -> None:
        channel = self.scripts.channels[key % self._num_channels]
        visit = self._visits.get(key)
        if visit is None:
            visit = self._visits[key] = Visit(channel.sizes.copy())
        missing = visit.missing
        if self.records is not None:
            visit.arrived[rank] = time
        for index in channel.needed_by[rank]:
            missing[index] = left = missing[index] - 1
            if not left:
                visit.started[index] = time
                self._start_transfer(key, index, time)

    def _start_transfer(self, key: int, index: int, time: int) -> None:
        channel = self.scripts.channels[key % self._num_channels]
        meeting = channel.meetings[index]
        duration = meeting.transfer_ns
        if duration:
            if self.factors is not None:
                duration = self.factors.transfer(duration, meeting.members[0], key // self._num_channels, channel.lane)
            self._change_transfers(meeting.members, time, 1)
        subject = key << MEETING_BITS | index
        if not duration:
            self._queue.push(time, MET, subject)
        elif self.network is None:
            self._queue.push(time + duration, TRANSFER_DONE, subject)
        else:
            self._restart(self.network.start(subject, key % self._num_channels, index, duration, time))

    def _restart(self, ends: list[Restart]) -> None:
        for subject, end in ends:
            self._job_counts[subject] = self._queue.push(end, TRANSFER_DONE, subject)

    def _transfer_done(self, subject: int, time: int) -> None:
        key, index = subject >> MEETING_BITS, subject & MEETING_MASK
        stage, number = divmod(key, self._num_channels)
        channel, visit = self.scripts.channels[number], self._visits[key]
        meeting = channel.meetings[index]
        if self.network is not None and meeting.transfer_ns:
            del self._job_counts[subject]
            self._restart(self.network.stop(subject, time))
        visit.unfinished -= 1
        if not visit.unfinished:
            del self._visits[key]
        began, lane = visit.started[index], channel.lane
        if lane:
            self.collectives[key] = (began, time)
        members = meeting.members
        if self.records is not None:
            arrived = visit.arrived
            last = min(rank for rank in meeting.peers if arrived[rank] == began)
            self.records.extend(
                (TRANSFER, rank, number, stage, began, time, began - arrived[rank], last) for rank in members
            )
        if meeting.transfer_ns:
            self._change_transfers(members, time, -1)
        queues, waits_for = self._entered[lane], self._waits_for
        for rank in members:
            entered = queues[rank]
            entered.popleft()
            if entered:
                self._arrive(rank, entered[0], time)
        for rank in members:
            if waits_for[rank] == key:
                self._resume(rank, lane, number, began, time)

    def _resume(self, rank: int, lane: int, channel: int, began: int, time: int) -> None:
        since, row = self._waits_since[rank], self.metrics[rank]
        partners = max(0, began - since)
        row[WAITS + lane] += partners
        row[EXPOSED + lane] += time - since - partners
        self._waits_for[rank] = RUNNING
        if self.records is not None:
            self.records.append((WAITING, rank, channel, self._stage[rank], since, time, 0, -1))
        self._advance(rank, time)

    def _stuck(self) -> StuckError:
        channels = self.scripts.channels
        waiting = [rank for rank, key in enumerate(self._waits_for) if key != RUNNING]
        lines = []
        for rank in waiting[:8]:
            key = self._waits_for[rank]
            head = next((lane[rank][0] for lane in self._entered if lane[rank] and lane[rank][0] != key), key)
            behind = f", behind {channels[head % len(channels)].name}" if head != key else ""
            lines.append(f"rank {rank} waits for {channels[key % len(channels)].name}{behind}")
        return StuckError(
            f"{len(waiting)} of {len(self._stage)} ranks wait for ever, from {max(self._waits_since) / 1e6:.3f} ms on",
            details=tuple(lines),
            fix="issue exchanges in one order on every rank, each on all ranks that it names",
        )
