"""The joint reference: one integer programme over all sequences (arXiv 2608.01150, Eq. 1), in two formulations.

``joint`` counts interchangeable sequences (:mod:`zellige.plan.counts`); ``joint-naive`` has one binary for every
sequence, option and rank set. Both see the same options and the same rank sets (evenly spread over aligned nodes), so
they have the same optimum. Neither is meant for a training loop: they say how good other plans are.

The engine's prices are additive except for packed groups, whose shared calls the objective charges to every sequence.
A bound under such an engine comes from a second solve that charges none (``floor_ns``).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, product

import msgspec
from ortools.sat.python import cp_model

from zellige.errors import InfeasibleError, TimeLimitError
from zellige.placement import Option, Placement, Plan, Problem, Solver, make_plan, require_placeable
from zellige.plan.bounds import best_bound
from zellige.plan.counts import (
    AnchorGroup,
    Assignment,
    Choice,
    add_choices,
    decode_counts,
    domains,
    fits_in_memory,
    limit_memory,
    makespan_range,
    rank_loads,
    time_unit,
)
from zellige.plan.cp_sat import make_solver, solve
from zellige.plan.room import without_plan
from zellige.plan.two_stage import plan_zellige_paper
from zellige.units import MIB, ceil_div, format_percent, format_time

TIME_UNITS = 10_000_000
"""Solver time units in the makespan. The bound gives back one unit a sequence, so 500 sequences cost it 0.005 %."""

MAX_RANK_SETS = 256
"""Where an option has more rank sets on a domain, the naive formulation takes the aligned blocks only."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """When a solve ends: CP-SAT's deterministic time (about seconds), or a relative gap to its own bound."""

    deterministic: float = 10.0
    relative_gap: float = 1e-4


DEFAULT_LIMITS = Limits()


@dataclasses.dataclass(frozen=True)
class Posed:
    """A model that minimises ``makespan`` (in units), and how to read ranks from its solution."""

    model: cp_model.CpModel
    makespan: cp_model.IntVar
    decode: Callable[[Callable[[cp_model.IntVar], int]], list[Assignment]]


Pose = Callable[[Problem, Sequence[AnchorGroup], int, bool], Posed]


@dataclasses.dataclass(frozen=True)
class JointSolution:
    """Assignments (None where the limit came first), the objective, and a bound on it for the rank sets considered.

    Under the group engine the objective charges every sequence its own calls, and the bound is on that objective.
    """

    assignments: list[Assignment] | None
    objective_ns: int
    bound_ns: int
    status: str


def plan_joint(problem: Problem) -> Plan:
    """Eq. 1 by counts, started from the two-stage plan where there is one; never worse than that plan.

    Raises :class:`InfeasibleError` and its kinds when memory allows no plan, :class:`TimeLimitError` when the limit
    ends before one is found.
    """
    require_placeable(problem)
    try:
        start: Plan | None = plan_zellige_paper(problem)
    except (InfeasibleError, TimeLimitError):
        start = None
    hint = start.placements if start else ()
    solution = solve_joint(problem, start=hint)
    certificate = joint_bound(problem, solution, start=hint)
    plan = _plan(problem, "joint", "cp-sat, counts", solution, certificate) if solution.assignments else None
    if start is not None and (plan is None or start.makespan_ns < plan.makespan_ns):
        solver = Solver(name="cp-sat, counts", status="two-stage plan kept")
        return make_plan(problem, "joint", start.placements, bound=certificate, solver=solver, notes=start.notes)
    if plan is None:
        raise _out_of_time("joint")
    return plan


def plan_joint_naive(problem: Problem) -> Plan:
    """Eq. 1 with one binary for every sequence, option and rank set, without a start.

    Raises as :func:`plan_joint`; on batches of some hundred sequences the limit often comes first.
    """
    require_placeable(problem)
    solution = solve_joint(problem, pose_binaries)
    if solution.assignments is None:
        raise _out_of_time("joint-naive")
    return _plan(problem, "joint-naive", "cp-sat, binaries", solution, best_bound(problem))


def solve_joint(
    problem: Problem, pose: Pose | None = None, *, limits: Limits = DEFAULT_LIMITS, start: Sequence[Placement] = ()
) -> JointSolution:
    """Minimise the makespan over all sequences; counts where no other formulation is given.

    Memory rows join only where the plan without them does not fit: a relaxation's optimum that fits is optimal, and its
    bound holds in any case. ``start`` hints at a solution of the counts.
    """
    relaxed = _solve(problem, pose or _pose_counts_from(start), limits, with_memory=False)
    if relaxed.assignments is None or fits_in_memory(problem, relaxed.assignments):
        return relaxed
    limited = _solve(problem, pose or _pose_counts_from(start), limits, with_memory=True)
    return dataclasses.replace(limited, bound_ns=max(limited.bound_ns, relaxed.bound_ns))


