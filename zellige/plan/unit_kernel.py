"""What a unit of nodes may hold and at which price, as loops over integers for a compiler: the same as
:class:`zellige.plan.node_cover.NodeCover` finds with lists.

Its searches are those of :mod:`zellige.plan.free_kernel`. All integers are below 2**62.
"""

from __future__ import annotations

from typing import NamedTuple

from zellige.plan.cover_kernel import UNREACHED
from zellige.plan.free_kernel import DEPTHS, FreePlaces, descend_freely
from zellige.plan.layout import Ints
from zellige.plan.search_kernel import NEVER


class Unit(NamedTuple):
    """By kind its first rung and the one past the last; by rung, the least work of a kind first, the work, time,
    degree, nodes, kept and live bytes. ``floors`` are least degrees, by trial those of the kind of most work, of the
    least and of those between, and ``able`` says which trials found a placement. ``parts`` of a target are taken off,
    in fourths. ``flat`` has room for the rungs of a search, ``loads`` for the time, kept and live bytes of the ranks;
    by anchor its rung and by anchor and rank the ranks of the best placement."""

    first: Ints
    last: Ints
    work: Ints
    time: Ints
    degree: Ints
    nodes: Ints
    kept: Ints
    live: Ints
    floors: Ints
    able: Ints
    parts: Ints
    flat: Ints
    loads: Ints
    best_rung: Ints
    best_taken: Ints


class Bar(NamedTuple):
    """A unit's target, a rank's room in bytes, the work of all fillers and the bytes that they keep, in units of these
    in which no product is too large, and the price that ends the trial of lower targets."""

    target: int
    room: int
    filler_work: int
    filler_kept: int
    cheap: int


def search_unit(held: Ints, has: Unit, bar: Bar, v: Ints, to: FreePlaces) -> int:
    """The least price of those tried for so many sequences of each kind, and where they are; :data:`UNREACHED` where
    they find no place."""
    size, depths, least, kinds = to.num_nodes * to.per_node, 0, 0, 0
    for kind in range(len(held)):
        depths += held[kind]
        least += held[kind] * has.work[has.first[kind]]
        kinds += held[kind] > 0
    trials = _count_trials(kinds, has)
    for trial in range(trials):
        has.able[trial] = 1
    v[to.numbers + DEPTHS] = depths
    left, best = bar.target - least // size, UNREACHED
    for part in range(len(has.parts)):
        target = bar.target - left * has.parts[part] // 4
        for trial in range(trials):
            if not has.able[trial] or _is_repeated(trial, kinds, has):
                continue
            _write_fronts(trial, kinds, held, has, v, to)
            has.able[trial] = descend_freely(target, 0, v, to)
            if not has.able[trial]:
                continue
            price = _price(depths, least, size, has, bar, v, to)
            if price < best:
                best = price
                _keep(depths, size, has, v, to)
            if has.parts[part] and best <= bar.cheap:
                return int(best)
    return int(best)


def _count_trials(kinds: int, has: Unit) -> int:
    """How many trials there are; those of a unit that holds nothing are one."""
    return len(has.floors) // 3 if kinds else 1


def _floor(trial: int, place: int, kinds: int, has: Unit) -> int:
    """The least degree of the kind that is so many places after that of most work."""
    if place == 0:
        return int(has.floors[3 * trial])
    return int(has.floors[3 * trial + (1 if place == kinds - 1 else 2)])


def _is_repeated(trial: int, kinds: int, has: Unit) -> bool:
    """Whether an earlier trial has the same least degrees, of as many kinds as there are."""
    for earlier in range(trial):
        same = True
        for place in range(kinds):
            same = same and _floor(earlier, place, kinds, has) == _floor(trial, place, kinds, has)
        if same:
            return True
    return False


def _write_fronts(trial: int, kinds: int, held: Ints, has: Unit, v: Ints, to: FreePlaces) -> None:
    """Write the rungs of a trial's anchors, from its least degrees on."""
    depth, flat, place = 0, 0, 0
    for kind in range(len(held)):
        if not held[kind]:
            continue
        start = flat
        flat = _write_front(kind, _floor(trial, place, kinds, has), flat, has, v, to)
        if flat == start:
            flat = _write_front(kind, 1, flat, has, v, to)
        for anchor in range(depth, depth + held[kind]):
            v[to.rung_first + anchor], v[to.rung_last + anchor] = start, flat
        depth, place = depth + held[kind], place + 1


