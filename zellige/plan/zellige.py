"""The default planner: sand-aware search over aligned blocks, adaptive cut, filler packing, certificates."""

from __future__ import annotations

from typing import NamedTuple

from zellige.errors import NoRoomError
from zellige.placement import Placement, Plan, Problem, Share, Solver, Tally, make_plan, rank_costs, require_placeable
from zellige.plan.adapt import Attempt, adapt, memory_may_bind
from zellige.plan.any_sets import Certificate
from zellige.plan.attempt_kernel import CLOSE, GOOD, NEAR
from zellige.plan.blocks import Shape
from zellige.plan.bounds import best_bound, least_time_of, whole_time_of
from zellige.plan.by_kinds import Effort
from zellige.plan.by_nodes import nodes_draft
from zellige.plan.chain import calls_ns
from zellige.plan.choice import choose, expected_step_ns, least_step_ns, makespan_ns
from zellige.plan.drafts import polish
from zellige.plan.free_sets import WAITING, free_drafts
from zellige.plan.leftover import leftover_in_pods
from zellige.plan.rebuilt import rebuilt
from zellige.plan.refuted import BlocksBound, Reach
from zellige.plan.restarts import restarted
from zellige.plan.room import require_room, without_plan
from zellige.plan.search import Budget
from zellige.plan.search_kernel import NEVER
from zellige.plan.task import ONE_POD, Draft, Task, block_choices, make_task
from zellige.plan.uniform import fill_groups, group_ways, uniform_degrees
from zellige.problem import Rung
from zellige.shards import WHOLE, ParallelConfig
from zellige.trace import no_collection
from zellige.units import format_time

SHARES = (5, 20, 50, 100)
"""Fillers longer than this part of the bound become anchors, round by round (a fifth, 5 %, 2 %, 1 %)."""

NODES = 6000
"""Nodes that the searches over aligned blocks visit together, for a family; they bound its planning time."""

FAR = 110
"""A makespan more than a 110th (0.9 %) above the bound within aligned blocks is far from it."""

RESTARTED, RESTARTS, LOOSE_RESTARTS = 3, 40, 8
"""So many drafts are changed, and each in so many ways, where the fastest is far from the bound; where memory is loose,
in fewer."""

REBUILT = 60
"""So many drafts are built anew where memory binds and the fastest is far still."""

EFFORTS = Effort(2000, 8000), Effort(10_000, 40_000)
"""Nodes that raise the bound within aligned blocks where memory binds, and again where the fastest is still far."""

MOST_RANKS = 256
"""Up to so many ranks, the best draft's sequences are moved one by one."""


class Family(NamedTuple):
    """Plans with ring rounds up to a limit: the time that their sequences' options take at least, without and with the
    calls that the engine adds. Limit 0 splits nothing."""

    limit: int
    least: int
    fewest_calls: int
    calls: int


@no_collection()
def plan_zellige(problem: Problem) -> Plan:
    """The best of the drafts and of uniform groups, certified.

    Of drafts whose expected step, waits included, is within 2**-11 of the least, the one that moves the fewest bytes.
    Raises :class:`NoRoomError` where memory leaves no place for something,
    :class:`SequenceTooLargeError` where a sequence fits under no option.
    """
    _require_possible(problem)
    families = _families(problem)
    lowers: dict[int, Lower] = {}
    known = Certificate(problem, *best_bound(problem))
    drafts = _drafts(problem, families, lowers, known)
    if not known.is_near(min((makespan for makespan, _ in drafts), default=NEVER), GOOD):
        drafts += _uniform(problem, least_step_ns(problem, drafts))
    if not drafts:
        raise _no_plan(problem)
    fastest, _ = min(drafts, key=_makespan)
    if not known.is_near(fastest, NEAR):
        known.search(fastest)
    blocks = _blocks_bound(problem, families, lowers, known.bound)
    drafts += _far_from_bound(problem, families, drafts, blocks)
    blocks_bound = min(blocks.bound, *(makespan for makespan, _ in drafts)) if problem.engine != "group" else None
    return _plan_of(problem, choose(problem, drafts), (known.bound, known.name), blocks_bound)


@no_collection()
def try_zellige(problem: Problem) -> Plan:
    """The first draft that :func:`plan_zellige` comes upon, as a plan: there is one where that finds a plan, and only
    there, and no time goes into a better one or a bound. Raises the same errors."""
    _require_possible(problem)
    drafts = _drafts(problem, _families(problem), {}, None) or _uniform(problem, NEVER)
    if not drafts:
        raise _no_plan(problem)
    return _plan_of(problem, drafts[0][1], best_bound(problem), None)


