"""B8: a bound on any rank sets that sees what a rank holds of time and of memory together; only when asked for.

All other bounds count time, and memory only in that a sequence must fit alone. Where memory binds, ranks full of short
sequences have time left that nothing has room for, and ranks full of long ones have room that nothing has time for.
Give each bucket a price, an integer; a shard of a sequence on m ranks is worth an m-th of it. What a rank takes at most
in a time and in its memory, no more shards of a bucket than there are sequences of it, is an integer programme of two
rows, which CP-SAT solves to the end. If all ranks together can't take what all sequences are worth, no plan reaches the
time. The prices that refute most are dual values of a linear programme over what ranks may take, found column by column
(Gilmore and Gomory, as in :mod:`zellige.plan.patterns`, whose prices see no memory but also what is placed already).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from ortools.sat.python import cp_model
from scipy.optimize import linprog

from zellige.placement import Option, Problem
from zellige.plan.adapt import memory_may_bind
from zellige.plan.by_kinds import Effort, Kinds
from zellige.plan.compiled import LARGEST
from zellige.plan.cp_sat import make_solver, solve
from zellige.spreads import Kind, most_rounds
from zellige.units import ceil_div

Floats = NDArray[np.float64]

NAME = "B8 full ranks, any rank sets, one step in this memory"

STEPS = 2000
"""The bound is known to a 2,000-th of the makespan, where there is effort enough for that."""

MILLI = 1000
"""Effort is counted in thousandths of CP-SAT's deterministic units, which are about seconds."""

EFFORT = Effort(4 * MILLI, 8 * MILLI)

FINE = 1 << 30
"""A time and a rank's room are at most so many units; what shards take is rounded down to them."""

WORTH = 1 << 36
"""What all sequences are worth together, about: prices are rounded down to integers of this."""

MOST_COLUMNS = 100
"""Linear programmes that are solved for one time."""

DETERMINISTIC_LIMIT = 0.5
"""Of one integer programme, in CP-SAT's units; most take hundredths. Where it ends the bound counts that is proved by
then."""

NEAR = 2e-5
"""An integer programme ends when what is proved is so near to what was found."""

MARGIN = 1e-7
"""What linear programmes may be off by; it decides how long prices are looked for, and no bound."""


class Shard(NamedTuple):
    """A shard of a bucket, told by place, on one of ``degree`` ranks: its time in ns, and the bytes that it keeps."""

    bucket: int
    degree: int
    time: int
    kept: int


class Taken(NamedTuple):
    """What a rank takes: sequences of each bucket, and the ns that it needs for them."""

    sequences: Floats
    time: int


class Answer(NamedTuple):
    """Whether prices refute a target; what a rank takes that is worth most; and how many ranks all sequences are worth,
    each full."""

    refutes: bool
    sequences: Floats
    ranks: float


def full_ranks_bound(problem: Problem, known: int, reached: int) -> int:
    """The bound in ns, between ``known``, which is one, and ``reached``, a plan's makespan.

    It holds for plans of one step whose ranks all fit into memory; ``known`` itself where memory can't bind.
    """
    if problem.cluster.num_ranks * reached >= LARGEST or not memory_may_bind(problem, problem.rungs):
        return known
    kinds = Kinds(problem, reached, lambda kind, _: FullRanks(problem, kind), EFFORT)
    low, high = known, reached
    while high - low > reached // STEPS:
        target = (low + high) // 2
        if kinds.refute(target, FullRanks.refute):
            low = target + 1
        else:
            high = target
    return low


