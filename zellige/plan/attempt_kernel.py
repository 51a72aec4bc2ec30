"""All attempts at a draft on rank sets that need not nest, as loops over integers for a compiler: the same drafts in
the same order as :func:`zellige.plan.attempts.free_draft` makes of lists.

An attempt takes some of the longest sequences as anchors, from some degree on; these are placed
(:mod:`zellige.plan.free_kernel`), all others packed around them by time alone, and what is placed is moved
(:mod:`zellige.plan.improve_kernel`, :mod:`zellige.plan.refine_kernel`). All integers are below 2**62.
"""

from __future__ import annotations

from zellige.plan.attempt_places import BEST, FULL, SAND, SPLIT, AttemptPlaces, Setting
from zellige.plan.divide_kernel import Kinds, Pool
from zellige.plan.free_kernel import DEPTHS, FreePlaces, place_freely
from zellige.plan.held_kernel import Held, Table, Ways
from zellige.plan.improve_kernel import PARTNERS, Changes, Whole, improve
from zellige.plan.layout import Ints
from zellige.plan.packing_kernel import Loads, pour
from zellige.plan.refine_kernel import Limits, refine
from zellige.plan.search_kernel import NEVER

GOOD = 9
"""A draft within 2**-9 (0.2 %) of what its anchors reached, or of its bound, ends the rounds of the cut."""

NEAR = 8
"""A plan within 2**-8 (0.4 %) of the bound that holds for any blocks ends the trial of more shapes of blocks."""

CLOSE = 11
"""A makespan within 2**-11 (0.05 %) of the bound is not improved further."""

MAX_CHANGES = 64

SHORT = 20
"""Sequences that take a twentieth of the bound whole, or less, are short."""

ROUNDS = 2
"""How often the two local searches take turns."""

MAX_STEPS = 24
"""Steps of the local search over all sequences."""

TRIAL = 4
"""Figures of a trial: its cut, and the least degrees of longer anchors, of shorter ones, and of what is left over."""

MAX_FULL = 3
"""So many attempts without room on a rank are made before there is a draft."""


def try_all(
    w: Ints, counts: Ints, best: Ints, has: Setting, at: AttemptPlaces, v: Ints, to: FreePlaces, changes: Changes
) -> int:
    """The time of the slowest rank of the best draft, or :data:`NEVER` where there is none.

    ``best[kind][rank]`` whole sequences and ``best_...`` are the draft; ``v`` and ``to`` are the figures of the search
    over rank sets, ``counts`` room for those of one attempt.
    """
    longest, good = NEVER, has.start + (has.start >> GOOD)
    w[at.numbers + FULL] = 0
    for rank in range(has.num_nodes * has.per_node):
        v[to.path_rank + rank], v[to.path_load + rank] = rank, 0
    for attempt in range(has.attempts):
        if attempt >= has.usual and longest <= has.start + (has.start >> NEAR):
            break
        _choose_fronts(attempt, w, has, at)
        if _is_known(attempt, w, has, at):
            continue
        target = _place(attempt, longest, w, has, at, v, to)
        if target < 0:
            continue
        _lay(w, counts, has, at, v, to)
        if not _fill(attempt, target, w, counts, has, at, changes):
            if longest >= NEVER:
                w[at.numbers + FULL] += 1
                if w[at.numbers + FULL] == MAX_FULL:
                    break
            continue
        reached = _longest(w, has, at)
        if reached > good and (longest >= NEVER or reached <= longest + (longest >> NEAR)):
            _polish(w, counts, has, at, changes)
            reached = _longest(w, has, at)
        if reached < longest:
            longest = reached
            _keep(w, counts, best, has, at)
        if reached <= good:
            break
    return longest


def _choose_fronts(attempt: int, w: Ints, has: Setting, at: AttemptPlaces) -> None:
    """Write which rungs the anchors may take: from a least degree on, those that no other beats in work and time; of
    all degrees where that leaves none."""
    row, anchors = at.front + attempt * has.rungs, at.anchors + w[at.trial + TRIAL * attempt] * has.buckets
    for rung in range(has.rungs):
        w[row + rung] = 0
    for bucket in range(has.buckets):
        if not w[anchors + bucket]:
            continue
        floor = w[at.trial + TRIAL * attempt + _floor_of(bucket, w[anchors + bucket], attempt, w, has, at)]
        if not _choose_front(bucket, floor, row, w, at):
            _choose_front(bucket, 1, row, w, at)


