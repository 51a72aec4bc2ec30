"""FlexSP: unequal sequence-parallel groups by a mixed-integer programme (arXiv 2412.01523; PKU-DAIR/Hetu-Galvatron).

From the source: for every power of two s there are floor(N/s) virtual groups; a binary says whether a group is used,
integers how many sequences of each length bucket it gets; used groups have all N ranks and at least one sequence each;
a group holds only what fits into its ranks; least time of the slowest group. The batch, longest first, is cut into M
micro-batches of about equal tokens, for M from the least that memory allows to four more; groups are made anew for each
micro-batch, so their times add up. Greedy plans of equal groups start the solver. ``flexsp-16`` first rounds lengths up
to 16 buckets (more, until the rounding wastes no more than half of the free room), ``flexsp`` takes them as they are.
Groups run packed Ulysses, one exchange for all their sequences: the engine is ``group``.

Inferred: where heads do not divide by a group's size it is Ulysses x ring (the source has Ulysses alone, and could then
not use such a group); groups of one rank are allowed (the public code leaves them out); where N is no power of two,
ranks may idle. Prices and memory are this project's, not the source's formulas, and CP-SAT with one worker and a limit
of deterministic time stands in for SCIP with five seconds.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Mapping, Sequence

from ortools.sat.python import cp_model

from zellige.errors import InfeasibleError
from zellige.placement import Placement, Plan, Problem, Solver, make_plan, require_placeable
from zellige.plan.bounds import best_bound
from zellige.plan.cp_sat import make_solver, solve
from zellige.plan.groups import Amounts, GroupPrices, group_prices, heads_first, lay_out, place, splits_by_degree
from zellige.plan.length_buckets import length_buckets, rounding_waste
from zellige.units import MIB, ceil_div
from zellige.workload import Sequence as Clip

BUCKETS = 16
"""Length buckets that ``flexsp-16`` begins with."""

MORE_MICRO_BATCHES = 4
"""So many more micro-batches than the least are tried."""

TIME_UNITS = 1_000_000
"""Solver time units in a lower bound on the time of the slowest group."""

RELATIVE_GAP = 1e-4
"""A solution this close to the solver's bound ends the solve; prices tell no finer."""

DETERMINISTIC_LIMIT = 0.25
"""Deterministic time of each solve, in CP-SAT's own units (about seconds on a fast core)."""

Group = tuple[int, dict[int, int]]
"""A used group: its column in the prices, and its sequences by bucket (row of ``names``)."""


@dataclasses.dataclass(frozen=True)
class Grouping:
    """The groups of one micro-batch, the time of the slowest, and whether it is proven the least."""

    groups: list[Group]
    time_ns: int
    optimal: bool


def plan_flexsp(problem: Problem) -> Plan:
    """FlexSP with exact lengths. Raises :class:`InfeasibleError` where memory allows no groups."""
    return _plan(problem, "flexsp", {length: length for length in _lengths(problem.batch.sequences)})


