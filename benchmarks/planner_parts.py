"""Peers whose plans run in several parts, against ``zellige`` in one step and in its best micro-steps.

Two accountings. **Ranks wait**: a part ends for all ranks together, as micro-steps do and as the executor runs parts.
**Ranks do not**: a rank goes from one of its micro-batches to the next by itself, as plans are priced; there
``zellige`` may do so too, in a plan made for more memory whose ranks take turns with what there is. Neither counts the
parameter gathers that every part repeats.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec

from zellige.errors import ZelligeError
from zellige.placement import Placement, Plan, Problem, Solver, make_plan, rank_costs
from zellige.plan import plan_batch
from zellige.plan.groups import in_micro_batches
from zellige.plan.micro_steps import BEST, plan_in_steps, policy_planner
from zellige.schedule import Schedule

SLACK = 0.002
"""Who is behind by more has lost."""

ROOMS = (1.3, 2.0, 3.0, 4.0)
"""Plans whose ranks take turns with their memory are made for so much of it."""


def waited_ns(problem: Problem, plan: Plan) -> int:
    """What a plan's parts take where all ranks end each together, in nanoseconds."""
    posed = dataclasses.replace(problem, engine=plan.engine)
    return sum(rank_costs(posed, [_alone(each) for each in part]).makespan_ns for part in plan.parts)


def _alone(placement: Placement) -> Placement:
    return msgspec.structs.replace(placement, stage=0, micro_batch=0)


def in_turns_ns(problem: Problem) -> int | None:
    """The least makespan of ``zellige``'s plans for more memory whose ranks take turns with what there is."""
    problem = dataclasses.replace(problem, engine="coalesced")
    least: int | None = None
    for room in ROOMS:
        usable = problem.memory.base_bytes + int(problem.memory.room_bytes * room)
        memory = msgspec.structs.replace(problem.memory, usable_bytes=usable)
        try:
            loose = plan_batch(dataclasses.replace(problem, memory=memory), "zellige", "coalesced")
        except ZelligeError:
            continue
        turns = in_micro_batches(problem, loose.placements)
        plan = make_plan(
            problem, "zellige", turns, bound=(loose.bound_ns, loose.bound), solver=Solver(name="", status="")
        )
        if plan.fits and (least is None or plan.makespan_ns < least):
            least = plan.makespan_ns
    return least


def in_parts(problem: Problem) -> dict[str, Any]:
    """Seconds of ``zellige`` in its best micro-steps, how many these are, and its seconds in turns."""
    posed, planner = policy_planner(problem, "zellige", "coalesced")
    turns = in_turns_ns(problem)
    row: dict[str, Any] = {"turns_seconds": None if turns is None else turns / 1e9}
    try:
        best = plan_in_steps(posed, planner, BEST)
    except ZelligeError:
        return row
    if isinstance(best, Schedule):
        return {**row, "best_seconds": best.step_time_ns / 1e9, "micro_steps": best.num_micro_steps}
    return {**row, "best_seconds": best.makespan_ns / 1e9, "micro_steps": 1}


def print_losses(suite: str, rows: list[dict[str, Any]], own: dict[tuple[str, str], dict[str, Any]]) -> None:
    """Batches on which ``zellige`` in one step is more than 0.2 % behind another policy of the run.

    Where the other runs in several parts, with both figures, and what becomes of it in the best micro-steps.
    """
    by_batch: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        if row["suite"] == suite:
            by_batch.setdefault(row["batch"], {})[row["policy"]] = row
    for batch, found in by_batch.items():
        mine = found.get("zellige", {}).get("seconds")
        for policy, other in found.items():
            if other.get("fits") and _behind(mine, other["seconds"]):
                print(f"  behind {policy} on {batch}: {mine} against {other['seconds']} s")
                if other["parts"] > 1 and (suite, batch) in own:
                    print_in_parts(other, own[suite, batch])


def print_in_parts(other: dict[str, Any], own: dict[str, Any]) -> None:
    """The two comparisons with a peer whose plan has several parts."""
    best, turns = own.get("best_seconds"), own["turns_seconds"]
    verdict = "behind" if _behind(best, other["waited_seconds"]) else "not behind"
    as_priced = "behind" if _behind(turns, other["seconds"]) else "not behind"
    print(
        f"    it runs in {other['parts']} parts. Where ranks wait at the end of each: {best} s in"
        f" {own.get('micro_steps')} micro-steps against {other['waited_seconds']} s: {verdict}"
    )
    print(f"    where they do not: {turns} s against {other['seconds']} s: {as_priced}")


def _behind(mine: float | None, other: float) -> bool:
    return mine is None or other * (1 + SLACK) < mine
