"""Clusters of three, five, six, seven and ten nodes: splits over all of them are options like others."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from zellige.catalog import load_cluster, load_model
from zellige.placement import Engine, Problem
from zellige.plan import plan_batch
from zellige.plan.search_kernel import NEVER
from zellige.plan.uniform import uniform_degrees
from zellige.plan_check import placement_findings
from zellige.sources import build_problem
from zellige.workload import Clip, build_batch

MODEL = "wan2.1-t2v-14b"


def problem_of(num_nodes: int, per_node: int, *frames: int, engine: Engine = "coalesced") -> Problem:
    """Videos of 1920x1080 on so many nodes."""
    cluster = msgspec.structs.replace(load_cluster("a800x16"), name="odd", num_nodes=num_nodes, ranks_per_node=per_node)
    clips = [Clip(id=f"v{i}", width=1920, height=1080, num_frames=number) for i, number in enumerate(frames)]
    batch, _ = build_batch("odd", clips, load_model(MODEL))
    return dataclasses.replace(build_problem(batch, cluster=cluster, model=MODEL), engine=engine)


@pytest.mark.parametrize(
    ("num_nodes", "degree", "nodes"),
    [(3, 24, 3), (3, 8, 1), (3, 16, 2), (5, 40, 5), (6, 24, 3), (6, 48, 6), (10, 40, 5), (10, 80, 10), (4, 24, 4)],
)
def test_as_many_nodes_as_fill_the_cluster_hold_equal_parts(num_nodes: int, degree: int, nodes: int) -> None:
    cluster = problem_of(num_nodes, 8, 81).cluster
    assert cluster.smallest_even_footprint(degree) == nodes


@pytest.mark.parametrize("engine", ["coalesced", "per_sequence", "group"])
@pytest.mark.parametrize(("num_nodes", "per_node"), [(3, 8), (5, 8), (7, 8), (3, 3), (7, 1)])
def test_a_long_video_is_split_over_all_nodes_where_one_group_of_all_is_faster(
    num_nodes: int, per_node: int, engine: Engine
) -> None:
    problem = problem_of(num_nodes, per_node, 121, engine=engine)
    plan = plan_batch(problem, "zellige", engine)
    rivals = [plan_batch(problem, policy, engine) for policy in ("usp", "static")]
    fitting = [rival.makespan_ns for rival in rivals if rival.fits]
    assert fitting
    assert plan.makespan_ns <= min(fitting)
    assert not placement_findings(plan, problem, "the plan")


@pytest.mark.parametrize(("num_nodes", "per_node", "degree"), [(6, 4, 12), (9, 4, 12), (10, 8, 40)])
def test_nodes_without_a_price_of_their_own_have_that_of_the_next_wider_ones(
    num_nodes: int, per_node: int, degree: int
) -> None:
    problem = problem_of(num_nodes, per_node, 81)
    nodes, ranks = problem.cluster.smallest_even_footprint(degree), tuple(range(degree))
    for name, rungs in problem.rungs.items():
        found = [rung for rung in rungs if rung.degree == degree]
        assert found
        for rung in found:
            assert (rung.nodes, rung.option.num_nodes > nodes) == (nodes, True)
            assert problem.option_on(name, rung.option.config, ranks) == rung.option


@pytest.mark.parametrize("engine", ["coalesced", "per_sequence", "group"])
@pytest.mark.parametrize(("num_nodes", "per_node", "size"), [(3, 8, 12), (4, 9, 12), (9, 4, 6), (9, 4, 12)])
def test_groups_that_lie_on_the_fewest_nodes_are_tried(
    num_nodes: int, per_node: int, size: int, engine: Engine
) -> None:
    """Groups of 12 on nodes of 8: one on a node and half of the next, one on the other half and a node."""
    problem = problem_of(num_nodes, per_node, *[81] * (num_nodes * per_node // size), engine=engine)
    assert size in {degree for _, degree, _ in uniform_degrees(problem, NEVER)}
    plan, static = plan_batch(problem, "zellige", engine), plan_batch(problem, "static", engine)
    assert plan.fits
    assert not placement_findings(plan, problem, "the plan")
    assert plan.makespan_ns <= static.makespan_ns


def test_groups_that_would_straddle_a_node_more_are_not() -> None:
    problem = problem_of(3, 8, 81)
    assert 6 not in {degree for _, degree, _ in uniform_degrees(problem, NEVER)}


def test_what_only_all_ranks_together_hold_has_a_plan() -> None:
    problem = problem_of(3, 8, 1001)
    plan = plan_batch(problem, "zellige", "coalesced")
    assert plan.fits
    assert [len(placement.ranks) for placement in plan.placements] == [24]


def test_groups_run_the_fastest_rungs_those_of_fewest_rounds_and_the_smallest() -> None:
    problem = problem_of(2, 7, 81, 121)
    found = [(degree, rungs) for _, degree, rungs in uniform_degrees(problem, NEVER) if degree == 7]
    assert found
    floors = [sum(rung.option.floor_ns for rung in rungs.values()) for _, rungs in found]
    assert floors[0] == min(floors)
    every = [rung for name in problem.numbers for rung in problem.rungs[name] if rung.degree == 7]
    for figure in (lambda rung: rung.option.config.k, lambda rung: rung.kept):
        least = {name: min(map(figure, [r for r in problem.rungs[name] if r in every])) for name in problem.numbers}
        assert any({name: figure(rung) for name, rung in rungs.items()} == least for _, rungs in found)