def plan_flexsp_16(problem: Problem) -> Plan:
    """FlexSP with its length buckets. Raises :class:`InfeasibleError` where memory allows no groups."""
    counts = _lengths(problem.batch.sequences)
    longest = max(problem.counts, key=lambda bucket: bucket.num_tokens)
    a_token = max(1, problem.whole(longest).kept_bytes // longest.num_tokens)
    capacity = problem.cluster.num_ranks * problem.memory.room_bytes // a_token
    number, tokens = BUCKETS, problem.batch.num_tokens
    tops = length_buckets(counts, number)
    while 2 * (tokens + rounding_waste(counts, tops)) > tokens + capacity and number < len(counts):
        number += 1
        tops = length_buckets(counts, number)
    return _plan(problem, "flexsp-16", tops)


def _plan(problem: Problem, name: str, tops: Mapping[int, int]) -> Plan:
    """The least sum over micro-batches, for the numbers of them that the source tries."""
    require_placeable(problem)
    splits = splits_by_degree(problem, heads_first)
    powers = [size for size in splits if size & (size - 1) == 0]
    prices = group_prices(problem, [splits[size] for size in powers])
    clips = sorted(problem.batch.sequences, key=lambda clip: (-clip.bucket.num_tokens, clip.bucket))
    stand_in = _stand_ins(problem, prices, tops)
    best: tuple[int, list[tuple[Sequence[Clip], Grouping]]] | None = None
    solved: dict[tuple[int, ...], Grouping | None] = {}
    least = _least_micro_batches(problem, prices)
    for number in range(least, len(clips) + 1):
        if number > least + MORE_MICRO_BATCHES and best is not None:
            break
        chunks = token_chunks(clips, number)
        counts = [_counted(prices, chunk, stand_in) for chunk in chunks]
        groupings: list[Grouping] = []
        for index, counted in enumerate(counts):
            at_least = sum(grouping.time_ns for grouping in groupings)
            at_least += sum(slowest_at_least(problem, prices, later) for later in counts[index:])
            if best is not None and at_least >= best[0]:
                break
            key = tuple(counted.tolist())
            if key not in solved:
                solved[key] = solve_groups(problem, prices, counted)
            grouping = solved[key]
            if grouping is None:
                break
            groupings.append(grouping)
        total = sum(grouping.time_ns for grouping in groupings)
        if len(groupings) == number and (best is None or total < best[0]):
            best = (total, list(zip(chunks, groupings, strict=True)))
    if best is None:
        raise InfeasibleError("memory allows no groups of powers of two for this batch", fix="more ranks")
    placements: list[Placement] = []
    for stage, (chunk, grouping) in enumerate(best[1]):
        placements += _decode(problem, prices, chunk, grouping, stand_in, stage)
    proven = all(grouping.optimal for _, grouping in best[1])
    solver = Solver(name="cp-sat, virtual groups", status="optimal" if proven else "feasible")
    notes = [_label(prices, [grouping for _, grouping in best[1]])]
    if len(set(tops.values())) < len(tops):
        notes.append(f"{len(tops)} lengths rounded up to {len(set(tops.values()))}")
    return make_plan(problem, name, placements, bound=best_bound(problem), solver=solver, notes=tuple(notes))


def solve_groups(problem: Problem, prices: GroupPrices, counts: Amounts) -> Grouping | None:
    """One micro-batch's programme: the least time of the slowest group for ``counts`` of each bucket.

    None where memory allows no groups. Memory rows join only where the solution without them does not fit.
    """
    starts = equal_groups(problem, prices, counts)
    start = min(starts, key=lambda grouping: grouping.time_ns, default=None)
    for with_memory in (False, True):
        found = _solve(problem, prices, counts, start, with_memory=with_memory)
        if found is None or _fits(problem, prices, found):
            break
    if found is None or (start is not None and start.time_ns < found.time_ns):
        return start
    return found


def slowest_at_least(problem: Problem, prices: GroupPrices, counts: Amounts) -> int:
    """A bound on the time of the slowest group: the fastest way of every sequence, and all of their least work."""
    present = counts > 0
    work = (prices.floor_ns * prices.degrees[:, None]).min(axis=0)
    area = ceil_div(int((counts * work).sum()), problem.cluster.num_ranks)
    return max(area, int(prices.floor_ns[:, present].min(axis=0).max()))


def _solve(
    problem: Problem, prices: GroupPrices, counts: Amounts, start: Grouping | None, *, with_memory: bool
) -> Grouping | None:
    num_ranks, room = problem.cluster.num_ranks, problem.memory.room_bytes
    rows = [row for row in range(len(prices.names)) if counts[row]]
    alone = prices.kept_bytes + prices.live_bytes
    lower = slowest_at_least(problem, prices, counts)
    unit = max(1, lower // TIME_UNITS)
    model = cp_model.CpModel()
    top = sum(int(counts[row]) * ceil_div(int(prices.floor_ns[:, row].max()), unit) for row in rows)
    slowest = model.new_int_var(lower // unit, top + ceil_div(int(prices.calls_ns.max()), unit), "slowest")
    groups: list[tuple[int, cp_model.IntVar, dict[int, cp_model.IntVar]]] = []
    for column, size in enumerate(prices.degrees.tolist()):
        for index in range(num_ranks // size):
            used = model.new_bool_var("m")
            amounts = {r: model.new_int_var(0, int(counts[r]), "A") for r in rows if alone[column, r] <= room}
            for row, amount in amounts.items():
                model.add(amount <= int(counts[row]) * used)
            model.add(sum(amounts.values()) >= used)
            time = sum(ceil_div(int(prices.floor_ns[column, r]), unit) * a for r, a in amounts.items())
            model.add(time + ceil_div(int(prices.calls_ns[column]), unit) * used <= slowest)
            if index:
                model.add_implication(used, groups[-1][1])
            if with_memory:
                _limit_memory(model, prices, column, amounts, room)
            groups.append((column, used, amounts))
    for row in rows:
        model.add(sum(amounts[row] for _, _, amounts in groups if row in amounts) == int(counts[row]))
    taken = sum(int(prices.degrees[column]) * used for column, used, _ in groups)
    model.add(taken == num_ranks if num_ranks & (num_ranks - 1) == 0 else taken <= num_ranks)
    _hint(model, groups, start)
    model.minimize(slowest)
    solver = make_solver(DETERMINISTIC_LIMIT, gap=RELATIVE_GAP, linearization=2)
    status = solve(solver, model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    chosen = [
        (column, {row: solver.value(amount) for row, amount in amounts.items() if solver.value(amount)})
        for column, used, amounts in groups
        if solver.value(used)
    ]
    return _grouping(prices, chosen, optimal=solver.best_objective_bound >= solver.objective_value)


def _limit_memory(
    model: cp_model.CpModel, prices: GroupPrices, column: int, amounts: Mapping[int, cp_model.IntVar], room: int
) -> None:
    """Kept bytes add up over a group's sequences, and the largest live segment is held once."""
    live = model.new_int_var(0, room // MIB, "live")
    kept: list[cp_model.LinearExprT] = [live]
    for row, amount in amounts.items():
        kept.append(ceil_div(int(prices.kept_bytes[column, row]), MIB) * amount)
        present = model.new_bool_var("present")
        model.add(amount == 0).only_enforce_if(present.negated())
        model.add(live >= ceil_div(int(prices.live_bytes[column, row]), MIB)).only_enforce_if(present)
    model.add(cp_model.LinearExpr.sum(kept) <= room // MIB)


def _hint(
    model: cp_model.CpModel,
    groups: Sequence[tuple[int, cp_model.IntVar, dict[int, cp_model.IntVar]]],
    start: Grouping | None,
) -> None:
    if start is None:
        return
    waiting = list(start.groups)
    for column, used, amounts in groups:
        held = waiting.pop(0)[1] if waiting and waiting[0][0] == column else {}
        model.add_hint(used, bool(held))
        for row, amount in amounts.items():
            model.add_hint(amount, held.get(row, 0))


def equal_groups(problem: Problem, prices: GroupPrices, counts: Amounts) -> list[Grouping]:
    """Groups of one size, longest sequences first to the least loaded group; those that fit, and leave none empty."""
    found = []
    for column, size in enumerate(prices.degrees.tolist()):
        number = problem.cluster.num_ranks // size
        if number * size != problem.cluster.num_ranks or number > int(counts.sum()):
            continue
        members: list[dict[int, int]] = [{} for _ in range(number)]
        loads = [(0, index) for index in range(number)]
        floor = prices.floor_ns[column]
        for row in sorted(range(len(counts)), key=lambda row: (-int(floor[row]), row)):
            for _ in range(int(counts[row])):
                load, index = loads[0]
                heapq.heapreplace(loads, (load + int(floor[row]), index))
                members[index][row] = members[index].get(row, 0) + 1
        grouping = _grouping(prices, [(column, held) for held in members], optimal=False)
        if _fits(problem, prices, grouping):
            found.append(grouping)
    return found


def _grouping(prices: GroupPrices, groups: list[Group], *, optimal: bool) -> Grouping:
    ends = [
        int(prices.calls_ns[column]) + sum(int(prices.floor_ns[column, row]) * n for row, n in held.items())
        for column, held in groups
    ]
    return Grouping(groups, max(ends), optimal)


def _fits(problem: Problem, prices: GroupPrices, grouping: Grouping) -> bool:
    for column, held in grouping.groups:
        kept = sum(int(prices.kept_bytes[column, row]) * n for row, n in held.items())
        if kept + max((int(prices.live_bytes[column, row]) for row in held), default=0) > problem.memory.room_bytes:
            return False
    return True


def token_chunks(clips: Sequence[Clip], number: int) -> list[Sequence[Clip]]:
    """Runs of the sequences, in order, of which the one with the most tokens has as few as can be; none is empty."""
    lengths = [clip.bucket.num_tokens for clip in clips]
    low, high = max(lengths), sum(lengths)
    while low < high:
        middle = (low + high) // 2
        if len(_runs(lengths, middle, 1)) <= number:
            high = middle
        else:
            low = middle + 1
    ends = _runs(lengths, low, number)
    return [clips[first:last] for first, last in zip([0, *ends[:-1]], ends, strict=True)]


def _runs(lengths: Sequence[int], capacity: int, at_least: int) -> list[int]:
    """Ends of runs of at most ``capacity`` tokens, cut as late as can be while ``at_least`` runs remain possible."""
    ends: list[int] = []
    held = 0
    for index, length in enumerate(lengths):
        must = len(lengths) - index <= at_least - len(ends) - 1
        if index and (held + length > capacity or must):
            ends.append(index)
            held = 0
        held += length
    return [*ends, len(lengths)]


def _least_micro_batches(problem: Problem, prices: GroupPrices) -> int:
    """No fewer hold the batch: what its sequences keep at least, over the room of all ranks."""
    alone = prices.kept_bytes + prices.live_bytes > problem.memory.room_bytes
    kept = [
        min((int(k) * int(d) for k, d, over in zip(column, prices.degrees, out, strict=True) if not over), default=0)
        for column, out in zip(prices.kept_bytes.T, alone.T, strict=True)
    ]
    needed = sum(int(n) * k for n, k in zip(prices.counts(problem.batch.sequences), kept, strict=True))
    return max(1, ceil_div(needed, problem.cluster.num_ranks * problem.memory.room_bytes))


def _lengths(clips: Sequence[Clip]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for clip in clips:
        counts[clip.bucket.num_tokens] = counts.get(clip.bucket.num_tokens, 0) + 1
    return counts


def _stand_ins(problem: Problem, prices: GroupPrices, tops: Mapping[int, int]) -> dict[str, int]:
    """The row that stands for every bucket in the programme: its own, or one of the length it is rounded up to."""
    of_length: dict[int, int] = {}
    for bucket in problem.counts:
        of_length.setdefault(bucket.num_tokens, prices.names.index(bucket.name))
    return {
        bucket.name: prices.names.index(bucket.name)
        if tops[bucket.num_tokens] == bucket.num_tokens
        else of_length[tops[bucket.num_tokens]]
        for bucket in problem.counts
    }


def _counted(prices: GroupPrices, chunk: Sequence[Clip], stand_in: Mapping[str, int]) -> Amounts:
    counts = prices.counts(())
    for clip in chunk:
        counts[stand_in[clip.bucket.name]] += 1
    return counts


def _decode(
    problem: Problem,
    prices: GroupPrices,
    chunk: Sequence[Clip],
    grouping: Grouping,
    stand_in: Mapping[str, int],
    stage: int,
) -> list[Placement]:
    waiting: dict[int, list[Clip]] = {}
    for clip in reversed(chunk):
        waiting.setdefault(stand_in[clip.bucket.name], []).append(clip)
    sizes = [int(prices.degrees[column]) for column, _ in grouping.groups]
    placements: list[Placement] = []
    for (column, held), ranks in zip(grouping.groups, lay_out(problem.cluster, sizes), strict=True):
        members = [waiting[row].pop() for row, count in sorted(held.items()) for _ in range(count)]
        placements += place(members, prices.configs[column], ranks, stage)
    return placements


def _label(prices: GroupPrices, groupings: Sequence[Grouping]) -> str:
    """Groups of every micro-batch, the largest first."""
    parts = []
    for grouping in groupings:
        sizes = [int(prices.degrees[column]) for column, _ in grouping.groups]
        parts.append(" + ".join(f"{sizes.count(size)} x {size}" for size in sorted(set(sizes), reverse=True)))
    steps = "1 micro-batch" if len(parts) == 1 else f"{len(parts)} micro-batches with barriers"
    return f"{steps}: " + "; ".join(parts)
