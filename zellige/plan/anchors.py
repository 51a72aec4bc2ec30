"""Anchor placement by CP-SAT: least makespan, then fewest splits within (1 + eps) of it (arXiv 2608.01150, Eqs. 6, 7).

The exact compact formulation. Sequences of one bucket are interchangeable, so integers count them: ``z[option,
domain]`` members use an option on a domain (an aligned run of nodes as wide as the option's footprint). Inside a
node every subset of the right size is legal at one price, so rank sets need no variables either: ``eta[rank]``
counts the members on a rank, with ``0 <= eta <= z`` and ``sum over the node's ranks = (degree / nodes) * z``. By
Gale and Ryser such counts always decompose into z sets of distinct ranks; :func:`deal` does it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ortools.sat.python import cp_model

from zellige.errors import InfeasibleError, TimeLimitError
from zellige.placement import Option, Problem
from zellige.units import ceil_div

EPSILON = 1e-3
"""Slack on the makespan in the second solve."""

TIME_UNITS = 1_000_000
"""Solver time units in the lower bound on the makespan: rounding then costs at most a few parts per million."""

TIE = 5e-3
"""Relative difference of prices that counts as none: analytic prices, and the published profiles (3.4 % error), tell no
finer, and fewer bytes are then the safer choice. It costs at most this much of the makespan."""

DETERMINISTIC_LIMIT = 4.0
"""Deterministic time of each solve, in CP-SAT's own units (about seconds on a fast core)."""


@dataclass(frozen=True)
class AnchorGroup:
    """``count`` interchangeable sequences and their options."""

    bucket: str
    count: int
    options: tuple[Option, ...]


@dataclass(frozen=True)
class Assignment:
    """``ranks`` of one member of a group, under an option."""

    bucket: str
    option: Option
    ranks: tuple[int, ...]


@dataclass
class _Choice:
    group: int
    option: Option
    ranks_by_node: list[range]
    used: cp_model.IntVar
    on_rank: dict[int, cp_model.IntVar] = field(default_factory=dict)


def candidate_options(problem: Problem, bucket: str) -> tuple[Option, ...]:
    """Options of power-of-two degree that fit alone, the front of each degree and footprint.

    Times within ``TIE`` of the fastest count as equal: among them the one that moves the fewest bytes leads, and others
    stay only where they need less memory.
    """
    families: dict[tuple[int, int], list[Option]] = {}
    for option in problem.options[bucket]:
        degree = option.config.degree
        if degree & (degree - 1) == 0 and degree % option.num_nodes == 0 and problem.fits_alone(option):
            families.setdefault((degree, option.num_nodes), []).append(option)
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
    if _fits(problem, assignments):
        return assignments, status
    return _two_solves(problem, groups, with_memory=True)


def _two_solves(problem: Problem, groups: Sequence[AnchorGroup], *, with_memory: bool) -> tuple[list[Assignment], str]:
    unit = _time_unit(problem, groups)
    model = cp_model.CpModel()
    choices = _choices(model, problem, groups)
    loads = _rank_loads(choices, problem.cluster.num_ranks, unit)
    worst = sum(group.count * max(ceil_div(o.time_ns, unit) for o in group.options) for group in groups)
    floor = max(min(ceil_div(o.time_ns, unit) for o in group.options) for group in groups)
    makespan = model.new_int_var(floor, worst, "makespan")
    for load in loads:
        model.add(load <= makespan)
    if with_memory:
        _limit_memory(model, problem, choices)
    model.minimize(makespan)
    first, status = _solve(model)
    model.add(makespan <= int(first.value(makespan) * (1 + EPSILON)))
    hinted = {v.index: v for choice in choices for v in (choice.used, *choice.on_rank.values())}
    for variable in (*hinted.values(), makespan):
        model.add_hint(variable, first.value(variable))
    model.minimize(cp_model.LinearExpr.sum([choice.used for choice in choices if choice.option.config.is_split]))
    second, second_status = _solve(model)
    optimal = status == second_status == cp_model.OPTIMAL
    return _decode(second, groups, choices), "optimal" if optimal else "feasible"


def _fits(problem: Problem, assignments: Sequence[Assignment]) -> bool:
    kept, live = [0] * problem.cluster.num_ranks, [0] * problem.cluster.num_ranks
    for chosen in assignments:
        for rank in chosen.ranks:
            kept[rank] += chosen.option.kept_bytes
            live[rank] = max(live[rank], chosen.option.live_bytes)
    return all(a + b <= problem.memory.room_bytes for a, b in zip(kept, live, strict=True))


