"""The schedule of a batch that one step cannot hold: micro-steps, each with a plan of its own, and their totals.

Gradients add up over the micro-steps and the optimizer steps once. A sequence of t tokens counts ``t / num_tokens`` in
the loss, with the tokens of the whole batch, in whichever micro-step it runs: so the split into micro-steps changes
neither the loss nor its gradients, up to the order of sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import msgspec

from zellige.files import NonNegativeInt, PositiveInt, digest
from zellige.memory import Checkpoint, Sharding
from zellige.placement import Engine, Inputs, Plan, Problem, Solver

WantedSteps = int | Literal["best"] | None
"""How many micro-steps are asked for: a number, those of the least time in all, or (None) the fewest."""


class Schedule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The micro-steps of one batch, in order, and what they take together.

    ``step_time_ns`` is the sum of the makespans; parameter gathers, which every micro-step repeats, are not in it.
    ``bound_ns`` is a lower bound on that sum for any number of micro-steps, ``least_micro_steps`` one on their number,
    for the reason that ``least_proof`` gives. ``solver.status`` is ``fewest`` where this planner fits the batch into no
    fewer, by that proof or because every cut into fewer was tried.
    """

    SCHEMA: ClassVar[str] = "zellige.schedule/1"

    schema: str = "zellige.schedule/1"
    policy: str
    engine: Engine
    cluster: str
    model: str
    sharding: Sharding
    checkpoint: Checkpoint
    batch: str
    digest: str
    num_micro_steps: PositiveInt
    num_tokens: PositiveInt
    step_time_ns: PositiveInt
    peak_memory_bytes: NonNegativeInt
    memory_limit_bytes: PositiveInt
    fits: bool
    comm_bytes: NonNegativeInt
    bound_ns: PositiveInt
    bound: str
    gap: float
    least_micro_steps: PositiveInt
    least_proof: str
    inputs: Inputs
    solver: Solver
    plans: Annotated[tuple[Plan, ...], msgspec.Meta(min_length=1)]
    notes: tuple[str, ...] = ()

    @property
    def num_sequences(self) -> int:
        """Sequences of all micro-steps."""
        return sum(len(plan.placements) for plan in self.plans)


def make_schedule(
    problem: Problem,
    plans: Sequence[Plan],
    *,
    bound: tuple[int, str],
    least: tuple[int, str],
    solver: Solver,
    notes: tuple[str, ...] = (),
) -> Schedule:
    """Add up the plans of a batch's micro-steps; ``problem`` is the whole batch."""
    first = plans[0]
    total = sum(plan.makespan_ns for plan in plans)
    schedule = Schedule(
        policy=first.policy,
        engine=first.engine,
        cluster=first.cluster,
        model=first.model,
        sharding=first.sharding,
        checkpoint=first.checkpoint,
        batch=problem.batch.name,
        digest="",
        num_micro_steps=len(plans),
        num_tokens=problem.batch.num_tokens,
        step_time_ns=total,
        peak_memory_bytes=max(plan.peak_memory_bytes for plan in plans),
        memory_limit_bytes=first.memory_limit_bytes,
        fits=all(plan.fits for plan in plans),
        comm_bytes=sum(plan.comm_bytes for plan in plans),
        bound_ns=bound[0],
        bound=bound[1],
        gap=total / bound[0] - 1,
        least_micro_steps=least[0],
        least_proof=least[1],
        inputs=Inputs(batch=digest(problem.batch), prices=digest(problem.prices)),
        solver=solver,
        plans=tuple(plans),
        notes=notes,
    )
    return msgspec.structs.replace(schedule, digest=schedule_digest(schedule))


def schedule_digest(schedule: Schedule) -> str:
    """The hash of a schedule without its own digest and without wall-clock time."""
    plans = tuple(msgspec.structs.replace(plan, solver=_timeless(plan.solver)) for plan in schedule.plans)
    return digest(msgspec.structs.replace(schedule, digest="", solver=_timeless(schedule.solver), plans=plans))


def _timeless(solver: Solver) -> Solver:
    return msgspec.structs.replace(solver, planning_ns=0)
