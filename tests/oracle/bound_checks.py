"""Bounds over any rank sets against exhaustive search."""

from __future__ import annotations

import random
from collections.abc import Callable

from oracle.brute_force import optimum, random_problem
from zellige.placement import Engine, Problem
from zellige.plan.bounds import best_bound

Bound = Callable[[Problem, int, int], int]
"""A bound of a problem, between one that is known and a makespan."""


def never_above_the_optimum(bound: Bound, engine: Engine, seed: int, number: int, *, tight: int = 3) -> int:
    """Assert that a bound exceeds no optimum of random problems, memory tight in one of so many; how often it raises
    what is known."""
    chance, raised = random.Random(seed), 0
    for index in range(number):
        problem = random_problem(chance, engine, tight=index % tight == 0)
        best = optimum(problem)
        if best is None:
            continue
        known, _ = best_bound(problem)
        for reached in (best.makespan_ns, best.makespan_ns * 3 // 2):
            found = bound(problem, known, reached)
            assert known <= found <= best.makespan_ns
            raised += found > known
    return raised
