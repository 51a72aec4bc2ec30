"""Micro-steps for a batch: as few as possible, so many as are asked for, or those of the least time in all.

The fewest rise from what memory proves to be the least (:mod:`zellige.plan.room`). For each number the batch is cut in
a few ways that balance work or memory; batches of few sequences are cut in every way, which proves what it does not
find. What was found is compared with cuts by length (:mod:`zellige.plan.length_cuts`). Every part is planned by the
planner that is handed in, and counts only where its plan fits. Parts are counts of sequences by bucket, so equal parts
are planned once; those of one bucket go to the micro-steps in batch order.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from zellige.errors import (
    NoRoomError,
    UsageError,
    ZelligeError,
)
from zellige.placement import Engine, Plan, Problem, require_placeable
from zellige.plan.compiled import prefer_compiled
from zellige.plan.micro_cuts import BEYOND_STEPS, TOO_MUCH, Cut, Cutter, Planner, Progress, planned
from zellige.plan.policies import find_policy, plan_batch, try_batch
from zellige.plan.room import require_room, room_need
from zellige.schedule import Schedule, WantedSteps
from zellige.units import count_of

BEST: Final = "best"
"""Asks for the number of micro-steps that takes the least time."""

FEW_RUNS = 48
MANY_RUNS = 80
"""So many runs of lengths are tried: for a number of micro-steps, and for the best of all."""

INTERPRETED = 32
"""So many plans are made before compiled loops are loaded, which takes about as long (and much longer the first time on
a machine)."""

MORE_NUMBERS, MORE_OF_MANY = 4, 8
"""The best number is looked for up to so many beyond the fewest, or up to an eighth of these beyond, where that is
more."""

MAX_ADVICE_PLANS = 12
"""What advice beside an error may cost."""


def policy_planner(problem: Problem, policy: str, engine: Engine | None = None) -> tuple[Problem, Planner]:
    """A batch under the engine that a policy plans for (or the given one), and the policy as a planner for it."""
    engine = engine or find_policy(policy).engine
    return dataclasses.replace(problem, engine=engine), lambda posed: plan_batch(posed, policy, engine)


def compiled_later(planner: Planner) -> Planner:
    """The planner, in compiled loops (:func:`prefer_compiled`, for the whole process) after ``INTERPRETED`` plans."""
    num_plans = 0

    def plan(posed: Problem) -> Plan:
        nonlocal num_plans
        num_plans += 1
        if num_plans > INTERPRETED:
            prefer_compiled()
        return planner(posed)

    return plan


def plan_in_steps(
    problem: Problem, planner: Planner, num_micro_steps: WantedSteps = None, progress: Progress | None = None
) -> Plan | Schedule:
    """One plan where that fits (or is asked for by 1), else :func:`plan_micro_steps`; None: as few as needed.

    ``BEST``: :func:`plan_best_steps`. ``progress`` is told of every part that is planned.
    """
    if num_micro_steps == BEST:
        return plan_best_steps(problem, planner, progress)
    if num_micro_steps == 1:
        return planner(problem)
    if num_micro_steps is None and (plan := planned(problem, planner)) is not None:
        return plan
    return plan_micro_steps(problem, planner, num_micro_steps, progress)


def plan_micro_steps(
    problem: Problem, planner: Planner, num_micro_steps: int | None = None, progress: Progress | None = None
) -> Schedule:
    """A batch in the fewest micro-steps that were found, or in ``num_micro_steps``, with a plan for each.

    The problem's engine must be the one that the planner plans for, as :func:`policy_planner` poses it: engines keep
    different bytes. Every micro-step repeats the parameter gathers, which is one reason for as few as possible.
    Raises :class:`SequenceTooLargeError` for a sequence that no split fits, :class:`NoRoomError` for one that this
    planner fits on no rank, or where the given number cannot hold the batch, and :class:`UsageError` where it is more
    than there are sequences.
    """
    require_placeable(problem)
    total = len(problem.batch.sequences)
    if num_micro_steps is not None and not 1 <= num_micro_steps <= total:
        raise UsageError(
            f"{count_of(total, 'sequence')} cannot fill {count_of(num_micro_steps, 'micro-step')}",
            fix=f"at most {total}, auto or best",
        )
    cutter = Cutter(problem, planner, progress)
    if num_micro_steps is None:
        cut, fewest = _fewest(cutter)
        return cutter.schedule(_or_by_length(cutter, cut, len(cut.parts)) or cut, fewest=fewest)
    require_room(problem, num_micro_steps)
    found, complete = cutter.best_cut(num_micro_steps)
    if not complete:
        found = _or_by_length(cutter, found, num_micro_steps)
    if found is None:
        raise _not_found(problem, cutter, num_micro_steps)
    return cutter.schedule(found, fewest=num_micro_steps == room_need(problem).least_micro_steps)


def _or_by_length(cutter: Cutter, cut: Cut | None, number: int) -> Cut | None:
    """The cut, or one by length into the same number of parts that takes less."""
    at_most = None if cut is None else cut.time_ns
    return cutter.by_length(at_most, range(number, number + 1), FEW_RUNS) or cut


def plan_best_steps(problem: Problem, planner: Planner, progress: Progress | None = None) -> Plan | Schedule:
    """One plan, or micro-steps of whichever number takes the least time of those that bounds leave to be tried.

    Never more than one step takes where that fits, nor than the fewest micro-steps. Makespans count, with the shared
    calls of every micro-step; the parameter gathers that each repeats do not. Raises as :func:`plan_micro_steps`.
    """
    require_placeable(problem)
    cutter = Cutter(problem, planner, progress)
    single, whole = cutter.plan_of(cutter.counts), cutter.cut_of((cutter.counts,))
    cut, fewest = (whole, True) if isinstance(whole, Cut) else _fewest(cutter)
    few = len(cut.parts)
    if single is None:
        cut = _or_by_length(cutter, cut, few) or cut
    most = few + max(MORE_NUMBERS, few // MORE_OF_MANY)
    better = cutter.by_length(cut.time_ns, range(few, most + 1), MANY_RUNS)
    if better is None and single is not None:
        return single
    cut, fewest = (cut, fewest) if better is None else (better, fewest and len(better.parts) == few)
    return cutter.schedule(cut, fewest=fewest, notes=("the least time that was found in any number of micro-steps",))


def _fewest(cutter: Cutter) -> tuple[Cut, bool]:
    """The balanced cut into the fewest parts that were found, and whether no fewer will do."""
    least = room_need(cutter.problem).least_micro_steps
    cut, complete = cutter.best_cut(least)
    if cut is not None:
        return cut, True
    cutter.require_each_alone()
    return _fewest_beyond(cutter, least, complete)


def _fewest_beyond(cutter: Cutter, failed: int, proven: bool) -> tuple[Cut, bool]:
    """The fewest parts found beyond a number that failed, by strides that double and then halve; and whether proven.

    With a part for each sequence every part has a plan. Small batches go one by one: there each failure is a proof.
    """
    stride, found = 1, None
    while found is None:
        number = min(failed + stride, sum(cutter.counts))
        found, complete = cutter.best_cut(number)
        if found is None:
            failed, proven = number, proven and complete
            stride = 1 if proven else 2 * stride
    while number - failed > 1:
        middle = (number + failed) // 2
        better, _ = cutter.best_cut(middle)
        if better is None:
            failed = middle
        else:
            found, number = better, middle
    return found, proven


def trial_planner(policy: str, engine: Engine | None = None) -> Planner:
    """What finds a plan where a policy does, and only there, in less time where it can: for advice."""
    return lambda posed: try_batch(posed, policy, engine)


def plan_one_step(problem: Problem, planner: Planner, trial: Planner) -> Plan:
    """The plan of a batch in one step; where memory refuses, the error says how many micro-steps would hold it.

    ``trial`` is :func:`trial_planner`'s, of the same policy.
    """
    try:
        return planner(problem)
    except BEYOND_STEPS:
        raise
    except TOO_MUCH as error:
        raise _advised(problem, trial, error) from None


def _advised(problem: Problem, trial: Planner, error: ZelligeError) -> ZelligeError:
    """The error, or memory's own proof where there is one, with micro-steps as the way out."""
    try:
        require_room(problem, 1)
    except NoRoomError as proof:
        error = proof
    advice = micro_steps_advice(problem, trial)
    error.fix = f"{advice}; or {error.fix}" if error.fix else advice
    return error


