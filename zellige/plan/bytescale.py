"""ByteScale's hybrid data parallelism: as few ranks for a sequence as it needs, on one pool (arXiv 2502.21231).

From the source: all ranks are one pool; a sequence of L tokens runs on ``ceil(L / capacity)`` ranks, those of a
sequence exchange keys in a ring of their own; short sequences share micro-batches up to the capacity; ranks may run
unequal numbers of micro-batches; a balance scheduler hands sequences of about equal work, the longest first, to the
least loaded ranks. It has no public code.

Inferred: degrees are rounded up to sizes that divide one another, on aligned blocks, so that ring partners never wait
(longer sequences run first); the block whose ranks are least loaded is taken. The capacity is tuned as a user would:
from all of the longest sequence on one rank it is halved until it is spread over all ranks, and the best plan counts.
Offloading of activations has no price and is left out. Sequences run one after another: ``per_sequence``.
"""

from __future__ import annotations

from zellige.errors import InfeasibleError
from zellige.placement import Placement, Plan, Problem, Solver, make_plan, rank_costs, require_placeable
from zellige.plan.bounds import best_bound
from zellige.plan.groups import aligned_sizes, in_micro_batches, place, ring_first, splits_by_degree
from zellige.shards import ParallelConfig
from zellige.units import ceil_div, format_count
from zellige.workload import Bucket


def plan_bytescale_hdp(problem: Problem) -> Plan:
    """The best plan over capacities: those that fit first, then the shortest step, then the larger capacity.

    Raises :class:`InfeasibleError` where a sequence fits on no block of ranks.
    """
    require_placeable(problem)
    best: tuple[tuple[bool, int], list[Placement], int] | None = None
    for capacity in token_capacities(problem):
        placements = in_micro_batches(problem, _with_capacity(problem, capacity))
        costs = rank_costs(problem, placements)
        over = max(costs.memory_bytes) > problem.memory.usable_bytes
        key = (over, max(costs.memory_bytes) if over else costs.makespan_ns)
        if best is None or key < best[0]:
            best = (key, placements, capacity)
    assert best is not None
    return make_plan(
        problem,
        "bytescale-hdp",
        best[1],
        bound=best_bound(problem),
        solver=Solver(name="greedy", status="heuristic"),
        notes=(f"capacity {format_count(best[2])} tokens a rank",),
    )


def token_capacities(problem: Problem) -> list[int]:
    """Tokens a rank: all of the longest sequence, half of it and so on, down to its share of all ranks."""
    longest = max(bucket.num_tokens for bucket in problem.counts)
    shares, ranks = [], 1
    while ranks < problem.cluster.num_ranks:
        shares.append(ceil_div(longest, ranks))
        ranks *= 2
    return [*shares, ceil_div(longest, problem.cluster.num_ranks)]


def _with_capacity(problem: Problem, capacity: int) -> list[Placement]:
    """Placements by decreasing degree and then time, each on the aligned block that is done first."""
    splits = splits_by_degree(problem, ring_first)
    sizes = [size for size in aligned_sizes(problem.cluster) if size in splits]
    ways = {bucket: _smallest(problem, bucket, capacity, sizes, splits) for bucket in problem.counts}
    done = [0] * problem.cluster.num_ranks
    placements: list[Placement] = []
    order = sorted(
        problem.batch.sequences, key=lambda clip: (-ways[clip.bucket][0], -ways[clip.bucket][1], clip.bucket)
    )
    for clip in order:
        size, time_ns = ways[clip.bucket]
        starts = range(0, problem.cluster.num_ranks, size)
        ready, start = min((max(done[start : start + size]), start) for start in starts)
        ranks = tuple(range(start, start + size))
        done[start : start + size] = [ready + time_ns] * size
        placements += place([clip], splits[size], ranks)
    return placements


def _smallest(
    problem: Problem, bucket: Bucket, capacity: int, sizes: list[int], splits: dict[int, ParallelConfig]
) -> tuple[int, int]:
    """The smallest size whose shards fit and have at most ``capacity`` tokens (else the largest), and its time."""
    found: tuple[int, int] | None = None
    for size in sizes:
        option = problem.option_on(bucket.name, splits[size], tuple(range(size)))
        if option is None or not problem.fits_alone(option):
            continue
        found = (size, option.time_ns)
        if bucket.num_tokens <= capacity * size:
            break
    if found is None:
        raise InfeasibleError(
            f"a sequence of {bucket.name} fits on no block of ranks as a ring", fix="a policy with other splits"
        )
    return found
