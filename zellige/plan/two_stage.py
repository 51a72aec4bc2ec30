"""The two-stage planner of arXiv 2608.01150: catalog cut, anchor placement, filler packing."""

from __future__ import annotations

from collections import defaultdict

from zellige.errors import InfeasibleError
from zellige.placement import Option, Placement, Plan, Problem, Solver, make_plan, require_placeable
from zellige.plan.anchors import AnchorGroup, candidate_options, place_anchors
from zellige.plan.bounds import best_bound
from zellige.plan.cut import catalog_cut
from zellige.plan.fillers import RankLoads, pack_fillers
from zellige.workload import Bucket


def plan_zellige_paper(problem: Problem) -> Plan:
    """The catalog cut of the problem's buckets, then :func:`plan_with_anchors`."""
    return plan_with_anchors(problem, anchor_buckets(problem))


def plan_with_anchors(problem: Problem, anchors: set[str]) -> Plan:
    """Sequences of the named buckets by CP-SAT with exact compact formulation, all others whole and greedily.

    Raises :class:`InfeasibleError` and its kinds when memory allows no such plan.
    """
    require_placeable(problem)
    loads = RankLoads(problem.cluster.num_ranks)
    waiting = defaultdict(list)
    for sequence in problem.batch.sequences:
        if sequence.bucket.name in anchors:
            waiting[sequence.bucket.name].append(sequence.id)
    placements: list[Placement] = []
    status = "heuristic"
    if waiting:
        groups = [AnchorGroup(name, len(ids), _candidates(problem, name)) for name, ids in sorted(waiting.items())]
        assignments, status = place_anchors(problem, groups)
        taken: dict[str, int] = defaultdict(int)
        for chosen in assignments:
            name = waiting[chosen.bucket][taken[chosen.bucket]]
            taken[chosen.bucket] += 1
            option = chosen.option
            loads.add(chosen.ranks, option.time_ns, option.kept_bytes, option.live_bytes)
            placements.append(Placement(sequence=name, bucket=chosen.bucket, config=option.config, ranks=chosen.ranks))
    fillers = [sequence for sequence in problem.batch.sequences if sequence.bucket.name not in anchors]
    placements += pack_fillers(problem, fillers, loads)
    solver = Solver(name="cp-sat + greedy", status=status)
    note = f"anchors: {', '.join(sorted(waiting)) or 'none'}"
    return make_plan(problem, "zellige-paper", placements, bound=best_bound(problem), solver=solver, notes=(note,))


def _candidates(problem: Problem, bucket: str) -> tuple[Option, ...]:
    options = candidate_options(problem, bucket)
    if not options:
        raise InfeasibleError(
            f"{bucket} fits in no split that spreads evenly over nodes", fix="more ranks, or a policy of fixed groups"
        )
    return options


def anchor_buckets(problem: Problem, k: int | None = None) -> set[str]:
    """Names of the buckets above the catalog cut (or above the k cheapest), and of those that fit on no rank whole."""
    buckets = buckets_by_price(problem)
    if k is None:
        k = catalog_cut([problem.whole(bucket).time_ns for bucket in buckets]).k
    above = {bucket.name for bucket in buckets[k:]}
    return above | {bucket.name for bucket in buckets if not problem.fits_alone(problem.whole(bucket))}


def buckets_by_price(problem: Problem) -> list[Bucket]:
    """The catalog's buckets by whole price, the cheapest first."""
    return sorted(problem.batch.buckets, key=lambda bucket: (problem.whole(bucket).time_ns, bucket))
