"""A draft from a placement of the longest sequences that the search over any rank sets met.

The search takes the least price of a way to lie; on the ranks that it chose, an option may cost more. Everything else
is packed around them, and moved.
"""

from __future__ import annotations

import dataclasses

from zellige.plan.any_sets import Fitting, Lying
from zellige.plan.blocks import Block
from zellige.plan.drafts import Placed, fill, polish
from zellige.plan.search import Found
from zellige.plan.task import FREE, Draft, Task, sand_of
from zellige.problem import Problem, Rung


def draft_fitted(task: Task, fitting: Fitting) -> Draft | None:
    """The draft; None where a sequence has no option on its ranks, or memory leaves no place for something."""
    anchors: dict[str, int] = {}
    chosen = []
    for lying in fitting.anchors:
        rung = _rung_on(task.problem, lying, fitting.limit)
        if rung is None:
            return None
        anchors[lying.bucket] = anchors.get(lying.bucket, 0) + 1
        chosen.append((rung, Block(lying.ranks, (), ())))
    names = tuple([lying.bucket for lying in fitting.anchors])
    placed = Placed(0, names, Found(tuple(chosen), fitting.target, task.start))
    found = fill(task, anchors, [], [placed], sand_of(task, anchors, ()))
    return None if found is None else polish(task, dataclasses.replace(found, lower=task.start, origin=FREE))


def _rung_on(problem: Problem, lying: Lying, limit: int) -> Rung | None:
    """The fastest option of a sequence on its ranks, of those that fit and have no more ring rounds than ``limit``."""
    degree = len(lying.ranks)
    configs = {o.config for o in problem.priced[lying.bucket] if o.config.degree == degree}
    options = [
        option
        for config in configs
        if (config.k <= limit or degree == 1)
        and (option := problem.option_on(lying.bucket, config, lying.ranks)) is not None
        and problem.fits_alone(option)
    ]
    if not options:
        return None
    best = min(options, key=lambda o: (o.time_ns, o.comm_bytes, o.config))
    return Rung(degree * best.time_ns, best.time_ns, degree, best.num_nodes, best.kept_bytes, best.live_bytes, best)
