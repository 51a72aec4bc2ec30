"""Check a plan against itself: its digest, splits and ranks, its program, and every figure that it states."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import msgspec

from zellige.catalog import load_model
from zellige.errors import FormatError, InvalidPlanError, ModelMismatchError, ProgramError
from zellige.files import WRITTEN_BY, check_schema, convert, decode_json, parse_json, read_text
from zellige.memory import keep_free
from zellige.placement import Plan, Problem, RankCosts, plan_digest, rank_costs
from zellige.plan.bounds import best_bound
from zellige.plan.room import room_need
from zellige.prices import legal_configs
from zellige.program import lower
from zellige.program_checks import check_program
from zellige.schedule import Schedule
from zellige.shards import legal_heads
from zellige.sim.what_if import base_name, changes
from zellige.sources import Options, build_problem, changed_cluster, load_prices
from zellige.units import count_of, format_bytes, format_time
from zellige.workload import Batch, make_bucket, parse_shape
from zellige.workload import Sequence as TrainingSequence

COLLECTIVE_TIMEOUT_S = 600.0
"""NCCL's default time-out in torch.distributed (torch 2.x: 10 minutes)."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What a check reports."""

    code: str
    where: str
    message: str
    fix: str = ""


def check_plan(plan: Plan, where: str, options: Options, timeout_s: float = COLLECTIVE_TIMEOUT_S) -> list[Finding]:
    """What a plan gets wrong: its digest, splits, ranks, prices, bound and memory, all recomputed."""
    findings = []
    if plan_digest(plan) != plan.digest:
        findings.append(_plan_finding(where, "the digest does not match the content"))
    problem = plan_problem(plan, where, options)
    findings += placement_findings(plan, problem, where)
    if findings:
        return findings
    findings += _program_findings(plan, problem, where)
    costs = rank_costs(problem, plan.placements)
    findings += _figure_findings(plan, problem, costs, where)
    findings += waiting_findings(plan, problem.model.geometry.num_layers, timeout_s, where)
    over = max(costs.memory_bytes) - problem.memory.usable_bytes
    if over > 0:
        findings.append(
            Finding(
                code="ZL204",
                where=where,
                message=f"the fullest rank is {format_bytes(over)} over its memory",
                fix="plan --micro-steps auto:"
                f" {count_of(max(2, room_need(problem).least_micro_steps), 'micro-step')} or more;"
                " or a policy that splits, as zellige",
            )
        )
    return findings


def waiting_findings(plan: Plan, num_layers: int, timeout_s: float, where: str) -> list[Finding]:
    """A plan whose ranks can wait in one exchange for more than half of the collective time-out.

    A rank waits at most for what the slowest rank does in a layer between two exchanges: no more than the layer's
    backward, which is at most 5/8 of a layer's step.
    """
    longest_ns = plan.makespan_ns * 5 // (8 * num_layers)
    if longest_ns <= timeout_s * 1e9 / 2:
        return []
    return [
        Finding(
            code="ZL125",
            where=where,
            message=f"a rank can wait up to {format_time(longest_ns)} in one exchange,"
            f" and collectives time out after {timeout_s:g} s",
            fix="a longer time-out of the process group, or more ranks",
        )
    ]


def _figure_findings(plan: Plan, problem: Problem, costs: RankCosts, where: str) -> list[Finding]:
    """Stated figures that differ from what the placements give. A solver's own bound is taken, if the step obeys it."""
    bound, bound_name = best_bound(problem)
    own = plan.bound.startswith(("B1", "B2", "B3"))
    limit = problem.memory.usable_bytes
    figures = {
        "times of ranks": ([p.time_ns for p in plan.predicted], list(costs.times_ns)),
        "communication of ranks": ([p.communication_ns for p in plan.predicted], list(costs.exposed_ns)),
        "memory of ranks": ([p.memory_bytes for p in plan.predicted], list(costs.memory_bytes)),
        "makespan": (plan.makespan_ns, costs.makespan_ns),
        "bytes moved": (plan.comm_bytes, costs.comm_bytes),
        "memory of a GPU": (plan.memory_limit_bytes, limit),
        "fits": (plan.fits, max(costs.memory_bytes) <= limit),
        "bound": (plan.bound_ns, bound if own else min(max(plan.bound_ns, bound), costs.makespan_ns)),
        "gap": (plan.gap, plan.makespan_ns / plan.bound_ns - 1),
    }
    return [
        _plan_finding(where, f"stated {name} differ from what the placements give", "check with the same --prices")
        for name, (stated, found) in figures.items()
        if stated != found
    ] + (
        [_plan_finding(where, f"the bound is {bound_name}, not {plan.bound}")]
        if own and plan.bound != bound_name
        else []
    )