def micro_steps_advice(problem: Problem, trial: Planner) -> str:
    """How many micro-steps would hold a batch that one step does not; why none would, where that is so.

    A number is said only where plans were found for all parts of a cut into so many. After ``MAX_ADVICE_PLANS`` plans
    it only says how many are needed at least: an error should not take minutes.
    """
    spent = 0

    def counting(posed: Problem) -> Plan:
        nonlocal spent
        spent += 1
        if spent > MAX_ADVICE_PLANS:
            raise _EnoughPlansError
        return trial(posed)

    try:
        require_placeable(problem)
        cutter = Cutter(problem, counting, any_will_do=True)
        cutter.plans[cutter.counts] = None
        needed = f"{len(_fewest(cutter)[0].parts)}"
    except _EnoughPlansError:
        needed = f"{max(2, room_need(problem).least_micro_steps)} or more"
    except TOO_MUCH as error:
        return f"micro-steps do not help: {error.message}"
    return f"--micro-steps auto, which would need {needed} micro-steps"


class _EnoughPlansError(Exception):
    """Advice has cost enough."""


def _not_found(problem: Problem, cutter: Cutter, number: int) -> NoRoomError:
    cutter.require_each_alone()
    return NoRoomError(
        f"no cut of the batch into {number} micro-steps was found whose every plan fits",
        where=f"{problem.batch.name}: {count_of(len(problem.batch.sequences), 'sequence')}",
        details=(room_need(problem).proof,),
        fix="--micro-steps auto, or more micro-steps",
    )
