"""Price components of a bucket under a split on a cluster, and tables of them.

Components are free of engines: what a sequence's linear work, attention and exchanges take on each participating rank
over a whole step, and what its calls cost where nothing is packed (``launch_ns``). An engine turns them into prices
(:mod:`zellige.placement`).
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

import msgspec

from zellige.calibration import Calibration
from zellige.cluster import Cluster
from zellige.errors import FormatError, ModelMismatchError
from zellige.files import NonNegativeInt, PositiveInt, decode_json, read_text
from zellige.files import digest as digest_of
from zellige.memory import Checkpoint
from zellige.model import ModelSpec
from zellige.shards import AttentionShape, ParallelConfig, legal_heads
from zellige.units import count_of
from zellige.workload import Bucket

PriceSource = Literal["measured", "fitted", "analytic", "extrapolated"]
"""``extrapolated``: by the formulas, for a cluster of which something was changed."""


class Price(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Components of one (bucket, configuration, footprint), per participating rank and step.

    ``linear_ns`` and ``attention_ns`` are forward and backward; ``recompute_ns`` is their forward once more where the
    checkpointing mode recomputes it. ``exchange_ns`` is the exposed transfer of all passes where each tensor goes
    alone, ``packed_exchange_ns`` where one exchange carries all of a phase (None: the same). ``launch_ns`` is latency
    and host time of all calls of the sequence when nothing is packed. ``kept_bytes`` add up over a rank's sequences,
    ``live_bytes`` is what the layer being run needs. ``comm_bytes`` is what all ranks together receive.
    """

    linear_ns: NonNegativeInt
    attention_ns: NonNegativeInt
    exchange_ns: NonNegativeInt
    launch_ns: NonNegativeInt
    recompute_ns: NonNegativeInt
    kept_bytes: NonNegativeInt
    live_bytes: NonNegativeInt
    comm_bytes: NonNegativeInt
    source: PriceSource
    packed_exchange_ns: NonNegativeInt | None = None

    def __post_init__(self) -> None:
        if min(self.transfer_ns, self.packed_ns) < 1:
            raise ValueError("a price takes no time")

    @property
    def compute_ns(self) -> int:
        """Time on each rank without any communication."""
        return self.linear_ns + self.attention_ns + self.recompute_ns

    @property
    def transfer_ns(self) -> int:
        """Compute and transfers on each rank where each tensor goes alone, without the calls."""
        return self.compute_ns + self.exchange_ns

    @property
    def packed_ns(self) -> int:
        """Compute and transfers on each rank where packed exchanges carry the tensors, without the calls."""
        packed = self.exchange_ns if self.packed_exchange_ns is None else self.packed_exchange_ns
        return self.compute_ns + packed

    @property
    def time_ns(self) -> int:
        """Time on each rank where the sequence's calls are its own."""
        return self.transfer_ns + self.launch_ns

    @property
    def memory_bytes(self) -> int:
        """What a rank needs to hold and run this sequence alone."""
        return self.kept_bytes + self.live_bytes


class PriceRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A price and what it is for; ``num_nodes`` is the footprint."""

    bucket: str
    num_tokens: PositiveInt
    config: ParallelConfig
    num_nodes: PositiveInt
    price: Price


class PriceHeader(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a table is valid for, and what it assumes; a measured one also has what was measured, and where."""

    kind: Literal["components", "end_to_end"]
    model: str
    cluster: str
    device: str
    dtype: Literal["bf16", "fp32", "fp64"]
    checkpoint: Checkpoint
    assumptions: tuple[str, ...]
    calibration: Calibration | None = None


EDITED = "edited"
"""A table whose content is not what its digest was made of: changed since a program wrote it."""

UNVERIFIED = "unverified"
"""A table from a file without a digest."""


class PriceTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prices of buckets under configurations on footprints.

    ``digest`` is that of header and rows in a file, and what came of it once the file is read: nothing where it was
    right, else :data:`EDITED` or :data:`UNVERIFIED`. Tables that were computed or measured just now have none.
    """

    SCHEMA: ClassVar[str] = "zellige.prices/1"

    schema: str = "zellige.prices/1"
    header: PriceHeader
    rows: tuple[PriceRow, ...]
    digest: str | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        keys = {(row.bucket, row.config, row.num_nodes) for row in self.rows}
        if len(keys) != len(self.rows):
            raise ValueError("a bucket, configuration and footprint stands twice")

    def by_bucket(self) -> dict[str, dict[tuple[ParallelConfig, int], Price]]:
        """Prices by bucket name, then by (configuration, footprint)."""
        table: dict[str, dict[tuple[ParallelConfig, int], Price]] = {}
        for row in self.rows:
            table.setdefault(row.bucket, {})[row.config, row.num_nodes] = row.price
        return table

    @property
    def sources(self) -> tuple[str, ...]:
        """The kinds of origin in the table, sorted, and whether they can be believed; an edited table has no other."""
        if self.digest == EDITED:
            return (EDITED,)
        found: tuple[str, ...] = tuple(sorted({row.price.source for row in self.rows}))
        return (*found, UNVERIFIED) if self.digest == UNVERIFIED else found


def stamped(table: PriceTable) -> PriceTable:
    """A table as it is written into a file: with the digest of its content."""
    return msgspec.structs.replace(table, digest=table_digest(table))


def table_digest(table: PriceTable) -> str:
    """The hash of header and rows."""
    return digest_of(msgspec.structs.replace(table, digest=msgspec.UNSET))


def read_table(path: str) -> PriceTable:
    """A table from a file; it says so where its content is not what was written (:attr:`PriceTable.sources`).

    Raises :class:`FormatError` for prices that no machine has.
    """
    return verified(decode_json(read_text(Path(path)), PriceTable, path), path)


def verified(table: PriceTable, where: str) -> PriceTable:
    """A table as decoded from a file, with what comes of its digest; raises as :func:`read_table`."""
    _refuse_absurd(table, where)
    if isinstance(table.digest, msgspec.UnsetType):
        return msgspec.structs.replace(table, digest=UNVERIFIED)
    right = table.digest == table_digest(table)
    return msgspec.structs.replace(table, digest=msgspec.UNSET if right else EDITED)


MOST_NS = 2**50
"""13 days for one sequence's part of a step. Sums over a batch of much longer ones leave the range of the solvers."""

