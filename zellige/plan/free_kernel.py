"""The search over rank sets of any shape as loops over integers, for a compiler: the same nodes in the same order as
:meth:`zellige.plan.free.FreeSearch.run`.

A cluster's ranks stand node by node, within a node by (load, rank). All integers are below 2**62.
"""

from __future__ import annotations

from typing import NamedTuple

from zellige.plan.layout import Ints
from zellige.plan.search_kernel import FAILED, FINEST, NEVER, OPEN, PLACED

ROOMIER = (0, 9, 7)
"""Targets tried one after another where none is known: the bound, and 2**-9 of it (0.2 %) and 2**-7 more."""

FREE_NODES = 300
"""Nodes of one target's search; most searches that succeed go straight down, and few that need more ever do."""

COARSE = 9
"""Targets are told apart down to 2**-9 (0.2 %) of them; fillers and the local search do the rest."""

LEFT, ROWS, DEPTHS = range(3)
"""The places of :attr:`FreePlaces.numbers`: nodes that may still be visited, states remembered, anchors."""


class FreePlaces(NamedTuple):
    """Where the figures of a search stand in its one array of integers, and how many of some there are.

    * By anchor its first rung and the one past the last; by rung work, time, degree and nodes.
    * By depth the rung of an anchor, the work left, where its state belongs in the hash table, how many candidates
      there are and how many were tried, up to two candidates a node (score, node, the first of its places), loads and
      ranks by place, the ranks that were taken, the nodes in order of their loads; ``rest``: the work still to come.
    * ``best_rung`` and ``best_taken``: ``path_rung`` and ``path_taken`` of the best placement so far.
    * ``numbers``: :data:`LEFT` and what follows it.
    * ``rows``: states that failed, in full; ``table``: a hash table of their places (one more; 0: none).
    """

    rung_first: int
    rung_last: int
    rung_work: int
    rung_time: int
    rung_degree: int
    rung_nodes: int
    path_rung: int
    path_budget: int
    path_count: int
    path_tried: int
    path_slot: int
    path_score: int
    path_node: int
    path_place: int
    path_load: int
    path_rank: int
    path_taken: int
    best_rung: int
    best_taken: int
    rest: int
    path_order: int
    numbers: int
    table: int
    rows: int
    num_nodes: int
    per_node: int
    table_size: int


def place_freely(low: int, below: int, work: int, w: Ints, at: FreePlaces) -> int:
    """The target of a placement, from ``low`` on and under ``below``, or -1 (see
    :func:`zellige.plan.free.place_freely`); ``best_rung`` and ``best_taken`` say where the anchors are, beside so much
    work of fillers."""
    found = -1
    if below < NEVER:
        target = below - max(1, below >> FINEST)
        if target >= low and descend_freely(target, work, w, at):
            found = target
    else:
        first = low
        for power in ROOMIER:
            target = first + (first >> power if power else 0)
            if target >= low:
                if descend_freely(target, work, w, at):
                    found = target
                    break
                low = target + 1
    if found < 0:
        return -1
    _keep(w, at)
    while found - low > found >> COARSE:
        middle = (low + found) // 2
        if descend_freely(middle, work, w, at):
            found = middle
            _keep(w, at)
        else:
            low = middle + 1
    return int(found)


def _keep(w: Ints, at: FreePlaces) -> None:
    """Write down where the anchors are."""
    for depth in range(w[at.numbers + DEPTHS]):
        w[at.best_rung + depth] = w[at.path_rung + depth]
    for place in range(w[at.numbers + DEPTHS] * at.num_nodes * at.per_node):
        w[at.best_taken + place] = w[at.path_taken + place]


def _sum_rest(target: int, w: Ints, at: FreePlaces) -> bool:
    """Write the least work still to come at each depth; False where an anchor has no rung below the target."""
    w[at.rest + w[at.numbers + DEPTHS]] = 0
    for depth in range(w[at.numbers + DEPTHS] - 1, -1, -1):
        rung, last = w[at.rung_first + depth], w[at.rung_last + depth]
        while rung < last and w[at.rung_time + rung] > target:
            rung += 1
        if rung == last:
            return False
        w[at.rest + depth] = w[at.rest + depth + 1] + w[at.rung_work + rung]
    return True


