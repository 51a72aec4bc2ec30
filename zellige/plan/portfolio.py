"""The best of the planners at hand, on one problem under one engine."""

from __future__ import annotations

import msgspec

from zellige.errors import InfeasibleError, TimeLimitError
from zellige.placement import Plan, Problem
from zellige.plan.baselines import plan_dp, plan_static
from zellige.plan.two_stage import plan_with_anchors, plan_zellige_paper


def plan_portfolio(problem: Problem) -> Plan:
    """The shortest step that fits among: the two-stage planner at its cut, and with every bucket an anchor; static; dp.

    The fixed cut of the two-stage planner leaves buckets whole that a small batch had better split; this never loses to
    the best static split. Raises what the two-stage planner raises where nothing fits.
    """
    everything = {bucket.name for bucket in problem.counts}
    plans: list[tuple[str, Plan]] = []
    refusal: InfeasibleError | TimeLimitError | None = None
    for name, planner in (
        ("two stages, at the catalog cut", plan_zellige_paper),
        ("two stages, every bucket an anchor", lambda posed: plan_with_anchors(posed, everything)),
        ("the best static split", plan_static),
        ("every sequence whole", plan_dp),
    ):
        try:
            plans.append((name, planner(problem)))
        except (InfeasibleError, TimeLimitError) as error:
            refusal = refusal or error
    fitting = [(name, plan) for name, plan in plans if plan.fits]
    if not fitting and refusal is not None:
        raise refusal
    name, best = min(fitting or plans, key=lambda item: item[1].makespan_ns)
    return msgspec.structs.replace(best, notes=(f"chosen: {name}", *best.notes))
