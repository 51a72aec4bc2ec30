"""The search over aligned blocks as loops over integers, for a compiler: the same nodes in the same order as
:meth:`zellige.plan.search.Search.run`.

All integers but those that are hashed are below 2**62.
"""

from __future__ import annotations

from zellige.plan.layout import Ints
from zellige.plan.search_places import (
    CUT,
    GIANTS,
    NEXT_TARGET,
    NODES,
    QUOTA,
    ROWS,
    Frame,
    Places,
)

NEVER = 2**62

FINEST = 10
"""Targets are told apart down to 2**-10 of them (0.1 %)."""

FINE = 20
"""Shares of time and room are compared in parts of 2**20."""

FAILED, OPEN, PLACED = range(3)
"""What entering a node says: nothing can come of it, there is something to try, all anchors are placed."""

MAX_GIANTS = 4
"""So many of the anchors that must be split have all arrangements tried, each with a quota of nodes for the rest."""


def run(target: int, limit: int, frame: Frame, w: Ints, at: Places) -> bool:
    """Place all anchors below a target, visiting so many nodes at most; where that succeeds they stay placed, and
    ``path_rung`` and ``path_block`` say where."""
    w[at.numbers + NODES] = w[at.numbers + CUT] = w[at.numbers + ROWS] = 0
    w[at.numbers + QUOTA] = limit
    _empty(w, at)
    if not _open(target, frame, w, at):
        return False
    for slot in range(at.table_size):
        w[at.table + slot] = 0
    sand_work, room, tight, binds = frame.sand_work, frame.room, frame.tight, frame.binds
    per_density, highest, refutes = frame.per_density, frame.highest, frame.refutes
    return _descend(Frame(target, limit, sand_work, room, tight, binds, per_density, highest, refutes), w, at)


def _empty(w: Ints, at: Places) -> None:
    for rank in range(at.num_ranks):
        w[at.load_time + rank] = w[at.load_kept + rank] = w[at.load_live + rank] = 0


