"""Lower bounds against the exhaustive optimum, against their own definition, and on examples with closed answers."""

from __future__ import annotations

import dataclasses
import random
from itertools import product

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle.brute_force import (
    MIB,
    Way,
    as_placement,
    calls_ns,
    costs,
    make_price,
    optimum,
    random_problem,
    small_cluster,
    synthetic_problem,
    ways_to_run,
)

from zellige.placement import ENGINES, Engine, Placement, Problem, rank_costs
from zellige.plan.bounds import (
    area_bound,
    best_bound,
    bound_with_calls,
    canonical_bound,
    indivisible_bound,
    whole_time,
)
from zellige.prices import Price
from zellige.shards import ParallelConfig
from zellige.sources import build_problem
from zellige.spreads import WorkFront
from zellige.workload import Clip, build_batch

WHOLE = ParallelConfig()
PER_SEED = 15
SEEDS = range(10)


def instances(engine: Engine, seed: int) -> list[Problem]:
    chance = random.Random(seed)
    return [random_problem(chance, engine, tight=index % 3 == 0) for index in range(PER_SEED)]


def least_ns(problem: Problem, config: ParallelConfig, price: Price) -> int:
    """What a sequence adds to a rank where every call that can be shared is."""
    compute = price.linear_ns + price.attention_ns + price.recompute_ns
    if problem.engine == "coalesced" or (problem.engine == "group" and config.q == config.k == 1):
        return compute + (price.exchange_ns if price.packed_exchange_ns is None else price.packed_exchange_ns)
    return compute + price.exchange_ns + price.launch_ns


def admits(problem: Problem, limit: int, rounds: int = 99) -> bool:
    """B3's definition: all sequences have an option within the limit, and the least work of such options fits.

    Options have no more ring rounds than ``rounds``; 0 leaves whole sequences alone.
    """
    work = 0
    for sequence in problem.batch.sequences:
        rows = [
            row
            for row in problem.prices.rows
            if row.bucket == sequence.bucket.name and (row.config == WHOLE or row.config.k <= rounds)
        ]
        times = [(row.config.degree, least_ns(problem, row.config, row.price)) for row in rows]
        able = [degree * time for degree, time in times if time <= limit]
        if not able:
            return False
        work += min(able)
    return work <= problem.cluster.num_ranks * limit


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("engine", ENGINES)
def test_no_bound_exceeds_the_optimum(engine: Engine, seed: int) -> None:
    for problem in instances(engine, seed):
        best = optimum(problem, with_memory=False)
        assert best is not None
        area, indivisible, canonical = area_bound(problem), indivisible_bound(problem), canonical_bound(problem)
        assert max(area, indivisible) <= canonical <= best.makespan_ns
        value, name = best_bound(problem)
        assert canonical <= value <= best.makespan_ns
        if value > canonical:
            assert (name, value) == ("B3 canonical, with calls", bound_with_calls(problem))
            assert engine == "coalesced"
        else:
            assert {"B1": area, "B2": indivisible, "B3": canonical}[name[:2]] == value
        limited = optimum(problem)
        assert limited is None or limited.makespan_ns >= best.makespan_ns


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("engine", ENGINES)
def test_the_canonical_bound_is_the_least_time_of_its_definition(engine: Engine, seed: int) -> None:
    for problem in instances(engine, seed):
        bound = canonical_bound(problem)
        assert admits(problem, bound)
        assert not admits(problem, bound - 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_shared_calls_join_the_bound_as_often_as_a_plan_must_make_them(seed: int) -> None:
    """The least over ring rounds of B3's definition with such options, and the calls of the fewest rounds of that kind:
    0, 1, 2, 3 or 4. For 0, not below what whole sequences take on so many ranks."""
    for problem in instances("coalesced", seed):
        value = bound_with_calls(problem)
        cluster = problem.cluster
        reached = []
        for fewest, most in ((0, 0), (1, 1), (2, 2), (3, 4)):
            spent = calls_ns(problem, cluster.num_ranks, cluster.num_nodes, fewest) if fewest else 0
            whole = 0 if fewest else crowded(problem)
            reached.append(admits(problem, value - spent, most) and value >= whole)
            assert not (admits(problem, value - 1 - spent, most) and value - 1 >= whole)
        assert any(reached)


def crowded(problem: Problem) -> int:
    """The most that k + 1 of the k*N + 1 longest sequences take whole, one by one: some rank has so many."""
    times = [problem.whole(bucket).floor_ns for bucket, count in problem.counts.items() for _ in range(count)]
    times.sort(reverse=True)
    ranks = problem.cluster.num_ranks
    return max(sum(times[k * ranks - k : k * ranks + 1]) for k in range(len(times)) if k * ranks < len(times))


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 30)), min_size=1, max_size=2), st.integers(1, 4))
def test_whole_sequences_take_no_less_than_their_crowded_rank(kinds: list[tuple[int, int]], num_ranks: int) -> None:
    """Against all ways to deal them out."""
    times = [time for count, time in kinds for _ in range(count)]
    best = min(
        max(sum(time for time, rank in zip(times, ranks, strict=True) if rank == each) for each in range(num_ranks))
        for ranks in product(range(num_ranks), repeat=len(times))
        if ranks[0] == 0
    )
    bound = whole_time([(count, WorkFront((time,), (time,))) for count, time in kinds], num_ranks)
    assert max(times) <= bound <= best
    if len({time for _, time in kinds}) == 1:
        assert bound == best


