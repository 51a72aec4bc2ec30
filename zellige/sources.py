"""From user input to problems: read batch arguments, find the cluster and model, price, and report what was dropped."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from zellige.calibration import calibrated, calibrated_memory
from zellige.catalog import (
    is_workload,
    load_bucket_set,
    load_cluster,
    load_device,
    load_generator,
    load_model,
    load_workload,
    names,
)
from zellige.clips import read_clips
from zellige.cluster import Cluster
from zellige.errors import AllDroppedError, UsageError
from zellige.files import printable, read_text
from zellige.generate import BatchGenerator, generate_clips
from zellige.memory import Checkpoint, Sharding, memory_model, with_reserve
from zellige.model import ModelSpec
from zellige.placement import NO_SETUP, Engine, Problem, Setup
from zellige.price_book import PriceBook
from zellige.prices import PriceTable, check_table, read_table
from zellige.sim.what_if import changes, what_if
from zellige.workload import Batch, BucketPattern, Clip, Drop, build_batch, parse_patterns


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A batch argument as read: its clips by batch name, what its file says about the set-up, and how it was read.

    Generated clips are drawn when a batch is looked up, so that any number of batches takes the memory of one.
    """

    label: str
    clips: Mapping[str, list[Clip]]
    cluster: str = ""
    model: str = ""
    patterns: tuple[BucketPattern, ...] = ()
    setup: Setup = NO_SETUP
    reading: tuple[str, ...] = ()
    note: str = ""

    @property
    def origin(self) -> str:
        """The label, with the seed where there is one."""
        return f"{self.label} seed {self.clips.seed}" if isinstance(self.clips, GeneratedClips) else self.label

    @property
    def identity(self) -> Any:
        """What the batches come from, as data: the generator and its seed, or all clips."""
        if isinstance(self.clips, GeneratedClips):
            return {"generator": self.clips.generator, "seed": self.clips.seed}
        return {name: [[c.id, c.shape, str(c.fps)] for c in clips] for name, clips in self.clips.items()}


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
    batches: int = 1
    seed: int = 0
    settings: tuple[str, ...] = ()
    device: str = ""
    reserve: str = ""


