"""Work of a program's ranks as the planner's sums have it, spread over its operations.

A table with interference (``Calibration.interference``) says more of a rank than the laws of its operations do: what
sequences add that share it. The simulator takes that over as follows. A rank's operations keep their proportions, and
together, over all layers and with what is outside of them, they take what the rank's prices add up to, wires left out,
and the step besides (``Calibration.step_ns``). So the ranks' work is that of ``additive+interference``, and what the
simulator adds to it is waiting. An operation is the same in every layer, so the sum is met within a nanosecond a layer.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import msgspec

from zellige.measured_ops import outside_ns
from zellige.op_prices import OpPrices
from zellige.placement import Placement, Problem, rank_costs
from zellige.profile.table import without_wire
from zellige.program import Program
from zellige.program_parts import PASSES, Pass


def without_wires(problem: Problem) -> Problem:
    """The problem with links that take no time: work alone, as a CPU's clock of a thread has it."""
    link = problem.cluster.node_link
    fits = tuple(msgspec.structs.replace(fit, latency_us=1e-9) for fit in link.fits)
    cluster = msgspec.structs.replace(problem.cluster, node_link=msgspec.structs.replace(link, fits=fits))
    prices = without_wire(problem.prices, problem.model, problem.cluster)
    return dataclasses.replace(problem, prices=prices, cluster=cluster)


def planned_work_ns(program: Program, problem: Problem) -> tuple[int, ...]:
    """What every rank's prices add up to, without wires, and what a step takes besides."""
    calibration = problem.prices.header.calibration
    buckets = {sequence.id: sequence.bucket.name for sequence in problem.batch.sequences}
    placements = [
        Placement(sequence=s.sequence, bucket=buckets[s.sequence], config=s.config, ranks=s.ranks)
        for s in program.segments
    ]
    dry = dataclasses.replace(without_wires(problem), engine=program.engine)
    step = 0 if calibration is None else calibration.step_ns
    return tuple(time + step for time in rank_costs(dry, placements).times_ns)


def at_planned_work(prices: OpPrices, problem: Problem) -> OpPrices:
    """The prices with every rank's work as planned, if the problem's table has interference; else as they are."""
    calibration = problem.prices.header.calibration
    if calibration is None or calibration.interference is None:
        return prices
    program = prices.program
    planned = planned_work_ns(program, problem)
    by_rank = []
    for rank in range(program.num_ranks):
        inside = max(0, planned[rank] - outside_ns(program, rank, calibration))
        by_rank.append(_spread(prices, rank, round(inside / program.num_layers)))
    compute: dict[Pass, tuple[tuple[int, ...], ...]] = {
        phase: tuple(durations[phase] for durations in by_rank) for phase in PASSES
    }
    return msgspec.structs.replace(prices, compute=compute)


def _spread(prices: OpPrices, rank: int, total: int) -> dict[Pass, tuple[int, ...]]:
    """A rank's operations of one layer, in proportion to what they were, with this total; none where there are none."""
    before = [duration for phase in PASSES for duration in prices.compute[phase][rank]]
    after = iter(in_proportion(before, total))
    return {phase: tuple(next(after) for _ in prices.compute[phase][rank]) for phase in PASSES}


def in_proportion(values: Sequence[int], total: int) -> list[int]:
    """Whole numbers that add up to ``total``, each within 1 of its share; all zero where the values are."""
    sum_before = sum(values)
    if not sum_before:
        return [0] * len(values)
    ends, so_far = [0], 0
    for value in values:
        so_far += value
        ends.append(so_far * total // sum_before)
    return [end - start for start, end in itertools.pairwise(ends)]
