"""The targets of a search over aligned blocks, one after another, as loops for a compiler: the same targets in the same
order as :func:`zellige.plan.search.place`."""

from __future__ import annotations

from zellige.plan.layout import Ints
from zellige.plan.search_kernel import FINEST, NEVER, has_capacity, run, settle
from zellige.plan.search_places import BUDGET, CUT, KEPT, LOWER, NEXT_TARGET, NODES, Frame, Places

NONE, TOO_HIGH = -1, -2
"""No target: there is none, or it is too high for compiled loops."""


def place(start: int, frame: Frame, w: Ints, at: Places) -> int:
    """The least target that is found to hold the anchors, as :func:`zellige.plan.search.place` finds it; -1 for none,
    -2 where a target is too high for compiled loops. ``frame.limit`` are the least nodes of one target.

    :data:`LOWER` is a lower bound on any, ``kept_rung`` and ``kept_block`` say where the anchors are: of :data:`KEPT`
    placements the last is the best.
    """
    w[at.numbers + KEPT] = 0
    if _attempt(start, frame, w, at):
        w[at.numbers + LOWER] = start
        return _keep(start, w, at)
    lower = start if w[at.numbers + CUT] else max(start, w[at.numbers + NEXT_TARGET])
    if lower >= NEVER:
        return NONE
    if lower > frame.highest:
        return TOO_HIGH
    w[at.numbers + LOWER] = lower
    target = _greedy(lower, frame, w, at)
    if target == NONE:
        target = _climb(lower, frame, w, at)
    if target < 0 or target > frame.highest:
        return target if target < 0 else TOO_HIGH
    _keep(target, w, at)
    low = w[at.numbers + LOWER] - 1
    while target - low > max(1, target >> FINEST) and w[at.numbers + BUDGET] > 0:
        middle = (low + target) // 2
        if _attempt(middle, frame, w, at):
            target = _keep(middle, w, at)
            continue
        _raise_lower(w, at)
        low = max(middle, w[at.numbers + LOWER] - 1)
    w[at.numbers + LOWER] = min(w[at.numbers + LOWER], target)
    return int(target)


def _attempt(target: int, frame: Frame, w: Ints, at: Places) -> bool:
    """:func:`run` with a part of the nodes that are left; a straight descent where none are."""
    budget = w[at.numbers + BUDGET]
    limit = max(frame.limit, budget // 4) if budget > 0 else at.num_anchors + 4
    found = run(target, limit, frame, w, at)
    w[at.numbers + BUDGET] -= w[at.numbers + NODES]
    return found


def _raise_lower(w: Ints, at: Places) -> None:
    """Take over what a search proved that was not cut short."""
    if not w[at.numbers + CUT]:
        w[at.numbers + LOWER] = max(w[at.numbers + LOWER], w[at.numbers + NEXT_TARGET])


def _keep(target: int, w: Ints, at: Places) -> int:
    """Write down where the anchors are."""
    first = w[at.numbers + KEPT] * at.num_anchors
    for depth in range(at.num_anchors):
        w[at.kept_rung + first + depth] = w[at.path_rung + depth]
        w[at.kept_block + first + depth] = w[at.path_block + depth]
    w[at.kept_target + w[at.numbers + KEPT]] = target
    w[at.numbers + KEPT] += 1
    return target


def _greedy(start: int, frame: Frame, w: Ints, at: Places) -> int:
    """What the anchors reach one by one; -1 where memory stops them."""
    work = frame.sand_work
    for depth in range(at.num_anchors):
        work += w[at.rung_work + w[at.rung_first + depth]]
    reached = settle(start, work, frame.room, w, at)
    if reached < 0 or not frame.binds or reached > frame.highest:
        return reached
    return reached if has_capacity(at.num_anchors, reached, frame, w, at) else NONE


def _climb(start: int, frame: Frame, w: Ints, at: Places) -> int:
    """Raise the target by growing steps until a search succeeds; -1 where none does."""
    target, step = start, 1 << 8
    while target <= start << 6:
        if target > frame.highest:
            return TOO_HIGH
        if _attempt(target, frame, w, at):
            return target
        _raise_lower(w, at)
        lower = w[at.numbers + LOWER]
        if lower >= NEVER:
            return NONE
        target = max(lower, target + max(1, target // step if step else target))
        step //= 2
    return NONE
