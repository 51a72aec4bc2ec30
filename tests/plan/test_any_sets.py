"""The bound over any rank sets: against exhaustive search, against a search that is written otherwise, and compiled."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import accumulate, combinations, pairwise
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle.bound_checks import never_above_the_optimum
from oracle.brute_force import optimum, random_problem

from zellige.errors import InfeasibleError
from zellige.placement import ENGINES, Engine, Problem
from zellige.plan import plan_batch
from zellige.plan.any_sets import MOST_STATES, Sand, SetSearch, any_sets_bound
from zellige.plan.any_sets_kernel import OPEN, PLACED, REFUTED, explore
from zellige.plan.compiled import compiled, is_compiled, prefer_compiled
from zellige.plan.rank_choice_kernel import next_choice, next_place
from zellige.plan.set_places import KEPT_TARGET, NEXT_TARGET, NODES
from zellige.spreads import Spread, spreads_of

PER_SEED = 15


def bound(problem: Problem, known: int, reached: int) -> int:
    return any_sets_bound(problem, known, reached)[0]


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("engine", ENGINES)
def test_no_bound_exceeds_the_optimum_over_any_rank_sets(engine: Engine, seed: int) -> None:
    assert never_above_the_optimum(bound, engine, seed, PER_SEED) or engine == "group"


class Case(NamedTuple):
    num_nodes: int
    per_node: int
    spreads: tuple[tuple[Spread, ...], ...]
    sand: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    num_nodes, per_node = draw(st.sampled_from([(1, 3), (1, 4), (2, 2), (2, 3), (3, 2)]))
    spreads = []
    for _ in range(draw(st.integers(1, 4))):
        found = []
        for wide in (False, True) if num_nodes > 1 else (False,):
            most = num_nodes * per_node if wide else per_node
            degrees = draw(st.sets(st.integers(2 if wide else 1, most), min_size=0 if wide else 1, max_size=3))
            found += [Spread(m * t, m, t, wide) for m in degrees for t in [draw(st.integers(1, 12))]]
        spreads.append(tuple(sorted(found)))
    return Case(num_nodes, per_node, tuple(spreads), draw(st.integers(0, 20)))


def least_target(case: Case) -> int:
    """The least target, found by trying every set of ranks for every sequence; sand fills what is left."""
    size = case.num_nodes * case.per_node
    best = [10**9]

    def place(index: int, loads: tuple[int, ...]) -> None:
        if max(loads) >= best[0]:
            return
        if index == len(case.spreads):
            best[0] = min(best[0], max(max(loads), -(-(sum(loads) + case.sand) // size)))
            return
        for spread in case.spreads[index]:
            for ranks in combinations(range(size), spread.degree):
                if spread.wide or len({rank // case.per_node for rank in ranks}) == 1:
                    place(index + 1, tuple(ns + spread.time * (r in ranks) for r, ns in enumerate(loads)))

    place(0, (0,) * size)
    return best[0]


def without_buckets(num_nodes: int, per_node: int, spreads: Sequence[tuple[Spread, ...]]) -> SetSearch:
    """A search of anchors that are told each by itself."""
    return SetSearch(num_nodes, per_node, spreads, Sand([], [], [0] * len(spreads), []))


def run(search: SetSearch, target: int, sand: int, least: Sequence[int]) -> tuple[int, int]:
    """What is known of a target, and up to which one that holds; ``least`` work of the anchors, ``sand`` of the
    rest."""
    rest = [*accumulate(reversed(least), initial=0)][::-1]
    places = search.places
    search.array[places.rest : places.rest + len(rest)] = rest
    how = compiled("zellige.plan.any_sets_kernel", "explore") if is_compiled() else explore
    verdict = how(target, MOST_STATES, sand, search.array, places)
    return int(verdict), int(search.array[places.numbers + NEXT_TARGET])


@settings(deadline=None, max_examples=150)
@given(cases())
def test_a_target_is_refuted_if_and_only_if_nothing_fits(case: Case) -> None:
    least = least_target(case)
    search = without_buckets(case.num_nodes, case.per_node, case.spreads)
    for target in range(max(1, least - 4), least + 3):
        able = [[s.work for s in spreads if s.time <= target] for spreads in case.spreads]
        if not all(able):
            assert target < least
            continue
        verdict, beyond = run(search, target, case.sand, [min(works) for works in able])
        assert verdict == (PLACED if target >= least else REFUTED)
        if verdict == REFUTED:
            later = min((s.time for spreads in case.spreads for s in spreads if s.time > target), default=beyond)
            assert target < min(beyond, later) <= least


def test_compiled_and_interpreted_searches_visit_the_same_states() -> None:
    chance = random.Random(5)
    seen = set()
    for _ in range(160):
        num_nodes, per_node = chance.choice([(1, 8), (2, 4), (2, 8), (4, 4)])
        spreads = tuple(
            tuple(
                sorted(
                    Spread(m * t, m, t, wide)
                    for wide in ((False, True) if num_nodes > 1 else (False,))
                    for m in (2, 3, 4, 6)
                    for t in [chance.randint(3000, 9000) // m]
                    if m <= (num_nodes * per_node if wide else per_node)
                )
            )
            for _ in range(chance.randint(2, 9))
        )
        work = sum(each[0].work for each in spreads)
        target = work // (num_nodes * per_node) * chance.randint(100, 130) // 100 + chance.randint(0, 1500)
        able = [[s.work for s in each if s.time <= target] for each in spreads]
        if not all(able):
            continue
        found = []
        for wanted in (False, True):
            prefer_compiled(wanted)
            search = without_buckets(num_nodes, per_node, spreads)
            answer = run(search, target, 0, [min(works) for works in able])
            visited = int(search.array[search.places.numbers + NODES])
            found.append((answer, visited))
        prefer_compiled(False)
        assert found[0] == found[1]
        assert found[0][1] <= MOST_STATES + 1
        seen.add(found[0][0][0])
    assert seen == {REFUTED, PLACED, OPEN}


def test_spreads_are_the_least_times_by_where_ranks_lie() -> None:
    problem = random_problem(random.Random(1), "coalesced")
    for options in problem.priced.values():
        found = spreads_of((o.num_nodes > 1, o.config.degree, o.floor_ns) for o in options)
        assert list(found) == sorted(found)
        for wide in (False, True):
            mine = sorted((s.degree, s.time) for s in found if s.wide == wide)
            assert all(later[1] < earlier[1] for earlier, later in pairwise(mine))
            for option in options:
                if (option.num_nodes > 1) == wide:
                    assert any(d <= option.config.degree and t <= option.floor_ns for d, t in mine)


@pytest.mark.parametrize("seed", range(4))
def test_plans_state_no_bound_above_the_optimum(seed: int) -> None:
    chance = random.Random(100 + seed)
    for index in range(20):
        problem = random_problem(chance, "coalesced", tight=index % 3 == 0)
        best = optimum(problem)
        if best is None:
            continue
        try:
            plan = plan_batch(problem, "zellige", "coalesced")
        except InfeasibleError:
            continue
        assert plan.bound_ns <= best.makespan_ns <= plan.makespan_ns


@settings(deadline=None, max_examples=120)
@given(cases())
def test_the_placement_that_is_kept_fits_below_its_target(case: Case) -> None:
    least = least_target(case)
    search = without_buckets(case.num_nodes, case.per_node, case.spreads)
    assert search.laid() == []
    able = max(min(spread.time for spread in spreads) for spreads in case.spreads)
    search.raise_bound(able - 1, 4 * least + 4)
    target, laid = int(search.array[search.places.numbers + KEPT_TARGET]), search.laid()
    if not target:
        assert laid == []
        return
    loads = [0] * (case.num_nodes * case.per_node)
    for (spread, ranks), spreads in zip(laid, case.spreads, strict=True):
        assert spread in spreads
        assert len(set(ranks)) == spread.degree
        assert spread.wide or len({rank // case.per_node for rank in ranks}) == 1
        for rank in ranks:
            loads[rank] += spread.time
    assert max(loads) <= target


def test_many_nodes_that_are_alike_are_told_in_few_states() -> None:
    """Of 32 nodes of a rank, one choice of 16 differs from the others; 600 million are the same but for names."""
    spreads = [(Spread(16 * 10, 16, 10, True),) for _ in range(4)]
    search = without_buckets(32, 1, spreads)
    assert run(search, 20, 0, [160] * 4)[0] == PLACED
    assert run(search, 19, 0, [160] * 4) == (REFUTED, 20)
    assert run(search, 20, 1, [160] * 4) == (REFUTED, 21)
    assert run(search, 21, 33, [160] * 4) == (REFUTED, 22)
    assert search.array[search.places.numbers + NODES] < 20


Node = tuple[int, ...]


@settings(deadline=None, max_examples=300)
@given(
    kinds=st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=2), min_size=1, max_size=3),
    picks=st.lists(st.integers(0, 2), min_size=1, max_size=5),
    degree=st.integers(1, 10),
    target=st.integers(1, 4),
)
def test_choices_of_ranks_are_all_that_differ_by_more_than_names(
    kinds: list[list[int]], picks: list[int], degree: int, target: int
) -> None:
    """Against all sets of ranks; a choice is what the nodes hold after it, whichever they are."""
    nodes = sorted(tuple(sorted(kinds[pick % len(kinds)])) for pick in picks)
    size, per_node = 2 * len(nodes), 2
    loads = [load for node in nodes for load in node]
    if degree > size:
        return
    search = SetSearch(len(nodes), per_node, [(Spread(degree, degree, 1, True),)], Sand([], [], [0], []))
    at, array = search.places, search.array
    array[at.path_load : at.path_load + size] = loads
    array[at.path_rung] = array[at.rung_first] - 1
    wanted = set()
    for ranks in combinations(range(size), degree):
        if all(loads[rank] < target for rank in ranks):
            after = [load + (rank in ranks) for rank, load in enumerate(loads)]
            halves = [after[first : first + per_node] for first in range(0, size, per_node)]
            wanted.add(tuple(sorted((node, tuple(sorted(half))) for node, half in zip(nodes, halves, strict=True))))
    found = []
    if next_place(0, target, 0, array, at):
        found.append(after_choice(search, nodes))
        while next_choice(0, array, at):
            found.append(after_choice(search, nodes))
    assert len(found) == len(set(found))
    assert set(found) == wanted


def after_choice(search: SetSearch, nodes: list[Node]) -> tuple[tuple[Node, Node], ...]:
    """What the nodes hold before and after a choice of ranks, in order."""
    at, array = search.places, search.array
    after = [list(node) for node in nodes]
    for place in range(array[at.path_count]):
        node, load = array[at.class_node + place], array[at.class_load + place]
        first = nodes[node].index(load)
        for rank in range(first, first + array[at.class_taken + place]):
            after[node][rank] += 1
    return tuple(sorted((node, tuple(sorted(held))) for node, held in zip(nodes, after, strict=True)))
