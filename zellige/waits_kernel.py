"""What ranks wait for in a coalesced step, as loops over integers that a compiler may take.

A layer's passes are followed rank by rank: linear work that attention waits for, an exchange in, attention by ring
rounds with an exchange each, an exchange back, linear work that waits for attention; whole sequences run while the
first exchange in and the one back are under way. Who meets whom is that of :mod:`zellige.lowering`. All layers are
alike, so that a few of them tell the pace at which ranks go on. Times are ns of a step: a layer stands for all.
"""

from __future__ import annotations

from typing import Any, NamedTuple

Ints = Any
"""A list of integers, or an array of them."""

LAYERS, RAMP = 5, 2
"""Layers that are followed in each direction, and how many of them the ranks need to fall into step."""

FIRST, Q, H, K, WIDE, PROJECT, FINISH, ATTEND, INTO, BACK = range(10)
"""Columns of a split sequence: where its ranks start, its split, whether it runs on several nodes, and on each rank:
linear work before and after attention, attention, and of one pass the transfer before attention and the one after."""

LINEAR, CORE = range(2)
"""Columns of a kind of whole sequences: linear work and attention of forward and backward."""

NONE, SELECTIVE, FULL = range(3)
"""What is run again before backward: nothing, linear work, all of forward."""

LINEAR_PARTS, CORE_PARTS = (1, 3), (2, 7)
"""Forward's part of linear work and of attention, in forward and backward."""

LEVEL = 0
"""The cut that ends all ranks' attention at once; others take a part of a rank's whole work, in percent, the longest
first, or negative ones the shortest first."""


class Plan(NamedTuple):
    """A plan's figures: ``ways[i]`` are a split sequence's columns and ``members`` the ranks of all, one after another;
    ``kinds[b]`` the columns of whole sequences of one length, by decreasing length, ``counts[b][r]`` how many of them
    rank r has. ``rounds``: ring rounds; ``again``: what checkpointing runs again; ``call``: what entering an exchange
    takes."""

    num_ranks: int
    rounds: int
    again: int
    call: int
    ways: Ints
    members: Ints
    kinds: Ints
    counts: Ints


class Room(NamedTuple):
    """Where the loops write: by direction (forward, backward) the work of each rank before and after attention, in each
    of its rounds, whole and of the first batch of that; transfers by direction, exchange and rank; times; blocks."""

    before: Ints
    after: Ints
    attend: Ints
    whole: Ints
    first: Ints
    moving: Ints
    linear: Ints
    now: Ints
    entered: Ints
    then: Ints
    marks: Ints
    tops: Ints


def forward_of(value: int, part: tuple[int, int]) -> int:
    """Forward's part of some work."""
    return value * part[0] // part[1]


def load(plan: Plan, room: Room) -> None:
    """Add up every rank's work and transfers."""
    for each in (room.before, room.after, room.whole, room.first):
        for side in range(2):
            for rank in range(plan.num_ranks):
                each[side][rank] = 0
    for side in range(2):
        for ring in range(plan.rounds):
            for rank in range(plan.num_ranks):
                room.attend[side][ring][rank] = 0
    for rank in range(plan.num_ranks):
        room.linear[rank] = 0
    for way in range(len(plan.ways)):
        _load_way(plan, room, way)
    for kind in range(len(plan.kinds)):
        linear, core = plan.kinds[kind][LINEAR], plan.kinds[kind][CORE]
        early = forward_of(linear, LINEAR_PARTS) + forward_of(core, CORE_PARTS)
        for rank in range(plan.num_ranks):
            count = plan.counts[kind][rank]
            if count:
                room.whole[0][rank] += count * early
                room.whole[1][rank] += count * (linear + core - early)
                room.linear[rank] += count * forward_of(linear, LINEAR_PARTS)


def _load_way(plan: Plan, room: Room, way: int) -> None:
    first, q, h, k = plan.ways[way][FIRST], plan.ways[way][Q], plan.ways[way][H], plan.ways[way][K]
    project, finish, attend = plan.ways[way][PROJECT], plan.ways[way][FINISH], plan.ways[way][ATTEND]
    early, late = forward_of(project, LINEAR_PARTS), forward_of(finish, LINEAR_PARTS)
    core = forward_of(attend, CORE_PARTS)
    for place in range(first, first + q * h * k):
        rank = plan.members[place]
        room.before[0][rank] += early
        room.after[0][rank] += late
        room.before[1][rank] += finish - late
        room.after[1][rank] += project - early
        room.linear[rank] += early + late
        for ring in range(k):
            room.attend[0][ring][rank] += core // k
            room.attend[1][ring][rank] += (attend - core) // k


def meetings_of(rounds: int, side: int, exchange: int) -> tuple[bool, int, int]:
    """Whom an exchange brings together: whether the ranks that share a block of heads, and by how many places apart on
    the ring (twice; -1: none). Exchange ``rounds`` is the one back."""
    if side == 0:
        return exchange in (0, rounds), -1 if exchange == rounds else exchange, -1
    if exchange == rounds:
        return True, rounds - 1, rounds - 2
    return exchange == 0, exchange if exchange else -1, exchange - 2


