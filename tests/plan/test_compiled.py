"""Compiled loops against the interpreted ones: the same searches node for node, the same plans byte for byte."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracle.brute_force import random_problem

from zellige.errors import InfeasibleError, NoRoomError, SequenceTooLargeError
from zellige.placement import Engine, Problem
from zellige.plan import plan_batch
from zellige.plan.blocks import make_pod
from zellige.plan.compiled import LARGEST, is_compiled, prefer_compiled
from zellige.plan.free import FreeSearch, front, place_freely
from zellige.plan.search import PER_DENSITY, Anchor, Budget, Order, Sand, Search, credit
from zellige.plan.search_kernel import NEVER
from zellige.plan.targets import place
from zellige.problem import Option, Rung
from zellige.shards import ParallelConfig

pytest.importorskip("numba", reason="compiled loops need numba (extra fast)")

ROOT = Path(__file__).resolve().parent.parent.parent
PER_NODE, NODES = 4, 2
SHAPES = frozenset({(1, 1), (2, 1), (3, 1), (4, 1), (8, 2)})


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    was = is_compiled()
    yield
    prefer_compiled(was)


@st.composite
def ladders(draw: st.DrawFn) -> tuple[Rung, ...]:
    """Rungs of up to 8 ranks with overhead, memory, and now and then live segments; figures small enough for ties."""
    whole, extra, kept = draw(st.integers(4, 60)), draw(st.integers(0, 30)), draw(st.integers(0, 24))
    live = draw(st.sampled_from([0, 0, 3]))
    rungs = []
    for degree in (1, 2, 3, 4, 8):
        if degree not in (1, 4) and not draw(st.booleans()):
            continue
        time, share, nodes = (
            -(-whole * (100 + extra * (degree - 1)) // (100 * degree)),
            -(-kept // degree),
            1 + degree // 8,
        )
        option = Option(ParallelConfig(q=degree), nodes, time, time, time, share, live, 0)
        rungs.append(Rung(degree * time, time, degree, nodes, share, live, option))
    return tuple(sorted(rungs, key=lambda rung: (rung.work, rung.degree)))


@st.composite
def searches(draw: st.DrawFn) -> dict[str, object]:
    """The arguments of a search over blocks, memory tight in half of them."""
    kinds = [(f"b{index}", draw(ladders())) for index in range(draw(st.integers(1, 4)))]
    anchors = [Anchor(*kinds[draw(st.integers(0, len(kinds) - 1))]) for _ in range(draw(st.integers(1, 9)))]
    anchors.sort(key=lambda anchor: (-anchor.rungs[0].work, anchor.bucket))
    binds = draw(st.booleans())
    densities = draw(st.lists(st.integers(0, 3 * PER_DENSITY), max_size=3)) if binds else []
    fillers = draw(st.lists(ladders(), max_size=4))
    sand = Sand(
        sum(rungs[0].work for rungs in fillers),
        tuple(sum(credit(rungs, density) for rungs in fillers) for density in densities),
    )
    return {
        "pod": make_pod(NODES, PER_NODE, SHAPES),
        "anchors": anchors,
        "sand": sand,
        "room": draw(st.integers(8, 60)),
        "order": Order(draw(st.booleans()), 100, Budget(1000), refutes=draw(st.booleans())),
        "densities": densities if binds else None,
    }


def outcome(search: Search, target: int, limit: int) -> tuple[object, ...]:
    found = search.run(target, limit)
    return found, search.nodes, search.next_target, search.cut, search.take() if found else None, search.load


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(searches(), st.lists(st.integers(4, 200), min_size=1, max_size=4), st.integers(1, 400))
def test_a_compiled_search_visits_the_same_nodes(made: dict[str, object], targets: list[int], limit: int) -> None:
    interpreted, compiled = Search(**made), Search(**made)  # type: ignore[arg-type]
    for target in targets:
        prefer_compiled(False)
        expected = outcome(interpreted, target, limit)
        prefer_compiled()
        assert outcome(compiled, target, limit) == expected
    prefer_compiled(False)
    settled = interpreted.greedy(targets[0]), interpreted.take()
    prefer_compiled()
    assert (compiled.greedy(targets[0]), compiled.take()) == settled


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(ladders(), min_size=1, max_size=9), st.integers(0, 100), st.lists(st.integers(4, 200), min_size=1))
def test_a_compiled_free_search_places_alike(several: list[tuple[Rung, ...]], sand: int, targets: list[int]) -> None:
    fronts = [front(rungs) for rungs in sorted(several, key=lambda rungs: -rungs[0].work)]
    interpreted, compiled = (FreeSearch(NODES, PER_NODE, fronts, sand) for _ in range(2))
    for target in targets:
        prefer_compiled(False)
        expected = interpreted.run(target)
        prefer_compiled()
        assert compiled.run(target) == expected


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(searches(), st.integers(1, 120), st.integers(0, 400), st.integers(1, 60))
def test_compiled_targets_are_the_same(made: dict[str, object], start: int, nodes: int, run_limit: int) -> None:
    found = []
    for compiled in (False, True):
        prefer_compiled(compiled)
        tight = made["order"].tight  # type: ignore[attr-defined]
        order = Order(tight, run_limit, Budget(nodes))
        placed = place(Search(**{**made, "order": order}), start)  # type: ignore[arg-type]
        if placed is not None and not made["densities"]:
            placed = placed._replace(others=())
        found.append((placed, order.budget.nodes))
    assert found[0] == found[1]


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(ladders(), min_size=1, max_size=9), st.integers(0, 100), st.integers(1, 150), st.booleans())
def test_compiled_targets_of_free_searches_are_the_same(
    several: list[tuple[Rung, ...]], sand: int, start: int, known: bool
) -> None:
    fronts = [front(rungs) for rungs in sorted(several, key=lambda rungs: -rungs[0].work)]
    found = []
    for compiled in (False, True):
        prefer_compiled(compiled)
        search = FreeSearch(NODES, PER_NODE, fronts, sand)
        below = search.least + start if known else NEVER
        found.append(place_freely(search, start, below))
    assert found[0] == found[1]


def planned(problem: Problem) -> str:
    try:
        return plan_batch(problem, "zellige", problem.engine).digest
    except (NoRoomError, SequenceTooLargeError, InfeasibleError) as error:
        return str(error)


@pytest.mark.parametrize("engine", ["coalesced", "per_sequence", "group"])
def test_plans_are_the_same_compiled_or_not(engine: Engine) -> None:
    chance = random.Random(engine)
    for index in range(25):
        problem = random_problem(chance, engine, tight=index % 2 == 0)
        prefer_compiled(False)
        expected = planned(problem)
        prefer_compiled()
        assert planned(problem) == expected


def test_figures_too_large_for_compiled_loops_are_searched_all_the_same() -> None:
    time = LARGEST
    option = Option(ParallelConfig(), 1, time, time, time, 0, 0, 0)
    anchors = [Anchor("huge", (Rung(time, time, 1, 1, 0, 0, option),))]
    search = Search(make_pod(1, 2, frozenset({(1, 1)})), anchors, Sand(0, ()), 1, Order(False, 9, Budget(9)), None)
    prefer_compiled()
    assert search.run(time, 9)
    assert max(search.load) == time
    search.take()
    found = place(search, time)
    assert found is not None
    assert found.target == time


def test_a_target_that_grows_too_large_for_compiled_loops_is_found_all_the_same() -> None:
    """Whole sequences that no rank holds two of: the greedy placement reaches more than what is computed with."""
    prefer_compiled()
    time, rungs = LARGEST >> 22, []
    for degree in (1, 2):
        option = Option(ParallelConfig(q=degree), 1, time, time, time, 1, 0, 0)
        rungs.append(Rung(degree * time, time, degree, 1, 1, 0, option))
    anchors = [Anchor("long", tuple(rungs))] * 40
    pod = make_pod(1, 2, frozenset({(1, 1), (2, 1)}))
    order = Order(False, 9, Budget(9))
    search = Search(pod, anchors, Sand(0, ()), 100, order, None)
    assert search.may_compile(time)
    found = place(search, time)
    assert found is not None
    assert found.target == 20 * time
    assert not search.may_compile(found.target)


def test_without_numba_nothing_is_compiled() -> None:
    code = (
        "import sys; sys.modules['numba'] = None;"
        " from zellige.plan.compiled import prefer_compiled, is_compiled; prefer_compiled(); print(is_compiled())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == ["False"]
