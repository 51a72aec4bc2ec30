"""Anchors placed node by node: the knapsack against trying all, what a placement keeps, and that no plan is worse."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations_with_replacement

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zellige.catalog import load_cluster, load_model
from zellige.placement import Problem
from zellige.plan import drafts, plan_batch
from zellige.plan.blocks import Block
from zellige.plan.compiled import is_compiled, prefer_compiled
from zellige.plan.covering import Covering
from zellige.plan.node_cover import Field, NodeCover
from zellige.plan.search_kernel import NEVER
from zellige.problem import Option, Rung
from zellige.shards import ParallelConfig
from zellige.sources import build_problem
from zellige.workload import Clip, build_batch

PER_NODE = 4


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    was = is_compiled()
    yield
    prefer_compiled(was)


def rung(degree: int, time: int, kept: int) -> Rung:
    nodes = -(-degree // PER_NODE)
    option = Option(ParallelConfig(q=degree), nodes, time, time, time, kept, 0, 0)
    return Rung(degree * time, time, degree, nodes, kept, 0, option)


@st.composite
def ladders(draw: st.DrawFn) -> tuple[Rung, ...]:
    """Rungs of 1, 2, 3, 4 and 8 ranks with some overhead, the least work first."""
    whole, extra, kept = draw(st.integers(40, 900)), draw(st.integers(0, 9)), draw(st.integers(0, 200))
    times = [(degree, -(-whole * (100 + extra * (degree - 1)) // (100 * degree))) for degree in (1, 2, 3, 4, 8)]
    rungs = [rung(degree, time, -(-kept // degree)) for degree, time in times]
    return tuple(sorted(rungs, key=lambda each: each.work))


@settings(max_examples=200)
@given(
    st.lists(st.integers(0, 6), max_size=2),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 50)), max_size=7),
    st.integers(1, 4),
)
def test_the_cover_is_the_cheapest_of_all(others: list[int], drawn: list[tuple[int, ...]], units: int) -> None:
    """One sequence of the first kind in each unit: then a cell says how many units it takes, as it does where patterns
    fill units."""
    total = (units, *others)
    by_pattern = {(1, *each[: len(others)]): each[-1] for each in drawn}
    patterns, prices = list(by_pattern), list(by_pattern.values())

    def held(chosen: Sequence[int]) -> tuple[int, ...]:
        return tuple(sum(patterns[number][kind] for number in chosen) for kind in range(len(total)))

    every = combinations_with_replacement(range(len(patterns)), units)
    cheapest = min((sum(prices[number] for number in each) for each in every if held(each) == total), default=None)
    found = []
    for wanted in (False, True):
        prefer_compiled(wanted)
        found.append(Covering(total, patterns).cheapest(prices, units))
    assert found[0] == found[1]
    if found[0] is None:
        assert cheapest is None
        return
    assert held(found[0]) == total
    assert sum(prices[number] for number in found[0]) == cheapest


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.integers(1, 80), st.integers(0, 60)), min_size=PER_NODE, max_size=PER_NODE),
    st.integers(0, 300),
    st.tuples(st.integers(0, 100), st.integers(0, 100)),
)
def test_the_level_that_fillers_reach(ranks: list[tuple[int, int]], work: int, fillers: tuple[int, int]) -> None:
    cover = NodeCover({}, Field(PER_NODE, 100, 90, *fillers), 1)
    chosen = tuple((rung(1, time, kept), Block((rank,), (), ())) for rank, (time, kept) in enumerate(ranks))
    spare = [max(0, 90 - kept) * fillers[0] // max(1, fillers[1]) for _, kept in ranks]

    def taken(level: int) -> int:
        return sum(min(max(0, level - time), most) for (time, _), most in zip(ranks, spare, strict=True))

    reached = cover.reach(PER_NODE, chosen, work)
    if reached >= NEVER:
        assert sum(spare) < work
        return
    slowest = max(time for time, _ in ranks)
    assert taken(reached) >= work
    assert reached == slowest or (reached > slowest and taken(reached - 1) < work)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(ladders(), min_size=1, max_size=3), st.data())
def test_a_placement_holds_everything_below_the_target(several: list[tuple[Rung, ...]], data: st.DataObject) -> None:
    rungs = {f"b{index}": each for index, each in enumerate(several)}
    buckets = [name for name in rungs for _ in range(data.draw(st.integers(1, 6)))]
    buckets.sort(key=lambda name: (-rungs[name][0].work, name))
    nodes, unit = data.draw(st.sampled_from([(2, 1), (3, 1), (4, 1), (4, 2), (2, 2)]))
    work = sum(rungs[name][0].work for name in buckets)
    target = work * data.draw(st.integers(100, 130)) // (100 * nodes * PER_NODE) + 1
    field = Field(PER_NODE, target, data.draw(st.integers(100, 2000)), 100, data.draw(st.integers(0, 200)))
    found = []
    for wanted in (False, True):
        prefer_compiled(wanted)
        found.append(NodeCover(rungs, field, unit).place(nodes, buckets))
    assert found[0] == found[1]
    if found[0] is None:
        return
    assert len(found[0]) == len(buckets)
    time, kept = [0] * (nodes * PER_NODE), [0] * (nodes * PER_NODE)
    for name, (way, block) in zip(buckets, found[0], strict=True):
        assert way in rungs[name]
        assert len(set(block.ranks)) == way.degree
        spread = Counter(rank // PER_NODE for rank in block.ranks)
        assert len(spread) == way.nodes
        assert set(spread.values()) == {way.degree // way.nodes}
        assert len({rank // (unit * PER_NODE) for rank in block.ranks}) == 1
        for rank in block.ranks:
            time[rank] += way.time
            kept[rank] += way.kept
    assert max(time) <= target
    assert max(kept) <= field.room


def test_unequal_full_nodes_are_found() -> None:
    """Four sequences of a quarter of a node's time and five of a fifth fill two nodes, and no mix fills one."""
    long, short = (rung(4, 25, 0),), (rung(4, 20, 0),)
    cover = NodeCover({"long": long, "short": short}, Field(PER_NODE, 100, 10, 1, 0), 1)
    found = cover.place(2, ["long"] * 4 + ["short"] * 5)
    assert found is not None
    assert [way.degree for way, _ in found] == [4] * 9
    assert cover.reach(2 * PER_NODE, found, 0) == 100


