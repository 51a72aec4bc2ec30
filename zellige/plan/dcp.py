"""DCP-like: blocks of sequences placed by hypergraph partitioning (arXiv 2510.10620; chenyu-jiang/dcp).

From the source: sequences are cut into blocks; data blocks (a block's Q, K, V and O, kept together) and computation
blocks (a query block against a key block) are vertices, a net joins every data block with the computation that reads or
writes it; least connectivity, which is the bytes that move, under a tolerance of imbalance (0.2), first over nodes and
then inside each. All blocks of a layer share a few exchanges, which is the ``coalesced`` engine: under
``per_sequence`` its overlapping rank sets would wait for one another.

Inferred: a plan cannot say which block is where, so a sequence is split evenly over the ranks that hold at least half
of an even share of it, in the cheapest way of that degree. A vertex weighs the time that its part of the whole sequence
takes (the source balances memory and attention apart, and only softly; it has several tolerances and the best plan
counts here). Blocks are as long as keeps the computation blocks to ``MAX_COMPUTATIONS``. Where memory runs over, the
batch is cut into micro-batches of equal work, as its data loader cuts by tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from zellige.placement import Option, Placement, Plan, Problem, Solver, make_plan, rank_costs, require_placeable
from zellige.plan.bounds import best_bound
from zellige.plan.fcp import deal_longest_first
from zellige.plan.groups import place, priced_splits
from zellige.plan.hypergraph import Hypergraph, partition
from zellige.shards import WHOLE, ParallelConfig
from zellige.units import ceil_div
from zellige.workload import Sequence as Clip

IMBALANCES = (0.2, 0.05)
"""Tolerances that are tried; the source's default comes first."""

MAX_MICRO_BATCHES = 16

MIN_BLOCK = 256
"""Tokens of the shortest block."""

MAX_COMPUTATIONS = 4_000
"""Computation blocks, about: beyond them blocks are longer."""

Splits = dict[int, list[ParallelConfig]]
"""Configurations by degree."""

TOTAL_WEIGHT = 2**28
"""The sum of vertex weights, within the partitioner's 32 bits."""


def plan_dcp(problem: Problem) -> Plan:
    """The fewest micro-batches that fit (a power of two), each under the best tolerance; the last tried, where none do.

    Raises :class:`MissingExtraError` without the extra ``dcp``.
    """
    require_placeable(problem)
    number = 1
    while True:
        placements: list[Placement] = []
        labels = []
        for stage, clips in enumerate(deal_longest_first(problem, [1] * number)):
            part, label = _place_blocks(problem, clips, stage)
            placements += part
            labels.append(label)
        fits = max(rank_costs(problem, placements).memory_bytes) <= problem.memory.usable_bytes
        if fits or 2 * number > min(MAX_MICRO_BATCHES, len(problem.batch.sequences)):
            break
        number *= 2
    steps = "1 micro-batch" if number == 1 else f"{number} micro-batches with barriers"
    return make_plan(
        problem,
        "dcp",
        placements,
        bound=best_bound(problem),
        solver=Solver(name="Mt-KaHyPar", status="heuristic"),
        notes=(f"{steps}: " + "; ".join(labels),),
    )


def _place_blocks(problem: Problem, clips: Sequence[Clip], stage: int) -> tuple[list[Placement], str]:
    """A micro-batch under the tolerance whose plan fits, then is shortest, then moves the least."""
    graph, owner = block_graph(problem, clips, block_tokens(problem, clips))
    splits: Splits = {}
    for config in priced_splits(problem):
        splits.setdefault(config.degree, []).append(config)
    best: tuple[tuple[bool, int, int], list[Placement], float] | None = None
    for imbalance in IMBALANCES:
        held = shares(graph, owner, rank_of_vertex(problem, graph, imbalance), len(clips))
        placements: list[Placement] = []
        for clip, ranks in zip(clips, held, strict=True):
            placements += _split(problem, splits, clip, ranks, stage)
        costs = rank_costs(problem, placements)
        over = max(costs.memory_bytes) > problem.memory.usable_bytes
        key = (over, max(costs.memory_bytes) if over else costs.makespan_ns, costs.comm_bytes)
        if best is None or key < best[0]:
            best = (key, placements, imbalance)
    assert best is not None
    return best[1], f"{len(graph.vertex_weights)} vertices at {best[2]:g}"


