"""A whole profile: units in order until the budget is used, a journal as they come, and then the table.

Units are probes, and the links as one. First the core probes, without which there is no table, and those that tell the
terms of laws apart, which leave time for the links; then these; then all other probes. A unit begins only where the
time is not up, and beyond the core only where it is expected to end in time: so a profile overruns by one unit at most.
A core that the time does not suffice for is an error, and the journal lets the next profile go on behind it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from zellige.calibration import HostInfo
from zellige.errors import TimeLimitError, UsageError
from zellige.prices import PriceTable
from zellige.profile.communication import links_s
from zellige.profile.estimate import work_estimate
from zellige.profile.fit import fit_law
from zellige.profile.grid import Probe, core, probes, required, unmeasurable
from zellige.profile.journal import Journal, JournalHeader, journal_path
from zellige.profile.table import Measured, Setting, price_table
from zellige.profile.timing import THROTTLED, LinkResult, Sample, drift

if TYPE_CHECKING:
    from zellige.profile.compute import DeviceName, DTypeName, Measure

RECENT = 12
"""Units whose durations say how long the next one takes."""


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """How long a profile may measure."""

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


class Deadline:
    """What is left of a budget, and how long units of some work take on this machine by those that it has run."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._began = budget.clock()
        self._seen: list[Sample] = []

    def left_s(self) -> float:
        """Seconds until the time is up; negative behind that."""
        return self._budget.seconds - (self._budget.clock() - self._began)

    def ran(self, work_ns: int, seconds: float) -> None:
        """A unit of so much estimated work took so long."""
        terms = {"units": 1.0, "work": float(work_ns)}
        self._seen = [*self._seen[1 - RECENT :], Sample(key="unit", terms=terms, ns=max(seconds, 1e-6), spread=0.0)]

    def expected_s(self, work_ns: int) -> float:
        """What a unit of so much work is expected to take; nothing where none has run."""
        return fit_law("unit", self._seen).of({"units": 1.0, "work": work_ns}) if self._seen else 0.0


def measure_probes(
    wanted: Sequence[Probe],
    setting: Setting,
    journal: Journal,
    measure: Measure,
    deadline: Deadline,
    advance: Callable[[], None] = lambda: None,
    *,
    needed: bool = False,
    reserve_s: float = 0.0,
) -> int:
    """Measure what the journal lacks, in order, and say how many that were.

    Without time left nothing begins any more; what is expected to end too late is passed over, unless it is ``needed``.
    ``reserve_s`` is kept for what comes behind.
    """
    measured = 0
    for probe in wanted:
        advance()
        work = work_estimate(setting, probe)
        if probe.key in journal.results:
            continue
        left = deadline.left_s() - reserve_s
        if left > 0 and (needed or deadline.expected_s(work) <= left):
            result = measure(probe)
            journal.add(result)
            deadline.ran(work, result.seconds)
            measured += 1
    return measured


def profile(
    setting: Setting,
    out: Path,
    *,
    host: HostInfo,
    device: DeviceName,
    dtype: DTypeName,
    measure: Measure,
    links: Callable[[], LinkResult] | None,
    budget: Budget,
    together: int = 1,
    end_to_end: bool = False,
    advance: Callable[[], None] = lambda: None,
) -> tuple[PriceTable, Progress]:
    """Measure a table; the journal beside ``out`` makes it resumable. The table itself is written by the caller.

    Results are in the order of the probes, resumed or not, so that a resumed profile gives the same table. Raises
    :class:`TimeLimitError` where the time was up before the core was measured.
    """
    if not setting.buckets:
        raise UsageError("there is no bucket to measure", fix="give a batch with clips")
    short = unmeasurable(*setting[:3])
    if short:
        raise UsageError(
            f"no clip here is long enough to be split as {', '.join(map(str, short))}: nothing measures such splits",
            fix="profile a batch with a longer clip; its table prices these buckets as well if they are in it",
        )
    header = JournalHeader(
        host=host,
        model=setting.model.name,
        cluster=setting.cluster.name,
        device=device,
        dtype=dtype,
        checkpoint=setting.checkpoint,
        together=together,
    )
    journal = Journal(journal_path(out), header)
    resumed = len(journal.results)
    wanted, first = (find(*setting[:3]) for find in (probes, core))
    try:
        deadline = Deadline(budget)
        measured = measure_probes(first, setting, journal, measure, deadline, advance, needed=True)
        require_core(first, journal)
        parted = len(dict.fromkeys([*first, *required(*setting[:3])]))
        reserve = links_s(setting.cluster.num_ranks) if links is not None and journal.links is None else 0.0
        telling = wanted[len(first) : parted]
        measured += measure_probes(telling, setting, journal, measure, deadline, advance, reserve_s=reserve)
        if links is not None and journal.links is None and deadline.left_s() > reserve / 2:
            journal.add(links())
        measured += measure_probes(wanted[parted:], setting, journal, measure, deadline, advance)
    finally:
        journal.close()
    results = tuple(journal.results[probe.key] for probe in wanted if probe.key in journal.results)
    found = Measured(host=host, device=device, dtype=dtype, results=results, links=journal.links, together=together)
    paces = [result.pace_ns for result in results]
    progress = Progress(measured, resumed, len(wanted) - len(results), drift(paces))
    return price_table(setting, found, end_to_end=end_to_end), progress


def require_core(first: Sequence[Probe], journal: Journal) -> None:
    """Raise :class:`TimeLimitError` where probes are missing that no table can do without."""
    missing = [probe.key for probe in first if probe.key not in journal.results]
    if missing:
        raise TimeLimitError(
            f"the time was up with {len(first) - len(missing)} of the {len(first)} probes measured that a table needs",
            where=str(journal.path),
            details=(f"the next one is {missing[0]}",),
            fix="the same command goes on from here; --minutes gives it more time",
        )
