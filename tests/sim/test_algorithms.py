"""Collectives of parameters and gradients against closed forms, worked out from the catalog's numbers by hand."""

from __future__ import annotations

import msgspec
import pytest
from builders import NODE, TWO_NODES, WAN, cluster_of

from zellige.catalog import load_cluster
from zellige.cluster import Cluster
from zellige.sim.algorithms import all_gather, all_reduce, has_nvls, reduce_scatter
from zellige.sim.state import state_traffic

SIZE = 96_000_000
POOL = 4 * 23.5
"""GB/s of a node's four NICs."""


def test_ring_gather_in_a_node() -> None:
    time = all_gather(NODE, SIZE)
    assert (time.algorithm, time.latency_ns) == ("ring", 17_000)
    assert time.transfer_ns == pytest.approx(SIZE * 7 / 8 / 112.7, abs=1)
    assert reduce_scatter(NODE, SIZE) == time
    assert time.source.startswith("fitted: ")


def test_ring_gather_over_nodes_is_as_fast_as_its_slowest_hop() -> None:
    time = all_gather(TWO_NODES, SIZE, "ring")
    assert time.latency_ns == 17_000 + 22_400
    assert time.transfer_ns == pytest.approx(SIZE * 15 / 16 / POOL, abs=1)


def test_two_levels_add_up() -> None:
    time = all_gather(TWO_NODES, SIZE, "hierarchical")
    assert time.transfer_ns == pytest.approx(SIZE / 2 / POOL + SIZE * 7 / 8 / 112.7, abs=1)
    reduced = all_reduce(TWO_NODES, SIZE, "hierarchical")
    assert reduced.transfer_ns == pytest.approx(2 * time.transfer_ns, abs=2)
    assert reduced.latency_ns == 2 * (17_000 + 22_400)


def test_a_ring_reduces_and_gathers() -> None:
    time = all_reduce(NODE, SIZE, "ring")
    assert time.transfer_ns == pytest.approx(2 * SIZE * 7 / 8 / 112.7, abs=2)
    assert time.latency_ns == 2 * 17_000


def test_the_switch_sums_where_it_can() -> None:
    hopper = fits_only("h100x8")
    time = all_reduce(hopper, SIZE, "nvls")
    assert (time.latency_ns, time.transfer_ns) == (17_400, pytest.approx(2 * SIZE * 7 / 8 / 374, abs=1))
    assert all_reduce(hopper, SIZE).algorithm == "nvls"
    assert "NVLS" in all_reduce(hopper, SIZE).source
    assert not has_nvls(NODE)
    assert all_reduce(NODE, SIZE).algorithm == "ring"


def fits_only(name: str) -> Cluster:
    """A bundled cluster without its measured tables."""
    cluster = load_cluster(name)
    return msgspec.structs.replace(cluster, node_link=msgspec.structs.replace(cluster.node_link, measured=None))


def test_a_table_of_the_collective_comes_before_all_formulas() -> None:
    """512 MiB on 8 ranks, in us as nccl-tests measured them (ai-dynamo/aiconfigurator)."""
    for name, times in {
        "a100x8": (2288.0, 2207.1, 4225.9),
        "h100x8": (1398.89, 1400.39, 2111.72),
        "h200x8": (1394.97, 1393.35, 2040.31),
    }.items():
        cluster = load_cluster(name)
        for collective, time_us in zip((all_gather, reduce_scatter, all_reduce), times, strict=True):
            time = collective(cluster, 2**29)
            assert (time.algorithm, time.source.split(":")[0]) == ("nccl", "measured")
            assert time.time_ns == pytest.approx(1e3 * time_us, abs=2)
            plain = collective(fits_only(name), 2**29)
            assert plain.source.startswith("fitted: ")
            assert plain.time_ns == pytest.approx(time.time_ns, rel=0.35)


def test_tables_of_a_node_serve_many_nodes() -> None:
    """Two levels: a gather of 64 MiB on 8 H100, in us as measured, between nodes of 8 NICs."""
    many = load_cluster("h100x64")
    time = all_gather(many, 2**26, "hierarchical")
    inside = time.latency_ns + time.transfer_ns - 7 * 22_400 - 2**26 * 7 / 8 / (8 * 48.5)
    assert inside == pytest.approx(1e3 * 209.26, abs=2)
    assert all_gather(many, 2**26).algorithm in ("ring", "hierarchical")
    assert all_reduce(many, 2**26, "hierarchical").time_ns > time.time_ns


def test_the_faster_algorithm_is_chosen() -> None:
    slow_network = msgspec.structs.replace(
        TWO_NODES, network=msgspec.structs.replace(TWO_NODES.network, nics_per_node=1)
    )
    assert all_gather(TWO_NODES, SIZE).algorithm == "ring"
    assert all_gather(slow_network, SIZE).algorithm == "hierarchical"
    for cluster in (TWO_NODES, slow_network):
        times = [all_gather(cluster, SIZE, name).time_ns for name in ("ring", "hierarchical")]
        assert all_gather(cluster, SIZE).time_ns == min(times)


def test_one_rank_sends_nothing() -> None:
    assert all_gather(cluster_of(1), SIZE).time_ns == 0
    assert state_traffic(WAN, cluster_of(1), "zero3").transfers(all_gather(cluster_of(1), SIZE), True) == []


def test_state_traffic_by_sharding() -> None:
    zero3, zero2, ddp = (state_traffic(WAN, NODE, sharding) for sharding in ("zero3", "zero2", "ddp"))
    layer, total = WAN.layer_parameters(), WAN.num_parameters()
    assert zero3.gather == all_gather(NODE, 2 * layer)
    assert zero3.reduce == zero2.reduce == reduce_scatter(NODE, 4 * layer)
    assert zero2.last_gather == all_gather(NODE, 2 * total)
    assert zero2.gather is ddp.gather is zero3.last_gather is None
    assert ddp.reduce == all_reduce(NODE, 4 * layer)
    assert ddp.optimizer_ns == pytest.approx(30 * total / 2040, abs=1)
    assert zero3.optimizer_ns == pytest.approx(ddp.optimizer_ns / 8, abs=2)
