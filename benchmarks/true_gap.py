"""How far the planners are from the optimum on batches small enough for exhaustive search.

    python benchmarks/true_gap.py [BATCHES]

Two to four sequences on four ranks, analytic prices, every configuration on every rank set tried. Batches this small
have few fillers to even ranks out, so gaps are far above those of real batches.
"""

from __future__ import annotations

import dataclasses
import random
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from oracle.batches import SHAPES, make_problem
from oracle.brute_force import optimum

from zellige.plan import POLICIES, plan_batch

SHOWN = ("zellige-paper", "zellige-paper-coalesced", "portfolio", "zellige")


def main() -> None:
    batches = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    gaps: dict[str, list[float]] = {policy: [] for policy in SHOWN}
    certified: dict[str, list[float]] = {policy: [] for policy in SHOWN}
    for index in range(batches):
        chance = random.Random(index)
        problem = make_problem([chance.choice(SHAPES) for _ in range(chance.randint(2, 4))])
        for policy in SHOWN:
            best = optimum(dataclasses.replace(problem, engine=POLICIES[policy].engine))
            plan = plan_batch(problem, policy)
            if best is None:
                raise AssertionError(f"batch {index} has a plan and no optimum")
            gaps[policy].append(plan.makespan_ns / best.makespan_ns - 1)
            certified[policy].append(plan.gap)
    print(f"{batches} batches{'':17s}{'mean':>8s}{'median':>8s}{'max':>8s}{'optimal':>9s}{'certified mean':>16s}")
    for policy in SHOWN:
        values = gaps[policy]
        optimal = sum(value < 1e-9 for value in values) / len(values)
        print(
            f"{policy:28s}{statistics.fmean(values):8.1%}{statistics.median(values):8.1%}{max(values):8.1%}"
            f"{optimal:9.0%}{statistics.fmean(certified[policy]):16.1%}"
        )


if __name__ == "__main__":
    main()
