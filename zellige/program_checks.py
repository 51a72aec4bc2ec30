"""Checks of a program as a value: order, cyclic waits, conservation of tokens and rows, resident memory.

Each raises a :class:`zellige.errors.ProgramError` that names what is wrong; :func:`check_program` runs all of them.
"""

from __future__ import annotations

import graphlib
import itertools

from zellige.errors import ConservationError, CyclicWaitError, ExchangeOrderError, ResidentMemoryError
from zellige.program import Program
from zellige.program_parts import PASSES, Exchange, Op, Pass, Segment
from zellige.shards import (
    RING_GRADIENT_BYTES,
    WIRE_BYTES,
    head_range,
    kv_head_range,
    query_range,
    received_rows,
)
from zellige.units import count_of, format_bytes, share_of


def check_program(program: Program) -> None:
    """All checks that need nothing but the program."""
    check_tokens(program)
    check_tasks(program)
    check_rows(program)
    check_order(program)
    check_counts(program)
    check_waits(program)


def check_tokens(program: Program) -> None:
    """Every token of every sequence has one owner, and every whole sequence stands in one batch of its rank."""
    for segment in program.segments:
        stop = 0
        for share in segment.shares:
            if share.owned[0] != stop or share.owned[1] < share.owned[0]:
                raise ConservationError(
                    f"tokens of {segment.sequence} are lost or owned twice",
                    details=(f"a shard starts at {share.owned[0]}, where {stop} was due",),
                )
            stop = share.owned[1]
        if stop != segment.length:
            lost = f"{share_of(segment.length - stop, segment.length, 'token')}"
            raise ConservationError(f"{lost} of {segment.sequence} lost")
    batched = [(work.rank, index) for work in program.ranks for part in work.whole for index in part]
    whole = [(s.ranks[0], index) for index, s in enumerate(program.segments) if not s.config.is_split]
    if sorted(batched) != sorted(whole):
        raise ConservationError("whole sequences are missing from batches, or stand in two")
    grouped = sorted(index for group in program.groups for index in group.segments)
    if grouped != [index for index, segment in enumerate(program.segments) if segment.config.is_split]:
        raise ConservationError("split sequences are missing from groups, or stand in two")


def check_tasks(program: Program) -> None:
    """Queries x keys x heads of a sequence's tasks add up to its whole attention: no product lost, none repeated."""
    seen: set[tuple[int, object]] = set()
    for segment in program.segments:
        if (segment.length, segment.config) in seen:
            continue
        seen.add((segment.length, segment.config))
        products = 0
        for position, share in enumerate(segment.shares):
            _check_share(program, segment, position)
            keys = sorted(itertools.chain.from_iterable(share.keys))
            if [start for start, _ in keys] + [segment.length] != [0] + [stop for _, stop in keys]:
                raise ConservationError(
                    f"rounds of {segment.sequence} at position {position} do not bring every key once"
                )
            queries, heads = share.queries, share.heads
            products += (queries[1] - queries[0]) * (heads[1] - heads[0]) * segment.length
        if products != program.num_heads * segment.length**2:
            raise ConservationError(f"attention of {segment} has {products} products, not heads x tokens squared")


def _check_share(program: Program, segment: Segment, position: int) -> None:
    shape, config, share = program.shape(segment), segment.config, segment.shares[position]
    if (share.queries, share.heads, share.kv_heads) != (
        query_range(segment.length, config, position),
        head_range(shape, config, position),
        kv_head_range(shape, config, position),
    ):
        raise ConservationError(f"position {position} of {segment} has another rank's queries or heads")


def check_rows(program: Program) -> None:
    """Rows into every rank are those of the row count, by pass; messages are sorted pairs of two ranks that enter."""
    for exchange in program.exchanges:
        pairs = [(message.source, message.destination) for message in exchange.messages]
        if pairs != sorted(set(pairs)) or any(source == destination for source, destination in pairs):
            raise ConservationError(f"messages of {_label(program, exchange)} are not sorted pairs of two ranks")
        if exchange.is_local and pairs:
            raise ConservationError(f"{_label(program, exchange)} has messages, and no call that carries them")
        if not {rank for pair in pairs for rank in pair} <= set(exchange.ranks):
            raise ConservationError(f"{_label(program, exchange)} has messages of ranks that do not enter it")
    for phase in ("forward", "backward"):
        counted = [[0, 0] for _ in range(program.num_ranks)]
        for exchange in program.exchanges:
            for message in exchange.messages if exchange.phase == phase else ():
                counted[message.destination][0] += message.rows
                counted[message.destination][1] += message.ring_rows
        for rank, (found, due) in enumerate(zip(counted, _due_rows(program, phase), strict=True)):
            if found != due:
                raise ConservationError(
                    f"rank {rank} receives {count_of(found[0], 'row')} and {count_of(found[1], 'ring row')} in {phase},"
                    f" where {due[0]:,} and {due[1]:,} are due"
                )


def _due_rows(program: Program, phase: Pass) -> list[list[int]]:
    due = [[0, 0] for _ in range(program.num_ranks)]
    for segment in program.segments:
        for position, rank in enumerate(segment.ranks):
            rows = received_rows(program.shape(segment), segment.config, position)
            if phase == "forward":
                due[rank][0] += rows.query + rows.kv + rows.output
            else:
                resent = sum(rows.kv_by_round[1:])
                due[rank][0] += rows.query + rows.output + resent + rows.kv_gradient_by_round[0]
                due[rank][1] += sum(rows.kv_gradient_by_round[1:])
    return due


