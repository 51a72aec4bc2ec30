"""Exchange costs: fits inside a node, NIC shares between nodes, units."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zellige.catalog import load_cluster, names
from zellige.cluster import Cluster, CollectiveOp, LinkPoint
from zellige.collectives import (
    call_ns,
    latency_ns,
    nic_share,
    node_fit,
    own_calls_ns,
    packed_calls_ns,
    remote_fraction,
    transfer_ns,
)
from zellige.shards import ParallelConfig

OPS: tuple[CollectiveOp, ...] = ("all_to_all", "all_gather", "send_recv")
FITS = ((2, 10.0, 100.0), (8, 30.0, 40.0), (32, 20.0, 60.0))
"""Ranks, microseconds, GB/s; neither monotone nor one step apart."""


def cluster(*, nics: int = 2, nodes: int = 2, ranks: int = 8) -> Cluster:
    """A made-up cluster with round numbers; every operation has the same fits, but all-gather twice the latency."""
    plain = load_cluster("a800x16")
    assert plain.network is not None
    fits = tuple(
        LinkPoint(op=op, num_ranks=num, latency_us=latency * (2 if op == "all_gather" else 1), bus_gb_per_s=rate)
        for op in OPS
        for num, latency, rate in reversed(FITS)
    )
    return msgspec.structs.replace(
        plain,
        num_nodes=nodes,
        ranks_per_node=ranks,
        node_link=msgspec.structs.replace(plain.node_link, fits=fits),
        network=msgspec.structs.replace(plain.network, nics_per_node=nics, nic_gb_per_s=20.0, latency_us=25.0),
        host=msgspec.structs.replace(plain.host, collective_us=100.0, ring_step_us=300.0),
    )


# --- fits inside a node


@pytest.mark.parametrize(
    ("num_ranks", "latency_us", "gb_per_s"),
    [
        (2, 10, 100),
        (8, 30, 40),
        (32, 20, 60),
        (4, 20, 70),  # halfway between 2 and 8 in log2
        (16, 25, 50),
        (1, 10, 100),  # held constant beyond the fits
        (64, 20, 60),
    ],
)
def test_fits_are_interpolated_in_log2_of_the_ranks(num_ranks: int, latency_us: float, gb_per_s: float) -> None:
    fit = node_fit(cluster(), "all_to_all", num_ranks)
    assert fit.latency_ns == pytest.approx(1e3 * latency_us, rel=1e-12)
    assert fit.bytes_per_ns == pytest.approx(gb_per_s, rel=1e-12)


def test_three_ranks_lie_where_their_logarithm_does() -> None:
    weight = (math.log(3) - math.log(2)) / (math.log(8) - math.log(2))
    assert node_fit(cluster(), "all_to_all", 3).bytes_per_ns == pytest.approx(100 - 60 * weight, rel=1e-12)


@given(op=st.sampled_from(OPS), name=st.sampled_from(names("clusters")), num_ranks=st.integers(1, 64))
def test_fits_stay_between_their_neighbours(op: CollectiveOp, name: str, num_ranks: int) -> None:
    points = [point for point in load_cluster(name).node_link.fits if point.op == op]
    fit = node_fit(load_cluster(name), op, num_ranks)
    rates, latencies = [point.bus_gb_per_s for point in points], [point.latency_us for point in points]
    assert min(rates) * (1 - 1e-12) <= fit.bytes_per_ns <= max(rates) * (1 + 1e-12)
    assert min(latencies) * (1 - 1e-12) <= fit.latency_ns / 1e3 <= max(latencies) * (1 + 1e-12)
    for point in points:
        assert node_fit(load_cluster(name), op, point.num_ranks).bytes_per_ns == point.bus_gb_per_s


def test_each_operation_has_its_own_fits() -> None:
    a800 = load_cluster("a800x8")
    assert node_fit(a800, "all_to_all", 8).bytes_per_ns == 114.7
    assert node_fit(a800, "all_gather", 8).bytes_per_ns == 112.7
    assert node_fit(a800, "send_recv", 8).bytes_per_ns == 150.0
    assert node_fit(a800, "all_gather", 2).latency_ns == pytest.approx(10_800)


# --- NICs


@pytest.mark.parametrize(
    ("nics", "ranks", "share"), [(1, 8, 2.5), (2, 8, 5), (8, 8, 20), (16, 8, 20), (3, 2, 20), (1, 1, 20)]
)
def test_ranks_share_the_nics_of_their_node_and_use_one_at_most(nics: int, ranks: int, share: float) -> None:
    assert nic_share(cluster(nics=nics, ranks=ranks)) == pytest.approx(share)


def test_nic_shares_of_the_bundled_clusters() -> None:
    assert nic_share(load_cluster("a800x16")) == pytest.approx(4 * 23.5 / 8)
    assert nic_share(load_cluster("a6000x32")) == pytest.approx(2.9375)
    assert nic_share(load_cluster("a800x8")) == math.inf


@given(ranks=st.integers(1, 16), nodes=st.integers(1, 8), data=st.data())
def test_remote_fraction_counts_peers_on_other_nodes(ranks: int, nodes: int, data: st.DataObject) -> None:
    group, me = ranks * nodes, data.draw(st.integers(0, ranks * nodes - 1))
    peers = [peer for peer in range(group) if peer != me]
    remote = sum(peer // ranks != me // ranks for peer in peers)
    assert remote_fraction(group, ranks) == pytest.approx(remote / len(peers) if peers else 0.0)


@pytest.mark.parametrize(("group", "in_node"), [(1, 1), (4, 8), (8, 8), (1, 8)])
def test_a_group_inside_a_node_has_no_remote_peers(group: int, in_node: int) -> None:
    assert remote_fraction(group, in_node) == 0.0


# --- transfers


def test_a_gigabyte_at_a_hundred_gigabytes_a_second_takes_ten_milliseconds() -> None:
    assert transfer_ns(cluster(), "all_to_all", 2, 1e9, 0.0) == pytest.approx(10e6)
    assert transfer_ns(load_cluster("a800x8"), "all_to_all", 8, 114.7e9, 0.0) == pytest.approx(1e9)


@pytest.mark.parametrize(
    ("remote", "expected"),
    [
        (0.0, 40e6),  # 4 GB at 100
        (1.0, 800e6),  # 4 GB at a quarter of 20 (2 NICs, 8 ranks)
        (0.5, 400e6),
        (0.01, 39.6e6),  # the node's links are the slower side still
    ],
)
def test_the_slower_of_links_and_nics_decides(remote: float, expected: float) -> None:
    assert transfer_ns(cluster(), "all_to_all", 2, 4e9, remote) == pytest.approx(expected)


def test_without_a_network_there_is_nothing_remote() -> None:
    alone = msgspec.structs.replace(cluster(nodes=1), network=None)
    assert transfer_ns(alone, "all_to_all", 2, 1e9, 0.0) == pytest.approx(10e6)
    assert latency_ns(alone, "all_to_all", 2, 1) == pytest.approx(10e3)


@given(
    name=st.sampled_from(names("clusters")),
    op=st.sampled_from(OPS),
    num_ranks=st.integers(2, 32),
    size=st.floats(1, 1e12),
    remote=st.floats(0, 1),
    factor=st.floats(1, 100),
)
def test_transfers_scale_with_bytes(
    name: str, op: CollectiveOp, num_ranks: int, size: float, remote: float, factor: float
) -> None:
    loaded = load_cluster(name)
    once = transfer_ns(loaded, op, num_ranks, size, remote)
    assert once > 0 or loaded.network is None
    assert transfer_ns(loaded, op, num_ranks, size * factor, remote) == pytest.approx(once * factor)


# --- calls


@pytest.mark.parametrize(
    ("op", "num_ranks", "num_nodes", "expected"),
    [
        ("all_to_all", 2, 1, 110e3),
        ("all_to_all", 2, 2, 125e3),  # the network's latency is the larger
        ("all_to_all", 8, 2, 130e3),  # the fit's is
        ("all_gather", 8, 1, 160e3),
        ("send_recv", 2, 1, 310e3),
        ("send_recv", 2, 2, 325e3),
    ],
)
def test_a_call_costs_latency_and_host_time(op: CollectiveOp, num_ranks: int, num_nodes: int, expected: float) -> None:
    assert call_ns(cluster(), op, num_ranks, num_nodes) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (ParallelConfig(), 0.0),
        (ParallelConfig(1, 2, 1), 4 * 110e3),  # Q, K, V and O
        (ParallelConfig(1, 8, 1), 4 * 130e3),
        (ParallelConfig(8, 1, 1), 2 * 160e3),  # K and V
        (ParallelConfig(1, 1, 8), 7 * 330e3),  # a step for each round after the first
        (ParallelConfig(1, 2, 4), 4 * 110e3 + 3 * 330e3),
        (ParallelConfig(2, 2, 2), 4 * 110e3 + 2 * 160e3 + 330e3),
    ],
)
def test_a_sequence_of_its_own_pays_every_call(config: ParallelConfig, expected: float) -> None:
    assert own_calls_ns(cluster(), config, 1) == pytest.approx(expected)


def test_packed_calls_are_one_a_round_and_one_back() -> None:
    assert packed_calls_ns(cluster(), 8, 1) == pytest.approx(2 * 130e3)
    assert packed_calls_ns(cluster(), 2, 2, num_rounds=4) == pytest.approx(5 * 125e3)
    shared = packed_calls_ns(cluster(), 8, 1)
    assert all(
        own_calls_ns(cluster(), ParallelConfig(q, h, k), 1) > shared for q, h, k in ((8, 1, 1), (1, 8, 1), (1, 1, 8))
    )
