"""Solutions of the placement problem: plans, what a plan costs each rank, and what cannot be placed at all."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import ClassVar, NamedTuple

import msgspec

from zellige.errors import MissingPriceError, SequenceTooLargeError
from zellige.files import NonNegativeInt, PositiveInt, digest
from zellige.memory import Checkpoint, Sharding
from zellige.problem import ENGINES, NO_SETUP, Engine, Inputs, Option, Problem, Rung, Setup
from zellige.shards import WHOLE, ParallelConfig
from zellige.units import format_bytes

__all__ = [
    "ENGINES",
    "NO_SETUP",
    "Engine",
    "Inputs",
    "Option",
    "Placement",
    "Plan",
    "Problem",
    "RankCosts",
    "RankPrediction",
    "Rung",
    "Setup",
    "Share",
    "Solver",
    "Tally",
    "make_plan",
    "micro_batches",
    "plan_digest",
    "rank_costs",
    "require_placeable",
]


class Placement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """A sequence, its configuration, and its ordered rank list; part of no cycle, so that none is looked for.

    Schemes that accumulate gradients run a step in several parts. A barrier stands between **stages**: all ranks wait
    for the slowest. Within a stage a rank ends each of its **micro-batches**, backward included, before the next: no
    memory and no call is shared between them. Zero, the default, is not written.
    """

    sequence: str
    bucket: str
    config: ParallelConfig
    ranks: tuple[NonNegativeInt, ...]
    stage: NonNegativeInt = 0
    micro_batch: NonNegativeInt = 0

    def __post_init__(self) -> None:
        if self.config is WHOLE and len(self.ranks) == 1:
            return
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


class Solver(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a plan was found. ``planning_ns`` is wall-clock and not part of the digest."""

    name: str
    status: str
    planning_ns: NonNegativeInt = 0


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where every sequence runs, what that is predicted to cost, and how far from the best it can be.

    ``bound_ns`` is a lower bound on the makespan of any placement under the same prices and engine (B8: of any in one
    step that fits into memory); ``gap`` is ``makespan / bound - 1``. The makespan is that of the slowest rank; with
    several stages, the sum over stages of it.
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
    blocks_bound_ns: PositiveInt | None = None
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
        """The step over the mean rank's time: the slowest rank's, and what barriers between stages add."""
        times = [prediction.time_ns for prediction in self.predicted]
        return self.makespan_ns * len(times) / sum(times)

    @property
    def parts(self) -> list[tuple[Placement, ...]]:
        """The placements by micro-batch, in the order in which they run."""
        return list(micro_batches(self.placements).values())


class RankCosts(msgspec.Struct, frozen=True):
    """Time and memory of every rank, and the bytes that all ranks receive; ``exposed_ns`` is transfer and calls.

    ``makespan_ns`` is the longest of the times; with several stages, the sum over stages of the longest.
    """

    times_ns: tuple[int, ...]
    exposed_ns: tuple[int, ...]
    memory_bytes: tuple[int, ...]
    comm_bytes: int
    makespan_ns: int


def micro_batches(placements: Sequence[Placement]) -> dict[tuple[int, int], tuple[Placement, ...]]:
    """Placements by (stage, micro-batch), ascending."""
    parts: dict[tuple[int, int], list[Placement]] = {}
    for placement in placements:
        parts.setdefault((placement.stage, placement.micro_batch), []).append(placement)
    return {key: tuple(parts[key]) for key in sorted(parts)}


def rank_costs(problem: Problem, placements: Sequence[Placement]) -> RankCosts:
    """The additive model: each sequence's price on each of its ranks, and the calls that the engine makes.

    Times of micro-batches add up, the fullest of them is a rank's memory, and every stage takes as long as its slowest
    rank.
    """
    parts = micro_batches(placements)
    if len(parts) <= 1:
        return _micro_batch_costs(problem, _count(problem, placements))
    costs = [(stage, _micro_batch_costs(problem, _count(problem, part))) for (stage, _), part in parts.items()]
    stages: dict[int, list[tuple[int, ...]]] = {}
    for stage, cost in costs:
        stages.setdefault(stage, []).append(cost.times_ns)
    by_stage = [[sum(times) for times in zip(*several, strict=True)] for several in stages.values()]
    return RankCosts(
        times_ns=tuple(sum(times) for times in zip(*by_stage, strict=True)),
        exposed_ns=tuple(sum(times) for times in zip(*(cost.exposed_ns for _, cost in costs), strict=True)),
        memory_bytes=tuple(max(needs) for needs in zip(*(cost.memory_bytes for _, cost in costs), strict=True)),
        comm_bytes=sum(cost.comm_bytes for _, cost in costs),
        makespan_ns=sum(max(times) for times in by_stage),
    )


class Share(NamedTuple):
    """``number`` sequences that run alike: under one option, on the same ranks."""

    option: Option
    ranks: tuple[int, ...]
    number: int


class Tally(NamedTuple):
    """The placements of a micro-batch, counted; whole sequences by rank, where a policy knows them so."""

    shares: Iterable[Share]
    whole: Iterable[tuple[Option, Sequence[int]]] = ()


