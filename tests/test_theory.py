from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zellige.placement import rank_costs
from zellige.plan.bounds import best_bound
from zellige.plan.disjoint import plan_disjoint
from zellige.plan.two_stage import plan_zellige_paper
from zellige.theory import (
    UNIT_NS,
    Gang,
    additive_makespan,
    best_order_makespan,
    disjoint_makespan,
    forced_disjoint_splits,
    gangs_on,
    ideal_problem,
    imbalance_problem,
    imbalance_ratio,
    imbalance_row,
    joint_makespan,
    joint_placements,
    larger_first,
    largest_share,
    splits_problem,
    splits_row,
    synchronous_makespan,
    theory_rows,
)

ALL_RANKS = range(2, 65)


@pytest.mark.parametrize("num_ranks", ALL_RANKS)
def test_one_sequence_reaches_the_upper_bound_for_every_largest_group(num_ranks: int) -> None:
    for largest in {1, 2, num_ranks // 2, num_ranks - 1, num_ranks} - {0}:
        row = imbalance_row(num_ranks, largest)
        problem = imbalance_problem(num_ranks, largest)
        rest = [1] * (num_ranks - largest)
        assert imbalance_ratio(problem, [largest, *rest]) == Fraction(num_ranks, largest)
        assert row.joint_ns == best_bound(problem)[0] == largest * UNIT_NS
        assert row.ratio == row.limit


@given(
    works=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    sizes=st.lists(st.integers(1, 3), min_size=1, max_size=3).filter(lambda sizes: sum(sizes) >= 2),
)
def test_the_ratio_stays_within_theorem_1(works: list[int], sizes: list[int]) -> None:
    num_ranks = sum(sizes)
    problem = ideal_problem("random", num_ranks, [6 * num_ranks * UNIT_NS * work for work in works])
    ratio = imbalance_ratio(problem, sizes)
    reach = Fraction(num_ranks, max(sizes))
    assert max(Fraction(1), largest_share(problem) * reach) <= ratio <= reach


def test_the_disjoint_optimum_matches_the_solver_over_all_groupings() -> None:
    problem = ideal_problem("small", 4, [12 * UNIT_NS * work for work in (9, 5, 4, 2, 2, 1)])
    groupings = ([4], [3, 1], [2, 2], [2, 1, 1], [1, 1, 1, 1])
    plan = plan_disjoint(problem)
    assert plan.solver.status == "optimal"
    assert plan.makespan_ns == min(disjoint_makespan(problem, sizes) for sizes in groupings)


@pytest.mark.parametrize("num_ranks", ALL_RANKS)
def test_joint_reaches_the_step_with_one_split_where_disjoint_needs_all(num_ranks: int) -> None:
    fillers_per_rank = 2
    row = splits_row(num_ranks, fillers_per_rank)
    problem = splits_problem(num_ranks, fillers_per_rank)
    giant, filler = (problem.whole(problem.batch.sequences[index].bucket).time_ns for index in (0, 1))
    assert row.step_ns == giant // num_ranks + fillers_per_rank * filler == best_bound(problem)[0]
    assert giant % num_ranks == 0
    assert giant // num_ranks > (num_ranks - 1) * fillers_per_rank * filler
    assert len(set(rank_costs(problem, joint_placements(problem)).times_ns)) == 1
    assert (row.joint_splits, row.disjoint_splits) == (1, row.num_fillers + 1)
    assert row.next_best_ns > row.step_ns


def test_redundant_splits_grow_without_bound_at_fixed_ranks() -> None:
    assert [splits_row(4, p).disjoint_splits for p in (1, 2, 4, 8, 16)] == [5, 9, 17, 33, 65]


def test_splits_are_not_forced_where_a_smaller_group_holds_the_giant() -> None:
    problem = splits_problem(4, 2)
    step = splits_row(4, 2).step_ns
    with pytest.raises(ValueError, match="not forced"):
        forced_disjoint_splits(problem, splits_row(4, 2).next_best_ns)
    with pytest.raises(ValueError, match="as short"):
        forced_disjoint_splits(problem, step - 1)


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_the_planners_find_what_theorem_2_says(num_ranks: int) -> None:
    problem = splits_problem(num_ranks, 2)
    row = splits_row(num_ranks, 2)
    moldable, disjoint = plan_zellige_paper(problem), plan_disjoint(problem)
    assert (moldable.makespan_ns, moldable.num_split) == (row.step_ns, 1)
    assert (disjoint.makespan_ns, disjoint.num_split) == (row.step_ns, row.num_fillers + 1)


def test_the_triangle_has_load_2_and_needs_3() -> None:
    gangs = gangs_on(3, ((0, 1), (1, 2), (0, 2)))
    assert additive_makespan(gangs) == 2 * UNIT_NS
    assert best_order_makespan(gangs) == 3 * UNIT_NS


@given(data=st.data(), levels=st.integers(1, 3))
def test_aligned_blocks_run_larger_first_wait_for_nobody(data: st.DataObject, levels: int) -> None:
    num_ranks = 2**levels
    gangs = []
    for _ in range(data.draw(st.integers(1, 8))):
        size = 2 ** data.draw(st.integers(0, levels))
        start = size * data.draw(st.integers(0, num_ranks // size - 1))
        gangs.append(Gang(tuple(range(start, start + size)), data.draw(st.integers(1, 9))))
    assert synchronous_makespan(larger_first(gangs)) == additive_makespan(gangs)


def test_aligned_blocks_do_wait_in_another_order() -> None:
    gangs = [Gang((0,), 5), Gang((0, 1), 1), Gang((1,), 5)]
    assert synchronous_makespan(gangs) == 11
    assert synchronous_makespan(larger_first(gangs)) == additive_makespan(gangs) == 6


def test_rows_cover_what_was_asked_for() -> None:
    theory = theory_rows((2, 6), fillers_per_rank=3)
    assert [(row.num_ranks, row.largest_group, row.ratio) for row in theory.imbalance] == [
        (2, 1, 2.0), (2, 2, 1.0), (6, 1, 6.0), (6, 2, 3.0), (6, 3, 2.0), (6, 6, 1.0),
    ]  # fmt: skip
    assert [(row.joint_splits, row.disjoint_splits) for row in theory.splits] == [(1, 7), (1, 19)]
    assert [(row.additive_ns, row.best_order_ns) for row in theory.waits] == [
        (2 * UNIT_NS, 3 * UNIT_NS), (2 * UNIT_NS, 2 * UNIT_NS),
    ]  # fmt: skip


def test_prices_that_are_not_ideal_are_refused() -> None:
    problem = ideal_problem("ideal", 4, [4 * UNIT_NS])
    assert joint_makespan(problem) == UNIT_NS
    with pytest.raises(ValueError, match="do not cover"):
        disjoint_makespan(problem, [2, 1])
    with pytest.raises(ValueError, match="more than the 8"):
        best_order_makespan([Gang((0,), 1)] * 9)
