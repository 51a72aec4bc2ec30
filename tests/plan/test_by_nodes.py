"""Long sequences node by node on few ranks: better plans where no mix fills nodes evenly, compiled and interpreted
alike."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle.batches import on_nodes

from zellige.placement import Plan, Problem
from zellige.plan import free_sets, plan_batch
from zellige.plan import zellige as planner
from zellige.plan.bounds import least_time_of
from zellige.plan.by_nodes import nodes_draft
from zellige.plan.compiled import compiled, is_compiled, prefer_compiled
from zellige.plan.layout import int_array, zeros
from zellige.plan.node_cover import _fillings
from zellige.plan.unit_kernel import Mix, find_patterns
from zellige.plan_check import placement_findings

LONG, SHORTER, SHORT, IMAGE = (1920, 1080, 81), (1280, 720, 161), (832, 480, 81), (1024, 1024, 1)


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    was = is_compiled()
    yield
    prefer_compiled(was)


UNEVEN = (LONG, 7), (SHORTER, 10), (SHORT, 7), (IMAGE, 120)
"""Four nodes hold 3 + 1, 0 + 5, 2 + 2 and 2 + 2 of the long ones; equal parts leave one that must be split over all."""


def tightened(problem: Problem, use: float) -> Problem:
    """The problem with so little memory that whole sequences fill that part of it."""
    kept = sum(problem.whole(bucket).kept_bytes * count for bucket, count in problem.counts.items())
    room = int(kept / problem.cluster.num_ranks / use)
    memory = msgspec.structs.replace(problem.memory, usable_bytes=problem.memory.base_bytes + room)
    return dataclasses.replace(problem, memory=memory)


def without(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """The plan where nothing is tried node by node."""
    with monkeypatch.context() as patched:
        for module in (free_sets, planner):
            patched.setattr(module, "nodes_draft", lambda *_, **__: None)
        return plan_batch(problem, "zellige")


def test_unequal_nodes_need_no_split_over_several(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = on_nodes(4, *UNEVEN)
    plan, mixed = plan_batch(problem, "zellige"), without(problem, monkeypatch)
    assert not placement_findings(plan, problem, "the plan")
    assert plan.gap < 0.004 < mixed.gap
    held = [Counter[str]() for _ in range(4)]
    for placement in plan.placements:
        nodes = {rank // 8 for rank in placement.ranks}
        assert len(nodes) == 1
        held[nodes.pop()][placement.bucket] += 1
    assert {(each["1920x1088x81"], each["1280x720x161"]) for each in held} == {(3, 1), (0, 5), (2, 2)}


def test_memory_is_kept_where_it_binds(monkeypatch: pytest.MonkeyPatch) -> None:
    clips = ((832, 480, 33), 4), (SHORT, 2), ((1920, 1080, 1), 40), (IMAGE, 90)
    problem = tightened(on_nodes(2, *clips), 0.95)
    monkeypatch.setattr(planner, "rebuilt", lambda *_: None)
    plan, mixed = plan_batch(problem, "zellige"), without(problem, monkeypatch)
    assert plan.fits
    assert not placement_findings(plan, problem, "the plan")
    assert plan.makespan_ns < mixed.makespan_ns * 0.99
    draft = nodes_draft(problem, *_widest(problem), binds=True)
    assert draft is not None
    assert draft.ranks is not None
    assert draft.ranks.fit(problem.memory.room_bytes)
    assert max(draft.ranks.time) == draft.longest


def _widest(problem: Problem) -> tuple[int, dict[str, tuple[planner.Rung, ...]]]:
    limit = problem.ring_limits[-1]
    return least_time_of(problem, problem.fronts_within[limit]), problem.rungs_within[limit]


@pytest.mark.parametrize("binds", [False, True])
def test_compiled_and_interpreted_drafts_are_the_same(binds: bool) -> None:
    problem = on_nodes(4, *UNEVEN)
    problem = tightened(problem, 0.9) if binds else problem
    found = []
    for wanted in (False, True):
        prefer_compiled(wanted)
        draft = nodes_draft(problem, *_widest(problem), binds=binds)
        assert draft is not None
        found.append((draft.split, draft.whole, draft.longest))
    assert found[0] == found[1]


def test_a_single_node_and_engines_that_wait_have_none() -> None:
    for problem in (on_nodes(1, *UNEVEN), on_nodes(4, *UNEVEN, engine="group")):
        assert nodes_draft(problem, *_widest(problem), binds=False) is None


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 5)), min_size=1, max_size=4),
    st.integers(1, 4),
    st.integers(-20, 120),
    st.integers(0, 80),
    st.integers(1, 20),
)
def test_patterns_are_those_of_the_lists(
    kinds: list[tuple[int, int]], num_units: int, least: int, span: int, limit: int
) -> None:
    works, total = [work for work, _ in kinds], tuple(number for _, number in kinds)
    most = max(0, least + span)

    def unlike(pattern: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        parts = zip(works, pattern, total, strict=True)
        return sum(work * abs(number * num_units - all_) for work, number, all_ in parts), pattern

    expected = sorted(_fillings(works, total, least, most), key=unlike)[:limit]
    for run in (find_patterns, compiled("zellige.plan.unit_kernel", "find_patterns")):
        size = len(kinds)
        mix = Mix(int_array(works), int_array(total), zeros(size), zeros(limit * size), zeros(limit))
        count = run(least, most, num_units, mix)
        assert list(map(tuple, mix.found[: count * size].reshape(count, size).tolist())) == expected
