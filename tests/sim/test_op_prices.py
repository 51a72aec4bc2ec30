"""Durations of operations: one sequence alone costs its price, work adds up, and what does not fit is refused."""

from __future__ import annotations

import msgspec
import pytest
from builders import ALONE, NODE, TWO_NODES, WAN, model_of, priced, problem_of, program_of
from hypothesis import given, settings
from hypothesis import strategies as st

from zellige.analytic import analytic_price
from zellige.catalog import load_cluster, load_model
from zellige.cluster import Cluster
from zellige.errors import DeadLinkError, OtherClusterError
from zellige.memory import Checkpoint
from zellige.placement import Engine, Problem
from zellige.prices import Price
from zellige.program_parts import PASSES
from zellige.shards import parse_config
from zellige.sim import SimOptions, simulate

CHECKPOINTS: tuple[Checkpoint, ...] = ("full", "selective", "none")
ENGINES: tuple[Engine, ...] = ("per_sequence", "group", "coalesced")
LENGTH = 75_600


def ranks_on(cluster: Cluster, degree: int) -> tuple[int, ...]:
    """The first ranks of every node, as many in each."""
    in_node = degree // cluster.num_nodes
    return tuple(node * cluster.ranks_per_node + place for node in range(cluster.num_nodes) for place in range(in_node))


def own_price(problem: Problem, price: Price, config: str) -> int:
    """A sequence's price under the problem's engine, when it is the only one."""
    split, cluster = parse_config(config), problem.cluster
    if not split.is_split or problem.engine == "per_sequence":
        return price.time_ns
    if problem.engine == "coalesced":
        return price.packed_ns + problem.shared_calls_ns(cluster.num_ranks, cluster.num_nodes, split.k)
    if split.degree == split.h:
        return price.packed_ns + problem.shared_calls_ns(split.degree, problem.cluster.num_nodes, 1)
    return price.time_ns


IN_A_NODE = ("whole", "h2", "h6", "q8", "q2h4", "k2", "k8", "h4k2", "h2k4", "q2h2k2", "q2k4")
OVER_TWO = ("h4", "h12", "q8", "q4h4", "k2", "k6", "k16", "h4k4", "h6k2", "q2h2k4", "q4k4")


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("cluster", "config"),
    [
        *((NODE, config) for config in IN_A_NODE),
        *((TWO_NODES, config) for config in OVER_TWO),
        *((load_cluster("a100x8"), config) for config in ("h4", "q4", "k4", "q2h2k2", "h4k2")),
    ],
)
def test_one_sequence_alone_costs_its_price(
    cluster: Cluster, engine: Engine, config: str, checkpoint: Checkpoint
) -> None:
    """To the rounding of operations: each is rounded up to a nanosecond, the price once."""
    problem = problem_of(cluster, engine=engine, checkpoint=checkpoint)
    split = parse_config(config)
    nodes = cluster.num_nodes if split.is_split else 1
    ranks = ranks_on(cluster, split.degree) if split.is_split else (0,)
    program = program_of([(LENGTH, config, ranks)], problem)
    price = analytic_price(WAN, cluster, LENGTH, split, nodes, checkpoint)
    operations = sum(len(program.ranks[0].ops(phase)) + 1 for phase in PASSES) * program.num_layers
    for fidelity in ("additive", "event", "flow"):
        simulated = simulate(program, problem, fidelity, ALONE).report.step_time_ns
        assert 0 <= simulated - own_price(problem, price, config) + 5 <= operations + 5


@settings(max_examples=40)
@given(
    length=st.integers(200, 200_000),
    config=st.sampled_from(["whole", "h2", "h4", "q3", "q2h3", "q8", "k2", "h2k4", "q2k3"]),
)
def test_odd_lengths_cost_their_price_but_for_a_token(length: int, config: str) -> None:
    problem = problem_of(model=model_of(2), engine="per_sequence")
    split = parse_config(config)
    program = program_of([(length, config, ranks_on(NODE, split.degree))], problem)
    price = analytic_price(problem.model, NODE, length, split, 1, "full").time_ns
    simulated = simulate(program, problem, "event", ALONE).report.step_time_ns
    assert simulated == pytest.approx(price, rel=max(1e-6, 3 * split.degree / length))


@pytest.mark.parametrize("name", ["wan2.1-t2v-1.3b", "flux.1-dev", "hunyuanvideo"])
def test_shares_of_a_sequence_add_up_to_the_whole(name: str) -> None:
    """Splitting repeats the text side only: linear work and attention of four ranks are those of one."""
    model = load_model(name)
    problem = problem_of(model=model, engine="coalesced", checkpoint="none")
    length = 96_000
    whole = priced(program_of([(length, "whole", (0,))], problem), problem)
    split = priced(program_of([(length, "q4", (0, 1, 2, 3))], problem), problem)
    alone = sum(whole.compute["forward"][0])
    together = sum(sum(split.compute["forward"][rank]) for rank in range(4))
    compute = NODE.device.compute
    text = 3 * model.text_flops() / (compute.bf16_tflops * compute.gemm_fraction * 1e3)
    # The kernel's rate depends on the tile's length; all lengths here are beyond the table's last.
    assert together == pytest.approx(alone + text, rel=1e-6)


def test_memory_is_that_of_the_plan() -> None:
    for engine in ENGINES:
        problem = problem_of(engine=engine)
        prices = priced(program_of([(LENGTH, "h4", (0, 1, 2, 3)), (9_000, "whole", (0,))], problem), problem)
        first = analytic_price(WAN, NODE, LENGTH, parse_config("h4"), 1, "full")
        second = analytic_price(WAN, NODE, 9_000, parse_config("whole"), 1, "full")
        live = (first.live_bytes, second.live_bytes)
        assert prices.kept_bytes[0] * 30 == first.kept_bytes + second.kept_bytes
        assert prices.live_bytes[0] == (sum(live) if engine == "coalesced" else max(live))
        assert prices.kept_bytes[7] == prices.live_bytes[7] == 0


def test_a_program_for_something_else_is_refused() -> None:
    program = program_of([(LENGTH, "h4", (0, 1, 2, 3))], problem_of())
    for problem in (problem_of(TWO_NODES), problem_of(model=model_of(3))):
        with pytest.raises(OtherClusterError, match="the program has") as caught:
            simulate(program, problem)
        assert caught.value.code == "ZL313"
        assert caught.value.fix


def test_a_link_without_bandwidth_is_an_error_where_bytes_cross_it() -> None:
    assert TWO_NODES.network is not None
    dead = msgspec.structs.replace(TWO_NODES, network=msgspec.structs.replace(TWO_NODES.network, nic_gb_per_s=0.0))
    problem = problem_of(dead, sharding="ddp")
    inside = program_of([(LENGTH, "h4", (0, 1, 2, 3))], problem)
    assert simulate(inside, problem, "event", ALONE).report.step_time_ns > 0
    across = program_of([(LENGTH, "h4", (0, 1, 8, 9))], problem)
    for program, options in ((across, ALONE), (inside, SimOptions())):
        with pytest.raises(DeadLinkError, match="no bandwidth") as caught:
            simulate(program, problem, "event", options)
        assert caught.value.code == "ZL312"
