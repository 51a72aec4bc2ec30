"""Plan problems under every policy and compare: one row a policy, and a verdict."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar

import msgspec

from zellige.memory import Checkpoint, Sharding
from zellige.outcomes import ADDITIVE, Fidelities, Judge, Outcome
from zellige.placement import Engine, Problem, Setup
from zellige.plan.policies import find_policy
from zellige.rows import Row, tally
from zellige.sim import Noise
from zellige.sources import build_problem
from zellige.units import format_percent

__all__ = ["Comparison", "Row", "build_problem", "compare", "default_policies", "verdict"]

NO_GAIN = 0.01
"""A moldable plan that beats the best static split under the same engine by less than this is no gain."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``compare``; ``verdict`` is about the moldable plan against the best static split.

    ``noise`` and ``replicas`` say how often, and under what, each batch was simulated; ``sources`` where the constants
    of the simulation come from.
    """

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
    noise: Noise | None = None
    replicas: int = 1
    sources: tuple[str, ...] = ()
    reserved_bytes: int = 0


def default_policies(setup: Setup, num_batches: int) -> tuple[str, ...]:
    """The rows of a comparison: KnapFormer's kinds only where they differ from one another."""
    knapformer = ["knapformer"] if setup.knapformer else []
    if num_batches > 1:
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
        "zellige",
    )


def compare(
    problems: Sequence[Problem],
    policies: Sequence[str] = (),
    *,
    engine: Engine | None = None,
    how: Fidelities = ADDITIVE,
    notes: tuple[str, ...] = (),
    progress: Callable[[], None] = lambda: None,
) -> Comparison:
    """Plan every problem under every policy, and simulate where asked; ``progress`` is called after each plan."""
    policies = tuple(policies) or default_policies(problems[0].setup, len(problems))
    told = {policy: pose(problems, policy) for policy in policies}
    judge = Judge(how)
    outcomes = [
        outcome
        for index, problem in enumerate(problems)
        for outcome in judge.outcomes(
            problem, [(policy, told[policy][index]) for policy in policies], index, engine, progress
        )
    ]
    planning: dict[str, list[int]] = {}
    add_planning(planning, outcomes)
    first = problems[0]
    return make_comparison(
        outcomes, planning, first, how=how, notes=notes, sources=judge.sources, prices=first.prices.sources
    )


def add_planning(planning: dict[str, list[int]], outcomes: Iterable[Outcome]) -> None:
    """Count plans and their nanoseconds by policy."""
    for outcome in outcomes:
        if not outcome.reason:
            counted = planning.setdefault(outcome.policy, [0, 0])
            counted[0] += 1
            counted[1] += outcome.planning_ns


def make_comparison(
    outcomes: Iterable[Outcome],
    planning: Mapping[str, Sequence[int]],
    first: Problem,
    *,
    how: Fidelities,
    notes: tuple[str, ...],
    sources: tuple[str, ...],
    prices: tuple[str, ...],
    paired: bool = False,
) -> Comparison:
    """The comparison of outcomes, which are walked twice; ``first`` is the first batch's problem."""
    rows, totals = tally(outcomes, planning, paired=paired or how.is_noisy)
    return Comparison(
        cluster=first.cluster.name,
        model=first.model.name,
        sharding=first.memory.sharding,
        checkpoint=first.memory.checkpoint,
        fidelity=how.fidelity,
        batches=totals.batches,
        num_tokens=totals.num_tokens,
        video_share=totals.video_share,
        prices=prices,
        memory_limit_bytes=first.memory.usable_bytes,
        verdict=verdict(rows),
        rows=tuple(rows),
        assumptions=first.prices.header.assumptions,
        notes=notes,
        noise=how.options.noise if how.is_noisy else None,
        replicas=how.replicas,
        sources=sources,
        reserved_bytes=first.memory.reserved_bytes,
    )


