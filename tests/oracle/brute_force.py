"""The least step time of a small placement problem, by trying every option on every set of ranks.

Costs are restated here from the price components and the engines' definitions; nothing uses the package's options,
bounds or cost sums, which the tests compare with this.

* ``per_sequence``: a sequence adds all its components and its own calls to each of its ranks.
* ``group``: sequences of one pure-Ulysses split on one rank list share one exchange in and one back; others as above.
* ``coalesced``: no calls of a sequence's own; if anything is split, every rank makes max k exchanges in and one back.
* Memory of a rank: the model's state, what its sequences keep, and the live memory of the largest of them (of all of
  them together under ``coalesced``).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import msgspec

from zellige.catalog import load_cluster, load_model
from zellige.cluster import Cluster
from zellige.collectives import call_ns
from zellige.memory import MemoryModel
from zellige.placement import Engine, Placement, Problem
from zellige.prices import Price, PriceHeader, PriceRow, PriceTable
from zellige.shards import ParallelConfig
from zellige.workload import Batch, Bucket
from zellige.workload import Sequence as TrainingSequence

MIB = 2**20
MILLISECOND = 1_000_000
BASE_BYTES = 64 * MIB
LOOSE = 2**50


class Way(NamedTuple):
    """One way to run a sequence: a configuration on a set of ranks, and its price there."""

    config: ParallelConfig
    ranks: tuple[int, ...]
    num_nodes: int
    price: Price


class Costs(NamedTuple):
    """What every rank takes, how much of it is exposed transfer and calls, and what it needs."""

    times_ns: tuple[int, ...]
    exposed_ns: tuple[int, ...]
    memory_bytes: tuple[int, ...]


class Optimum(NamedTuple):
    """The least step time, and placements that reach it."""

    makespan_ns: int
    placements: tuple[Placement, ...]


def calls_ns(problem: Problem, num_ranks: int, num_nodes: int, num_rounds: int) -> int:
    """A step's packed calls: ``num_rounds`` exchanges in and one back, in every layer and pass (backward is two)."""
    passes = 4 if problem.memory.checkpoint == "full" else 3
    one = call_ns(problem.cluster, "all_to_all", num_ranks, num_nodes)
    return math.ceil(problem.model.geometry.num_layers * passes * (num_rounds + 1) * one)


def costs(problem: Problem, ways: Sequence[Way]) -> Costs:
    """Time and memory of every rank under the problem's engine."""
    num_ranks = problem.cluster.num_ranks
    times, compute, kept = [0] * num_ranks, [0] * num_ranks, [0] * num_ranks
    live = [[0] for _ in range(num_ranks)]
    packed = {}
    rounds = 0
    for way in ways:
        price = way.price
        work = price.linear_ns + price.attention_ns + price.recompute_ns
        ulysses = way.config.q == way.config.k == 1
        shared = problem.engine == "coalesced" or (problem.engine == "group" and ulysses)
        time = work + (packed_exchange_ns(price) if shared else price.exchange_ns)
        if problem.engine == "group" and ulysses and len(way.ranks) > 1:
            packed[way.config, way.ranks] = way.num_nodes
        elif problem.engine != "coalesced":
            time += price.launch_ns
        if len(way.ranks) > 1:
            rounds = max(rounds, way.config.k)
        for rank in way.ranks:
            times[rank] += time
            compute[rank] += work
            kept[rank] += price.kept_bytes
            live[rank].append(price.live_bytes)
    for (config, ranks), num_nodes in packed.items():
        for rank in ranks:
            times[rank] += calls_ns(problem, config.h, num_nodes, 1)
    if problem.engine == "coalesced" and rounds:
        every = calls_ns(problem, num_ranks, problem.cluster.num_nodes, rounds)
        times = [time + every for time in times]
    exposed = (a - b for a, b in zip(times, compute, strict=True))
    together = sum if problem.engine == "coalesced" else max
    memory = (problem.memory.base_bytes + a + together(b) for a, b in zip(kept, live, strict=True))
    return Costs(tuple(times), tuple(exposed), tuple(memory))


