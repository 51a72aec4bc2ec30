"""Advice beside a refusal: the number of micro-steps is one that then holds the batch, and it is there at once."""

from __future__ import annotations

import dataclasses
import random
import re

import msgspec
import pytest
from oracle.batches import SHAPES, make_problem
from oracle.brute_force import random_problem

from zellige.catalog import load_cluster, load_model
from zellige.errors import InfeasibleError, NoRoomError
from zellige.placement import ENGINES, Engine, Plan, Problem
from zellige.plan import plan_batch, zellige
from zellige.plan.micro_steps import (
    micro_steps_advice,
    plan_in_steps,
    plan_micro_steps,
    plan_one_step,
    policy_planner,
    trial_planner,
)
from zellige.plan.policies import try_batch
from zellige.plan.room import room_need
from zellige.schedule import Schedule
from zellige.sources import build_problem
from zellige.workload import Clip, build_batch


def with_use(problem: Problem, use: float) -> Problem:
    """The problem with as much memory as lets all sequences, whole, fill a part of it."""
    kept = sum(problem.whole(bucket).kept_bytes * count for bucket, count in problem.counts.items())
    room = int(kept / problem.cluster.num_ranks / use)
    memory = msgspec.structs.replace(problem.memory, usable_bytes=problem.memory.base_bytes + room)
    return dataclasses.replace(problem, memory=memory)


def has_plan(problem: Problem, policy: str, *, trial: bool) -> bool:
    try:
        plan = try_batch(problem, policy) if trial else plan_batch(problem, policy)
    except InfeasibleError:
        return False
    return plan.fits


@pytest.mark.parametrize("engine", ENGINES)
def test_a_trial_has_a_plan_where_the_policy_has_and_only_there(engine: Engine) -> None:
    chance = random.Random(7)
    seen = set()
    for _ in range(60):
        problem = random_problem(chance, engine, tight=True)
        plans: list[Plan | str] = []
        for make in (plan_batch, try_batch):
            try:
                plans.append(make(problem, "zellige", engine))
            except InfeasibleError as error:
                plans.append(str(error))
        full, quick = plans
        seen.add(isinstance(full, Plan))
        if isinstance(full, Plan):
            assert isinstance(quick, Plan)
            assert full.fits
            assert quick.fits
            assert full.makespan_ns <= quick.makespan_ns * 1.01, "a choice by what ranks wait for may take little more"
            assert quick.bound_ns <= full.makespan_ns
        else:
            assert quick == full
    assert seen == {False, True}


@pytest.mark.parametrize("seed", range(12))
def test_the_number_that_is_advised_holds_the_batch(seed: int) -> None:
    chance = random.Random(seed)
    shapes = [shape for shape in chance.sample(SHAPES[:9], 3) for _ in range(chance.randint(1, 25))]
    policy = chance.choice(("zellige", "zellige", "zellige", "dp", "static-coalesced"))
    problem, planner = policy_planner(make_problem(shapes, chance.choice(("a800x4", "a800x8"))), policy)
    for use in (0.97, 1.3, 4.2):
        posed = with_use(problem, use)
        if has_plan(posed, policy, trial=True):
            assert has_plan(posed, policy, trial=False)
            continue
        advice = micro_steps_advice(posed, trial_planner(policy))
        told = re.fullmatch(r"--micro-steps auto, which would need (\d+)( or more)? micro-steps", advice)
        if told is None:
            assert "do not help" in advice
            with pytest.raises(InfeasibleError):
                plan_in_steps(posed, planner)
            continue
        found = plan_in_steps(posed, planner)
        assert isinstance(found, Schedule)
        if told[2]:
            assert found.num_micro_steps >= int(told[1])
            continue
        assert found.num_micro_steps == int(told[1])
        asked = plan_micro_steps(posed, planner, int(told[1]))
        assert asked.num_micro_steps == int(told[1])
        assert all(plan.fits for plan in asked.plans)


@pytest.mark.parametrize("use", [0.9, 3.3])
def test_a_refusal_on_many_nodes_looks_for_no_better_plan_and_no_bound(
    use: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(3)
    kinds = [(832, 480, 81), (1280, 720, 81), (1280, 720, 161)]
    shapes = [*chance.choices(kinds, k=32), *chance.choices(SHAPES[:5], k=200)]
    clips = [Clip(id=f"c{n}", width=w, height=h, num_frames=f) for n, (w, h, f) in enumerate(shapes)]
    batch, _ = build_batch("batch", clips, load_model("wan2.1-t2v-1.3b"))
    cluster = msgspec.structs.replace(load_cluster("a800x16"), name="c32x1", num_nodes=32, ranks_per_node=1)
    problem = with_use(build_problem(batch, cluster=cluster, model="wan2.1-t2v-1.3b"), use)
    problem, _ = policy_planner(problem, "zellige")

    def unexpected(*_: object) -> None:
        raise AssertionError("a refusal needs none")

    monkeypatch.setattr(zellige, "restarted", unexpected)
    monkeypatch.setattr(zellige.Certificate, "search", unexpected)
    trial = trial_planner("zellige")
    if use < 1:
        assert trial(problem).fits
        return
    with pytest.raises(NoRoomError, match="one step cannot hold") as caught:
        plan_one_step(problem, lambda posed: plan_batch(posed, "zellige"), trial)
    assert "which would need 4 micro-steps" in caught.value.fix


@pytest.mark.parametrize("seed", range(20))
def test_what_memory_refuses_is_refused_before_any_search(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planner asks for the sums only where memory may bind, and that leaves out none that they refuse."""
    chance = random.Random(seed)
    shapes = [shape for shape in chance.sample(SHAPES[:9], 3) for _ in range(chance.randint(1, 25))]
    posed, planner = policy_planner(with_use(make_problem(shapes, "a800x4"), chance.uniform(1.0, 3.0)), "zellige")
    if room_need(posed).least_micro_steps == 1:
        return
    monkeypatch.setattr(zellige, "_drafts", lambda *_: pytest.fail("a search"))
    with pytest.raises(InfeasibleError):
        planner(posed)


@pytest.mark.parametrize("engine", ENGINES)
def test_prices_beyond_all_times_are_not_taken_for_lack_of_memory(engine: Engine) -> None:
    cluster = msgspec.structs.replace(load_cluster("a800x8"), name="one", num_nodes=1, ranks_per_node=1)
    clips = [Clip(id=f"c{number}", width=832, height=480, num_frames=81) for number in range(5)]
    batch, _ = build_batch("five", clips, load_model("wan2.1-t2v-1.3b"))
    problem = build_problem(batch, cluster=cluster, model="wan2.1-t2v-1.3b")
    rows = tuple(
        msgspec.structs.replace(row, price=msgspec.structs.replace(row.price, linear_ns=2**60))
        for row in problem.prices.rows
    )
    prices = msgspec.structs.replace(problem.prices, rows=rows)
    problem = dataclasses.replace(problem, prices=prices, engine=engine)
    with pytest.raises(NoRoomError, match=r"steps of .* and more are not planned"):
        plan_batch(problem, "zellige", engine)
    assert isinstance(plan_in_steps(*policy_planner(problem, "zellige", engine)), Schedule)