def check_order(program: Program) -> None:
    """Segments by split degree, descending; every rank issues exchanges in the one order of the program."""
    degrees = [segment.config.degree for segment in program.segments]
    if degrees != sorted(degrees, reverse=True):
        raise ExchangeOrderError("segments do not stand by split degree, descending")
    for work in program.ranks:
        for phase in PASSES:
            issued = [op.index for op in work.ops(phase) if op.kind == "issue"]
            late = next((b for a, b in itertools.pairwise(issued) if b <= a), None)
            if late is not None:
                raise ExchangeOrderError(
                    f"rank {work.rank} issues {_label(program, program.exchanges[late])} out of order, or twice"
                )


def check_counts(program: Program) -> None:
    """Every rank of an exchange issues it once and then waits for it once in its pass, and no other rank does."""
    for phase in PASSES:
        wanted = "backward" if phase == "backward" else "forward"
        used = {op.index for work in program.ranks for op in work.ops(phase) if op.kind == "issue"}
        due = {i for i, exchange in enumerate(program.exchanges) if exchange.phase == wanted and not exchange.is_local}
        if used != due and not (phase == "recompute" and not used):
            raise ExchangeOrderError(f"{phase} does not issue every exchange of its own, and no other")
        for work in program.ranks:
            mine = [index for index in sorted(used) if work.rank in program.exchanges[index].ranks]
            _check_pairs(program, work.ops(phase), mine, f"rank {work.rank} in {phase}")


def _check_pairs(program: Program, ops: tuple[Op, ...], mine: list[int], who: str) -> None:
    issues = [op.index for op in ops if op.kind == "issue"]
    waits = [op.index for op in ops if op.kind == "wait"]
    if sorted(issues) != mine or sorted(waits) != mine:
        wrong = min(set(mine) ^ set(issues) or set(mine) ^ set(waits) or set(mine))
        raise ExchangeOrderError(
            f"{who} does not enter {_label(program, program.exchanges[wrong])} once, as its other ranks do",
            details=(f"{count_of(len(issues), 'exchange')} entered, {len(waits)} waited for, {len(mine)} due",),
        )
    early = [op.index for place, op in enumerate(ops) if op.kind == "wait" and Op("issue", op.index) in ops[place:]]
    if early:
        raise ExchangeOrderError(f"{who} waits for {_label(program, program.exchanges[early[0]])} before it enters it")


def check_waits(program: Program) -> None:
    """No cyclic wait: a topological sort of the exchanges under every rank's own order; a cycle names its sequences."""
    for phase in PASSES:
        graph: dict[int, set[int]] = {}
        for work in program.ranks:
            # A rank waits for an exchange only after it has issued it, so the order of issues holds that of waits.
            issued = [op.index for op in work.ops(phase) if op.kind == "issue"]
            for before, after in itertools.pairwise(issued):
                graph.setdefault(after, set()).add(before)
        try:
            graphlib.TopologicalSorter(graph).prepare()
        except graphlib.CycleError as error:
            cycle = [program.exchanges[index] for index in dict.fromkeys(error.args[1])]
            names = sorted({program.segments[i].sequence for e in cycle for i in program.groups[e.group].segments})
            raise CyclicWaitError(
                f"ranks wait for one another in {phase}: sequences {', '.join(names)}",
                details=tuple(f"{_label(program, exchange)} on ranks {list(exchange.ranks)}" for exchange in cycle),
                fix="issue exchanges in one order on every rank",
            ) from None


def check_resident(program: Program, limit_bytes: int) -> None:
    """Raise :class:`ResidentMemoryError` where a rank's split attention holds more than ``limit_bytes`` in a layer."""
    for rank in range(program.num_ranks):
        held = resident_bytes(program, rank)
        if held > limit_bytes:
            raise ResidentMemoryError(
                f"split attention holds {format_bytes(held)} on rank {rank}, with room for {format_bytes(limit_bytes)}",
                details=(f"{format_bytes(held - limit_bytes)} missing",),
                fix="a ring (k) instead of q, or more ranks for the longest sequences",
            )


def resident_bytes(
    program: Program, rank: int, element_bytes: int = WIRE_BYTES, ring_bytes: int = RING_GRADIENT_BYTES
) -> int:
    """What split attention holds on a rank in the backward of a layer, at most.

    Saved: Q, O, and K and V of round 0. Working: dO and dQ, dK and dV of a round; with rings two rounds of these (in
    the wider type), and the K and V of a later round. Other engines than ``coalesced`` run one group after another.
    """
    totals = []
    for group in program.groups:
        saved = working = 0
        for index in group.segments:
            position = program.positions(rank).get(index)
            if position is None or not program.segments[index].shares[position].has_work:
                continue
            config, share = program.segments[index].config, program.segments[index].shares[position]
            query = (share.queries[1] - share.queries[0]) * (share.heads[1] - share.heads[0])
            kv_heads = share.kv_heads[1] - share.kv_heads[0]
            rounds = [2 * kv_heads * sum(stop - start for start, stop in keys) for keys in share.keys]
            largest = max(rounds)
            saved += (2 * query + rounds[0]) * element_bytes
            working += 2 * query * element_bytes
            working += (2 * ring_bytes + element_bytes) * largest if config.k > 1 else element_bytes * rounds[0]
        totals.append((saved, working))
    # Every group's tensors are saved until backward; work space is the largest group's.
    saved_bytes = sum(saved for saved, _ in totals)
    return program.head_dim * (saved_bytes + max((working for _, working in totals), default=0))


def _label(program: Program, exchange: Exchange) -> str:
    return f"{exchange.phase}.{program.groups[exchange.group].name}.{exchange.name}"