def joint_bound(
    problem: Problem, solution: JointSolution, *, limits: Limits = DEFAULT_LIMITS, start: Sequence[Placement] = ()
) -> tuple[int, str]:
    """The larger of the closed-form bound and the joint one.

    The joint one holds for any rank sets on a single node only: on several, sets spread unevenly are not considered.
    """
    known = best_bound(problem)
    if problem.cluster.num_nodes > 1:
        return known
    bound = solution.bound_ns
    if any(option.floor_ns < option.time_ns for name in _names(problem) for option in problem.options[name]):
        bound = _solve(_without_calls(problem), _pose_counts_from(start), limits, with_memory=False).bound_ns
    return (bound, "joint CP-SAT") if bound > known[0] else known


def joint_options(problem: Problem, bucket: str, *, with_memory: bool) -> tuple[Option, ...]:
    """Options that no other one beats on every rank set: not more ranks a node, nor nodes, nor time (nor memory)."""

    def cost(option: Option) -> tuple[int, ...]:
        return (option.time_ns, option.kept_bytes, option.live_bytes) if with_memory else (option.time_ns,)

    def beats(a: Option, b: Option) -> bool:
        inside = b.num_nodes % a.num_nodes == 0 and a.config.degree * b.num_nodes <= b.config.degree * a.num_nodes
        return inside and all(x <= y for x, y in zip(cost(a), cost(b), strict=True))

    even = [o for o in problem.options[bucket] if o.config.degree % o.num_nodes == 0 and problem.fits_alone(o)]
    kept: list[Option] = []
    for option in sorted(even, key=lambda o: (o.config.degree, o.num_nodes, cost(o), o.comm_bytes, o.config)):
        if not any(beats(other, option) for other in kept):
            kept.append(option)
    return tuple(kept)


def _pose_counts_from(start: Sequence[Placement]) -> Pose:
    def pose(problem: Problem, groups: Sequence[AnchorGroup], unit: int, with_memory: bool) -> Posed:
        model = cp_model.CpModel()
        choices = add_choices(model, problem, groups)
        makespan = model.new_int_var(*makespan_range(groups, unit), "makespan")
        for load in rank_loads(choices, problem.cluster.num_ranks, unit):
            model.add(load <= makespan)
        if with_memory:
            limit_memory(model, problem, choices)
        _hint_counts(model, problem, groups, choices, start)
        return Posed(model, makespan, lambda value: decode_counts(value, groups, choices))

    return pose


def _hint_counts(
    model: cp_model.CpModel,
    problem: Problem,
    groups: Sequence[AnchorGroup],
    choices: Sequence[Choice],
    start: Sequence[Placement],
) -> None:
    """Hint the counts of a plan, matched by bucket, degree and domain. No bound goes with it: rounding up could make
    the plan itself exceed one."""
    if not start:
        return
    by_kind: dict[tuple[str, int, int, int], Choice] = {}
    for choice in choices:
        first = choice.ranks_by_node[0].start
        kind = (groups[choice.group].bucket, choice.option.config.degree, choice.option.num_nodes, first)
        by_kind.setdefault(kind, choice)
    variables = {v.index: v for choice in choices for v in (choice.used, *choice.on_rank.values())}
    values = dict.fromkeys(variables, 0)
    cluster = problem.cluster
    for placement in start:
        nodes = cluster.footprint(placement.ranks)
        first = min(placement.ranks) // (nodes * cluster.ranks_per_node) * nodes * cluster.ranks_per_node
        found = by_kind.get((placement.bucket, placement.config.degree, nodes, first))
        if found is not None and all(rank in found.on_rank for rank in placement.ranks):
            touched = {found.used.index, *(found.on_rank[rank].index for rank in placement.ranks)}
            for index in touched:
                values[index] += 1
    for index, variable in variables.items():
        model.add_hint(variable, values[index])


