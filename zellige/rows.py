"""From outcomes, batch by batch, to one row a policy: two walks over them, and memory for the policies only."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from zellige.outcomes import Causes, Outcome
from zellige.placement import Engine
from zellige.sim import Additivity
from zellige.sim.stats import Interval, MeanTally, Paired, PairTally
from zellige.units import share_of


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One policy over the batches; times are means over batches where there are several.

    ``compute_ns``, ``communication_ns`` (exposed transfer, and calls) and ``wait_ns`` are means over ranks, and add
    up to the step: a rank that is done waits for the slowest. ``flops_max_over_mean`` is balance by forward FLOPs
    alone. ``plan_ns`` is the step by the plans' prices, which ``bound_ns`` and ``gap`` are about. ``causes`` and
    ``additivity`` come from simulations, ``interval_ns`` and ``paired`` (this row after the best) from noise.
    """

    policy: str
    engine: Engine
    fits: bool
    step_time_ns: int | None
    ratio_to_best: float | None
    max_over_mean: float | None
    comm_bytes: int | None
    comm_relative_to_usp: float | None
    num_split: int | None
    num_sequences: int
    peak_memory_bytes: int | None
    memory_over_bytes: int
    planning_ns: int | None
    bound_ns: int | None
    gap: float | None
    reason: str = ""
    notes: tuple[str, ...] = ()
    flops_max_over_mean: float | None = None
    compute_ns: int = 0
    communication_ns: int = 0
    wait_ns: int = 0
    step_time_stdev_ns: int = 0
    win_rate: float = 0.0
    batches_planned: int = 1
    plan_ns: int | None = None
    causes: Causes | None = None
    additivity: Additivity | None = None
    interval_ns: Interval | None = None
    paired: Paired | None = None


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """What the batches are, whatever the policy."""

    batches: int
    num_tokens: int
    video_share: float
    memory_limit_bytes: int


MEANS = ("step_time_ns", "plan_ns", "bound_ns", "compute_ns", "communication_ns", "wait_ns")
SUMS = ("comm_bytes", "num_split")


class _Tally:
    """Sums over one policy's outcomes."""

    def __init__(self, first: Outcome) -> None:
        self.policy, self.engine = first.policy, first.engine
        self.seen = self.planned = self.num_sequences = self.wins = 0
        self.reason = ""
        self.fits = True
        self.notes: tuple[str, ...] = ()
        self.sums = dict.fromkeys((*MEANS, *SUMS), 0)
        self.squares = self.peak = self.limit = self.usp = 0
        self.balance = self.flops_balance = 0.0
        self.causes: dict[str, int] = {}
        self.additivity: dict[str, int] = {}

    def add(self, outcome: Outcome) -> None:
        self.seen += 1
        self.num_sequences += outcome.num_sequences
        if outcome.reason:
            self.reason = self.reason or outcome.reason
            return
        if not self.planned:
            self.engine, self.notes, self.limit = outcome.engine, outcome.notes, outcome.memory_limit_bytes
        self.planned += 1
        self.fits = self.fits and outcome.fits
        for name in self.sums:
            self.sums[name] += getattr(outcome, name)
        self.squares += outcome.step_time_ns**2
        self.peak = max(self.peak, outcome.peak_memory_bytes)
        self.usp = self.usp + outcome.usp_bytes if outcome.usp_bytes >= 0 and self.usp >= 0 else -1
        self.balance += outcome.max_over_mean
        self.flops_balance += outcome.flops_max_over_mean
        _add_up(self.causes, outcome.causes)
        _add_up(self.additivity, outcome.additivity)

    def row(self, planning: Sequence[int] | None) -> Row:
        count = self.planned
        if count < self.seen:
            return self._without_plan()
        mean = {name: round(self.sums[name] / count) for name in MEANS}
        comm, plan = self.sums["comm_bytes"], self.sums["plan_ns"]
        return Row(
            policy=self.policy,
            engine=self.engine,
            fits=self.fits,
            step_time_ns=mean["step_time_ns"],
            ratio_to_best=None,
            max_over_mean=self.balance / count,
            comm_bytes=comm,
            comm_relative_to_usp=comm / self.usp if self.usp > 0 else None,
            num_split=self.sums["num_split"],
            num_sequences=self.num_sequences,
            peak_memory_bytes=self.peak,
            memory_over_bytes=max(0, self.peak - self.limit),
            planning_ns=round(planning[1] / planning[0]) if planning else None,
            bound_ns=mean["bound_ns"],
            gap=plan / self.sums["bound_ns"] - 1,
            notes=self.notes if count == 1 or self.policy.startswith("knapformer-best") else (),
            flops_max_over_mean=self.flops_balance / count,
            compute_ns=mean["compute_ns"],
            communication_ns=mean["communication_ns"],
            wait_ns=mean["wait_ns"],
            plan_ns=mean["plan_ns"],
            step_time_stdev_ns=_deviation(count, self.sums["step_time_ns"], self.squares),
            batches_planned=count,
            causes=Causes(**_means(self.causes, count)) if self.causes else None,
            additivity=Additivity(**_means(self.additivity, count)) if self.additivity else None,
        )

    def _without_plan(self) -> Row:
        failed = f"{share_of(self.seen - self.planned, self.seen, 'batch')}: " if self.seen > 1 else ""
        return Row(
            policy=self.policy, engine=self.engine, fits=False, step_time_ns=None, ratio_to_best=None,
            max_over_mean=None, comm_bytes=None, comm_relative_to_usp=None, num_split=None,
            num_sequences=self.num_sequences, peak_memory_bytes=None, memory_over_bytes=0, planning_ns=None,
            bound_ns=None, gap=None, reason=failed + self.reason, batches_planned=self.planned,
        )  # fmt: skip


