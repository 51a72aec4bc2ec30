"""Predicted against measured: how long plans take, what their ranks need, and how far to trust the order of plans.

Predictions come from a measured price table; plans that they are held against were used for no fit. Makespans are
compared with the **replay** of the ranks' own times (:mod:`zellige.replay`), for which predictions leave the wires out,
and with the wall clock where there are as many cores as ranks. Three models: ``additive`` (the planner's sum of
prices), ``event`` (the simulator, by laws of operations), and ``additive+interference`` (terms for co-located
sequences, fitted on one half of the plans and used on the other, both ways).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple

import msgspec

from zellige.calibration import Calibration
from zellige.errors import UsageError
from zellige.interference import RankCounts, Terms, fit_interference, rank_counts, residual_terms, with_interference
from zellige.measured_ops import measured_op_prices, outside_ns, program_memory
from zellige.placement import Plan, Problem, rank_costs
from zellige.prices import PriceTable
from zellige.profile.table import without_wire
from zellige.program import lower
from zellige.sim.agreement import (
    Errors,
    Order,
    Verdict,
    log_error,
    order,
    order_is_certain,
    relative_errors,
)
from zellige.sim.options import SimOptions
from zellige.sim.results import SimReport
from zellige.sim.simulate import simulate
from zellige.trials import Observed, Runs

ModelName = Literal["additive", "event", "additive+interference"]
MODELS: tuple[ModelName, ...] = ("additive", "event", "additive+interference")
NOISE_FACTOR = 3.0
LEAST_THRESHOLD = 0.02
"""Plans count as different where they differ by this many times the noise of a median (that of a step over the root of
the steps), and by this much at least."""


class Prediction(NamedTuple):
    """A step as predicted, with and without what travels; ranks without waiting, and their memory."""

    makespan_ns: int
    replay_ns: int
    rank_ns: tuple[int, ...]
    memory_bytes: tuple[int, ...]


class ModelReport(msgspec.Struct, frozen=True, kw_only=True):
    """How one model agrees with what was measured; ``wall`` is None with fewer cores than ranks."""

    model: ModelName
    replay: Errors
    wall: Errors | None
    rank_time: Errors
    memory: Errors
    order: Order
    wall_order: Order | None
    residual: dict[str, float]


class PlanRow(msgspec.Struct, frozen=True, kw_only=True):
    """A plan: replayed and measured makespan, noise, and what each model predicts of the replay."""

    label: str
    engine: str
    replay_ns: int
    wall_ns: int | None
    noise: float
    predicted_ns: dict[str, int]


class PairRow(msgspec.Struct, frozen=True, kw_only=True):
    """Two policies: the predicted time of the second over the first, measured likewise, and whether the order holds."""

    first: str
    second: str
    predicted: float
    measured: float
    verdict: Verdict


class SetupReport(msgspec.Struct, frozen=True, kw_only=True):
    """One cluster's plans. ``pace`` is how much slower the machine was than when the table was measured."""

    cluster: str
    model: str
    basis: str
    noise: float
    pace: float
    plans: tuple[PlanRow, ...]
    models: tuple[ModelReport, ...]
    pairs: tuple[PairRow, ...]
    certain_right: int
    certain: int
    interference_helps: bool


class Validation(msgspec.Struct, frozen=True, kw_only=True):
    """The whole report."""

    SCHEMA: ClassVar[str] = "zellige.validation/1"

    schema: str = "zellige.validation/1"
    setups: tuple[SetupReport, ...]
    seconds: float


