"""Plan problems under every policy and compare: one row a policy, and a verdict."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from typing import ClassVar

import msgspec

from zellige.errors import InfeasibleError, TimeLimitError
from zellige.memory import Checkpoint, Sharding
from zellige.placement import Engine, Plan, Problem
from zellige.plan.knapformer import best_spec
from zellige.plan.policies import find_policy, plan_batch
from zellige.sources import build_problem

__all__ = ["Comparison", "Row", "build_problem", "compare", "default_policies", "verdict"]

NO_GAIN = 0.01
"""A moldable plan that beats the best static split under the same engine by less than this is no gain."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One policy over the batches; times are means over batches where there are several.

    ``compute_ns``, ``communication_ns`` (exposed transfer, and calls) and ``wait_ns`` are means over ranks, and add
    up to the step: a rank that is done waits for the slowest. ``flops_max_over_mean`` is balance by forward FLOPs
    alone.
    """

    policy: str
    engine: Engine
    fits: bool
    step_time_ns: int | None
    ratio_to_best: float | None
    max_over_mean: float | None
    comm_bytes: int | None
    comm_relative_to_usp: float | None
    num_split: int | None
    num_sequences: int
    peak_memory_bytes: int | None
    memory_over_bytes: int
    planning_ns: int | None
    bound_ns: int | None
    gap: float | None
    reason: str = ""
    notes: tuple[str, ...] = ()
    flops_max_over_mean: float | None = None
    compute_ns: int = 0
    communication_ns: int = 0
    wait_ns: int = 0
    step_time_stdev_ns: int = 0
    win_rate: float = 0.0
    batches_planned: int = 1


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``compare``; ``verdict`` is about the moldable plan against the best static split."""

    SCHEMA: ClassVar[str] = "zellige.comparison/1"

    schema: str = "zellige.comparison/1"
    cluster: str
    model: str
    sharding: Sharding
    checkpoint: Checkpoint
    fidelity: str
    batches: int
    num_tokens: int
    video_share: float
    prices: tuple[str, ...]
    memory_limit_bytes: int
    verdict: str
    rows: tuple[Row, ...]
    assumptions: tuple[str, ...]
    notes: tuple[str, ...]


def default_policies(problems: Sequence[Problem]) -> tuple[str, ...]:
    """The rows of a comparison: KnapFormer's kinds only where they differ from one another."""
    knapformer = ["knapformer"] if problems[0].setup.knapformer else []
    if len(problems) > 1:
        knapformer.append("knapformer-best")
    return (
        "dp",
        "usp",
        *knapformer,
        "knapformer-oracle",
        "static",
        "static-coalesced",
        "zellige-paper",
        "zellige-paper-coalesced",
        "portfolio",
    )


def compare(
    problems: Sequence[Problem],
    policies: Sequence[str] = (),
    *,
    engine: Engine | None = None,
    notes: tuple[str, ...] = (),
    progress: Callable[[], None] = lambda: None,
) -> Comparison:
    """Plan every problem under every policy; ``progress`` is called after each plan."""
    outcomes: dict[str, list[Plan | str]] = {}
    policies = policies or default_policies(problems)
    for policy in policies:
        outcomes[policy] = []
        for problem in _posed(problems, policy):
            outcomes[policy].append(_attempt(problem, policy, engine))
            progress()
    usp = _usp_bytes(problems, outcomes)
    rows = [_row(policy, outcomes[policy], problems, usp) for policy in policies]
    rows = _with_ratios(rows, outcomes)
    first = problems[0]
    return Comparison(
        cluster=first.cluster.name,
        model=first.model.name,
        sharding=first.memory.sharding,
        checkpoint=first.memory.checkpoint,
        fidelity="additive",
        batches=len(problems),
        num_tokens=sum(problem.batch.num_tokens for problem in problems),
        video_share=statistics.fmean(problem.batch.video_share for problem in problems),
        prices=first.prices.sources,
        memory_limit_bytes=first.memory.usable_bytes,
        verdict=verdict(rows),
        rows=tuple(rows),
        assumptions=first.prices.header.assumptions,
        notes=notes,
    )


def verdict(rows: Sequence[Row]) -> str:
    """Whether the best moldable plan beats the best static split under the same engine, and what coalescing brings.

    Empty where the rows lack one of the two, or it does not fit.
    """
    static = _best(rows, lambda name: name == "static-coalesced")
    moldable = _best(rows, lambda name: find_policy(name).moldable)
    if not any(row.fits for row in rows):
        return "nothing fits: no policy's plan is within the memory of a GPU; more ranks or fewer sequences a step"
    if static is None or moldable is None:
        return ""
    longer = moldable[1] / static[1] - 1
    against = "the best static split under the coalesced engine"
    if longer > 0:
        text = f"no gain here: a step of {moldable[0]} is {longer:.1%} longer than {against}"
    elif 1 / (1 + longer) - 1 < NO_GAIN:
        text = f"no gain here: a step of {moldable[0]} is only {-longer:.1%} shorter than {against}"
    else:
        text = f"placement wins: a step of {moldable[0]} is {-longer:.1%} shorter than {against}"
    plain = _best(rows, lambda name: name == "static")
    if plain is not None:
        change = static[1] / plain[1] - 1
        text += (
            f"; coalescing alone makes the best static split {abs(change):.1%} {'shorter' if change <= 0 else 'longer'}"
        )
    return text


def _best(rows: Sequence[Row], wanted: Callable[[str], bool]) -> tuple[str, int] | None:
    fitting = [(row.policy, row.step_time_ns) for row in rows if wanted(row.policy) and row.fits and row.step_time_ns]
    return min(fitting, key=lambda item: item[1]) if fitting else None


