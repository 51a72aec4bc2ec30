"""Exchanges against closed forms: uniform and irregular all-to-alls, in a node and over nodes, in one step or two."""

from __future__ import annotations

import math

import pytest
from builders import NODE, TWO_NODES, priced, problem_of, program_of
from hypothesis import given
from hypothesis import strategies as st

from zellige.collectives import call_ns, node_fit
from zellige.exchange_prices import Speed, Transfer, meetings, two_steps
from zellige.op_prices import OpPricer

ANY = Speed("all_to_all", 0)
NIC = 23.5
"""GB/s of a NIC of the testbed, of which a node of 8 ranks has 4."""


def uniform(ranks: range, size: int) -> list[Transfer]:
    return [(s, d, size) for s in ranks for d in ranks if s != d]


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_a_uniform_all_to_all_in_a_node(num_ranks: int) -> None:
    size = 10_000_000
    (meeting,) = meetings(NODE, uniform(range(num_ranks), size), range(num_ranks), ANY)
    bandwidth = {2: 92.7, 4: 110.7, 8: 114.7}[num_ranks]
    assert meeting.members == meeting.peers == tuple(range(num_ranks))
    assert meeting.transfer_ns == math.ceil((num_ranks - 1) * size / bandwidth)


def test_a_uniform_all_to_all_over_nodes() -> None:
    """16 ranks on 2 nodes: 7 messages stay in the node, 64 leave each node through 4 NICs."""
    size = 10_000_000
    (meeting,) = meetings(TWO_NODES, uniform(range(16), size), range(16), ANY)
    inside = 7 * size / node_fit(TWO_NODES, "all_to_all", 16).bytes_per_ns
    assert meeting.transfer_ns == math.ceil(max(inside, 64 * size / (4 * NIC)))


def test_a_few_ranks_have_their_share_of_the_nics() -> None:
    """Two ranks of each node have a quarter of its NICs, whoever else enters without messages."""
    size = 10_000_000
    across = [(0, 8, size), (1, 9, size), (8, 0, size), (9, 1, size)]
    meeting = meetings(TWO_NODES, across, (0, 1, 8, 9), ANY)[0]
    assert meeting.transfer_ns == math.ceil(2 * size / (4 * NIC / 4))
    assert meetings(TWO_NODES, across, range(16), ANY)[0].transfer_ns == meeting.transfer_ns
    alone = meetings(TWO_NODES, [(0, 8, size)], range(16), ANY)[0]
    assert alone.transfer_ns == math.ceil(size / (4 * NIC / 8))


def test_two_steps_over_nodes_take_the_sum() -> None:
    """Inside first: 8 messages for each of 7 places that are not its own, doubled by two nodes; then 8 rails."""
    size = 100_000
    (meeting,) = meetings(TWO_NODES, uniform(range(16), size), range(16), ANY, two_step=True)
    inside = 14 * size / node_fit(TWO_NODES, "all_to_all", 16).bytes_per_ns
    between = 64 * size / (4 * NIC)
    assert meeting.transfer_ns == math.ceil(inside + between)


@given(st.lists(st.tuples(st.integers(0, 15), st.integers(0, 15), st.integers(1, 10**9)), max_size=40))
def test_two_steps_bring_every_byte_to_its_place(transfers: list[Transfer]) -> None:
    inside, between = two_steps(TWO_NODES, transfers)
    assert all(s // 8 == d // 8 for s, d, _ in inside)
    assert all(s % 8 == d % 8 and s != d for s, d, _ in between)
    for rank in range(16):
        arrived = sum(size for _, d, size in between if d == rank) + sum(
            size for s, d, size in transfers if d == rank and s // 8 == rank // 8
        )
        assert arrived == sum(size for _, d, size in transfers if d == rank)


def test_an_irregular_exchange_lasts_as_long_as_its_busiest_port() -> None:
    """Rank 0 sends 30 MB to each of 1 and 2, and these 1 MB back: its way out is the busiest port."""
    transfers = [(0, 1, 30_000_000), (0, 2, 30_000_000), (1, 0, 1_000_000), (2, 0, 1_000_000)]
    met = {meeting.members: meeting for meeting in meetings(NODE, transfers, range(3), ANY)}
    busiest = 60_000_000 / node_fit(NODE, "all_to_all", 3).bytes_per_ns
    assert met[0,].peers == (0, 1, 2)
    assert met[1,].peers == (0, 1)
    assert {meeting.transfer_ns for meeting in met.values()} == {math.ceil(busiest)}


def test_ranks_meet_their_real_peers_only() -> None:
    """One packed exchange of two disjoint sequences and an idle rank: three meetings."""
    problem = problem_of()
    program = program_of([(8_000, "h4", (0, 1, 2, 3)), (4_000, "h2", (4, 5))], problem)
    first = priced(program, problem).exchanges[0]
    assert [meeting.peers for meeting in first.meetings] == [(0, 1, 2, 3), (4, 5), (6,), (7,)]
    assert [meeting.transfer_ns > 0 for meeting in first.meetings] == [True, True, False, False]


def test_calls_cost_latency_and_host_time() -> None:
    problem = problem_of(engine="per_sequence")
    prices = priced(program_of([(8_000, "q2h2", (0, 1, 2, 3))], problem), problem)
    calls = {f"{e.phase}.{e.name}": p.call_ns for e, p in zip(prices.program.exchanges, prices.exchanges, strict=True)}
    once, gather = (call_ns(NODE, "all_to_all", 2, 1), call_ns(NODE, "all_gather", 4, 1))
    assert calls["forward.in0.q"] == math.ceil(once)
    assert calls["forward.in0.k"] == math.ceil(once + gather)
    assert calls["backward.back.dk"] == math.ceil(2 * (once + gather))


def test_two_steps_cost_a_second_latency() -> None:
    problem = problem_of(TWO_NODES)
    program = program_of([(8_000, "h4", (0, 1, 8, 9))], problem)
    flat, stepped = (
        OpPricer(problem.model, TWO_NODES, all_to_all=way).price(program).exchanges[0] for way in ("flat", "two_step")
    )
    assert stepped.call_ns - flat.call_ns == pytest.approx(node_fit(TWO_NODES, "all_to_all", 8).latency_ns, abs=1)