def validate(runs: Runs, problem: Problem, *, at_pace: bool = True) -> SetupReport:
    """Compare observed plans with predictions from the problem's table, which must be a measured one.

    ``at_pace`` brings predictions to the pace of the machine while a plan ran; without it they are as the table says.
    """
    calibration = problem.prices.header.calibration
    if calibration is None:
        raise UsageError("validation needs measured prices", fix="zellige-sim profile makes a table")
    if len(runs.observed) < 3:
        raise UsageError(f"{len(runs.observed)} plans say nothing about order", fix="run three or more")
    paces = [each.pace_ns / calibration.pace_ns if at_pace else 1.0 for each in runs.observed]
    predictions = predict_all(runs, problem, calibration, paces)
    steps = len(runs.observed[0].replays_ns)
    threshold = max(LEAST_THRESHOLD, NOISE_FACTOR * plan_noise(runs.observed) / math.sqrt(steps))
    models = tuple(_model_report(name, runs.observed, predictions[name], runs, problem, threshold) for name in MODELS)
    additive, held = models[0], models[2]
    pairs = _pairs(runs.observed, predictions["additive"])
    clear = [pair for pair in pairs if pair.verdict == "certain"]
    timed = problem.cluster.num_ranks <= runs.cores
    return SetupReport(
        cluster=runs.cluster,
        model=runs.model,
        basis=_basis(runs, problem.cluster.num_ranks),
        noise=plan_noise(runs.observed),
        pace=statistics.median(each.pace_ns for each in runs.observed) / calibration.pace_ns,
        plans=tuple(
            PlanRow(
                label=seen.label,
                engine=plan.engine,
                replay_ns=round(seen.replay_ns),
                wall_ns=round(seen.wall_ns) if seen.wall_ns is not None and timed else None,
                noise=_relative_spread(seen.replays_ns),
                predicted_ns={name: predictions[name][place].replay_ns for name in MODELS},
            )
            for place, (seen, plan) in enumerate(zip(runs.observed, runs.plans, strict=True))
        ),
        models=models,
        pairs=tuple(pairs),
        certain=len(clear),
        certain_right=sum((pair.predicted - 1) * (pair.measured - 1) > 0 for pair in clear),
        interference_helps=held.replay.mape.mean < additive.replay.mape.mean
        and held.order.tau_clear.mean >= additive.order.tau_clear.mean,
    )


def _basis(runs: Runs, ranks: int) -> str:
    if runs.observed[0].how == "alone":
        return "replay of ranks that ran one by one"
    if ranks > runs.cores:
        return f"replay of CPU time: {ranks} ranks share {runs.cores} cores, so no makespan was measured"
    return "replay of CPU time, and wall clock"


def plan_noise(observed: Sequence[Observed]) -> float:
    """The median over plans of the relative spread of their steps (half of the range)."""
    return statistics.median(_relative_spread(each.replays_ns) for each in observed)


def _relative_spread(values: Sequence[int]) -> float:
    return (max(values) - min(values)) / 2 / statistics.median(values) if len(values) > 1 else 0.0


def predict_all(
    runs: Runs, problem: Problem, calibration: Calibration, paces: Sequence[float]
) -> dict[ModelName, list[Prediction]]:
    """Predictions of every plan by every model, at the pace of each."""
    plans, observed = runs.plans, runs.observed
    dry = without_wires(problem)
    additive = [_additive(plan, problem, dry) for plan in plans]
    event = [_event(plan, problem, calibration) for plan in plans]
    counts = [rank_counts(plan, problem) for plan in plans]
    held_out = list(additive)
    for fold in (0, 1):
        rest = [place for place in range(len(plans)) if place % 2 != fold]
        terms = _fit(rest, additive, observed, counts, paces)
        changed = dataclasses.replace(problem, prices=with_interference(problem.prices, terms))
        changed_dry = dataclasses.replace(dry, prices=with_interference(dry.prices, terms))
        for place in range(fold, len(plans), 2):
            held_out[place] = _additive(plans[place], changed, changed_dry)
    found: dict[ModelName, list[Prediction]] = {
        "additive": additive, "event": event, "additive+interference": held_out,
    }  # fmt: skip
    return {
        name: [_at_pace(each, pace) for each, pace in zip(some, paces, strict=True)] for name, some in found.items()
    }


def _fit(
    places: Sequence[int],
    predictions: Sequence[Prediction],
    observed: Sequence[Observed],
    counts: Sequence[Sequence[RankCounts]],
    paces: Sequence[float],
) -> Terms:
    """Interference terms from the ranks of some plans."""
    rows, residuals = [], []
    for place in places:
        for rank, count in enumerate(counts[place]):
            rows.append(count)
            residuals.append(observed[place].ranks[rank].own_ns / paces[place] - predictions[place].rank_ns[rank])
    return fit_interference(rows, residuals)


def without_wires(problem: Problem) -> Problem:
    """The problem with links that take no time, for comparison with CPU time, which knows of none."""
    link = problem.cluster.node_link
    fits = tuple(msgspec.structs.replace(fit, latency_us=1e-9) for fit in link.fits)
    cluster = msgspec.structs.replace(problem.cluster, node_link=msgspec.structs.replace(link, fits=fits))
    prices = without_wire(problem.prices, problem.model, problem.cluster)
    return dataclasses.replace(problem, prices=prices, cluster=cluster)


def interference_of(runs: Runs, problem: Problem) -> Terms:
    """Terms from all observed plans: what a table that is written for planning carries."""
    calibration = problem.prices.header.calibration
    if calibration is None:
        raise UsageError("interference is fitted to a measured table", fix="zellige-sim profile makes one")
    dry = without_wires(problem)
    predictions = [_additive(plan, problem, dry) for plan in runs.plans]
    counts = [rank_counts(plan, problem) for plan in runs.plans]
    paces = [each.pace_ns / calibration.pace_ns for each in runs.observed]
    return _fit(range(len(runs.plans)), predictions, runs.observed, counts, paces)


