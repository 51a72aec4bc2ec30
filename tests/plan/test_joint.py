from __future__ import annotations

import dataclasses

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zellige.catalog import load_cluster, load_model
from zellige.errors import InfeasibleError, TimeLimitError
from zellige.placement import Engine, Problem
from zellige.plan import joint
from zellige.plan.bounds import best_bound
from zellige.plan.disjoint import plan_disjoint
from zellige.plan.joint import (
    Limits,
    joint_bound,
    joint_options,
    plan_joint,
    plan_joint_naive,
    pose_binaries,
    rank_sets,
    solve_joint,
)
from zellige.plan.two_stage import plan_zellige_paper
from zellige.sources import build_problem
from zellige.theory import ideal_problem
from zellige.workload import Batch, make_bucket
from zellige.workload import Sequence as Clip

IMAGE, SHORT, LONG = (1280, 720, 1), (832, 480, 81), (1280, 720, 81)
TO_THE_END = Limits(deterministic=20.0, relative_gap=0.0)


def problem_of(
    counts: dict[tuple[int, int, int], int], cluster: str = "a800x4", engine: Engine = "per_sequence"
) -> Problem:
    model = load_model("wan2.1-t2v-1.3b")
    buckets = {shape: make_bucket(model, *shape) for shape in counts}
    clips = [Clip(f"{buckets[shape].name}-{i}", buckets[shape]) for shape, n in counts.items() for i in range(n)]
    ordered = tuple(sorted(buckets.values(), key=lambda bucket: bucket.num_tokens))
    batch = Batch(name="made", sequences=tuple(clips), buckets=ordered)
    return build_problem(batch, cluster=load_cluster(cluster), model=model, engine=engine)


@settings(max_examples=25)
@given(works=st.lists(st.sampled_from([3, 7, 12, 20, 33]), min_size=1, max_size=7), num_ranks=st.integers(2, 4))
def test_counts_and_binaries_prove_the_same_optimum_on_ideal_prices(works: list[int], num_ranks: int) -> None:
    problem = ideal_problem("random", num_ranks, works)
    counts = solve_joint(problem, limits=TO_THE_END)
    binaries = solve_joint(problem, pose_binaries, limits=TO_THE_END)
    assert counts.status == binaries.status == "optimal"
    assert counts.objective_ns == binaries.objective_ns == counts.bound_ns == binaries.bound_ns


@settings(max_examples=10)
@given(
    counts=st.tuples(st.integers(0, 4), st.integers(0, 2), st.integers(1, 2)),
    engine=st.sampled_from(["per_sequence", "group", "coalesced"]),
)
def test_counts_and_binaries_prove_the_same_optimum_on_analytic_prices(
    counts: tuple[int, int, int], engine: Engine
) -> None:
    shapes = {shape: n for shape, n in zip((IMAGE, SHORT, LONG), counts, strict=True) if n}
    problem = problem_of(shapes, engine=engine)
    by_counts = solve_joint(problem, limits=TO_THE_END)
    by_binaries = solve_joint(problem, pose_binaries, limits=TO_THE_END)
    assert by_counts.status == by_binaries.status == "optimal"
    assert by_counts.objective_ns == by_binaries.objective_ns


def tight(problem: Problem, missing: int) -> Problem:
    """The problem with ``missing`` bytes less than its joint plan needs."""
    need = plan_joint(problem).peak_memory_bytes
    memory = msgspec.structs.replace(problem.memory, usable_bytes=need - missing)
    return dataclasses.replace(problem, memory=memory)


def test_both_prove_the_same_optimum_where_memory_binds() -> None:
    problem = problem_of({IMAGE: 3, LONG: 3})
    cramped = tight(problem, 2**28)
    counts = solve_joint(cramped, limits=TO_THE_END)
    binaries = solve_joint(cramped, pose_binaries, limits=TO_THE_END)
    assert counts.status == binaries.status == "optimal"
    assert counts.objective_ns == binaries.objective_ns
    assert plan_joint(cramped).fits
    assert plan_joint_naive(cramped).fits


