"""The theorems as batches: why disjoint groups lose, and when overlapping rank sets wait for nobody.

The model is ideal: no communication cost, memory never binds, so a sequence of work w on g ranks takes w/g on each. The
batches are ordinary problems with a synthetic price table, so every policy can plan them. Theorems 1 and 2 are those of
arXiv 2608.01150; with N ranks, largest group g_max, works w_s, W their sum and phi = max w_s / W:

1. ``max(1, phi * N / g_max) <= T_disjoint / T_joint <= N / g_max``, and a batch of one sequence reaches the top.
2. One giant of work N*u and m = N*p fillers of work delta, with u > (N-1)*p*delta: joint placement reaches
   F = u + p*delta with one split; disjoint groups that reach F split all m + 1 sequences.

No-wait (ours): where rank sets are aligned blocks of a laminar family and every rank runs larger blocks first, no rank
waits, so gangs end with the additive makespan. {0,1}, {1,2}, {0,2} of unit length have load 2 and need 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import permutations
from typing import ClassVar

import msgspec

from zellige.catalog import load_cluster, load_model
from zellige.memory import MemoryModel
from zellige.placement import Placement, Problem, rank_costs
from zellige.plan.bounds import best_bound
from zellige.prices import Price, PriceHeader, PriceRow, PriceTable
from zellige.shards import WHOLE, ParallelConfig
from zellige.units import ceil_div
from zellige.workload import Batch, Bucket
from zellige.workload import Sequence as Clip

UNIT_NS = 1_000_000
"""One unit of work, in nanoseconds on one rank."""

ENDLESS_BYTES = 2**60
"""Device memory that never binds."""

MAX_GANGS = 8
"""Orders are searched exhaustively up to this many gangs (40,320 orders)."""


class Gang(msgspec.Struct, frozen=True):
    """A split sequence under an engine that runs it as one: all its ranks at once, for ``time_ns``."""

    ranks: tuple[int, ...]
    time_ns: int


class ImbalanceRow(msgspec.Struct, frozen=True, kw_only=True):
    """Theorem 1 on a batch of one sequence; ``ratio`` is disjoint over joint, ``limit`` is N / g_max."""

    num_ranks: int
    largest_group: int
    joint_ns: int
    disjoint_ns: int
    ratio: float
    limit: float


class SplitsRow(msgspec.Struct, frozen=True, kw_only=True):
    """Theorem 2: splits at the optimal step F. ``next_best_ns`` is the giant's time on N - 1 ranks, which exceeds F."""

    num_ranks: int
    num_fillers: int
    step_ns: int
    next_best_ns: int
    joint_splits: int
    disjoint_splits: int


class WaitRow(msgspec.Struct, frozen=True, kw_only=True):
    """No-wait: the additive makespan, and the best that any order of whole gangs reaches."""

    rank_sets: str
    additive_ns: int
    best_order_ns: int


