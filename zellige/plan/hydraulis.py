"""Hydraulis, stage 1: seeded greedy trials over a set of unequal groups (arXiv 2412.07894; PKU-DAIR/Hetu).

From the source: a pool of mixes of unequal pipelines, each with a longest sequence that it holds; one mix is chosen for
a batch; its sequences are dealt by 100 trials of a seeded shuffle (seeds 0 to 99), each sequence to the pipeline on
which its total ends least, and the best trial counts (the ILP is left behind in the code as too slow). Stage 2 packs
every pipeline's sequences into micro-batches.

Inferred: pipelines here are groups of ranks without tensor or pipeline parallelism, Ulysses where the heads divide and
else Ulysses x ring; the pool holds every mix of at most two sizes that fill the cluster; the mix for a batch is that
on which the longest-first order ends first. With one pipeline stage, micro-batches only bound memory. Packed groups:
the engine is ``group``.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator, Sequence

from zellige.errors import InfeasibleError
from zellige.placement import Placement, Plan, Problem, Solver, make_plan, require_placeable
from zellige.plan.bounds import best_bound
from zellige.plan.groups import aligned_sizes, heads_first, in_micro_batches, lay_out, place, splits_by_degree
from zellige.shards import ParallelConfig
from zellige.workload import Sequence as Clip

TRIALS = 100
"""Shuffles, seeded by their number."""

Mix = tuple[tuple[int, int], ...]
"""Groups of a cluster: (size, how many), the largest first."""


def plan_hydraulis(problem: Problem) -> Plan:
    """The best of 100 trials over the mix that suits the batch.

    Raises :class:`InfeasibleError` where no mix holds every sequence.
    """
    require_placeable(problem)
    splits = splits_by_degree(problem, heads_first)
    times = _times(problem, splits)
    clips = sorted(problem.batch.sequences, key=lambda clip: -clip.bucket.num_tokens)
    outcomes = [(end, mix) for mix in mixes(problem) if (end := _deal(clips, mix, times)[0]) is not None]
    if not outcomes:
        raise InfeasibleError("no mix of groups holds every sequence", fix="a policy that splits over more ranks")
    mix = min(outcomes)[1]
    _, owners = best_trial(clips, mix, times)
    sizes = [size for size, count in mix for _ in range(count)]
    placements: list[Placement] = []
    for group, ranks in enumerate(lay_out(problem.cluster, sizes)):
        members = [clip for clip, owner in zip(clips, owners, strict=True) if owner == group]
        placements += place(members, splits[sizes[group]], ranks)
    label = "groups " + " + ".join(f"{count} x {size}" for size, count in mix)
    return make_plan(
        problem,
        "hydraulis",
        in_micro_batches(problem, placements),
        bound=best_bound(problem),
        solver=Solver(name=f"greedy, {TRIALS} trials", status="heuristic"),
        notes=(label,),
    )


def mixes(problem: Problem) -> Iterator[Mix]:
    """Mixes of at most two aligned sizes that fill the cluster."""
    num_ranks = problem.cluster.num_ranks
    priced = splits_by_degree(problem, heads_first)
    sizes = [size for size in aligned_sizes(problem.cluster) if size in priced]
    for large in sizes:
        yield ((large, num_ranks // large),)
        for small in (size for size in sizes if size < large):
            for count in range(1, num_ranks // large):
                yield ((large, count), (small, (num_ranks - count * large) // small))


def best_trial(clips: Sequence[Clip], mix: Mix, times: dict[int, dict[str, int]]) -> tuple[int, list[int]]:
    """The least end of all trials and the group of every clip; the first trial among equals."""
    best: tuple[int, list[int]] | None = None
    for trial in range(TRIALS):
        order = list(range(len(clips)))
        random.Random(trial).shuffle(order)
        end, dealt = _deal([clips[index] for index in order], mix, times)
        if end is not None and (best is None or end < best[0]):
            owners = [0] * len(clips)
            for index, owner in zip(order, dealt, strict=True):
                owners[index] = owner
            best = (end, owners)
    if best is None:
        raise InfeasibleError("this mix of groups does not hold every sequence")
    return best


def _times(problem: Problem, splits: dict[int, ParallelConfig]) -> dict[int, dict[str, int]]:
    """Time of a sequence by group size and bucket, where a rank of the group holds it."""
    times: dict[int, dict[str, int]] = {}
    for size, config in splits.items():
        times[size] = {}
        for bucket in problem.counts:
            option = problem.option_on(bucket.name, config, tuple(range(size)))
            if option is not None and problem.fits_alone(option):
                times[size][bucket.name] = option.floor_ns
    return times


def _deal(clips: Sequence[Clip], mix: Mix, times: dict[int, dict[str, int]]) -> tuple[int | None, list[int]]:
    """Every clip, in turn, to the group on which it ends first; the latest end (None: one fits nowhere), and owners."""
    heaps, start = [], 0
    for size, count in mix:
        heaps.append((times[size], [(0, start + index) for index in range(count)]))
        start += count
    latest, owners = 0, []
    for clip in clips:
        name = clip.bucket.name
        ends = [(heap[0][0] + prices[name], heap[0][1], heap) for prices, heap in heaps if name in prices]
        if not ends:
            return None, []
        end, group, heap = min(ends, key=lambda item: item[:2])
        heapq.heapreplace(heap, (end, group))
        latest = max(latest, end)
        owners.append(group)
    return latest, owners