def tally(
    outcomes: Iterable[Outcome], planning: Mapping[str, Sequence[int]], *, paired: bool
) -> tuple[list[Row], Totals]:
    """Rows in the policies' order, and what the batches are.

    ``outcomes`` is walked twice and holds all policies of a batch in a row; ``planning`` has, by policy, how many plans
    were made and their nanoseconds. ``paired`` compares every policy with the best, pair by pair, and gives intervals.
    """
    tallies: dict[str, _Tally] = {}
    batches = tokens = limit = 0
    share = 0.0
    for group in _by_batch(outcomes):
        batches += 1
        tokens += group[0].num_tokens
        share += group[0].video_tokens / group[0].num_tokens
        least = min((o.step_time_ns for o in group if o.fits and not o.reason), default=0)
        for outcome in group:
            policy = tallies.setdefault(outcome.policy, _Tally(outcome))
            policy.add(outcome)
            policy.wins += outcome.fits and not outcome.reason and outcome.step_time_ns == least
            limit = outcome.memory_limit_bytes or limit
    rows = _with_ratios([each.row(planning.get(name)) for name, each in tallies.items()], tallies, batches)
    if paired:
        rows = _with_pairs(rows, outcomes)
    return rows, Totals(batches=batches, num_tokens=tokens, video_share=share / batches, memory_limit_bytes=limit)


def _by_batch(outcomes: Iterable[Outcome]) -> Iterator[list[Outcome]]:
    for _, group in itertools.groupby(outcomes, key=lambda outcome: outcome.batch):
        yield list(group)


def _add_up(sums: dict[str, int], part: Causes | Additivity | None) -> None:
    if part is not None:
        for name in part.__struct_fields__:
            sums[name] = sums.get(name, 0) + getattr(part, name)


def _means(sums: dict[str, int], count: int) -> dict[str, int]:
    return {name: round(value / count) for name, value in sums.items()}


def _deviation(count: int, total: int, squares: int) -> int:
    if count < 2:
        return 0
    return round(math.sqrt((count * squares - total * total) / (count * (count - 1))))


def _with_ratios(rows: list[Row], tallies: dict[str, _Tally], batches: int) -> list[Row]:
    """Ratios to the best row that fits (none where nothing fits), and how often a policy is the best."""
    best = best_row(rows)
    least = best.step_time_ns if best is not None and best.fits else None
    return [
        msgspec.structs.replace(
            row,
            ratio_to_best=row.step_time_ns / least if row.step_time_ns and least else None,
            win_rate=tallies[row.policy].wins / batches,
        )
        for row in rows
    ]


def best_row(rows: Iterable[Row]) -> Row | None:
    """The fastest row that fits, or, where none fits, the fastest that has a plan."""
    timed = [row for row in rows if row.step_time_ns is not None]
    candidates = [row for row in timed if row.fits] or timed
    return min(candidates, key=lambda row: row.step_time_ns or 0, default=None)


def _with_pairs(rows: list[Row], outcomes: Iterable[Outcome]) -> list[Row]:
    """Every policy against the best, under the same noise on the same batches, and the interval of its mean step."""
    best = best_row(rows)
    if best is None:
        return rows
    means = {row.policy: MeanTally() for row in rows if row.step_time_ns is not None}
    pairs = {name: PairTally() for name in means if name != best.policy}
    for group in _by_batch(outcomes):
        steps = {o.policy: o.replica_ns or (o.step_time_ns,) for o in group if o.policy in means}
        for name, own in steps.items():
            for index, step in enumerate(own):
                means[name].add(float(step))
                if name in pairs:
                    pairs[name].add(steps[best.policy][index], step)
    return [
        msgspec.structs.replace(
            row,
            interval_ns=means[row.policy].interval() if row.policy in means else None,
            paired=pairs[row.policy].paired() if row.policy in pairs else None,
        )
        for row in rows
    ]
