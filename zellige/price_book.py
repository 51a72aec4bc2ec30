"""Analytic price tables for many batches of one setting: every bucket is priced once, whatever batches it stands in."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from zellige.analytic import analytic_table
from zellige.cluster import Cluster
from zellige.memory import Checkpoint
from zellige.model import ModelSpec
from zellige.prices import PriceHeader, PriceRow, PriceTable
from zellige.workload import Bucket


class PriceBook:
    """Tables of one model on one cluster; equal to those of :func:`zellige.analytic.analytic_table`.

    ``extrapolated``: the cluster is not one that exists, and its prices say so.
    """

    def __init__(
        self, model: ModelSpec, cluster: Cluster, checkpoint: Checkpoint, *, extrapolated: bool = False
    ) -> None:
        self._model = model
        self._cluster = cluster
        self._checkpoint: Checkpoint = checkpoint
        self._extrapolated = extrapolated
        self._header: PriceHeader | None = None
        self._rows: dict[Bucket, tuple[PriceRow, ...]] = {}

    def table(self, buckets: Sequence[Bucket]) -> PriceTable:
        """The table of some buckets, in their order."""
        missing = [bucket for bucket in buckets if bucket not in self._rows]
        if missing or self._header is None:
            self._price(missing)
        assert self._header is not None
        return PriceTable(header=self._header, rows=tuple(row for bucket in buckets for row in self._rows[bucket]))

    def _price(self, buckets: Sequence[Bucket]) -> None:
        table = analytic_table(self._model, self._cluster, buckets, self._checkpoint)
        self._header = table.header
        rows: dict[str, list[PriceRow]] = {bucket.name: [] for bucket in buckets}
        for row in table.rows:
            rows[row.bucket].append(_extrapolated(row) if self._extrapolated else row)
        self._rows.update((bucket, tuple(rows[bucket.name])) for bucket in buckets)


def _extrapolated(row: PriceRow) -> PriceRow:
    return msgspec.structs.replace(row, price=msgspec.structs.replace(row.price, source="extrapolated"))
