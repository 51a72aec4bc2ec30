"""The classic baselines: data parallelism, USP, and the best static split."""

from __future__ import annotations

from zellige.errors import IllegalSplitError
from zellige.placement import Placement, Plan, Problem, Solver, make_plan, rank_costs
from zellige.plan.bounds import best_bound
from zellige.plan.lists import equal_groups, longest_first
from zellige.prices import usp_config
from zellige.shards import WHOLE, ParallelConfig, legal_heads, parse_config


def plan_dp(problem: Problem) -> Plan:
    """Every sequence whole, the longest first to the least loaded rank (LPT). Memory is not looked at."""
    placements = longest_first(problem, WHOLE, equal_groups(problem.cluster.num_ranks, 1)) or []
    return make_plan(
        problem, "dp", placements, bound=best_bound(problem), solver=Solver(name="lpt", status="heuristic")
    )


def plan_usp(problem: Problem) -> Plan:
    """Every sequence on all ranks: Ulysses inside, ring outside (USP, arXiv 2405.07719)."""
    config = _usp_config(problem)
    ranks = tuple(range(problem.cluster.num_ranks))
    placements = [
        Placement(sequence=sequence.id, bucket=sequence.bucket.name, config=config, ranks=ranks)
        for sequence in problem.batch.sequences
    ]
    solver = Solver(name="fixed", status="heuristic")
    return make_plan(
        problem, "usp", placements, bound=best_bound(problem), solver=solver, notes=(f"configuration {config}",)
    )


def _usp_config(problem: Problem) -> ParallelConfig:
    """The set-up's configuration, or USP's own."""
    if not problem.setup.usp:
        return usp_config(problem.model, problem.cluster)
    config = parse_config(problem.setup.usp)
    if config.degree != problem.cluster.num_ranks:
        raise IllegalSplitError(
            f"USP's {config} has degree {config.degree}, every sequence runs on all {problem.cluster.num_ranks} ranks",
            fix="leave --usp out, or give factors whose product is the number of ranks",
        )
    require_legal(problem, config)
    return config


def require_legal(problem: Problem, config: ParallelConfig) -> None:
    """Raise :class:`IllegalSplitError` for a configuration that the price table does not hold."""
    geometry = problem.model.geometry
    name = next(iter(problem.counts)).name
    if any(option.config == config for option in problem.options[name]):
        return
    heads = legal_heads(geometry.num_heads, geometry.num_kv_heads)
    raise IllegalSplitError(
        f"{config} is not a legal split",
        where=f"{problem.model.name} has {geometry.num_heads} heads on {problem.cluster.num_ranks} ranks",
        details=(f"legal h: {' '.join(map(str, heads))}",),
        fix="a legal h, with the rest in q or k",
    )


def plan_static(problem: Problem) -> Plan:
    """The best static split for the batch: N/g equal groups and one configuration, sequences longest first.

    Every group size that divides the ranks and every configuration of that degree is tried; plans that fit in memory
    come first, then the shortest step, then the smaller group.
    """
    num_ranks = problem.cluster.num_ranks
    limit = problem.memory.usable_bytes
    best: tuple[tuple[bool, int, int], list[Placement]] | None = None
    label = ""
    for config in sorted({option.config for options in problem.options.values() for option in options}):
        if num_ranks % config.degree:
            continue
        groups = equal_groups(num_ranks, config.degree)
        placements = longest_first(problem, config, groups)
        if placements is None:
            continue
        costs = rank_costs(problem, placements)
        over = max(0, max(costs.memory_bytes) - limit)
        key = (over > 0, over if over else max(costs.times_ns), config.degree)
        if best is None or key < best[0]:
            noun = "group" if len(groups) == 1 else "groups"
            best, label = (key, placements), f"{len(groups)} {noun} of {config.degree}, {config}"
    placements = best[1] if best else []
    solver = Solver(name="enumeration", status="heuristic")
    return make_plan(problem, "static", placements, bound=best_bound(problem), solver=solver, notes=(label,))
