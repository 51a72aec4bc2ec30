"""Runs that were recorded, read again: they must be of the problem that they are compared with."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from zellige.errors import FormatError, InvalidPlanError, ModelMismatchError
from zellige.files import decode_json, read_text
from zellige.placement import Plan, Problem, plan_digest
from zellige.plan_check import placement_findings
from zellige.trials import Observed, Runs
from zellige.units import count_of

RECORD_AGAIN = "validate --save DIR records runs and table"


def recorded_cluster(path: str) -> str:
    """The cluster that runs of a file are of; raises :class:`FormatError`."""
    return decode_json(read_text(Path(path)), Runs, path).cluster


def read_runs(path: str, problem: Problem) -> Runs:
    """Runs of a file; raises :class:`FormatError`, :class:`InvalidPlanError` or :class:`ModelMismatchError`.

    Every plan must place the problem's sequences on its ranks, and every observation must be of its plan.
    """
    runs = decode_json(read_text(Path(path)), Runs, path)
    for label, found, wanted in (
        ("cluster", runs.cluster, problem.cluster.name),
        ("model", runs.model, problem.model.name),
    ):
        if found != wanted:
            raise ModelMismatchError(
                f"these runs are of {label} {found!r}, not of {wanted!r}", where=path, fix=f"--{label} {found}"
            )
    if len(runs.plans) != len(runs.observed):
        raise FormatError(
            f"{count_of(len(runs.plans), 'plan')} and {count_of(len(runs.observed), 'observation')}",
            where=path,
            fix=RECORD_AGAIN,
        )
    labels = Counter(seen.label for seen in runs.observed)
    for label, count in labels.items():
        if count > 1:
            raise FormatError(f"{count} observations are called {label!r}", where=path, fix=RECORD_AGAIN)
    for plan, seen in zip(runs.plans, runs.observed, strict=True):
        where = f"{path}, plan {seen.label!r}"
        _check_plan(plan, seen, problem, where)
        _check_observed(seen, problem.cluster.num_ranks, where)
    return runs


def _check_plan(plan: Plan, seen: Observed, problem: Problem, where: str) -> None:
    if not plan_digest(plan) == plan.digest == seen.plan:
        raise InvalidPlanError("the digest does not match the content", where=where, fix=RECORD_AGAIN)
    for finding in placement_findings(plan, problem, where):
        raise InvalidPlanError(finding.message, where=where, fix=RECORD_AGAIN)
    placed = {placement.sequence: placement.bucket for placement in plan.placements}
    wanted = {sequence.id: sequence.bucket.name for sequence in problem.batch.sequences}
    if placed != wanted:
        name = min(name for name in {*placed, *wanted} if placed.get(name) != wanted.get(name))
        raise InvalidPlanError(
            f"sequence {name} is {placed.get(name, 'not')} in the plan, and {wanted.get(name, 'not')} in the batch",
            where=where,
            fix="the batch that was recorded",
        )


def _check_observed(seen: Observed, num_ranks: int, where: str) -> None:
    steps = len(seen.replays_ns)
    for what, count, allowed in (
        ("rank", len(seen.ranks), {num_ranks}),
        ("replay", steps, {max(1, steps)}),
        ("wall time", len(seen.walls_ns), {steps if seen.how == "ranks" else 0}),
    ):
        if count not in allowed:
            raise FormatError(
                f"{count_of(count, what)} observed, where there must be {min(allowed)}", where=where, fix=RECORD_AGAIN
            )