class FullRanks:
    """What ranks hold in time and memory under plans of a kind."""

    def __init__(self, problem: Problem, kind: Kind) -> None:
        self.num_ranks, self.room = problem.cluster.num_ranks, problem.memory.room_bytes
        self.numbers = list(problem.numbers.values())
        self.shards = shards_of(problem, kind)
        self.taken: list[Taken] = []
        self.prices: list[int] = []
        self.spent = 0

    def refute(self, target: int, most: int) -> tuple[bool, int]:
        """Whether no plan of the kind is within a target in ns, as far as so much effort shows; and what it took."""
        before = self.spent
        return self._refutes(target, before + most), self.spent - before

    def _refutes(self, target: int, most: int) -> bool:
        shards = [shard for shard in self.shards if shard.time <= target]
        if len({shard.bucket for shard in shards}) < len(self.numbers):
            return True
        if self.prices and self._ask(self.prices, shards, target)[0]:
            return True
        taken = [each.sequences for each in self.taken if each.time <= target]
        taken += [self._alone(shard, target) for shard in shards]
        nearest, centre = 0.0, None
        for _ in range(MOST_COLUMNS):
            found = self._solve(taken)
            if found is None or self.spent >= most:
                return False
            # Half-way to the prices that came nearest is where a column cuts most; where it cuts nothing, at the end.
            for aim in [found] if centre is None else [(found + centre) / 2, found]:
                parts = aim / (aim @ self.numbers)
                prices = [int(price) for price in np.floor(parts * WORTH)]
                answer = self._ask(prices, shards, target)
                if answer.refutes:
                    self.prices = prices
                    return True
                if answer.ranks > nearest:
                    nearest, centre = answer.ranks, parts * answer.ranks
                taken.append(answer.sequences)
                if answer.sequences @ found > 1 + MARGIN:
                    break
            else:
                return False
        return False

    def _alone(self, shard: Shard, target: int) -> Floats:
        """As many shards of a kind as a rank can take."""
        sequences, number = np.zeros(len(self.numbers)), self.numbers[shard.bucket]
        number = min(number, target // shard.time if shard.time else number)
        number = min(number, self.room // shard.kept if shard.kept else number)
        sequences[shard.bucket] = number / shard.degree
        return sequences

    def _solve(self, taken: list[Floats]) -> Floats | None:
        """Prices under which no known column is worth more than 1, and all sequences most; None where ranks can take
        them."""
        answer = linprog(
            -np.array(self.numbers, np.float64),
            A_ub=np.array(taken),
            b_ub=np.ones(len(taken)),
            bounds=[(0, None)] * len(self.numbers),
            method="highs",
        )
        if answer.x is None or answer.fun is None or -answer.fun <= self.num_ranks * (1 + MARGIN):
            return None
        return np.asarray(answer.x, np.float64)

    def _ask(self, prices: list[int], shards: list[Shard], target: int) -> Answer:
        """What prices say of a target; what a rank takes at these is known from then on."""
        found = worth_most(prices, self.numbers, shards, target, self.room)
        self.spent += found.effort
        wanted = sum([price * number for price, number in zip(prices, self.numbers, strict=True)])
        sequences = np.zeros(len(self.numbers))
        for shard, number in zip(shards, found.counts, strict=True):
            sequences[shard.bucket] += number / shard.degree
        time = sum([number * shard.time for shard, number in zip(shards, found.counts, strict=True)])
        self.taken.append(Taken(sequences, time))
        return Answer(wanted > self.num_ranks * found.most, sequences, wanted / max(1, found.most))


class Worth(NamedTuple):
    """The best found of a rank's shards, how many of each; what no others are worth more than; and the effort."""

    counts: list[int]
    most: int
    effort: int


def worth_most(prices: list[int], numbers: list[int], shards: list[Shard], target: int, room: int) -> Worth:
    """The shards that a rank takes within a time and its room and that are worth most at some prices.

    Figures are rounded to what CP-SAT takes: what shards need down, their worth up.
    """
    model = cp_model.CpModel()
    counts = [model.new_int_var(0, numbers[shard.bucket], "") for shard in shards]
    for limit, needs in ((target, [each.time for each in shards]), (room, [each.kept for each in shards])):
        unit = max(1, ceil_div(limit, FINE))
        model.add(cp_model.LinearExpr.weighted_sum(counts, [need // unit for need in needs]) <= limit // unit)
    for bucket, number in enumerate(numbers):
        mine = [count for count, shard in zip(counts, shards, strict=True) if shard.bucket == bucket]
        model.add(cp_model.LinearExpr.sum(mine) <= number)
    values = [ceil_div(prices[shard.bucket], shard.degree) for shard in shards]
    model.maximize(cp_model.LinearExpr.weighted_sum(counts, values))
    solver = make_solver(DETERMINISTIC_LIMIT, gap=NEAR)
    status = solve(solver, model)
    effort = 1 + round(MILLI * solver.response_proto.deterministic_time)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        everything = sum([price * number for price, number in zip(prices, numbers, strict=True)])
        return Worth([0] * len(shards), everything, effort)
    return Worth([solver.value(count) for count in counts], round(solver.best_objective_bound), effort)


def shards_of(problem: Problem, kind: Kind) -> list[Shard]:
    """The shards of plans of a kind, of each bucket and degree those that need the least time for the bytes they keep.

    The segment of a layer that is live beside them is left out: it only needs more.
    """
    most = most_rounds(kind.fewest) if problem.engine == "coalesced" else problem.cluster.num_ranks
    found = []
    for bucket, name in enumerate(problem.numbers):
        able = [option for option in problem.priced[name] if problem.fits_alone(option) and _rounds(option) <= most]
        by_degree: dict[int, list[tuple[int, int]]] = {}
        for option in able:
            by_degree.setdefault(option.config.degree, []).append((option.floor_ns, option.kept_bytes))
        for degree, figures in sorted(by_degree.items()):
            least: int | None = None
            for time, kept in sorted(figures):
                if least is None or kept < least:
                    found.append(Shard(bucket, degree, time, kept))
                    least = kept
    return found


def _rounds(option: Option) -> int:
    return option.config.k if option.config.degree > 1 else 0
