"""Check files before a run: what would be dropped, what does not fit, what a plan gets wrong. Findings, not errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from zellige.catalog import load_cluster, load_device, load_model
from zellige.cluster import Cluster, Device
from zellige.errors import FormatError, SchemaVersionError
from zellige.files import convert, decode_toml, parse_json, read_text
from zellige.memory import memory_model
from zellige.model import ModelSpec
from zellige.placement import Plan, Problem, plan_digest, rank_costs
from zellige.plan.bounds import best_bound
from zellige.prices import PriceTable, legal_configs
from zellige.shards import legal_heads
from zellige.sources import Options, batches_of, build_problem, load_setting, read_source
from zellige.units import ceil_div, format_bytes
from zellige.workload import Batch, Drop, make_bucket, parse_shape
from zellige.workload import Sequence as TrainingSequence


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What a check reports."""

    code: str
    where: str
    message: str
    fix: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The findings about one file, and lines of what was looked at."""

    file: str
    findings: tuple[Finding, ...]
    summary: tuple[str, ...]


def check_file(argument: str, options: Options, batch_size: int = 0) -> Report:
    """Check a clip list, workload, plan, price table or catalog file; unreadable files raise as everywhere."""
    path = Path(argument)
    if path.suffix == ".json":
        return _check_json(argument, options)
    if path.suffix == ".toml" and (report := _check_catalog(path)) is not None:
        return report
    return check_batches(argument, options, batch_size)


def check_batches(argument: str, options: Options, batch_size: int) -> Report:
    """Drops, memory of the worst bucket where a cluster is known, and steps of same-shape against packed batching."""
    source = read_source(argument)
    if not (options.model or source.model):
        load_setting(source, options)
    model = load_model(options.model or source.model)
    cluster_name = options.cluster or source.cluster
    cluster = load_cluster(cluster_name) if cluster_name else None
    findings: list[Finding] = []
    summary: list[str] = []
    for batch, drops in batches_of(source, model, options):
        findings += drop_findings(drops, len(batch.sequences) + len(drops))
        if not batch.sequences:
            continue
        summary += batch_summary(batch, batch_size)
        if cluster is not None:
            findings += memory_findings(batch, model, cluster, options)
    return Report(file=argument, findings=tuple(findings), summary=tuple(summary))


def drop_findings(drops: Sequence[Drop], total: int) -> list[Finding]:
    """One finding for each dropped clip."""
    return [
        Finding(
            code="ZL120",
            where=drop.clip.where,
            message=f"{drop.clip.id} ({drop.clip.shape}) is dropped, {index} of {total}: {drop.reason}",
            fix=f"a bucket {drop.suggestion}",
        )
        for index, drop in enumerate(drops, 1)
    ]


def batch_summary(batch: Batch, batch_size: int) -> list[str]:
    """Size, and the steps that same-shape batching needs against one packed step."""
    counts = Counter(sequence.bucket for sequence in batch.sequences)
    size = batch_size or len(batch.sequences)
    steps = sum(ceil_div(count, size) for count in counts.values())
    packed = ceil_div(len(batch.sequences), size)
    return [
        f"{batch.name}: {len(batch.sequences)} sequences in {len(counts)} shapes, {batch.num_tokens:,} tokens"
        f" ({100 * batch.video_share:.0f} % video)",
        f"  same-shape batching (one bucket a step, batch size {size}) needs {steps} steps;"
        f" packed, {packed} {'step holds' if packed == 1 else 'steps hold'} all {len(batch.sequences)}",
    ]


def memory_findings(batch: Batch, model: ModelSpec, cluster: Cluster, options: Options) -> list[Finding]:
    """Buckets that no legal split fits, and a batch that exceeds the cluster's memory altogether."""
    memory = memory_model(model, cluster, options.sharding, options.checkpoint)
    problem = build_problem(
        batch, cluster=cluster, model=model, engine="group", sharding=options.sharding, checkpoint=options.checkpoint
    )
    findings = []
    for bucket in problem.counts:
        need = min(option.kept_bytes + option.live_bytes for option in problem.options[bucket.name])
        if need > memory.room_bytes:
            findings.append(
                Finding(
                    code="ZL202",
                    where=batch.name,
                    message=f"bucket {bucket.name} needs {format_bytes(need)} a rank at its widest split;"
                    f" {format_bytes(memory.room_bytes)} are left beside the model's state",
                    fix="more ranks or a shorter clip",
                )
            )
    kept = sum(count * problem.whole(bucket).kept_bytes for bucket, count in problem.counts.items())
    room = memory.room_bytes * cluster.num_ranks
    if kept > room:
        findings.append(
            Finding(
                code="ZL204",
                where=batch.name,
                message=f"the batch keeps {format_bytes(kept)} from forward to backward;"
                f" all ranks together have {format_bytes(room)}",
                fix=f"{ceil_div(kept, room)} steps instead of one, or more ranks",
            )
        )
    return findings


