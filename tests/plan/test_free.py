"""Rank sets that need not nest: what the search promises of a placement, and what the local search keeps."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from zellige.plan import prefer_compiled
from zellige.plan.free import FreeSearch, front, place_freely
from zellige.plan.packing import Ranks, Split
from zellige.plan.refine import Book, refine
from zellige.plan.search_kernel import NEVER
from zellige.problem import Option, Rung
from zellige.shards import ParallelConfig

PER_NODE, NODES = 4, 2


def rung(degree: int, time: int, kept: int = 0) -> Rung:
    nodes = 1 if degree <= PER_NODE else 2
    option = Option(ParallelConfig(q=degree), nodes, time, time, time, kept, 0, 0)
    return Rung(degree * time, time, degree, nodes, kept, 0, option)


@st.composite
def ladders(draw: st.DrawFn) -> tuple[Rung, ...]:
    """Rungs of 1, 2, 3, 4, 6 and 8 ranks with some overhead, the least work first."""
    whole, extra = draw(st.integers(20, 400)), draw(st.integers(0, 30))
    degrees = [degree for degree in (1, 2, 3, 4, 6, 8) if degree in (1, 8) or draw(st.booleans())]
    rungs = [rung(d, -(-whole * (100 + extra * (d - 1)) // (100 * d)), -(-60 // d)) for d in degrees]
    return tuple(sorted(rungs, key=lambda each: each.work))


def loads_of(chosen: list[tuple[Rung, tuple[int, ...]]]) -> list[int]:
    loads = [0] * (PER_NODE * NODES)
    for way, ranks in chosen:
        for rank in ranks:
            loads[rank] += way.time
    return loads


@settings(max_examples=150)
@given(st.lists(ladders(), min_size=1, max_size=7), st.integers(0, 500))
def test_a_placement_keeps_its_target_its_rungs_and_its_nodes(several: list[tuple[Rung, ...]], sand: int) -> None:
    fronts = [front(rungs) for rungs in sorted(several, key=lambda rungs: -rungs[0].work)]
    search = FreeSearch(NODES, PER_NODE, fronts, sand)
    roomy = sand + sum(rungs[0].work for rungs in fronts)
    assert search.run(roomy) is not None
    found = place_freely(search, 1, NEVER) or place_freely(search, roomy, NEVER)
    assert found is not None
    chosen, target = [(way, block.ranks) for way, block in found[0]], found[1]
    assert len(chosen) == len(fronts)
    for (way, ranks), rungs in zip(chosen, fronts, strict=True):
        assert way in rungs
        assert len(set(ranks)) == way.degree
        spread = Counter(rank // PER_NODE for rank in ranks)
        assert len(spread) == way.nodes
        assert set(spread.values()) == {way.degree // way.nodes}
    loads = loads_of(chosen)
    assert max(loads) <= target
    assert sum(loads) + sand <= target * len(loads)
    tighter = place_freely(search, 1, target)
    assert tighter is None or tighter[1] < target


@given(st.integers(1, 9), st.integers(1, 300))
def test_equal_pairs_fill_three_ranks_evenly(number: int, time: int) -> None:
    """Sets of two ranks of three that overlap level what nested ones cannot."""
    search = FreeSearch(1, 3, [(rung(2, time),)] * (3 * number), 0)
    chosen = search.run(2 * number * time)
    assert chosen is not None
    assert search.run(2 * number * time - 1) is None


@given(ladders(), st.integers(1, 8))
def test_the_front_is_what_nothing_beats(rungs: tuple[Rung, ...], floor: int) -> None:
    kept = front(rungs, floor=floor)
    able = [each for each in rungs if each.degree >= floor] or list(rungs)
    assert all(a.work <= b.work and a.time > b.time for a, b in pairwise(kept))
    for each in able:
        assert any(other.work <= each.work and other.time <= each.time for other in kept)


@settings(max_examples=150)
@given(
    st.lists(st.tuples(ladders(), st.integers(0, 5), st.integers(0, 27)), min_size=1, max_size=6), st.integers(60, 400)
)
def test_local_search_loses_nothing_and_slows_nothing(
    several: list[tuple[tuple[Rung, ...], int, int]], room: int
) -> None:
    ranks, split = Ranks(PER_NODE * NODES), []
    whole: dict[str, list[int]] = {}
    rungs, alone = {}, {}
    pairs = list(combinations(range(PER_NODE), 2))
    for number, (ladder, count, where) in enumerate(several):
        name = str(number)
        rungs[name], alone[name] = front(ladder), next(each for each in ladder if each.degree == 1)
        whole[name] = [count if rank == where % 8 else 0 for rank in range(8)]
        ranks.add((where % 8,), alone[name], count)
        two = next((each for each in ladder if each.degree == 2), None)
        if two is not None:
            split.append(Split(name, two, pairs[where % 6]))
            ranks.add(split[-1].ranks, two)
    totals = Counter(way.bucket for way in split) + Counter({name: sum(counts) for name, counts in whole.items()})
    before, fullest, room = max(ranks.time), max(ranks.kept), max(room, *ranks.kept)
    refine(ranks, split, list(whole.values()), Book(alone, rungs, PER_NODE), room, 0, 40)
    assert max(ranks.time) <= before
    assert max(ranks.kept) <= max(room, fullest)
    after = Counter(way.bucket for way in split) + Counter({name: sum(counts) for name, counts in whole.items()})
    assert after == totals
    again = Ranks(PER_NODE * NODES)
    for way in split:
        assert len(set(way.ranks)) == way.rung.degree
        assert len({rank // PER_NODE for rank in way.ranks}) == way.rung.nodes
        again.add(way.ranks, way.rung)
    for name, counts in whole.items():
        assert min(counts) >= 0
        again.add_counts(counts, alone[name])
    assert (again.time, again.kept) == (ranks.time, ranks.kept)


def test_local_search_splits_what_is_too_coarse() -> None:
    """One long sequence beside two idle ranks: halves take half as long."""
    ladder = (rung(1, 100), rung(2, 52))
    ranks, whole = Ranks(4), {"a": [1, 1, 0, 0]}
    split: list[Split] = []
    ranks.add_counts(whole["a"], ladder[0])
    refine(ranks, split, list(whole.values()), Book({"a": ladder[0]}, {"a": ladder}, 4), 10**9, 0, 10)
    assert ranks.time == [52, 52, 52, 52]
    assert [way.ranks for way in split] == [(0, 2), (1, 3)]
    assert whole == {"a": [0, 0, 0, 0]}


def test_a_limit_beyond_machine_integers_is_no_limit() -> None:
    fronts = [(rung(1, 100),), (rung(1, 100),)]
    prefer_compiled()
    try:
        found = [place_freely(FreeSearch(1, 2, fronts, 0), 1, below) for below in (NEVER, 2**70)]
    finally:
        prefer_compiled(False)
    assert found[0] == found[1] is not None
    assert place_freely(FreeSearch(1, 2, fronts, 0), 1, 2**70) == found[0]