class Theory(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of all three statements."""

    SCHEMA: ClassVar[str] = "zellige.theory/1"

    schema: str = "zellige.theory/1"
    imbalance: tuple[ImbalanceRow, ...]
    splits: tuple[SplitsRow, ...]
    waits: tuple[WaitRow, ...]


def theory_rows(ranks: Sequence[int] = (2, 4, 8, 16, 32, 64), fillers_per_rank: int = 4) -> Theory:
    """The figures for these numbers of ranks (each at least 2)."""
    return Theory(
        imbalance=tuple(imbalance_row(n, g) for n in ranks for g in range(1, n + 1) if n % g == 0),
        splits=tuple(splits_row(n, fillers_per_rank) for n in ranks),
        waits=tuple(wait_rows()),
    )


def ideal_problem(name: str, num_ranks: int, works_ns: Sequence[int]) -> Problem:
    """Sequences of the given work on one node of ``num_ranks`` ranks, any degree, each at work/degree (rounded up)."""
    model = load_model("wan2.1-t2v-1.3b")
    cluster = msgspec.structs.replace(
        load_cluster("a800x8"), name=f"ideal-{num_ranks}", num_nodes=1, ranks_per_node=num_ranks, network=None
    )
    buckets = {
        work: Bucket(width=16 * index, height=16, num_frames=1, num_tokens=index)
        for index, work in enumerate(sorted(set(works_ns)), 1)
    }
    rows = [
        PriceRow(
            bucket=bucket.name,
            num_tokens=bucket.num_tokens,
            config=ParallelConfig(q=degree),
            num_nodes=1,
            price=_ideal_price(ceil_div(work, degree)),
        )
        for work, bucket in buckets.items()
        for degree in range(1, num_ranks + 1)
    ]
    header = PriceHeader(
        kind="components", model=model.name, cluster=cluster.name, device=cluster.device.name, dtype="bf16",
        checkpoint="full", assumptions=("ideal: work / degree, no communication, memory never binds",),
    )  # fmt: skip
    sequences = tuple(Clip(f"s{index}", buckets[work]) for index, work in enumerate(works_ns))
    batch = Batch(name=name, sequences=sequences, buckets=tuple(buckets.values()))
    memory = MemoryModel(usable_bytes=ENDLESS_BYTES, base_bytes=0, sharding="zero3", checkpoint="full")
    return Problem(batch, cluster, model, PriceTable(header=header, rows=tuple(rows)), memory, "per_sequence")


def _ideal_price(time_ns: int) -> Price:
    return Price(
        linear_ns=time_ns, attention_ns=0, exchange_ns=0, launch_ns=0, recompute_ns=0,
        kept_bytes=0, live_bytes=0, comm_bytes=0, source="analytic",
    )  # fmt: skip


def joint_makespan(problem: Problem) -> int:
    """T_joint of an ideal problem: every sequence on all ranks, which the area bound proves optimal."""
    num_ranks = problem.cluster.num_ranks
    everyone = ParallelConfig(q=num_ranks), tuple(range(num_ranks))
    makespan = max(rank_costs(problem, [_place(clip, *everyone) for clip in problem.batch.sequences]).times_ns)
    if makespan > best_bound(problem)[0] + len(problem.batch.sequences):
        raise ValueError("not an ideal problem: splitting everything over all ranks costs work")
    return makespan


def disjoint_makespan(problem: Problem, sizes: Sequence[int]) -> int:
    """T_disjoint for groups of these sizes: exact, by depth-first search over sequences (few of them, please)."""
    if sum(sizes) != problem.cluster.num_ranks:
        raise ValueError(f"groups of {list(sizes)} do not cover {problem.cluster.num_ranks} ranks")
    clips = sorted(problem.batch.sequences, key=lambda clip: -problem.whole(clip.bucket).time_ns)
    prices = [{size: _price(problem, clip, size) for size in sizes} for clip in clips]
    loads = [0] * len(sizes)
    best = sum(row[max(sizes)] for row in prices)

    def search(position: int) -> None:
        nonlocal best
        if position == len(prices):
            best = min(best, max(loads))
            return
        tried = set()
        for group, size in enumerate(sizes):
            after = loads[group] + prices[position][size]
            if after < best and (size, loads[group]) not in tried:
                tried.add((size, loads[group]))
                loads[group] = after
                search(position + 1)
                loads[group] -= prices[position][size]

    search(0)
    return best


def imbalance_ratio(problem: Problem, sizes: Sequence[int]) -> Fraction:
    """Gamma = T_disjoint / T_joint."""
    return Fraction(disjoint_makespan(problem, sizes), joint_makespan(problem))


def largest_share(problem: Problem) -> Fraction:
    """phi: the largest sequence's share of all work."""
    works = [problem.whole(clip.bucket).time_ns for clip in problem.batch.sequences]
    return Fraction(max(works), sum(works))


def imbalance_problem(num_ranks: int, largest_group: int) -> Problem:
    """Theorem 1's batch: one sequence, its work a multiple of both N and g_max."""
    return ideal_problem(f"theorem-1-n{num_ranks}-g{largest_group}", num_ranks, [num_ranks * largest_group * UNIT_NS])


def imbalance_row(num_ranks: int, largest_group: int) -> ImbalanceRow:
    """Theorem 1 for groups of at most g_max ranks: as many of g_max as there is room for, and the rest in one."""
    problem = imbalance_problem(num_ranks, largest_group)
    rest = num_ranks % largest_group
    sizes = [largest_group] * (num_ranks // largest_group) + ([rest] if rest else [])
    return ImbalanceRow(
        num_ranks=num_ranks,
        largest_group=largest_group,
        joint_ns=joint_makespan(problem),
        disjoint_ns=disjoint_makespan(problem, sizes),
        ratio=float(imbalance_ratio(problem, sizes)),
        limit=num_ranks / largest_group,
    )


def splits_problem(num_ranks: int, fillers_per_rank: int) -> Problem:
    """Theorem 2's batch, giant first: delta is N units of work, u the least whole number of units above its bound."""
    delta = num_ranks * UNIT_NS
    u = (num_ranks - 1) * fillers_per_rank * delta + UNIT_NS
    works = [num_ranks * u] + [delta] * (num_ranks * fillers_per_rank)
    return ideal_problem(f"theorem-2-n{num_ranks}-p{fillers_per_rank}", num_ranks, works)


def joint_placements(problem: Problem) -> list[Placement]:
    """Theorem 2's joint placement: the giant on all ranks, the fillers dealt out whole."""
    num_ranks = problem.cluster.num_ranks
    giant, *fillers = problem.batch.sequences
    return [
        _place(giant, ParallelConfig(q=num_ranks), tuple(range(num_ranks))),
        *(_place(clip, WHOLE, (index % num_ranks,)) for index, clip in enumerate(fillers)),
    ]


def forced_disjoint_splits(problem: Problem, step_ns: int) -> int:
    """Split sequences of a disjoint placement within ``step_ns``, where only a group of all ranks holds the giant.

    That group leaves no rank for another, so everything is in it. Raises :class:`ValueError` where a smaller group
    would do for the giant, or where even the one group exceeds the step.
    """
    num_ranks = problem.cluster.num_ranks
    giant = max(problem.batch.sequences, key=lambda clip: problem.whole(clip.bucket).time_ns)
    if any(_price(problem, giant, size) <= step_ns for size in range(1, num_ranks)):
        raise ValueError("a smaller group holds the giant, so splits are not forced")
    if disjoint_makespan(problem, [num_ranks]) > step_ns:
        raise ValueError("no disjoint placement is as short")
    return len(problem.batch.sequences)


def splits_row(num_ranks: int, fillers_per_rank: int) -> SplitsRow:
    """Theorem 2 in figures; the step is checked against the area bound."""
    problem = splits_problem(num_ranks, fillers_per_rank)
    placements = joint_placements(problem)
    step = max(rank_costs(problem, placements).times_ns)
    return SplitsRow(
        num_ranks=num_ranks,
        num_fillers=num_ranks * fillers_per_rank,
        step_ns=step,
        next_best_ns=_price(problem, problem.batch.sequences[0], num_ranks - 1),
        joint_splits=sum(placement.config.is_split for placement in placements),
        disjoint_splits=forced_disjoint_splits(problem, step),
    )


def wait_rows() -> Iterator[WaitRow]:
    """The triangle, which waits, and aligned blocks of the same load, which do not."""
    for num_ranks, sets in ((3, ((0, 1), (1, 2), (0, 2))), (4, ((0, 1, 2, 3), (0, 1), (2, 3)))):
        gangs = gangs_on(num_ranks, sets)
        label = " ".join("{" + ",".join(map(str, ranks)) + "}" for ranks in sets)
        yield WaitRow(rank_sets=label, additive_ns=additive_makespan(gangs), best_order_ns=best_order_makespan(gangs))


def gangs_on(num_ranks: int, rank_sets: Sequence[tuple[int, ...]]) -> list[Gang]:
    """Gangs of one unit each on the given rank sets, from an ideal problem whose works are their degrees."""
    problem = ideal_problem("gangs", num_ranks, [len(ranks) * UNIT_NS for ranks in rank_sets])
    clips = problem.batch.sequences
    return [Gang(ranks, _price(problem, clip, len(ranks))) for clip, ranks in zip(clips, rank_sets, strict=True)]


def additive_makespan(gangs: Sequence[Gang]) -> int:
    """The largest sum of times on a rank."""
    ranks = {rank for gang in gangs for rank in gang.ranks}
    return max(sum(gang.time_ns for gang in gangs if rank in gang.ranks) for rank in ranks)


def synchronous_makespan(gangs: Sequence[Gang]) -> int:
    """When the last gang ends, run in the given order: each starts when all of its ranks are free."""
    free: dict[int, int] = {}
    for gang in gangs:
        end = max(free.get(rank, 0) for rank in gang.ranks) + gang.time_ns
        free.update(dict.fromkeys(gang.ranks, end))
    return max(free.values())


def best_order_makespan(gangs: Sequence[Gang]) -> int:
    """The least synchronous makespan over all orders; every schedule of gangs is one in order of its starts."""
    if len(gangs) > MAX_GANGS:
        raise ValueError(f"{len(gangs)} gangs are more than the {MAX_GANGS} whose orders are all tried")
    return min(synchronous_makespan(order) for order in permutations(gangs))


def larger_first(gangs: Sequence[Gang]) -> list[Gang]:
    """The order of the no-wait theorem: larger rank sets first, ties as given."""
    return sorted(gangs, key=lambda gang: -len(gang.ranks))


def _place(clip: Clip, config: ParallelConfig, ranks: tuple[int, ...]) -> Placement:
    return Placement(sequence=clip.id, bucket=clip.bucket.name, config=config, ranks=ranks)


def _price(problem: Problem, clip: Clip, degree: int) -> int:
    """Time on each of ``degree`` ranks."""
    option = problem.option(clip.bucket.name, ParallelConfig(q=degree), 1)
    if option is None:
        raise ValueError(f"no price for {clip.bucket.name} on {degree} ranks")
    return option.time_ns
