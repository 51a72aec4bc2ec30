"""Plans of a small suite on a made table, and observations of them that are just what prices say."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

from oracle.made_measurements import HOST, made_measure, setting
from zellige.placement import Plan, Problem, rank_costs
from zellige.prices import PriceTable
from zellige.profile.profiler import Budget, profile
from zellige.sim.planned_work import without_wires
from zellige.sources import build_problem
from zellige.trials import Observed, RankObserved, Runs
from zellige.validation_plans import suite_batch


def suite_table(cluster: str, folder: Path) -> PriceTable:
    place = setting(cluster)._replace(buckets=suite_batch(setting().model, images=8).buckets)
    table, _ = profile(
        place, folder / f"{cluster}.json", host=HOST, device="cpu", dtype="fp32", measure=made_measure(place),
        links=None, budget=Budget(seconds=60, clock=itertools.count().__next__),
    )  # fmt: skip
    return table


def suite_problem(table: PriceTable) -> Problem:
    batch = suite_batch(setting().model, images=8)
    return build_problem(batch, cluster=table.header.cluster, model="tiny-dit", prices=table)


def made_runs(
    problem: Problem, plans: list[tuple[str, Plan]], factor: float = 1.0, pace: float = 1.0, slowest: float = 1.0
) -> Runs:
    """Observations that are ``factor`` times the additive prediction, on a machine of ``pace``.

    Of each step's ranks one is ``slowest`` times as slow as they usually are.
    """
    calibration = problem.prices.header.calibration
    assert calibration is not None
    dry = without_wires(problem)
    observed = []
    for label, plan in plans:
        costs = rank_costs(dataclasses.replace(dry, engine=plan.engine), plan.placements)
        times = [round((time + calibration.step_ns) * factor * pace) for time in costs.times_ns]
        longest = max(times)
        observed.append(
            Observed(
                label=label,
                plan=plan.digest,
                how="ranks",
                ranks=tuple(
                    RankObserved(own_ns=time, memory_bytes=size)
                    for time, size in zip(times, costs.memory_bytes, strict=True)
                ),
                replays_ns=(longest, longest, longest),
                walls_ns=(2 * longest,) * 3,
                pace_ns=round(calibration.pace_ns * pace),
                slowest_pace_ns=round(calibration.pace_ns * pace * slowest),
            )
        )
    return Runs(cluster="cpux8", model="tiny-dit", cores=8, plans=tuple(p for _, p in plans), observed=tuple(observed))
