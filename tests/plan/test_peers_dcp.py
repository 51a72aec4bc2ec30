"""DCP-like placement: the hypergraph of blocks, its partitions, and the plans made of them."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle.batches import make_problem

from zellige.errors import MissingExtraError
from zellige.placement import Problem
from zellige.plan import hypergraph
from zellige.plan.dcp import TOTAL_WEIGHT, block_graph, block_tokens, plan_dcp, rank_of_vertex, shares
from zellige.plan.hypergraph import Hypergraph, partition

IMAGE, SHORT, LONG = (832, 480, 1), (832, 480, 81), (1280, 720, 81)


@cache
def problem(cluster: str = "a800x4") -> Problem:
    return dataclasses.replace(make_problem([IMAGE] * 6 + [SHORT, LONG], cluster), engine="coalesced")


def connectivity(graph: Hypergraph, blocks: list[int]) -> int:
    touched = [len({blocks[vertex] for vertex in net}) for net in graph.nets]
    return sum(weight * (count - 1) for weight, count in zip(graph.net_weights, touched, strict=True))


def test_blocks_weigh_what_their_sequence_takes() -> None:
    clips = problem().batch.sequences
    graph, owner = block_graph(problem(), clips, block_tokens(problem(), clips))
    total = sum(problem().whole(clip.bucket).compute_ns for clip in clips)
    assert sum(graph.vertex_weights) == pytest.approx(TOTAL_WEIGHT, rel=1e-3)
    for sequence, clip in enumerate(clips):
        weight = sum(w for w, o in zip(graph.vertex_weights, owner, strict=True) if o == sequence)
        assert weight / TOTAL_WEIGHT == pytest.approx(problem().whole(clip.bucket).compute_ns / total, rel=1e-3)


def test_nets_join_a_data_block_with_its_row_or_column_of_computations() -> None:
    clips = problem().batch.sequences
    graph, owner = block_graph(problem(), clips, block_tokens(problem(), clips))
    for sequence in range(len(clips)):
        vertices = [v for v, o in enumerate(owner) if o == sequence]
        nets = [net for net in graph.nets if owner[net[0]] == sequence]
        if len(vertices) == 1:
            assert nets == []
            continue
        number = len(nets) // 2
        assert len(vertices) == number + number**2
        data, work = set(vertices[:number]), vertices[number:]
        assert all(net[0] in data and len(net) == number + 1 for net in nets)
        rows, columns = nets[0::2], nets[1::2]
        assert sorted(v for net in rows for v in net[1:]) == sorted(v for net in columns for v in net[1:]) == work
        assert all(len(set(row[1:]) & set(column[1:])) == 1 for row in rows for column in columns)


def test_partitions_are_balanced_and_the_same_again() -> None:
    clips = problem("a800x16").batch.sequences
    graph, _ = block_graph(problem("a800x16"), clips, block_tokens(problem("a800x16"), clips))
    blocks = partition(graph, 4, 0.1)
    weights = [sum(w for w, b in zip(graph.vertex_weights, blocks, strict=True) if b == block) for block in range(4)]
    assert max(weights) <= 1.1 * sum(weights) / 4 + max(graph.vertex_weights)
    assert partition(graph, 4, 0.1) == blocks
    ranks = rank_of_vertex(problem("a800x16"), graph, 0.1)
    assert set(ranks) <= set(range(16))
    assert len(set(ranks)) == 16


@settings(max_examples=12)
@given(data=st.data())
def test_two_halves_of_a_tiny_hypergraph_are_cut_as_cheaply_as_can_be(data: st.DataObject) -> None:
    number = data.draw(st.integers(4, 8))
    vertices = st.integers(0, number - 1)
    nets = data.draw(st.lists(st.sets(vertices, min_size=2, max_size=4).map(sorted), min_size=1, max_size=8))
    weights = [data.draw(st.integers(1, 9)) for _ in nets]
    graph = Hypergraph([1] * number, nets, weights)
    limit = -(-number // 2)
    blocks = partition(graph, 2, 0.0)
    assert max(blocks.count(0), blocks.count(1)) <= limit
    best = min(
        connectivity(graph, list(cut))
        for cut in itertools.product((0, 1), repeat=number)
        if max(cut.count(0), cut.count(1)) <= limit
    )
    assert connectivity(graph, blocks) <= 1.5 * best + 2


def test_a_restricted_hypergraph_keeps_what_lies_inside() -> None:
    graph = Hypergraph([1, 2, 3, 4], [[0, 1, 2], [2, 3], [0, 3]], [5, 6, 7])
    assert graph.restricted([2, 0, 1]) == Hypergraph([3, 1, 2], [[1, 2, 0]], [5])


def test_ranks_with_less_than_half_of_an_even_share_are_left_out() -> None:
    graph = Hypergraph([10, 9, 1, 5, 5], [], [])
    assert shares(graph, [0, 0, 0, 1, 1], [2, 0, 1, 3, 3], 2) == [[2, 0], [3]]


def test_plans_spread_long_sequences_and_leave_short_ones_whole() -> None:
    plan = plan_dcp(problem())
    degrees = {p.bucket: p.config.degree for p in plan.placements}
    assert degrees["1280x720x81"] > 1
    assert degrees["832x480x1"] == 1
    assert plan.fits
    assert plan == plan_dcp(dataclasses.replace(problem()))


def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    hypergraph._mt_kahypar.cache_clear()
    monkeypatch.setitem(sys.modules, "mtkahypar", None)
    with pytest.raises(MissingExtraError, match="Mt-KaHyPar") as caught:
        plan_dcp(problem())
    assert ".[dcp]" in caught.value.fix
    monkeypatch.undo()
    hypergraph._mt_kahypar.cache_clear()
    assert plan_dcp(problem()).fits
