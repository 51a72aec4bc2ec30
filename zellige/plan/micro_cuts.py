"""Cuts of one batch into parts, each planned by the planner that is handed in: balanced ones, and cuts by length."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple

from zellige.errors import (
    IllegalSplitError,
    InfeasibleError,
    MissingPriceError,
    NoRoomError,
    SequenceTooLargeError,
    TimeLimitError,
)
from zellige.placement import Plan, Problem, Solver
from zellige.plan.bounds import best_bound, bound_of_some
from zellige.plan.deal import deal
from zellige.plan.length_cuts import Counts, LengthCuts, RunTime, length_pieces
from zellige.plan.room import kept_on_all_ranks, room_need
from zellige.schedule import Schedule, make_schedule
from zellige.units import ceil_div, format_bytes
from zellige.workload import Sequence

Planner = Callable[[Problem], Plan]

Progress = Callable[[int, "Cut | None"], None]
"""Told after every plan how many parts were planned, and the best cut of the batch so far."""

BEYOND_STEPS = IllegalSplitError, MissingPriceError, SequenceTooLargeError
"""Refusals that no number of micro-steps mends."""

TOO_MUCH = InfeasibleError, TimeLimitError
"""Refusals of a batch that several micro-steps may hold."""

MAX_EXHAUSTIVE_SEQUENCES = 8
MAX_EXHAUSTIVE_CUTS = 64
"""Up to so many sequences and ways to cut them, every way is tried."""


class Cut(NamedTuple):
    """Parts that all have plans, and the sum of their makespans in nanoseconds."""

    time_ns: int
    parts: tuple[Counts, ...]


class AtLeast(NamedTuple):
    """What a cut takes at least, in nanoseconds: no less than a limit, so that its parts have not all been planned."""

    time_ns: int


def planned(problem: Problem, planner: Planner) -> Plan | None:
    """The plan of a batch, or None where memory allows none or the planner finds none that fits."""
    try:
        plan = planner(problem)
    except BEYOND_STEPS:
        raise
    except TOO_MUCH:
        return None
    return plan if plan.fits else None


class Cutter:
    """Cuts of one batch into parts, and the plans of the parts that were tried; equal parts are planned once.

    With ``any_will_do`` the first cut whose every part has a plan is taken, not the one that takes the least.
    """

    def __init__(
        self, problem: Problem, planner: Planner, progress: Progress | None = None, *, any_will_do: bool = False
    ) -> None:
        problem.prepare()
        self.problem = problem
        self.planner = planner
        self.progress = progress
        self.any_will_do = any_will_do
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
        self.bounds: dict[Counts, int] = {}
        self.best: Cut | None = None

    def best_cut(self, number: int) -> tuple[Cut | None, bool]:
        """The least of the balanced cuts, None where none fits; and whether every cut was tried."""
        if sum(self.counts) <= MAX_EXHAUSTIVE_SEQUENCES:
            every = list(itertools.islice(all_cuts(self.counts, number), MAX_EXHAUSTIVE_CUTS + 1))
            if len(every) <= MAX_EXHAUSTIVE_CUTS:
                return _as_cut(self._least(every)), True
        return _as_cut(self._balanced(self.counts, number)), number == 1

    def by_length(self, at_most: int | None, numbers: range, most_runs: int) -> Cut | None:
        """A cut by length that takes less than ``at_most``, in one of ``numbers`` micro-steps; None: none was found.

        At most about ``most_runs`` runs of lengths are planned, each in up to three ways; those in many micro-steps
        count for several.
        """
        numbers = range(max(2, numbers.start), numbers.stop)
        if not numbers or sum(self.counts) == 1:
            return None
        pieces = length_pieces([bucket.num_tokens for bucket in self.buckets], self.counts, self.work)
        cuts: dict[tuple[Counts, int], Cut] = {}

        def time_of(counts: Counts, steps: int, below: int | None) -> RunTime | None:
            found = self._balanced(counts, steps, below)
            if isinstance(found, Cut):
                cuts[counts, steps] = found
            return None if found is None else RunTime(found.time_ns, isinstance(found, Cut))

        lengths = LengthCuts(pieces, self._bound, self._least_steps, time_of)
        runs = lengths.search(at_most, numbers, most_runs)
        if runs is None:
            return None
        chosen = [cuts[lengths.counts[run.first, run.last], run.steps] for run in runs]
        parts = tuple(part for cut in chosen for part in cut.parts)
        return self._noted(Cut(sum(cut.time_ns for cut in chosen), parts))

    def cut_of(self, parts: tuple[Counts, ...], below: int | None = None) -> Cut | AtLeast | None:
        """The cut into these parts, None where one of them does not fit.

        Parts are planned, the most likely to have no plan first, as long as all of them, with bounds for the others,
        take less than ``below``.
        """
        ordered = sorted(parts, key=lambda part: -self._kept(part))
        bounds = [0 if below is None else self._bound(part) for part in ordered]
        total = sum(bounds)
        for part, bound in zip(ordered, bounds, strict=True):
            if below is not None and total >= below:
                return AtLeast(total)
            plan = self.plan_of(part)
            if plan is None:
                return None
            total += plan.makespan_ns - bound
        if below is not None and total >= below:
            return AtLeast(total)
        return self._noted(Cut(total, parts))

    def _noted(self, cut: Cut) -> Cut:
        """The cut, which is the best so far where it is of the whole batch and takes less than any other."""
        whole = sum(map(sum, cut.parts)) == sum(self.counts)
        if whole and (self.best is None or cut.time_ns < self.best.time_ns):
            self.best = cut
        return cut

    def schedule(self, cut: Cut, *, fewest: bool, notes: tuple[str, ...] = ()) -> Schedule:
        """The micro-steps of a cut, the longest first."""
        problem, plans, parts = self.problem, [], cut.parts
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
                name="balanced cuts, and cuts by length",
                status="fewest" if fewest else "feasible",
                planning_ns=sum(plan.solver.planning_ns for plan in self.plans.values() if plan is not None),
            ),
            notes=("a sequence of t tokens counts t / num_tokens in the loss, in whichever micro-step it runs", *notes),
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
            fits = self._kept(part) <= self.room
            posed = self._problem_of(part, self.problem.batch.name, [0] * len(part)) if fits else None
            self.plans[part] = None if posed is None else planned(posed, self.planner)
            if self.progress is not None:
                self.progress(len(self.plans), self.best)
        return self.plans[part]

    def _problem_of(self, part: Counts, name: str, starts: list[int]) -> Problem:
        chosen = {
            sequence.id
            for bucket, count, start in zip(self.buckets, part, starts, strict=True)
            for sequence in self.waiting[bucket.name][start : start + count]
        }
        sequences = tuple(sequence for sequence in self.problem.batch.sequences if sequence.id in chosen)
        return self.problem.with_sequences(sequences, name)

    def _bound(self, counts: Counts) -> int:
        if counts not in self.bounds:
            some = zip(self.buckets, counts, strict=True)
            numbers = {bucket.name: count for bucket, count in some if count}
            self.bounds[counts] = bound_of_some(self.problem, numbers)
        return self.bounds[counts]

    def _least_steps(self, counts: Counts) -> int:
        return max(1, ceil_div(self._kept(counts), self.room))

    def _kept(self, counts: Counts) -> int:
        return sum(map(int.__mul__, counts, self.memory))

    def _least(self, every: list[tuple[Counts, ...]], below: int | None = None) -> Cut | AtLeast | None:
        """The first of the cuts that take the least, or of all; where none takes less than ``below``, what they take at
        least."""
        least: Cut | None = None
        beyond: list[int] = []
        for parts in every:
            found = self.cut_of(parts, below)
            if isinstance(found, AtLeast):
                beyond.append(found.time_ns)
            elif found is not None:
                least, below = found, found.time_ns
                if self.any_will_do:
                    break
        if least is not None:
            return least
        return AtLeast(min(beyond)) if beyond else None

    def _balanced(self, counts: Counts, number: int, below: int | None = None) -> Cut | AtLeast | None:
        """The least of the cuts of some counts by equal shares, by work and by memory."""
        made = (
            self._evenly(counts, number),
            self._longest_first(counts, number, self.work),
            self._longest_first(counts, number, self.memory),
        )
        return self._least(list(dict.fromkeys(tuple(sorted(parts, reverse=True)) for parts in made)), below)

    def _evenly(self, counts: Counts, number: int) -> list[Counts]:
        """Equal shares of every bucket; what is left over by work."""
        parts = [[count // number for count in counts] for _ in range(number)]
        return self._fill(parts, [count % number for count in counts], self.work)

    def _longest_first(self, counts: Counts, number: int, weights: list[int]) -> list[Counts]:
        """One sequence after another, the weightiest first, to the part with the least so far."""
        return self._fill([[0] * len(counts) for _ in range(number)], list(counts), weights)

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


def _as_cut(found: Cut | AtLeast | None) -> Cut | None:
    """What was found without a limit, where every cut that fits is planned or takes no less than one that is."""
    return found if isinstance(found, Cut) else None


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