def _micro_batch_costs(problem: Problem, tally: Tally) -> RankCosts:
    num_ranks = problem.cluster.num_ranks
    times, compute, kept, live = [0] * num_ranks, [0] * num_ranks, [0] * num_ranks, [0] * num_ranks
    packed: dict[tuple[ParallelConfig, tuple[int, ...]], int] = {}
    comm = rounds = 0
    for option, ranks, count in tally.shares:
        comm += count * option.comm_bytes
        if len(ranks) > 1:
            config = option.config
            rounds = max(rounds, config.k)
            if problem.engine == "group" and config.degree == config.h:
                packed[config, ranks] = option.num_nodes
        time_ns, compute_ns, kept_bytes = count * option.floor_ns, count * option.compute_ns, count * option.kept_bytes
        for rank in ranks:
            times[rank] += time_ns
            compute[rank] += compute_ns
            kept[rank] += kept_bytes
            live[rank] = max(live[rank], option.live_bytes)
    for option, counts in tally.whole:
        comm += sum(counts) * option.comm_bytes
        time_ns, compute_ns, kept_bytes, live_bytes = (
            option.floor_ns, option.compute_ns, option.kept_bytes, option.live_bytes
        )  # fmt: skip
        times = [a + time_ns * count for a, count in zip(times, counts, strict=True)]
        compute = [a + compute_ns * count for a, count in zip(compute, counts, strict=True)]
        kept = [a + kept_bytes * count for a, count in zip(kept, counts, strict=True)]
        if live_bytes:
            live = [max(a, live_bytes) if count else a for a, count in zip(live, counts, strict=True)]
    for (config, ranks), nodes in packed.items():
        for rank in ranks:
            times[rank] += problem.shared_calls_ns(config.degree, nodes, 1)
    if problem.engine == "coalesced" and rounds:
        shared = problem.shared_calls_ns(num_ranks, problem.cluster.num_nodes, rounds)
        times = [time + shared for time in times]
    base = problem.memory.base_bytes
    exposed = tuple(time - work for time, work in zip(times, compute, strict=True))
    memory = tuple(base + a + b for a, b in zip(kept, live, strict=True))
    return RankCosts(tuple(times), exposed, memory, comm, max(times))


def _count(problem: Problem, placements: Iterable[Placement]) -> Tally:
    """Placements counted by bucket, configuration and ranks; raises :class:`MissingPriceError`."""
    ways: dict[tuple[str, ParallelConfig, tuple[int, ...]], int] = {}
    for placement in placements:
        way = (placement.bucket, placement.config, placement.ranks)
        ways[way] = ways.get(way, 0) + 1
    shares = []
    for (bucket, config, ranks), count in ways.items():
        option = problem.option_on(bucket, config, ranks)
        if option is None:
            raise MissingPriceError(
                f"there is no price for {bucket} as {config}",
                fix="a price table that holds it, or analytic prices (leave --prices out)",
            )
        shares.append(Share(option, ranks, count))
    return Tally(shares)


def make_plan(
    problem: Problem,
    policy: str,
    placements: Sequence[Placement],
    *,
    bound: tuple[int, str],
    solver: Solver,
    blocks_bound_ns: int | None = None,
    notes: tuple[str, ...] = (),
    tally: Tally | None = None,
    sealed: bool = True,
) -> Plan:
    """Price the placements and certify them; placements are put in the batch's order.

    ``tally`` are the placements counted, where all are of one micro-batch and the policy knows already. One that isn't
    ``sealed`` lacks the digests of itself and its batch, which :func:`zellige.plan.deal.deal` adds with the names.
    """
    ordered = _in_batch_order(problem, placements)
    costs = rank_costs(problem, ordered) if tally is None else _micro_batch_costs(problem, tally)
    makespan = costs.makespan_ns
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
        blocks_bound_ns=blocks_bound_ns,
        inputs=problem.inputs if sealed else Inputs(batch="", prices=problem.prices_digest),
        solver=solver,
        notes=notes,
    )
    return msgspec.structs.replace(plan, digest=plan_digest(plan)) if sealed else plan


def _in_batch_order(problem: Problem, placements: Sequence[Placement]) -> tuple[Placement, ...]:
    names = [sequence.id for sequence in problem.batch.sequences]
    if [placement.sequence for placement in placements] == names:
        return tuple(placements)
    order = {name: position for position, name in enumerate(names)}
    return tuple(sorted(placements, key=lambda placement: order[placement.sequence]))


def plan_digest(plan: Plan) -> str:
    """The hash of a plan without its own digest and without wall-clock time."""
    bare = msgspec.structs.replace(plan, digest="", solver=msgspec.structs.replace(plan.solver, planning_ns=0))
    return digest(bare)


def require_placeable(problem: Problem) -> None:
    """Raise :class:`SequenceTooLargeError` for a sequence that no option fits into memory."""
    for bucket in problem.counts:
        options = problem.options[bucket.name]
        if problem.rungs[bucket.name] or any(problem.fits_alone(option) for option in options):
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
            fix=(
                f"more ranks (about {math.ceil(best.config.degree * needed / room)})"
                if room > 0
                else "more memory a rank"
            )
            + ", or a shorter clip",
        )
