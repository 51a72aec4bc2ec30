"""What memory says of a batch before it is planned, under the engine that ``plan`` would plan for.

Engines keep different bytes, so that a batch may be out of the question for one and not for another: every line names
the engine that it holds for.
"""

from __future__ import annotations

import msgspec

from zellige.cluster import Cluster
from zellige.errors import NoRoomError
from zellige.model import ModelSpec
from zellige.placement import Option, Problem
from zellige.plan.policies import find_policy
from zellige.plan.room import require_room, room_need
from zellige.plan_check import Finding
from zellige.sources import Options, build_problem, load_prices
from zellige.units import count_of, format_bytes, format_count
from zellige.workload import Batch

DEFAULT_POLICY = "zellige"
"""What ``plan`` plans with where no policy is named."""


class MemoryCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The findings, lines for the summary, and the fewest micro-steps that memory does not rule out."""

    engine: str
    least_micro_steps: int
    lines: tuple[str, ...]
    findings: tuple[Finding, ...]


def planned_problem(batch: Batch, model: ModelSpec, cluster: Cluster, options: Options) -> Problem:
    """The problem that ``plan`` would solve: the same prices and engine. Raises as :func:`build_problem`."""
    return build_problem(
        batch,
        cluster=cluster,
        model=model,
        engine=options.engine or find_policy(DEFAULT_POLICY).engine,
        sharding=options.sharding,
        checkpoint=options.checkpoint,
        prices=load_prices(options.prices),
    )


def memory_check(problem: Problem) -> MemoryCheck:
    """The worst bucket's memory, buckets that no legal split fits, and a batch that all ranks together cannot hold."""
    need = room_need(problem)
    findings = [_too_large(problem, bucket.name) for bucket in problem.counts if not _fits(problem, bucket.name)]
    lines = [_worst_bucket(problem)]
    try:
        require_room(problem, 1)
        lines.append(
            f"  memory of all under engine {problem.engine}: at least {format_bytes(need.needed_bytes)} of"
            f" {format_bytes(need.room_bytes)} on all ranks, which rules out no single step; plan says whether one fits"
        )
    except NoRoomError as proof:
        steps = count_of(need.least_micro_steps, "micro-step")
        findings.append(
            Finding(
                code=proof.code,
                where=problem.batch.name,
                message=f"one step cannot hold the batch under engine {problem.engine}: {need.proof}",
                fix=f"plan --micro-steps auto: {steps} or more; or {proof.fix}",
            )
        )
    return MemoryCheck(
        engine=problem.engine,
        least_micro_steps=need.least_micro_steps,
        lines=tuple(lines),
        findings=tuple(findings),
    )


def _worst_bucket(problem: Problem) -> str:
    total, room = len(problem.batch.sequences), problem.memory.room_bytes
    need = {bucket: _bytes(problem.whole(bucket)) for bucket in problem.counts}
    worst = max(need, key=lambda bucket: (need[bucket], bucket))
    mean = sum(need[bucket] * count for bucket, count in problem.counts.items()) // total
    share = f"{format_count(problem.counts[worst])} of {format_count(total)}"
    return (
        f"  memory of a whole sequence: worst bucket {worst.name} ({share}), {format_bytes(need[worst])};"
        f" mean {format_bytes(mean)}; {format_bytes(room)} a GPU beside the model's state"
        + ("" if need[worst] <= room else ": must be split")
    )


def _fits(problem: Problem, bucket: str) -> bool:
    return any(problem.fits_alone(option) for option in problem.options[bucket])


def _too_large(problem: Problem, bucket: str) -> Finding:
    least = min(_bytes(option) for option in problem.options[bucket])
    return Finding(
        code="ZL202",
        where=problem.batch.name,
        message=f"bucket {bucket} needs {format_bytes(least)} a rank however it is split, under engine"
        f" {problem.engine}; {format_bytes(problem.memory.room_bytes)} are left",
        fix="more ranks or a shorter clip",
    )


def _bytes(option: Option) -> int:
    return option.kept_bytes + option.live_bytes
