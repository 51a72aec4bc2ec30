"""How much better plans could be, where they miss what was hoped for: minutes instead of milliseconds.

    python benchmarks/planner_limits.py [--suite NAME ...] [--seed N] [--only TEXT] [--certified 0.009] [--blocks 0.005]
        [--start POLICY] [--moves 20000000] [--states 20000]

For every batch whose certified gap or gap within aligned blocks is above the given ones: simulated annealing from the
plan (three runs; by prices alone, so that its plans are also put into the event simulator), the bound B6 with many
more states, and B7 and B8, of which plan --certify states the better. What lies between is unknown.
``--moves 0 --states 1`` leaves the first two out.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Iterator

from annealing import anneal
from planner import simulated_step, suite_problems

import zellige.plan.any_sets as any_sets
from zellige.errors import ZelligeError
from zellige.placement import Plan, Problem, make_plan
from zellige.plan import plan_batch, prefer_compiled
from zellige.plan.bounds import best_bound
from zellige.plan.full_ranks import full_ranks_bound
from zellige.plan.whole_fillers import whole_fillers_bound


def main() -> None:
    parser = asked(__doc__)
    parser.add_argument("--start", default="zellige", help="the policy whose plan the annealing starts from")
    parser.add_argument("--moves", type=int, default=20_000_000)
    parser.add_argument("--states", type=int, default=20_000)
    told = parser.parse_args()
    for suite, name, problem, plan in missed(told):
        print(line(suite, name, problem, plan, told), flush=True)


def asked(about: str) -> argparse.ArgumentParser:
    """Options that say which batches are looked at."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--suite", nargs="+", default=["random16", "random32"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="batches whose name has this in it")
    parser.add_argument("--certified", type=float, default=0.009)
    parser.add_argument("--blocks", type=float, default=0.005)
    return parser


def missed(told: argparse.Namespace) -> Iterator[tuple[str, str, Problem, Plan]]:
    """The suite, name, problem and plan of batches whose gaps are above those told."""
    prefer_compiled()
    for suite in told.suite:
        for name, problem in suite_problems(suite, told.seed):
            if told.only not in name:
                continue
            try:
                plan = plan_batch(problem, "zellige", "coalesced")
            except ZelligeError as error:
                print(f"{suite} {name:18} {error.message}")
                continue
            if plan.gap > told.certified or blocks_gap(plan) > told.blocks:
                yield suite, name, dataclasses.replace(problem, engine="coalesced"), plan


def blocks_gap(plan: Plan) -> float:
    """The gap within aligned blocks; 0 where none is stated."""
    return plan.makespan_ns / plan.blocks_bound_ns - 1 if plan.blocks_bound_ns else 0.0


def line(suite: str, name: str, problem: Problem, plan: Plan, told: argparse.Namespace) -> str:
    """What is known of a batch after minutes."""
    began = time.monotonic()
    deep = deep_bound(problem, plan.makespan_ns, told.states)
    text = f"{suite} {name:18} certified {plan.gap:6.2%} within blocks {blocks_gap(plan):6.2%}"
    text += f" | B6 deep: {plan.makespan_ns / deep - 1:6.2%}"
    whole = whole_fillers_bound(problem, plan.bound_ns, plan.makespan_ns)
    full = full_ranks_bound(problem, plan.bound_ns, plan.makespan_ns)
    text += f" | B7: {plan.makespan_ns / whole - 1:6.2%} | B8: {plan.makespan_ns / full - 1:6.2%}"
    start = plan if told.start == plan.policy else plan_batch(problem, told.start, "coalesced")
    found = anneal(problem, start, plan.makespan_ns, told.moves, seed=1)
    if found is None:
        return text
    other = make_plan(problem, "zellige", found.placements, bound=(plan.bound_ns, plan.bound), solver=plan.solver)
    steps = [simulated_step(each, problem).report.step_time_ns for each in (plan, other)]
    text += f" | annealed: {other.makespan_ns / plan.makespan_ns - 1:+6.2%} by prices,"
    text += f" {steps[1] / steps[0] - 1:+6.2%} simulated, {other.makespan_ns / deep - 1:6.2%} to B6 deep"
    return f"{text} ({time.monotonic() - began:.0f} s)"


def deep_bound(problem: Problem, reached: int, states: int) -> int:
    """B6 with more states, more targets and more anchors than a plan has time for."""
    usual = any_sets.MOST_STATES, any_sets.ALL_STATES, any_sets.ANCHORS
    any_sets.MOST_STATES, any_sets.ALL_STATES, any_sets.ANCHORS = states, 10 * states, 14
    any_sets._places.cache_clear()
    try:
        return max(any_sets.any_sets_bound(problem, best_bound(problem)[0], reached)[0], 1)
    finally:
        any_sets.MOST_STATES, any_sets.ALL_STATES, any_sets.ANCHORS = usual
        any_sets._places.cache_clear()


if __name__ == "__main__":
    main()
