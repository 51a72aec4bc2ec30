"""The targets of a search over aligned blocks, one after another."""

from __future__ import annotations

from zellige.plan.search import Found, Search
from zellige.plan.search_kernel import FINEST, NEVER
from zellige.plan.search_places import BUDGET, KEPT, LOWER
from zellige.plan.target_kernel import TOO_HIGH


def place(search: Search, start: int) -> Found | None:
    """The least target that is found to hold the anchors; None where memory allows none.

    First ``start`` itself; then between what is proved and what a greedy placement reaches, half-way each time. Where
    the greedy finds nothing, the target rises from ``start`` until the search does.
    """
    if search.may_compile(start):
        reached, found = _place_compiled(search, start)
        if reached != TOO_HIGH:
            return found
    if search.attempt(start):
        return Found(search.take(), start, start)
    lower = start if search.cut else max(start, search.next_target)
    if lower >= NEVER:
        return None
    greedy = search.greedy(lower)
    if greedy is not None:
        chosen, target = search.take(), greedy
    else:
        climbed = _climb(search, lower)
        if climbed is None:
            return None
        chosen, target, lower = search.take(), *climbed
    others = []
    low = lower - 1
    while target - low > max(1, target >> FINEST) and search.order.budget.nodes > 0:
        middle = (low + target) // 2
        if search.attempt(middle):
            others.append((chosen, target))
            chosen, target = search.take(), middle
            continue
        if not search.cut:
            lower = max(lower, search.next_target)
        low = max(middle, lower - 1)
    return Found(chosen, target, min(lower, target), tuple(reversed(others)))


def _climb(search: Search, start: int) -> tuple[int, int] | None:
    """Raise the target by growing steps until a search succeeds: the target and what is proved."""
    target = lower = start
    step = 1 << 8
    while target <= start << 6:
        if search.attempt(target):
            return target, lower
        if not search.cut:
            lower = max(lower, search.next_target)
        if lower >= NEVER:
            return None
        target = max(lower, target + max(1, target // step if step else target))
        step //= 2
    return None


def _place_compiled(search: Search, start: int) -> tuple[int, Found | None]:
    """:func:`place` in compiled loops: the target or what there is instead, and what was found."""
    budget = search.order.budget
    arrays = search.arrays_for(max(search.order.run_limit, budget.nodes // 4, len(search.anchors) + 4))
    target = arrays.place(start, budget.nodes, search.frame)
    if target == TOO_HIGH:
        return target, None
    budget.nodes = arrays.number(BUDGET)
    if target < 0:
        return target, None
    last = arrays.number(KEPT) - 1
    others = [arrays.kept(number) for number in range(last - 1, -1, -1)] if search.binds else []
    return target, Found(arrays.kept(last)[0], target, arrays.number(LOWER), tuple(others))