def pose_binaries(problem: Problem, groups: Sequence[AnchorGroup], unit: int, with_memory: bool) -> Posed:
    """One binary for every sequence, option and rank set."""
    model = cp_model.CpModel()
    binaries: list[tuple[Assignment, cp_model.IntVar]] = []
    for group in groups:
        ways = [Assignment(group.bucket, o, ranks) for o in group.options for ranks in rank_sets(problem, o)]
        for _ in range(group.count):
            own = [(way, model.new_bool_var("x")) for way in ways]
            model.add_exactly_one(variable for _, variable in own)
            binaries += own
    makespan = model.new_int_var(*makespan_range(groups, unit), "makespan")
    room = problem.memory.room_bytes // MIB
    for rank in range(problem.cluster.num_ranks):
        here = [(way.option, variable) for way, variable in binaries if rank in way.ranks]
        variables = [variable for _, variable in here]
        prices = [ceil_div(option.time_ns, unit) for option, _ in here]
        model.add(cp_model.LinearExpr.weighted_sum(variables, prices) <= makespan)
        if with_memory:
            live = model.new_int_var(0, room, "live")
            kept = [ceil_div(option.kept_bytes, MIB) for option, _ in here]
            model.add(cp_model.LinearExpr.weighted_sum(variables, kept) + live <= room)
            for option, variable in here:
                model.add(live >= ceil_div(option.live_bytes, MIB) * variable)
    return Posed(model, makespan, lambda value: [way for way, variable in binaries if value(variable)])


def rank_sets(problem: Problem, option: Option) -> Iterator[tuple[int, ...]]:
    """The rank sets of an option that spread evenly over aligned nodes; the aligned blocks where there are too many."""
    each = option.config.degree // option.num_nodes
    for by_node in domains(problem, option):
        size = len(by_node[0])
        if math.comb(size, each) ** len(by_node) <= MAX_RANK_SETS:
            for parts in product(*(combinations(ranks, each) for ranks in by_node)):
                yield tuple(rank for part in parts for rank in part)
            continue
        for offset in range(0, size - each + 1, each):
            yield tuple(rank for ranks in by_node for rank in ranks[offset : offset + each])


def _solve(problem: Problem, pose: Pose, limits: Limits, *, with_memory: bool) -> JointSolution:
    groups = _groups(problem, with_memory)
    unit = time_unit(problem, groups, TIME_UNITS)
    posed = pose(problem, groups, unit, with_memory)
    posed.model.minimize(posed.makespan)
    solver = make_solver(limits.deterministic, gap=limits.relative_gap)
    status = solve(solver, posed.model)
    if status == cp_model.INFEASIBLE:
        raise without_plan(
            problem,
            "memory allows no placement of the batch",
            "more ranks, --sharding zero3, or fewer sequences a step",
        )
    rounded_up = len(problem.batch.sequences) if unit > 1 else 0
    bound = max(1, (int(solver.best_objective_bound) - rounded_up) * unit)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return JointSolution(None, 0, bound, "none found")
    objective = int(solver.value(posed.makespan))
    proved = objective <= int(solver.best_objective_bound)
    ended = f"optimal within {limits.relative_gap:.0e}" if status == cp_model.OPTIMAL else "feasible"
    return JointSolution(posed.decode(solver.value), objective * unit, bound, "optimal" if proved else ended)


def _groups(problem: Problem, with_memory: bool) -> list[AnchorGroup]:
    groups = []
    for bucket, count in problem.counts.items():
        options = joint_options(problem, bucket.name, with_memory=with_memory)
        if not options:
            raise InfeasibleError(
                f"no split that spreads evenly over nodes fits {bucket.name}", fix="more ranks, or a shorter clip"
            )
        groups.append(AnchorGroup(bucket.name, count, options))
    return groups


def _names(problem: Problem) -> list[str]:
    return [bucket.name for bucket in problem.counts]


def _without_calls(problem: Problem) -> Problem:
    """The problem with every option at what remains of it where its calls are shared."""
    priced = dataclasses.replace(problem)
    floors = {
        name: tuple(msgspec.structs.replace(option, time_ns=option.floor_ns) for option in options)
        for name, options in problem.options.items()
    }
    vars(priced)["options"] = floors
    return priced


def _plan(problem: Problem, policy: str, solver: str, solution: JointSolution, certificate: tuple[int, str]) -> Plan:
    waiting: dict[str, list[str]] = {}
    for sequence in reversed(problem.batch.sequences):
        waiting.setdefault(sequence.bucket.name, []).append(sequence.id)
    placements = [
        Placement(
            sequence=waiting[chosen.bucket].pop(), bucket=chosen.bucket, config=chosen.option.config, ranks=chosen.ranks
        )
        for chosen in solution.assignments or []
    ]
    gap = solution.objective_ns / solution.bound_ns - 1
    note = f"objective {format_time(solution.objective_ns)}, proved bound on it {format_percent(gap)} lower"
    return make_plan(
        problem,
        policy,
        placements,
        bound=certificate,
        solver=Solver(name=solver, status=solution.status),
        notes=(note,),
    )


def _out_of_time(policy: str) -> TimeLimitError:
    return TimeLimitError(
        f"{policy}: CP-SAT found no plan within its limit",
        details=(f"deterministic limit {DEFAULT_LIMITS.deterministic:g}",),
        fix="zellige-paper, which plans in two stages",
    )
