"""What is measured, in which order: probes are small programs of one bucket under one split, run on one rank alone.

A budget of time cuts the list; what is left out is fitted. It never cuts the **core**, a dozen of probes that every law
can be fitted from.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from zellige.cluster import Cluster
from zellige.memory import Checkpoint
from zellige.model import ModelSpec
from zellige.prices import attention_shape, legal_configs
from zellige.program import Assignment, Heads, Program, build_program
from zellige.shards import WHOLE, ParallelConfig, owned_range
from zellige.workload import Bucket

MOST_COPIES = 16
"""Sequences of a bucket in a probe, at most."""

LEAST_SPLITS = 18
"""Probes of splits, at least, where a cluster has few of them."""

CROWD, CROWDED_BUCKETS = 2, 3
"""Tokens of a full stage, in longest sequences, and of how many buckets there are such stages."""

PROBE_LAYERS = 2
"""Layers that a probe runs; a step's time is that of a layer times the model's layers."""


class Probe(msgspec.Struct, frozen=True):
    """``count`` sequences of a bucket under one configuration, on as many ranks as it splits into.

    ``beside`` more of them are whole on each rank, as a plan would fill the waits of a split, and so are ``others``:
    buckets, and how many of each. Of ``layers`` a step runs as many as the model has.
    """

    bucket: Bucket
    config: ParallelConfig
    count: int = 1
    beside: int = 0
    layers: int = PROBE_LAYERS
    others: tuple[tuple[Bucket, int], ...] = ()

    @property
    def key(self) -> str:
        """``1280x720x9:h2k2*1+0``, the name of the probe in journals; ``@1`` behind it where it has one layer.

        Other buckets follow: ``1280x720x9:h2k2*1+0,256x256x1*16``.
        """
        depth = "" if self.layers == PROBE_LAYERS else f"@{self.layers}"
        others = "".join(f",{bucket.name}*{count}" for bucket, count in self.others)
        return f"{self.bucket.name}:{self.config}*{self.count}+{self.beside}{depth}{others}"

    @property
    def is_plain(self) -> bool:
        """Whether it is of one bucket and one configuration."""
        return not self.beside and not self.others

    @property
    def rank(self) -> int:
        """The position of the largest shard."""
        return self.config.degree - 1


def probe_program(probe: Probe, model: ModelSpec, checkpoint: Checkpoint, num_ranks: int = 0) -> Program:
    """The program of a probe, under the coalesced engine, on as many ranks as it splits into.

    With more, ``num_ranks``, each next run of ranks does the same beside it, and what is left over has nothing to do.
    """
    geometry = model.geometry
    return build_program(
        [assignment for assignment, _ in _members(probe, model, num_ranks)],
        Heads(geometry.num_heads, geometry.num_kv_heads, geometry.head_dim),
        num_ranks=max(num_ranks, probe.config.degree),
        num_layers=min(probe.layers, geometry.num_layers),
        checkpoint=checkpoint,
    )


def probe_buckets(probe: Probe, model: ModelSpec, num_ranks: int = 0) -> dict[str, Bucket]:
    """The bucket of every sequence of a probe's program, by name."""
    return {assignment.sequence: bucket for assignment, bucket in _members(probe, model, num_ranks)}


def _members(probe: Probe, model: ModelSpec, num_ranks: int) -> list[tuple[Assignment, Bucket]]:
    """What runs where: sequences with their ranks, and their buckets."""
    degree = probe.config.degree
    whole = [(probe.bucket, probe.beside), *probe.others]
    members: list[tuple[str, Bucket, ParallelConfig, tuple[int, ...]]] = []
    for first in range(0, max(num_ranks, degree) - degree + 1, degree):
        ranks = tuple(range(first, first + degree))
        members += [(f"s{first}.{i}", probe.bucket, probe.config, ranks) for i in range(probe.count)]
        members += [
            (f"w{rank}.{kind}.{i}", bucket, WHOLE, (rank,))
            for rank in ranks
            for kind, (bucket, count) in enumerate(whole)
            for i in range(count)
        ]
    return [
        (Assignment(name, model.sequence_length(bucket.num_tokens), config, ranks), bucket)
        for name, bucket, config, ranks in members
    ]


def probes(model: ModelSpec, cluster: Cluster, buckets: Sequence[Bucket]) -> list[Probe]:
    """All probes of a profile, those that matter most first.

    First what no law can do without (:func:`core`), then what tells their terms apart well (:func:`required`), then
    every pair of bucket and split, the longest buckets first. Shards of no tokens are left out.
    """
    ordered = sorted(buckets, key=lambda bucket: (-bucket.num_tokens, bucket))
    splits = [config for config in legal_configs(model, cluster) if config.is_split]
    pairs = [Probe(bucket, config) for bucket in ordered for config in splits if _has_tokens(model, bucket, config)]
    return list(dict.fromkeys([*core(model, cluster, buckets), *required(model, cluster, buckets), *pairs]))