def ways_to_run(problem: Problem, bucket: str) -> list[Way]:
    """Every configuration in the table on every set of ranks that it can take; the fastest first."""
    ways = []
    for row in problem.prices.rows:
        if row.bucket != bucket:
            continue
        for ranks in combinations(range(problem.cluster.num_ranks), row.config.q * row.config.h * row.config.k):
            if len({rank // problem.cluster.ranks_per_node for rank in ranks}) == row.num_nodes:
                ways.append(Way(row.config, ranks, row.num_nodes, row.price))
    return sorted(ways, key=lambda way: (way.price.time_ns, way.config, way.ranks))


def optimum(problem: Problem, *, with_memory: bool = True) -> Optimum | None:
    """The least step time over all ways of all sequences; None where memory allows no placement.

    Depth first. A branch ends when a rank, or the mean rank, already takes as long as the best found: costs never fall
    when a sequence is added. Equal sequences take ways in ascending order, since swapping them changes nothing.
    """
    limit = problem.memory.usable_bytes if with_memory else LOOSE * LOOSE
    ways = {bucket.name: ways_to_run(problem, bucket.name) for bucket in problem.batch.buckets}
    sequences = sorted(problem.batch.sequences, key=lambda s: (-s.bucket.num_tokens, s.bucket.name))
    least_work = [min(least_ns(way.price) * len(way.ranks) for way in ways[s.bucket.name]) for s in sequences]
    best: list[tuple[int, tuple[Way, ...]]] = []

    def extend(chosen: tuple[Way, ...], first_way: int) -> None:
        so_far = costs(problem, chosen)
        work = sum(so_far.times_ns) + sum(least_work[len(chosen) :])
        reached = max(max(so_far.times_ns), -(-work // problem.cluster.num_ranks))
        if max(so_far.memory_bytes) > limit or (best and reached >= best[-1][0]):
            return
        if len(chosen) == len(sequences):
            best.append((reached, chosen))
            return
        name = sequences[len(chosen)].bucket.name
        for index, way in enumerate(ways[name][first_way:], first_way):
            following = sequences[len(chosen) + 1 : len(chosen) + 2]
            extend((*chosen, way), index if following and following[0].bucket.name == name else 0)

    extend((), 0)
    if not best:
        return None
    makespan, chosen = best[-1]
    return Optimum(makespan, tuple(as_placement(s, way) for s, way in zip(sequences, chosen, strict=True)))


def packed_exchange_ns(price: Price) -> int:
    """Exposed transfer where one exchange carries all of a phase."""
    return price.exchange_ns if price.packed_exchange_ns is None else price.packed_exchange_ns


def least_ns(price: Price) -> int:
    """The components without calls, under whichever engine takes less."""
    exchange = min(price.exchange_ns, packed_exchange_ns(price))
    return price.linear_ns + price.attention_ns + exchange + price.recompute_ns


def as_placement(sequence: TrainingSequence, way: Way) -> Placement:
    """A sequence put where a way says."""
    return Placement(sequence=sequence.id, bucket=sequence.bucket.name, config=way.config, ranks=way.ranks)


def small_cluster(num_ranks: int, num_nodes: int = 1) -> Cluster:
    """A cluster of that many A800 ranks in equal nodes."""
    pattern = load_cluster("a800x16")
    return msgspec.structs.replace(
        pattern, name=f"test-{num_nodes}x{num_ranks}", num_nodes=num_nodes, ranks_per_node=num_ranks // num_nodes
    )


def synthetic_problem(
    prices: Mapping[str, Mapping[tuple[ParallelConfig, int], Price]],
    counts: Mapping[str, int],
    cluster: Cluster,
    engine: Engine,
    room_bytes: int = LOOSE,
) -> Problem:
    """A problem with made-up prices: ``prices[bucket][config, nodes]``, ``counts[bucket]`` sequences of each.

    Buckets are named ``<width>x16x1``; a bucket of count 0 is in the catalog alone.
    """
    model = load_model("wan2.1-t2v-1.3b")
    buckets = {name: Bucket(width=int(name.split("x")[0]), height=16, num_frames=1, num_tokens=n) for n, name in
               enumerate(sorted(prices, key=lambda name: int(name.split("x")[0])), 1)}  # fmt: skip
    rows = tuple(
        PriceRow(bucket=name, num_tokens=buckets[name].num_tokens, config=config, num_nodes=nodes, price=price)
        for name, table in prices.items()
        for (config, nodes), price in table.items()
    )
    header = PriceHeader(
        kind="components", model=model.name, cluster=cluster.name, device=cluster.device.name, dtype="bf16",
        checkpoint="full", assumptions=("made up",),
    )  # fmt: skip
    sequences = tuple(
        TrainingSequence(f"{name}-{index}", buckets[name]) for name, count in counts.items() for index in range(count)
    )
    memory = MemoryModel(
        usable_bytes=BASE_BYTES + room_bytes, base_bytes=BASE_BYTES, sharding="zero3", checkpoint="full"
    )
    batch = Batch(name="made-up", sequences=sequences, buckets=tuple(buckets.values()))
    return Problem(batch, cluster, model, PriceTable(header=header, rows=rows), memory, engine)


def make_price(time_ns: int, launch_ns: int = 0, kept: int = 0, live: int = 0, *, exchange: int = 0) -> Price:
    """A price from its time without calls (of which ``exchange`` is exposed transfer), its own calls, and memory.

    Packed exchanges take a little less.
    """
    attention = (time_ns - exchange) // 3
    return Price(
        linear_ns=time_ns - exchange - 2 * attention, attention_ns=attention, exchange_ns=exchange, launch_ns=launch_ns,
        recompute_ns=attention, kept_bytes=kept, live_bytes=live, comm_bytes=exchange, source="fitted",
        packed_exchange_ns=exchange - exchange // 5 if exchange else None,
    )  # fmt: skip


def node_spans(cluster: Cluster, degree: int) -> Iterator[int]:
    """The numbers of nodes that some set of ``degree`` ranks spans."""
    ranks = range(cluster.num_ranks)
    yield from sorted({len({rank // cluster.ranks_per_node for rank in s}) for s in combinations(ranks, degree)})


def random_problem(rng: random.Random, engine: Engine, *, tight: bool = False) -> Problem:
    """2 to 4 ranks, 1 to 5 sequences of 1 to 3 buckets, prices from smooth to arbitrary; memory binds if ``tight``."""
    cluster = rng.choice([small_cluster(2), small_cluster(3), small_cluster(4), small_cluster(4, 2)])
    num_ranks = cluster.num_ranks
    splits = [ParallelConfig(q, h, k) for q in (1, 2) for h in (1, 2, 3, 4) for k in (1, 2, 3)]
    legal = [config for config in splits if 1 < config.degree <= num_ranks]
    configs = [ParallelConfig(), *rng.sample(legal, min(len(legal), rng.randint(1, 4)))]
    smooth = rng.random() < 0.6
    prices, counts = {}, {}
    left = rng.randint(1, 5 if num_ranks < 4 else 4)
    for index in range(rng.randint(1, 3)):
        work, kept = round(10 ** rng.uniform(0.5, 3.3)), rng.randint(1, 64)
        table = {}
        for config in configs:
            for nodes in node_spans(cluster, config.degree):
                spread = rng.uniform(1, 1.4) if smooth else rng.uniform(0.3, config.degree * 1.5)
                time = max(1, round(work / config.degree * (spread if config.is_split else 1))) * MILLISECOND
                table[config, nodes] = make_price(
                    time,
                    rng.randint(0, 90) * MILLISECOND if config.is_split else 0,
                    max(1, round(kept / config.degree * rng.uniform(1, 1.5))) * MIB,
                    rng.randint(0, 24) * MIB,
                    exchange=time // rng.randint(2, 9) if config.is_split else 0,
                )
        name = f"{16 * (index + 1)}x16x1"
        prices[name], counts[name] = table, rng.randint(1 if index == 0 else 0, left)
        left -= counts[name]
    room = LOOSE
    if tight:
        room = round(sum(counts[n] * t[ParallelConfig(), 1].memory_bytes for n, t in prices.items()) / num_ranks)
        room = round(room * rng.uniform(0.8, 2.5)) + 8 * MIB
    return synthetic_problem(prices, counts, cluster, engine, room)
