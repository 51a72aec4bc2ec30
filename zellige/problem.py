"""The placement problem: a batch on a cluster, and the options of its buckets under one engine.

Engines (who shares calls; :attr:`Problem.engine`):

* ``per_sequence``: split sequences run one by one, each with calls of its own (USP's implementations).
* ``group``: as ``per_sequence``, but sequences of one pure-Ulysses configuration on one rank set share one packed
  exchange in and one back (KnapFormer's bags; the two coalescing rules of arXiv 2608.01150).
* ``coalesced``: all split sequences share one packed exchange per phase, whatever their rank sets.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from typing import Literal, NamedTuple

import msgspec

from zellige.cluster import Cluster
from zellige.collectives import packed_calls_ns
from zellige.files import digest
from zellige.memory import MemoryModel
from zellige.model import ModelSpec
from zellige.prices import Price, PriceTable, missing_bucket
from zellige.shards import WHOLE, ParallelConfig
from zellige.spreads import Kind, WorkFront, most_rounds, spreads_of, work_front
from zellige.workload import Batch, Bucket, Sequence

Engine = Literal["coalesced", "per_sequence", "group"]
ENGINES: tuple[Engine, ...] = ("coalesced", "per_sequence", "group")


class Option(msgspec.Struct, frozen=True):
    """A way to run a bucket: a configuration on a footprint, and its costs on each participating rank.

    ``time_ns`` is what it takes alone (of which ``compute_ns`` is no communication), ``floor_ns`` what remains where
    its calls are shared; ``kept_bytes`` add up over a rank's sequences, of ``live_bytes`` only the largest counts (0
    for the coalesced engine, which keeps all).
    """

    config: ParallelConfig
    num_nodes: int
    time_ns: int
    floor_ns: int
    compute_ns: int
    kept_bytes: int
    live_bytes: int
    comm_bytes: int


class Rung(NamedTuple):
    """An option that fits on a rank alone, with what a search reads of it; ``work`` is time times degree."""

    work: int
    time: int
    degree: int
    nodes: int
    kept: int
    live: int
    option: Option


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What baselines are told: USP's configuration, KnapFormer's fixed bags, and its best bags over a run of batches.

    Empty means the policy's own rule.
    """

    usp: str = ""
    knapformer: str = ""
    knapformer_run: str = ""


NO_SETUP = Setup()


