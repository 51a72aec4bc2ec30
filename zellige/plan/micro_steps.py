"""Micro-steps for a batch that one step cannot hold: as few as possible, then as short as possible in all.

The number rises from what memory proves to be the least (:mod:`zellige.plan.room`). For each number the batch is cut in
a few ways that balance work or memory; batches of few sequences are cut in every way, which proves what it does not
find. Every part is planned by the planner that is handed in, and counts only where its plan fits. Parts are counts of
sequences by bucket, so equal parts are planned once; those of one bucket go to the micro-steps in batch order.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator

import msgspec

from zellige.errors import (
    IllegalSplitError,
    InfeasibleError,
    MissingPriceError,
    NoRoomError,
    SequenceTooLargeError,
    TimeLimitError,
    UsageError,
    ZelligeError,
)
from zellige.placement import Engine, Plan, Problem, Solver, require_placeable
from zellige.plan.bounds import best_bound
from zellige.plan.deal import deal
from zellige.plan.policies import find_policy, plan_batch
from zellige.plan.room import kept_on_all_ranks, require_room, room_need
from zellige.schedule import Schedule, make_schedule
from zellige.units import format_bytes
from zellige.workload import Sequence

Planner = Callable[[Problem], Plan]
Counts = tuple[int, ...]
"""How many sequences of each bucket, in the order of the problem's counts."""

MAX_EXHAUSTIVE_SEQUENCES = 8
MAX_EXHAUSTIVE_CUTS = 64
"""Up to so many sequences and ways to cut them, every way is tried."""

MAX_ADVICE_PLANS = 12
"""What advice beside an error may cost."""


def policy_planner(problem: Problem, policy: str, engine: Engine | None = None) -> tuple[Problem, Planner]:
    """A batch under the engine that a policy plans for (or the given one), and the policy as a planner for it."""
    engine = engine or find_policy(policy).engine
    return dataclasses.replace(problem, engine=engine), lambda posed: plan_batch(posed, policy, engine)


def plan_in_steps(problem: Problem, planner: Planner, num_micro_steps: int | None = None) -> Plan | Schedule:
    """One plan where that fits (or is asked for by 1), else :func:`plan_micro_steps`; None: as few as needed."""
    if num_micro_steps == 1:
        return planner(problem)
    if num_micro_steps is None and (plan := _planned(problem, planner)) is not None:
        return plan
    return plan_micro_steps(problem, planner, num_micro_steps)


def plan_micro_steps(problem: Problem, planner: Planner, num_micro_steps: int | None = None) -> Schedule:
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
        raise UsageError(f"{total} sequences make no {num_micro_steps} micro-steps", fix=f"1 to {total}, or auto")
    cutter = _Cutter(problem, planner)
    least = room_need(problem).least_micro_steps
    if num_micro_steps is not None:
        require_room(problem, num_micro_steps)
        parts, _ = cutter.best_cut(num_micro_steps)
        if parts is None:
            raise _not_found(problem, cutter, num_micro_steps)
        return cutter.schedule(parts, fewest=num_micro_steps == least)
    parts, _ = cutter.best_cut(least)
    if parts is not None:
        return cutter.schedule(parts, fewest=True)
    cutter.require_each_alone()
    parts, fewest = _fewest(cutter, least, total)
    return cutter.schedule(parts, fewest=fewest)


def _fewest(cutter: _Cutter, failed: int, total: int) -> tuple[tuple[Counts, ...], bool]:
    """The fewest parts found beyond a number that failed, by strides that double and then halve; and whether proven.

    With a part for each sequence every part has a plan. Small batches go one by one: there each failure is a proof.
    """
    stride, proven, found = 1, cutter.best_cut(failed)[1], None
    while found is None:
        number = min(failed + stride, total)
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


def plan_one_step(problem: Problem, planner: Planner) -> Plan:
    """The plan of a batch in one step; where memory refuses, the error says how many micro-steps would hold it."""
    try:
        return planner(problem)
    except (IllegalSplitError, MissingPriceError, SequenceTooLargeError):
        raise
    except (InfeasibleError, TimeLimitError) as error:
        raise _advised(problem, planner, error) from None


def _advised(problem: Problem, planner: Planner, error: ZelligeError) -> ZelligeError:
    """The error, or memory's own proof where there is one, with micro-steps as the way out."""
    try:
        require_room(problem, 1)
    except NoRoomError as proof:
        error = proof
    advice = micro_steps_advice(problem, planner)
    error.fix = f"{advice}; or {error.fix}" if error.fix else advice
    return error


