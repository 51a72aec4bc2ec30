"""Megatron-LM's hybrid context parallelism: groups rebuilt in every micro-step (``hybrid_cp_schedule.py``).

From the source (NVIDIA/Megatron-LM, BalancedCPScheduler): a sequence needs the least power of two of ranks whose shards
have at most ``max_seqlen_per_rank`` tokens; its work is L^2 over the ranks. Sequences, longest first, are cut into
buckets of about equal work (at most 1.1 of it), one for each degree needed. The first bucket whose head has a group of
just its degree, or free ranks, gives it to the least loaded of them. A micro-step ends where nothing can be placed, or
where shorter degrees have begun and ranks differ by at most 5 %; the last sequence of the most loaded group is taken
back while that evens ranks out; idle ranks are filled by doubling the smallest group. There is a barrier after every
micro-step, and sequences of a rank run forward and backward one at a time (so memory is of one, and ``per_sequence``).

Inferred: ``max_seqlen_per_rank`` and the kind of exchange (ring, the default; all-gather; Ulysses, where heads divide)
are tuned as a user would, the best plan counts. Where doubling would need more idle ranks than there are (numbers that
are no power of two; the source fails), they stay idle. The scheduler's own estimate leaves out linear work and memory;
times here are this project's prices.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Sequence

from zellige.placement import Placement, Plan, Problem, Solver, make_plan, rank_costs, require_placeable
from zellige.plan.bounds import best_bound
from zellige.plan.bytescale import token_capacities
from zellige.plan.groups import gather_first, heads_first, in_micro_batches, place, ring_first, splits_by_degree
from zellige.shards import ParallelConfig
from zellige.units import format_count
from zellige.workload import Sequence as Clip

SLACK = 0.05
"""Ranks whose work differs by at most this share of the largest are balanced."""

OVERFULL = 1.1
"""A bucket may have this much of its share of work."""

EXCHANGES: dict[str, Callable[[ParallelConfig], tuple[int, ...]]] = {
    "ring": ring_first,
    "all-gather": gather_first,
    "Ulysses first": heads_first,
}


@dataclasses.dataclass
class Group:
    """Ranks from ``start`` on that run the same sequences, of work ``load`` on each."""

    start: int
    size: int
    clips: list[Clip]
    load: float


class Scheduler:
    """The source's scheduler for one bound on tokens a rank."""

    def __init__(self, num_ranks: int, max_tokens: int, degrees: Sequence[int]) -> None:
        self.num_ranks = num_ranks
        self.max_tokens = max_tokens
        self.degrees = sorted(degrees)

    def needed(self, clip: Clip) -> int:
        """The least power of two of ranks for a sequence; the largest group there is, where that is less."""
        ranks = 1
        while ranks * self.max_tokens < clip.bucket.num_tokens:
            ranks *= 2
        return max(degree for degree in self.degrees if degree <= ranks)

    def work(self, clip: Clip) -> float:
        """The source's estimate for each rank."""
        return clip.bucket.num_tokens**2 / self.needed(clip)

    def micro_steps(self, clips: Sequence[Clip]) -> list[list[Group]]:
        """The groups of every micro-step; ``clips`` stand longest first."""
        steps = []
        left = list(clips)
        while left:
            groups, left = self.next_step(left)
            steps.append(groups)
        return steps

    def next_step(self, clips: Sequence[Clip]) -> tuple[list[Group], list[Clip]]:
        """A micro-step, and the sequences that it leaves."""
        buckets = self.equal_buckets(clips)
        groups: list[Group] = []
        first_needed = 0
        shorter = False
        while buckets:
            found = next((b for b in buckets if self._has_place(groups, self.needed(b[0]))), None)
            if found is None:
                break
            clip = found.popleft()
            needed = self.needed(clip)
            first_needed = first_needed or needed
            self._assign(groups, clip, needed)
            buckets = [bucket for bucket in buckets if bucket]
            shorter |= needed < first_needed
            loads = self._loads(groups)
            if shorter and buckets and max(loads) - min(loads) <= SLACK * max(loads):
                break
        left = [clip for bucket in buckets for clip in bucket]
        self._trim(groups, left)
        self._fill_idle(groups)
        return groups, left

    def equal_buckets(self, clips: Sequence[Clip]) -> list[deque[Clip]]:
        """Runs of about equal work, as many as there are degrees."""
        number = len({self.needed(clip) for clip in clips})
        target = sum(map(self.work, clips)) / number
        buckets: list[deque[Clip]] = [deque()]
        held, to_close = 0.0, number
        for index, clip in enumerate(clips):
            full = held + self.work(clip) > target * OVERFULL
            if buckets[-1] and (full or len(clips) - index <= to_close - (len(buckets) - 1)):
                buckets.append(deque())
                held = 0.0
                to_close -= 1
            buckets[-1].append(clip)
            held += self.work(clip)
        return buckets

    def _used(self, groups: Sequence[Group]) -> int:
        return sum(group.size for group in groups)

    def _loads(self, groups: Sequence[Group]) -> list[float]:
        idle = self.num_ranks - self._used(groups)
        return [group.load for group in groups] + [0.0] * bool(idle)

    def _has_place(self, groups: Sequence[Group], needed: int) -> bool:
        return any(group.size == needed for group in groups) or self.num_ranks - self._used(groups) >= needed

    def _assign(self, groups: list[Group], clip: Clip, needed: int) -> None:
        """To the least loaded group of that size; a new one, on the next free ranks, is idle and goes first."""
        if self.num_ranks - self._used(groups) >= needed:
            groups.append(Group(self._used(groups), needed, [], 0.0))
            chosen = groups[-1]
        else:
            chosen = min((group for group in groups if group.size == needed), key=lambda group: group.load)
        chosen.clips.append(clip)
        chosen.load += self.work(clip)

    def _trim(self, groups: list[Group], left: list[Clip]) -> None:
        """Take the last sequence of the most loaded group back while ranks come closer by it."""
        while True:
            loads = self._loads(groups)
            most, least = max(loads), min(loads)
            if most - least <= SLACK * most or least == 0:
                return
            group = groups[loads.index(most)]
            if len(group.clips) <= 1:
                return
            work = self.work(group.clips[-1])
            after = [load - work if other is group else load for other, load in zip(groups, loads, strict=False)]
            after += loads[len(groups) :]
            if max(after) - min(after) >= most - least:
                return
            left.append(group.clips.pop())
            group.load -= work

    def _fill_idle(self, groups: list[Group]) -> None:
        """Double the first of the smallest groups until no rank is idle, or too few are left to double any."""
        while (idle := self.num_ranks - self._used(groups)) > 0:
            smallest = min(group.size for group in groups)
            grown = min(2 * smallest, self.num_ranks)
            if grown - smallest > idle or grown not in self.degrees:
                return
            chosen = next(group for group in groups if group.size == smallest)
            chosen.size = grown
            for group in groups:
                if group.start > chosen.start:
                    group.start += grown - smallest