def _at_pace(prediction: Prediction, pace: float) -> Prediction:
    return Prediction(
        round(prediction.makespan_ns * pace),
        round(prediction.replay_ns * pace),
        tuple(round(each * pace) for each in prediction.rank_ns),
        prediction.memory_bytes,
    )


def _additive(plan: Plan, problem: Problem, dry: Problem) -> Prediction:
    calibration = problem.prices.header.calibration
    step = 0 if calibration is None else calibration.step_ns
    own = dataclasses.replace(problem, engine=plan.engine)
    costs = rank_costs(own, plan.placements)
    quiet = rank_costs(dataclasses.replace(dry, engine=plan.engine), plan.placements)
    return Prediction(
        costs.makespan_ns + step,
        quiet.makespan_ns + step,
        tuple(time + step for time in quiet.times_ns),
        costs.memory_bytes,
    )


def _event(plan: Plan, problem: Problem, calibration: Calibration) -> Prediction:
    program = lower(plan, problem)
    options = SimOptions(slowdown=0.0, state_traffic=False)
    outside = [outside_ns(program, rank, calibration) for rank in range(program.num_ranks)]
    ends = []
    for wire in (True, False):
        prices = measured_op_prices(program, problem.model, problem.cluster, calibration, wire=wire)
        report = simulate(program, problem, "event", options, prices=prices).report
        ends.append(max(_ends(report, outside)))
    quiet = simulate(program, problem, "additive", options, prices=prices).report
    memory = tuple(program_memory(program, rank, calibration) for rank in range(program.num_ranks))
    return Prediction(ends[0], ends[1], _ends(quiet, outside), memory)


def _ends(report: SimReport, outside: Sequence[int]) -> tuple[int, ...]:
    """When ranks are done with their operations and with what is outside of them."""
    return tuple(report.step_time_ns - rank.idle_ns + more for rank, more in zip(report.ranks, outside, strict=True))


def _model_report(
    name: ModelName,
    observed: Sequence[Observed],
    predictions: Sequence[Prediction],
    runs: Runs,
    problem: Problem,
    threshold: float,
) -> ModelReport:
    both = list(zip(predictions, observed, strict=True))
    replays = [(float(p.replay_ns), seen.replay_ns) for p, seen in both]
    ranks = [
        (float(time), float(rank.own_ns)) for p, seen in both for time, rank in zip(p.rank_ns, seen.ranks, strict=True)
    ]
    memory = [
        (float(size), float(rank.memory_bytes))
        for p, seen in both
        for size, rank in zip(p.memory_bytes, seen.ranks, strict=True)
        if rank.memory_bytes
    ]
    timed = problem.cluster.num_ranks <= runs.cores
    walls = [(float(p.makespan_ns), seen.wall_ns) for p, seen in both if seen.wall_ns is not None and timed]
    counts = [count for plan in runs.plans for count in rank_counts(plan, problem)]
    return ModelReport(
        model=name,
        replay=relative_errors(replays),
        wall=relative_errors(walls) if walls else None,
        rank_time=relative_errors(ranks),
        memory=relative_errors(memory),
        order=order(replays, threshold),
        wall_order=order(walls, threshold) if walls else None,
        residual=residual_terms(counts, [measured - predicted for predicted, measured in ranks]),
    )


def _pairs(observed: Sequence[Observed], predictions: Sequence[Prediction]) -> list[PairRow]:
    """All pairs of plans, with the verdict that errors of the other plans support."""
    both = [(float(p.replay_ns), seen.replay_ns) for p, seen in zip(predictions, observed, strict=True)]
    found = []
    for first, second in itertools.combinations(range(len(both)), 2):
        rest = [pair for place, pair in enumerate(both) if place not in (first, second)]
        error = log_error(rest) if len(rest) > 1 else math.inf
        found.append(
            PairRow(
                first=observed[first].label,
                second=observed[second].label,
                predicted=both[second][0] / both[first][0],
                measured=both[second][1] / both[first][1],
                verdict=order_is_certain(both[first][0], both[second][0], error),
            )
        )
    return found


def interference_table(table: PriceTable, runs: Runs, problem: Problem) -> PriceTable:
    """The table with what co-located sequences add, for planning with ``additive+interference``."""
    return with_interference(table, interference_of(runs, problem))