CLIP_TABLES = (".csv", ".parquet")
"""Endings of clip lists that no plan has."""


def load_plan(path: str) -> Plan:
    """Read a plan file, or one plan of a schedule or of a stream: ``schedule.json#2``, ``plans.jsonl#17`` (from 1)."""
    if (part := plan_number(path)) is not None:
        return _plan_of_many(*part)
    if Path(path).suffix in CLIP_TABLES and _is_there(path):
        raise FormatError("this is a clip list, where a plan is needed", where=path, fix=WRITTEN_BY["zellige.plan"])
    text = read_text(Path(path))
    if Path(path).suffix == ".jsonl":
        check_schema(parse_json(text.partition("\n")[0], f"{path}:1"), Plan.SCHEMA, f"{path}:1")
        raise FormatError("a stream holds many plans", where=path, fix=f"{path}#1 is its first")
    raw = parse_json(text, path)
    if isinstance(raw, dict) and raw.get("schema") == Schedule.SCHEMA:
        raise _needs_one_of(convert(raw, Schedule, path), path)
    return convert(raw, Plan, path)


def _needs_one_of(schedule: Schedule, path: str) -> FormatError:
    last = len(schedule.plans)
    each = f"{path}#1" if last == 1 else f"{path}#1 to {path}#{last} one by one"
    return FormatError(
        f"a schedule holds a plan for each of its {count_of(last, 'micro-step')}, and one plan is needed here",
        where=path,
        fix=f"{each}: micro-steps run one after another, so that their times add up; check takes the whole file",
    )


MAX_DIGITS = 18


def plan_number(path: str) -> tuple[str, int] | None:
    """The file and the number (from 1) of ``file#17``; None for a path without one, also where it contains a #."""
    name, mark, number = path.rpartition("#")
    if mark and name and number.isascii() and number.isdecimal() and not _is_there(path):
        return name, int(number[:MAX_DIGITS])
    return None


def _is_there(path: str) -> bool:
    try:
        return Path(path).exists()
    except (OSError, ValueError):
        return False


def _plan_of_many(path: str, number: int) -> Plan:
    """A plan by its number; a file of one plan holds number 1."""
    text = read_text(Path(path))
    if Path(path).suffix == ".jsonl":
        lines = text.split("\n")[: text.count("\n")]
        return decode_json(lines[_index(number, len(lines), path)], Plan, f"{path}:{number}")
    raw = parse_json(text, path)
    if isinstance(raw, dict) and raw.get("schema") == Schedule.SCHEMA:
        plans = convert(raw, Schedule, path).plans
        return plans[_index(number, len(plans), path)]
    check_schema(raw, Plan.SCHEMA, path)
    _index(number, 1, path)
    return convert(raw, Plan, path)


def _index(number: int, count: int, path: str) -> int:
    if not 1 <= number <= count:
        held = f"it holds 1 to {count}" if count > 1 else f"it holds one: {path}" if count else "plan the run again"
        raise FormatError(f"there is no plan {number}", where=path, fix=held)
    return number - 1


