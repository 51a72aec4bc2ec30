"""The best disjoint groups for a batch, by CP-SAT: groups inside a node, and groups of whole nodes.

Schemes that also cut a node for a group over several nodes (12 + 2 + 2 on two nodes of eight, as :mod:`fcp` may) are
outside of it, and can be faster.

Groups partition the ranks, every group has one configuration, and every sequence goes to one group and inherits it
(arXiv 2608.01150, section on disjoint-group placement). Sizes inside a node are all that partition it (powers of two
where a node has more than ``ALL_SIZES`` ranks); larger groups are aligned runs of 1, 2, 4 ... whole nodes. Sequences
are exact buckets, counted; groups of one size are interchangeable, and used in order.

The objective is the engine's own price: what remains of each sequence, and once per group its shared calls. The one set
of calls that all splits share under the coalesced engine is not in it; the plan's figures have it.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache

from ortools.sat.python import cp_model

from zellige.errors import TimeLimitError
from zellige.placement import Option, Placement, Plan, Problem, Solver, make_plan, rank_costs, require_placeable
from zellige.plan.bounds import best_bound, canonical_bound
from zellige.plan.cp_sat import make_solver, solve
from zellige.plan.room import without_plan
from zellige.shards import ParallelConfig
from zellige.units import MIB, ceil_div, format_time

ALL_SIZES = 16
"""Nodes of at most this many ranks may be cut into groups of any size."""

TIME_UNITS = 1_000_000
"""Solver time units in the lower bound on the makespan."""

DETERMINISTIC_LIMIT = 10.0
"""Deterministic time of the solve, in CP-SAT's own units (about seconds on a fast core)."""


@dataclasses.dataclass(frozen=True)
class Shape:
    """A size of group: ``size`` ranks over ``num_nodes`` nodes."""

    size: int
    num_nodes: int


@dataclasses.dataclass(frozen=True)
class Way:
    """A configuration that a group of some shape may have: its bucket's options, and its calls once per group."""

    config: ParallelConfig
    options: dict[str, Option]
    calls_ns: int


@dataclasses.dataclass(frozen=True)
class _Group:
    """One possible group: whether it is used, which way it has, and its sequences of each bucket under each way."""

    shape: Shape
    used: cp_model.IntVar
    ways: list[tuple[Way, cp_model.IntVar]]
    counts: dict[tuple[str, ParallelConfig], cp_model.IntVar]


@dataclasses.dataclass(frozen=True)
class _Tiling:
    """How many nodes are cut by each pattern of sizes, and how many groups of each shape of whole nodes there are."""

    patterns: dict[tuple[int, ...], cp_model.IntVar]
    groups: list[_Group]


@dataclasses.dataclass(frozen=True)
class _Grouping:
    """A solution: its plan, what was proved, and the solver's values, from which a solve with memory rows starts."""

    placements: list[Placement]
    status: str
    label: str
    bound_ns: int
    bound_units: int
    values: Sequence[int]


def plan_disjoint(problem: Problem) -> Plan:
    """The least makespan of any disjoint grouping that fits in memory; proved unless the limit comes first.

    Raises :class:`NoRoomError` where memory allows no grouping, :class:`TimeLimitError` where none was found.
    """
    require_placeable(problem)
    grouping = _solve(problem)
    if max(rank_costs(problem, grouping.placements).memory_bytes) > problem.memory.usable_bytes:
        grouping = _solve(problem, relaxed=grouping)
    solver = Solver(name="cp-sat, groups", status=grouping.status)
    notes = (grouping.label, f"no disjoint groups take less than {format_time(grouping.bound_ns)}")
    return make_plan(problem, "disjoint", grouping.placements, bound=best_bound(problem), solver=solver, notes=notes)


def node_sizes(ranks_per_node: int) -> tuple[int, ...]:
    """Sizes of groups smaller than a node, or as large: all, or the powers of two that divide it."""
    if ranks_per_node <= ALL_SIZES:
        return tuple(range(1, ranks_per_node + 1))
    powers = [1 << power for power in range(ranks_per_node.bit_length()) if ranks_per_node % (1 << power) == 0]
    return tuple(dict.fromkeys([*powers, ranks_per_node]))