def _require_possible(problem: Problem) -> None:
    """Raise where a sequence fits under no option, or all ranks together have no room for the batch.

    The latter looks at every option, which takes longer than some plans: so only where even the ways of the least work
    keep more than there is room for, which is never less.
    """
    require_placeable(problem)
    ways = [(count, rung) for name, count in problem.numbers.items() for rung in problem.rungs[name][:1]]
    kept = sum([count * rung.kept * rung.degree for count, rung in ways])
    if kept > problem.cluster.num_ranks * problem.memory.room_bytes:
        require_room(problem, 1)


def _no_plan(problem: Problem) -> NoRoomError:
    """Why there is none: memory; or prices beyond what the searches compare, which no memory mends."""
    work = sum([count * rung.work for name, count in problem.numbers.items() for rung in problem.rungs[name][:1]])
    if work >= NEVER * problem.cluster.num_ranks:
        return NoRoomError(
            f"the sequences take at least {format_time(work // problem.cluster.num_ranks)} on every rank;"
            f" steps of {format_time(NEVER)} and more are not planned",
            fix="prices in nanoseconds, or fewer sequences a step",
        )
    fix = "fewer sequences a step, more ranks, or more micro-steps"
    return without_plan(problem, "no plan that fits was found", fix)


def _plan_of(problem: Problem, draft: Draft, bound: tuple[int, str], blocks_bound_ns: int | None) -> Plan:
    """A draft as a plan."""
    return make_plan(
        problem,
        "zellige",
        _placements(problem, draft),
        bound=bound,
        blocks_bound_ns=blocks_bound_ns,
        solver=Solver(name="aligned search", status="heuristic"),
        notes=(draft.origin,),
        tally=_tally(problem, draft),
        sealed=False,
    )


def _drafts(
    problem: Problem, families: list[Family], lowers: dict[int, Lower], known: Certificate | None
) -> list[tuple[int, Draft]]:
    """(makespan, draft) of the first family, of others whose fewer calls can make up for it, and of the widest where
    the first is not near what it may reach; fills ``lowers``. Without a certificate the first draft will do."""
    scored: list[tuple[int, Draft]] = []
    for family in _in_order(families):
        if scored and known is None:
            break
        if scored:
            makespan, fastest = min(scored, key=_makespan)
            saved = calls_ns(problem, fastest.rounds) - family.calls
            if family is families[-1] or not fastest.rounds:
                saved = makespan - (makespan >> NEAR) - family.least - family.fewest_calls
            if saved <= makespan >> GOOD or family.least + family.fewest_calls >= makespan:
                continue
        found, lowers[family.limit] = _solve(problem, family, Budget(NODES), known, first=not scored)
        scored += [(draft.longest + calls_ns(problem, draft.rounds), draft) for draft in found]
    return scored


def _far_from_bound(
    problem: Problem, families: list[Family], drafts: list[tuple[int, Draft]], blocks: BlocksBound
) -> list[tuple[int, Draft]]:
    """Where all drafts are far from the bound within aligned blocks, those that the local search finds from the fastest
    ones changed; where memory binds, the bound is raised before, and with more nodes if it is far still."""
    widest, fastest = _rungs_of(problem, families[-1]), min(makespan for makespan, _ in drafts)
    small = problem.cluster.num_ranks <= ONE_POD and problem.engine != "group"
    binds = memory_may_bind(problem, widest)
    if not (small and blocks.shapes) or _is_close(fastest, blocks):
        return []
    if binds:
        blocks.raise_towards(fastest, EFFORTS[0])
    if problem.engine != "coalesced" or _is_close(fastest, blocks):
        return []
    distinct = {each[0]: each for each in reversed(drafts) if each[1].split}
    near = sorted(distinct.values(), key=_makespan)[:RESTARTED]
    task = Task(problem, widest, problem.numbers, families[-1].least, frozenset(), Budget(0))
    goal = blocks.bound + blocks.bound // FAR
    limit = RESTARTS if binds else LOOSE_RESTARTS
    changed = [restarted(task, draft, goal - calls_ns(problem, draft.rounds), limit) for _, draft in near]
    found = [(makespan_ns(problem, draft), draft) for draft in changed]
    fastest = min([fastest, *(makespan for makespan, _ in found)])
    if binds and near and not _is_close(fastest, blocks):
        found += _anew(task, min([*near, *found], key=_makespan)[1], goal)
        fastest = min([fastest, *(makespan for makespan, _ in found)])
    if binds and not _is_close(fastest, blocks):
        blocks.raise_towards(fastest, EFFORTS[1])
    return found


