"""Policies whose modules are imported on first use."""

from __future__ import annotations

from pathlib import Path

import pytest

from zellige.plan import POLICIES, policies
from zellige.plan.policies import Later

DEFERRED = {name: policy.plan for name, policy in POLICIES.items() if isinstance(policy.plan, Later)}


@pytest.mark.parametrize("name", DEFERRED)
def test_every_deferred_planner_is_there(name: str) -> None:
    planner = DEFERRED[name].load()
    assert callable(planner)
    assert planner.__module__ == f"zellige.plan.{DEFERRED[name].module}"
    assert planner.__name__ == DEFERRED[name].name


def test_what_needs_the_solver_is_deferred() -> None:
    """By the modules' own imports, at any depth inside the room."""
    room = Path(policies.__file__).parent
    texts = {path.stem: path.read_text(encoding="utf-8") for path in room.glob("*.py")}
    heavy = {name for name, text in texts.items() if "from ortools" in text}
    assert heavy
    while more := {
        name
        for name, text in texts.items()
        if name not in heavy | {"policies"} and any(f"\nfrom zellige.plan.{other} import" in text for other in heavy)
    }:
        heavy |= more
    assert {"two_stage", "joint", "disjoint"} <= heavy
    assert not [name for name in heavy if f"\nfrom zellige.plan.{name} import" in texts["policies"]]
