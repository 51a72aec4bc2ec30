"""Check files before a run: what would be dropped, what does not fit, what a plan gets wrong. Findings, not errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from zellige.batch_memory import MemoryCheck, memory_check, planned_problem
from zellige.bucket_sets import BucketSet, bucket_memory
from zellige.catalog import (
    load_bucket_set,
    load_cluster,
    load_collectives,
    load_device,
    load_generator,
    load_model,
    names,
)
from zellige.cluster import Cluster, Device, MeasuredTables
from zellige.errors import SchemaVersionError, UsageError
from zellige.files import convert, decode_toml, parse_json, printable, read_text
from zellige.fitting import fitting_lines
from zellige.generate import BatchGenerator
from zellige.memory import memory_model
from zellige.model import ModelSpec
from zellige.placement import Plan
from zellige.plan_check import COLLECTIVE_TIMEOUT_S, Finding, check_plan, load_plan, plan_number
from zellige.prices import EDITED, UNVERIFIED, PriceTable, verified
from zellige.schedule import Schedule
from zellige.schedule_check import check_plan_lines, check_schedule, holds_plans
from zellige.sources import Options, batches_of, changed_cluster, read_source
from zellige.units import ceil_div, count_of, format_bytes, format_count, share_of
from zellige.workload import Batch, Bucket, Clip, Drop, training_frames


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The findings about one file, and lines of what was looked at."""

    file: str
    findings: tuple[Finding, ...]
    summary: tuple[str, ...]


def check_file(argument: str, options: Options, batch_size: int = 0, timeout_s: float = COLLECTIVE_TIMEOUT_S) -> Report:
    """Check a clip list, workload, plan, price table or catalog file; unreadable files raise as everywhere."""
    if plan_number(argument) is not None:
        return _check_plan(load_plan(argument), argument, options, timeout_s)
    path = Path(argument)
    if path.suffix == ".json":
        return _check_json(argument, options, timeout_s)
    if path.suffix == ".jsonl" and holds_plans(path):
        findings, number = check_plan_lines(argument, options, timeout_s)
        return Report(file=printable(argument), findings=tuple(findings), summary=(count_of(number, "plan"),))
    if argument in names("buckets"):
        return check_bucket_set(load_bucket_set(argument), argument, options)
    if (
        path.suffix == ".toml"
        and not argument.startswith("gen:")
        and (report := _check_catalog(path, options)) is not None
    ):
        return report
    return check_batches(argument, options, batch_size)


def check_batches(argument: str, options: Options, batch_size: int) -> Report:
    """Drops, memory of the worst bucket where a cluster is known, and steps of same-shape against packed batching."""
    source = read_source(argument, options)
    if not (options.model or source.model):
        raise UsageError(f"{source.label} does not say for which model", fix="--model wan2.1-t2v-1.3b")
    model = load_model(options.model or source.model)
    cluster_name = options.cluster or source.cluster
    cluster = changed_cluster(cluster_name, options) if cluster_name else None
    findings: list[Finding] = []
    summary = fitting_lines(source, model, options)
    for batch, drops in batches_of(source, model, options):
        findings += drop_findings(drops)
        if drops:
            keep = list(dict.fromkeys(drop.suggestion for drop in drops if drop.suggestion))
            total = len(batch.sequences) + len(drops)
            summary.append(
                f"{batch.name}: {share_of(len(drops), total, 'clip')} dropped"
                + (f"; buckets that would keep them: {', '.join(keep)}" if keep else "")
            )
        if not batch.sequences:
            continue
        memory = None if cluster is None else memory_check(planned_problem(batch, model, cluster, options))
        summary += batch_summary(batch, batch_size, memory)
        findings += loss_findings(batch, source.clips[batch.name], model, options)
        findings += epoch_findings(batch, batch_size, cluster.num_ranks if cluster else 1)
        findings += () if memory is None else memory.findings
    return Report(file=printable(argument), findings=tuple(findings), summary=tuple(summary))


def drop_findings(drops: Sequence[Drop]) -> list[Finding]:
    """One finding for each row whose clips are dropped."""
    rows: dict[tuple[str, str], list[Drop]] = {}
    for drop in drops:
        rows.setdefault((drop.clip.where, drop.reason), []).append(drop)
    findings = []
    for (where, reason), same in rows.items():
        first = same[0]
        what = first.clip.id if len(same) == 1 else f"{first.clip.id} and {len(same) - 1} more"
        findings.append(
            Finding(
                code="ZL120",
                where=where,
                message=f"{what} ({first.clip.shape}) dropped: {reason}",
                fix=f"a bucket {first.suggestion}" if first.suggestion else "take it out, or another --model",
            )
        )
    return findings