def _anew(task: Task, draft: Draft, goal: int) -> list[tuple[int, Draft]]:
    """The best draft built anew with ring rounds up to those of another, and changed; none where none fits."""
    goal -= calls_ns(task.problem, draft.rounds)
    built = rebuilt(task, draft, goal, REBUILT)
    if built is None:
        return []
    found = restarted(task, built, goal, RESTARTS)
    return [(makespan_ns(task.problem, found), found)]


def _is_close(makespan: int, blocks: BlocksBound) -> bool:
    """Whether a makespan is not far from the bound within aligned blocks."""
    return makespan <= blocks.bound + blocks.bound // FAR


def _in_order(families: list[Family]) -> list[Family]:
    """The widest first, since the others' plans are among its own; but where fewer calls save more than 0.4 % of the
    step and cost no time else, the family that has them. Then by the least step."""
    if not families:
        return []
    widest = families[-1]
    first = next(family for family in families if family.least <= widest.least + (widest.least >> CLOSE))
    if widest.fewest_calls - first.fewest_calls <= widest.least >> NEAR:
        first = widest
    return [first, *sorted((family for family in families if family is not first), key=_least_step)]


def _uniform(problem: Problem, step: int) -> list[tuple[int, Draft]]:
    """Uniform groups that may be faster than an expected step, and fit."""
    found = []
    for least, degree, rungs in uniform_degrees(problem, step):
        rounds = max(rung.option.config.k for rung in rungs.values()) if degree > 1 else 0
        if least + calls_ns(problem, rounds) >= step:
            continue
        counts, ranks = fill_groups(problem, degree, rungs)
        reached, packs = max(ranks.time) + calls_ns(problem, rounds), problem.engine == "group" and degree > 1
        if not ranks.fit(problem.memory.room_bytes) or (reached >= step and not packs):
            continue
        whole = counts if degree == 1 else {}
        ways = group_ways(degree, rungs, counts) if degree > 1 else []
        draft = Draft(split=ways, whole=whole, longest=max(ranks.time), origin=f"uniform groups of {degree}")
        if packs:
            reached = rank_costs(problem, _placements(problem, draft)).makespan_ns
        if reached < step:
            found.append((reached, draft))
    return found


def _least_step(family: Family) -> tuple[int, int]:
    return family.least + family.fewest_calls, family.limit


def _longest(draft: Draft) -> int:
    return draft.longest


def _makespan(scored: tuple[int, Draft]) -> int:
    return scored[0]


def _families(problem: Problem) -> list[Family]:
    """Families of plans that differ in the calls that the engine adds, the least first; none where nothing fits."""

    def least(limit: int) -> int:
        fronts = problem.fronts_within[limit]
        return least_time_of(problem, fronts) if all(fronts[name].times for name in problem.numbers) else NEVER

    widest = problem.ring_limits[-1]
    below = least(widest)
    if below >= NEVER:
        return []
    families: list[Family] = []
    for limit in [0, *problem.ring_limits[:-1]] if problem.engine == "coalesced" else []:
        reached = least(limit)
        if reached < NEVER:
            if not limit and reached < below + calls_ns(problem, 1):
                reached = whole_time_of(problem, problem.fronts_within[0])
            families.append(Family(limit, reached, calls_ns(problem, _fewest_rounds(limit)), calls_ns(problem, limit)))
    return [*families, Family(widest, below, calls_ns(problem, _fewest_rounds(widest)), calls_ns(problem, widest))]


def _fewest_rounds(limit: int) -> int:
    return limit // 2 + 1 if limit else 0


class Lower(NamedTuple):
    """A lower bound on the longest rank for all block shapes that were tried, and these."""

    bound: int
    shapes: frozenset[Shape]