def test_a_node_without_memory_for_its_sequences_is_none() -> None:
    cover = NodeCover({"b": (rung(1, 100, 8),)}, Field(PER_NODE, 100, 7, 1, 0), 1)
    assert cover.place(1, ["b"] * 4) is None
    roomier = NodeCover({"b": (rung(1, 100, 8),)}, Field(PER_NODE, 100, 8, 1, 0), 1)
    assert roomier.place(1, ["b"] * 4) is not None


def heavy(seed: int, num_nodes: int) -> Problem:
    """Three videos for four ranks, and images that take little time."""
    chance, ranks = random.Random(seed), 8 * num_nodes
    shapes = [(1280, 720, 161), (1920, 1080, 161), (1920, 1080, 241)]
    shapes = [chance.choice(shapes) for _ in range(3 * ranks // 4)]
    shapes += [(*chance.choice([(256, 256), (512, 512), (1280, 720), (1920, 1080)]), 1) for _ in range(14 * ranks)]
    clips = [
        Clip(id=f"c{index}", width=width, height=height, num_frames=frames)
        for index, (width, height, frames) in enumerate(shapes)
    ]
    model = "wan2.1-t2v-1.3b"
    cluster = msgspec.structs.replace(load_cluster("a800x16"), num_nodes=num_nodes)
    return build_problem(build_batch("heavy", clips, load_model(model))[0], cluster=cluster, model=model)


@pytest.mark.parametrize(("seed", "better"), [(0, True), (4, False)])
def test_pods_placed_node_by_node_make_no_plan_worse(seed: int, better: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = heavy(seed, 16)
    plan = plan_batch(problem, "zellige")
    assert Counter(p.sequence for p in plan.placements) == Counter(s.id for s in problem.batch.sequences)
    assert plan.fits
    prefer_compiled()
    assert plan_batch(problem, "zellige").digest == plan.digest
    monkeypatch.setattr(drafts, "UNITS", ())
    without = plan_batch(problem, "zellige")
    assert plan.makespan_ns < without.makespan_ns if better else plan.makespan_ns == without.makespan_ns


@pytest.mark.parametrize("kept", [0, 2**62, 2**63, 2**70])
def test_fillers_that_keep_too_much_for_compiled_loops_are_left_to_the_others(kept: int) -> None:
    long, found = (rung(4, 25, 1),), []
    for wanted in (False, True):
        prefer_compiled(wanted)
        cover = NodeCover({"long": long}, Field(PER_NODE, 100, 10, 1, kept), 1)
        found.append(cover.place(2, ["long"] * 8))
    assert found[0] == found[1]
    assert found[0] is not None
