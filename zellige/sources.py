"""From user input to problems: read batch arguments, find the cluster and model, price, and report what was dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from zellige.analytic import analytic_table
from zellige.catalog import is_workload, load_cluster, load_model, load_workload
from zellige.clips import read_clips
from zellige.cluster import Cluster
from zellige.errors import AllDroppedError, UsageError
from zellige.files import decode_json, read_text
from zellige.memory import Checkpoint, Sharding, memory_model
from zellige.model import ModelSpec
from zellige.placement import NO_SETUP, Engine, Problem, Setup
from zellige.prices import PriceTable, check_table
from zellige.workload import Batch, BucketPattern, Clip, Drop, build_batch, parse_patterns


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A batch argument as read: its clips by batch name, and what its file says about the set-up."""

    label: str
    clips: dict[str, list[Clip]]
    cluster: str = ""
    model: str = ""
    patterns: tuple[BucketPattern, ...] = ()
    setup: Setup = NO_SETUP
    ignored_columns: tuple[str, ...] = ()
    note: str = ""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What all planning commands share; empty strings mean: as the workload says."""

    cluster: str = ""
    model: str = ""
    sharding: Sharding = "zero3"
    checkpoint: Checkpoint = "full"
    engine: Engine | None = None
    buckets: str = ""
    resample: bool = True
    prices: str = ""
    usp: str = ""
    knapformer: str = ""


def read_source(argument: str) -> Source:
    """Read a batch argument: a bundled workload's name, a workload file (.toml), or a clip list (.jsonl, .csv)."""
    if not is_workload(argument):
        path = Path(argument)
        clips, ignored = read_clips(path)
        return Source(label=path.name, clips=clips, ignored_columns=ignored)
    workload = load_workload(argument)
    baselines = workload.baselines
    return Source(
        label=workload.name,
        clips={workload.name: workload.expand(workload.name)},
        cluster=workload.cluster,
        model=workload.model,
        patterns=parse_patterns(workload.buckets),
        setup=Setup(usp=baselines.usp, knapformer=baselines.knapformer) if baselines else Setup(),
        note=f"{workload.name}: composition {workload.origin} ({workload.source})",
    )


def read_buckets(text: str) -> tuple[BucketPattern, ...]:
    """A bucket set: a file with one pattern a line, or patterns separated by commas."""
    path = Path(text)
    items = read_text(path).split() if path.suffix in {".txt", ".list"} else text.split(",")
    return parse_patterns(items)


def load_setting(source: Source, options: Options) -> tuple[Cluster, ModelSpec]:
    """The cluster and model: as the options say, else as the workload does; :class:`UsageError` where neither."""
    cluster, model = options.cluster or source.cluster, options.model or source.model
    for label, value, example in (("cluster", cluster, "a800x8"), ("model", model, "wan2.1-t2v-1.3b")):
        if not value:
            raise UsageError(f"{source.label} does not say for which {label}", fix=f"--{label} {example}")
    return load_cluster(cluster), load_model(model)


def batches_of(source: Source, model: ModelSpec, options: Options) -> Iterator[tuple[Batch, tuple[Drop, ...]]]:
    """The batches of a source, with what was dropped from each."""
    patterns = read_buckets(options.buckets) if options.buckets else source.patterns
    for name, clips in source.clips.items():
        yield build_batch(name, clips, model, patterns, resample=options.resample)


def build_problem(
    batch: Batch,
    *,
    cluster: Cluster | str,
    model: ModelSpec | str,
    engine: Engine = "coalesced",
    sharding: Sharding = "zero3",
    checkpoint: Checkpoint = "full",
    prices: PriceTable | None = None,
    setup: Setup | None = None,
) -> Problem:
    """Join a batch with a cluster and a model; prices are analytic where none are given."""
    cluster = load_cluster(cluster) if isinstance(cluster, str) else cluster
    model = load_model(model) if isinstance(model, str) else model
    memory = memory_model(model, cluster, sharding, checkpoint)
    if prices is None:
        prices = analytic_table(model, cluster, batch.buckets, checkpoint)
    else:
        check_table(prices, model.name, cluster.name, checkpoint, "prices")
    return Problem(batch, cluster, model, prices, memory, engine, setup or Setup())


def build_problems(source: Source, options: Options, report: Callable[[Source, Sequence[Drop]], None]) -> list[Problem]:
    """Problems of all batches of a source; drops go to ``report``. Raises where nothing is left of a batch."""
    cluster, model = load_setting(source, options)
    given = _load_prices(options.prices)
    setup = Setup(usp=options.usp or source.setup.usp, knapformer=options.knapformer or source.setup.knapformer)
    if options.cluster and options.cluster != source.cluster:
        setup = Setup(usp=options.usp, knapformer=options.knapformer)
    problems = []
    for batch, drops in batches_of(source, model, options):
        if drops:
            report(source, drops)
        if not batch.sequences:
            raise AllDroppedError(
                f"every clip of batch {batch.name} was dropped", where=source.label, fix="zellige-sim check shows why"
            )
        problem = build_problem(
            batch,
            cluster=cluster,
            model=model,
            sharding=options.sharding,
            checkpoint=options.checkpoint,
            prices=given,
            setup=setup,
        )
        problems.append(problem)
    return problems


def _load_prices(path: str) -> PriceTable | None:
    return decode_json(read_text(Path(path)), PriceTable, path) if path else None