LOSES_HALF = 0.5


def loss_findings(batch: Batch, clips: Sequence[Clip], model: ModelSpec, options: Options) -> list[Finding]:
    """Rows of which a bucket keeps less than half of the frames or of the pixels."""
    buckets = {sequence.id: sequence.bucket for sequence in batch.sequences}
    seen: dict[tuple[str, Bucket], Finding] = {}
    for clip in clips:
        bucket = buckets.get(clip.id)
        if bucket is None or (clip.where, bucket) in seen:
            continue
        _, snapped = training_frames(clip, model, resample=options.resample)
        frames = bucket.num_frames / snapped
        pixels = min(1.0, bucket.width * bucket.height / (clip.width * clip.height))
        if min(frames, pixels) < LOSES_HALF:
            seen[clip.where, bucket] = Finding(
                code="ZL124",
                where=clip.where,
                message=f"{clip.id} ({clip.shape}) goes to {bucket.name}, which keeps {100 * frames:.0f} % of frames"
                f" and {100 * pixels:.0f} % of pixels",
                fix=f"a bucket {clip.width}x{clip.height}x{snapped}, or one nearer to it",
            )
    return list(seen.values())


def batch_summary(batch: Batch, batch_size: int, memory: MemoryCheck | None) -> list[str]:
    """Size, the steps of same-shape batching against packed ones, and what memory says where a cluster is known."""
    counts = Counter(sequence.bucket for sequence in batch.sequences)
    size = batch_size or len(batch.sequences)
    steps = sum(ceil_div(count, size) for count in counts.values())
    packed = ceil_div(len(batch.sequences), size)
    padded = len(batch.sequences) * max(bucket.num_tokens for bucket in counts)
    everything = format_count(len(batch.sequences))
    return [
        f"{batch.name}: {count_of(len(batch.sequences), 'sequence')} in {count_of(len(counts), 'shape')},"
        f" {count_of(batch.num_tokens, 'token')} ({100 * batch.video_share:.0f} % video)",
        f"  same-shape batching (one bucket a step, batch size {format_count(size)}) needs"
        f" {count_of(steps, 'step')};"
        f" packed, {count_of(packed, 'step')} for all {everything}{_packed_note(packed, memory)}",
        f"  padding all to the longest wastes {100 * (1 - batch.num_tokens / padded):.1f} % of"
        f" {count_of(padded, 'token')};"
        " packed with varlen attention, 0 %",
        *(() if memory is None else memory.lines),
    ]


def _packed_note(packed: int, memory: MemoryCheck | None) -> str:
    """What a number of packed steps leaves out: memory, where no cluster is named or it takes more steps."""
    if memory is None:
        return " if memory allows (--cluster says)"
    if memory.least_micro_steps <= packed:
        return ""
    steps = count_of(memory.least_micro_steps, "micro-step")
    return f" by number, at least {steps} by memory (engine {memory.engine})"


def epoch_findings(batch: Batch, batch_size: int, num_ranks: int) -> list[Finding]:
    """Buckets that same-shape batching with ``drop_last`` would never train: fewer clips than a step takes."""
    if not batch_size:
        return []
    needed = batch_size * num_ranks
    counts = Counter(sequence.bucket for sequence in batch.sequences)
    short = {bucket: count for bucket, count in counts.items() if count < needed}
    if not short:
        return []
    none = len(short) == len(counts)
    clips = sum(short.values())
    example = min(short, key=lambda bucket: (short[bucket], bucket))
    return [
        Finding(
            code="ZL121",
            where=batch.name,
            message=f"{share_of(len(short), len(counts), 'bucket')} {'holds' if len(short) == 1 else 'hold'}"
            f" under {batch_size} x {num_ranks} = {count_of(needed, 'clip')};"
            f" with drop_last {count_of(clips, 'clip')} of {'it' if len(short) == 1 else 'them'} never"
            f" {'trains' if clips == 1 else 'train'}"
            + (" and the epoch has 0 steps" if none else "")
            + f" (fewest: {example.name}, {short[example]})",
            fix="packed batches, fewer buckets, or a smaller batch size",
        )
    ]


