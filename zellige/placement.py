"""The placement problem and its solutions: options, plans, what a plan costs each rank, and checks of a plan.

Engines (who shares calls; :attr:`Problem.engine`):

* ``per_sequence``: split sequences run one by one, each with calls of its own (USP's implementations).
* ``group``: as ``per_sequence``, but sequences of one pure-Ulysses configuration on one rank set share one packed
  exchange in and one back (KnapFormer's bags; the two coalescing rules of arXiv 2608.01150).
* ``coalesced``: all split sequences share one packed exchange per phase, whatever their rank sets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import msgspec

from zellige.cluster import Cluster
from zellige.collectives import packed_calls_ns
from zellige.errors import MissingPriceError, SequenceTooLargeError
from zellige.files import NonNegativeInt, PositiveInt, digest
from zellige.memory import Checkpoint, MemoryModel, Sharding
from zellige.model import ModelSpec
from zellige.prices import Price, PriceTable, missing_bucket
from zellige.shards import WHOLE, ParallelConfig
from zellige.units import format_bytes
from zellige.workload import Batch, Bucket

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


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What baselines are told: USP's configuration, KnapFormer's fixed bags, and its best bags over a run of batches.

    Empty means the policy's own rule.
    """

    usp: str = ""
    knapformer: str = ""
    knapformer_run: str = ""


NO_SETUP = Setup()


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
    def options(self) -> dict[str, tuple[Option, ...]]:
        """Options by bucket name, sorted by degree, footprint and time, whether or not they fit in memory."""
        table = self.prices.by_bucket()
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
    def _by_key(self) -> dict[str, dict[tuple[ParallelConfig, int], Option]]:
        return {
            name: {(option.config, option.num_nodes): option for option in options}
            for name, options in self.options.items()
        }

    @cached_property
    def counts(self) -> dict[Bucket, int]:
        """How many sequences each bucket of the batch has, in bucket order."""
        counts: dict[Bucket, int] = {}
        for sequence in self.batch.sequences:
            counts[sequence.bucket] = counts.get(sequence.bucket, 0) + 1
        return {bucket: counts[bucket] for bucket in self.batch.buckets if bucket in counts}

    def option(self, bucket: str, config: ParallelConfig, num_nodes: int) -> Option | None:
        """The option of a bucket, or None where the table has none."""
        return self._by_key[bucket].get((config, num_nodes))

    def option_on(self, bucket: str, config: ParallelConfig, ranks: tuple[int, ...]) -> Option | None:
        """The option for a rank set; an uneven spread over nodes is priced as the next wider footprint in the table."""
        span = self.cluster.footprint(ranks)
        table = self._by_key[bucket]
        widths = sorted(
            (nodes for (priced, nodes) in table if priced == config), key=lambda nodes: (nodes < span, nodes)
        )
        return table[config, widths[0]] if widths else None

    def whole(self, bucket: Bucket) -> Option:
        """The option that does not split."""
        return self.options[bucket.name][0]

    def fits_alone(self, option: Option) -> bool:
        """Whether a rank can hold one such sequence and nothing else."""
        return option.kept_bytes + option.live_bytes <= self.memory.room_bytes

    @property
    def packs_calls(self) -> bool:
        """Whether the engine ever shares calls between sequences."""
        return self.engine != "per_sequence"

    def _option(self, config: ParallelConfig, nodes: int, price: Price) -> Option:
        packable = self.engine == "coalesced" or (self.engine == "group" and config.degree == config.h)
        own = price.launch_ns
        if self.engine == "coalesced":
            own = 0
        elif packable and config.is_split:
            own = self.shared_calls_ns(config.degree, nodes, 1)
        keep_live = self.engine == "coalesced"
        return Option(
            config=config,
            num_nodes=nodes,
            time_ns=price.packed_ns + own,
            floor_ns=price.packed_ns + (0 if packable else price.launch_ns),
            compute_ns=price.packed_ns - price.exchange_ns,
            kept_bytes=price.kept_bytes + (price.live_bytes if keep_live else 0),
            live_bytes=0 if keep_live else price.live_bytes,
            comm_bytes=price.comm_bytes,
        )

    def shared_calls_ns(self, num_ranks: int, num_nodes: int, num_rounds: int) -> int:
        """A step's calls of one packed group: forward, recompute where there is one, and twice in backward."""
        passes = 4 if self.memory.checkpoint == "full" else 3
        once = packed_calls_ns(self.cluster, num_ranks, num_nodes, num_rounds)
        return math.ceil(self.model.geometry.num_layers * passes * once)


