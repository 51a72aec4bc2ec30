"""Anchor placement by CP-SAT: least makespan, then fewest splits within (1 + eps) of it (arXiv 2608.01150, Eqs. 6, 7).

Sequences of one bucket are counted, not told apart: the exact compact formulation of :mod:`zellige.plan.counts`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ortools.sat.python import cp_model

from zellige.errors import InfeasibleError, TimeLimitError
from zellige.placement import Option, Problem
from zellige.plan.counts import (
    AnchorGroup,
    Assignment,
    add_choices,
    deal,
    decode_counts,
    fits_in_memory,
    limit_memory,
    makespan_range,
    rank_loads,
    time_unit,
)
from zellige.plan.cp_sat import make_solver, solve

__all__ = ["AnchorGroup", "Assignment", "candidate_options", "deal", "place_anchors"]

EPSILON_PER_MILLE = 1
"""Slack on the makespan in the second solve: eps = 1e-3."""

TIME_UNITS = 1_000_000
"""Solver time units in the lower bound on the makespan: rounding then costs at most a few parts per million."""

TIE = 5e-3
"""Relative difference of prices that counts as none: analytic prices, and the published profiles (3.4 % error), tell no
finer, and fewer bytes are then the safer choice. It costs at most this much of the makespan."""

FAR_TOO_SLOW = 1_000
"""Options this many times slower than a bucket's fastest are left out: they never help, and their prices would leave
the solver's 64 bits."""

DETERMINISTIC_LIMIT = 0.25
"""Deterministic time of each solve, in CP-SAT's own units (about a second here). Suites of few shapes are proved
optimal well within it; where every video has its own length, longer searches make the anchors' makespan better and the
whole plan no better, since fillers even the ranks out anyway."""


def candidate_options(problem: Problem, bucket: str) -> tuple[Option, ...]:
    """Options of power-of-two degree that fit alone, the front of each degree and footprint.

    Where no power of two is left (few ranks, much memory), all degrees that fit are. Times within ``TIE`` of the
    fastest count as equal: among them the one that moves the fewest bytes leads, and others stay only where they need
    less memory.
    """
    even = [o for o in problem.options[bucket] if o.config.degree % o.num_nodes == 0 and problem.fits_alone(o)]
    powers = [option for option in even if option.config.degree & (option.config.degree - 1) == 0]
    usable = powers or even
    fastest = min((option.time_ns for option in usable), default=0)
    families: dict[tuple[int, int], list[Option]] = {}
    for option in usable:
        if option.time_ns > FAR_TOO_SLOW * fastest:
            continue
        families.setdefault((option.config.degree, option.num_nodes), []).append(option)
    return tuple(option for family in families.values() for option in _front(family))


def _front(family: list[Option]) -> list[Option]:
    fastest = min(option.time_ns for option in family)
    tied = [option for option in family if option.time_ns <= fastest * (1 + TIE)]
    front = [min(tied, key=lambda option: (option.comm_bytes, option.time_ns, option.config))]
    for option in sorted(family, key=lambda option: (option.time_ns, option.config)):
        if all(option.kept_bytes < kept.kept_bytes or option.live_bytes < kept.live_bytes for kept in front):
            front.append(option)
    return front


def place_anchors(problem: Problem, groups: Sequence[AnchorGroup]) -> tuple[list[Assignment], str]:
    """Place all members of the groups; returns assignments and the solver's status.

    Memory rows slow the solver down and seldom bind, so they join only where the plan without them does not fit: a
    relaxation's optimum that is feasible is optimal. Raises :class:`InfeasibleError` when memory allows no placement,
    :class:`TimeLimitError` when the deterministic limit ends before any is found.
    """
    assignments, status = _two_solves(problem, groups, with_memory=False)
    if fits_in_memory(problem, assignments):
        return assignments, status
    return _two_solves(problem, groups, with_memory=True)


def _two_solves(problem: Problem, groups: Sequence[AnchorGroup], *, with_memory: bool) -> tuple[list[Assignment], str]:
    unit = time_unit(problem, groups, TIME_UNITS)
    model = cp_model.CpModel()
    choices = add_choices(model, problem, groups)
    makespan = model.new_int_var(*makespan_range(groups, unit), "makespan")
    for load in rank_loads(choices, problem.cluster.num_ranks, unit):
        model.add(load <= makespan)
    if with_memory:
        limit_memory(model, problem, choices)
    model.minimize(makespan)
    first, status = _solve(model)
    model.add(makespan <= first.value(makespan) * (1000 + EPSILON_PER_MILLE) // 1000)
    hinted = {v.index: v for choice in choices for v in (choice.used, *choice.on_rank.values())}
    for variable in (*hinted.values(), makespan):
        model.add_hint(variable, first.value(variable))
    model.minimize(cp_model.LinearExpr.sum([choice.used for choice in choices if choice.option.config.is_split]))
    second, second_status = _solve(model)
    optimal = status == second_status == cp_model.OPTIMAL
    return decode_counts(second.value, groups, choices), "optimal" if optimal else "feasible"


def _solve(model: cp_model.CpModel) -> tuple[cp_model.CpSolver, object]:
    solver = make_solver(DETERMINISTIC_LIMIT, linearization=2)
    status = solve(solver, model)
    if status == cp_model.INFEASIBLE:
        raise InfeasibleError(
            "memory allows no placement of the long sequences",
            fix="more ranks, --sharding zero3, or fewer long sequences a step",
        )
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        raise TimeLimitError(
            "CP-SAT found no placement of the long sequences within its limit, nor a proof that there is none",
            fix="--policy zellige, which searches without a solver; fewer long sequences a step, or more ranks",
        )
    return solver, status
