"""What the models say of a plan's step: sums of prices, the simulator by laws, and both with interference.

``additive`` is the planner's sum of prices, ``event`` the simulator on the laws of operations. ``+interference`` adds
terms for co-located sequences to either, fitted on one half of the plans and used on the other, both ways: the second
lets the simulator take the ranks' work from the first, and adds the waiting.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

from zellige.calibration import MOST_PACE, Calibration, Interference
from zellige.errors import FormatError, UsageError
from zellige.interference import RankCounts, fit_interference, rank_counts, with_interference
from zellige.measured_ops import measured_op_prices, outside_ns, program_memory
from zellige.op_prices import OpPrices
from zellige.placement import Plan, Problem, rank_costs
from zellige.prices import PriceTable
from zellige.program import Program, lower
from zellige.sim.options import Noise, SimOptions
from zellige.sim.planned_work import at_planned_work, without_wires
from zellige.sim.results import SimReport
from zellige.sim.simulate import simulate
from zellige.trials import Observed, Runs

ModelName = Literal["additive", "event", "additive+interference", "event+interference"]
MODELS: tuple[ModelName, ...] = ("additive", "event", "additive+interference", "event+interference")


DRAWS = 9
"""Steps that are simulated for the usual one: ranks wait for whichever is slower, which takes longer than the mean."""


class PlanPace(NamedTuple):
    """What work took while a plan ran over what it took in the profile: by ranks, and by the clock.

    A step waits for whichever rank is slower just then, in turn: its time follows the pace of the slowest rank of a
    step a part of the way (in seven validations 0.34 to 0.78 of the distance, 0.6 in the mean). It is taken half-way.
    """

    usual: float = 1.0
    clock: float = 1.0


def plan_pace(observed: Observed, calibration: Calibration) -> PlanPace:
    """The pace of a plan's ranks against that of a table; raises :class:`FormatError` where one of them is no pace."""
    for pace_ns in (observed.pace_ns, observed.slowest_pace_ns):
        if not 1 / MOST_PACE <= pace_ns / calibration.pace_ns <= MOST_PACE:
            raise FormatError(
                f"the same work took {pace_ns} ns beside {observed.label!r}, {calibration.pace_ns} ns in the profile",
                fix="runs and a table of one machine: validate --save DIR records both",
            )
    usual = observed.pace_ns / calibration.pace_ns
    return PlanPace(usual, math.sqrt(usual * observed.slowest_pace_ns / calibration.pace_ns))


class Prediction(NamedTuple):
    """A step as predicted, with and without what travels; ranks without waiting, and their memory."""

    makespan_ns: int
    replay_ns: int
    rank_ns: tuple[int, ...]
    memory_bytes: tuple[int, ...]


def measured_calibration(problem: Problem) -> Calibration:
    """The calibration of a problem's table; raises :class:`UsageError` where the table was not measured."""
    calibration = problem.prices.header.calibration
    if calibration is None:
        raise UsageError("validation needs measured prices", fix="zellige-sim profile makes a table")
    return calibration


def predict_all(runs: Runs, problem: Problem, paces: Sequence[PlanPace]) -> dict[ModelName, list[Prediction]]:
    """Predictions of every plan by every model, at its pace; makespans by the clock at the clock's."""
    plans = runs.plans
    plain = Predictor(problem)
    found: dict[ModelName, list[Prediction]] = {
        "additive": [plain.additive(plan) for plan in plans],
        "event": [plain.event(plan) for plan in plans],
    }
    found["additive+interference"], found["event+interference"] = list(found["additive"]), list(found["event"])
    for fold in (0, 1):
        rest = [place for place in range(len(plans)) if place % 2 != fold]
        fitted = _fit(rest, found["additive"], runs, problem, paces)
        changed = Predictor(dataclasses.replace(problem, prices=with_interference(problem.prices, fitted)))
        for place in range(fold, len(plans), 2):
            found["additive+interference"][place] = changed.additive(plans[place])
            found["event+interference"][place] = changed.event(plans[place])
    return {
        name: [_at_pace(each, pace) for each, pace in zip(some, paces, strict=True)] for name, some in found.items()
    }