def descend_freely(target: int, work: int, w: Ints, at: FreePlaces) -> bool:
    """Place all anchors with no rank above the target, beside so much work of fillers; ``path_rung`` and
    ``path_taken`` say where."""
    if not _sum_rest(target, w, at):
        return False
    w[at.numbers + LEFT], w[at.numbers + ROWS] = FREE_NODES, 0
    for slot in range(at.table_size):
        w[at.table + slot] = 0
    w[at.path_budget] = at.num_nodes * at.per_node * target - work
    depth, verdict, entering = 0, OPEN, True
    while True:
        if entering:
            verdict = _enter(depth, w, at)
            if verdict == PLACED:
                return True
        if verdict == OPEN and _advance(depth, target, w, at):
            depth += 1
            entering = True
            continue
        if depth == 0:
            return False
        depth -= 1
        entering = False
        verdict = OPEN if w[at.numbers + LEFT] >= 0 else FAILED


def _enter(depth: int, w: Ints, at: FreePlaces) -> int:
    """Count a node and say whether anything can come of it."""
    if depth == w[at.numbers + DEPTHS]:
        return PLACED
    w[at.numbers + LEFT] -= 1
    if w[at.numbers + LEFT] < 0:
        return FAILED
    _sort_nodes(depth, w, at)
    if _known(depth, w, at):
        return FAILED
    w[at.path_rung + depth] = w[at.rung_first + depth] - 1
    w[at.path_count + depth] = w[at.path_tried + depth] = 0
    return OPEN


def _advance(depth: int, target: int, w: Ints, at: FreePlaces) -> bool:
    """Place the anchor of a depth on its next candidate; where there is none more, remember that the state failed."""
    most = w[at.path_budget + depth] - w[at.rest + depth + 1]
    while True:
        rung = w[at.path_rung + depth]
        if w[at.path_tried + depth] < w[at.path_count + depth]:
            _raise(depth, rung, w, at)
            w[at.path_tried + depth] += 1 if w[at.rung_nodes + rung] == 1 else w[at.path_count + depth]
            w[at.path_budget + depth + 1] = w[at.path_budget + depth] - w[at.rung_work + rung]
            return True
        rung += 1
        w[at.path_rung + depth] = rung
        if rung == w[at.rung_last + depth]:
            break
        if w[at.rung_time + rung] > target:
            continue
        if w[at.rung_work + rung] > most:
            break
        _candidates(depth, rung, target - w[at.rung_time + rung], w, at)
    _remember(depth, w, at)
    return False


def _candidates(depth: int, rung: int, highest: int, w: Ints, at: FreePlaces) -> None:
    """Write the rank sets that stay below a load, the emptiest first: of every node that differs, its least loaded
    ranks and its fullest; over several nodes, the emptiest of these."""
    per_node = at.per_node
    num_nodes = at.num_nodes
    base, first = depth * 2 * num_nodes, depth * num_nodes * per_node
    spread = w[at.rung_nodes + rung]
    width = w[at.rung_degree + rung] // spread
    count = 0
    for node in range(num_nodes):
        start = first + node * per_node
        if w[at.path_load + start + width - 1] > highest:
            continue
        if spread == 1 and _seen(first, node, w, at):
            continue
        count = _insert(w, at, base, count, 2 * w[at.path_load + start + width - 1], node, 0)
        fit = width
        while fit < per_node and w[at.path_load + start + fit] <= highest:
            fit += 1
        if spread == 1 and w[at.path_load + start + fit - width] > w[at.path_load + start]:
            count = _insert(w, at, base, count, 2 * w[at.path_load + start + fit - 1] + 1, node, fit - width)
    if spread > 1 and count < spread:
        count = 0
    w[at.path_count + depth], w[at.path_tried + depth] = count, 0


def _insert(w: Ints, at: FreePlaces, base: int, count: int, score: int, node: int, place: int) -> int:
    """Keep candidates sorted by score (ties: as they came)."""
    here = base + count
    while here > base and w[at.path_score + here - 1] > score:
        w[at.path_score + here] = w[at.path_score + here - 1]
        w[at.path_node + here] = w[at.path_node + here - 1]
        w[at.path_place + here] = w[at.path_place + here - 1]
        here -= 1
    w[at.path_score + here], w[at.path_node + here], w[at.path_place + here] = score, node, place
    return count + 1


def _seen(first: int, node: int, w: Ints, at: FreePlaces) -> bool:
    """Whether an earlier node has the same loads."""
    start = first + node * at.per_node
    for earlier in range(node):
        other = first + earlier * at.per_node
        same = True
        for place in range(at.per_node):
            if w[at.path_load + start + place] != w[at.path_load + other + place]:
                same = False
                break
        if same:
            return True
    return False