def micro_steps_advice(problem: Problem, planner: Planner) -> str:
    """How many micro-steps would hold a batch that one step does not; why none would, where that is so.

    After ``MAX_ADVICE_PLANS`` plans it only says how many are needed at least: an error should not take minutes.
    """
    spent = 0

    def counting(posed: Problem) -> Plan:
        nonlocal spent
        spent += 1
        if spent > MAX_ADVICE_PLANS:
            raise _EnoughPlansError
        return planner(posed)

    try:
        needed = f"{plan_micro_steps(problem, counting).num_micro_steps}"
    except _EnoughPlansError:
        needed = f"{max(2, room_need(problem).least_micro_steps)} or more"
    except (InfeasibleError, TimeLimitError) as error:
        return f"micro-steps do not help: {error.message}"
    return f"--micro-steps auto, which would need {needed} micro-steps"


class _EnoughPlansError(Exception):
    """Advice has cost enough."""


def _planned(problem: Problem, planner: Planner) -> Plan | None:
    """The plan of a batch, or None where memory allows none or the planner finds none that fits."""
    try:
        plan = planner(problem)
    except (IllegalSplitError, MissingPriceError, SequenceTooLargeError):
        raise
    except (InfeasibleError, TimeLimitError):
        return None
    return plan if plan.fits else None


def _not_found(problem: Problem, cutter: _Cutter, number: int) -> NoRoomError:
    cutter.require_each_alone()
    return NoRoomError(
        f"no cut of the batch into {number} micro-steps was found whose every plan fits",
        where=f"{problem.batch.name}: {len(problem.batch.sequences)} sequences",
        details=(room_need(problem).proof,),
        fix="--micro-steps auto, or more micro-steps",
    )


