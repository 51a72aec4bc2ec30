"""Whether plans exist, by prices, as near the bound as was hoped for, and what such plans take when simulated.

    python benchmarks/planner_witness.py [--suite NAME ...] [--seed N] [--only TEXT] [--certified 0.009]
        [--blocks 0.005] [--limit 40] [--improve SECONDS] [--workers 1]

For every batch whose certified gap or gap within aligned blocks is above the given ones, CP-SAT looks for a plan on
any rank sets that is near enough to the bound to meet both, for each number of ring rounds. It counts shards by rank,
not rank sets: so many sequences of a bucket on so many ranks of a node, or of several; any ranks that each hold no
more shards than there are sequences can be dealt to them (McNaughton's wrap-around). Times are the planner's own,
rounded up; rank sets may lie unevenly on nodes, which the planner does not try; of memory it sees
what sequences keep until backward, not the layer being run. A plan that is found is made and simulated beside the
planner's. ``--limit``: CP-SAT's deterministic time for each number of rounds.

``--improve``: instead, CP-SAT starts from the planner's plan and shortens it for so many seconds, within its number of
ring rounds; every better makespan is printed as a gap to the plan's bound, with CP-SAT's own bound.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from typing import NamedTuple

from ortools.sat.python import cp_model
from planner import simulated_step
from planner_limits import asked, missed

from zellige.placement import Placement, Plan, Problem, make_plan
from zellige.plan.chain import calls_ns
from zellige.plan.cp_sat import make_solver, solve
from zellige.problem import Option
from zellige.spreads import most_rounds

UNITS = 200_000
"""A makespan in CP-SAT's units of time."""


class Way(NamedTuple):
    """A number of sequences under an option, and the shards of these on each of some ranks."""

    bucket: str
    option: Option
    sequences: cp_model.IntVar
    ranks: range
    shards: list[cp_model.IntVar]


def main() -> None:
    parser = asked(__doc__)
    parser.add_argument("--limit", type=float, default=40)
    parser.add_argument("--improve", type=float, default=0, help="seconds in which CP-SAT shortens the plan")
    parser.add_argument("--workers", type=int, default=1, help="threads of CP-SAT while it does")
    told = parser.parse_args()
    for suite, name, problem, plan in missed(told):
        if told.improve:
            print(f"{suite} {name:18} {plan.makespan_ns / plan.bound_ns - 1:.2%}", flush=True)
            improve(problem, plan, told.improve, told.workers)
            continue
        within = plan.blocks_bound_ns or plan.bound_ns
        wanted = min(int(plan.bound_ns * (1 + told.certified)), int(within * (1 + told.blocks)))
        report(suite, name, problem, plan, wanted, told.limit)


def report(suite: str, name: str, problem: Problem, plan: Plan, wanted: int, limit: float) -> None:
    """Print what is found for each number of ring rounds."""
    step = simulated_step(plan, problem).report.step_time_ns
    text = f"{suite} {name:18} wanted {wanted / plan.makespan_ns - 1:+6.2%} (the plan simulated: {step / 1e9:.3f} s)"
    print(text, flush=True)
    for kind in problem.kinds:
        most = most_rounds(kind.fewest)
        status, found = search(problem, most, wanted - calls_ns(problem, most), limit)
        if found is None:
            print(f"    up to {most} ring rounds: {status}", flush=True)
            continue
        other = make_plan(problem, "zellige", found, bound=(plan.bound_ns, plan.bound), solver=plan.solver)
        simulated = simulated_step(other, problem).report.step_time_ns
        uneven = sum(is_uneven(problem, placement) for placement in found)
        print(
            f"    up to {most} ring rounds: a plan {other.makespan_ns / plan.makespan_ns - 1:+6.2%} by prices,"
            f" {simulated / step - 1:+6.2%} simulated; {uneven} sequences unevenly on nodes",
            flush=True,
        )


