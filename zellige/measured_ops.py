"""What every operation of a program takes by measured laws: :class:`zellige.op_prices.OpPrices` of a calibration.

Packing is part of the operation before it and unpacking of the one behind it, for the simulators' exchanges cost a rank
no time of its own. Measured call times hold all that a call costs, so exchanges have no call time besides.
"""

from __future__ import annotations

import math

import msgspec

from zellige.calibration import Calibration, calibrated
from zellige.cluster import Cluster
from zellige.errors import MissingPriceError
from zellige.exchange_prices import ExchangePrice, Meeting
from zellige.model import ModelSpec
from zellige.op_prices import OpPricer, OpPrices
from zellige.op_terms import KEPT, LIVE, OUTSIDE, Terms, kept_terms, law_key, live_terms, op_terms, outside_terms
from zellige.program import Program
from zellige.program_parts import PASSES, Op, Pass


def measured_op_prices(
    program: Program, model: ModelSpec, cluster: Cluster, calibration: Calibration, *, wire: bool = True
) -> OpPrices:
    """Prices of a program by measured laws; without ``wire``, transfers take no time, as CPU time has none.

    Raises :class:`MissingPriceError` for an operation that no law is for.
    """
    formulas = OpPricer(model, calibrated(cluster, calibration)).price(program)
    compute = {
        phase: tuple(rank_durations(program, rank, phase, calibration) for rank in range(program.num_ranks))
        for phase in PASSES
    }
    exchanges = tuple(_exchange(price, wire) for price in formulas.exchanges)
    return msgspec.structs.replace(formulas, compute=compute, exchanges=exchanges)


def _exchange(price: ExchangePrice, wire: bool) -> ExchangePrice:
    meetings = price.meetings
    if not wire:
        meetings = tuple(Meeting(meeting.members, meeting.peers, 0) for meeting in meetings)
    return msgspec.structs.replace(price, call_ns=0, meetings=meetings)


def rank_durations(program: Program, rank: int, phase: Pass, calibration: Calibration) -> tuple[int, ...]:
    """Nanoseconds of a rank's operations in a pass of one layer."""
    costs = [_cost(program, rank, phase, op, calibration) for op in program.ranks[rank].ops(phase)]
    return fold(program.ranks[rank].ops(phase), costs)


def fold(ops: tuple[Op, ...], costs: list[float]) -> tuple[int, ...]:
    """Add what exchanges cost a rank itself to the computing operation before an issue, or behind a wait."""
    totals = [0.0] * len(ops)
    computes = [place for place, op in enumerate(ops) if op.kind not in ("issue", "wait", "keep")]
    for place, (op, cost) in enumerate(zip(ops, costs, strict=True)):
        target = place
        if place not in computes:
            before = [other for other in computes if other < place]
            behind = [other for other in computes if other > place]
            adjacent = bool(before) and before[-1] == place - 1
            target = before[-1] if op.kind == "issue" and adjacent else (behind or before or [place])[0]
        totals[target] += cost
    return tuple(math.ceil(total) for total in totals)


def _cost(program: Program, rank: int, phase: Pass, op: Op, calibration: Calibration) -> float:
    terms = op_terms(program, rank, op)
    if op.kind == "keep":
        return sum(_law_ns(calibration, law_key(program, phase, op, part), terms) for part in ("pack", "unpack"))
    return _law_ns(calibration, law_key(program, phase, op), terms)


def _law_ns(calibration: Calibration, key: str, terms: Terms) -> float:
    law = calibration.law(key)
    if law is None:
        raise MissingPriceError(
            f"nothing of {key} was measured", fix="profile again, with the checkpointing mode and splits of the plan"
        )
    return law.of(terms)


def outside_ns(program: Program, rank: int, calibration: Calibration) -> int:
    """Nanoseconds of a rank's step outside all operations."""
    return math.ceil(_law_ns(calibration, OUTSIDE, outside_terms(program, rank)))


def program_memory(program: Program, rank: int, calibration: Calibration) -> int:
    """Peak bytes of a rank by measured laws: state, what forward keeps, and what the fullest moment needs besides."""
    terms = {KEPT: kept_terms(program, rank), LIVE: live_terms(program, rank)}
    sizes = (_law_ns(calibration, key, {**terms[key], "calls": 0.0}) for key in (KEPT, LIVE))
    return calibration.base_bytes + math.ceil(sum(sizes))