def _open(target: int, frame: Frame, w: Ints, at: Places) -> bool:
    """Write the work still to come at each depth, the giants, and what the next target is at least; False where an
    anchor has no rung below the target, or all have too much work."""
    next_target, giants, possible = NEVER, 0, True
    w[at.rest + at.num_anchors] = 0
    for depth in range(at.num_anchors - 1, -1, -1):
        least, whole = -1, False
        for rung in range(w[at.rung_first + depth], w[at.rung_last + depth]):
            if w[at.rung_time + rung] > target:
                next_target = min(next_target, w[at.rung_time + rung])
                continue
            whole = whole or w[at.rung_degree + rung] == 1
            if least < 0:
                least = w[at.rung_work + rung]
        possible = possible and least >= 0
        giants += not whole
        w[at.rest + depth] = w[at.rest + depth + 1] + least
    work = w[at.rest] + frame.sand_work
    if possible and work > at.num_ranks * target:
        next_target, possible = min(next_target, -(-work // at.num_ranks)), False
    w[at.numbers + NEXT_TARGET] = next_target
    w[at.numbers + GIANTS] = at.num_anchors if frame.refutes else min(giants, MAX_GIANTS)
    return possible


def _descend(frame: Frame, w: Ints, at: Places) -> bool:
    """Depth first, from empty ranks."""
    depth, verdict = 0, OPEN
    w[at.path_work] = 0
    entering = True
    while True:
        if entering:
            verdict = _enter(depth, frame, w, at)
            if verdict == PLACED:
                return True
        if verdict == OPEN and _advance(depth, frame, w, at):
            depth += 1
            entering = True
            continue
        while True:
            if depth == 0:
                return False
            depth -= 1
            _take_back(depth, w, at)
            if depth < w[at.numbers + GIANTS]:
                w[at.numbers + QUOTA] = frame.limit
            if w[at.numbers + NODES] < w[at.numbers + QUOTA]:
                break
            w[at.numbers + CUT] = 1
        entering, verdict = False, OPEN


def _enter(depth: int, frame: Frame, w: Ints, at: Places) -> int:
    """Count a node and say whether anything can come of it."""
    w[at.numbers + NODES] += 1
    if frame.binds and not has_capacity(depth, frame.target, frame, w, at):
        w[at.numbers + NEXT_TARGET] = min(w[at.numbers + NEXT_TARGET], frame.target + 1)
        return FAILED
    num_anchors = at.num_anchors
    if depth == num_anchors:
        return PLACED
    if depth == w[at.numbers + GIANTS]:
        w[at.numbers + QUOTA] = min(frame.limit, w[at.numbers + NODES] + 2 * (num_anchors - depth) + 8)
    if w[at.numbers + NODES] >= w[at.numbers + QUOTA]:
        w[at.numbers + CUT] = 1
        return FAILED
    if _known(depth, frame.binds, w, at):
        return FAILED
    w[at.path_rung + depth] = w[at.rung_first + depth] - 1
    w[at.path_first + depth] = w[at.path_last + depth] = 0
    return OPEN


def _advance(depth: int, frame: Frame, w: Ints, at: Places) -> bool:
    """Place the anchor of a depth on its next candidate; where there is none more, remember that the state failed."""
    num_ranks = at.num_ranks
    lowest = -1
    while True:
        rung = w[at.path_rung + depth]
        if w[at.path_first + depth] < w[at.path_last + depth]:
            w[at.path_block + depth] = w[at.path_candidates + depth * at.stride + w[at.path_first + depth]]
            w[at.path_first + depth] += 1
            w[at.path_work + depth + 1] = w[at.path_work + depth] + w[at.rung_work + rung]
            _put(depth, w, at)
            return True
        rung += 1
        w[at.path_rung + depth] = rung
        if rung == w[at.rung_last + depth]:
            break
        time = w[at.rung_time + rung]
        if time > frame.target:
            continue
        total = w[at.path_work + depth] + w[at.rest + depth + 1] + w[at.rung_work + rung]
        if total + frame.sand_work > num_ranks * frame.target:
            w[at.numbers + NEXT_TARGET] = min(w[at.numbers + NEXT_TARGET], -(-(total + frame.sand_work) // num_ranks))
            break
        if lowest < 0:
            lowest = _lowest(w, at)
        if lowest + time > frame.target:
            w[at.numbers + NEXT_TARGET] = min(w[at.numbers + NEXT_TARGET], lowest + time)
            continue
        w[at.numbers + NEXT_TARGET] = min(
            w[at.numbers + NEXT_TARGET], _candidates(rung, depth, depth * at.stride, frame, w, at)
        )
    _remember(depth, frame.binds, w, at, w[at.numbers + ROWS])
    w[at.numbers + ROWS] += 1
    return False


def _lowest(w: Ints, at: Places) -> int:
    """The load of the fastest rank."""
    lowest = w[at.load_time]
    for rank in range(1, at.num_ranks):
        lowest = min(lowest, w[at.load_time + rank])
    return int(lowest)


def has_capacity(depth: int, target: int, frame: Frame, w: Ints, at: Places) -> bool:
    """Whether the ranks have what is still to come, in the coin of every density."""
    num_densities = at.num_densities
    for each in range(num_densities):
        density, total = w[at.densities + each], 0
        for rank in range(at.num_ranks):
            bytes_left = frame.per_density * (frame.room - w[at.load_kept + rank] - w[at.load_live + rank])
            total += min(density * (target - w[at.load_time + rank]), bytes_left)
        if total < w[at.waiting + depth * num_densities + each]:
            return False
    return True


def _candidates(rung: int, depth: int, base: int, frame: Frame, w: Ints, at: Places) -> int:
    """Write the blocks with time and room for a rung, the first to try first; return the least threshold of a cut."""
    time, shape = w[at.rung_time + rung], w[at.rung_shape + rung]
    most, nearest, next_target, place = frame.target - time, NEVER, NEVER, base
    for block in range(w[at.shape_first + shape], w[at.shape_first + shape + 1]):
        highest = _highest(block, w, at)
        if highest > most:
            nearest = min(nearest, highest)
            continue
        if _has_mirror(block, frame.binds, w, at):
            continue
        if not frame.binds:
            score = -highest if frame.tight else highest
        else:
            fullest = _fullest(block, rung, w, at)
            if fullest > frame.room:
                next_target = frame.target + 1
                continue
            score = max(_share(highest + time, frame.target), _share(fullest, frame.room))
        _insert(w, at, base, place, score, block)
        place += 1
    w[at.path_first + depth], w[at.path_last + depth] = 0, place - base
    return int(min(next_target, nearest + time))


def _share(part: int, whole: int) -> int:
    """``(part << FINE) // whole`` of a part that is no larger than the whole, without the division of integers: a
    quotient of doubles is off by one at most."""
    share = int(part / whole * (1 << FINE))
    if share * whole > part << FINE:
        share -= 1
    elif (share + 1) * whole <= part << FINE:
        share += 1
    return share


def _insert(w: Ints, at: Places, base: int, place: int, score: int, block: int) -> None:
    """Keep candidates sorted by score; equal ones in the order of blocks."""
    while place > base and w[at.path_scores + place - 1] > score:
        w[at.path_scores + place] = w[at.path_scores + place - 1]
        w[at.path_candidates + place] = w[at.path_candidates + place - 1]
        place -= 1
    w[at.path_scores + place], w[at.path_candidates + place] = score, block


def _has_mirror(block: int, binds: bool, w: Ints, at: Places) -> bool:
    """Whether an earlier block is the same but for the names of equally loaded ranks."""
    for mirror in range(w[at.mirror_first + block], w[at.mirror_first + block + 1]):
        start, middle = w[at.mirror_start + mirror], w[at.mirror_middle + mirror]
        same = True
        for offset in range(middle - start):
            one, other = start + offset, middle + offset
            if w[at.load_time + one] != w[at.load_time + other] or (
                binds
                and (
                    w[at.load_kept + one] != w[at.load_kept + other] or w[at.load_live + one] != w[at.load_live + other]
                )
            ):
                same = False
                break
        if same:
            return True
    return False


def _put(depth: int, w: Ints, at: Places) -> None:
    """Add the rung at a depth to the ranks of its block."""
    rung, block, base = w[at.path_rung + depth], w[at.path_block + depth], depth * at.num_ranks
    for piece in range(w[at.piece_first + block], w[at.piece_first + block + 1]):
        for rank in range(w[at.piece_start + piece], w[at.piece_stop + piece]):
            w[at.load_time + rank] += w[at.rung_time + rung]
            w[at.load_kept + rank] += w[at.rung_kept + rung]
            w[at.path_undo + base + rank] = w[at.load_live + rank]
            w[at.load_live + rank] = max(w[at.load_live + rank], w[at.rung_live + rung])


def _take_back(depth: int, w: Ints, at: Places) -> None:
    """What :func:`_put` did, undone."""
    rung, block, base = w[at.path_rung + depth], w[at.path_block + depth], depth * at.num_ranks
    for piece in range(w[at.piece_first + block], w[at.piece_first + block + 1]):
        for rank in range(w[at.piece_start + piece], w[at.piece_stop + piece]):
            w[at.load_time + rank] -= w[at.rung_time + rung]
            w[at.load_kept + rank] -= w[at.rung_kept + rung]
            w[at.load_live + rank] = w[at.path_undo + base + rank]


def _slot(depth: int, binds: bool, w: Ints, at: Places) -> int:
    """Where a state belongs in a hash table: a sum of products, which no step of waits for another."""
    mixed = depth * 0x2545F4914F6CDD1D
    for rank in range(at.num_ranks):
        mixed += w[at.load_time + rank] * (0x1E3779B97F4A7C15 + 2 * rank * 0x1F58476D1CE4E5B9)
    if binds:
        for rank in range(at.num_ranks):
            mixed += w[at.load_kept + rank] * (0x14D049BB133111EB + 2 * rank * 0x1B03738712FAD5C9)
    mixed = (mixed ^ (mixed >> 31)) * 0x2545F4914F6CDD1D
    return int((mixed >> 17) & (at.table_size - 1))


def _known(depth: int, binds: bool, w: Ints, at: Places) -> bool:
    """Whether this very state failed before."""
    size, num_ranks = at.table_size, at.num_ranks
    slot = _slot(depth, binds, w, at)
    while w[at.table + slot]:
        base = (w[at.table + slot] - 1) * at.width
        same = w[at.rows + base] == depth
        rank = 0
        while same and rank < num_ranks:
            place = base + 1 + rank
            same = w[at.rows + place] == w[at.load_time + rank]
            if same and binds:
                same = w[at.rows + place + num_ranks] == w[at.load_kept + rank]
                same = same and w[at.rows + place + 2 * num_ranks] == w[at.load_live + rank]
            rank += 1
        if same:
            return True
        slot = (slot + 1) & (size - 1)
    return False


def _remember(depth: int, binds: bool, w: Ints, at: Places, number: int) -> None:
    """Write a state that failed, the next after ``number`` of them."""
    size, num_ranks = at.table_size, at.num_ranks
    slot = _slot(depth, binds, w, at)
    while w[at.table + slot]:
        slot = (slot + 1) & (size - 1)
    w[at.table + slot] = number + 1
    base = number * at.width
    w[at.rows + base] = depth
    for rank in range(num_ranks):
        w[at.rows + base + 1 + rank] = w[at.load_time + rank]
        if binds:
            w[at.rows + base + 1 + num_ranks + rank] = w[at.load_kept + rank]
            w[at.rows + base + 1 + 2 * num_ranks + rank] = w[at.load_live + rank]


def settle(start: int, work: int, room: int, w: Ints, at: Places) -> int:
    """Place the anchors one by one so that the slowest rank and the mean (``work`` is the least of everything) stay
    least, from ``start`` on; what they reach, or -1 where one has no room. ``path_rung`` and
    ``path_block`` say where they are."""
    num_ranks, reached = at.num_ranks, start
    _empty(w, at)
    for depth in range(at.num_anchors):
        work -= w[at.rung_work + w[at.rung_first + depth]]
        best_rung, best_block, best_reached, best_highest = -1, -1, NEVER, NEVER
        for rung in range(w[at.rung_first + depth], w[at.rung_last + depth]):
            mean = -(-(work + w[at.rung_work + rung]) // num_ranks)
            if best_rung >= 0 and mean > best_reached:
                break
            shape = w[at.rung_shape + rung]
            for block in range(w[at.shape_first + shape], w[at.shape_first + shape + 1]):
                highest = _highest(block, w, at) + w[at.rung_time + rung]
                entry = max(reached, mean, highest)
                if best_rung >= 0:
                    if entry > best_reached:
                        continue
                    if entry == best_reached:
                        more = w[at.rung_work + rung] - w[at.rung_work + best_rung]
                        if more > 0 or (more == 0 and highest >= best_highest):
                            continue
                if _fullest(block, rung, w, at) <= room:
                    best_rung, best_block, best_reached, best_highest = rung, block, entry, highest
        if best_rung < 0:
            return -1
        reached = best_reached
        work += w[at.rung_work + best_rung]
        w[at.path_rung + depth], w[at.path_block + depth] = best_rung, best_block
        _put(depth, w, at)
    return int(reached)


def _highest(block: int, w: Ints, at: Places) -> int:
    """The load of the block's slowest rank."""
    highest = 0
    for piece in range(w[at.piece_first + block], w[at.piece_first + block + 1]):
        for rank in range(w[at.piece_start + piece], w[at.piece_stop + piece]):
            highest = max(highest, w[at.load_time + rank])
    return highest


def _fullest(block: int, rung: int, w: Ints, at: Places) -> int:
    """The bytes of the block's fullest rank with a rung on it."""
    fullest, live = 0, w[at.rung_live + rung]
    for piece in range(w[at.piece_first + block], w[at.piece_first + block + 1]):
        for rank in range(w[at.piece_start + piece], w[at.piece_stop + piece]):
            fullest = max(fullest, w[at.load_kept + rank] + max(w[at.load_live + rank], live))
    return int(fullest + w[at.rung_kept + rung])