def is_uneven(problem: Problem, placement: Placement) -> bool:
    """Whether a rank set has more ranks on one of its nodes than on another."""
    parts: dict[int, int] = defaultdict(int)
    for rank in placement.ranks:
        parts[rank // problem.cluster.ranks_per_node] += 1
    return len(set(parts.values())) > 1


def search(problem: Problem, most: int, target: int, limit: float) -> tuple[str, tuple[Placement, ...] | None]:
    """A plan whose slowest rank takes no more than the target without shared calls, or the solver's verdict."""
    model, unit = cp_model.CpModel(), max(1, target // UNITS)
    ways, loads = posed(model, problem, most, target, unit)
    for rank in loads:
        model.add(sum(loads[rank]) <= target // unit)
    solver = make_solver(limit)
    status = solver.status_name(solve(solver, model))
    if status not in ("OPTIMAL", "FEASIBLE"):
        return {"INFEASIBLE": "none exists", "UNKNOWN": "none found within the limit"}[status], None
    return status, dealt(problem, ways, solver)


Loads = dict[int, list[cp_model.LinearExprT]]


def posed(model: cp_model.CpModel, problem: Problem, most: int, target: int, unit: int) -> tuple[list[Way], Loads]:
    """All ways of all sequences, each once and no rank above its room, and by rank what it has to do in units."""
    ways: list[Way] = []
    for bucket, number in problem.numbers.items():
        mine = ways_of_bucket(model, problem, bucket, number, most, target)
        model.add(sum(way.sequences for way in mine) == number)
        ways += mine
    room = problem.memory.room_bytes
    byte = max(1, room // UNITS)
    loads: Loads = defaultdict(list)
    kept: Loads = defaultdict(list)
    for way in ways:
        for rank, shards in zip(way.ranks, way.shards, strict=True):
            loads[rank].append(-(-way.option.time_ns // unit) * shards)
            kept[rank].append(way.option.kept_bytes // byte * shards)
    for rank in kept:
        model.add(sum(kept[rank]) <= -(-room // byte))
    return ways, loads


def improve(problem: Problem, plan: Plan, seconds: float, workers: int) -> None:
    """Print every better makespan that CP-SAT comes to from a plan; rank sets are not dealt, so it may be too low where
    sequences lie on several nodes."""
    most = max((each.config.k for each in plan.placements if each.config.degree > 1), default=0)
    calls, model = calls_ns(problem, most), cp_model.CpModel()
    target = plan.makespan_ns - calls
    unit = max(1, target // UNITS)
    ways, loads = posed(model, problem, most, target, unit)
    longest = model.new_int_var(0, target // unit + len(problem.batch.sequences), "")
    for rank in loads:
        model.add(sum(loads[rank]) <= longest)
    model.minimize(longest)
    _hint(model, problem, plan, ways)
    solver = make_solver(float("inf"))
    solver.parameters.num_workers, solver.parameters.max_time_in_seconds = workers, seconds
    solve(solver, model, _Told(unit, calls, plan.bound_ns))


def _hint(model: cp_model.CpModel, problem: Problem, plan: Plan, ways: list[Way]) -> None:
    """Tell the solver where the plan has its sequences."""
    per_node = problem.cluster.ranks_per_node
    shards: Counter[tuple[str, int, int, int]] = Counter()
    sequences: Counter[tuple[str, int, int, int]] = Counter()
    for each in plan.placements:
        nodes = {rank // per_node for rank in each.ranks}
        key = each.bucket, each.config.degree, len(nodes)
        sequences[*key, min(nodes) if each.config.degree > 1 and len(nodes) == 1 else -1] += 1
        for rank in each.ranks:
            shards[*key, rank] += 1
    for way in ways:
        key = way.bucket, way.option.config.degree, way.option.num_nodes
        node = way.ranks[0] // per_node if way.option.config.degree > 1 and way.option.num_nodes == 1 else -1
        model.add_hint(way.sequences, sequences[*key, node])
        for rank, variable in zip(way.ranks, way.shards, strict=True):
            model.add_hint(variable, shards[*key, rank])


class _Told(cp_model.CpSolverSolutionCallback):
    """Prints solutions as gaps to a bound."""

    def __init__(self, unit: int, calls: int, bound: int) -> None:
        super().__init__()
        self.unit, self.calls, self.bound, self.began = unit, calls, bound, time.monotonic()

    def on_solution_callback(self) -> None:
        reached, proved = (
            (value * self.unit + self.calls) / self.bound - 1
            for value in (self.objective_value, self.best_objective_bound)
        )
        print(f"    {time.monotonic() - self.began:5.0f} s: {reached:.2%}, no less than {proved:.2%}", flush=True)


def ways_of_bucket(
    model: cp_model.CpModel, problem: Problem, bucket: str, number: int, most: int, target: int
) -> list[Way]:
    """Every way that sequences of a bucket may run within the target: of a degree the fastest option on one node, on
    each node; and on all nodes."""
    cluster = problem.cluster
    fastest: dict[tuple[int, int], Option] = {}
    for option in problem.priced[bucket]:
        degree, nodes = option.config.degree, option.num_nodes
        if (degree > 1 and option.config.k > most) or option.time_ns > target or not problem.fits_alone(option):
            continue
        if nodes not in (1, cluster.num_nodes) or (degree > 1 and not most):
            continue
        known = fastest.setdefault((degree, nodes), option)
        if option.time_ns < known.time_ns:
            fastest[degree, nodes] = option
    found = []
    for (degree, nodes), option in sorted(fastest.items()):
        everywhere = degree == 1 or nodes > 1
        size = cluster.num_ranks if everywhere else cluster.ranks_per_node
        for first in range(0, cluster.num_ranks, size):
            sequences = model.new_int_var(0, number, "")
            shards = [model.new_int_var(0, min(number, target // option.time_ns), "") for _ in range(size)]
            for each in shards:
                model.add(each <= sequences)
            model.add(sum(shards) == degree * sequences)
            found.append(Way(bucket, option, sequences, range(first, first + size), shards))
            if degree > 1 and nodes > 1:
                on_one_node(model, cluster.ranks_per_node, found[-1])
    return found


def on_one_node(model: cp_model.CpModel, per_node: int, way: Way) -> None:
    """Leave a node no more shards than sequences have there that lie on other nodes too."""
    most = (way.option.config.degree - way.option.num_nodes + 1) * way.sequences
    for first in range(0, len(way.ranks), per_node):
        model.add(sum(way.shards[first : first + per_node]) <= most)
        model.add(sum(way.shards[first : first + per_node]) >= way.sequences)


def dealt(problem: Problem, ways: list[Way], solver: cp_model.CpSolver) -> tuple[Placement, ...] | None:
    """Rank sets for the counts, dealt in turn; None where one of several nodes would lie on fewer."""
    members = {bucket.name: list(ids) for bucket, ids in problem.members.items()}
    placements: dict[str, Placement] = {}
    for way in ways:
        number = solver.value(way.sequences)
        slots = [rank for rank, each in zip(way.ranks, way.shards, strict=True) for _ in range(solver.value(each))]
        for index in range(number):
            ranks = tuple(sorted(slots[index::number]))
            if len({rank // problem.cluster.ranks_per_node for rank in ranks}) != way.option.num_nodes:
                return None
            sequence = members[way.bucket].pop()
            placements[sequence] = Placement(
                sequence=sequence, bucket=way.bucket, config=way.option.config, ranks=ranks
            )
    return tuple(placements[sequence.id] for sequence in problem.batch.sequences)


if __name__ == "__main__":
    main()
