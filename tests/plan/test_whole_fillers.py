"""B7: against exhaustive search, where whole sequences leave gaps, and as the bound of a plan."""

from __future__ import annotations

import dataclasses
import random
from itertools import combinations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle.bound_checks import never_above_the_optimum
from oracle.brute_force import make_price, random_problem, small_cluster, synthetic_problem

from zellige.placement import ENGINES, Engine, Problem, plan_digest
from zellige.plan import plan_batch
from zellige.plan.any_sets import any_sets_bound
from zellige.plan.bounds import best_bound
from zellige.plan.spread_places import Loads, TooManyPlacesError, places
from zellige.plan.whole_fillers import MOST_RANKS, NAME, certify, whole_fillers_bound
from zellige.shards import ParallelConfig
from zellige.spreads import Spread

WHOLE = ParallelConfig()


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("engine", ENGINES)
def test_no_bound_exceeds_the_optimum_over_any_rank_sets(engine: Engine, seed: int) -> None:
    assert never_above_the_optimum(whole_fillers_bound, engine, seed, 10) or engine == "group"


def whole_alone(number: int, time_ns: int, num_ranks: int) -> Problem:
    """Equal sequences that can't be split, under an engine whose B3 divides them all the same."""
    return synthetic_problem(
        {"16x16x1": {(WHOLE, 1): make_price(time_ns, kept=1)}},
        {"16x16x1": number},
        small_cluster(num_ranks),
        "per_sequence",
    )


@pytest.mark.parametrize(("number", "ranks"), [(4, 3), (7, 3), (13, 4), (40, 3)])
def test_where_equal_sequences_do_not_fill_ranks_the_bound_is_the_optimum(number: int, ranks: int) -> None:
    problem = whole_alone(number, 100, ranks)
    least = -(-number // ranks) * 100
    known, _ = best_bound(problem)
    assert known < least
    assert whole_fillers_bound(problem, known, least) == least
    assert whole_fillers_bound(problem, known, 2 * least) <= least
    if number > 10:
        assert any_sets_bound(problem, known, least)[0] < least, "B6 places ten and divides the rest"


def test_the_same_bound_twice() -> None:
    chance = random.Random(8)
    for _ in range(5):
        problem = random_problem(chance, "coalesced")
        known, _ = best_bound(problem)
        once = whole_fillers_bound(problem, known, 2 * known)
        assert whole_fillers_bound(dataclasses.replace(problem), known, 2 * known) == once


def test_beyond_its_ranks_the_known_bound_stays() -> None:
    problem = whole_alone(MOST_RANKS + 2, 100, MOST_RANKS + 1)
    assert whole_fillers_bound(problem, 103, 200) == 103


def test_a_plan_is_certified_or_left_as_it_is() -> None:
    problem = whole_alone(13, 100, 4)
    plan = plan_batch(problem, "zellige", "per_sequence")
    found = certify(problem, plan)
    assert (found.bound_ns, found.bound, found.gap) == (400, NAME, 0.0)
    assert found.blocks_bound_ns == 400
    assert (found.digest, plan.digest) == (plan_digest(found), plan_digest(plan))
    assert certify(problem, found) is found
    memory = msgspec.structs.replace(problem.memory, usable_bytes=problem.memory.base_bytes + 1)
    over = dataclasses.replace(problem, memory=memory)
    unfit = plan_batch(over, "dp", "per_sequence")
    assert not unfit.fits
    assert certify(over, unfit) is unfit


def by_trying(loads: Loads, spread: Spread, losses: dict[int, int], most: int) -> set[Loads]:
    """The loads with a sequence on every set of ranks that is allowed."""
    flat = [(place, load) for place, node in enumerate(loads) for load in node]
    found = set()
    for ranks in combinations(range(len(flat)), spread.degree):
        taken = [flat[rank] for rank in ranks]
        if not spread.wide and len({place for place, _ in taken}) > 1:
            continue
        if any(load not in losses for _, load in taken) or sum(losses[load] for _, load in taken) > most:
            continue
        after = [(place, load + spread.time * (rank in ranks)) for rank, (place, load) in enumerate(flat)]
        nodes = [tuple(sorted(load for place, load in after if place == node)) for node in range(len(loads))]
        found.add(tuple(sorted(nodes)))
    return found


nodes_of_three = st.lists(
    st.tuples(*[st.integers(0, 3)] * 3).map(lambda node: tuple(sorted(node))), min_size=1, max_size=3
)


@settings(max_examples=150)
@given(nodes_of_three, st.integers(1, 5), st.booleans(), st.integers(0, 20), st.data())
def test_places_are_all_sets_of_ranks_up_to_symmetry(
    nodes: list[tuple[int, ...]], degree: int, wide: bool, most: int, data: st.DataObject
) -> None:
    loads = tuple(sorted(nodes))
    losses = data.draw(st.dictionaries(st.integers(0, 3), st.integers(0, 9)))
    spread = Spread(degree * 10, degree, 10, wide)
    assert places(loads, spread, losses, most) == by_trying(loads, spread, losses, most)


def test_placements_beyond_counting_are_an_error() -> None:
    loads = tuple(tuple(range(8 * node, 8 * node + 8)) for node in range(4))
    with pytest.raises(TooManyPlacesError):
        places(loads, Spread(160, 16, 10, True), dict.fromkeys(range(32), 0), 0)
