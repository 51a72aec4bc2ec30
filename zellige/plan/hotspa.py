"""HotSPa: length buckets one after another, each with a homogeneous strategy of its own (SOSP'24).

From the source (ccchengff/HotSPa-AE): a batch is cut by length (such as 32768, 16384, 4096), the parts run one after
another on the whole cluster, each under its own data x tensor x pipeline strategy, parameters are switched while
running ("hot"), and gradients add up. So there is a barrier between parts, and the step is the sum of theirs.

Inferred: the cuts are made by hand there; here they are the best for this batch, by dynamic programming over its
lengths (at most ``MAX_LENGTHS``), which no hand can beat. A strategy is a group size that divides the ranks with the
split that is cheapest for the part; sequences go longest first to the least loaded group, in micro-batches that fit.
Switching parameters, which takes the source well under a second, has no price here, in HotSPa's favour. Packed groups:
the engine is ``group``.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from zellige.errors import InfeasibleError
from zellige.placement import Placement, Plan, Problem, Solver, make_plan, require_placeable
from zellige.plan.bounds import best_bound
from zellige.plan.groups import GroupPrices, group_prices, in_micro_batches, place, priced_splits
from zellige.plan.length_buckets import length_buckets
from zellige.plan.lists import equal_groups
from zellige.shards import ParallelConfig
from zellige.units import format_count
from zellige.workload import Bucket
from zellige.workload import Sequence as Clip

MAX_LENGTHS = 24
"""So many lengths, and no more, are places for a cut; where a batch has more, the nearest ones stay together."""

Part = tuple[int, ParallelConfig]
"""What a part takes, and its split."""


def plan_hotspa(problem: Problem) -> Plan:
    """The cuts and strategies with the least sum of the parts' times.

    Raises :class:`InfeasibleError` where some length fits under no strategy.
    """
    require_placeable(problem)
    classes = length_classes(problem)
    configs = [config for config in priced_splits(problem) if problem.cluster.num_ranks % config.degree == 0]
    prices = group_prices(problem, configs)
    parts: dict[tuple[int, int], Part | None] = {
        (first, last): _best_part(problem, prices, [clip for group in classes[first:last] for clip in group])
        for first in range(len(classes))
        for last in range(first + 1, len(classes) + 1)
    }
    cuts = best_cuts(len(classes), {key: part[0] for key, part in parts.items() if part is not None})
    if cuts is None:
        raise InfeasibleError("some sequences fit under no homogeneous strategy", fix="more ranks")
    placements: list[Placement] = []
    labels = []
    for stage, key in enumerate(cuts):
        part = parts[key]
        assert part is not None
        clips = [clip for group in classes[key[0] : key[1]] for clip in group]
        placements += _deal(problem, clips, part[1], stage)
        longest = max(clip.bucket.num_tokens for clip in clips)
        groups = problem.cluster.num_ranks // part[1].degree
        labels.append(f"{groups} x {part[1]} to {format_count(longest)}")
    return make_plan(
        problem,
        "hotspa",
        in_micro_batches(problem, placements),
        bound=best_bound(problem),
        solver=Solver(name="dynamic programme", status="heuristic"),
        notes=(_label(labels),),
    )


def _label(parts: Sequence[str]) -> str:
    steps = "1 part" if len(parts) == 1 else f"{len(parts)} parts with barriers"
    return f"{steps}: " + "; ".join(parts) + " tokens"


def length_classes(problem: Problem) -> list[list[Clip]]:
    """The sequences by length, the longest first; where there are too many lengths, near ones together."""
    lengths: dict[int, int] = {}
    for bucket, count in problem.counts.items():
        lengths[bucket.num_tokens] = lengths.get(bucket.num_tokens, 0) + count
    top = length_buckets(lengths, MAX_LENGTHS)
    classes: dict[int, list[Clip]] = {}
    for clip in problem.batch.sequences:
        classes.setdefault(top[clip.bucket.num_tokens], []).append(clip)
    return [classes[length] for length in sorted(classes, reverse=True)]


def best_cuts(number: int, times_ns: dict[tuple[int, int], int]) -> list[tuple[int, int]] | None:
    """The runs ``[first, last)`` that cover ``number`` classes in the least sum of times; the fewest among equals.

    None where the runs with a time cannot cover them.
    """
    best: list[tuple[int, int, list[tuple[int, int]]] | None] = [(0, 0, [])] + [None] * number
    for last in range(1, number + 1):
        for first in range(last):
            before = best[first]
            if before is None or (first, last) not in times_ns:
                continue
            key = (before[0] + times_ns[first, last], before[1] + 1)
            held = best[last]
            if held is None or key < held[:2]:
                best[last] = (*key, [*before[2], (first, last)])
    found = best[number]
    return None if found is None else found[2]


def _best_part(problem: Problem, prices: GroupPrices, clips: Sequence[Clip]) -> Part | None:
    """The least time of a part over group sizes, each with the split of the least work that holds every sequence."""
    counts = prices.counts(clips)
    work = prices.times_ns(counts)
    alone = (prices.kept_bytes + prices.live_bytes)[:, counts > 0].max(axis=1)
    held = alone <= problem.memory.room_bytes
    chosen: dict[int, int] = {}
    for column, degree in enumerate(prices.degrees.tolist()):
        if held[column] and (degree not in chosen or work[column] < work[chosen[degree]]):
            chosen[degree] = column
    best: Part | None = None
    for degree, column in chosen.items():
        floor = dict(zip(prices.names, prices.floor_ns[column].tolist(), strict=True))
        loads = [0] * (problem.cluster.num_ranks // degree)
        for bucket, count in _longest_first(clips, floor):
            for _ in range(count):
                heapq.heapreplace(loads, loads[0] + floor[bucket.name])
        end = max(loads) + int(prices.calls_ns[column])
        if best is None or end < best[0]:
            best = (end, prices.configs[column])
    return best


def _longest_first(clips: Sequence[Clip], floor: dict[str, int]) -> list[tuple[Bucket, int]]:
    counts: dict[Bucket, int] = {}
    for clip in clips:
        counts[clip.bucket] = counts.get(clip.bucket, 0) + 1
    return sorted(counts.items(), key=lambda item: (-floor[item[0].name], item[0]))


def _deal(problem: Problem, clips: Sequence[Clip], config: ParallelConfig, stage: int) -> list[Placement]:
    """The part's sequences, longest first, each to the least loaded group."""
    groups = equal_groups(problem.cluster.num_ranks, config.degree)
    floor = {}
    for clip in clips:
        option = problem.option_on(clip.bucket.name, config, groups[0])
        assert option is not None
        floor[clip.bucket.name] = option.floor_ns
    loads = [(0, index) for index in range(len(groups))]
    placements = []
    for clip in sorted(clips, key=lambda clip: (-floor[clip.bucket.name], clip.bucket)):
        load, index = loads[0]
        heapq.heapreplace(loads, (load + floor[clip.bucket.name], index))
        placements += place([clip], config, groups[index], stage)
    return placements
