"""Plans that are kept: batches of one make-up are planned once and dealt out afterwards.

Nothing of a kept plan shows in the next one: a hit is, byte for byte and but for the wall-clock ``planning_ns``, the
plan that the policy would make afresh, since :func:`zellige.plan.policies.plan_batch` deals as well.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Hashable

import msgspec

from zellige.errors import UsageError
from zellige.placement import Engine, Plan, Problem
from zellige.plan.deal import deal
from zellige.plan.policies import find_policy, plan_batch

DEFAULT_ENTRIES = 1024
"""Plans that a cache keeps unless told otherwise; one of 500 sequences takes some 100 kB."""


class PlanCache:
    """The plans used last, by policy, engine, set-up and how many sequences of each bucket there are.

    ``hits`` and ``misses`` count. Batches that cannot be planned are not kept: their errors name their own sequences.
    """

    def __init__(self, max_entries: int = DEFAULT_ENTRIES) -> None:
        if max_entries < 1:
            raise UsageError(f"a plan cache of {max_entries} entries keeps nothing", fix="1 or more")
        self.max_entries = max_entries
        self.hits = 0
        self.misses = 0
        self._plans: OrderedDict[Hashable, Plan] = OrderedDict()

    def plan(self, problem: Problem, policy: str, engine: Engine | None = None) -> Plan:
        """The plan of a batch, as :func:`plan_batch` makes it; raises what that raises."""
        started = time.perf_counter_ns()
        key = plan_key(problem, policy, engine)
        kept = self._plans.get(key)
        if kept is None:
            plan = plan_batch(problem, policy, engine)
            self.misses += 1
            self._plans[key] = plan
            if len(self._plans) > self.max_entries:
                self._plans.popitem(last=False)
            return plan
        self._plans.move_to_end(key)
        self.hits += 1
        plan = deal(kept, problem)
        solver = msgspec.structs.replace(plan.solver, planning_ns=time.perf_counter_ns() - started)
        return msgspec.structs.replace(plan, solver=solver)


def plan_key(problem: Problem, policy: str, engine: Engine | None = None) -> Hashable:
    """What a plan depends on, besides names and order; raises :class:`UnknownNameError` for the policy."""
    batch = problem.batch
    setting = (problem.cluster, problem.model, problem.memory, problem.setup, problem.prices)
    counts = tuple((bucket.name, count) for bucket, count in problem.counts.items())
    return policy, engine or find_policy(policy).engine, counts, batch.buckets, setting
