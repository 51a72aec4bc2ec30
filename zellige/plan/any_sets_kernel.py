"""Whether some sequences fit below a time on rank sets of any shape, as loops over integers, for a compiler.

A state is what every rank has to do; ranks of a node are alike, and so are nodes. So a sequence on m ranks of a node is
tried once for every number of ranks of each load, and states that failed are remembered in full. Runs uncompiled too.
All integers are below 2**62.
"""

from __future__ import annotations

from zellige.plan.layout import Ints
from zellige.plan.search_kernel import NEVER
from zellige.plan.set_places import KEPT_TARGET, NEXT_TARGET, NODES, PASSED, ROWS, SetPlaces

NEARLY = 8
"""The highest target is 2**-8 (0.4 %) below the plan."""

LEAPS = 3
"""Targets rise by a third of what the plan exceeds the bound by: the lower one is, the fewer states refute it."""

SETTING_UP = 10
"""States that a target counts for besides those that it visits."""

MOST_PASSED = 50
"""Choices of ranks that are the same as others but for the names of nodes, for each state that may be visited. Where
nodes are many and alike, nearly all are, and after so many of them the target is left open."""

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
    w[at.numbers + PASSED] = MOST_PASSED * limit
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
        if w[at.numbers + PASSED] < 0:
            return OPEN
        if depth == 0:
            return REFUTED
        depth -= 1
        entering = False


def _advance(depth: int, target: int, sand: int, w: Ints, at: SetPlaces) -> bool:
    """Place the anchor of a depth on the next ranks; where there are none more, remember that the state failed."""
    while w[at.path_count + depth] and _next_taken(depth, w, at):
        if _first_of_its_kind(depth, w, at):
            _raise(depth, w, at)
            return True
        w[at.numbers + PASSED] -= 1
        if w[at.numbers + PASSED] < 0:
            return False
    if _next_place(depth, target, sand, w, at):
        _take(depth, 0, w[at.rung_degree + w[at.path_rung + depth]], w, at)
        _raise(depth, w, at)
        return True
    _remember(depth, w, at)
    return False