def test_calls_alone_keep_a_bound_from_the_optimum_of_free_calls() -> None:
    """A giant that must be split, alone: B3 is its share, and the optimum pays an exchange in and one back."""
    split = {(WHOLE, 1): make_price(10**9), (ParallelConfig(h=2), 1): make_price(5 * 10**8)}
    problem = synthetic_problem({"16x16x1": split}, {"16x16x1": 1}, small_cluster(2), "coalesced")
    paid = calls_ns(problem, 2, 1, 1)
    assert paid > 0
    assert best_bound(problem) == (5 * 10**8 + paid, "B3 canonical, with calls")
    best = optimum(problem)
    assert best is not None
    assert best.makespan_ns == best_bound(problem)[0]


@pytest.mark.parametrize("factor", [2, 7, 1000])
@pytest.mark.parametrize("engine", ENGINES)
def test_scaled_prices_scale_the_bounds(engine: Engine, factor: int) -> None:
    """Up to rounding: each is the ceiling of a real number that scales exactly."""
    for problem in instances(engine, factor):
        scaled = scale(problem, factor)
        for bound in (area_bound, canonical_bound):
            assert factor * (bound(problem) - 1) < bound(scaled) <= factor * bound(problem)
        assert indivisible_bound(scaled) == factor * indivisible_bound(problem)


def scale(problem: Problem, factor: int) -> Problem:
    """The same problem with all times of the price table multiplied."""
    rows = []
    for row in problem.prices.rows:
        fields = {name: getattr(row.price, name) for name in Price.__struct_fields__ if name.endswith("_ns")}
        times = {name: factor * time for name, time in fields.items() if time is not None}
        rows.append(msgspec.structs.replace(row, price=msgspec.structs.replace(row.price, **times)))
    return dataclasses.replace(problem, prices=msgspec.structs.replace(problem.prices, rows=tuple(rows)))


@pytest.mark.parametrize("engine", ENGINES)
def test_what_a_placement_costs_is_what_the_definition_says(engine: Engine) -> None:
    """The oracle's costs and the package's are two programs."""
    chance = random.Random(5)
    for problem in [random_problem(chance, engine) for _ in range(60)]:
        ways = [chance.choice(ways_to_run(problem, s.bucket.name)) for s in problem.batch.sequences]
        found = rank_costs(problem, placements_of(problem, ways))
        assert (found.times_ns, found.exposed_ns, found.memory_bytes) == costs(problem, ways)
        assert found.comm_bytes == sum(way.price.comm_bytes for way in ways)


def placements_of(problem: Problem, ways: list[Way]) -> list[Placement]:
    return [as_placement(s, way) for s, way in zip(problem.batch.sequences, ways, strict=True)]


@pytest.mark.parametrize("engine", ENGINES)
def test_the_oracle_against_trying_literally_everything(engine: Engine) -> None:
    """Without its shortcuts: equal sequences told apart, no branch given up."""
    chance = random.Random(11)
    tried = 0
    while tried < 25:
        problem = random_problem(chance, engine, tight=tried % 2 == 0)
        ways = [ways_to_run(problem, s.bucket.name) for s in problem.batch.sequences]
        if len(ways) > 3:
            continue
        tried += 1
        fitting = [
            max(spent.times_ns)
            for chosen in product(*ways)
            if max((spent := costs(problem, chosen)).memory_bytes) <= problem.memory.usable_bytes
        ]
        best = optimum(problem)
        assert (best.makespan_ns if best else None) == min(fitting, default=None)
        if best:
            assert max(rank_costs(problem, best.placements).times_ns) == best.makespan_ns