def _write_front(kind: int, floor: int, flat: int, has: Unit, v: Ints, to: FreePlaces) -> int:
    """Write the rungs of a kind from a degree on that no other beats in work and time; the place past the last."""
    fastest = NEVER
    for rung in range(has.first[kind], has.last[kind]):
        if has.degree[rung] >= floor and has.time[rung] < fastest:
            fastest = has.time[rung]
            v[to.rung_work + flat], v[to.rung_time + flat] = has.work[rung], has.time[rung]
            v[to.rung_degree + flat], v[to.rung_nodes + flat] = has.degree[rung], has.nodes[rung]
            has.flat[flat] = rung
            flat += 1
    return flat


def _price(depths: int, least: int, size: int, has: Unit, bar: Bar, v: Ints, to: FreePlaces) -> int:
    """The work of a placement beyond the least, and the time that its ranks have left and no memory to fill;
    :data:`UNREACHED` where memory does not hold the sequences themselves."""
    for place in range(3 * size):
        has.loads[place] = 0
    added = -least
    for anchor in range(depths):
        rung = has.flat[v[to.path_rung + anchor]]
        added += has.work[rung]
        for place in range(to.path_taken + anchor * size, to.path_taken + anchor * size + has.degree[rung]):
            rank = v[place]
            has.loads[rank] += has.time[rung]
            has.loads[size + rank] += has.kept[rung]
            has.loads[2 * size + rank] = max(has.loads[2 * size + rank], has.live[rung])
    for rank in range(size):
        free = bar.room - has.loads[size + rank] - has.loads[2 * size + rank]
        if free < 0:
            return UNREACHED
        added += max(0, bar.target - has.loads[rank] - free * bar.filler_work // bar.filler_kept)
    return int(added)


def _keep(depths: int, size: int, has: Unit, v: Ints, to: FreePlaces) -> None:
    """Write down the placement."""
    for anchor in range(depths):
        has.best_rung[anchor] = has.flat[v[to.path_rung + anchor]]
    for place in range(depths * size):
        has.best_taken[place] = v[to.path_taken + place]


class Mix(NamedTuple):
    """By kind the least ``work`` of a sequence and how many there are in ``total``; ``number`` has room for a number of
    each. ``found`` and ``unlike`` have room for patterns, and for how unlike the mix each is."""

    work: Ints
    total: Ints
    number: Ints
    found: Ints
    unlike: Ints


def find_patterns(least: int, most: int, num_units: int, has: Mix) -> int:
    """How many patterns of so much work there are, up to as many as ``unlike`` has room for, those most like the mix of
    all first; ``found`` says which."""
    kinds, count, used = len(has.total), 0, 0
    for kind in range(kinds):
        has.number[kind] = 0
    while True:
        if used >= least:
            count = _enter(count, num_units, has)
        kind = kinds - 1
        while kind >= 0 and (has.number[kind] == has.total[kind] or used + has.work[kind] > most):
            used -= has.number[kind] * has.work[kind]
            has.number[kind] = 0
            kind -= 1
        if kind < 0:
            return count
        has.number[kind] += 1
        used += has.work[kind]


def _enter(count: int, num_units: int, has: Mix) -> int:
    """Enter the present numbers among so many patterns; how many there are then."""
    kinds, unlike = len(has.total), 0
    for kind in range(kinds):
        unlike += has.work[kind] * abs(has.number[kind] * num_units - has.total[kind])
    here = count
    if count == len(has.unlike):
        here = count - 1
        if has.unlike[here] <= unlike:
            return count
    else:
        count += 1
    while here and has.unlike[here - 1] > unlike:
        has.unlike[here] = has.unlike[here - 1]
        for kind in range(kinds):
            has.found[here * kinds + kind] = has.found[(here - 1) * kinds + kind]
        here -= 1
    has.unlike[here] = unlike
    for kind in range(kinds):
        has.found[here * kinds + kind] = has.number[kind]
    return count
