"""Policies: functions from a problem to a plan."""

from zellige.plan.compiled import is_compiled, prefer_compiled
from zellige.plan.policies import POLICIES, find_policy, plan_batch

__all__ = ["POLICIES", "find_policy", "is_compiled", "plan_batch", "prefer_compiled"]
