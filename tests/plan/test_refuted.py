"""The bound within aligned blocks where memory binds, against exhaustive search."""

from __future__ import annotations

import random

import pytest
from oracle import brute_force
from oracle.aligned_blocks import on_blocks, only_powers
from oracle.brute_force import optimum, random_problem

from zellige.placement import Engine, Problem
from zellige.plan import zellige as planner
from zellige.plan.by_kinds import Effort
from zellige.plan.compiled import is_compiled, prefer_compiled
from zellige.plan.refuted import BlocksBound, Reach
from zellige.plan.task import block_choices


def bound_of(problem: Problem) -> BlocksBound:
    """The bound as the families say it, for powers of two."""
    families = planner._families(problem)
    ways = [planner._rungs_of(problem, family) for family in families]
    kinds = [Reach(rungs, family.least, family.fewest_calls) for rungs, family in zip(ways, families, strict=True)]
    return BlocksBound(problem, kinds, block_choices(problem, ways[-1], families[-1].least)[0])


@pytest.mark.parametrize("engine", ["coalesced", "per_sequence"])
def test_what_is_refuted_has_no_plan(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    chance, raised = random.Random(engine), 0
    monkeypatch.setattr(brute_force, "ways_to_run", on_blocks)
    for _ in range(60):
        problem = only_powers(random_problem(chance, engine, tight=True))
        best = optimum(problem)
        if best is None:
            continue
        blocks = bound_of(problem)
        before = blocks.bound
        blocks.raise_towards(2 * best.makespan_ns, Effort(2000, 20_000))
        assert before <= blocks.bound <= best.makespan_ns
        raised += blocks.bound > before
    assert raised > 5


def test_compiled_the_bound_is_the_same() -> None:
    pytest.importorskip("numba", reason="compiled loops need numba (extra fast)")
    chance, was = random.Random(5), is_compiled()
    for _ in range(20):
        problem, found = random_problem(chance, "coalesced", tight=True), []
        for how in (False, True):
            prefer_compiled(how)
            blocks = bound_of(problem)
            blocks.raise_towards(3 * blocks.bound, Effort(200, 1000))
            found.append(blocks.lows)
        prefer_compiled(was)
        assert found[0] == found[1]