def meet(plan: Plan, room: Room, side: int, exchange: int, values: Ints, add: Ints, to: Ints) -> None:
    """Raise each rank's ``to`` to the largest of its peers' ``values``, its own among them, plus what it adds."""
    own, one, other = meetings_of(plan.rounds, side, exchange)
    for way in range(len(plan.ways)):
        first, q, h, k = plan.ways[way][FIRST], plan.ways[way][Q], plan.ways[way][H], plan.ways[way][K]
        for block in range(q * k):
            top = 0
            for place in range(first + block * h, first + block * h + h):
                top = max(top, values[plan.members[place]])
            room.tops[block] = top
        for block in range(q * k):
            top = room.tops[block] if own and h > 1 else -1
            top = max(top, _top_at(room.tops, block, q, h, k, one), _top_at(room.tops, block, q, h, k, other))
            if top < 0:
                continue
            for place in range(first + block * h, first + block * h + h):
                rank = plan.members[place]
                to[rank] = max(to[rank], max(top, values[rank]) + add[rank])


def _top_at(tops: Ints, block: int, q: int, h: int, k: int, shift: int) -> int:
    """The largest value of the blocks that a block meets so many places on and back along the ring; -1: none."""
    top = -1
    if 0 < shift < k or (shift == 0 and q * h > 1):
        for row in range(0, q * k, k):
            top = max(top, tops[row + (block + shift) % k], tops[row + (block - shift) % k])
    return top


def transfers(plan: Plan, room: Room) -> None:
    """What the exchanges in and back of either direction take each rank: the most that one of those has to move that
    meet it, inside nodes or between them. Those of later ring rounds run beside attention."""
    for side in range(2):
        for exchange in range(plan.rounds + 1):
            for rank in range(plan.num_ranks):
                room.moving[side][exchange][rank] = 0
        for exchange in (0, plan.rounds):
            column = INTO if (exchange == 0) == (side == 0) else BACK
            for rank in range(plan.num_ranks):
                room.entered[rank] = room.then[rank] = room.now[rank] = 0
            for way in range(len(plan.ways)):
                first, size = plan.ways[way][FIRST], plan.ways[way][Q] * plan.ways[way][H] * plan.ways[way][K]
                port = room.now if plan.ways[way][WIDE] else room.entered
                for place in range(first, first + size):
                    port[plan.members[place]] += plan.ways[way][column]
            for rank in range(plan.num_ranks):
                room.entered[rank] = max(room.entered[rank], room.now[rank])
            meet(plan, room, side, exchange, room.entered, room.then, room.moving[side][exchange])


def follow(plan: Plan, room: Room, side: int) -> None:
    """Take all ranks through one pass of a layer."""
    now, entered, then, ranks, rounds = room.now, room.entered, room.then, range(plan.num_ranks), plan.rounds
    for rank in ranks:
        entered[rank] = now[rank] + room.before[side][rank] + plan.call
        then[rank] = entered[rank] + room.first[side][rank]
    meet(plan, room, side, 0, entered, room.moving[side][0], then)
    for ring in range(rounds):
        call = plan.call if ring + 1 < rounds else 0
        for rank in ranks:
            entered[rank] = then[rank] + call
            then[rank] = entered[rank] + room.attend[side][ring][rank]
        if ring + 1 < rounds:
            meet(plan, room, side, ring + 1, entered, room.moving[side][ring + 1], then)
    for rank in ranks:
        entered[rank] = then[rank] + plan.call
        then[rank] = entered[rank] + room.whole[side][rank] - room.first[side][rank]
    meet(plan, room, side, rounds, entered, room.moving[side][rounds], then)
    for rank in ranks:
        now[rank] = then[rank] + room.after[side][rank]


def step_ns(plan: Plan, room: Room) -> int:
    """The step at the pace of the slowest rank, once the ranks have fallen into step."""
    for rank in range(plan.num_ranks):
        room.now[rank] = room.marks[rank] = 0
    for layer in range(LAYERS):
        if layer == RAMP:
            for rank in range(plan.num_ranks):
                room.marks[rank] -= room.now[rank]
        follow(plan, room, 0)
    for rank in range(plan.num_ranks):
        room.marks[rank] += room.now[rank]
    for layer in range(LAYERS):
        if layer == RAMP:
            for rank in range(plan.num_ranks):
                room.marks[rank] -= room.now[rank]
        if plan.again == FULL:
            follow(plan, room, 0)
        elif plan.again == SELECTIVE:
            for rank in range(plan.num_ranks):
                room.now[rank] += room.linear[rank]
        follow(plan, room, 1)
    slowest = 0
    for rank in range(plan.num_ranks):
        slowest = max(slowest, room.marks[rank] + room.now[rank])
    return slowest // (LAYERS - RAMP)


