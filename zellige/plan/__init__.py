"""Policies: functions from a problem to a plan."""

from zellige.plan.policies import POLICIES, find_policy, plan_batch

__all__ = ["POLICIES", "find_policy", "plan_batch"]
