"""Settings change what they name and nothing else; a flip is found where it is."""

from __future__ import annotations

import msgspec
import pytest
from builders import ALONE, NODE, TWO_NODES, model_of, problem_of, program_of
from hypothesis import given, settings
from hypothesis import strategies as st

from zellige.catalog import load_cluster
from zellige.cluster import Cluster, CollectiveOp
from zellige.collectives import link_sources, node_latency_ns, node_rate
from zellige.errors import DeadLinkError, UsageError
from zellige.sim import simulate
from zellige.sim.what_if import KNOBS, apply_setting, flip_point


@pytest.mark.parametrize("name", sorted(KNOBS))
def test_a_factor_changes_one_number(name: str) -> None:
    changed = apply_setting(TWO_NODES, f"{name}=2x")
    assert changed.name == f"a800x16[{name}=2x]"
    for other, knob in KNOBS.items():
        assert knob.read(changed) == pytest.approx(knob.read(TWO_NODES) * (2 if other == name else 1))


def test_values_have_the_unit_of_their_setting() -> None:
    assert KNOBS["nic.bandwidth"].read(apply_setting(TWO_NODES, "nic.bandwidth=48.5GB/s")) == 48.5
    assert KNOBS["link.latency"].read(apply_setting(NODE, "link.latency=5us")) == pytest.approx(5)
    assert KNOBS["nic.count"].read(apply_setting(TWO_NODES, "nic.count=8")) == 8
    network = apply_setting(TWO_NODES, "nic.latency=9").network
    assert network is not None
    assert (network.latency_us, network.origin) == (9, "assumed")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("nic.bandwith=2x", "there is no setting"),
        ("nic.bandwidth", "is not a setting"),
        ("nic.bandwidth=fast", "is not a setting"),
        ("nic.bandwidth=-1x", "is not a setting"),
        ("nic.bandwidth=5us", "is in GB/s, not us"),
    ],
)
def test_other_settings_are_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        apply_setting(TWO_NODES, text)
    assert caught.value.fix


def test_one_node_has_no_nics() -> None:
    with pytest.raises(UsageError, match="has one node"):
        apply_setting(NODE, "nic.bandwidth=2x")


def test_links_with_tables_change_as_fits_do() -> None:
    """Half the bandwidth doubles what exceeds a table's floor; another latency moves the floor and nothing else."""
    plain = load_cluster("h100x8")
    cases: list[tuple[CollectiveOp, int]] = [("all_to_all", 8), ("all_gather", 4), ("send_recv", 2), ("all_to_all", 6)]
    for op, ranks in cases:
        slow, late = (apply_setting(plain, text) for text in ("link.bandwidth=0.5x", "link.latency=3x"))
        latency = node_latency_ns(plain, op, ranks)
        assert node_latency_ns(slow, op, ranks) == pytest.approx(latency)
        assert node_latency_ns(late, op, ranks) == pytest.approx(3 * latency)
        for size in (1e5, 1e7, 1e9):
            rate = node_rate(plain, op, ranks, size)
            assert node_rate(slow, op, ranks, size) == pytest.approx(rate / 2)
            if size > 1e6:
                assert node_rate(late, op, ranks, size) == pytest.approx(rate, rel=0.15)
    assert link_sources(slow)[0].startswith("exchanges in a node: scaled (0.5 of the bandwidth")


def test_no_bandwidth_is_a_dead_link() -> None:
    problem = problem_of(apply_setting(TWO_NODES, "nic.bandwidth=0x"), model_of(2), sharding="ddp")
    with pytest.raises(DeadLinkError, match="no bandwidth"):
        simulate(program_of([(8_000, "h2", (0, 8))], problem), problem, "event", ALONE)


@settings(max_examples=30)
@given(threshold=st.floats(2.0, 300.0))
def test_a_flip_is_found_where_it_is(threshold: float) -> None:
    def verdict(cluster: Cluster) -> str:
        assert cluster.network is not None
        return "split" if cluster.network.nic_gb_per_s > threshold else "whole"

    flip = flip_point(TWO_NODES, "nic.bandwidth", verdict)
    if flip.value is None:
        assert not 23.5 / 15 < threshold < 23.5 * 15
    else:
        assert flip.value == pytest.approx(threshold, rel=0.03)
        assert (flip.below, flip.above) == ("whole", "split")
    assert msgspec.to_builtins(flip)["unit"] == "GB/s"


def test_a_flip_between_two_plans() -> None:
    """Over two nodes, or in one: slow NICs favour staying inside, and the simulator says from where on."""

    def verdict(cluster: Cluster) -> str:
        problem = problem_of(cluster, model_of(2))
        placed = {"across": [(60_000, "h4", (0, 1, 8, 9))], "inside": [(60_000, "h2", (0, 1))]}
        times = {
            name: simulate(program_of(plan, problem), problem, "event", ALONE).report.step_time_ns
            for name, plan in placed.items()
        }
        return min(times, key=lambda name: times[name])

    flip = flip_point(TWO_NODES, "nic.bandwidth", verdict, widest=64)
    assert flip.value is not None
    assert (flip.below, flip.above) == ("inside", "across")
    assert verdict(apply_setting(TWO_NODES, f"nic.bandwidth={flip.value * 0.9}")) == "inside"
    assert verdict(apply_setting(TWO_NODES, f"nic.bandwidth={flip.value * 1.1}")) == "across"
