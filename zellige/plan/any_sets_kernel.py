"""Whether some sequences fit below a time on rank sets of any shape, as loops over integers, for a compiler.

A state is what every rank has to do; ranks of a node are alike, and so are nodes. So a sequence is tried once for every
choice of ranks that differs by more than names (:mod:`zellige.plan.rank_choice_kernel`), and states that failed are
remembered in full. Runs uncompiled too. All integers are below 2**62.
"""

from __future__ import annotations

from zellige.plan.layout import Ints
from zellige.plan.rank_choice_kernel import next_choice, next_place
from zellige.plan.search_kernel import NEVER
from zellige.plan.set_places import KEPT_TARGET, NEXT_TARGET, NODES, ROWS, SetPlaces

NEARLY = 8
"""The highest target is 2**-8 (0.4 %) below the plan."""

LEAPS = 3
"""Targets rise by a third of what the plan exceeds the bound by: the lower one is, the fewer states refute it."""

SETTING_UP = 10
"""States that a target counts for besides those that it visits."""

REFUTED, PLACED, OPEN = range(3)
"""No placement is below the target, one is (fillers being divisible), or the limit of states came first."""


def raise_bound(low: int, stop: int, steps: int, limit: int, total: int, w: Ints, at: SetPlaces) -> int:
    """The bound between ``low``, which is one, and ``stop``, to 2**-``steps`` of the way from one to the other.

    For no target are more than ``limit`` states visited, and for all no more than about ``total``. Targets rise until
    one isn't refuted, the last to what would make a plan near; what lies between then is halved.
    """
    first, gap, most, left = low, stop - low, stop, total
    w[at.numbers + KEPT_TARGET] = 0
    nearly = max((low + stop) // 2, stop - (stop >> NEARLY))
    for part in range(1, LEAPS + 1):
        target = min(first + gap * part // LEAPS, nearly) if part < LEAPS else nearly
        if target <= low:
            continue
        beyond = _refuted_below(target, min(limit, left), w, at)
        left -= SETTING_UP + w[at.numbers + NODES]
        if not beyond:
            most = target
            break
        low = beyond
    while left > limit // 8 and most - low > max(1, gap >> steps):
        target = (low + most) // 2
        beyond = _refuted_below(target, min(limit, left), w, at)
        left -= SETTING_UP + w[at.numbers + NODES]
        if beyond:
            low = beyond
        else:
            most = target
    return int(min(low, stop))


def _refuted_below(target: int, limit: int, w: Ints, at: SetPlaces) -> int:
    """The time below which no plan is, if the target can be refuted; else 0."""
    found = explore(target, limit, _weigh(target, w, at), w, at)
    if found == PLACED:
        _keep(target, w, at)
    if found != REFUTED:
        return 0
    beyond = w[at.numbers + NEXT_TARGET]
    for place in range(at.num_times):
        if w[at.times + place] > target:
            beyond = min(beyond, w[at.times + place])
    return int(beyond)


def _keep(target: int, w: Ints, at: SetPlaces) -> None:
    """Write down the placement that was found."""
    size, per_node = at.num_nodes * at.per_node, at.per_node
    w[at.numbers + KEPT_TARGET] = target
    for depth in range(at.num_anchors):
        loads, kept, base = at.path_load + depth * size, at.kept_taken + depth * size, depth * size
        w[at.kept_rung + depth] = w[at.path_rung + depth]
        for rank in range(size):
            w[kept + rank] = 0
        for place in range(base, base + w[at.path_count + depth]):
            left, rank = w[at.class_taken + place], w[at.class_node + place] * per_node
            while left:
                if w[loads + rank] == w[at.class_load + place]:
                    w[kept + rank] = 1
                    left -= 1
                rank += 1


def _weigh(target: int, w: Ints, at: SetPlaces) -> int:
    """The least work within a target of what is no anchor, and written down that of the anchors still to come."""
    sand = 0
    for bucket in range(at.num_buckets):
        first, last = w[at.front_first + bucket], w[at.front_last + bucket]
        work = w[at.front_work + last - 1]
        while last > first and w[at.front_time + last - 1] > target:
            last -= 1
        if last > first:
            work = w[at.front_work + last - 1]
        w[at.least + bucket] = work
        sand += w[at.sand + bucket] * work
    w[at.rest + at.num_anchors] = 0
    for depth in range(at.num_anchors - 1, -1, -1):
        w[at.rest + depth] = w[at.rest + depth + 1] + w[at.least + w[at.bucket + depth]]
    return int(sand)


def explore(target: int, limit: int, sand: int, w: Ints, at: SetPlaces) -> int:
    """Try every placement of the anchors with no rank above ``target``, the rest being ``sand`` ns of divisible work.

    Where it is :data:`REFUTED`, so is every time below :data:`NEXT_TARGET`, as long as rungs and ``rest`` are the same.
    """
    w[at.numbers + NODES], w[at.numbers + NEXT_TARGET], w[at.numbers + ROWS] = 0, NEVER, 0
    for slot in range(at.table_size):
        w[at.table + slot] = 0
    depth, entering = 0, True
    while True:
        opened = True
        if entering:
            if depth == at.num_anchors:
                return PLACED
            w[at.numbers + NODES] += 1
            if w[at.numbers + NODES] > limit:
                return OPEN
            opened = not _known(depth, w, at)
            w[at.path_rung + depth] = w[at.rung_first + depth] - 1
            w[at.path_count + depth] = 0
        if opened and _advance(depth, target, sand, w, at):
            depth += 1
            entering = True
            continue
        if depth == 0:
            return REFUTED
        depth -= 1
        entering = False


def _advance(depth: int, target: int, sand: int, w: Ints, at: SetPlaces) -> bool:
    """Place the anchor of a depth on the next ranks; where there are none more, remember that the state failed."""
    if w[at.path_count + depth] and next_choice(depth, w, at):
        _raise(depth, w, at)
        return True
    if next_place(depth, target, sand, w, at):
        _raise(depth, w, at)
        return True
    _remember(depth, w, at)
    return False


def _raise(depth: int, w: Ints, at: SetPlaces) -> None:
    """The loads of the next depth: those of this one, more for the ranks that are taken, in order again.

    Nodes of which none is taken are in order as they are. The others are sorted apart, and both merged from the end.
    """
    size, per_node, base = at.num_nodes * at.per_node, at.per_node, depth * at.num_nodes * at.per_node
    here, there, time = at.path_load + base, at.path_load + base + size, w[at.rung_time + w[at.path_rung + depth]]
    place, last, raised = base, base + w[at.path_count + depth], 0
    for node in range(at.num_nodes):
        start, apart = there + (node - raised) * per_node, at.raised + raised * per_node
        taken = False
        while place < last and w[at.class_node + place] == node:
            left, rank = w[at.class_taken + place], 0
            if left and not taken:
                taken = True
                _copy(here + node * per_node, apart, per_node, w)
            while left:
                if w[here + node * per_node + rank] == w[at.class_load + place]:
                    w[apart + rank] += time
                    left -= 1
                rank += 1
            place += 1
        if taken:
            _sort(apart, per_node, w)
            raised += 1
        else:
            _copy(here + node * per_node, start, per_node, w)
    _sort_nodes(at.raised, raised, per_node, w)
    kept, to = at.num_nodes - raised, there + size
    while raised:
        to -= per_node
        one, other = there + (kept - 1) * per_node, at.raised + (raised - 1) * per_node
        if kept and _is_less(other, one, per_node, w):
            _copy(one, to, per_node, w)
            kept -= 1
        else:
            _copy(other, to, per_node, w)
            raised -= 1
    w[at.path_work + depth + 1] = w[at.path_work + depth] + w[at.rung_work + w[at.path_rung + depth]]


def _copy(start: int, to: int, count: int, w: Ints) -> None:
    """Copy a few integers."""
    for place in range(count):
        w[to + place] = w[start + place]


def _sort(start: int, count: int, w: Ints) -> None:
    """Sort a few integers where they stand."""
    for place in range(start + 1, start + count):
        value, before = w[place], place - 1
        while before >= start and w[before] > value:
            w[before + 1] = w[before]
            before -= 1
        w[before + 1] = value


def _sort_nodes(start: int, count: int, per_node: int, w: Ints) -> None:
    """Bring nodes into the order of their loads."""
    for node in range(1, count):
        one = start + node * per_node
        while one > start and _is_less(one, one - per_node, per_node, w):
            for place in range(one, one + per_node):
                w[place], w[place - per_node] = w[place - per_node], w[place]
            one -= per_node


def _is_less(one: int, other: int, per_node: int, w: Ints) -> bool:
    """Whether one node's loads come before another's."""
    for rank in range(per_node):
        if w[one + rank] != w[other + rank]:
            return bool(w[one + rank] < w[other + rank])
    return False


def _slot(depth: int, w: Ints, at: SetPlaces) -> int:
    """Where a state belongs in the hash table."""
    mixed, size = depth + 1, at.num_nodes * at.per_node
    for rank in range(size):
        mixed = ((mixed ^ w[at.path_load + depth * size + rank]) * 0x2545F4914F6CDD1D) & 0x7FFFFFFFFFFFFFFF
        mixed ^= mixed >> 29
    return int(mixed & (at.table_size - 1))


def _known(depth: int, w: Ints, at: SetPlaces) -> bool:
    """Whether this very state failed before."""
    size = at.num_nodes * at.per_node
    slot = _slot(depth, w, at)
    while w[at.table + slot]:
        base = at.rows + (w[at.table + slot] - 1) * (size + 1)
        same = w[base] == depth
        rank = 0
        while same and rank < size:
            same = w[base + 1 + rank] == w[at.path_load + depth * size + rank]
            rank += 1
        if same:
            return True
        slot = (slot + 1) & (at.table_size - 1)
    return False


def _remember(depth: int, w: Ints, at: SetPlaces) -> None:
    """Write a state that failed."""
    size = at.num_nodes * at.per_node
    slot = _slot(depth, w, at)
    while w[at.table + slot]:
        slot = (slot + 1) & (at.table_size - 1)
    base = at.rows + w[at.numbers + ROWS] * (size + 1)
    w[at.numbers + ROWS] += 1
    w[at.table + slot] = w[at.numbers + ROWS]
    w[base] = depth
    for rank in range(size):
        w[base + 1 + rank] = w[at.path_load + depth * size + rank]