def plan_problem(plan: Plan, where: str, options: Options) -> Problem:
    """The problem that a plan answers, rebuilt from the plan itself; --model and --cluster name files of one's own."""
    model = load_model(options.model or plan.model)
    cluster = changed_cluster(options.cluster or base_name(plan.cluster), options)
    for label, found, wanted in (("model", model.name, plan.model), ("cluster", cluster.name, plan.cluster)):
        if found != wanted:
            changed = changes(plan.cluster) if label == "cluster" else ()
            given = " ".join(f"--device {c[7:]}" if c.startswith("device=") else f"--set {c}" for c in changed)
            raise ModelMismatchError(
                f"the plan is for {label} {wanted!r}, not {found!r}",
                where=where,
                fix=given or f"leave --{label} out, or give {wanted!r} or its .toml file",
            )
    buckets = {}
    for placement in plan.placements:
        if placement.bucket not in buckets:
            width, height, frames = parse_shape(placement.bucket)
            try:
                buckets[placement.bucket] = make_bucket(model, width, height, frames or 1, where)
            except ValueError as error:
                raise FormatError(f"bucket {placement.bucket}: {error}", where=where, fix=PLAN_AGAIN) from None
    sequences = tuple(TrainingSequence(p.sequence, buckets[p.bucket]) for p in plan.placements)
    if not sequences:
        raise FormatError("the plan places no sequence", where=where, fix=PLAN_AGAIN)
    ordered = tuple(sorted(buckets.values(), key=lambda bucket: (bucket.num_tokens, bucket)))
    batch = Batch(name=plan.batch, sequences=sequences, buckets=ordered)
    problem = build_problem(
        batch,
        cluster=cluster,
        model=model,
        engine=plan.engine,
        sharding=plan.sharding,
        checkpoint=plan.checkpoint,
        prices=load_prices(options.prices),
        reserve=options.reserve,
    )
    return problem if options.reserve else _with_own_reserve(problem, plan)


def _with_own_reserve(problem: Problem, plan: Plan) -> Problem:
    """The problem with as much memory kept free as the plan's own limit leaves."""
    memory = problem.memory
    kept_free = memory.usable_bytes - plan.memory_limit_bytes
    if not 0 < kept_free < memory.room_bytes:
        return problem
    return dataclasses.replace(problem, memory=keep_free(memory, kept_free))


def runnable_problem(plan: Plan, where: str, options: Options) -> Problem:
    """:func:`plan_problem` of a plan that is to run, or to be simulated.

    Raises :class:`InvalidPlanError` where it places a sequence twice, which would be run, and counted, twice.
    """
    problem = plan_problem(plan, where, options)
    name, count = Counter(placement.sequence for placement in plan.placements).most_common(1)[0]
    if count > 1:
        raise InvalidPlanError(f"sequence {name} is placed {count_of(count, 'time')}", where=where, fix=PLAN_AGAIN)
    return problem


def placement_findings(plan: Plan, problem: Problem, where: str) -> list[Finding]:
    """Ranks that a plan states no figures for, sequences placed twice, and ranks and splits that there are not."""
    findings = []
    num_ranks = problem.cluster.num_ranks
    if [p.rank for p in plan.predicted] != list(range(num_ranks)):
        findings.append(_plan_finding(where, f"predictions are not for ranks 0..{num_ranks - 1}"))
    counts = Counter(p.sequence for p in plan.placements)
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        findings.append(_plan_finding(where, f"sequence {twice[0]} is placed {count_of(counts[twice[0]], 'time')}"))
    legal = set(legal_configs(problem.model, problem.cluster))
    geometry = problem.model.geometry
    for placement in plan.placements:
        if max(placement.ranks) >= num_ranks:
            findings.append(
                _plan_finding(where, f"{placement.sequence} uses rank {max(placement.ranks)} of {num_ranks}")
            )
        elif placement.config not in legal:
            heads = " ".join(map(str, legal_heads(geometry.num_heads, geometry.num_kv_heads, num_ranks)))
            findings.append(
                Finding(
                    code="ZL203",
                    where=where,
                    message=f"{placement.sequence} cannot be split as {placement.config}",
                    fix=f"{count_of(geometry.num_heads, 'head')} on {count_of(num_ranks, 'rank')}: legal h: {heads}",
                )
            )
    return findings


def _program_findings(plan: Plan, problem: Problem, where: str) -> list[Finding]:
    """What the lowered programs (one a micro-batch) break: matching collectives, one order, conservation of rows."""
    parts = plan.parts
    try:
        for part in [plan] if len(parts) == 1 else parts:
            check_program(lower(part, problem))
    except ProgramError as error:
        return [Finding(code=error.code, where=where, message=error.message, fix=error.fix)]
    return []


PLAN_AGAIN = "plan the batch again"


def _plan_finding(where: str, message: str, fix: str = PLAN_AGAIN) -> Finding:
    return Finding(code="ZL406", where=where, message=message, fix=fix)