@cache
def patterns(total: int, sizes: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The multisets of sizes, largest first, that sum to ``total``."""
    if total == 0:
        return ((),)
    found = []
    for size in sorted(sizes, reverse=True):
        if size <= total:
            smaller = tuple(other for other in sizes if other <= size)
            found += [(size, *rest) for rest in patterns(total - size, smaller)]
    return tuple(found)


def ways_of(problem: Problem, shape: Shape) -> list[Way]:
    """The configurations for a shape that no other beats on every bucket of the batch."""
    names = [bucket.name for bucket in problem.counts]
    configs = sorted({o.config for o in problem.options[names[0]] if o.config.degree == shape.size})
    ways: list[Way] = []
    for config in configs:
        found = {name: problem.option(name, config, shape.num_nodes) for name in names}
        options = {name: option for name, option in found.items() if option is not None and problem.fits_alone(option)}
        packs = problem.engine == "group" and config.is_split and config.degree == config.h
        calls = problem.shared_calls_ns(config.degree, shape.num_nodes, 1) if packs else 0
        ways.append(Way(config, options, calls))
    kept: list[Way] = []
    for way in sorted(ways, key=lambda way: (-len(way.options), sum(o.floor_ns for o in way.options.values()))):
        if way.options and not any(_beats(other, way) for other in kept):
            kept.append(way)
    return kept


def _beats(a: Way, b: Way) -> bool:
    def no_worse(x: Option, y: Option) -> bool:
        return x.floor_ns <= y.floor_ns and x.kept_bytes <= y.kept_bytes and x.live_bytes <= y.live_bytes

    covered = all(name in a.options and no_worse(a.options[name], option) for name, option in b.options.items())
    return covered and a.calls_ns <= b.calls_ns


def _solve(problem: Problem, relaxed: _Grouping | None = None) -> _Grouping:
    """Solve without memory rows, or with them from the solution without (whose bound holds here too)."""
    unit = max(1, canonical_bound(problem) // TIME_UNITS)
    model = cp_model.CpModel()
    tiling = _tile(model, problem)
    for bucket, count in problem.counts.items():
        model.add(sum(v for g in tiling.groups for (name, _), v in g.counts.items() if name == bucket.name) == count)
    makespan = _makespan(model, problem, tiling.groups, unit)
    if relaxed is not None:
        model.add(makespan >= relaxed.bound_units)
        for index, value in enumerate(relaxed.values):
            model.add_hint(model.get_int_var_from_proto_index(index), value)
        for group in tiling.groups:
            _limit_memory(model, problem, group)
    model.minimize(makespan)
    return _run(problem, model, tiling, unit)


def _run(problem: Problem, model: cp_model.CpModel, tiling: _Tiling, unit: int) -> _Grouping:
    solver = make_solver(DETERMINISTIC_LIMIT, linearization=2)
    status = solve(solver, model)
    if status == cp_model.INFEASIBLE:
        raise without_plan(
            problem, "memory allows no disjoint groups for this batch", "a policy that splits one by one"
        )
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        raise TimeLimitError("disjoint: CP-SAT found no grouping within its limit", fix="static, which needs no solver")
    placements, label = _decode(solver, problem, tiling)
    bound = int(solver.best_objective_bound)
    rounded_up = len(placements) + 1 if unit > 1 else 0
    return _Grouping(
        placements=placements,
        status="optimal" if status == cp_model.OPTIMAL else "feasible",
        label=label,
        bound_ns=(bound - rounded_up) * unit,
        bound_units=bound,
        values=tuple(solver.response_proto.solution),
    )


def _tile(model: cp_model.CpModel, problem: Problem) -> _Tiling:
    """Groups that may be used, and the constraint that used groups fill every node exactly."""
    cluster = problem.cluster
    cuts = {
        pattern: model.new_int_var(0, cluster.num_nodes, "nodes")
        for pattern in patterns(cluster.ranks_per_node, node_sizes(cluster.ranks_per_node))
    }
    groups: list[_Group] = []
    for size in node_sizes(cluster.ranks_per_node):
        most = cluster.ranks_per_node // size * cluster.num_nodes
        own = _groups(model, problem, Shape(size, 1), most)
        model.add(sum(g.used for g in own) == sum(pattern.count(size) * cut for pattern, cut in cuts.items()))
        groups += own
    covered: list[cp_model.LinearExprT] = list(cuts.values())
    nodes = 2
    while nodes <= cluster.num_nodes:
        shape = Shape(nodes * cluster.ranks_per_node, nodes)
        wide = _groups(model, problem, shape, cluster.num_nodes // nodes)
        covered += [nodes * group.used for group in wide]
        groups += wide
        nodes *= 2
    model.add(cp_model.LinearExpr.sum(covered) == cluster.num_nodes)
    return _Tiling(cuts, groups)


def _groups(model: cp_model.CpModel, problem: Problem, shape: Shape, most: int) -> list[_Group]:
    """Up to ``most`` groups of a shape; interchangeable, so the first ones are used first."""
    ways = ways_of(problem, shape)
    sizes = {bucket.name: count for bucket, count in problem.counts.items()}
    groups: list[_Group] = []
    for _ in range(most if ways else 0):
        used = model.new_bool_var("used")
        chosen = [(way, model.new_bool_var("way")) for way in ways]
        model.add(sum(flag for _, flag in chosen) == used)
        counts = {}
        for way, flag in chosen:
            for name in way.options:
                counts[name, way.config] = model.new_int_var(0, sizes[name], "x")
                model.add(counts[name, way.config] <= sizes[name] * flag)
        if groups:
            model.add_implication(used, groups[-1].used)
        groups.append(_Group(shape, used, chosen, counts))
    return groups


def _makespan(model: cp_model.CpModel, problem: Problem, groups: Sequence[_Group], unit: int) -> cp_model.IntVar:
    top = sum(
        count * max(ceil_div(o.floor_ns, unit) for o in problem.options[bucket.name])
        for bucket, count in problem.counts.items()
    )
    calls = max((ceil_div(way.calls_ns, unit) for group in groups for way, _ in group.ways), default=0)
    makespan = model.new_int_var(0, top + calls, "makespan")
    for group in groups:
        terms: list[cp_model.LinearExprT] = []
        for way, flag in group.ways:
            terms.append(ceil_div(way.calls_ns, unit) * flag)
            for name, option in way.options.items():
                terms.append(ceil_div(option.floor_ns, unit) * group.counts[name, way.config])
        model.add(cp_model.LinearExpr.sum(terms) <= makespan)
    return makespan


def _limit_memory(model: cp_model.CpModel, problem: Problem, group: _Group) -> None:
    """Kept bytes add up over a group's sequences, and the largest live segment is reserved once."""
    room = problem.memory.room_bytes // MIB
    live = model.new_int_var(0, room, "live")
    kept: list[cp_model.LinearExprT] = [live]
    for way, _ in group.ways:
        for name, option in way.options.items():
            count = group.counts[name, way.config]
            kept.append(ceil_div(option.kept_bytes, MIB) * count)
            present = model.new_bool_var("present")
            model.add(count == 0).only_enforce_if(present.negated())
            model.add(live >= ceil_div(option.live_bytes, MIB)).only_enforce_if(present)
    model.add(cp_model.LinearExpr.sum(kept) <= room)


def _decode(solver: cp_model.CpSolver, problem: Problem, tiling: _Tiling) -> tuple[list[Placement], str]:
    waiting: dict[str, list[str]] = {bucket.name: [] for bucket in problem.counts}
    for sequence in reversed(problem.batch.sequences):
        waiting[sequence.bucket.name].append(sequence.id)
    placements = []
    for ranks, group in _laid_out(solver, problem, tiling):
        for (name, config), count in group.counts.items():
            for _ in range(solver.value(count)):
                placements.append(Placement(sequence=waiting[name].pop(), bucket=name, config=config, ranks=ranks))
    sizes = Counter(group.shape.size for group in tiling.groups if solver.value(group.used))
    label = "groups " + " + ".join(f"{count} x {size}" for size, count in sorted(sizes.items(), reverse=True))
    return placements, label


def _laid_out(solver: cp_model.CpSolver, problem: Problem, tiling: _Tiling) -> Iterator[tuple[tuple[int, ...], _Group]]:
    """Used groups with their ranks: those of several nodes first, the largest first, so that all are aligned."""
    used = [group for group in tiling.groups if solver.value(group.used)]
    start = 0
    for group in sorted(used, key=lambda group: -group.shape.num_nodes):
        if group.shape.num_nodes > 1:
            yield tuple(range(start, start + group.shape.size)), group
            start += group.shape.size
    left = {size: [g for g in used if g.shape == Shape(size, 1)] for size in node_sizes(problem.cluster.ranks_per_node)}
    for pattern, nodes in tiling.patterns.items():
        for _ in range(solver.value(nodes)):
            for size in pattern:
                yield tuple(range(start, start + size)), left[size].pop(0)
                start += size