def _posed(problems: Sequence[Problem], policy: str) -> Sequence[Problem]:
    """The problems as a policy is told them: ``knapformer-best`` gets the best one specification over the run."""
    if policy != "knapformer-best":
        return problems
    grouped = [dataclasses.replace(problem, engine="group") for problem in problems]
    setup = msgspec.structs.replace(problems[0].setup, knapformer_run=best_spec(grouped))
    return [dataclasses.replace(problem, setup=setup) for problem in problems]


def _attempt(problem: Problem, policy: str, engine: Engine | None) -> Plan | str:
    """A plan, or why this policy has none; bad input still raises."""
    try:
        return plan_batch(problem, policy, engine)
    except (InfeasibleError, TimeLimitError) as error:
        return "; ".join((error.message, *error.details))


def _usp_bytes(problems: Sequence[Problem], outcomes: dict[str, list[Plan | str]]) -> list[int]:
    """What USP moves, batch by batch: the unit of ``comm_relative_to_usp``; empty where USP has no plan."""
    plans = outcomes.get("usp") or [_attempt(problem, "usp", None) for problem in problems]
    return (
        [plan.comm_bytes for plan in plans if isinstance(plan, Plan)] if all(isinstance(p, Plan) for p in plans) else []
    )


def _row(policy: str, outcomes: Sequence[Plan | str], problems: Sequence[Problem], usp: Sequence[int]) -> Row:
    plans = [plan for plan in outcomes if isinstance(plan, Plan)]
    engine = plans[0].engine if plans else find_policy(policy).engine
    sequences = sum(len(problem.batch.sequences) for problem in problems)
    if len(plans) < len(outcomes):
        reasons = [reason for reason in outcomes if isinstance(reason, str)]
        failed = f"{len(reasons)} of {len(outcomes)} batches: " if len(outcomes) > 1 else ""
        return Row(
            policy=policy, engine=engine, fits=False, step_time_ns=None, ratio_to_best=None, max_over_mean=None,
            comm_bytes=None, comm_relative_to_usp=None, num_split=None, num_sequences=sequences, peak_memory_bytes=None,
            memory_over_bytes=0, planning_ns=None, bound_ns=None, gap=None, reason=failed + reasons[0],
            batches_planned=len(plans),
        )  # fmt: skip
    times = [plan.makespan_ns for plan in plans]
    comm, peak = sum(plan.comm_bytes for plan in plans), max(plan.peak_memory_bytes for plan in plans)
    bound = sum(plan.bound_ns for plan in plans)
    parts = [(_mean_time(plan), plan.mean_communication_ns) for plan in plans]
    return Row(
        policy=policy,
        engine=engine,
        fits=all(plan.fits for plan in plans),
        step_time_ns=round(statistics.fmean(times)),
        ratio_to_best=None,
        max_over_mean=statistics.fmean(plan.max_over_mean for plan in plans),
        comm_bytes=comm,
        comm_relative_to_usp=comm / sum(usp) if usp and sum(usp) else None,
        num_split=sum(plan.num_split for plan in plans),
        num_sequences=sequences,
        peak_memory_bytes=peak,
        memory_over_bytes=max(0, peak - plans[0].memory_limit_bytes),
        planning_ns=round(statistics.fmean(plan.solver.planning_ns for plan in plans)),
        bound_ns=round(bound / len(plans)),
        gap=sum(times) / bound - 1,
        notes=plans[0].notes if len(plans) == 1 or policy.startswith("knapformer-best") else (),
        flops_max_over_mean=statistics.fmean(
            _flops_balance(plan, problem) for plan, problem in zip(plans, problems, strict=True)
        ),
        compute_ns=round(statistics.fmean(c - x for c, x in parts)),
        communication_ns=round(statistics.fmean(x for _, x in parts)),
        wait_ns=round(statistics.fmean(t - c for t, (c, _) in zip(times, parts, strict=True))),
        step_time_stdev_ns=round(statistics.stdev(times)) if len(times) > 1 else 0,
        batches_planned=len(plans),
    )


def _flops_balance(plan: Plan, problem: Problem) -> float:
    """The largest rank's forward FLOPs over the mean; a split sequence's are spread evenly."""
    flops = [0.0] * problem.cluster.num_ranks
    tokens = {sequence.id: sequence.bucket.num_tokens for sequence in problem.batch.sequences}
    for placement in plan.placements:
        one = problem.model.sequence_flops(tokens[placement.sequence], linear_factor=1, attention_factor=1)
        for rank in placement.ranks:
            flops[rank] += one / placement.config.degree
    return max(flops) * len(flops) / sum(flops)


def _mean_time(plan: Plan) -> float:
    return statistics.fmean(prediction.time_ns for prediction in plan.predicted)


def _with_ratios(rows: Sequence[Row], outcomes: dict[str, list[Plan | str]]) -> list[Row]:
    """Ratios to the best row that fits (or, where none fits, to the best row), and how often a policy is the best."""
    timed = [row for row in rows if row.step_time_ns is not None]
    candidates = [row for row in timed if row.fits] or timed
    best = min((row.step_time_ns or 0 for row in candidates), default=0)
    wins = {row.policy: 0 for row in rows}
    batches = max((len(plans) for plans in outcomes.values()), default=0)
    for index in range(batches):
        times = {
            policy: plan.makespan_ns
            for policy, plans in outcomes.items()
            if isinstance(plan := plans[index], Plan) and plan.fits
        }
        least = min(times.values(), default=0)
        for policy, time in times.items():
            wins[policy] += time == least
    return [
        msgspec.structs.replace(
            row,
            ratio_to_best=row.step_time_ns / best if row.step_time_ns and best else None,
            win_rate=wins[row.policy] / batches if batches else 0.0,
        )
        for row in rows
    ]