def check_plan(plan: Plan, where: str, options: Options) -> list[Finding]:
    """What a plan gets wrong: its digest, splits, ranks, prices, bound and memory, all recomputed."""
    findings = []
    if plan_digest(plan) != plan.digest:
        findings.append(_plan_finding(where, "the digest does not match the content", "plan the batch again"))
    problem = plan_problem(plan, where, options)
    findings += _placement_findings(plan, problem, where)
    if findings:
        return findings
    costs = rank_costs(problem, plan.placements)
    stated = [(p.time_ns, p.memory_bytes) for p in plan.predicted]
    if stated != list(zip(costs.times_ns, costs.memory_bytes, strict=True)) or plan.comm_bytes != costs.comm_bytes:
        findings.append(
            _plan_finding(
                where, "predicted times, memory or bytes differ from its prices", "check with the same --prices"
            )
        )
    bound, _ = best_bound(problem)
    if plan.bound_ns > bound or plan.makespan_ns < plan.bound_ns:
        findings.append(_plan_finding(where, f"the bound {plan.bound_ns} ns is not a lower bound ({bound} ns is)", ""))
    over = max(costs.memory_bytes) - problem.memory.usable_bytes
    if over > 0:
        findings.append(
            Finding(
                code="ZL204", where=where, message=f"the fullest rank is {format_bytes(over)} over its memory", fix=""
            )
        )
    return findings


def plan_problem(plan: Plan, where: str, options: Options) -> Problem:
    """The problem that a plan answers, rebuilt from the plan itself."""
    model, cluster = load_model(plan.model), load_cluster(plan.cluster)
    buckets = {}
    for placement in plan.placements:
        if placement.bucket not in buckets:
            width, height, frames = parse_shape(placement.bucket)
            try:
                buckets[placement.bucket] = make_bucket(model, width, height, frames or 1, where)
            except ValueError as error:
                raise FormatError(f"bucket {placement.bucket}: {error}", where=where) from None
    sequences = tuple(TrainingSequence(p.sequence, buckets[p.bucket]) for p in plan.placements)
    if not sequences:
        raise FormatError("the plan places no sequence", where=where)
    ordered = tuple(sorted(buckets.values(), key=lambda bucket: (bucket.num_tokens, bucket)))
    batch = Batch(name=plan.batch, sequences=sequences, buckets=ordered)
    prices = (
        convert(parse_json(read_text(Path(options.prices)), options.prices), PriceTable, options.prices)
        if options.prices
        else None
    )
    return build_problem(
        batch,
        cluster=cluster,
        model=model,
        engine=plan.engine,
        sharding=plan.sharding,
        checkpoint=plan.checkpoint,
        prices=prices,
    )


def _placement_findings(plan: Plan, problem: Problem, where: str) -> list[Finding]:
    findings = []
    num_ranks = problem.cluster.num_ranks
    if [p.rank for p in plan.predicted] != list(range(num_ranks)):
        findings.append(_plan_finding(where, f"predictions are not for ranks 0..{num_ranks - 1}", ""))
    twice = [name for name, count in Counter(p.sequence for p in plan.placements).items() if count > 1]
    if twice:
        findings.append(
            _plan_finding(
                where,
                f"sequence {twice[0]} is placed {Counter(p.sequence for p in plan.placements)[twice[0]]} times",
                "",
            )
        )
    legal = set(legal_configs(problem.model, problem.cluster))
    geometry = problem.model.geometry
    for placement in plan.placements:
        if max(placement.ranks) >= num_ranks:
            findings.append(
                _plan_finding(where, f"{placement.sequence} uses rank {max(placement.ranks)} of {num_ranks}", "")
            )
        elif placement.config not in legal:
            heads = " ".join(map(str, legal_heads(geometry.num_heads, geometry.num_kv_heads, num_ranks)))
            findings.append(
                Finding(
                    code="ZL203",
                    where=where,
                    message=f"{placement.sequence} cannot be split as {placement.config}",
                    fix=f"{geometry.num_heads} heads on {num_ranks} ranks: legal h: {heads}",
                )
            )
    return findings


def _plan_finding(where: str, message: str, fix: str) -> Finding:
    return Finding(code="ZL406", where=where, message=message, fix=fix)


def _check_json(argument: str, options: Options) -> Report:
    raw = parse_json(read_text(Path(argument)), argument)
    schema = raw.get("schema", "") if isinstance(raw, dict) else ""
    if isinstance(schema, str) and schema.startswith("zellige.plan/"):
        plan = convert(raw, Plan, argument)
        summary = (
            f"plan by {plan.policy}: {len(plan.placements)} sequences on {plan.cluster}, gap {100 * plan.gap:.2f} %"
        )
        return Report(file=argument, findings=tuple(check_plan(plan, argument, options)), summary=(summary,))
    if isinstance(schema, str) and schema.startswith("zellige.prices/"):
        table = convert(raw, PriceTable, argument)
        return Report(file=argument, findings=(), summary=(f"{len(table.rows)} prices, {', '.join(table.sources)}",))
    raise SchemaVersionError(
        "the file is neither a plan nor a price table", where=argument, fix="clip lists are .jsonl or .csv"
    )


def _check_catalog(path: Path) -> Report | None:
    """Check a model, device or cluster file; None for a workload, whose clips are checked as a batch."""
    raw: dict[str, Any] = decode_toml(read_text(path), dict, path.name)
    schema = str(raw.get("schema", "")).split("/")[0]
    noun: ModelSpec | Device | Cluster
    if schema == "zellige.model":
        noun = load_model(str(path))
    elif schema == "zellige.device":
        noun = load_device(str(path))
    elif schema == "zellige.cluster":
        noun = load_cluster(str(path))
    else:
        return None
    return Report(
        file=str(path), findings=(), summary=(f"{schema.removeprefix('zellige.')} {noun.name}: {noun.title}",)
    )
