"""Where a sequence may go among loaded ranks, up to symmetry: ranks of a node are alike but for loads, so are nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import accumulate
from typing import NamedTuple

from zellige.spreads import Spread

Loads = tuple[tuple[int, ...], ...]
"""What ranks have to do, in ns: ascending in each node, and nodes ascending."""

MOST_PLACES = 4000
"""Placements that are listed; where there are more, none is."""


class TooManyPlacesError(Exception):
    """There are more placements than :data:`MOST_PLACES`."""


class _Part(NamedTuple):
    """So many ranks of a node, what they lose together, and the node with them loaded."""

    ranks: int
    loss: int
    node: tuple[int, ...]


def places(loads: Loads, spread: Spread, losses: Mapping[int, int], most: int) -> set[Loads]:
    """Loads with a sequence on ``spread.degree`` ranks, of a node or (wide) of any, that lose at most ``most`` in all.

    ``losses`` says by load what a rank loses that takes a shard; it holds the loads that leave room for one. Raises
    :class:`TooManyPlacesError`.
    """
    found: set[Loads] = set()
    if spread.wide:
        _over_nodes(loads, spread, losses, most, found)
        return found
    for place, node in enumerate(loads):
        if place and node == loads[place - 1]:
            continue
        for part in _parts(node, spread, losses, most):
            if part.ranks == spread.degree:
                found.add(_replaced(loads, place, part.node))
    return found


def _replaced(loads: Loads, place: int, node: tuple[int, ...]) -> Loads:
    return tuple(sorted([*loads[:place], node, *loads[place + 1 :]]))


def _parts(node: tuple[int, ...], spread: Spread, losses: Mapping[int, int], most: int) -> list[_Part]:
    """All ways to take up to ``spread.degree`` ranks of a node that lose at most ``most``."""
    chosen: list[tuple[int, int, tuple[int, ...]]] = [(0, 0, ())]
    for load, count in sorted(Counter(node).items()):
        loss = losses.get(load)
        able = 0 if loss is None else count
        chosen = [
            (
                ranks + taken,
                lost + taken * (loss or 0),
                (*told, *[load + spread.time] * taken, *[load] * (count - taken)),
            )
            for ranks, lost, told in chosen
            for taken in range(min(able, spread.degree - ranks) + 1)
            if lost + taken * (loss or 0) <= most
        ]
        if len(chosen) > MOST_PLACES:
            raise TooManyPlacesError
    return [_Part(ranks, lost, tuple(sorted(told))) for ranks, lost, told in chosen]


def _over_nodes(loads: Loads, spread: Spread, losses: Mapping[int, int], most: int, found: set[Loads]) -> None:
    """Add all placements on ranks of any nodes; parts of equal nodes are taken in one order."""
    never = most + 1
    least = []
    for place in range(len(loads) + 1):
        rest = sorted(losses[load] for node in loads[place:] for load in node if load in losses)
        sums = list(accumulate(rest, initial=0))[: spread.degree + 1]
        least.append(sums + [never] * (spread.degree + 1 - len(sums)))
    parts: dict[tuple[int, ...], list[_Part]] = {}

    def extend(place: int, ranks: int, lost: int, first: int, taken: tuple[tuple[int, ...], ...]) -> None:
        if lost + least[place][ranks] > most:
            return
        if not ranks:
            found.add(tuple(sorted([*taken, *loads[place:]])))
            if len(found) > MOST_PLACES:
                raise TooManyPlacesError
            return
        node = loads[place]
        if node not in parts:
            parts[node] = _parts(node, spread, losses, most)
        alike = place + 1 < len(loads) and loads[place + 1] == node
        for index, part in enumerate(parts[node][first:], first):
            if part.ranks <= ranks:
                following = index if alike else 0
                extend(place + 1, ranks - part.ranks, lost + part.loss, following, (*taken, part.node))

    extend(0, spread.degree, 0, 0, ())