class Placement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A sequence, its configuration, and its ordered rank list."""

    sequence: str
    bucket: str
    config: ParallelConfig
    ranks: tuple[NonNegativeInt, ...]

    def __post_init__(self) -> None:
        if len(set(self.ranks)) != len(self.ranks):
            raise ValueError(f"sequence {self.sequence}: a rank stands twice in {list(self.ranks)}")
        if len(self.ranks) != self.config.degree:
            raise ValueError(
                f"sequence {self.sequence}: {len(self.ranks)} ranks for {self.config} of degree {self.config.degree}"
            )


class RankPrediction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a rank's step is predicted to take and to need; ``communication_ns`` of the time is exposed exchanges."""

    rank: NonNegativeInt
    time_ns: NonNegativeInt
    communication_ns: NonNegativeInt
    memory_bytes: NonNegativeInt


class Inputs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Digests of what a plan was made from."""

    batch: str
    prices: str


class Solver(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a plan was found. ``planning_ns`` is wall-clock and not part of the digest."""

    name: str
    status: str
    planning_ns: NonNegativeInt = 0


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where every sequence runs, what that is predicted to cost, and how far from the best it can be.

    ``bound_ns`` is a lower bound on the makespan of any placement under the same prices and engine; ``gap`` is
    ``makespan / bound - 1``.
    """

    SCHEMA: ClassVar[str] = "zellige.plan/1"

    schema: str = "zellige.plan/1"
    policy: str
    engine: Engine
    cluster: str
    model: str
    sharding: Sharding
    checkpoint: Checkpoint
    batch: str
    digest: str
    placements: tuple[Placement, ...]
    predicted: tuple[RankPrediction, ...]
    makespan_ns: PositiveInt
    memory_limit_bytes: PositiveInt
    fits: bool
    comm_bytes: NonNegativeInt
    bound_ns: PositiveInt
    bound: str
    gap: float
    inputs: Inputs
    solver: Solver
    notes: tuple[str, ...] = ()

    @property
    def num_split(self) -> int:
        """Sequences on more than one rank."""
        return sum(1 for placement in self.placements if placement.config.is_split)

    @property
    def peak_memory_bytes(self) -> int:
        """The memory of the fullest rank."""
        return max(prediction.memory_bytes for prediction in self.predicted)

    @property
    def mean_communication_ns(self) -> float:
        """Exposed communication of a rank, the mean over ranks."""
        return sum(prediction.communication_ns for prediction in self.predicted) / len(self.predicted)

    @property
    def max_over_mean(self) -> float:
        """The slowest rank's time over the mean."""
        times = [prediction.time_ns for prediction in self.predicted]
        return max(times) * len(times) / sum(times)


class RankCosts(msgspec.Struct, frozen=True):
    """Time and memory of every rank, and the bytes that all ranks receive; ``exposed_ns`` is transfer and calls."""

    times_ns: tuple[int, ...]
    exposed_ns: tuple[int, ...]
    memory_bytes: tuple[int, ...]
    comm_bytes: int