def _raise(depth: int, rung: int, w: Ints, at: FreePlaces) -> None:
    """Write the next depth's loads, with the rung on the next candidate (of several nodes: on the first of them)."""
    per_node = at.per_node
    num_nodes = at.num_nodes
    size = num_nodes * per_node
    spread, time = w[at.rung_nodes + rung], w[at.rung_time + rung]
    width = w[at.rung_degree + rung] // spread
    before, after = depth * size, (depth + 1) * size
    for place in range(size):
        w[at.path_load + after + place] = w[at.path_load + before + place]
        w[at.path_rank + after + place] = w[at.path_rank + before + place]
    for part in range(spread):
        candidate = depth * 2 * num_nodes + w[at.path_tried + depth] + part
        start = after + w[at.path_node + candidate] * per_node
        for offset in range(width):
            place = start + w[at.path_place + candidate] + offset
            w[at.path_load + place] += time
            w[at.path_taken + before + part * width + offset] = w[at.path_rank + place]
        _sort_ranks(start, w, at)


def _sort_ranks(start: int, w: Ints, at: FreePlaces) -> None:
    """Sort a node's ranks by (load, rank)."""
    for place in range(start + 1, start + at.per_node):
        load, rank, here = w[at.path_load + place], w[at.path_rank + place], place
        while here > start:
            above = w[at.path_load + here - 1]
            if above < load or (above == load and w[at.path_rank + here - 1] < rank):
                break
            w[at.path_load + here] = above
            w[at.path_rank + here] = w[at.path_rank + here - 1]
            here -= 1
        w[at.path_load + here], w[at.path_rank + here] = load, rank


def _sort_nodes(depth: int, w: Ints, at: FreePlaces) -> None:
    """The nodes of a depth by their loads."""
    first, order = depth * at.num_nodes * at.per_node, at.path_order + depth * at.num_nodes
    for node in range(at.num_nodes):
        here = order + node
        while here > order and _is_less(first + node * at.per_node, first + w[here - 1] * at.per_node, w, at):
            w[here] = w[here - 1]
            here -= 1
        w[here] = node


def _is_less(one: int, other: int, w: Ints, at: FreePlaces) -> bool:
    for place in range(at.per_node):
        if w[at.path_load + one + place] != w[at.path_load + other + place]:
            return bool(w[at.path_load + one + place] < w[at.path_load + other + place])
    return False


def _slot(depth: int, w: Ints, at: FreePlaces) -> int:
    """Where a state belongs in the hash table."""
    per_node = at.per_node
    first, mixed = depth * at.num_nodes * per_node, depth * 0x2545F4914F6CDD1D
    order = at.path_order + depth * at.num_nodes
    for index in range(at.num_nodes):
        start, by_place = at.path_load + first + w[order + index] * per_node, 2 * index * per_node
        for place in range(per_node):
            mixed += w[start + place] * (0x1E3779B97F4A7C15 + (by_place + 2 * place) * 0x1F58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> 31)) * 0x2545F4914F6CDD1D
    return int((mixed >> 17) & (at.table_size - 1))


def _known(depth: int, w: Ints, at: FreePlaces) -> bool:
    """Whether this state, but for the order of nodes, failed before."""
    slot = _slot(depth, w, at)
    w[at.path_slot + depth] = slot
    while w[at.table + slot]:
        base = (w[at.table + slot] - 1) * (at.num_nodes * at.per_node + 1)
        if w[at.rows + base] == depth and _is_row(depth, at.rows + base + 1, w, at):
            return True
        slot = (slot + 1) & (at.table_size - 1)
    return False


def _is_row(depth: int, row: int, w: Ints, at: FreePlaces) -> bool:
    """Whether the loads of a depth, its nodes in order, are those of a row."""
    per_node = at.per_node
    first, order = at.path_load + depth * at.num_nodes * per_node, at.path_order + depth * at.num_nodes
    for index in range(at.num_nodes):
        start = first + w[order + index] * per_node
        for place in range(per_node):
            if w[row + place] != w[start + place]:
                return False
        row += per_node
    return True


def _remember(depth: int, w: Ints, at: FreePlaces) -> None:
    """Write a state that failed."""
    per_node = at.per_node
    first, order = at.path_load + depth * at.num_nodes * per_node, at.path_order + depth * at.num_nodes
    slot = w[at.path_slot + depth]
    while w[at.table + slot]:
        slot = (slot + 1) & (at.table_size - 1)
    row = at.rows + w[at.numbers + ROWS] * (at.num_nodes * per_node + 1)
    w[at.numbers + ROWS] += 1
    w[at.table + slot] = w[at.numbers + ROWS]
    w[row] = depth
    row += 1
    for index in range(at.num_nodes):
        start = first + w[order + index] * per_node
        for place in range(per_node):
            w[row + place] = w[start + place]
        row += per_node
