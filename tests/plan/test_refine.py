"""The local search over all sequences against trying every step, and compiled against interpreted."""

from __future__ import annotations

from typing import NamedTuple
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zellige.plan import refine_kernel
from zellige.plan.compiled import is_compiled, prefer_compiled
from zellige.plan.packing import Ranks, Split
from zellige.plan.refine import Book, refine
from zellige.problem import Option, Rung
from zellige.shards import ParallelConfig

PER_NODE, NODES = 4, 3
NEVER = 2**62


class Case(NamedTuple):
    """What the local search is given; ``limits`` are room, goal and steps."""

    ranks: Ranks
    split: list[Split]
    whole: dict[str, list[int]]
    alone: dict[str, Rung]
    rungs: dict[str, list[Rung]]
    limits: tuple[int, int, int]
    passing: bool

    def copy(self) -> Case:
        ranks = Ranks(0)
        ranks.time, ranks.kept, ranks.live = self.ranks.time[:], self.ranks.kept[:], self.ranks.live[:]
        return self._replace(
            ranks=ranks, split=self.split[:], whole={name: counts[:] for name, counts in self.whole.items()}
        )

    def state(self) -> tuple[object, ...]:
        return self.ranks.loads, self.split, self.whole


def rung(degree: int, time: int, kept: int, live: int) -> Rung:
    nodes = -(-degree // PER_NODE)
    option = Option(ParallelConfig(q=degree), nodes, time, time, time, kept, live, 0)
    return Rung(degree * time, time, degree, nodes, kept, live, option)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Sequences of up to four buckets on two or three nodes, with figures so small that ties are common; one bucket
    does not run whole, one has a split sequence under a rung that none may go to."""
    num_ranks = PER_NODE * draw(st.integers(2, NODES))
    rungs: dict[str, list[Rung]] = {}
    alone, split, whole, ranks = {}, [], {}, Ranks(num_ranks)
    for name in "abcd"[: draw(st.integers(1, 4))]:
        time, kept, live = draw(st.integers(4, 24)), draw(st.integers(0, 12)), draw(st.sampled_from([0, 0, 3]))
        degrees = [
            degree for degree in (1, 2, 3, 4, 8, 12) if degree <= num_ranks and (degree < 3 or draw(st.booleans()))
        ]
        known = [rung(d, -(-time * (10 + d) // (10 * d)), -(-kept // d), live) for d in degrees]
        rungs[name] = known[1:] if name == "d" else known[:1] + known[2:] if name == "c" else known
        if name != "d":
            alone[name] = known[0]
            whole[name] = [draw(st.sampled_from([0, 0, 1, 2])) for _ in range(num_ranks)]
            ranks.add_counts(whole[name], known[0])
        for _ in range(draw(st.integers(0, 4))):
            way = draw(st.sampled_from(known[1:]))
            width, start = way.degree // way.nodes, draw(st.integers(0, NODES))
            nodes = [(start + node) % (num_ranks // PER_NODE) for node in range(way.nodes)]
            first = draw(st.integers(0, PER_NODE - width))
            where = sorted(node * PER_NODE + first + index for node in nodes for index in range(width))
            split.append(Split(name, way, tuple(where)))
            ranks.add(where, way)
    return Case(
        ranks,
        split,
        whole,
        alone,
        rungs,
        (draw(st.integers(10, 80)), draw(st.integers(0, 30)), 12),
        draw(st.booleans()),
    )


def run(case: Case) -> None:
    room, goal, steps = case.limits
    counts, book = list(case.whole.values()), Book(case.alone, case.rungs, PER_NODE)
    refine(case.ranks, case.split, counts, book, room, goal, steps, case.passing)


@settings(max_examples=200)
@given(cases())
def test_the_search_takes_the_best_step_each_time(case: Case) -> None:
    expected, was = case.copy(), is_compiled()
    try:
        prefer_compiled(False)
        with patch.object(refine_kernel, "divide_pair", lambda _, split, *__: (split, 0)):
            run(case)
    finally:
        prefer_compiled(was)
    for _ in range(expected.limits[2]):
        if not step_slowly(expected):
            break
    assert case.state() == expected.state()


@settings(max_examples=200)
@given(cases())
def test_the_search_loses_nothing_and_slows_nothing(case: Case) -> None:
    before = case.copy()
    run(case)
    assert max(case.ranks.time) <= max(before.ranks.time)
    assert max(case.ranks.kept) <= max(case.limits[0], *before.ranks.kept)
    for name in {*case.whole, *(way.bucket for way in before.split)}:
        sums = [
            sum(each.whole.get(name, [])) + sum(way.bucket == name for way in each.split) for each in (before, case)
        ]
        assert sums[0] == sums[1]
    ranks = Ranks(len(case.ranks.time))
    for name, counts in case.whole.items():
        ranks.add_counts(counts, case.alone[name])
    for way in case.split:
        assert len(set(way.ranks)) == way.rung.degree
        ranks.add(way.ranks, way.rung)
    assert (ranks.time, ranks.kept) == (case.ranks.time, case.ranks.kept)
    assert all(stated >= held for stated, held in zip(case.ranks.live, ranks.live, strict=True))


@settings(max_examples=200)
@given(cases())
def test_compiled_the_search_is_the_same(case: Case) -> None:
    pytest.importorskip("numba", reason="compiled loops need numba (extra fast)")
    was, other = is_compiled(), case.copy()
    try:
        for each, how in ((case, True), (other, False)):
            prefer_compiled(how)
            run(each)
    finally:
        prefer_compiled(was)
    assert case.state() == other.state()


def step_slowly(case: Case) -> bool:
    """Take the best step; False where there is none."""
    time, (room, goal, _) = case.ranks.time, case.limits
    slowest = max(range(len(time)), key=lambda rank: (time[rank], -rank))
    if time[slowest] <= goal:
        return False
    held = {(way.bucket, id(way.rung)): way for way in case.split if slowest in way.ranks}
    ways = [way for way in reversed(case.split) if any(way is each for each in held.values())]
    ways += [Split(name, case.alone[name], (slowest,)) for name, counts in case.whole.items() if counts[slowest]]
    found: list[tuple[tuple[int, int, int], int, int, Split, Split]] = []
    for number, old in enumerate(ways):
        for index, new in enumerate(case.rungs[old.bucket]):
            ranks = case.copy().ranks
            put(ranks, old, -1)
            where = least_loaded(ranks, new, room if case.passing else NEVER)
            if where and all(holds(ranks, r, new, room) for r in where):
                peak = max(ranks.time[rank] for rank in where) + new.time
                least = max(goal, *(load for rank, load in enumerate(time) if rank != slowest))
                entry = max(peak, least), new.work - old.rung.work, peak
                found.append((entry, number, index, old, Split(old.bucket, new, where)))
    found = [each for each in found if each[0][2] < time[slowest]]
    if not found:
        return False
    *_, old, best = min(found, key=lambda each: each[:3])
    for way, sign in ((old, -1), (best, 1)):
        put(case.ranks, way, sign)
        if way.rung.degree == 1:
            case.whole[way.bucket][way.ranks[0]] += sign
        elif sign < 0:
            del case.split[next(place for place, each in enumerate(case.split) if each is way)]
        else:
            case.split.append(way)
    return True


def put(ranks: Ranks, way: Split, sign: int) -> None:
    """Put a way on its ranks, or take it off."""
    for rank in way.ranks:
        ranks.time[rank] += sign * way.rung.time
        ranks.kept[rank] += sign * way.rung.kept
        if sign > 0:
            ranks.live[rank] = max(ranks.live[rank], way.rung.live)


def least_loaded(ranks: Ranks, new: Rung, room: int) -> tuple[int, ...]:
    """A rung's ranks: the least loaded of each node that have room, of the nodes where the last is least loaded.
    None where too few nodes have enough."""
    width = new.degree // new.nodes
    nodes = []
    for first in range(0, len(ranks.time), PER_NODE):
        able = [r for r in range(first, first + PER_NODE) if holds(ranks, r, new, room)]
        members = sorted((ranks.time[rank], rank) for rank in able)[:width]
        if len(members) == width:
            nodes.append((members[-1], [rank for _, rank in members]))
    if len(nodes) < new.nodes:
        return ()
    return tuple(sorted(rank for _, members in sorted(nodes)[: new.nodes] for rank in members))


def holds(ranks: Ranks, rank: int, new: Rung, room: int) -> bool:
    """Whether a rank has room for a rung."""
    return ranks.kept[rank] + new.kept + max(ranks.live[rank], new.live) <= room
