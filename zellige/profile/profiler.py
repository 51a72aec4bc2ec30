"""A whole profile: probes in order until the budget is used, a journal as they come, links, and then the table."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from zellige.calibration import HostInfo
from zellige.cluster import LinkPoint
from zellige.errors import UsageError
from zellige.prices import PriceTable
from zellige.profile.grid import Probe, probes, required
from zellige.profile.journal import Journal, JournalHeader, journal_path
from zellige.profile.table import Measured, Setting, price_table
from zellige.profile.timing import THROTTLED, ProbeResult, drift

if TYPE_CHECKING:
    from zellige.profile.compute import DeviceName, DTypeName, Measure


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """How long probes may be measured for; what cannot be left out is measured in any case."""

    seconds: float
    clock: Callable[[], float] = time.monotonic


class Progress(msgspec.Struct, frozen=True):
    """What a profile did: probes measured now, taken from the journal, and left to the fit."""

    measured: int
    resumed: int
    left: int
    drift: float

    @property
    def throttled(self) -> bool:
        """Whether the machine got slower meanwhile."""
        return self.drift > THROTTLED


def measure_probes(
    wanted: Sequence[Probe],
    needed: Sequence[Probe],
    journal: Journal,
    measure: Measure,
    budget: Budget,
    advance: Callable[[], None] = lambda: None,
) -> tuple[tuple[ProbeResult, ...], Progress]:
    """Measure what the journal lacks, in order; after the budget only what is ``needed``.

    Results are in the order of the probes, resumed or not, so that a resumed profile gives the same table.
    """
    began, measured, resumed = budget.clock(), 0, 0
    keys = {probe.key for probe in needed}
    results = []
    for probe in wanted:
        known = journal.results.get(probe.key)
        if known is None and (budget.clock() - began < budget.seconds or probe.key in keys):
            known = measure(probe)
            journal.add(known)
            measured += 1
        elif known is not None:
            resumed += 1
        if known is not None:
            results.append(known)
        advance()
    left = len(wanted) - len(results)
    return tuple(results), Progress(measured, resumed, left, drift([result.pace_ns for result in results]))


def profile(
    setting: Setting,
    out: Path,
    *,
    host: HostInfo,
    device: DeviceName,
    dtype: DTypeName,
    measure: Measure,
    links: Callable[[], tuple[LinkPoint, ...]],
    link_ranks: int,
    budget: Budget,
    end_to_end: bool = False,
    advance: Callable[[], None] = lambda: None,
) -> tuple[PriceTable, Progress]:
    """Measure a table; the journal beside ``out`` makes it resumable. The table itself is written by the caller."""
    if not setting.buckets:
        raise UsageError("there is no bucket to measure", fix="give a batch with clips")
    header = JournalHeader(
        host=host,
        model=setting.model.name,
        cluster=setting.cluster.name,
        device=device,
        dtype=dtype,
        checkpoint=setting.checkpoint,
    )
    journal = Journal(journal_path(out), header)
    try:
        wanted, needed = (find(*setting[:3]) for find in (probes, required))
        results, progress = measure_probes(wanted, needed, journal, measure, budget, advance)
    finally:
        journal.close()
    measured = Measured(host=host, device=device, dtype=dtype, results=results, links=links(), link_ranks=link_ranks)
    return price_table(setting, measured, end_to_end=end_to_end), progress