def _floor_of(bucket: int, number: int, attempt: int, w: Ints, has: Setting, at: AttemptPlaces) -> int:
    """Which of a trial's floors holds for so many anchors of a bucket: 1 of longer ones, 2 of shorter ones, 3 of what
    is left over (:class:`zellige.plan.task.Floors`)."""
    if bucket >= has.kinds:
        return 1
    if w[at.trial + TRIAL * attempt + 3] and (
        number < w[at.number + bucket] or SHORT * w[at.kind_time + bucket] <= has.start
    ):
        return 3
    return 2 if 5 * w[at.kind_time + bucket] <= has.start else 1


def _choose_front(bucket: int, floor: int, row: int, w: Ints, at: AttemptPlaces) -> bool:
    """Mark the front of a bucket from a degree on; False where it is empty."""
    fastest = NEVER
    for rung in range(w[at.first + bucket], w[at.last + bucket]):
        if w[at.rung_degree + rung] >= floor and w[at.rung_time + rung] < fastest:
            fastest = w[at.rung_time + rung]
            w[row + rung] = 1
    return bool(fastest < NEVER)


def _is_known(attempt: int, w: Ints, has: Setting, at: AttemptPlaces) -> bool:
    """Whether an earlier attempt has the same anchors and fronts."""
    row = at.front + attempt * has.rungs
    for earlier in range(attempt):
        same = w[at.trial + TRIAL * earlier] == w[at.trial + TRIAL * attempt]
        other = at.front + earlier * has.rungs
        rung = 0
        while same and rung < has.rungs:
            same = w[row + rung] == w[other + rung]
            rung += 1
        if same:
            return True
    return False


