"""Small programs, problems and prices for the tests of the simulator."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from zellige.catalog import load_cluster, load_model
from zellige.cluster import Cluster
from zellige.exchange_prices import ExchangePrice
from zellige.memory import Checkpoint, MemoryModel, Sharding
from zellige.model import ModelSpec
from zellige.op_prices import OpPricer, OpPrices
from zellige.placement import Engine, Problem
from zellige.prices import PriceHeader, PriceTable
from zellige.program import Assignment, Heads, Program, build_program
from zellige.program_parts import PASSES, Op, Pass
from zellige.shards import parse_config
from zellige.sim import SimOptions
from zellige.workload import Batch, Sequence, make_bucket

WAN = load_model("wan2.1-t2v-1.3b")
NODE = load_cluster("a800x8")
FOUR = load_cluster("a800x4")
TWO_NODES = load_cluster("a800x16")

ALONE = SimOptions(state_traffic=False)
"""Two streams, nothing of the model's state."""

ONE_STREAM = SimOptions(state_traffic=False, one_stream=True)

Placed = tuple[int, str, tuple[int, ...]]
"""Length, configuration, ranks."""


def model_of(num_layers: int) -> ModelSpec:
    return msgspec.structs.replace(WAN, geometry=msgspec.structs.replace(WAN.geometry, num_layers=num_layers))


def cluster_of(num_ranks: int, num_nodes: int = 1) -> Cluster:
    base = TWO_NODES if num_nodes > 1 else NODE
    return msgspec.structs.replace(
        base, name=f"test{num_ranks}", num_nodes=num_nodes, ranks_per_node=num_ranks // num_nodes
    )


def problem_of(
    cluster: Cluster = NODE,
    model: ModelSpec = WAN,
    *,
    engine: Engine = "coalesced",
    checkpoint: Checkpoint = "full",
    sharding: Sharding = "zero3",
) -> Problem:
    """A problem whose batch and prices do not matter: the simulator takes the cluster, model and memory from it."""
    bucket = make_bucket(WAN, 256, 256, 1)
    batch = Batch(name="test", sequences=(Sequence("s0", bucket),), buckets=(bucket,))
    header = PriceHeader(
        kind="components", model=model.name, cluster=cluster.name, device=cluster.device.name, dtype="bf16",
        checkpoint=checkpoint, assumptions=(),
    )  # fmt: skip
    memory = MemoryModel(usable_bytes=80 * 10**9, base_bytes=10**9, sharding=sharding, checkpoint=checkpoint)
    return Problem(batch, cluster, model, PriceTable(header=header, rows=()), memory, engine)


def program_of(
    placed: Iterable[Placed],
    problem: Problem,
) -> Program:
    geometry = problem.model.geometry
    return build_program(
        [
            Assignment(f"s{index}", length, parse_config(config), ranks)
            for index, (length, config, ranks) in enumerate(placed)
        ],
        Heads(geometry.num_heads, geometry.num_kv_heads, geometry.head_dim),
        num_ranks=problem.cluster.num_ranks,
        engine=problem.engine,
        num_layers=geometry.num_layers,
        checkpoint=problem.memory.checkpoint,
    )


def priced(program: Program, problem: Problem) -> OpPrices:
    return OpPricer(problem.model, problem.cluster).price(program)


def with_times(
    prices: OpPrices,
    work: Callable[[Pass, int, Op], int],
    *,
    transfer_ns: int = 0,
    call_ns: int = 0,
) -> OpPrices:
    """The same program with other durations: ``work`` of every operation that computes; every meeting alike."""
    program = prices.program
    compute = {
        phase: tuple(
            tuple(
                0 if op.kind in ("issue", "wait", "keep") else work(phase, rank, op)
                for op in program.ranks[rank].ops(phase)
            )
            for rank in range(program.num_ranks)
        )
        for phase in PASSES
    }
    exchanges = tuple(
        ExchangePrice(
            call_ns,
            tuple(
                msgspec.structs.replace(meeting, transfer_ns=transfer_ns if len(meeting.peers) > 1 else 0)
                for meeting in exchange.meetings
            ),
            exchange.transfers,
        )
        for exchange in prices.exchanges
    )
    return msgspec.structs.replace(prices, compute=compute, exchanges=exchanges)
