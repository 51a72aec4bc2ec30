"""The default planner: sand-aware search over aligned blocks, adaptive cut, filler packing, certificates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from zellige.errors import NoRoomError
from zellige.placement import Placement, Plan, Problem, Solver, make_plan, require_placeable
from zellige.plan.bounds import best_bound, least_time
from zellige.plan.chain import chain_ns
from zellige.plan.drafts import CLOSE, Draft, Task, block_choices, draft, make_task, whole_rung
from zellige.plan.search import NEVER, Budget
from zellige.plan.uniform import fill_groups, group_ways, uniform_degrees
from zellige.problem import Rung
from zellige.shards import WHOLE, ParallelConfig

SHARES = (5, 20, 50, 100)
"""Fillers longer than this part of the bound become anchors, round by round (a fifth, 5 %, 2 %, 1 %)."""

MAX_ANCHORS = 40
"""Anchors a pod's worth of ranks beyond which no filler becomes one."""

GOOD = 9
"""A draft within 2**-9 (0.2 %) of what its anchors reached, or of its bound, ends the rounds of the cut."""

NODES = 900
"""Nodes that the searches of a plan visit together; they bound its planning time."""

NEAR = 8
"""A plan within 2**-8 (0.4 %) of the bound that holds for any blocks ends the trial of more shapes of blocks."""


class Family(NamedTuple):
    """Plans with ring rounds up to a limit: the time that their sequences' options take at least, without and with the
    calls that the engine adds. Limit 0 splits nothing."""

    limit: int
    least: int
    fewest_calls: int
    calls: int


def plan_zellige(problem: Problem) -> Plan:
    """The best of the drafts and of uniform groups, certified.

    Of drafts within 2**-11 of the fastest, the one whose chain of split work exceeds its step least, then the one that
    moves the fewest bytes. Raises :class:`NoRoomError` where memory leaves no place for something,
    :class:`SequenceTooLargeError` where a sequence fits under no option.
    """
    require_placeable(problem)
    families = _families(problem)
    lowers: dict[int, int] = {}
    drafts = _drafts(problem, families, lowers)
    drafts += _uniform(problem, min((makespan for makespan, _ in drafts), default=NEVER))
    if not drafts:
        raise NoRoomError("memory allows no plan", fix="fewer sequences a step, more ranks, or more micro-steps")
    fastest = min(makespan for makespan, _ in drafts)
    close = [(makespan, draft) for makespan, draft in drafts if makespan <= fastest + (fastest >> CLOSE)]
    chosen = min(close, key=lambda scored: _preference(problem, *scored))[1] if len(close) > 1 else close[0][1]
    exact = problem.engine != "group"
    return make_plan(
        problem,
        "zellige",
        list(_placements(problem, chosen)),
        bound=best_bound(problem),
        blocks_bound_ns=_blocks_bound(families, lowers) if exact else None,
        solver=Solver(name="aligned search", status="heuristic"),
        notes=(chosen.origin,),
    )


def _drafts(problem: Problem, families: list[Family], lowers: dict[int, int]) -> list[tuple[int, Draft]]:
    """(makespan, draft) of the widest family, and of others whose fewer calls can make up for it; fills ``lowers``."""
    scored: list[tuple[int, Draft]] = []
    budget = Budget(NODES)
    for family in [families[-1], *sorted(families[:-1], key=_least_step)]:
        if scored:
            makespan, fastest = min(scored, key=_makespan)
            saved = _calls(problem, fastest.rounds) - family.calls
            if saved <= makespan >> GOOD or family.least + family.fewest_calls >= makespan:
                continue
        found, lowers[family.limit] = _solve(problem, family, budget)
        scored += [(draft.longest + _calls(problem, draft.rounds), draft) for draft in found]
    return scored


def _uniform(problem: Problem, makespan: int) -> list[tuple[int, Draft]]:
    """Uniform groups that may be faster than a makespan and fit."""
    found = []
    for least, degree, rungs in uniform_degrees(problem):
        rounds = max(rung.option.config.k for rung in rungs.values()) if degree > 1 else 0
        if least + _calls(problem, min(rounds, 1)) >= makespan:
            continue
        counts, ranks = fill_groups(problem, degree, rungs)
        reached = max(ranks.time) + _calls(problem, rounds)
        if reached < makespan and ranks.fit(problem.memory.room_bytes):
            ways = group_ways(degree, rungs, counts)
            found.append((reached, Draft(split=ways, longest=max(ranks.time), origin=f"uniform groups of {degree}")))
    return found


def _preference(problem: Problem, makespan: int, draft: Draft) -> tuple[int, int, int]:
    """What waits for the chain, bytes, time: the less the better."""
    chain = 0
    if problem.engine == "coalesced" and draft.rounds:
        chain = chain_ns(problem, [way for way in draft.split if way.rung.degree > 1]) + _calls(problem, draft.rounds)
    return max(0, chain - makespan), sum(way.rung.option.comm_bytes for way in draft.split), makespan


def _least_step(family: Family) -> tuple[int, int]:
    return family.least + family.calls, family.limit


def _makespan(scored: tuple[int, Draft]) -> int:
    return scored[0]


def _calls(problem: Problem, rounds: int) -> int:
    """What the coalesced engine adds to every rank."""
    if problem.engine != "coalesced" or not rounds:
        return 0
    return problem.shared_calls_ns(problem.cluster.num_ranks, problem.cluster.num_nodes, rounds)