class Inputs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Digests of what a plan was made from."""

    batch: str
    prices: str


OF_PRICES = frozenset(
    {
        "_prices", "priced", "options", "rungs", "work_fronts", "_known_fronts", "columns", "fronts_by_rounds", "kinds",
        "ring_limits", "rungs_within", "fronts_within", "prices_digest", "_by_key", "_by_span", "_calls",
    }
)  # fmt: skip
"""What a problem keeps of its buckets and their prices alone, whichever of its sequences a batch has."""


@dataclass(frozen=True)
class Problem:
    """What a policy solves: a batch on a cluster, priced under one engine."""

    batch: Batch
    cluster: Cluster
    model: ModelSpec
    prices: PriceTable
    memory: MemoryModel
    engine: Engine
    setup: Setup = NO_SETUP

    @cached_property
    def priced(self) -> dict[str, tuple[Option, ...]]:
        """All that the table prices, by bucket name, sorted by degree, footprint and time."""
        table = self._prices
        result = {}
        for bucket in self.batch.buckets:
            if (WHOLE, 1) not in table.get(bucket.name, {}):
                raise missing_bucket(bucket, "prices")
            options = [self._option(config, nodes, price) for (config, nodes), price in table[bucket.name].items()]
            result[bucket.name] = tuple(
                sorted(options, key=lambda o: (o.config.degree, o.num_nodes, o.time_ns, o.config))
            )
        return result

    @cached_property
    def options(self) -> dict[str, tuple[Option, ...]]:
        """Options by bucket name, sorted alike, whether or not they fit in memory: what is :attr:`priced` evenly over
        nodes, or on as few as can be.
        """
        return {
            name: tuple(
                option
                for option in options
                if option.config.degree % option.num_nodes == 0
                or option.num_nodes == self.cluster.smallest_footprint(option.config.degree)
            )
            for name, options in self.priced.items()
        }

    @cached_property
    def rungs(self) -> dict[str, tuple[Rung, ...]]:
        """By bucket name: options that fit alone on evenly filled nodes, as few as can be, sorted by work.

        Of one degree, those stay that no other beats in time, memory and ring rounds; prices as :meth:`option_on` says.
        """
        return {name: self._front(name, options) for name, options in self.options.items()}

    def _front(self, name: str, options: tuple[Option, ...]) -> tuple[Rung, ...]:
        nodes = {degree: self.cluster.smallest_even_footprint(degree) for degree in {o.config.degree for o in options}}
        kept: dict[int, list[Option]] = {}
        for option in sorted(options, key=lambda o: (o.time_ns, o.comm_bytes, o.config)):
            even = nodes[degree := option.config.degree]
            if not even or option is not self._widest(name, option.config, even) or not self.fits_alone(option):
                continue
            front = kept.setdefault(degree, [])
            if all(
                option.kept_bytes < o.kept_bytes or option.live_bytes < o.live_bytes or option.config.k < o.config.k
                for o in front
            ):
                front.append(option)
        rungs = [
            Rung(o.time_ns * degree, o.time_ns, degree, nodes[degree], o.kept_bytes, o.live_bytes, o)
            for degree, front in kept.items()
            for o in front
        ]
        return tuple(sorted(rungs, key=lambda rung: (rung.work, rung.degree, rung.kept, rung.live, rung.option.config)))

    @cached_property
    def work_fronts(self) -> dict[str, WorkFront]:
        """The least work within a time, by bucket name, on any ranks; memory is not looked at."""
        return {
            name: self._front_of((o.floor_ns, o.floor_ns * o.config.degree) for o in options)
            for name, options in self.priced.items()
        }

    def _front_of(self, options: Iterable[tuple[int, int]]) -> WorkFront:
        """The front of (time, work) pairs; equal ones are one object."""
        front = work_front(options)
        return self._known_fronts.setdefault(front, front)

    @cached_property
    def _known_fronts(self) -> dict[WorkFront, WorkFront]:
        return {}

    @cached_property
    def least_times(self) -> dict[tuple[int, ...], int]:
        """What the bounds have found for the batch, by the identities of the buckets' fronts."""
        return {}

    @cached_property
    def columns(self) -> dict[int, list[int]]:
        """What :mod:`zellige.waits` reads of options, by their identities, once it was asked for."""
        return {}

    @cached_property
    def fronts_by_rounds(self) -> tuple[tuple[int, dict[str, WorkFront]], ...]:
        """(fewest ring rounds, :attr:`work_fronts` of options up to a limit) for plans that split nothing (0 rounds),
        of 1 round, 2, 3 to 4, 5 to 8, ...: every plan is of one kind, and of its options none is left out."""
        most = max((option.config.k for options in self.priced.values() for option in options), default=1)
        limits = [0, *(2**power for power in range((most - 1).bit_length() + 1))]
        return tuple(
            (
                limit // 2 + 1 if limit else 0,
                {
                    name: self._front_of(
                        (o.floor_ns, o.floor_ns * o.config.degree)
                        for o in options
                        if o.config.k <= limit or o.config.degree == 1
                    )
                    for name, options in self.priced.items()
                },
            )
            for limit in limits
        )

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        """Plans of each number of ring rounds, as in :attr:`fronts_by_rounds`; one kind where no calls are shared by
        all. Of options that fit into a rank's memory alone, for no plan has others: a bucket may have none."""
        fewest = [0]
        if self.engine == "coalesced":
            fewest = [fewest for fewest, _ in self.fronts_by_rounds]
        least = {name: self._least_times(options) for name, options in self.priced.items()}
        return tuple(self._kind(each, least) for each in fewest)

    def _least_times(self, options: tuple[Option, ...]) -> dict[tuple[int, bool, int], int]:
        """The least ``floor_ns`` of options that fit, by ring rounds (0: whole), whether over nodes, and degree."""
        least: dict[tuple[int, bool, int], int] = {}
        for option in options:
            if self.fits_alone(option):
                degree = option.config.degree
                key = option.config.k if degree > 1 else 0, option.num_nodes > 1, degree
                least[key] = min(least.get(key, option.floor_ns), option.floor_ns)
        return least

    def _kind(self, fewest: int, least: dict[str, dict[tuple[int, bool, int], int]]) -> Kind:
        most = most_rounds(fewest) if self.engine == "coalesced" else self.cluster.num_ranks
        spreads = {
            name: spreads_of((wide, degree, time) for (k, wide, degree), time in times.items() if k <= most)
            for name, times in least.items()
        }
        fronts = {name: self._front_of((each.time, each.work) for each in found) for name, found in spreads.items()}
        return Kind(fewest, spreads, fronts)

    @cached_property
    def ring_limits(self) -> tuple[int, ...]:
        """Powers of two that bound a plan's ring rounds, up to the most that a rung has."""
        most = max((rung.option.config.k for rungs in self.rungs.values() for rung in rungs), default=1)
        return tuple(2**power for power in range((most - 1).bit_length() + 1))

    @cached_property
    def rungs_within(self) -> dict[int, dict[str, tuple[Rung, ...]]]:
        """:attr:`rungs` by limit on ring rounds (:attr:`ring_limits`)."""
        return {
            limit: {
                name: tuple(rung for rung in rungs if rung.option.config.k <= limit)
                for name, rungs in self.rungs.items()
            }
            for limit in self.ring_limits
        }

    @cached_property
    def fronts_within(self) -> dict[int, dict[str, WorkFront]]:
        """The least work within a time of :attr:`rungs_within`; limit 0 is whole alone."""
        fronts = {
            limit: {name: self._front_of((rung.time, rung.work) for rung in rungs) for name, rungs in within.items()}
            for limit, within in self.rungs_within.items()
        }
        whole = {
            name: self._front_of((rung.time, rung.work) for rung in rungs if rung.degree == 1)
            for name, rungs in self.rungs.items()
        }
        return {0: whole, **fronts}

    def prepare(self) -> None:
        """Build everything that depends on the prices alone and not on how many sequences there are."""
        _ = self.options, self._by_key, self.work_fronts, self.fronts_by_rounds, self.fronts_within, self.prices_digest
        _ = self.kinds, self.columns, self._by_span, self._calls
        if self.engine == "coalesced":
            for rounds in {*self.ring_limits, *(fewest for fewest, _ in self.fronts_by_rounds if fewest)}:
                self.shared_calls_ns(self.cluster.num_ranks, self.cluster.num_nodes, rounds)

    @cached_property
    def inputs(self) -> Inputs:
        """Digests of the batch and the prices."""
        return Inputs(batch=digest(self.batch), prices=self.prices_digest)

    @cached_property
    def prices_digest(self) -> str:
        """The hash of the price table."""
        return digest(self.prices)

    @cached_property
    def _by_key(self) -> dict[str, dict[tuple[ParallelConfig, int], Option]]:
        return {
            name: {(option.config, option.num_nodes): option for option in options}
            for name, options in self.priced.items()
        }

    @cached_property
    def counts(self) -> dict[Bucket, int]:
        """How many sequences each bucket of the batch has, in bucket order."""
        return {bucket: len(ids) for bucket, ids in self.members.items()}

    @cached_property
    def members(self) -> dict[Bucket, list[str]]:
        """The sequences of each bucket of the batch, in batch order; buckets in theirs."""
        found: dict[Bucket, list[str]] = {}
        for bucket, run in groupby(self.batch.sequences, key=attrgetter("bucket")):
            found.setdefault(bucket, []).extend([sequence.id for sequence in run])
        return {bucket: found[bucket] for bucket in self.batch.buckets if bucket in found}

    @cached_property
    def numbers(self) -> dict[str, int]:
        """:attr:`counts` by bucket name."""
        return {bucket.name: count for bucket, count in self.counts.items()}

    def price(self, bucket: str, config: ParallelConfig, num_nodes: int) -> Price:
        """The components of a bucket's option."""
        return self._prices[bucket][config, num_nodes]

    @cached_property
    def _prices(self) -> dict[str, dict[tuple[ParallelConfig, int], Price]]:
        return self.prices.by_bucket()

    def option(self, bucket: str, config: ParallelConfig, num_nodes: int) -> Option | None:
        """The option of a bucket, or None where the table has none."""
        return self._by_key[bucket].get((config, num_nodes))

    def option_on(self, bucket: str, config: ParallelConfig, ranks: tuple[int, ...]) -> Option | None:
        """The option for a rank set; one whose footprint is not priced has the price of the next wider one."""
        key = (bucket, config, 1 if len(ranks) == 1 else self.cluster.footprint(ranks))
        if key not in self._by_span:
            self._by_span[key] = self._widest(*key)
        return self._by_span[key]

    @cached_property
    def _by_span(self) -> dict[tuple[str, ParallelConfig, int], Option | None]:
        return {}

    def _widest(self, bucket: str, config: ParallelConfig, span: int) -> Option | None:
        table = self._by_key[bucket]
        if (config, span) in table:
            return table[config, span]
        widths = [nodes for (priced, nodes) in table if priced == config]
        if not widths:
            return None
        return table[config, min((nodes for nodes in widths if nodes >= span), default=max(widths))]

    def whole(self, bucket: Bucket) -> Option:
        """The option that does not split."""
        return self.options[bucket.name][0]

    def fits_alone(self, option: Option) -> bool:
        """Whether a rank can hold one such sequence and nothing else."""
        return option.kept_bytes + option.live_bytes <= self.memory.room_bytes

    def with_sequences(self, sequences: tuple[Sequence, ...], name: str | None = None) -> Problem:
        """The problem of other sequences of its buckets (in a batch of another name): the two share what is known of
        prices (:meth:`prepare`), which lasts as long as one of them."""
        batch = msgspec.structs.replace(self.batch, sequences=sequences, name=self.batch.name if name is None else name)
        other = replace(self, batch=batch)
        vars(other).update((key, value) for key, value in vars(self).items() if key in OF_PRICES)
        return other

    @property
    def packs_calls(self) -> bool:
        """Whether the engine ever shares calls between sequences."""
        return self.engine != "per_sequence"

    def _option(self, config: ParallelConfig, nodes: int, price: Price) -> Option:
        packable = self.engine == "coalesced" or (self.engine == "group" and config.degree == config.h)
        packed_ns = price.packed_ns if packable else price.transfer_ns
        own = price.launch_ns
        if self.engine == "coalesced":
            own = 0
        elif packable and config.is_split:
            own = self.shared_calls_ns(config.degree, nodes, 1)
        keep_live = self.engine == "coalesced"
        return Option(
            config=config,
            num_nodes=nodes,
            time_ns=packed_ns + own,
            floor_ns=packed_ns + (0 if packable else price.launch_ns),
            compute_ns=price.compute_ns,
            kept_bytes=price.kept_bytes + (price.live_bytes if keep_live else 0),
            live_bytes=0 if keep_live else price.live_bytes,
            comm_bytes=price.comm_bytes,
        )

    def shared_calls_ns(self, num_ranks: int, num_nodes: int, num_rounds: int) -> int:
        """A step's calls of one packed group: forward, recompute where there is one, and twice in backward."""
        key = num_ranks, num_nodes, num_rounds
        if key not in self._calls:
            passes = 4 if self.memory.checkpoint == "full" else 3
            once = packed_calls_ns(self.cluster, num_ranks, num_nodes, num_rounds)
            self._calls[key] = math.ceil(self.model.geometry.num_layers * passes * once)
        return self._calls[key]

    @cached_property
    def _calls(self) -> dict[tuple[int, int, int], int]:
        return {}