class _Cutter:
    """Cuts of one batch into parts, and the plans of the parts that were tried."""

    def __init__(self, problem: Problem, planner: Planner) -> None:
        self.problem = problem
        self.planner = planner
        self.buckets = tuple(problem.counts)
        self.counts: Counts = tuple(problem.counts.values())
        self.memory = [kept_on_all_ranks(problem, bucket) for bucket in self.buckets]
        self.work = [
            min(option.floor_ns * option.config.degree for option in problem.options[bucket.name])
            for bucket in self.buckets
        ]
        self.room = problem.cluster.num_ranks * problem.memory.room_bytes
        self.waiting: dict[str, list[Sequence]] = defaultdict(list)
        for sequence in problem.batch.sequences:
            self.waiting[sequence.bucket.name].append(sequence)
        self.plans: dict[Counts, Plan | None] = {}

    def best_cut(self, number: int) -> tuple[tuple[Counts, ...] | None, bool]:
        """The cut of the least sum of makespans of those tried, None where none fits; and whether all were tried."""
        cuts, complete = self._cuts(number)
        best: tuple[int, tuple[Counts, ...]] | None = None
        for parts in cuts:
            plans = [self.plan_of(part) for part in self._fullest_first(parts)]
            if any(plan is None for plan in plans):
                continue
            time = sum(plan.makespan_ns for plan in plans if plan is not None)
            if best is None or time < best[0]:
                best = (time, parts)
        return (best[1] if best else None), complete

    def schedule(self, parts: tuple[Counts, ...], *, fewest: bool) -> Schedule:
        """The micro-steps of a cut whose parts all have plans, the longest first."""
        problem, plans = self.problem, []
        starts = [0] * len(self.buckets)
        longest_first = sorted(parts, key=lambda part: (-(self.plan_of(part) or _unplanned()).makespan_ns, part))
        for index, part in enumerate(longest_first):
            plan = self.plan_of(part) or _unplanned()
            name = f"{problem.batch.name}, micro-step {index + 1} of {len(parts)}"
            plans.append(deal(plan, self._problem_of(part, name, starts)))
            starts = [start + count for start, count in zip(starts, part, strict=True)]
        need = room_need(problem)
        return make_schedule(
            problem,
            plans,
            bound=best_bound(problem),
            least=(need.least_micro_steps, need.proof),
            solver=Solver(
                name="balanced cuts",
                status="fewest" if fewest else "feasible",
                planning_ns=sum(plan.solver.planning_ns for plan in self.plans.values() if plan is not None),
            ),
            notes=("a sequence of t tokens counts t / num_tokens in the loss, in whichever micro-step it runs",),
        )

    def require_each_alone(self) -> None:
        """Raise :class:`NoRoomError` for a sequence that the planner does not fit into a micro-step of its own."""
        for index, bucket in enumerate(self.buckets):
            alone = tuple(int(index == other) for other in range(len(self.buckets)))
            if self.plan_of(alone) is not None:
                continue
            sequence = self.waiting[bucket.name][0]
            posed = self._problem_of(alone, self.problem.batch.name, [0] * len(self.buckets))
            plan = self.planner(posed)
            over = plan.peak_memory_bytes - plan.memory_limit_bytes
            rank = max(plan.predicted, key=lambda prediction: prediction.memory_bytes).rank
            raise NoRoomError(
                f"sequence {sequence.id} does not fit alone, as {plan.policy} places it",
                where=f"{bucket.name}: {bucket.num_tokens:,} tokens as {plan.placements[0].config}",
                details=(f"{format_bytes(over)} missing on rank {rank}",),
                fix="a policy that splits it, as zellige",
            )

    def plan_of(self, part: Counts) -> Plan | None:
        """The plan of a part, None where it does not fit."""
        if part not in self.plans:
            fits = sum(count * need for count, need in zip(part, self.memory, strict=True)) <= self.room
            posed = self._problem_of(part, self.problem.batch.name, [0] * len(part)) if fits else None
            self.plans[part] = None if posed is None else _planned(posed, self.planner)
        return self.plans[part]

    def _problem_of(self, part: Counts, name: str, starts: list[int]) -> Problem:
        chosen = {
            sequence.id
            for bucket, count, start in zip(self.buckets, part, starts, strict=True)
            for sequence in self.waiting[bucket.name][start : start + count]
        }
        batch = self.problem.batch
        sequences = tuple(sequence for sequence in batch.sequences if sequence.id in chosen)
        return dataclasses.replace(self.problem, batch=msgspec.structs.replace(batch, name=name, sequences=sequences))

    def _fullest_first(self, parts: tuple[Counts, ...]) -> Iterator[Counts]:
        """A cut's parts up to and including the first without a plan, the most likely of them first."""
        for part in sorted(parts, key=lambda part: -sum(map(int.__mul__, part, self.memory))):
            yield part
            if self.plan_of(part) is None:
                return

    def _cuts(self, number: int) -> tuple[list[tuple[Counts, ...]], bool]:
        if sum(self.counts) <= MAX_EXHAUSTIVE_SEQUENCES:
            every = list(itertools.islice(all_cuts(self.counts, number), MAX_EXHAUSTIVE_CUTS + 1))
            if len(every) <= MAX_EXHAUSTIVE_CUTS:
                return every, True
        made = (self._evenly(number), self._longest_first(number, self.work), self._longest_first(number, self.memory))
        return list(dict.fromkeys(tuple(sorted(parts, reverse=True)) for parts in made)), number == 1

    def _evenly(self, number: int) -> list[Counts]:
        """Equal shares of every bucket; what is left over by work."""
        parts = [[count // number for count in self.counts] for _ in range(number)]
        return self._fill(parts, [count % number for count in self.counts], self.work)

    def _longest_first(self, number: int, weights: list[int]) -> list[Counts]:
        """One sequence after another, the weightiest first, to the part with the least so far."""
        return self._fill([[0] * len(self.counts) for _ in range(number)], list(self.counts), weights)

    def _fill(self, parts: list[list[int]], left: list[int], weights: list[int]) -> list[Counts]:
        """Add sequences to the lightest part that has memory left (to the emptiest where none has)."""
        loads = [sum(map(int.__mul__, part, weights)) for part in parts]
        kept = [sum(map(int.__mul__, part, self.memory)) for part in parts]
        for bucket in sorted(range(len(left)), key=lambda bucket: (-weights[bucket], bucket)):
            for _ in range(left[bucket]):
                need = self.memory[bucket]
                open_parts = [index for index in range(len(parts)) if kept[index] + need <= self.room]
                target = min(open_parts or range(len(parts)), key=lambda index: (loads[index], kept[index], index))
                parts[target][bucket] += 1
                loads[target] += weights[bucket]
                kept[target] += need
        return [tuple(part) for part in parts]


def _unplanned() -> Plan:
    raise NoRoomError("a part of the cut has no plan")


def all_cuts(counts: Counts, number: int, at_most: Counts | None = None) -> Iterator[tuple[Counts, ...]]:
    """Every way to cut counts into ``number`` parts that hold something, parts in descending order."""
    if number == 1:
        if any(counts) and (at_most is None or counts <= at_most):
            yield (counts,)
        return
    for first in itertools.product(*(range(count, -1, -1) for count in counts)):
        if any(first) and (at_most is None or first <= at_most):
            rest = tuple(count - taken for count, taken in zip(counts, first, strict=True))
            for others in all_cuts(rest, number - 1, first):
                yield (first, *others)
