"""Running plans for validation: as processes of this machine, or rank by rank on one device; and what was observed."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec

from zellige.files import NonNegativeInt, PositiveInt
from zellige.placement import Plan, Problem
from zellige.program import Program, lower
from zellige.replay import replay

if TYPE_CHECKING:
    from zellige.exec.trial import RankTrial, StepTimes, Trial

How = Literal["ranks", "alone"]
"""Real ranks that exchange, or every rank by itself, one after another, with its exchanges answered on the spot."""


class RankObserved(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rank's own time (median over steps, at the plan's pace) and its peak memory, weights included."""

    own_ns: PositiveInt
    memory_bytes: NonNegativeInt


class Observed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A plan as it ran. ``replays_ns`` and ``walls_ns`` have a step each; no walls where ranks ran alone.

    ``pace_ns`` is what a fixed piece of work took on the ranks meanwhile, the median; ranks' own times and the replays
    are at this pace, each step of each rank scaled by its own. Walls are as the clock had them; a step waits for the
    rank whose core is the slower just then, so ``slowest_pace_ns`` is that of the slowest rank of a step, the median.
    """

    label: str
    plan: str
    how: How
    ranks: tuple[RankObserved, ...]
    replays_ns: tuple[PositiveInt, ...]
    walls_ns: tuple[PositiveInt, ...]
    pace_ns: PositiveInt
    slowest_pace_ns: PositiveInt

    @property
    def replay_ns(self) -> float:
        """The median replayed makespan."""
        return statistics.median(self.replays_ns)

    @property
    def wall_ns(self) -> float | None:
        """The median measured makespan, where there is one."""
        return statistics.median(self.walls_ns) if self.walls_ns else None


class Runs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Observed plans of one set-up, as a file: they can be compared again without running anything."""

    SCHEMA: ClassVar[str] = "zellige.validation_runs/2"

    schema: str = "zellige.validation_runs/2"
    cluster: str
    model: str
    cores: PositiveInt
    plans: tuple[Plan, ...]
    observed: tuple[Observed, ...]


def trial_of(plan: Plan, problem: Problem, *, warm_ups: int, repeats: int) -> Trial:
    """The training step of a plan."""
    from zellige.exec.data import SequenceShape
    from zellige.exec.trial import Trial

    program, model = lower(plan, problem), problem.model
    buckets = {sequence.id: sequence.bucket for sequence in problem.batch.sequences}
    calibration = problem.prices.header.calibration
    shapes = []
    for segment in program.segments:
        bucket = buckets[segment.sequence]
        grid = model.grid(bucket.width, bucket.height, bucket.num_frames)
        shapes.append(SequenceShape(sequence=segment.sequence, grid=grid, text_tokens=model.text.tokens))
    return Trial(
        program=program,
        model=model,
        shapes=tuple(shapes),
        dtype="fp32" if calibration is None else calibration.dtype,
        warm_ups=warm_ups,
        repeats=repeats,
        memory=True,
    )


def run_ranks_of(trials: Sequence[Trial], timeout_s: float = 120.0) -> list[list[RankTrial]]:
    """Trials on as many processes as they have ranks, started once; by trial, then by rank."""
    from zellige.exec.launch import run_ranks
    from zellige.exec.trial import RankTrial, trial_task

    payload = msgspec.json.encode(list(trials))
    answers = run_ranks(trial_task, [payload] * trials[0].program.num_ranks, timeout_s=timeout_s)
    by_rank = [msgspec.json.decode(answer, type=list[RankTrial]) for answer in answers]
    return [list(same) for same in zip(*by_rank, strict=True)]


def run_alone(trial: Trial, device: str) -> list[RankTrial]:
    """A trial's ranks one after another on one device of this process."""
    import torch

    from zellige.exec.trial import run_one_alone

    return [run_one_alone(trial, rank, torch.device(device)) for rank in range(trial.program.num_ranks)]


def observe(label: str, plan: Plan, program: Program, ranks: Sequence[RankTrial], how: How) -> Observed:
    """What a trial's ranks measured, and the makespans that replaying each step gives.

    On a shared machine ranks run at different speeds, and the slowest rank would be the one with the worst neighbours:
    so each step of a rank is brought to one pace before any are compared.
    """
    pace = statistics.median(step.pace_ns for rank in ranks for step in rank.steps)
    steps = list(zip(*(rank.steps for rank in ranks), strict=True))
    replays = [
        max(
            replay(
                program,
                [_durations(step, pace / step.pace_ns) for step in same],
                [round(step.outside_ns * pace / step.pace_ns) for step in same],
            )
        )
        for same in steps
    ]
    return Observed(
        label=label,
        plan=plan.digest,
        how=how,
        ranks=tuple(
            RankObserved(
                own_ns=round(statistics.median(step.own_ns * pace / step.pace_ns for step in rank.steps)),
                memory_bytes=rank.peak_bytes + rank.weight_bytes,
            )
            for rank in ranks
        ),
        replays_ns=tuple(replays),
        walls_ns=tuple(max(step.wall_ns for step in same) for same in steps) if how == "ranks" else (),
        pace_ns=round(pace),
        slowest_pace_ns=round(statistics.median(max(step.pace_ns for step in same) for same in steps)),
    )


def _durations(step: StepTimes, factor: float) -> dict[tuple[str, int], int]:
    found: dict[tuple[str, int], int] = {}
    for span in step.spans:
        found[span.name, span.layer] = found.get((span.name, span.layer), 0) + round(factor * span.ns)
    return found


def run_plans(
    plans: Sequence[tuple[str, Plan]],
    problem_of: Callable[[Plan], Problem],
    *,
    how: How,
    device: str = "cpu",
    warm_ups: int = 1,
    repeats: int = 3,
    advance: Callable[[], None] = lambda: None,
    chunk: int = 30,
) -> list[Observed]:
    """Run labelled plans; ``chunk`` of them share their processes."""
    found = []
    for start in range(0, len(plans), chunk):
        part = plans[start : start + chunk]
        trials = [trial_of(plan, problem_of(plan), warm_ups=warm_ups, repeats=repeats) for _, plan in part]
        results = run_ranks_of(trials) if how == "ranks" else [run_alone(trial, device) for trial in trials]
        for (label, plan), trial, ranks in zip(part, trials, results, strict=True):
            found.append(observe(label, plan, trial.program, ranks, how))
            advance()
    return found