def _next_place(depth: int, target: int, sand: int, w: Ints, at: SetPlaces) -> bool:
    """The next node of a rung within nodes, or the next rung, with its classes; False where there is none."""
    rung, last, node = w[at.path_rung + depth], w[at.rung_last + depth], w[at.path_node + depth] + 1
    w[at.path_count + depth] = 0
    while rung < last:
        if rung >= w[at.rung_first + depth] and not w[at.rung_wide + rung]:
            while node < at.num_nodes:
                if not (node and _alike(node - 1, node, depth, w, at)) and _classes(
                    depth, rung, node, node + 1, target, w, at
                ):
                    w[at.path_rung + depth], w[at.path_node + depth] = rung, node
                    return True
                node += 1
        rung += 1
        node = 0
        if rung == last:
            break
        if w[at.rung_time + rung] > target:
            node = at.num_nodes
            continue
        work = w[at.path_work + depth] + w[at.rest + depth + 1] + w[at.rung_work + rung] + sand
        size = at.num_nodes * at.per_node
        if work > size * target:
            w[at.numbers + NEXT_TARGET] = min(w[at.numbers + NEXT_TARGET], -(-work // size))
            break
        if w[at.rung_wide + rung] and _classes(depth, rung, 0, at.num_nodes, target, w, at):
            w[at.path_rung + depth], w[at.path_node + depth] = rung, at.num_nodes
            return True
    w[at.path_rung + depth] = last
    return False


def _alike(one: int, other: int, depth: int, w: Ints, at: SetPlaces) -> bool:
    """Whether two nodes have equal loads."""
    base = at.path_load + depth * at.num_nodes * at.per_node
    for rank in range(at.per_node):
        if w[base + one * at.per_node + rank] != w[base + other * at.per_node + rank]:
            return False
    return True


def _classes(depth: int, rung: int, first: int, last: int, target: int, w: Ints, at: SetPlaces) -> bool:
    """Write the classes of some nodes that a rung fits on; whether they have enough ranks for it."""
    base, size = at.path_load + depth * at.num_nodes * at.per_node, at.num_nodes * at.per_node
    count, ranks, previous, time = depth * size, 0, -1, w[at.rung_time + rung]
    for place in range(first * at.per_node, last * at.per_node):
        load, node = w[base + place], place // at.per_node
        if load + time > target:
            w[at.numbers + NEXT_TARGET] = min(w[at.numbers + NEXT_TARGET], load + time)
            continue
        ranks += 1
        if load == previous and place % at.per_node:
            w[at.class_ranks + count - 1] += 1
            continue
        w[at.class_load + count], w[at.class_node + count], w[at.class_ranks + count] = load, node, 1
        previous = load
        count += 1
    w[at.path_count + depth] = count - depth * size
    if ranks >= w[at.rung_degree + rung]:
        return True
    w[at.path_count + depth] = 0
    return False


def _take(depth: int, start: int, ranks: int, w: Ints, at: SetPlaces) -> None:
    """Take ranks of the classes from ``start`` on, as many as can be of the first, then of the next."""
    base = depth * at.num_nodes * at.per_node
    for place in range(base + start, base + w[at.path_count + depth]):
        taken = min(ranks, w[at.class_ranks + place])
        w[at.class_taken + place] = taken
        ranks -= taken


def _next_taken(depth: int, w: Ints, at: SetPlaces) -> bool:
    """The next numbers of ranks of the classes with the same sum; False where these were the last."""
    base = depth * at.num_nodes * at.per_node
    place, behind, free = base + w[at.path_count + depth] - 1, 0, 0
    while place >= base:
        if w[at.class_taken + place] and free:
            w[at.class_taken + place] -= 1
            _take(depth, place + 1 - base, behind + 1, w, at)
            return True
        behind += w[at.class_taken + place]
        free += w[at.class_ranks + place] - w[at.class_taken + place]
        place -= 1
    return False


def _first_of_its_kind(depth: int, w: Ints, at: SetPlaces) -> bool:
    """Whether of nodes with equal loads the earlier one has no fewer ranks taken, its emptiest first: others are the
    same but for the names of nodes."""
    if w[at.path_node + depth] < at.num_nodes:
        return True
    start, base = 0, depth * at.num_nodes * at.per_node
    for node in range(1, at.num_nodes):
        while w[at.class_node + base + start] < node - 1 and start + 1 < w[at.path_count + depth]:
            start += 1
        if not _alike(node - 1, node, depth, w, at):
            continue
        width = 0
        while start + width < w[at.path_count + depth] and w[at.class_node + base + start + width] == node - 1:
            width += 1
        for each in range(width):
            earlier = w[at.class_taken + base + start + each]
            later = w[at.class_taken + base + start + width + each]
            if later > earlier:
                return False
            if later < earlier:
                break
    return True


def _raise(depth: int, w: Ints, at: SetPlaces) -> None:
    """The loads of the next depth: those of this one, more for the ranks that are taken, in order again."""
    size, per_node = at.num_nodes * at.per_node, at.per_node
    here, there, base = at.path_load + depth * size, at.path_load + (depth + 1) * size, depth * size
    rung = w[at.path_rung + depth]
    for rank in range(size):
        w[there + rank] = w[here + rank]
    for place in range(base, base + w[at.path_count + depth]):
        left, rank = w[at.class_taken + place], w[at.class_node + place] * per_node
        while left:
            if w[here + rank] == w[at.class_load + place]:
                w[there + rank] += w[at.rung_time + rung]
                left -= 1
            rank += 1
    for node in range(at.num_nodes):
        _sort(there + node * per_node, per_node, w)
    _sort_nodes(there, w, at)
    w[at.path_work + depth + 1] = w[at.path_work + depth] + w[at.rung_work + rung]


def _sort(start: int, count: int, w: Ints) -> None:
    """Sort a few integers where they stand."""
    for place in range(start + 1, start + count):
        value, before = w[place], place - 1
        while before >= start and w[before] > value:
            w[before + 1] = w[before]
            before -= 1
        w[before + 1] = value


def _sort_nodes(start: int, w: Ints, at: SetPlaces) -> None:
    """Bring the nodes into the order of their loads."""
    for node in range(1, at.num_nodes):
        place = node
        while place and _is_less(start + place * at.per_node, start + (place - 1) * at.per_node, w, at):
            for rank in range(at.per_node):
                one, other = start + place * at.per_node + rank, start + (place - 1) * at.per_node + rank
                w[one], w[other] = w[other], w[one]
            place -= 1


def _is_less(one: int, other: int, w: Ints, at: SetPlaces) -> bool:
    """Whether one node's loads come before another's."""
    for rank in range(at.per_node):
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