def plan_megatron_hybrid_cp(problem: Problem) -> Plan:
    """The best plan over bounds on tokens and kinds of exchange: those that fit first, then the shortest step."""
    require_placeable(problem)
    clips = sorted(problem.batch.sequences, key=lambda clip: (-clip.bucket.num_tokens, clip.bucket))
    best: tuple[tuple[bool, int], list[Placement], str] | None = None
    for max_tokens in token_capacities(problem):
        for label, preference in EXCHANGES.items():
            splits = splits_by_degree(problem, preference)
            degrees = [degree for degree in splits if degree & (degree - 1) == 0 or degree == problem.cluster.num_ranks]
            steps = Scheduler(problem.cluster.num_ranks, max_tokens, degrees).micro_steps(clips)
            placements = _placements(problem, steps, splits)
            costs = rank_costs(problem, placements)
            over = max(costs.memory_bytes) > problem.memory.usable_bytes
            key = (over, max(costs.memory_bytes) if over else costs.makespan_ns)
            if best is None or key < best[0]:
                count = f"{len(steps)} micro-steps with barriers" if len(steps) > 1 else "1 micro-step"
                best = (key, placements, f"{count}; {format_count(max_tokens)} tokens a rank, {label}")
    assert best is not None
    return make_plan(
        problem,
        "megatron-hybrid-cp",
        best[1],
        bound=best_bound(problem),
        solver=Solver(name="greedy", status="heuristic"),
        notes=(best[2],),
    )


def _placements(
    problem: Problem, steps: Sequence[Sequence[Group]], splits: dict[int, ParallelConfig]
) -> list[Placement]:
    placements: list[Placement] = []
    for stage, groups in enumerate(steps):
        for group in groups:
            ranks = tuple(range(group.start, group.start + group.size))
            placements += place(group.clips, splits[group.size], ranks, stage)
    return in_micro_batches(problem, placements, together=False)