def giant(num_ranks: int, overhead_percent: int = 0) -> dict[tuple[ParallelConfig, int], Price]:
    """Work of 1200 on one rank, and its even parts, all dearer by the overhead, on 2 and on all ranks."""
    table = {(WHOLE, 1): make_price(1200)}
    for degree in {2, num_ranks}:
        table[ParallelConfig(q=degree), 1] = make_price(1200 * (100 + overhead_percent) // 100 // degree)
    return table


def items(time: int) -> dict[tuple[ParallelConfig, int], Price]:
    return {(WHOLE, 1): make_price(time)}


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
@pytest.mark.parametrize("engine", ["per_sequence", "group", "coalesced"])
def test_one_giant_is_spread_over_all_ranks(num_ranks: int, engine: Engine) -> None:
    for overhead in (0, 50):
        prices, counts = {"16x16x1": giant(num_ranks, overhead)}, {"16x16x1": 1}
        problem = synthetic_problem(prices, counts, small_cluster(num_ranks), engine)
        spread = 12 * (100 + overhead) // num_ranks
        assert indivisible_bound(problem) == canonical_bound(problem) == spread
        assert area_bound(problem) == 1200 // num_ranks


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_as_many_equal_items_as_ranks(num_ranks: int) -> None:
    problem = synthetic_problem(
        {"16x16x1": items(700)}, {"16x16x1": num_ranks}, small_cluster(num_ranks), "per_sequence"
    )
    assert area_bound(problem) == indivisible_bound(problem) == canonical_bound(problem) == 700
    best = optimum(problem)
    assert best is not None
    assert best.makespan_ns == 700


def test_a_bound_between_its_parts_and_the_optimum() -> None:
    """Whole, the giant takes too long; split, it is 120 of work beside 40 of fillers: neither B1 nor B2 sees both."""
    prices = {"16x16x1": items(10), "32x16x1": {(WHOLE, 1): make_price(100), (ParallelConfig(q=2), 1): make_price(60)}}
    problem = synthetic_problem(prices, {"16x16x1": 4, "32x16x1": 1}, small_cluster(2), "per_sequence")
    assert (area_bound(problem), indivisible_bound(problem), canonical_bound(problem)) == (70, 60, 80)
    assert best_bound(problem) == (80, "B3 canonical")
    best = optimum(problem)
    assert best is not None
    assert best.makespan_ns == 80


def test_whole_items_that_do_not_divide_are_beyond_the_bound() -> None:
    problem = synthetic_problem({"16x16x1": items(2)}, {"16x16x1": 3}, small_cluster(2), "per_sequence")
    best = optimum(problem)
    assert best is not None
    assert (canonical_bound(problem), best.makespan_ns) == (3, 4)


def test_rank_sets_that_overlap_beat_disjoint_ones() -> None:
    """Three pairs on three ranks: loads of 2 each, though no two pairs are disjoint."""
    prices = {"16x16x1": {(WHOLE, 1): make_price(5), (ParallelConfig(q=2), 1): make_price(1)}}
    problem = synthetic_problem(prices, {"16x16x1": 3}, small_cluster(3), "per_sequence")
    best = optimum(problem)
    assert best is not None
    assert (canonical_bound(problem), best.makespan_ns) == (2, 2)
    assert {placement.ranks for placement in best.placements} == {(0, 1), (0, 2), (1, 2)}


def test_memory_can_only_raise_the_optimum() -> None:
    """Both items would run whole beside each other, but one of them fits on a rank only in halves."""
    prices = {
        "16x16x1": {(WHOLE, 1): make_price(10, kept=6 * MIB), (ParallelConfig(q=2), 1): make_price(8, kept=3 * MIB)}
    }
    loose = synthetic_problem(prices, {"16x16x1": 2}, small_cluster(2), "per_sequence", 6 * MIB)
    tight = synthetic_problem(prices, {"16x16x1": 2}, small_cluster(2), "per_sequence", 6 * MIB - 1)
    best, none = optimum(loose), optimum(tight)
    assert best is not None
    assert best.makespan_ns == 10
    assert none is None, "two halves need as much on every rank"


CLIPS = [(256, 256, 1), (832, 480, 1), (480, 272, 33), (832, 480, 17), (640, 368, 81), (1280, 720, 1)]


@pytest.mark.parametrize("engine", ENGINES)
def test_analytic_prices(engine: Engine) -> None:
    """Every legal configuration of a real model on every set of ranks of one node, or of two."""
    chance = random.Random(3)
    for cluster in (small_cluster(2), small_cluster(3), small_cluster(4), small_cluster(4, 2)):
        for _ in range(2):
            problem = analytic_problem(chance, cluster.num_ranks, cluster.num_nodes, engine)
            best = optimum(problem, with_memory=False)
            assert best is not None
            assert max(area_bound(problem), indivisible_bound(problem)) <= canonical_bound(problem)
            assert canonical_bound(problem) <= bound_with_calls(problem) <= best.makespan_ns


def analytic_problem(chance: random.Random, num_ranks: int, num_nodes: int, engine: Engine) -> Problem:
    from zellige.catalog import load_model

    model = load_model("wan2.1-t2v-1.3b")
    shapes = chance.choices(CLIPS, k=5 if num_ranks == 2 else 3)
    clips = [Clip(id=f"c{i}", width=w, height=h, num_frames=f) for i, (w, h, f) in enumerate(shapes)]
    batch, drops = build_batch("small", clips, model)
    assert not drops
    return build_problem(batch, cluster=small_cluster(num_ranks, num_nodes), model=model, engine=engine)
