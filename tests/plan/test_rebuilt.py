"""Drafts built anew: what they hold, which mixes of degrees are tried, and what they are worth where memory binds."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter

import msgspec
import pytest
from oracle.batches import on_nodes
from oracle.brute_force import random_problem
from oracle.drafts import assert_alike_compiled, assert_complete, drafted

from zellige.placement import Problem, rank_costs
from zellige.plan import plan_batch
from zellige.plan import zellige as planner
from zellige.plan.rebuilt import Builder, rebuilt
from zellige.plan.task import Draft, Task


def test_rebuilt_drafts_keep_all_sequences() -> None:
    chance, built, better = random.Random(3), 0, 0
    for _ in range(60):
        task, drafts = drafted(random_problem(chance, "coalesced", tight=True))
        for draft in drafts:
            found = rebuilt(task, draft, 0, 20)
            if found is not None:
                built += 1
                assert_complete(task, found)
                assert found.rounds <= draft.rounds
                better += found.longest < draft.longest
    assert built > 20
    assert better > 0


def test_more_tries_are_no_worse_and_a_goal_ends_them(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = tight_batch()
    task, (draft, *_) = drafted(problem)
    tried: list[int] = []
    real = Builder.try_mix

    def counted(self: Builder, mix: Counter[tuple[str, int]]) -> Draft | None:
        found = real(self, mix)
        tried.append(found.longest if found is not None else 0)
        return found

    monkeypatch.setattr(Builder, "try_mix", counted)
    few, many = rebuilt(task, draft, 0, 3), rebuilt(task, draft, 0, 30)
    assert few is not None
    assert many is not None
    assert len(tried) == 33
    assert few.longest == min(filter(None, tried[:3]))
    assert many.longest == min(filter(None, tried))
    tried.clear()
    enough = rebuilt(task, draft, many.longest, 30)
    assert enough is not None
    assert enough.longest == many.longest == tried[-1]
    assert len(tried) <= 30


def test_no_mix_is_tried_twice_and_each_changes_one_sequence() -> None:
    task, (draft, *_) = drafted(tight_batch())
    builder = Builder(task, draft.rounds, draft.longest)
    first = builder.mix_of(draft.split)
    assert first.total() <= sum(task.numbers.values())
    builder.try_mix(first)
    followed = list(builder.changes(first))
    assert len({frozenset(mix.items()) for mix in followed}) == len(followed) > 3
    for mix in followed:
        assert mix != first
        assert (mix - first).total() <= 1
        assert (first - mix).total() <= 1
        assert min(mix.values()) > 0
    builder.try_mix(followed[0])
    assert followed[0] not in list(builder.changes(first))


def test_compiled_drafts_built_anew_are_the_same() -> None:
    assert_alike_compiled(outcome, 15)


def outcome(task: Task, draft: Draft) -> object:
    found = rebuilt(task, draft, 0, 10)
    return None if found is None else (found.split, found.whole, found.longest)


def tight_batch() -> Problem:
    """Four videos and fifty images on two nodes, of whose memory all sequences, whole, fill 85 %."""
    problem = on_nodes(
        2,
        ((832, 480, 33), 4),
        ((1920, 1080, 1), 6),
        ((1024, 1024, 1), 8),
        ((1280, 720, 1), 1),
        ((832, 480, 1), 16),
        ((512, 512, 1), 8),
        ((256, 256, 1), 11),
    )
    kept = sum(count * problem.whole(bucket).kept_bytes for bucket, count in problem.counts.items())
    usable = problem.memory.base_bytes + int(kept / problem.cluster.num_ranks / 0.85)
    return dataclasses.replace(problem, memory=msgspec.structs.replace(problem.memory, usable_bytes=usable))


def test_where_memory_binds_plans_are_better_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = tight_batch()
    with_them = plan_batch(problem, "zellige")
    costs = rank_costs(problem, with_them.placements)
    assert max(costs.memory_bytes) <= problem.memory.usable_bytes
    monkeypatch.setattr(planner, "rebuilt", lambda *_: None)
    without = plan_batch(problem, "zellige")
    assert with_them.makespan_ns < without.makespan_ns * 0.995
    assert with_them.gap < 0.0125