def core(model: ModelSpec, cluster: Cluster, buckets: Sequence[Bucket]) -> list[Probe]:
    """The fewest probes that every law can be fitted from, the shortest first.

    Three buckets (longest, middle, shortest) whole, and under the smallest split of each kind; the shorter ones several
    at a time, and beside whole ones, which tells the largest stage's memory from that of all. Two of one layer tell
    what layers keep in memory from what is kept outside of them.
    """
    ordered = sorted(buckets, key=lambda bucket: (bucket.num_tokens, bucket))
    chosen = list(dict.fromkeys((ordered[0], ordered[len(ordered) // 2], ordered[-1])))
    several = min(MOST_COPIES, max(3, chosen[-1].num_tokens // chosen[0].num_tokens))
    found = [Probe(bucket, WHOLE) for bucket in chosen]
    found += [Probe(chosen[0], WHOLE, several)]
    if model.geometry.num_layers > 1:
        found += [Probe(chosen[0], WHOLE, several, layers=1), Probe(chosen[-1], WHOLE, layers=1)]
    for config in _smallest_of_each_kind(legal_configs(model, cluster)):
        split = [
            Probe(chosen[0], config, several, 2),
            Probe(chosen[len(chosen) // 2], config, 2, 2),
            Probe(chosen[-1], config),
        ]
        found += [probe for probe in split if _has_tokens(model, probe.bucket, config)]
    return list(dict.fromkeys(found))


def unmeasurable(model: ModelSpec, cluster: Cluster, buckets: Sequence[Bucket]) -> list[ParallelConfig]:
    """The smallest splits of a kind for which no bucket has tokens enough: nothing could measure what they take."""
    kinds = _smallest_of_each_kind(legal_configs(model, cluster))
    return [config for config in kinds if not any(_has_tokens(model, bucket, config) for bucket in buckets)]


def _smallest_of_each_kind(configs: Sequence[ParallelConfig]) -> list[ParallelConfig]:
    """The first split with each axis alone, in the order of degrees."""
    kinds: dict[tuple[bool, bool, bool], ParallelConfig] = {}
    for config in sorted(configs, key=lambda config: (config.degree, config)):
        kind = (config.q > 1, config.h > 1, config.k > 1)
        if sum(kind) == 1:
            kinds.setdefault(kind, config)
    return list(kinds.values())


def required(model: ModelSpec, cluster: Cluster, buckets: Sequence[Bucket]) -> list[Probe]:
    """Probes that tell apart what calls, sequences, tokens and pairs cost.

    Stages as full as a plan's, of all buckets (:func:`mixes`) and of one (:func:`crowds`); every bucket whole as
    several together; every split on buckets of different lengths in turn: beside whole sequences, as several together,
    and alone; every bucket whole alone.
    """
    ordered = sorted(buckets, key=lambda bucket: (-bucket.num_tokens, bucket))
    found = [*mixes(model, cluster, ordered), *crowds(model, cluster, ordered)]
    for place, bucket in enumerate(ordered):
        copies = min(MOST_COPIES, ordered[0].num_tokens // bucket.num_tokens)
        if bucket == ordered[-1]:
            copies = max(3, copies)
        count = copies if place % 2 else max(2, copies // 3)
        found += [Probe(bucket, WHOLE, count)] if copies > 1 else []
    splits = [config for config in legal_configs(model, cluster) if config.is_split]
    rounds = max(1, LEAST_SPLITS // max(1, len(splits)))
    turns: tuple[list[Probe], ...] = ([], [], [])
    for place, config in enumerate(splits * rounds):
        turn = place + place // len(splits)
        bucket = ordered[(turn + place // len(splits)) % len(ordered)]
        crowd = min(MOST_COPIES, 1 + ordered[0].num_tokens // bucket.num_tokens)
        count, beside = ((1, 0), (crowd, 0), (max(1, crowd // 2), max(1, crowd // 2)))[turn % 3]
        if _has_tokens(model, bucket, config):
            turns[2 - turn % 3].append(Probe(bucket, config, count, beside))
    found += [probe for turn in turns for probe in turn]
    found += [Probe(bucket, WHOLE) for bucket in ordered]
    return list(dict.fromkeys(found))


def mixes(model: ModelSpec, cluster: Cluster, longest_first: Sequence[Bucket]) -> list[Probe]:
    """All buckets at once, as in a batch: whole, each of about as many tokens; and beside a split of the longest.

    Programs of one bucket take a few per cent less than their share of a batch, in which lengths change all the time.
    """
    first, *rest = longest_first
    if not rest:
        return []
    fill = CROWD * first.num_tokens // len(longest_first)
    others = tuple((bucket, max(1, min(MOST_COPIES, fill // bucket.num_tokens))) for bucket in rest)
    configs = [WHOLE, *_smallest_of_each_kind(legal_configs(model, cluster))[:1]]
    return [Probe(first, config, others=others) for config in configs if _has_tokens(model, first, config)]


def crowds(model: ModelSpec, cluster: Cluster, longest_first: Sequence[Bucket]) -> list[Probe]:
    """The longest buckets, some of each at a time: whole (every other one), and under the smallest split of each kind.

    A stage of a plan holds more tokens than its longest sequence, and a token costs more where a stage outgrows caches.
    """
    found = []
    kinds = [WHOLE, *_smallest_of_each_kind(legal_configs(model, cluster))]
    for place, bucket in enumerate(longest_first[:CROWDED_BUCKETS]):
        count = crowd(bucket, longest_first[0].num_tokens)
        turned = kinds[1 + place % (len(kinds) - 1)] if len(kinds) > 1 else WHOLE
        configs = (turned,) if place % 2 else (WHOLE, turned)
        found += [Probe(bucket, config, count) for config in configs if _has_tokens(model, bucket, config)]
    return found


def crowd(bucket: Bucket, longest: int) -> int:
    """How many sequences of a bucket fill a stage, where the longest sequence has so many tokens."""
    return max(1, min(MOST_COPIES, CROWD * longest // bucket.num_tokens))


def _has_tokens(model: ModelSpec, bucket: Bucket, config: ParallelConfig) -> bool:
    start, stop = owned_range(attention_shape(model, bucket.num_tokens).length, config, 0)
    return stop > start
