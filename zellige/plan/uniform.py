"""Uniform groups: every sequence in one of equal groups of ranks, the longest first; a peer that takes microseconds."""

from __future__ import annotations

from collections.abc import Iterator

from zellige.cluster import Cluster
from zellige.plan.packing import Filler, Ranks, Split, pour_all
from zellige.problem import Problem, Rung
from zellige.units import ceil_div


def uniform_degrees(problem: Problem, below: int) -> Iterator[tuple[int, int, dict[str, Rung]]]:
    """(a lower bound in nanoseconds without calls, degree, a rung of each bucket) for the sizes that divide the ranks,
    where no group lies on more nodes than it must.

    Of each degree with the fastest rungs, with the fastest of those with the fewest ring rounds, and with those that
    keep the fewest bytes, where these are others; none where even the fastest do not stay ``below`` a time.
    """
    num_ranks = problem.cluster.num_ranks
    spans = {
        degree: problem.cluster.smallest_footprint(degree)
        for degree in range(1, num_ranks + 1)
        if num_ranks % degree == 0 and _lie_alike(problem.cluster, degree)
    }
    found: dict[int, dict[str, list[Rung]]] = {degree: {} for degree in spans}
    for name in problem.numbers:
        for rung in problem.rungs[name]:
            if spans.get(rung.degree) == rung.nodes:
                found[rung.degree].setdefault(name, []).append(rung)
    for degree, rungs in found.items():
        if len(rungs) < len(problem.numbers):
            continue
        tried: list[dict[str, Rung]] = []
        for key in (_floor, _rounds, _kept):
            chosen = {name: min(each, key=key) for name, each in rungs.items()}
            if chosen in tried:
                continue
            tried.append(chosen)
            times = {name: _floor(rung) for name, rung in chosen.items()}
            work = sum([count * times[name] * degree for name, count in problem.numbers.items()])
            least = max(ceil_div(work, num_ranks), max(times.values()))
            if key is _floor and least >= below:
                break
            yield least, degree, chosen


def _lie_alike(cluster: Cluster, degree: int) -> bool:
    """Whether consecutive groups of so many ranks all lie on the fewest nodes that can hold them: groups of 12 on nodes
    of 8 do, the second on the halves of two, and groups of 6 do not."""
    per_node, least = cluster.ranks_per_node, cluster.smallest_footprint(degree)
    if max(per_node, degree) % min(per_node, degree) == 0:
        return True
    firsts = range(0, cluster.num_ranks, degree)
    return all((first + degree - 1) // per_node - first // per_node + 1 == least for first in firsts)


def _floor(rung: Rung) -> int:
    """What a rung takes at least, however many share its calls."""
    return rung.option.floor_ns


def _rounds(rung: Rung) -> tuple[int, int]:
    return rung.option.config.k, rung.option.floor_ns


def _kept(rung: Rung) -> tuple[int, int]:
    return rung.kept, rung.option.floor_ns


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
