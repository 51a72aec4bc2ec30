"""Uniform groups: every sequence in one of equal groups of ranks, the longest first; a peer that takes microseconds."""

from __future__ import annotations

from collections.abc import Iterator

from zellige.plan.packing import Filler, Ranks, Split, pour_all
from zellige.problem import Problem, Rung
from zellige.units import ceil_div


def uniform_degrees(problem: Problem) -> Iterator[tuple[int, int, dict[str, Rung]]]:
    """(a lower bound in nanoseconds, degree, fastest rung of each bucket) for the sizes that divide the ranks
    and a node, or are whole nodes: consecutive groups of others would straddle nodes."""
    num_ranks, per_node = problem.cluster.num_ranks, problem.cluster.ranks_per_node
    fastest: dict[int, dict[str, Rung]] = {}
    for bucket in problem.counts:
        for rung in problem.rungs[bucket.name]:
            on_nodes = (
                -(-rung.degree // per_node) if max(per_node, rung.degree) % min(per_node, rung.degree) == 0 else 0
            )
            if num_ranks % rung.degree == 0 and on_nodes == rung.nodes:
                known = fastest.setdefault(rung.degree, {}).get(bucket.name)
                if known is None or rung.time < known.time:
                    fastest[rung.degree][bucket.name] = rung
    for degree, rungs in sorted(fastest.items()):
        if len(rungs) < len(problem.counts):
            continue
        work = sum(count * rungs[bucket.name].work for bucket, count in problem.counts.items())
        yield max(ceil_div(work, num_ranks), max(rung.time for rung in rungs.values())), degree, rungs


def fill_groups(problem: Problem, degree: int, rungs: dict[str, Rung]) -> tuple[dict[str, list[int]], Ranks]:
    """Sequences by decreasing time to the least loaded group: how many of each bucket, and the ranks' loads."""
    groups = Ranks(problem.cluster.num_ranks // degree)
    ordered = sorted(problem.counts.items(), key=lambda item: (-rungs[item[0].name].time, item[0]))
    fillers = [Filler(bucket.name, rungs[bucket.name], (), count) for bucket, count in ordered]
    counts = pour_all(groups, fillers)
    ranks = Ranks(0)
    ranks.time, ranks.kept, ranks.live = ([load for load in loads for _ in range(degree)] for loads in groups.loads)
    return {filler.bucket: placed for filler, placed in zip(fillers, counts, strict=True)}, ranks


def group_ranks(degree: int, index: int) -> tuple[int, ...]:
    """The ranks of a group."""
    return tuple(range(degree * index, degree * index + degree))


def group_ways(degree: int, rungs: dict[str, Rung], counts: dict[str, list[int]]) -> list[Split]:
    """The ways of all sequences, from the counts by group."""
    return [
        Split(name, rungs[name], group_ranks(degree, index))
        for name, by_group in counts.items()
        for index, count in enumerate(by_group)
        for _ in range(count)
    ]
