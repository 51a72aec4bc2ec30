"""A draft around a placement that the bound on any rank sets met: its longest sequences may lie unevenly on nodes, as
no other draft's do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from zellige.plan.any_sets import Laid
from zellige.plan.attempt_kernel import SHORT
from zellige.plan.blocks import Block
from zellige.plan.drafts import Placed, fill, polish
from zellige.plan.free import FreeSearch, place_freely
from zellige.plan.packing import Ranks
from zellige.plan.search import Found
from zellige.plan.task import Draft, Task, anchors_of, members_of, sand_of
from zellige.problem import Option, Rung


def laid_draft(task: Task, laid: Sequence[Laid], below: int) -> Draft | None:
    """The sequences as they were laid, other long ones on free rank sets, all others packed around them, and a local
    search over all; None where an option has no price on its ranks, something has no room, or the long ones do not end
    before ``below``."""
    cluster = task.problem.cluster
    rungs = [_rung(task, each.bucket, each.ranks) for each in laid]
    if None in rungs:
        return None
    chosen = [(rung, Block(each.ranks, (), ())) for rung, each in zip(rungs, laid, strict=True) if rung is not None]
    ranks, mine = Ranks(cluster.num_ranks), Counter([each.bucket for each in laid])
    for rung, block in chosen:
        ranks.add(block.ranks, rung)
    rest = {name: max(0, number - mine[name]) for name, number in anchors_of(task, SHORT).items()}
    others = [anchor.bucket for anchor in members_of(task, rest)]
    anchors = mine + Counter(others)
    sand = sand_of(task, anchors, ())
    fronts = [task.front(name) for name in others]
    search = FreeSearch(cluster.num_nodes, cluster.ranks_per_node, fronts, sand.work, ranks.time)
    found = place_freely(search, task.start, below)
    if found is None:
        return None
    names = (*[each.bucket for each in laid], *others)
    placed = Placed(0, names, Found((*chosen, *found[0]), found[1], task.start))
    result = fill(task, anchors, [], [placed], sand, loose_only=True)
    return None if result is None else polish(task, result)


def _rung(task: Task, bucket: str, ranks: tuple[int, ...]) -> Rung | None:
    """The fastest way to run a bucket on some ranks that its rungs have and that fits."""
    best: Option | None = None
    for config in {rung.option.config for rung in task.rungs[bucket] if rung.degree == len(ranks)}:
        option = task.problem.option_on(bucket, config, ranks)
        if option is not None and task.problem.fits_alone(option) and (best is None or _key(option) < _key(best)):
            best = option
    if best is None:
        return None
    for rung in task.rungs[bucket]:
        if rung.option is best:
            return rung
    degree = best.config.degree
    return Rung(best.time_ns * degree, best.time_ns, degree, best.num_nodes, best.kept_bytes, best.live_bytes, best)


def _key(option: Option) -> tuple[int, int, tuple[int, int, int]]:
    return option.time_ns, option.comm_bytes, (option.config.q, option.config.h, option.config.k)
