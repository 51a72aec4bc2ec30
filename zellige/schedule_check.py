"""Check what holds several plans: a schedule of micro-steps against itself, and the plans of a stream one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

from zellige.errors import FormatError
from zellige.files import decode_json, read_text
from zellige.placement import Plan
from zellige.plan.bounds import best_bound
from zellige.plan.room import room_need
from zellige.plan_check import PLAN_AGAIN, Finding, check_plan, plan_problem
from zellige.schedule import Schedule, schedule_digest
from zellige.sources import Options
from zellige.units import count_of

SETTING = ("policy", "engine", "cluster", "model", "sharding", "checkpoint", "memory_limit_bytes")
"""What the plans of a schedule have in common with it."""


def check_schedule(schedule: Schedule, where: str, options: Options, timeout_s: float) -> list[Finding]:
    """What a schedule gets wrong: its digest, its plans, sequences that run twice, and its totals, recomputed."""
    findings = []
    if schedule_digest(schedule) != schedule.digest:
        findings.append(_finding(where, "the digest does not match the content"))
    for number, plan in enumerate(schedule.plans, 1):
        other = [name for name in SETTING if getattr(plan, name) != getattr(schedule, name)]
        if other:
            findings.append(_finding(where, f"micro-step {number} has another {' and '.join(other)}"))
    counts = Counter(placement.sequence for plan in schedule.plans for placement in plan.placements)
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        findings.append(
            _finding(where, f"sequence {twice[0]} runs {count_of(counts[twice[0]], 'time')} over the micro-steps")
        )
    if findings:
        return findings
    for number, plan in enumerate(schedule.plans, 1):
        findings += check_plan(plan, f"{where}#{number}", options, timeout_s)
    return findings or _total_findings(schedule, where, options)


def _total_findings(schedule: Schedule, where: str, options: Options) -> list[Finding]:
    """Stated totals that differ from what the plans add up to, and from what the whole batch proves."""
    plans = schedule.plans
    everything = tuple(placement for plan in plans for placement in plan.placements)
    whole = plan_problem(msgspec.structs.replace(plans[0], placements=everything, batch=schedule.batch), where, options)
    need = room_need(whole)
    total = sum(plan.makespan_ns for plan in plans)
    figures = {
        "number of micro-steps": (schedule.num_micro_steps, len(plans)),
        "number of tokens": (schedule.num_tokens, whole.batch.num_tokens),
        "step time": (schedule.step_time_ns, total),
        "peak memory": (schedule.peak_memory_bytes, max(plan.peak_memory_bytes for plan in plans)),
        "fits": (schedule.fits, all(plan.fits for plan in plans)),
        "bytes moved": (schedule.comm_bytes, sum(plan.comm_bytes for plan in plans)),
        "bound": ((schedule.bound_ns, schedule.bound), best_bound(whole)),
        "gap": (schedule.gap, total / schedule.bound_ns - 1),
        "least number of micro-steps": (
            (schedule.least_micro_steps, schedule.least_proof),
            (need.least_micro_steps, need.proof),
        ),
    }
    return [
        _finding(where, f"the stated {name} is not what the plans give", "check with the same --prices")
        for name, (stated, found) in figures.items()
        if stated != found
    ]


def holds_plans(path: Path) -> bool:
    """Whether a .jsonl file is a stream of plans, by its first line."""
    try:
        with open(path, "rb") as file:
            raw = msgspec.json.decode(file.readline())
    except (OSError, ValueError):
        return False
    schema = raw.get("schema") if isinstance(raw, dict) else None
    return isinstance(schema, str) and schema.startswith("zellige.plan/")


def check_plan_lines(path: str, options: Options, timeout_s: float) -> tuple[list[Finding], int]:
    """The findings on every plan of a stream's file, and how many plans there are."""
    findings, number = [], 0
    for number, plan in enumerate(_plan_lines(path), 1):
        findings += check_plan(plan, f"{path}:{number}", options, timeout_s)
    return findings, number


def _plan_lines(path: str) -> Iterator[Plan]:
    text = read_text(Path(path))
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else (), 1):
        yield decode_json(line, Plan, f"{path}:{number}")
    if not text.endswith("\n"):
        raise FormatError("the last line breaks off", where=path, fix="plan the run again from there")


def _finding(where: str, message: str, fix: str = PLAN_AGAIN) -> Finding:
    return Finding(code="ZL406", where=where, message=message, fix=fix)