def deal(counts: Sequence[tuple[int, int]], members: int) -> list[list[int]]:
    """Decompose per-rank counts into ``members`` sets of distinct ranks of equal size.

    ``counts`` holds (rank, how many members use it), each at most ``members``, summing to a multiple of it. Ranks are
    written out one after another, fullest first, and dealt round: copies of a rank are neighbours and at most
    ``members``, so no member gets one twice.
    """
    line = [rank for rank, count in sorted(counts, key=lambda item: (-item[1], item[0])) for _ in range(count)]
    if any(count > members for _, count in counts) or (members and len(line) % members):
        raise ValueError("counts do not decompose into sets of distinct ranks")
    return [sorted(line[member::members]) for member in range(members)]


def _time_unit(problem: Problem, groups: Sequence[AnchorGroup]) -> int:
    work = sum(group.count * min(o.time_ns * o.config.degree for o in group.options) for group in groups)
    longest = max(min(o.time_ns for o in group.options) for group in groups)
    return max(1, max(work // problem.cluster.num_ranks, longest) // TIME_UNITS)


def _choices(model: cp_model.CpModel, problem: Problem, groups: Sequence[AnchorGroup]) -> list[_Choice]:
    cluster = problem.cluster
    choices = []
    for index, group in enumerate(groups):
        uses = []
        for option in group.options:
            for first_node in range(0, cluster.num_nodes - option.num_nodes + 1, option.num_nodes):
                nodes = range(first_node, first_node + option.num_nodes)
                by_node = [range(n * cluster.ranks_per_node, (n + 1) * cluster.ranks_per_node) for n in nodes]
                used = model.new_int_var(0, group.count, "z")
                choice = _Choice(index, option, by_node, used)
                _spread_over_ranks(model, choice, group.count)
                uses.append(used)
                choices.append(choice)
        model.add(sum(uses) == group.count)
    return choices


def _spread_over_ranks(model: cp_model.CpModel, choice: _Choice, count: int) -> None:
    per_node = choice.option.config.degree // choice.option.num_nodes
    for ranks in choice.ranks_by_node:
        for rank in ranks:
            if per_node == len(ranks):
                choice.on_rank[rank] = choice.used
                continue
            choice.on_rank[rank] = model.new_int_var(0, count, "eta")
            model.add(choice.on_rank[rank] <= choice.used)
        if per_node < len(ranks):
            model.add(sum(choice.on_rank[rank] for rank in ranks) == per_node * choice.used)


def _rank_loads(choices: Sequence[_Choice], num_ranks: int, unit: int) -> list[cp_model.LinearExprT]:
    terms: list[list[cp_model.LinearExprT]] = [[] for _ in range(num_ranks)]
    for choice in choices:
        price = ceil_div(choice.option.time_ns, unit)
        for rank, variable in choice.on_rank.items():
            terms[rank].append(price * variable)
    return [cp_model.LinearExpr.sum(here) for here in terms]


def _limit_memory(model: cp_model.CpModel, problem: Problem, choices: Sequence[_Choice]) -> None:
    """Per rank: kept bytes add up, and the largest live segment is reserved once. Units lose at most 1 MiB a term."""
    unit = 2**20
    room = problem.memory.room_bytes // unit
    largest_live = max(ceil_div(choice.option.live_bytes, unit) for choice in choices)
    for rank in range(problem.cluster.num_ranks):
        here = [choice for choice in choices if rank in choice.on_rank]
        kept = sum(ceil_div(choice.option.kept_bytes, unit) * choice.on_rank[rank] for choice in here)
        live = model.new_int_var(0, largest_live, "live")
        model.add(kept + live <= room)
        for choice in here:
            if choice.option.live_bytes:
                present = model.new_bool_var("present")
                model.add(choice.on_rank[rank] == 0).only_enforce_if(present.negated())
                model.add(live >= ceil_div(choice.option.live_bytes, unit)).only_enforce_if(present)


def _solve(model: cp_model.CpModel) -> tuple[cp_model.CpSolver, object]:
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.linearization_level = 2
    solver.parameters.max_deterministic_time = DETERMINISTIC_LIMIT
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        raise InfeasibleError(
            "memory allows no placement of the long sequences",
            fix="more ranks, --sharding zero3, or fewer long sequences a step",
        )
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        raise TimeLimitError(
            f"CP-SAT found no placement of the long sequences within its limit ({solver.status_name(status)})",
            fix="a policy without a solver, as static or knapformer",
        )
    return solver, status


def _decode(solver: cp_model.CpSolver, groups: Sequence[AnchorGroup], choices: Sequence[_Choice]) -> list[Assignment]:
    assignments = []
    for choice in choices:
        members = solver.value(choice.used)
        if not members:
            continue
        parts: list[list[int]] = [[] for _ in range(members)]
        for ranks in choice.ranks_by_node:
            hands = deal([(rank, solver.value(choice.on_rank[rank])) for rank in ranks], members)
            for part, hand in zip(parts, hands, strict=True):
                part.extend(hand)
        bucket = groups[choice.group].bucket
        assignments += [Assignment(bucket, choice.option, tuple(part)) for part in parts]
    return assignments
