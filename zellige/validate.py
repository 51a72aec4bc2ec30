"""Predicted against measured: how long plans take, what their ranks need, and how far to trust the order of plans.

Predictions (:mod:`zellige.predictions`) come from a measured price table; plans that they are held against were used
for no fit. Makespans are compared with the **replay** of the ranks' own times (:mod:`zellige.replay`), for which
predictions leave the wires out, and with the wall clock where there are as many cores as ranks.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import msgspec

from zellige.errors import UsageError
from zellige.interference import RankCounts, Residual, fullest_rank, plan_chain_ns, rank_counts, residual_terms
from zellige.placement import Problem
from zellige.predictions import (
    MODELS,
    ModelName,
    PlanPace,
    Prediction,
    measured_calibration,
    plan_pace,
    predict_all,
)
from zellige.sim.agreement import (
    Errors,
    Order,
    Verdict,
    log_error,
    order,
    order_is_certain,
    relative_errors,
)
from zellige.sim.planned_work import without_wires
from zellige.trials import Observed, Runs
from zellige.validation_plans import is_policy_plan

NOISE_FACTOR = 3.0
LEAST_THRESHOLD = 0.02
"""Plans count as different where they differ by this many times the noise of a median (that of a step over the root of
the steps), and by this much at least."""

JUDGES: tuple[ModelName, ...] = ("additive", "event")
"""Models whose order of policies gets a verdict: what plans are chosen by, and what knows of waiting."""


class ModelReport(msgspec.Struct, frozen=True, kw_only=True):
    """How one model agrees with what was measured; ``wall`` is None with fewer cores than ranks.

    ``residual`` is that of the ranks' own times, ``step_residual`` that of replayed makespans.
    """

    model: ModelName
    replay: Errors
    wall: Errors | None
    rank_time: Errors
    memory: Errors
    order: Order
    wall_order: Order | None
    residual: Residual
    step_residual: Residual


class PlanRow(msgspec.Struct, frozen=True, kw_only=True):
    """A plan: replayed and measured makespan, noise, and what each model predicts of the replay."""

    label: str
    engine: str
    replay_ns: int
    wall_ns: int | None
    noise: float
    predicted_ns: dict[str, int]


class PairRow(msgspec.Struct, frozen=True, kw_only=True):
    """Two plans: the predicted time of the second over the first, measured likewise, and whether the order holds."""

    first: str
    second: str
    model: ModelName
    predicted: float
    measured: float
    verdict: Verdict


class SetupReport(msgspec.Struct, frozen=True, kw_only=True):
    """One cluster's plans. ``pace`` is how much slower the machine was than when the table was measured.

    ``pairs`` are all pairs of plans by sums of prices, ``policy_pairs`` those of plans by policies, by each of
    :data:`JUDGES`.
    """

    cluster: str
    model: str
    basis: str
    noise: float
    pace: float
    plans: tuple[PlanRow, ...]
    models: tuple[ModelReport, ...]
    pairs: tuple[PairRow, ...]
    policy_pairs: tuple[PairRow, ...]
    certain_right: int
    certain: int
    interference_helps: bool


class Validation(msgspec.Struct, frozen=True, kw_only=True):
    """The whole report."""

    SCHEMA: ClassVar[str] = "zellige.validation/2"

    schema: str = "zellige.validation/2"
    setups: tuple[SetupReport, ...]
    seconds: float


class _Loads(NamedTuple):
    """What residuals are put beside: counts and chains of every rank of every plan, and of every plan."""

    ranks: list[RankCounts]
    rank_chains: list[int]
    plans: list[RankCounts]
    plan_chains: list[int]


def validate(runs: Runs, problem: Problem, *, at_pace: bool = True) -> SetupReport:
    """Compare observed plans with predictions from the problem's table, which must be a measured one.

    ``at_pace`` brings predictions to the pace of the machine while a plan ran; without it they are as the table says.
    """
    calibration = measured_calibration(problem)
    if len(runs.observed) < 3:
        raise UsageError(f"{len(runs.observed)} plans say nothing about order", fix="run three or more")
    paces = [plan_pace(each, calibration) if at_pace else PlanPace() for each in runs.observed]
    predictions = predict_all(runs, problem, paces)
    timed = problem.cluster.num_ranks <= runs.cores
    loads, threshold = _loads(runs, problem), order_threshold(runs.observed)
    models = tuple(_model_report(name, runs, predictions[name], loads, threshold, timed=timed) for name in MODELS)
    places = range(len(runs.plans))
    pairs = _pairs(runs.observed, predictions["additive"], "additive", places)
    policies = [place for place in places if is_policy_plan(runs.plans[place])]
    clear = [pair for pair in pairs if pair.verdict == "certain"]
    return SetupReport(
        cluster=runs.cluster,
        model=runs.model,
        basis=_basis(runs, problem.cluster.num_ranks, calibration.together),
        noise=plan_noise(runs.observed),
        pace=statistics.median(each.pace_ns for each in runs.observed) / calibration.pace_ns,
        plans=tuple(_plan_row(runs, place, predictions, timed=timed) for place in places),
        models=models,
        pairs=tuple(pairs),
        policy_pairs=tuple(
            pair for name in JUDGES for pair in _pairs(runs.observed, predictions[name], name, policies)
        ),
        certain=len(clear),
        certain_right=sum((pair.predicted - 1) * (pair.measured - 1) > 0 for pair in clear),
        interference_helps=_helps(models[0], models[2]),
    )


def _helps(without: ModelReport, having: ModelReport) -> bool:
    """Whether terms bring plans that they were not fitted on nearer, and do not disturb their order."""
    nearer = having.replay.mape.mean < without.replay.mape.mean
    return nearer and having.order.tau_clear.mean >= without.order.tau_clear.mean


def _basis(runs: Runs, ranks: int, together: int) -> str:
    """What predictions are held against, and whether prices were measured otherwise than plans ran."""
    measured = "one rank alone" if together == 1 else f"{together} ranks beside each other"
    if runs.observed[0].how == "alone":
        return "replay of ranks that ran one by one, no makespan was measured" + (
            "" if together == 1 else f"; prices of {measured}"
        )
    if ranks > runs.cores:
        return f"replay of CPU time: {ranks} ranks share {runs.cores} cores, so no makespan was measured"
    return "replay of CPU time, and wall clock" + (f"; prices of {measured}" if together == 1 else "")


def order_threshold(observed: Sequence[Observed]) -> float:
    """What plans must differ by to count as different: fixed from their noise, before any prediction is looked at."""
    steps = len(observed[0].replays_ns)
    return max(LEAST_THRESHOLD, NOISE_FACTOR * plan_noise(observed) / math.sqrt(steps))


def plan_noise(observed: Sequence[Observed]) -> float:
    """The median over plans of the relative spread of their steps (half of the range)."""
    return statistics.median(_relative_spread(each.replays_ns) for each in observed)


def _relative_spread(values: Sequence[int]) -> float:
    return (max(values) - min(values)) / 2 / statistics.median(values) if len(values) > 1 else 0.0


def _plan_row(runs: Runs, place: int, predictions: dict[ModelName, list[Prediction]], *, timed: bool) -> PlanRow:
    seen = runs.observed[place]
    return PlanRow(
        label=seen.label,
        engine=runs.plans[place].engine,
        replay_ns=round(seen.replay_ns),
        wall_ns=round(seen.wall_ns) if seen.wall_ns is not None and timed else None,
        noise=_relative_spread(seen.replays_ns),
        predicted_ns={name: predictions[name][place].replay_ns for name in MODELS},
    )


def _loads(runs: Runs, problem: Problem) -> _Loads:
    dry = without_wires(problem)
    counts = [rank_counts(plan, problem) for plan in runs.plans]
    chains = [plan_chain_ns(plan, dry) for plan in runs.plans]
    return _Loads(
        ranks=[count for of_plan in counts for count in of_plan],
        rank_chains=[chain for chain, of_plan in zip(chains, counts, strict=True) for _ in of_plan],
        plans=[fullest_rank(of_plan) for of_plan in counts],
        plan_chains=chains,
    )


def _model_report(
    name: ModelName, runs: Runs, predictions: Sequence[Prediction], loads: _Loads, threshold: float, *, timed: bool
) -> ModelReport:
    both = list(zip(predictions, runs.observed, strict=True))
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
    walls = [(float(p.makespan_ns), seen.wall_ns) for p, seen in both if seen.wall_ns is not None and timed]
    return ModelReport(
        model=name,
        replay=relative_errors(replays),
        wall=relative_errors(walls) if walls else None,
        rank_time=relative_errors(ranks),
        memory=relative_errors(memory),
        order=order(replays, threshold),
        wall_order=order(walls, threshold) if walls else None,
        residual=residual_terms(loads.ranks, loads.rank_chains, [measured - said for said, measured in ranks]),
        step_residual=residual_terms(loads.plans, loads.plan_chains, [measured - said for said, measured in replays]),
    )


def _pairs(
    observed: Sequence[Observed], predictions: Sequence[Prediction], model: ModelName, places: Sequence[int]
) -> list[PairRow]:
    """All pairs of the plans at some places, with the verdict that errors of all other plans support."""
    both = [(float(p.replay_ns), seen.replay_ns) for p, seen in zip(predictions, observed, strict=True)]
    found = []
    for first, second in itertools.combinations(places, 2):
        rest = [pair for place, pair in enumerate(both) if place not in (first, second)]
        error = log_error(rest) if len(rest) > 1 else math.inf
        found.append(
            PairRow(
                first=observed[first].label,
                second=observed[second].label,
                model=model,
                predicted=both[second][0] / both[first][0],
                measured=both[second][1] / both[first][1],
                verdict=order_is_certain(both[first][0], both[second][0], error),
            )
        )
    return found
