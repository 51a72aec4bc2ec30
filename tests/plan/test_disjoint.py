from __future__ import annotations

import dataclasses
from itertools import product

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zellige.catalog import load_cluster, load_model
from zellige.errors import InfeasibleError
from zellige.placement import Engine, Placement, Problem, rank_costs
from zellige.plan.bounds import best_bound
from zellige.plan.disjoint import Shape, node_sizes, patterns, plan_disjoint, ways_of
from zellige.plan.knapformer import plan_knapformer_oracle
from zellige.sources import build_problem
from zellige.workload import Batch, make_bucket
from zellige.workload import Sequence as Clip

IMAGE, SHORT, LONG = (1280, 720, 1), (832, 480, 81), (1280, 720, 81)


def problem_of(counts: dict[tuple[int, int, int], int], cluster: str = "a800x4", engine: Engine = "group") -> Problem:
    model = load_model("wan2.1-t2v-1.3b")
    buckets = {shape: make_bucket(model, *shape) for shape in counts}
    clips = [Clip(f"{buckets[shape].name}-{i}", buckets[shape]) for shape, n in counts.items() for i in range(n)]
    batch = Batch(
        name="made", sequences=tuple(clips), buckets=tuple(sorted(buckets.values(), key=lambda b: b.num_tokens))
    )
    return build_problem(batch, cluster=load_cluster(cluster), model=model, engine=engine)


def best_by_force(problem: Problem) -> int:
    """The least makespan over all groupings of one node, configurations, and assignments of sequences to groups."""
    ranks = problem.cluster.ranks_per_node
    sequences = problem.batch.sequences
    best = None
    for sizes in patterns(ranks, node_sizes(ranks)):
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        for ways in product(*(ways_of(problem, Shape(size, 1)) for size in sizes)):
            for owners in product(range(len(sizes)), repeat=len(sequences)):
                placements = [
                    Placement(
                        sequence=clip.id,
                        bucket=clip.bucket.name,
                        config=ways[g].config,
                        ranks=tuple(range(starts[g], starts[g] + sizes[g])),
                    )
                    for clip, g in zip(sequences, owners, strict=True)
                ]
                makespan = max(rank_costs(problem, placements).times_ns)
                best = makespan if best is None else min(best, makespan)
    assert best is not None
    return best


@pytest.mark.parametrize("engine", ["group", "per_sequence"])
@pytest.mark.parametrize("counts", [(1, 1, 1), (3, 1, 0), (0, 2, 1), (2, 0, 2)])
def test_it_finds_what_brute_force_finds(engine: Engine, counts: tuple[int, int, int]) -> None:
    shapes = {shape: n for shape, n in zip((IMAGE, SHORT, LONG), counts, strict=True) if n}
    problem = problem_of(shapes, engine=engine)
    plan = plan_disjoint(problem)
    assert plan.solver.status == "optimal"
    assert plan.makespan_ns == pytest.approx(best_by_force(problem), rel=1e-5)


@settings(max_examples=8)
@given(images=st.integers(0, 12), shorts=st.integers(0, 3), longs=st.integers(0, 2))
def test_groups_are_disjoint_and_have_one_configuration_each(images: int, shorts: int, longs: int) -> None:
    shapes = {shape: n for shape, n in ((IMAGE, images), (SHORT, shorts), (LONG, longs)) if n}
    if not shapes:
        return
    plan = plan_disjoint(problem_of(shapes))
    sets = {placement.ranks for placement in plan.placements}
    for a, b in product(sets, repeat=2):
        assert a == b or not set(a) & set(b)
    assert len({(p.ranks, p.config) for p in plan.placements}) == len(sets)
    assert plan.makespan_ns >= plan.bound_ns


def test_it_is_never_worse_than_the_best_bags_nor_better_than_the_bound() -> None:
    problem = problem_of({IMAGE: 20, SHORT: 3, LONG: 2}, "a800x8")
    plan = plan_disjoint(problem)
    assert best_bound(problem)[0] <= plan.makespan_ns <= plan_knapformer_oracle(problem).makespan_ns
    assert plan == plan_disjoint(problem)


def test_groups_of_several_nodes_are_aligned_and_tile_the_cluster() -> None:
    problem = problem_of({LONG: 1, IMAGE: 4, (1920, 1088, 161): 1}, "a800x16")
    plan = plan_disjoint(problem)
    for placement in plan.placements:
        nodes = problem.cluster.footprint(placement.ranks)
        assert list(placement.ranks) == list(range(placement.ranks[0], placement.ranks[0] + len(placement.ranks)))
        assert nodes == 1 or placement.ranks[0] % (8 * nodes) == 0


def test_memory_rows_join_where_the_plan_without_them_is_over() -> None:
    problem = problem_of({SHORT: 4})
    loose = plan_disjoint(problem)
    assert loose.num_split == 0
    memory = msgspec.structs.replace(problem.memory, usable_bytes=loose.peak_memory_bytes - 1)
    tight = plan_disjoint(dataclasses.replace(problem, memory=memory))
    assert tight.fits
    assert tight.num_split > 0
    assert tight.makespan_ns > loose.makespan_ns
    starved = msgspec.structs.replace(problem.memory, usable_bytes=problem.memory.base_bytes + 2**24)
    with pytest.raises(InfeasibleError):
        plan_disjoint(dataclasses.replace(problem, memory=starved))


def test_patterns_are_the_partitions_of_a_node() -> None:
    assert len(patterns(8, node_sizes(8))) == 22
    assert patterns(4, (1, 2, 4)) == ((4,), (2, 2), (2, 1, 1), (1, 1, 1, 1))
    assert node_sizes(72) == (1, 2, 4, 8, 72)