def rank_costs(problem: Problem, placements: Sequence[Placement]) -> RankCosts:
    """The additive model: each sequence's price on each of its ranks, and the calls that the engine makes."""
    num_ranks = problem.cluster.num_ranks
    times, compute, kept, live = [0] * num_ranks, [0] * num_ranks, [0] * num_ranks, [0] * num_ranks
    packed: dict[tuple[ParallelConfig, tuple[int, ...]], int] = {}
    comm = rounds = 0
    for placement in placements:
        option = problem.option_on(placement.bucket, placement.config, placement.ranks)
        if option is None:
            raise MissingPriceError(
                f"there is no price for {placement.bucket} as {placement.config}",
                fix="a price table that holds it, or analytic prices (leave --prices out)",
            )
        comm += option.comm_bytes
        if placement.config.is_split:
            rounds = max(rounds, placement.config.k)
            if problem.engine == "group" and placement.config.degree == placement.config.h:
                packed[placement.config, placement.ranks] = option.num_nodes
        for rank in placement.ranks:
            times[rank] += option.floor_ns
            compute[rank] += option.compute_ns
            kept[rank] += option.kept_bytes
            live[rank] = max(live[rank], option.live_bytes)
    for (config, ranks), nodes in packed.items():
        for rank in ranks:
            times[rank] += problem.shared_calls_ns(config.degree, nodes, 1)
    if problem.engine == "coalesced" and rounds:
        shared = problem.shared_calls_ns(num_ranks, problem.cluster.num_nodes, rounds)
        times = [time + shared for time in times]
    base = problem.memory.base_bytes
    exposed = tuple(time - work for time, work in zip(times, compute, strict=True))
    return RankCosts(tuple(times), exposed, tuple(base + a + b for a, b in zip(kept, live, strict=True)), comm)


def make_plan(
    problem: Problem,
    policy: str,
    placements: Sequence[Placement],
    *,
    bound: tuple[int, str],
    solver: Solver,
    notes: tuple[str, ...] = (),
) -> Plan:
    """Price the placements and certify them; placements are put in the batch's order."""
    order = {sequence.id: position for position, sequence in enumerate(problem.batch.sequences)}
    ordered = tuple(sorted(placements, key=lambda placement: order[placement.sequence]))
    costs = rank_costs(problem, ordered)
    makespan = max(costs.times_ns)
    plan = Plan(
        policy=policy,
        engine=problem.engine,
        cluster=problem.cluster.name,
        model=problem.model.name,
        sharding=problem.memory.sharding,
        checkpoint=problem.memory.checkpoint,
        batch=problem.batch.name,
        digest="",
        placements=ordered,
        predicted=tuple(
            RankPrediction(rank=rank, time_ns=time, communication_ns=exposed, memory_bytes=memory)
            for rank, (time, exposed, memory) in enumerate(
                zip(costs.times_ns, costs.exposed_ns, costs.memory_bytes, strict=True)
            )
        ),
        makespan_ns=makespan,
        memory_limit_bytes=problem.memory.usable_bytes,
        fits=max(costs.memory_bytes) <= problem.memory.usable_bytes,
        comm_bytes=costs.comm_bytes,
        bound_ns=bound[0],
        bound=bound[1],
        gap=makespan / bound[0] - 1,
        inputs=Inputs(batch=digest(problem.batch), prices=digest(problem.prices)),
        solver=solver,
        notes=notes,
    )
    return msgspec.structs.replace(plan, digest=plan_digest(plan))


def plan_digest(plan: Plan) -> str:
    """The hash of a plan without its own digest and without wall-clock time."""
    bare = msgspec.structs.replace(plan, digest="", solver=msgspec.structs.replace(plan.solver, planning_ns=0))
    return digest(bare)


def require_placeable(problem: Problem) -> None:
    """Raise :class:`SequenceTooLargeError` for a sequence that no option fits into memory."""
    for bucket, _ in problem.counts.items():
        options = problem.options[bucket.name]
        if any(problem.fits_alone(option) for option in options):
            continue
        best = min(options, key=lambda option: option.kept_bytes + option.live_bytes)
        device, room = problem.cluster.device, problem.memory.room_bytes
        needed = best.kept_bytes + best.live_bytes
        name = next(sequence.id for sequence in problem.batch.sequences if sequence.bucket == bucket)
        raise SequenceTooLargeError(
            f"sequence {name} does not fit, however it is split",
            where=f"{bucket.name}: {bucket.num_tokens:,} tokens on {problem.cluster.num_ranks} x {device.name}",
            details=(
                f"smallest need {format_bytes(needed)} a rank (as {best.config}),"
                f" room {format_bytes(room)}: {format_bytes(needed - room)} missing",
            ),
            fix=f"more ranks (about {math.ceil(best.config.degree * needed / room)}), or a shorter clip",
        )
