"""Where a sequence goes, every choice that differs by more than names once; loops over integers, for a compiler.

Ranks of a node with equal loads make a class, and a choice is how many ranks of each class are taken. Of nodes with
equal loads the earlier one has no fewer ranks taken, its emptiest first: so over nodes that are alike there is one
choice for every multiset of numbers, and no other is made, however many there would be.
"""

from __future__ import annotations

from zellige.plan.layout import Ints
from zellige.plan.set_places import NEXT_TARGET, SetPlaces


def next_place(depth: int, target: int, sand: int, w: Ints, at: SetPlaces) -> bool:
    """The first choice on the next node of a rung within nodes, or under the next rung; False where there is none."""
    rung, last, node = w[at.path_rung + depth], w[at.rung_last + depth], w[at.path_node + depth] + 1
    w[at.path_count + depth] = 0
    while rung < last:
        if rung >= w[at.rung_first + depth] and not w[at.rung_wide + rung]:
            while node < at.num_nodes:
                if not (node and _alike(node - 1, node, depth, w, at)) and _classes(
                    depth, rung, node, node + 1, target, w, at
                ):
                    w[at.path_rung + depth], w[at.path_node + depth] = rung, node
                    _first_choice(depth, w[at.rung_degree + rung], w, at)
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
            _first_choice(depth, w[at.rung_degree + rung], w, at)
            return True
    w[at.path_rung + depth] = last
    return False


def next_choice(depth: int, w: Ints, at: SetPlaces) -> bool:
    """The next choice of as many ranks; False where it was the last."""
    base = depth * at.num_nodes * at.per_node
    place, behind, free = base + w[at.path_count + depth] - 1, 0, 0
    while place >= base:
        if w[at.class_taken + place] and free:
            w[at.class_taken + place] -= 1
            if not w[at.class_alike + place] or _most_behind(place, False, w, at) > behind:
                _take(depth, place + 1 - base, behind + 1, w, at)
                return True
            w[at.class_taken + place] += 1
        behind += w[at.class_taken + place]
        free += w[at.class_ranks + place] - w[at.class_taken + place]
        place -= 1
    return False


def _first_choice(depth: int, ranks: int, w: Ints, at: SetPlaces) -> None:
    """The first choice of so many ranks of the classes of a depth, which have as many."""
    if w[at.path_node + depth] == at.num_nodes:
        _group(depth, w, at)
        _take(depth, 0, ranks, w, at)
        return
    base = depth * at.num_nodes * at.per_node
    for place in range(base, base + w[at.path_count + depth]):
        taken = min(ranks, w[at.class_ranks + place])
        w[at.class_taken + place], w[at.class_alike + place] = taken, 0
        ranks -= taken


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


def _alike(one: int, other: int, depth: int, w: Ints, at: SetPlaces) -> bool:
    """Whether two nodes have equal loads."""
    base = at.path_load + depth * at.num_nodes * at.per_node
    for rank in range(at.per_node):
        if w[base + one * at.per_node + rank] != w[base + other * at.per_node + rank]:
            return False
    return True


def _group(depth: int, w: Ints, at: SetPlaces) -> None:
    """Write down by class the first and the last one of its node, how many nodes behind it have the same loads, and how
    many ranks the classes of all nodes behind these have."""
    base = depth * at.num_nodes * at.per_node
    last, alike, ranks, beyond = base + w[at.path_count + depth], -1, 0, 0
    while last > base:
        first = last - 1
        while first > base and w[at.class_node + first - 1] == w[at.class_node + first]:
            first -= 1
        alike += 1
        if last < base + w[at.path_count + depth] and not _alike(
            w[at.class_node + first], w[at.class_node + last], depth, w, at
        ):
            alike, beyond = 0, ranks
        for place in range(first, last):
            w[at.class_first + place], w[at.class_last + place] = first, last
            w[at.class_alike + place], w[at.class_beyond + place] = alike, beyond
            ranks += w[at.class_ranks + place]
        last = first


def _take(depth: int, start: int, ranks: int, w: Ints, at: SetPlaces) -> None:
    """Take ranks of the classes from ``start`` on, as many as can be of the first, then of the next.

    As long as a node takes what the one before it with the same loads does, each of its classes takes no more, and no
    more than leaves room behind it for the others.
    """
    base, bounded = depth * at.num_nodes * at.per_node, False
    for place in range(base + start, base + w[at.path_count + depth]):
        first = w[at.class_first + place]
        if place == first:
            bounded = place > base and w[at.class_alike + place - 1] > 0
        most = w[at.class_ranks + place]
        if bounded:
            most = w[at.class_taken + place - w[at.class_last + place] + first]
        taken = min(ranks, most)
        w[at.class_taken + place] = taken
        if bounded and taken < ranks and _most_behind(place, True, w, at) < ranks - taken:
            taken -= 1
            w[at.class_taken + place] = taken
        bounded = bounded and taken == most
        ranks -= taken


def _most_behind(place: int, bounded: bool, w: Ints, at: SetPlaces) -> int:
    """How many ranks the classes behind a place can take at most where those up to it stay as they are; ``bounded``:
    those of its node are as those of the node before it, with the same loads, so that the others may take no more."""
    first, last = w[at.class_first + place], w[at.class_last + place]
    taken, best, room = 0, 0, 0
    for each in range(first, last):
        room += w[at.class_ranks + each]
    for each in range(first, place + 1):
        room -= w[at.class_ranks + each]
        if w[at.class_taken + each]:
            best = max(best, taken + w[at.class_taken + each] - 1 + room)
        taken += w[at.class_taken + each]
    most = room
    if bounded:
        as_before, most = 0, 0
        for each in range(place + 1, last):
            room -= w[at.class_ranks + each]
            before = w[at.class_taken + each - last + first]
            if before:
                most = max(most, as_before + before - 1 + room)
            as_before += before
        most = max(most, as_before)
    return int(most + w[at.class_alike + place] * max(best, taken + most) + w[at.class_beyond + place])