def _solve(
    problem: Problem, family: Family, budget: Budget, known: Certificate | None, *, first: bool
) -> tuple[list[Draft], Lower]:
    """Drafts of a family, and the lower bound; without a certificate the first draft will do. Node by node long
    sequences go in the ``first`` family alone.

    Rounds of the adaptive cut go on while it is the fillers that keep a draft above what its anchors reached; wider
    choices of blocks are tried where the anchors stay far above the bound.
    """
    rungs = _rungs_of(problem, family)
    drafts, binds = free_drafts(problem, family.least, rungs, known, by_nodes=first) if family.limit else ([], False)
    moved, loose = {id(each) for each in drafts}, bool(drafts) and not binds
    free = min(drafts, key=lambda draft: makespan_ns(problem, draft), default=None)
    if free is not None and (known is None or _ends(problem, family, known, free)):
        return drafts, Lower(family.least, frozenset())
    attempt = Attempt(drafts, NEVER, binds)
    choices, tried = block_choices(problem, rungs, family.least), frozenset[Shape]()
    for shapes in choices[:1] if loose else choices:
        part = budget.nodes // (4 if loose else 2)
        task = make_task(problem, rungs, family.least, shapes, Budget(part))
        budget.nodes -= part
        tried |= shapes
        attempt = adapt(task, attempt, SHARES[:2] if loose else SHARES, any_will_do=known is None)
        fastest = min(attempt.drafts, key=_longest, default=None)
        if fastest is not None and (known is None or _is_near(problem, family, known, fastest)):
            break
    drafts = attempt.drafts
    if first and attempt.binds and not loose and known is not None and family.limit:
        by_nodes = nodes_draft(problem, family.least, rungs, binds=True)
        drafts = [*drafts, by_nodes] if by_nodes is not None else drafts
    if known is None or not drafts or problem.engine != "coalesced":
        return drafts, Lower(max(attempt.lower, family.least), tried)
    nearest = min(drafts, key=lambda draft: makespan_ns(problem, draft))
    if problem.cluster.num_ranks > ONE_POD and family.limit and not _is_near(problem, family, known, nearest):
        drafts = [*drafts, *leftover_in_pods(task)]
    if problem.cluster.num_ranks <= MOST_RANKS:
        best = min(drafts, key=_longest)
        if best.split and best.longest > family.least + (family.least >> GOOD) and id(best) not in moved:
            drafts = [*drafts, polish(task, best)]
    return drafts, Lower(max(attempt.lower, family.least), tried)


def _is_near(problem: Problem, family: Family, known: Certificate, draft: Draft) -> bool:
    """Whether a draft is within 0.4 % of the family's least time, or its makespan of what any plan takes."""
    return draft.longest <= family.least + (family.least >> NEAR) or known.is_near(makespan_ns(problem, draft), NEAR)


def _ends(problem: Problem, family: Family, known: Certificate, draft: Draft) -> bool:
    """Whether a draft is near and does not wait, so that no search over blocks follows."""
    return _is_near(problem, family, known, draft) and not _waits(problem, draft)


def _waits(problem: Problem, free: Draft) -> bool:
    """Whether a draft's step is expected to take more than 0.4 % longer than its makespan."""
    makespan = makespan_ns(problem, free)
    return expected_step_ns(problem, free, makespan) > makespan + (makespan >> WAITING)


def _rungs_of(problem: Problem, family: Family) -> dict[str, tuple[Rung, ...]]:
    """The ways that a family's sequences may run."""
    if family.limit:
        return problem.rungs_within[family.limit]
    return {name: tuple(rung for rung in rungs if rung.degree == 1) for name, rungs in problem.rungs_within[1].items()}


def _placements(problem: Problem, found: Draft) -> list[Placement]:
    """The draft as placements; sequences of a bucket are interchangeable and take its places in batch order."""
    places: dict[str, list[tuple[ParallelConfig, tuple[int, ...]]]] = {}
    for bucket, rung, ranks in found.split:
        places.setdefault(bucket, []).append((rung.option.config, ranks))
    alone = [(WHOLE, (rank,)) for rank in range(problem.cluster.num_ranks)]
    for bucket, counts in found.whole.items():
        taken = places.setdefault(bucket, [])
        for place, count in zip(alone, counts, strict=True):
            if count:
                taken.extend([place] * count)
    return [
        Placement(sequence=sequence, bucket=name, config=config, ranks=ranks)
        for name, sequences in zip(problem.numbers, problem.members.values(), strict=True)
        for sequence, (config, ranks) in zip(sequences, places[name], strict=True)
    ]


def _tally(problem: Problem, found: Draft) -> Tally:
    """The draft's sequences, counted."""
    whole = [(option, counts) for name, counts in found.whole.items() if (option := problem.option(name, WHOLE, 1))]
    return Tally([Share(way.rung.option, way.ranks, 1) for way in found.split], whole)


def _blocks_bound(problem: Problem, families: list[Family], lowers: dict[int, Lower], known: int) -> BlocksBound:
    """A bound on plans of aligned blocks, no less than a known one: what was searched for a limit holds for families of
    lower limits too."""
    kinds = []
    for family in families:
        wider = [lower.bound for limit, lower in lowers.items() if limit >= family.limit]
        least = max([family.least, known - family.fewest_calls, *wider])
        kinds.append(Reach(_rungs_of(problem, family), least, family.fewest_calls))
    return BlocksBound(problem, kinds, frozenset().union(*[lower.shapes for lower in lowers.values()]))