class GeneratedClips(Mapping[str, list[Clip]]):
    """The clips of a generator's batches by batch name, drawn at every look."""

    def __init__(self, generator: BatchGenerator, model: ModelSpec, num_ranks: int, seed: int, count: int) -> None:
        self.generator = generator
        self.seed = seed
        self._model = model
        self._num_ranks = num_ranks
        self._indexes = {f"{generator.name}-{index}": index for index in range(count)}

    def __getitem__(self, name: str) -> list[Clip]:
        return generate_clips(self.generator, self._model, self._num_ranks, self.seed, self._indexes[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._indexes)

    def __len__(self) -> int:
        return len(self._indexes)


def read_source(argument: str, options: Options) -> Source:
    """Read a batch argument: a workload (name or .toml), a clip list (.jsonl, .csv), or ``gen:`` and a generator."""
    if argument.startswith("gen:"):
        return _generated(argument.removeprefix("gen:"), options)
    if not is_workload(argument):
        path = Path(argument)
        clips, notes = read_clips(path)
        return Source(label=printable(path.name), clips=clips, reading=notes)
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


def read_sources(arguments: Sequence[str], options: Options) -> list[Source]:
    """The sources of several batch arguments; raises :class:`UsageError` for ``--batches`` where none is drawn."""
    if options.batches != 1 and not any(argument.startswith("gen:") for argument in arguments):
        raise UsageError(
            f"--batches {options.batches} says how many batches gen:NAME draws, and none of these is one",
            where=", ".join(arguments),
            fix="leave it out; catalog list has the generators",
        )
    return [read_source(argument, options) for argument in arguments]


def _generated(name: str, options: Options) -> Source:
    generator = load_generator(name)
    model = load_model(options.model or generator.model)
    cluster = load_cluster(options.cluster or generator.cluster)
    clips = GeneratedClips(generator, model, cluster.num_ranks, options.seed, options.batches)
    note = f"generated by {generator.name}, seed {options.seed}: {generator.source}"
    return Source(label=f"gen:{name}", clips=clips, cluster=generator.cluster, model=generator.model, note=note)


def read_buckets(text: str) -> tuple[BucketPattern, ...]:
    """A bucket set by name or .toml file, a .txt file with one pattern a line, or patterns separated by commas."""
    path = Path(text)
    if path.suffix == ".toml" or text in names("buckets"):
        return load_bucket_set(text).patterns()
    items = read_text(path).split() if path.suffix in {".txt", ".list"} else text.split(",")
    return parse_patterns(items)


def load_setting(source: Source, options: Options) -> tuple[Cluster, ModelSpec]:
    """The cluster and model: as the options say, else as the workload does; :class:`UsageError` where neither.

    ``--set`` and ``--device`` change the cluster, and its name.
    """
    cluster, model = options.cluster or source.cluster, options.model or source.model
    for label, value, example in (("cluster", cluster, "a800x8"), ("model", model, "wan2.1-t2v-1.3b")):
        if not value:
            raise UsageError(f"{source.label} does not say for which {label}", fix=f"--{label} {example}")
    return changed_cluster(cluster, options), load_model(model)


def changed_cluster(name: str, options: Options) -> Cluster:
    """A cluster by name, with what the options change of it."""
    return what_if(load_cluster(name), options.settings, load_device(options.device) if options.device else None)


def patterns_of(source: Source, options: Options) -> tuple[BucketPattern, ...]:
    """The bucket set: as the options say, else as the workload does; empty for none."""
    return read_buckets(options.buckets) if options.buckets else source.patterns


def batches_of(
    source: Source, model: ModelSpec, options: Options, start: int = 0
) -> Iterator[tuple[Batch, tuple[Drop, ...]]]:
    """The batches of a source from number ``start`` on, with what was dropped from each."""
    patterns = patterns_of(source, options)
    for name in itertools.islice(source.clips, start, None):
        yield build_batch(name, source.clips[name], model, patterns, resample=options.resample)


def build_problem(
    batch: Batch,
    *,
    cluster: Cluster | str,
    model: ModelSpec | str,
    engine: Engine = "coalesced",
    sharding: Sharding = "zero3",
    checkpoint: Checkpoint = "full",
    prices: PriceTable | PriceBook | None = None,
    setup: Setup | None = None,
    reserve: str = "",
) -> Problem:
    """Join a batch with a cluster and a model; prices are analytic where none are given, from a book where one is.

    ``reserve`` is a share or a size (``5%``, ``2GB``) of every rank's usable memory that plans keep free.
    """
    cluster = load_cluster(cluster) if isinstance(cluster, str) else cluster
    model = load_model(model) if isinstance(model, str) else model
    memory = memory_model(model, cluster, sharding, checkpoint)
    if prices is None:
        prices = price_book(model, cluster, checkpoint)
    if isinstance(prices, PriceBook):
        prices = prices.table(batch.buckets)
    else:
        check_table(prices, model, cluster, checkpoint, "prices")
        if prices.header.calibration is not None:
            cluster = calibrated(cluster, prices.header.calibration)
            memory = calibrated_memory(memory, prices.header.calibration)
    if reserve:
        memory = with_reserve(memory, reserve)
    return Problem(batch, cluster, model, prices, memory, engine, setup or Setup())


def price_book(model: ModelSpec, cluster: Cluster, checkpoint: Checkpoint) -> PriceBook:
    """Analytic prices of a setting, marked as extrapolated where something of the cluster was changed."""
    return PriceBook(model, cluster, checkpoint, extrapolated=bool(changes(cluster.name)))


def build_problems(source: Source, options: Options, report: Callable[[Source, Sequence[Drop]], None]) -> list[Problem]:
    """Problems of all batches of a source; drops go to ``report``. Raises where nothing is left of a batch."""
    return list(each_problem(source, options, report))


def each_problem(
    source: Source, options: Options, report: Callable[[Source, Sequence[Drop]], None]
) -> Iterator[Problem]:
    """The problems of a source one by one, as :func:`build_problems` makes them."""
    cluster, model = load_setting(source, options)
    prices = load_prices(options.prices) or price_book(model, cluster, options.checkpoint)
    for batch in kept_batches(source, model, options, report):
        yield build_problem(
            batch,
            cluster=cluster,
            model=model,
            sharding=options.sharding,
            checkpoint=options.checkpoint,
            prices=prices,
            setup=source_setup(source, options),
            reserve=options.reserve,
        )


def kept_batches(
    source: Source,
    model: ModelSpec,
    options: Options,
    report: Callable[[Source, Sequence[Drop]], None],
    start: int = 0,
) -> Iterator[Batch]:
    """The batches of a source one by one, from number ``start`` on; drops go to ``report``.

    Raises :class:`AllDroppedError` where nothing is left of a batch.
    """
    for batch, drops in batches_of(source, model, options, start):
        if drops:
            report(source, drops)
        if not batch.sequences:
            raise AllDroppedError(
                f"every clip of batch {batch.name} was dropped", where=source.label, fix="zellige-sim check shows why"
            )
        yield batch


def source_setup(source: Source, options: Options) -> Setup:
    """What the baselines are told: the options, then the workload's own set-up on its own cluster."""
    if options.cluster and options.cluster != source.cluster:
        return Setup(usp=options.usp, knapformer=options.knapformer)
    return Setup(usp=options.usp or source.setup.usp, knapformer=options.knapformer or source.setup.knapformer)


def load_prices(path: str) -> PriceTable | None:
    """A price table by path; None for no path."""
    return read_table(path) if path else None
