"""Shared links: max-min fairness against its definition, the topology, and two transfers on one port by hand."""

from __future__ import annotations

import pytest
from builders import ALONE, NODE, TWO_NODES, problem_of, program_of
from hypothesis import given
from hypothesis import strategies as st

from zellige.catalog import load_cluster
from zellige.exchange_prices import Meeting
from zellige.sim import SimOptions, simulate
from zellige.sim.network import UNITS, Network, Ports, Usage, bridge_capacity, fill
from zellige.sim.scripts import Channel

JOBS = st.lists(
    st.dictionaries(st.integers(0, 5), st.integers(1, 1_000), max_size=4).map(lambda used: tuple(sorted(used.items()))),
    max_size=8,
)


@given(jobs=JOBS, capacities=st.lists(st.integers(1, 2_000), min_size=6, max_size=6))
def test_rates_are_max_min_fair(jobs: list[Usage], capacities: list[int]) -> None:
    """No port is over its capacity; whoever is held back uses a full port on which nobody has a higher rate."""
    rates = fill(capacities, jobs)
    load = [0.0] * 6
    for usage, rate in zip(jobs, rates, strict=True):
        assert 0 < rate <= 1
        for port, units in usage:
            load[port] += units * rate
    assert all(carried <= capacity * (1 + 1e-9) for carried, capacity in zip(load, capacities, strict=True))
    for usage, rate in zip(jobs, rates, strict=True):
        if rate < 1:
            assert any(
                load[port] >= capacities[port] * (1 - 1e-9)
                and all(rates[other] <= rate * (1 + 1e-9) for other, used in enumerate(jobs) if port in dict(used))
                for port, _ in usage
            )


def test_rates_by_hand() -> None:
    """Jobs a and b share port 0, b and c port 1: b is held to a quarter, which leaves the rest to a and to c."""
    assert fill([100, 50], [((0, 100),), ((0, 50), (1, 100)), ((1, 100),)]) == [0.75 + 0.125, 0.25, 0.25]
    assert fill([], []) == []
    assert fill([10], [((0, 5),)]) == [1.0]


def test_ports_of_a_path() -> None:
    ports = Ports(TWO_NODES)
    inside, across = ([ports.names[port] for port in ports.path(0, other)] for other in (1, 9))
    assert inside == ["rank 0 out - bridge 0 in", "bridge 0 out - rank 1 in"]
    assert across == [
        "rank 0 out - nics 0 out", "nics 0 out - fabric", "fabric - nics 1 in", "nics 1 in - rank 9 in",
    ]  # fmt: skip
    assert ports.capacities[ports.path(0, 9)[1]] == 4 * 23.5 * UNITS + 1


def test_a_host_bridge_blocks_and_a_switch_does_not() -> None:
    assert bridge_capacity(NODE) == float("inf")
    pcie = load_cluster("l40sx8")
    assert bridge_capacity(pcie) == max(p.num_ranks * p.bus_gb_per_s for p in pcie.node_link.fits)
    assert len(Ports(pcie).path(0, 1)) == 3


def pair(size: int, duration: int) -> Channel:
    """Rank 0 sends to rank 1."""
    return Channel("pair", 0, [Meeting((0, 1), (0, 1), duration)], [(0, 1, size)])


def test_two_transfers_on_one_port() -> None:
    """Each needs the whole port for 1,000 ns; the second starts at 400: 600 are left of the first, at half rate."""
    capacity = Ports(NODE).capacities[0]
    size = capacity * 1_000 // UNITS
    network = Network(NODE, [pair(size, 1_000)])
    assert network.start(1, 0, 0, 1_000, 0) == [(1, 1_000)]
    half = dict(network.start(2, 0, 0, 1_000, 400))
    assert half[1] == pytest.approx(1_600, abs=1)
    assert half[2] == pytest.approx(2_400, abs=1)
    ((subject, end),) = network.stop(1, 1_600)
    assert (subject, end) == (2, pytest.approx(2_000, abs=2))
    assert network.stop(2, end) == []


def test_gathers_and_exchanges_share_links() -> None:
    """A gather beside an exchange in flight: with shared links the step is longer, without overlap it is not."""
    placed = [(75_600, "h4", (0, 1, 2, 3)), (75_600, "h4", (4, 5, 6, 7))]
    problem = problem_of(engine="group")
    program = program_of(placed, problem)
    event, flow = (
        simulate(program, problem, fidelity, SimOptions(prefetch=2)).report.step_time_ns
        for fidelity in ("event", "flow")
    )
    assert flow >= event
    alone = [simulate(program, problem, fidelity, ALONE).report.step_time_ns for fidelity in ("event", "flow")]
    assert alone[0] == alone[1]