MOST_BYTES = 2**50
"""A petabyte (1.1e15 bytes) on one rank."""


def _refuse_absurd(table: PriceTable, where: str) -> None:
    """Raise for a time or a size beyond all machines: a slip of units, which would end as bad advice about memory."""
    for row in table.rows:
        price = row.price
        longest, largest = max(price.time_ns, price.packed_ns), price.memory_bytes
        if longest > MOST_NS or largest > MOST_BYTES:
            what = f"takes {longest:,} ns" if longest > MOST_NS else f"needs {largest:,} bytes"
            raise FormatError(
                f"{row.bucket} as {row.config} {what} on each rank, which is no price",
                where=where,
                fix=f"times in nanoseconds up to {MOST_NS:,}, sizes in bytes up to {MOST_BYTES:,}",
            )


def attention_shape(model: ModelSpec, length: int) -> AttentionShape:
    """The self-attention of a sequence of ``length`` visual tokens; joint text tokens stand before them."""
    geometry = model.geometry
    return AttentionShape(model.sequence_length(length), geometry.num_heads, geometry.num_kv_heads, geometry.head_dim)


MAX_DEGREE = 128
"""The widest split that tables hold by default; beyond it shards of any real sequence are too short to pay."""


def legal_configs(model: ModelSpec, cluster: Cluster, max_degree: int = MAX_DEGREE) -> tuple[ParallelConfig, ...]:
    """The configurations that a table holds, sorted by degree.

    h as :func:`legal_heads` says; q and k any up to 16 ranks, and powers of two beyond (where odd factors only multiply
    the table). USP's configuration on all ranks is always among them.
    """
    limit = min(cluster.num_ranks, max_degree)
    geometry = model.geometry
    configs = {usp_config(model, cluster)}
    for h in legal_heads(geometry.num_heads, geometry.num_kv_heads, limit):
        for q in range(1, limit // h + 1):
            for k in range(1, limit // (h * q) + 1):
                small = q * h * k <= 16
                if small or (q & (q - 1) == 0 and k & (k - 1) == 0):
                    configs.add(ParallelConfig(q, h, k))
    return tuple(sorted(configs, key=lambda config: (config.degree, config)))


def usp_config(model: ModelSpec, cluster: Cluster) -> ParallelConfig:
    """USP on all ranks: h the largest legal head split that divides a node's ranks, the rest k (arXiv 2405.07719)."""
    geometry, ranks = model.geometry, cluster.ranks_per_node
    heads = legal_heads(geometry.num_heads, geometry.num_kv_heads, ranks)
    h = max(h for h in heads if ranks % h == 0)
    return ParallelConfig(1, h, cluster.num_ranks // h)


def footprints(cluster: Cluster, degree: int) -> tuple[int, ...]:
    """The numbers of nodes over which ``degree`` ranks are priced, as evenly as they go.

    Powers of two, from the fewest nodes to four times as many. Ranks that span another number of nodes have the price
    of the next wider one.
    """
    spans: list[int] = []
    nodes = 1
    while nodes <= min(cluster.num_nodes, degree) and (not spans or nodes <= 4 * spans[0]):
        if -(-degree // nodes) <= cluster.ranks_per_node:
            spans.append(nodes)
        nodes *= 2
    return tuple(spans) or (cluster.smallest_footprint(degree),)


def check_table(table: PriceTable, model: ModelSpec, cluster: Cluster, checkpoint: str, where: str) -> None:
    """Refuse a table that was made for something else, by name, or that prices what cannot be placed."""
    header = table.header
    for label, found, wanted in (
        ("model", header.model, model.name),
        ("cluster", header.cluster, cluster.name),
        ("device", header.device, cluster.device.name),
        ("checkpointing mode", header.checkpoint, checkpoint),
    ):
        if found != wanted:
            raise ModelMismatchError(
                f"this price table is for {label} {found!r}, not {wanted!r}",
                where=where,
                fix=f"a table for {wanted} (prices or profile BATCH), or leave --prices out for analytic prices",
            )
    legal = set(legal_configs(model, cluster))
    for row in table.rows:
        if row.config not in legal or row.num_nodes > min(cluster.num_nodes, row.config.degree):
            what = f"{row.bucket} as {row.config} on {count_of(row.num_nodes, 'node')}"
            raise FormatError(
                f"{what} is no placement of {model.name} on {cluster.name}", where=where, fix="take the row out"
            )
    if header.kind != "components":
        raise ModelMismatchError(
            "an end_to_end table cannot price policies under different engines",
            where=where,
            fix="use a components table",
        )


def missing_bucket(bucket: Bucket, where: str) -> FormatError:
    """The error for a bucket that a table does not price whole."""
    return FormatError(
        f"the price table has no price for bucket {bucket.name} whole",
        where=where,
        fix="a table of this batch (prices or profile BATCH), or leave --prices out for analytic prices",
    )