def block_tokens(problem: Problem, clips: Sequence[Clip]) -> int:
    """Tokens of a block: two for each rank of the longest sequence, longer where that makes too many computations."""
    lengths = [clip.bucket.num_tokens for clip in clips]
    tokens = max(MIN_BLOCK, ceil_div(max(lengths), 2 * problem.cluster.num_ranks))
    while sum(ceil_div(length, tokens) ** 2 for length in lengths if length > tokens) > MAX_COMPUTATIONS:
        tokens = ceil_div(5 * tokens, 4)
    return tokens


def block_graph(problem: Problem, clips: Sequence[Clip], tokens: int) -> tuple[Hypergraph, list[int]]:
    """The hypergraph of sequences in blocks of ``tokens``, and for every vertex the number of its sequence.

    A sequence of one block is one vertex, which moves nothing.
    """
    table = problem.prices.by_bucket()
    geometry = problem.model.geometry
    total = sum(problem.whole(clip.bucket).compute_ns for clip in clips)
    weights: list[int] = []
    owner: list[int] = []
    nets: list[list[int]] = []
    net_weights: list[int] = []

    def add(number: int, sequence: int, time_ns: float) -> range:
        first = len(weights)
        weights.extend([max(1, round(time_ns * TOTAL_WEIGHT / total))] * number)
        owner.extend([sequence] * number)
        return range(first, first + number)

    for sequence, clip in enumerate(clips):
        bucket = clip.bucket
        whole_ns = problem.whole(bucket).compute_ns
        number = ceil_div(bucket.num_tokens, tokens)
        if number == 1:
            add(1, sequence, whole_ns)
            continue
        price = table[bucket.name][WHOLE, 1]
        attention = price.attention_ns / (price.attention_ns + price.linear_ns)
        data = add(number, sequence, whole_ns * (1 - attention) / number)
        work = [add(number, sequence, whole_ns * attention / number**2) for _ in range(number)]
        for block in range(number):
            nets.append([data[block], *work[block]])
            net_weights.append(2 * ceil_div(tokens, 64) * geometry.num_heads)
            nets.append([data[block], *(row[block] for row in work)])
            net_weights.append(2 * ceil_div(tokens, 64) * geometry.num_kv_heads)
    return Hypergraph(weights, nets, net_weights), owner


def rank_of_vertex(problem: Problem, graph: Hypergraph, imbalance: float) -> list[int]:
    """The rank of every vertex: nodes first, then the ranks of each."""
    cluster = problem.cluster
    node_of = partition(graph, cluster.num_nodes, imbalance)
    ranks = [0] * len(node_of)
    for node in range(cluster.num_nodes):
        inside = [vertex for vertex, its in enumerate(node_of) if its == node]
        for vertex, block in zip(
            inside, partition(graph.restricted(inside), cluster.ranks_per_node, imbalance), strict=True
        ):
            ranks[vertex] = node * cluster.ranks_per_node + block
    return ranks


def shares(graph: Hypergraph, owner: Sequence[int], ranks: Sequence[int], number: int) -> list[list[int]]:
    """For every sequence the ranks that hold at least half of an even share of it, the fullest first."""
    held: list[dict[int, int]] = [{} for _ in range(number)]
    for weight, sequence, rank in zip(graph.vertex_weights, owner, ranks, strict=True):
        held[sequence][rank] = held[sequence].get(rank, 0) + weight
    result = []
    for parts in held:
        enough = sum(parts.values()) / (2 * len(parts))
        ordered = sorted(parts, key=lambda rank: (-parts[rank], rank))
        result.append([rank for rank in ordered if parts[rank] >= enough])
    return result


def _split(problem: Problem, splits: Splits, clip: Clip, ranks: Sequence[int], stage: int) -> list[Placement]:
    """The sequence on as many of its ranks as have a price, the fullest first; cheapest of what fits alone."""
    degree = max(degree for degree in splits if degree <= len(ranks))
    chosen = tuple(sorted(ranks[:degree]))
    found: list[tuple[Option, ParallelConfig]] = []
    for config in splits[degree]:
        option = problem.option_on(clip.bucket.name, config, chosen)
        if option is not None:
            found.append((option, config))
    _, best = min(found, key=lambda item: (not problem.fits_alone(item[0]), item[0].floor_ns, item[1]))
    return place([clip], best, chosen, stage)