def check_bucket_set(bucket_set: BucketSet, where: str, options: Options) -> Report:
    """Shapes that break the frame rule, and published batch sizes that a cluster's GPUs cannot hold."""
    model = load_model(options.model or bucket_set.model)
    findings = [
        Finding(
            code="ZL122",
            where=where,
            message=f"{count_of(p.num_frames, 'frame')} break the rule of {model.name}, {model.latent.vae_stride_t}n+1",
            fix=count_of(model.snap_frames(p.num_frames), "frame"),
        )
        for p in bucket_set.patterns()
        if p.num_frames != model.snap_frames(p.num_frames) or (p.num_frames > 1 and not model.takes_videos)
    ]
    if findings or not options.cluster:
        return Report(
            file=printable(where), findings=tuple(findings), summary=(count_of(len(bucket_set.patterns()), "shape"),)
        )
    cluster = changed_cluster(options.cluster, options)
    memory = memory_model(model, cluster, bucket_set.sharding, "full")
    rows = bucket_memory(bucket_set, model, memory.room_bytes)
    left = format_bytes(memory.room_bytes)
    summary = [f"{count_of(len(rows), 'shape')}, {left} a GPU beside {bucket_set.sharding} state; largest batch:"]
    summary += [
        f"  {r.shape}: {r.max_batch} (published {r.batch_size or '-'}, {count_of(r.num_tokens, 'token')})" for r in rows
    ]
    findings = [
        Finding(
            code="ZL123",
            where=where,
            message=f"{r.shape} x {r.batch_size} needs {format_bytes(r.needed_bytes)}, {left} are left",
            fix=f"batch size {r.max_batch}",
        )
        for r in rows
        if r.batch_size and r.max_batch < r.batch_size
    ]
    return Report(file=printable(where), findings=tuple(findings), summary=tuple(summary))


def _check_json(argument: str, options: Options, timeout_s: float) -> Report:
    raw = parse_json(read_text(Path(argument)), argument)
    schema = raw.get("schema", "") if isinstance(raw, dict) else ""
    if isinstance(schema, str) and schema.startswith("zellige.plan/"):
        return _check_plan(convert(raw, Plan, argument), argument, options, timeout_s)
    if isinstance(schema, str) and schema.startswith("zellige.schedule/"):
        schedule = convert(raw, Schedule, argument)
        summary = (
            f"schedule by {schedule.policy}: {count_of(schedule.num_sequences, 'sequence')} in"
            f" {count_of(schedule.num_micro_steps, 'micro-step')} on {schedule.cluster}, gap {100 * schedule.gap:.2f} %"
        )
        found = check_schedule(schedule, argument, options, timeout_s)
        return Report(file=printable(argument), findings=tuple(found), summary=(summary,))
    if isinstance(schema, str) and schema.startswith("zellige.prices/"):
        table = verified(convert(raw, PriceTable, argument), argument)
        summary = f"{count_of(len(table.rows), 'price')}, {', '.join(table.sources)}{_trust(table)}"
        return Report(file=printable(argument), findings=(), summary=(summary,))
    raise SchemaVersionError(
        "the file is no plan, no schedule and no price table", where=argument, fix="clip lists are .jsonl or .csv"
    )


def _check_plan(plan: Plan, where: str, options: Options, timeout_s: float) -> Report:
    summary = (
        f"plan by {plan.policy}: {count_of(len(plan.placements), 'sequence')} on {plan.cluster},"
        f" gap {100 * plan.gap:.2f} %"
    )
    findings = tuple(check_plan(plan, where, options, timeout_s))
    return Report(file=printable(where), findings=findings, summary=(summary,))


def _trust(table: PriceTable) -> str:
    """Why a table is not taken for what a program wrote."""
    if table.digest == EDITED:
        return ": changed since it was written, its digest is of other prices"
    return ": the file has no digest" if table.digest == UNVERIFIED else ""


def _check_catalog(path: Path, options: Options) -> Report | None:
    """Check a catalog file; None for a workload, whose clips are checked as a batch."""
    raw: dict[str, Any] = decode_toml(read_text(path), dict, path.name)
    schema = str(raw.get("schema", "")).split("/")[0]
    noun: ModelSpec | Device | Cluster | MeasuredTables | BatchGenerator
    if schema == "zellige.buckets":
        return check_bucket_set(load_bucket_set(str(path)), str(path), options)
    if schema == "zellige.model":
        noun = load_model(str(path))
    elif schema == "zellige.device":
        noun = load_device(str(path))
    elif schema == "zellige.cluster":
        noun = load_cluster(str(path))
    elif schema == "zellige.collectives":
        noun = load_collectives(str(path))
    elif schema == "zellige.generator":
        noun = load_generator(str(path))
    else:
        return None
    return Report(
        file=printable(str(path)),
        findings=(),
        summary=(f"{schema.removeprefix('zellige.')} {noun.name}: {noun.title}",),
    )
