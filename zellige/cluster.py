"""Devices, links and clusters, as catalog files hold them, and which node a rank sits on."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec

from zellige.files import Fraction, NonNegativeInt, PositiveFloat, PositiveInt
from zellige.units import MIB

CollectiveOp = Literal["all_to_all", "all_gather", "send_recv"]
StateOp = Literal["reduce_scatter", "all_reduce"]
"""What parameters and gradients take besides all-gather; tables may hold these too."""

LinkOp = Literal["all_to_all", "all_gather", "reduce_scatter", "send_recv"]
LINK_OPS: tuple[LinkOp, ...] = ("all_to_all", "all_gather", "reduce_scatter", "send_recv")
"""What a link is measured by."""


class Memory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Device memory as the driver reports it, and what is not usable by tensors."""

    capacity_mib: PositiveInt
    reserved_mib: NonNegativeInt
    bandwidth_gb_per_s: PositiveFloat
    source: str


class Compute(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Dense matrix throughput: datasheet peak and the fraction that training GEMMs reach."""

    bf16_tflops: PositiveFloat
    gemm_fraction: Fraction
    source: str


class AttentionPoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Attention throughput at one length, forward and backward."""

    length: PositiveInt
    forward_tflops: PositiveFloat
    backward_tflops: PositiveFloat


class AttentionSpeed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Throughput of the attention kernel by length, non-causal."""

    kernel: str
    head_dim: PositiveInt = 128
    points: Annotated[tuple[AttentionPoint, ...], msgspec.Meta(min_length=1, max_length=64)]
    source: str

    def __post_init__(self) -> None:
        lengths = [point.length for point in self.points]
        if lengths != sorted(set(lengths)):
            raise ValueError("attention points must have increasing lengths")


class Device(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One accelerator."""

    SCHEMA: ClassVar[str] = "zellige.device/1"

    schema: str = "zellige.device/1"
    name: str
    title: str
    memory: Memory
    compute: Compute
    attention: AttentionSpeed
    other_attention: tuple[AttentionSpeed, ...] = ()

    def attention_for(self, head_dim: int) -> AttentionSpeed:
        """The table of the nearest head_dim (ties: the larger)."""
        tables = (self.attention, *self.other_attention)
        return min(tables, key=lambda table: (abs(table.head_dim - head_dim), -table.head_dim))

    @property
    def usable_bytes(self) -> int:
        """Memory that tensors can use."""
        return (self.memory.capacity_mib - self.memory.reserved_mib) * MIB


class LinkPoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fitted alpha-beta model of one collective on ``num_ranks`` ranks of a node: time = alpha + bytes/bandwidth."""

    op: LinkOp
    num_ranks: PositiveInt
    latency_us: PositiveFloat
    bus_gb_per_s: PositiveFloat


class TimedSize(msgspec.Struct, frozen=True, array_like=True):
    """A measured time: bytes of the full buffer (the ``size`` of nccl-tests), and microseconds."""

    size_bytes: PositiveInt
    time_us: PositiveFloat


class CollectiveTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Measured times of one collective on ``num_ranks`` ranks of a node; ``floor_us`` is what no bytes take."""

    op: CollectiveOp | StateOp
    num_ranks: Annotated[int, msgspec.Meta(ge=2, le=65_536)]
    floor_us: PositiveFloat
    points: Annotated[tuple[TimedSize, ...], msgspec.Meta(min_length=2, max_length=256)]

    def __post_init__(self) -> None:
        sizes = [point.size_bytes for point in self.points]
        times = [self.floor_us, *(point.time_us for point in self.points)]
        if sizes != sorted(set(sizes)):
            raise ValueError("the points of a table must have increasing sizes")
        if times != sorted(times) or times[0] == times[-1]:
            raise ValueError("the times of a table must not fall with size, and rise above floor_us")


class MeasuredTables(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tables of collectives measured inside one node.

    Of a table that is ``scaled`` to other links, what exceeds the floor is divided by ``bandwidth_scale``.
    """

    SCHEMA: ClassVar[str] = "zellige.collectives/1"

    schema: str = "zellige.collectives/1"
    name: str
    title: str
    source: str
    bandwidth_scale: PositiveFloat = 1.0
    tables: Annotated[tuple[CollectiveTable, ...], msgspec.Meta(min_length=1, max_length=256)]

    def __post_init__(self) -> None:
        if len({(table.op, table.num_ranks) for table in self.tables}) < len(self.tables):
            raise ValueError("a table for one operation and number of ranks stands twice")

    def find(self, op: CollectiveOp | StateOp, num_ranks: int) -> CollectiveTable | None:
        """The table of exactly this operation and number of ranks."""
        for table in self.tables:
            if table.num_ranks == num_ranks and table.op == op:
                return table
        return None


class NodeLink(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What connects the ranks of a node: measured tables where there are any, and fits for all else."""

    kind: str
    measured: MeasuredTables | None = None
    fits: Annotated[tuple[LinkPoint, ...], msgspec.Meta(min_length=1, max_length=64)]
    origin: Literal["measured", "fitted", "assumed"]
    source: str

    def __post_init__(self) -> None:
        present = {point.op for point in self.fits}
        missing = {"all_to_all", "all_gather", "send_recv"} - present
        if missing:
            raise ValueError(f"no fit for {', '.join(sorted(missing))}")
        if len({(point.op, point.num_ranks) for point in self.fits}) < len(self.fits):
            raise ValueError("a fit for one operation and number of ranks stands twice")


class Network(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What connects the nodes: NICs of a node are shared by its ranks, each having its fair share."""

    kind: str
    nics_per_node: PositiveInt
    nic_gb_per_s: PositiveFloat
    latency_us: PositiveFloat
    origin: Literal["measured", "fitted", "assumed"]
    source: str


class Host(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Host time of an attention call that is not coalesced, forward; again in recompute, twice in backward."""

    collective_us: PositiveFloat
    ring_step_us: PositiveFloat
    source: str


class Cluster(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Equal nodes of equal devices. Ranks are numbered node by node."""

    SCHEMA: ClassVar[str] = "zellige.cluster/1"

    schema: str = "zellige.cluster/1"
    name: str
    title: str
    device: Device
    num_nodes: PositiveInt
    ranks_per_node: PositiveInt
    node_link: NodeLink
    network: Network | None = None
    host: Host
    source: str

    def __post_init__(self) -> None:
        if self.num_nodes > 1 and self.network is None:
            raise ValueError("a cluster of several nodes needs a [network]")
        if self.num_ranks > 65_536:
            raise ValueError(f"{self.num_ranks} ranks are more than the 65,536 that Zellige handles")

    @property
    def num_ranks(self) -> int:
        """Ranks in the cluster."""
        return self.num_nodes * self.ranks_per_node

    def node_of(self, rank: int) -> int:
        """The node that a rank sits on."""
        return rank // self.ranks_per_node

    def footprint(self, ranks: tuple[int, ...]) -> int:
        """The number of nodes that a rank set spans."""
        return len({rank // self.ranks_per_node for rank in ranks})

    def smallest_footprint(self, degree: int) -> int:
        """The fewest nodes that hold ``degree`` ranks."""
        return -(-degree // self.ranks_per_node)

    def smallest_even_footprint(self, degree: int) -> int:
        """The fewest nodes that hold ``degree`` ranks in equal parts; 0 where none do. Powers of two and divisors of
        ``num_nodes`` alone: runs of others would not fill the cluster."""
        for nodes in range(1, self.num_nodes + 1):
            if nodes & (nodes - 1) and self.num_nodes % nodes:
                continue
            if degree % nodes == 0 and degree // nodes <= self.ranks_per_node:
                return nodes
        return 0