def _families(problem: Problem) -> list[Family]:
    """Families of plans that differ in the calls that the engine adds."""
    limits = list(problem.ring_limits) if problem.engine == "coalesced" else list(problem.ring_limits[-1:])
    families = []
    for limit in [0, *limits] if problem.engine == "coalesced" else limits:
        fronts = [(count, problem.fronts_within[limit][bucket.name]) for bucket, count in problem.counts.items()]
        if not all(front for _, front in fronts):
            continue
        least = least_time(fronts, problem.cluster.num_ranks)
        fewest = limit // 2 + 1 if limit else 0
        families.append(Family(limit, least, _calls(problem, fewest), _calls(problem, limit)))
    return families


def _solve(problem: Problem, family: Family, budget: Budget) -> tuple[list[Draft], int]:
    """Drafts of a family, and a lower bound on the longest rank for all block shapes that were tried.

    Rounds of the adaptive cut go on while it is the fillers that keep a draft above what its anchors reached; wider
    choices of blocks are tried where the anchors stay far above the bound.
    """
    rungs = problem.rungs_within[family.limit] if family.limit else _whole_only(problem)
    attempt = Attempt([], NEVER, False)
    for shapes in block_choices(problem, rungs, family.least):
        task = make_task(problem, rungs, family.least, shapes, Budget(budget.nodes // 2))
        budget.nodes -= budget.nodes // 2
        attempt = _adapt(task, attempt)
        longest = min((draft.longest for draft in attempt.drafts), default=NEVER)
        if longest <= family.least + (family.least >> NEAR):
            break
    return attempt.drafts, max(attempt.lower, family.least)


def _whole_only(problem: Problem) -> dict[str, tuple[Rung, ...]]:
    return {name: tuple(rung for rung in rungs if rung.degree == 1) for name, rungs in problem.rungs_within[1].items()}


class Attempt(NamedTuple):
    """The drafts so far, a lower bound on the longest rank, and whether memory binds."""

    drafts: list[Draft]
    lower: int
    binds: bool


def _adapt(task: Task, before: Attempt) -> Attempt:
    """Drafts with more and more fillers as anchors, until one comes close to what its anchors allow."""
    drafts, binds = list(before.drafts), before.binds or _memory_binds(task)
    lower = task.start
    seen: list[dict[str, int]] = []
    for share in SHARES[1:] if binds else SHARES:
        anchors = _anchors(task, share)
        if anchors in seen:
            continue
        seen.append(anchors)
        found = draft(task, anchors, binds=binds)
        if not binds and (found is None or not found.loose):
            binds = True
            drafts += [found] if found else []
            found = draft(task, anchors, binds=True)
        if found is None:
            continue
        lower = max(lower, found.lower)
        drafts.append(found)
        if found.longest <= max(found.target, lower) + (lower >> GOOD) or task.budget.nodes <= 0:
            break
    return Attempt(drafts, min(before.lower, lower), binds)


def _memory_binds(task: Task) -> bool:
    """Whether sequences at their least work fill more than 60 % of the memory."""
    needed = sum(
        number * (task.rungs[name][0].kept + task.rungs[name][0].live) * task.rungs[name][0].degree
        for name, number in task.numbers.items()
    )
    return 5 * needed > 3 * task.problem.cluster.num_ranks * task.problem.memory.room_bytes


def _anchors(task: Task, share: int) -> dict[str, int]:
    """How many sequences of each bucket are anchors: all that fit on no rank whole or take longer than a part of the
    bound, the longest first, up to a limit."""
    most = MAX_ANCHORS * max(1, task.problem.cluster.num_ranks // 32)
    anchors = {}
    ordered = []
    for name, number in task.numbers.items():
        whole = whole_rung(task.rungs[name])
        if whole is None or whole.time > task.start:
            anchors[name] = number
            most -= number
        elif whole.time * share > task.start:
            ordered.append((-whole.time, name, number))
    for _, name, number in sorted(ordered):
        taken = min(number, most)
        if taken > 0:
            anchors[name] = taken
            most -= taken
    return anchors


def _placements(problem: Problem, found: Draft) -> Iterator[Placement]:
    """The draft as placements; sequences of a bucket are interchangeable and take its places in batch order."""
    places: dict[str, list[tuple[ParallelConfig, tuple[int, ...]]]] = {}
    for bucket, rung, ranks in found.split:
        places.setdefault(bucket, []).append((rung.option.config, ranks))
    alone = [(WHOLE, (rank,)) for rank in range(problem.cluster.num_ranks)]
    for bucket, counts in found.whole.items():
        taken = places.setdefault(bucket, [])
        for rank, count in enumerate(counts):
            taken.extend([alone[rank]] * count)
    waiting = {bucket: (bucket.name, iter(places[bucket.name])) for bucket in problem.counts}
    for sequence in problem.batch.sequences:
        name, left = waiting[sequence.bucket]
        config, ranks = next(left)
        yield Placement(sequence=sequence.id, bucket=name, config=config, ranks=ranks)


def _blocks_bound(families: list[Family], lowers: dict[int, int]) -> int:
    """A bound on plans of aligned blocks: what was searched for a limit holds for families of lower limits too."""
    bounds = []
    for family in families:
        wider = [lower for limit, lower in lowers.items() if limit >= family.limit]
        bounds.append(max([family.least, *wider]) + family.fewest_calls)
    return min(bounds)
