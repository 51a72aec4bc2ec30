"""What sequences on one rank add beyond their prices: fitted to residuals of measured plans, and put into prices.

Terms are by split (a shard on the rank), by sequence, and by byte that the rank receives. Each is a constant of a
sequence's option, so a planner that adds prices up uses them as they are, and the simulator spreads them over a rank's
operations (:mod:`zellige.sim.planned_work`). Off unless a table says otherwise.

The residual is also put beside the longest chain of split work, which is a plan's and not a sequence's: no price can
hold it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from zellige.calibration import Interference
from zellige.errors import UsageError
from zellige.placement import Plan, Problem
from zellige.plan.chain import chain_ns, ways_of
from zellige.prices import PriceRow, PriceTable


class RankCounts(NamedTuple):
    """What a rank has: shards of split sequences, sequences in all, and bytes that it receives in a step."""

    splits: int
    sequences: int
    received_bytes: int


Column = npt.NDArray[np.float64]
Terms = tuple[float, float, float, float]
"""Nanoseconds by split, sequence and byte, and what every rank takes besides."""


def rank_counts(plan: Plan, problem: Problem) -> list[RankCounts]:
    """The counts of every rank; a sequence's bytes are spread evenly over its ranks."""
    splits, sequences, received = ([0] * problem.cluster.num_ranks for _ in range(3))
    for placement in plan.placements:
        option = problem.option_on(placement.bucket, placement.config, placement.ranks)
        for rank in placement.ranks:
            sequences[rank] += 1
            if placement.config.is_split and option is not None:
                splits[rank] += 1
                received[rank] += option.comm_bytes // placement.config.degree
    return [RankCounts(*each) for each in zip(splits, sequences, received, strict=True)]


FOLDS = 5
LEAST_GAIN = 0.9
"""A term is taken where it leaves at most this share of the squared error of a constant, on rows left out."""


def fit_interference(counts: Sequence[RankCounts], residuals_ns: Sequence[float]) -> Terms:
    """A constant, and the one count that predicts left-out residuals best, if any does clearly.

    Counts vary together, and plans that crowd a rank lie far outside of the others: several terms at once would be
    sums of large numbers that cancel where they were fitted, and nowhere else.
    """
    rows, wanted = np.array([list(map(float, count)) for count in counts]), np.array(residuals_ns, dtype=float)
    none = np.zeros_like(wanted)
    best, error = -1, LEAST_GAIN * _left_out_error(none, wanted)
    for term in range(rows.shape[1]):
        found = _left_out_error(rows[:, term], wanted)
        if rows[:, term].std() > 0 and found < error:
            best, error = term, found
    slope, constant = _line(none if best < 0 else rows[:, best], wanted)
    terms = [0.0] * rows.shape[1]
    if best >= 0:
        terms[best] = slope
    return terms[0], terms[1], terms[2], constant


def _line(values: Column, wanted: Column) -> tuple[float, float]:
    """Slope and constant by least squares."""
    spread = values - values.mean()
    square = float(spread @ spread)
    slope = float(spread @ wanted) / square if square > 0 else 0.0
    return slope, float(wanted.mean() - slope * values.mean())


def _left_out_error(values: Column, wanted: Column) -> float:
    """The squared error of every fifth row by the line through the others."""
    total = 0.0
    places = range(len(wanted))
    for fold in range(min(FOLDS, len(wanted))):
        out = [place for place in places if place % FOLDS == fold]
        rest = [place for place in places if place % FOLDS != fold] or out
        slope, constant = _line(values[rest], wanted[rest])
        total += float(((wanted[out] - slope * values[out] - constant) ** 2).sum())
    return total


class Residual(msgspec.Struct, frozen=True, kw_only=True):
    """Where a residual sits: nanoseconds by split, sequence, byte, and nanosecond of the chain.

    ``explained`` is the share of its variance that all of them explain together.
    """

    per_split_ns: float
    per_sequence_ns: float
    per_byte_ns: float
    per_chain_ns: float
    explained: float


def residual_terms(counts: Sequence[RankCounts], chains_ns: Sequence[int], residuals_ns: Sequence[float]) -> Residual:
    """Least squares of all terms at once, with a constant: a description of these rows, not a prediction of others.

    ``chains_ns`` is the longest chain of split work of the plan that a row is of (:func:`plan_chain_ns`).
    """
    rows = np.array([[*map(float, count), float(chain)] for count, chain in zip(counts, chains_ns, strict=True)])
    wanted = np.array(residuals_ns, dtype=float)
    away, spreads = rows - rows.mean(axis=0), rows.std(axis=0)
    units = np.where(spreads > 0, spreads, 1.0)
    rest = wanted - wanted.mean()
    found, *_ = np.linalg.lstsq(away / units, rest, rcond=1e-6)
    total, left = float(rest @ rest), rest - (away / units) @ found
    slopes = [float(slope) for slope in found / units]
    return Residual(
        per_split_ns=slopes[0],
        per_sequence_ns=slopes[1],
        per_byte_ns=slopes[2],
        per_chain_ns=slopes[3],
        explained=1 - float(left @ left) / total if total > 0 else 0.0,
    )


def plan_chain_ns(plan: Plan, problem: Problem) -> int:
    """The chain of split work of a plan (:func:`zellige.plan.chain.chain_ns`); 0 where nothing is split."""
    return chain_ns(problem, ways_of(problem, plan.placements))


def fullest_rank(counts: Sequence[RankCounts]) -> RankCounts:
    """The most of each count that a rank has."""
    return RankCounts(*(max(column) for column in zip(*counts, strict=True)))


def with_interference(table: PriceTable, found: Interference) -> PriceTable:
    """The table with the terms in every price (as linear work) and the constant in the step, and a header that says so.

    Terms that the table has already stay in it, and the header then has the sums. A price stays at least one
    nanosecond. Raises :class:`UsageError` for a table that was not measured.
    """
    calibration = table.header.calibration
    if calibration is None:
        raise UsageError("interference is fitted to a measured table", fix="zellige-sim profile makes one")
    step = max(0, calibration.step_ns + round(found.per_step_ns))
    calibration = msgspec.structs.replace(calibration, step_ns=step, interference=_sum(calibration.interference, found))
    header = msgspec.structs.replace(table.header, calibration=calibration)
    return msgspec.structs.replace(table, header=header, rows=tuple(_row(row, found) for row in table.rows))


def _sum(before: Interference | None, found: Interference) -> Interference:
    if before is None:
        return found
    names = ("per_split_ns", "per_sequence_ns", "per_byte_ns", "per_step_ns")
    return msgspec.structs.replace(found, **{name: getattr(before, name) + getattr(found, name) for name in names})


def _row(row: PriceRow, found: Interference) -> PriceRow:
    more = found.per_sequence_ns
    if row.config.is_split:
        more += found.per_split_ns + found.per_byte_ns * row.price.comm_bytes / row.config.degree
    linear = max(1, round(row.price.linear_ns + more))
    return msgspec.structs.replace(row, price=msgspec.structs.replace(row.price, linear_ns=linear))