def cut(plan: Plan, room: Room, percent: int, taken: Ints) -> None:
    """Choose each rank's first batch, by the numbers of its sequences of every kind in ``taken``."""
    kinds = len(plan.kinds)
    for rank in range(plan.num_ranks):
        room.first[0][rank] = room.first[1][rank] = 0
        total = room.whole[0][rank] + room.whole[1][rank]
        goal, seen = (total * abs(percent) + 99) // 100, 0
        for turn in range(kinds):
            kind = turn if percent > 0 else kinds - 1 - turn
            taken[kind][rank] = 0
            count = plan.counts[kind][rank]
            if not count or seen >= goal:
                continue
            time = max(1, plan.kinds[kind][LINEAR] + plan.kinds[kind][CORE])
            number = min(count, (goal - seen + time - 1) // time)
            _take(plan, room, kind, rank, number, taken)
            seen += number * time


def _take(plan: Plan, room: Room, kind: int, rank: int, number: int, taken: Ints) -> None:
    """Put so many more of a kind into a rank's first batch."""
    linear, core = plan.kinds[kind][LINEAR], plan.kinds[kind][CORE]
    early = forward_of(linear, LINEAR_PARTS) + forward_of(core, CORE_PARTS)
    taken[kind][rank] += number
    room.first[0][rank] += number * early
    room.first[1][rank] += number * (linear + core - early)


def level(plan: Plan, room: Room, taken: Ints) -> None:
    """Choose first batches so that, as far as sequences allow, attention ends on all ranks at once.

    When a rank starts a pass is its own affair. So no rank waits for another as long as, among ranks that meet, the
    most attention and the most linear work fit into a step together: each may run as much whole work before its
    attention as the most attention exceeds its own.
    """
    weight, core, rest, longest = 2 if plan.again == FULL else 1, room.now, room.entered, 0
    for rank in range(plan.num_ranks):
        core[rank] = rest[rank] = 0
        for side in range(2):
            times = weight if side == 0 else 1
            core[rank] += times * room.moving[side][0][rank]
            for ring in range(plan.rounds):
                core[rank] += times * room.attend[side][ring][rank]
            linear = room.before[side][rank] + room.after[side][rank]
            rest[rank] += times * (linear + room.moving[side][plan.rounds][rank])
        longest = max(longest, core[rank] + rest[rank] + weight * room.whole[0][rank] + room.whole[1][rank])
    most(plan, core, room.then)
    most(plan, rest, room.marks)
    for rank in range(plan.num_ranks):
        least = weight * room.moving[0][0][rank] + room.moving[1][0][rank]
        wanted = least + room.then[rank] - core[rank]
        if not _fill_up_to(plan, room, rank, least, wanted, taken):
            _fill_up_to(plan, room, rank, least, longest - room.marks[rank] - core[rank], taken)


def _fill_up_to(plan: Plan, room: Room, rank: int, least: int, most_ns: int, taken: Ints) -> bool:
    """Put whole sequences that take no more than ``most_ns`` in all into a rank's first batch, the longest first, and
    all where that is none; whether they cover what they have to."""
    weight, seen = 2 if plan.again == FULL else 1, 0
    room.first[0][rank] = room.first[1][rank] = 0
    for kind in range(len(plan.kinds)):
        linear, core = plan.kinds[kind][LINEAR], plan.kinds[kind][CORE]
        early = forward_of(linear, LINEAR_PARTS) + forward_of(core, CORE_PARTS)
        time = max(1, (weight - 1) * early + linear + core)
        number = min(plan.counts[kind][rank], max(0, most_ns - seen) // time)
        taken[kind][rank] = 0
        _take(plan, room, kind, rank, number, taken)
        seen += number * time
    if not seen:
        for kind in range(len(plan.kinds)):
            _take(plan, room, kind, rank, plan.counts[kind][rank], taken)
    return seen >= least


def best_cut(plan: Plan, room: Room, cuts: Ints, goal: int, taken: Ints) -> int:
    """The step under the best of some cuts, or the first that takes no longer than ``goal``; ``taken`` tells which."""
    load(plan, room)
    transfers(plan, room)
    best, chosen, tried = -1, cuts[0], cuts[0]
    for number in range(len(cuts)):
        tried = cuts[number]
        _make(plan, room, tried, taken)
        reached = step_ns(plan, room)
        if best < 0 or reached < best:
            best, chosen = reached, tried
        if best <= goal:
            break
    if chosen != tried:
        _make(plan, room, chosen, taken)
    return best


def _make(plan: Plan, room: Room, percent: int, taken: Ints) -> None:
    if percent == LEVEL:
        level(plan, room, taken)
    else:
        cut(plan, room, percent, taken)


def most(plan: Plan, values: Ints, to: Ints) -> None:
    """To each rank the largest of its own value and of those that share a sequence with it."""
    for rank in range(plan.num_ranks):
        to[rank] = values[rank]
    for way in range(len(plan.ways)):
        first, size = plan.ways[way][FIRST], plan.ways[way][Q] * plan.ways[way][H] * plan.ways[way][K]
        top = 0
        for place in range(first, first + size):
            top = max(top, values[plan.members[place]])
        for place in range(first, first + size):
            to[plan.members[place]] = max(to[plan.members[place]], top)