def verdict(rows: Sequence[Row]) -> str:
    """Whether the best moldable plan beats the best static split under the same engine, and what coalescing brings.

    Where one of the two is there and does not fit, what fits best; empty where the rows lack one of them.
    """
    static, moldable = best_static(rows), best_moldable(rows)
    if not any(row.fits for row in rows):
        return (
            "nothing fits: no policy's plan is within the memory of a GPU; more ranks, fewer sequences a step,"
            " or plan --micro-steps auto"
        )
    if static is None or moldable is None:
        return _one_sided(rows)
    longer = moldable[1] / static[1] - 1
    against = "the best static split under the coalesced engine"
    if abs(longer) < 5e-4:
        text = f"no gain here: a step of {moldable[0]} takes as long as {against}"
    elif longer > 0:
        text = f"no gain here: a step of {moldable[0]} is {format_percent(longer, 1)} longer than {against}"
    elif 1 / (1 + longer) - 1 < NO_GAIN:
        text = f"no gain here: a step of {moldable[0]} is only {format_percent(-longer, 1)} shorter than {against}"
    else:
        text = f"placement wins: a step of {moldable[0]} is {format_percent(-longer, 1)} shorter than {against}"
    plain = _best(rows, lambda name: name == "static")
    if plain is not None:
        change = static[1] / plain[1] - 1
        which = "shorter" if change <= 0 else "longer"
        text += f"; coalescing alone makes the best static split {format_percent(abs(change), 1)} {which}"
    return text


def _one_sided(rows: Sequence[Row]) -> str:
    """What to say where a side of the verdict is there and has no plan that fits: whose, and what fits best."""
    static = [row for row in rows if row.policy == "static-coalesced"]
    moldable = [row for row in rows if find_policy(row.policy).moldable]
    unfit = [row.policy for side in (static, moldable) if not any(row.fits for row in side) for row in side]
    best = _best(rows, lambda _: True)
    if not unfit or best is None:
        return ""
    return (
        f"nothing to compare: {', '.join(unfit)} {'has' if len(unfit) == 1 else 'have'} no plan within the memory"
        f" of a GPU; of those that fit, {best[0]} takes the least; try plan --micro-steps auto, or plan --engine group,"
        " which keeps fewer bytes"
    )


def verdict_kind(rows: Sequence[Row]) -> str:
    """The verdict in two words; empty where there is none."""
    return verdict(rows).partition(":")[0]


def best_static(rows: Sequence[Row]) -> tuple[str, int] | None:
    """The best static split under the coalesced engine and its step, where it fits."""
    return _best(rows, lambda name: name == "static-coalesced")


def best_moldable(rows: Sequence[Row]) -> tuple[str, int] | None:
    """The fastest moldable policy that fits, and its step."""
    return _best(rows, lambda name: find_policy(name).moldable)


def _best(rows: Sequence[Row], wanted: Callable[[str], bool]) -> tuple[str, int] | None:
    fitting = [(row.policy, row.step_time_ns) for row in rows if wanted(row.policy) and row.fits and row.step_time_ns]
    return min(fitting, key=lambda item: item[1]) if fitting else None


SPEC_BATCHES = 100
"""The batches of a run from which ``knapformer-best`` chooses its one specification: the first ones."""


def pose(problems: Sequence[Problem], policy: str) -> Sequence[Problem]:
    """The problems as a policy is told them: ``knapformer-best`` gets the best one specification over the run."""
    if policy != "knapformer-best":
        return problems
    spec = run_spec(problems[:SPEC_BATCHES])
    return [pose_one(problem, policy, spec) for problem in problems]


def run_spec(problems: Sequence[Problem]) -> str:
    """KnapFormer's best specification over a run."""
    from zellige.plan.knapformer import best_spec

    return best_spec([dataclasses.replace(problem, engine="group") for problem in problems])


def pose_one(problem: Problem, policy: str, spec: str) -> Problem:
    """One batch of a run as a policy is told it."""
    if policy != "knapformer-best":
        return problem
    return dataclasses.replace(problem, setup=msgspec.structs.replace(problem.setup, knapformer_run=spec))