class Predictor:
    """Predictions from one table."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._dry = without_wires(problem)
        self._calibration = measured_calibration(problem)

    def additive(self, plan: Plan) -> Prediction:
        """The sum of prices, and what a step takes besides.

        Memory is that of the executor, which holds all of a layer's sequences at once, whatever the engine shares.
        """
        step = self._calibration.step_ns
        costs = rank_costs(dataclasses.replace(self._problem, engine=plan.engine), plan.placements)
        held = rank_costs(dataclasses.replace(self._problem, engine="coalesced"), plan.placements)
        quiet = rank_costs(dataclasses.replace(self._dry, engine=plan.engine), plan.placements)
        return Prediction(
            costs.makespan_ns + step,
            quiet.makespan_ns + step,
            tuple(time + step for time in quiet.times_ns),
            held.memory_bytes,
        )

    def event(self, plan: Plan) -> Prediction:
        """The simulated step, with the jitter that operations were measured with, and what is outside of them."""
        problem, calibration = self._problem, self._calibration
        program = lower(plan, problem)
        options = SimOptions(slowdown=0.0, state_traffic=False)
        outside = [outside_ns(program, rank, calibration) for rank in range(program.num_ranks)]
        wet, dry = (
            at_planned_work(
                measured_op_prices(program, problem.model, problem.cluster, calibration, wire=wire), problem
            )
            for wire in (True, False)
        )
        wall, replayed = (self._usual_end(program, prices, options, outside) for prices in (wet, dry))
        quiet = simulate(program, problem, "additive", options, prices=dry).report
        memory = tuple(program_memory(program, rank, calibration) for rank in range(program.num_ranks))
        return Prediction(wall, replayed, _ends(quiet, outside), memory)

    def _usual_end(self, program: Program, prices: OpPrices, options: SimOptions, outside: Sequence[int]) -> int:
        """The median of simulated steps whose operations differ as much as they did when they were measured.

        It is no less than that of a step where none differs: what they differ by only adds waiting.
        """

        def end(noise: Noise) -> int:
            told = msgspec.structs.replace(options, noise=noise)
            return max(_ends(simulate(program, self._problem, "event", told, prices=prices).report, outside))

        jitter = self._calibration.jitter
        drawn = [end(Noise(seed=seed, jitter=jitter)) for seed in range(DRAWS if jitter else 0)]
        return max(end(Noise()), round(statistics.median(drawn or [0])))


def _ends(report: SimReport, outside: Sequence[int]) -> tuple[int, ...]:
    """When ranks are done with their operations and with what is outside of them."""
    return tuple(report.step_time_ns - rank.idle_ns + more for rank, more in zip(report.ranks, outside, strict=True))


def _at_pace(prediction: Prediction, pace: PlanPace) -> Prediction:
    return Prediction(
        round(prediction.makespan_ns * pace.clock),
        round(prediction.replay_ns * pace.usual),
        tuple(round(each * pace.usual) for each in prediction.rank_ns),
        prediction.memory_bytes,
    )


def _fit(
    places: Sequence[int], additive: Sequence[Prediction], runs: Runs, problem: Problem, paces: Sequence[PlanPace]
) -> Interference:
    """Interference from the ranks of some plans: those under the problem's engine, if there are any.

    What calls of another engine cost beyond their prices is no interference, and such plans lie far off.
    """
    rows: list[RankCounts] = []
    residuals = []
    chosen = [place for place in places if runs.plans[place].engine == problem.engine] or list(places)
    for place in chosen:
        for rank, count in enumerate(rank_counts(runs.plans[place], problem)):
            rows.append(count)
            residuals.append(
                runs.observed[place].ranks[rank].own_ns / paces[place].usual - additive[place].rank_ns[rank]
            )
    per_split, per_sequence, per_byte, constant = fit_interference(rows, residuals)
    return Interference(
        per_split_ns=per_split, per_sequence_ns=per_sequence, per_byte_ns=per_byte, per_step_ns=constant,
        plans=len(chosen), held_out=0.0, held_out_before=0.0,
    )  # fmt: skip


def interference_table(table: PriceTable, runs: Runs, problem: Problem) -> PriceTable:
    """The table with what co-located sequences add, fitted to all observed plans, for planning and simulating.

    Its header has the errors of the replayed makespans of plans that terms were not fitted on, before and after.
    """
    calibration = measured_calibration(problem)
    paces = [plan_pace(each, calibration) for each in runs.observed]
    found = predict_all(runs, problem, paces)
    plain = Predictor(problem)
    fitted = _fit(range(len(runs.plans)), [plain.additive(plan) for plan in runs.plans], runs, problem, paces)
    before = _mean_error(found["additive"], runs.observed)
    after = _mean_error(found["additive+interference"], runs.observed)
    return with_interference(table, msgspec.structs.replace(fitted, held_out_before=before, held_out=after))


def _mean_error(predictions: Sequence[Prediction], observed: Sequence[Observed]) -> float:
    return statistics.fmean(
        abs(p.replay_ns / seen.replay_ns - 1) for p, seen in zip(predictions, observed, strict=True)
    )