def _place(attempt: int, below: int, w: Ints, has: Setting, at: AttemptPlaces, v: Ints, to: FreePlaces) -> int:
    """The target of a placement of the anchors under ``below``, or -1 (:func:`zellige.plan.free.place_freely`)."""
    anchors, front = at.anchors + w[at.trial + TRIAL * attempt] * has.buckets, at.front + attempt * has.rungs
    depth, flat, work = 0, 0, 0
    for index in range(has.buckets):
        bucket = w[at.by_work + index]
        number, start = w[anchors + bucket], flat
        work += (w[at.number + bucket] - number) * w[at.rung_work + w[at.first + bucket]]
        if not number:
            continue
        for rung in range(w[at.first + bucket], w[at.last + bucket]):
            if w[front + rung]:
                v[to.rung_work + flat], v[to.rung_time + flat] = w[at.rung_work + rung], w[at.rung_time + rung]
                v[to.rung_degree + flat], v[to.rung_nodes + flat] = w[at.rung_degree + rung], w[at.rung_nodes + rung]
                w[at.flat + flat] = rung
                flat += 1
        for anchor in range(depth, depth + number):
            v[to.rung_first + anchor], v[to.rung_last + anchor] = start, flat
            w[at.member + anchor] = bucket
        depth += number
    v[to.numbers + DEPTHS], w[at.numbers + SAND] = depth, work
    if not depth:
        return has.start
    least = work
    for anchor in range(depth):
        least += v[to.rung_work + v[to.rung_first + anchor]]
    return place_freely(max(has.start, -(-least // (has.num_nodes * has.per_node))), below, work, v, to)


def _lay(w: Ints, counts: Ints, has: Setting, at: AttemptPlaces, v: Ints, to: FreePlaces) -> None:
    """Put the anchors where the search placed them: loads, counts of those that are whole, ways of the others."""
    size = has.num_nodes * has.per_node
    for rank in range(size):
        w[at.time + rank] = w[at.kept + rank] = w[at.live + rank] = 0
        for kind in range(has.kinds):
            counts[kind][rank] = 0
    split = 0
    w[at.way_first], w[at.way_first + 1] = 0, 1
    for anchor in range(v[to.numbers + DEPTHS]):
        bucket, rung = w[at.member + anchor], w[at.flat + v[to.best_rung + anchor]]
        taken = to.best_taken + anchor * size
        for place in range(taken, taken + w[at.rung_degree + rung]):
            _put(v[place], rung, w, at)
        if w[at.rung_degree + rung] == 1:
            counts[bucket][v[taken]] += 1
        else:
            split += 1
            _write_way(split, bucket, rung, taken, w, at, v)
    w[at.numbers + SPLIT] = split


def _put(rank: int, rung: int, w: Ints, at: AttemptPlaces) -> None:
    """Put a rung on a rank."""
    w[at.time + rank] += w[at.rung_time + rung]
    w[at.kept + rank] += w[at.rung_kept + rung]
    w[at.live + rank] = max(w[at.live + rank], w[at.rung_live + rung])


def _write_way(way: int, bucket: int, rung: int, taken: int, w: Ints, at: AttemptPlaces, v: Ints) -> None:
    """Write a split sequence on the ranks that the search took, these in ascending order."""
    w[at.way_bucket + way], w[at.way_rung + way], w[at.way_listed + way - 1] = bucket, rung, way
    start = at.way_ranks + w[at.way_first + way]
    for number in range(w[at.rung_degree + rung]):
        rank, here = v[taken + number], start + number
        while here > start and w[here - 1] > rank:
            w[here] = w[here - 1]
            here -= 1
        w[here] = rank
    w[at.way_first + way + 1] = w[at.way_first + way] + w[at.rung_degree + rung]


def _fill(attempt: int, target: int, w: Ints, counts: Ints, has: Setting, at: AttemptPlaces, changes: Changes) -> bool:
    """Pack what is no anchor by time alone and move whole sequences; False where a rank has no room for that."""
    anchors, size = at.anchors + w[at.trial + TRIAL * attempt] * has.buckets, has.num_nodes * has.per_node
    work = w[at.numbers + SAND]
    for rank in range(size):
        work += w[at.time + rank]
    target = max(target, -(-work // size))
    poured, time = w[at.poured : at.poured + size], w[at.time : at.time + size]
    for kind in range(has.kinds):
        number, live = w[at.number + kind] - w[anchors + kind], w[at.kind_live + kind]
        if not number:
            continue
        pour(time, w[at.kind_time + kind], number, poured)
        for rank in range(size):
            count = poured[rank]
            if count:
                time[rank] += count * w[at.kind_time + kind]
                w[at.kept + rank] += count * w[at.kind_kept + kind]
                w[at.live + rank] = max(w[at.live + rank], live)
                counts[kind][rank] += count
    for rank in range(size):
        if w[at.kept + rank] + w[at.live + rank] > has.room:
            return False
    _improve(target - (target >> CLOSE), PARTNERS, w, counts, has, at, changes)
    return True


def _longest(w: Ints, has: Setting, at: AttemptPlaces) -> int:
    """The time of the slowest rank."""
    longest = w[at.time]
    for rank in range(1, has.num_nodes * has.per_node):
        longest = max(longest, w[at.time + rank])
    return int(longest)


def _loads(w: Ints, size: int, at: AttemptPlaces) -> Loads:
    return Loads(w[at.time : at.time + size], w[at.kept : at.kept + size], w[at.live : at.live + size])


def _improve(
    goal: int, partners: int, w: Ints, counts: Ints, has: Setting, at: AttemptPlaces, changes: Changes
) -> None:
    """The local search over whole sequences, with ranks in order of (time, rank)."""
    if _longest(w, has, at) <= goal:
        return
    size = has.num_nodes * has.per_node
    for rank in range(size):
        here = at.order + rank
        while here > at.order and w[at.time + w[here - 1]] > w[at.time + rank]:
            w[here] = w[here - 1]
            here -= 1
        w[here] = rank
    order = w[at.order : at.order + size]
    whole = Whole(_loads(w, size, at), _pool(w, has, at), changes, counts, order)
    improve(whole, has.room, goal, MAX_CHANGES, partners)


def _pool(w: Ints, has: Setting, at: AttemptPlaces) -> Pool:
    kinds = Kinds(
        w[at.kind_time : at.kind_time + has.kinds],
        w[at.kind_kept : at.kind_kept + has.kinds],
        w[at.kind_live : at.kind_live + has.kinds],
    )
    return Pool(kinds, w[at.pool : at.taken], w[at.taken : at.divided], w[at.divided : at.divided + has.kinds])


def _polish(w: Ints, counts: Ints, has: Setting, at: AttemptPlaces, changes: Changes) -> None:
    """The local searches over all sequences and over whole ones in turn (:func:`zellige.plan.drafts.polish`)."""
    goal = has.start + (has.start >> CLOSE)
    _write_table(w, has, at)
    for _ in range(ROUNDS):
        before = _longest(w, has, at)
        if before > goal:
            _refine(goal, w, counts, has, at)
            _improve(goal, 2 * PARTNERS, w, counts, has, at, changes)
        if before <= goal or _longest(w, has, at) == before:
            break
    for way in range(1, w[at.numbers + SPLIT] + 1):
        w[at.way_rung + way] = w[at.table_source + w[at.way_rung + way]]


def _write_table(w: Ints, has: Setting, at: AttemptPlaces) -> None:
    """Write the rungs that sequences may take with no more ring rounds than the draft has, then those that they have,
    and number its ways' rungs by these."""
    rounds, size = 0, 0
    for way in range(1, w[at.numbers + SPLIT] + 1):
        rounds = max(rounds, w[at.rung_rounds + w[at.way_rung + way]])
    for rung in range(has.rungs):
        w[at.slot + rung] = -1
    for bucket in range(has.buckets):
        fastest = NEVER
        w[at.table_first + bucket] = size
        for rung in range(w[at.first + bucket], w[at.last + bucket]):
            if w[at.rung_rounds + rung] <= rounds and w[at.rung_time + rung] < fastest:
                fastest = w[at.rung_time + rung]
                size = _enter(rung, size, w, at)
        w[at.table_last + bucket] = size
    for kind in range(has.kinds):
        size = _enter(w[at.alone + kind], size, w, at)
        w[at.table_alone + kind] = w[at.slot + w[at.alone + kind]]
    for way in range(1, w[at.numbers + SPLIT] + 1):
        size = _enter(w[at.way_rung + way], size, w, at)
        w[at.way_rung + way] = w[at.slot + w[at.way_rung + way]]


def _enter(rung: int, size: int, w: Ints, at: AttemptPlaces) -> int:
    """Write a rung into the table of so many where it is not there yet; how many there are then."""
    if w[at.slot + rung] >= 0:
        return size
    w[at.slot + rung], w[at.table_source + size] = size, rung
    w[at.table_work + size], w[at.table_time + size] = w[at.rung_work + rung], w[at.rung_time + rung]
    w[at.table_degree + size], w[at.table_nodes + size] = w[at.rung_degree + rung], w[at.rung_nodes + rung]
    w[at.table_kept + size], w[at.table_live + size] = w[at.rung_kept + rung], w[at.rung_live + rung]
    return size + 1


def _refine(goal: int, w: Ints, counts: Ints, has: Setting, at: AttemptPlaces) -> None:
    """The local search over all sequences; its ways are then written one after another."""
    size, most = has.num_nodes * has.per_node, has.rungs
    for rank in range(size):
        w[at.order + rank] = rank
    for rung in range(most):
        w[at.tried + rung] = 0
    table = Table(
        w[at.table_work : at.table_work + most], w[at.table_time : at.table_time + most],
        w[at.table_degree : at.table_degree + most], w[at.table_nodes : at.table_nodes + most],
        w[at.table_kept : at.table_kept + most], w[at.table_live : at.table_live + most],
        w[at.table_first : at.table_last], w[at.table_last : at.table_alone], w[at.table_alone : at.table_source],
    )  # fmt: skip
    ways = Ways(
        w[at.way_bucket : at.way_rung], w[at.way_rung : at.way_first], w[at.way_first : at.way_listed],
        w[at.way_listed : at.way_ranks], w[at.way_ranks : at.spare_bucket],
    )  # fmt: skip
    order, tried = w[at.order : at.order + size], w[at.tried : at.tried + most]
    chosen, free = w[at.chosen : at.chosen + size], w[at.free : at.free + size]
    held = Held(_loads(w, size, at), table, ways, counts, order, chosen, free, tried, _pool(w, has, at), has.per_node)
    split = refine(held, w[at.numbers + SPLIT], Limits(has.room, goal, has.steps, False))
    w[at.numbers + SPLIT] = split
    _write_anew(split, at.spare_bucket, at.spare_rung, at.spare_first, at.spare_ranks, w, at)
    for way in range(1, split + 1):
        w[at.way_bucket + way], w[at.way_rung + way] = w[at.spare_bucket + way], w[at.spare_rung + way]
        w[at.way_first + way + 1], w[at.way_listed + way - 1] = w[at.spare_first + way + 1], way
    for place in range(1, w[at.spare_first + split + 1]):
        w[at.way_ranks + place] = w[at.spare_ranks + place]


def _write_anew(split: int, bucket: int, rung: int, first: int, ranks: int, w: Ints, at: AttemptPlaces) -> None:
    """Copy the ways that are listed, in order, to where their buckets, rungs, first places and ranks are told."""
    w[first], w[first + 1] = 0, 1
    for index in range(split):
        way, new = w[at.way_listed + index], index + 1
        w[bucket + new], w[rung + new] = w[at.way_bucket + way], w[at.way_rung + way]
        end = w[first + new]
        for place in range(w[at.way_first + way], w[at.way_first + way + 1]):
            w[ranks + end] = w[at.way_ranks + place]
            end += 1
        w[first + new + 1] = end


def _keep(w: Ints, counts: Ints, best: Ints, has: Setting, at: AttemptPlaces) -> None:
    """Write down the draft."""
    split = w[at.numbers + SPLIT]
    w[at.numbers + BEST] = split
    _write_anew(split, at.best_bucket, at.best_rung, at.best_first, at.best_ranks, w, at)
    for kind in range(has.kinds):
        for rank in range(has.num_nodes * has.per_node):
            best[kind][rank] = counts[kind][rank]
