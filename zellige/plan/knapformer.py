"""KnapFormer as a policy: fixed disjoint bags of ranks, sequences knapsacked by estimated work (arXiv 2508.06001)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np

from zellige.errors import BagSpecError
from zellige.placement import Placement, Plan, Problem, Solver, make_plan, rank_costs
from zellige.plan.bags import BagSpec, assign_to_bags, check_bag_spec, format_bag_spec, parse_bag_spec
from zellige.plan.bounds import best_bound
from zellige.shards import ParallelConfig, legal_heads


def plan_knapformer(problem: Problem) -> Plan:
    """The set-up's fixed bag specification; where there is none, as :func:`plan_knapformer_best`."""
    if not problem.setup.knapformer:
        return plan_knapformer_best(problem)
    return plan_with_spec(problem, parse_bag_spec(problem.setup.knapformer), "knapformer")


def plan_knapformer_best(problem: Problem) -> Plan:
    """The best one specification over a run of batches (of this batch alone, where the set-up names none)."""
    spec = problem.setup.knapformer_run or best_spec([problem])
    return plan_with_spec(problem, parse_bag_spec(spec), "knapformer-best")


def plan_knapformer_oracle(problem: Problem) -> Plan:
    """The best specification for this batch, chosen by its priced step: a bound on what fixed bags can do."""
    gamma = fitted_gamma(problem)

    def cost(spec: tuple[BagSpec, ...]) -> tuple[bool, int]:
        costs = rank_costs(problem, _place(problem, spec, gamma))
        return max(costs.memory_bytes) > problem.memory.usable_bytes, max(costs.times_ns)

    return plan_with_spec(problem, min(bag_specs(problem), key=cost), "knapformer-oracle")


def best_spec(problems: Sequence[Problem]) -> str:
    """The one specification with the least total step time over a run of batches, those that always fit first."""
    gammas = [fitted_gamma(problem) for problem in problems]
    totals = []
    for spec in bag_specs(problems[0]):
        costs = [rank_costs(p, _place(p, spec, gamma)) for p, gamma in zip(problems, gammas, strict=True)]
        over = any(max(c.memory_bytes) > p.memory.usable_bytes for c, p in zip(costs, problems, strict=True))
        totals.append((over, sum(max(c.times_ns) for c in costs), format_bag_spec(spec)))
    return min(totals)[2]


def plan_with_spec(problem: Problem, spec: tuple[BagSpec, ...], name: str) -> Plan:
    """Route by estimated work; each bag splits its sequences by heads over all of its ranks."""
    geometry = problem.model.geometry
    check_bag_spec(spec, problem.cluster.num_ranks, geometry.num_heads)
    legal = legal_heads(geometry.num_heads, geometry.num_kv_heads)
    for term in spec:
        if term.size not in legal:
            raise BagSpecError(
                f"bags of {term.size} ranks cannot share {geometry.num_kv_heads} K/V heads",
                fix=f"sizes among {' '.join(map(str, legal))}",
            )
    return make_plan(
        problem,
        name,
        _place(problem, spec, fitted_gamma(problem)),
        bound=best_bound(problem),
        solver=Solver(name="knapsack", status="heuristic"),
        notes=(f"bags {format_bag_spec(spec)}",),
    )


def _place(problem: Problem, spec: tuple[BagSpec, ...], gamma: float) -> list[Placement]:
    assignment = assign_to_bags(
        [sequence.bucket.num_tokens for sequence in problem.batch.sequences],
        spec,
        hidden_dim=problem.model.geometry.hidden_dim,
        gamma=gamma,
        num_ranks=problem.cluster.num_ranks,
        allow_empty=True,
    )
    placements = []
    for sequence, bag in zip(problem.batch.sequences, assignment.sequence_bag, strict=True):
        ranks = tuple(assignment.bag_ranks[bag])
        config = ParallelConfig(h=len(ranks))
        placements.append(Placement(sequence=sequence.id, bucket=sequence.bucket.name, config=config, ranks=ranks))
    return placements


def fitted_gamma(problem: Problem) -> float:
    """Attention work in units of linear work: least squares of whole times over the buckets' lengths.

    time = a * 24 L d^2 + a * gamma * 4 L^2 d, fitted on the prices of the buckets at hand; 1 where they cannot tell.
    """
    d = problem.model.geometry.hidden_dim
    lengths = sorted({bucket.num_tokens for bucket in problem.batch.buckets})
    times = {bucket.num_tokens: problem.whole(bucket).time_ns for bucket in problem.batch.buckets}
    if len(lengths) < 2:
        return 1.0
    matrix = np.array([[24 * n * d * d, 4 * n * n * d] for n in lengths], dtype=float) / 1e12
    target = np.array([times[n] for n in lengths], dtype=float)
    linear, quadratic = np.linalg.lstsq(matrix / target[:, None], np.ones(len(lengths)), rcond=None)[0]
    return float(quadratic / linear) if linear > 0 and quadratic > 0 else 1.0


def bag_specs(problem: Problem) -> Iterator[tuple[BagSpec, ...]]:
    """All ways to cut a node into bags whose sizes split the heads; each repeats in every node."""
    geometry = problem.model.geometry
    ranks = problem.cluster.ranks_per_node
    sizes = tuple(h for h in legal_heads(geometry.num_heads, geometry.num_kv_heads, ranks))
    specs = list(_partitions(ranks, sizes))
    if not specs:
        raise BagSpecError(f"no bags of {geometry.num_heads} heads fill a node of {ranks} ranks")
    yield from specs


@cache
def _partitions(total: int, sizes: tuple[int, ...]) -> tuple[tuple[BagSpec, ...], ...]:
    """Multisets of sizes that sum to a total, as specifications by ascending size."""
    if total == 0:
        return ((),)
    if not sizes:
        return ()
    found = []
    *smaller, largest = sizes
    for count in range(total // largest + 1):
        for rest in _partitions(total - count * largest, tuple(smaller)):
            found.append((*rest, BagSpec(size=largest, count=count)) if count else rest)
    return tuple(found)