def test_the_triangle_needs_overlapping_pairs() -> None:
    # Three sequences of 2 units on three ranks, degrees above 2 useless: pairs {01}, {12}, {02} reach 2.
    problem = ideal_problem("triangle", 3, [2_000_000] * 3)
    pairs = {
        name: tuple(option for option in options if option.config.degree == 2)
        for name, options in problem.options.items()
    }
    vars(problem)["options"] = pairs
    solution = solve_joint(problem, limits=TO_THE_END)
    assert solution.objective_ns == 2_000_000
    assert solution.assignments is not None
    assert sorted(chosen.ranks for chosen in solution.assignments) == [(0, 1), (0, 2), (1, 2)]


def test_its_bound_certifies_more_than_the_closed_form() -> None:
    problem = ideal_problem("two of three", 2, [10, 10, 10])
    fewer = {
        name: tuple(option for option in options if option.config.degree == 1)
        for name, options in problem.options.items()
    }
    vars(problem)["options"] = fewer
    assert best_bound(problem)[0] == 15
    plan = plan_joint(problem)
    assert (plan.makespan_ns, plan.bound_ns, plan.bound, plan.gap) == (20, 20, "joint CP-SAT", 0.0)


@pytest.mark.parametrize("engine", ["group", "per_sequence", "coalesced"])
def test_joint_is_no_worse_than_the_two_stage_plan_and_its_bound_holds_for_others(engine: Engine) -> None:
    problem = problem_of({IMAGE: 9, SHORT: 2, LONG: 2}, engine=engine)
    plan, staged = plan_joint(problem), plan_zellige_paper(problem)
    assert plan.fits
    assert plan.bound_ns <= plan.makespan_ns <= staged.makespan_ns
    assert plan.bound_ns >= best_bound(problem)[0]
    assert plan.bound_ns <= plan_disjoint(problem).makespan_ns
    assert plan == plan_joint(problem)


def test_on_several_nodes_the_joint_bound_is_no_certificate() -> None:
    problem = problem_of({IMAGE: 4, SHORT: 2}, "a800x16")
    assert joint_bound(problem, solve_joint(problem, limits=Limits(deterministic=0.5))) == best_bound(problem)


def test_where_the_limit_comes_first_naive_has_no_plan_and_joint_keeps_the_two_stage_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = problem_of({IMAGE: 40, SHORT: 3, LONG: 3}, engine="group")
    monkeypatch.setattr(joint.solve_joint, "__kwdefaults__", {"limits": Limits(deterministic=1e-9), "start": ()})
    with pytest.raises(TimeLimitError, match="joint-naive"):
        plan_joint_naive(problem)
    plan, staged = plan_joint(problem), plan_zellige_paper(problem)
    assert plan.makespan_ns <= staged.makespan_ns


def test_no_memory_no_plan() -> None:
    problem = problem_of({SHORT: 40})
    whole = problem.whole(problem.batch.buckets[0])
    room = whole.kept_bytes + whole.live_bytes
    memory = msgspec.structs.replace(problem.memory, usable_bytes=problem.memory.base_bytes + room)
    with pytest.raises(InfeasibleError):
        solve_joint(dataclasses.replace(problem, memory=memory))


def test_options_that_are_beaten_on_every_rank_set_go() -> None:
    problem = problem_of({IMAGE: 1, LONG: 1}, "a800x8")
    for bucket in problem.counts:
        kept = joint_options(problem, bucket.name, with_memory=False)
        for option in problem.options[bucket.name]:
            assert any(
                other.config.degree <= option.config.degree and other.time_ns <= option.time_ns for other in kept
            )
        for a in kept:
            for b in kept:
                assert a == b or a.config.degree > b.config.degree or a.time_ns > b.time_ns
        assert set(kept) <= set(joint_options(problem, bucket.name, with_memory=True))


def test_rank_sets_are_all_even_subsets_of_aligned_nodes() -> None:
    problem = problem_of({LONG: 1}, "a800x16")
    by_shape = {(o.config.degree, o.num_nodes): o for o in problem.options["1280x720x81"]}
    assert len(list(rank_sets(problem, by_shape[2, 1]))) == 2 * 28
    assert len(list(rank_sets(problem, by_shape[2, 2]))) == 64
    assert list(rank_sets(problem, by_shape[16, 2])) == [tuple(range(16))]
    wide = list(rank_sets(problem, by_shape[8, 2]))
    assert wide == [(0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15)]
