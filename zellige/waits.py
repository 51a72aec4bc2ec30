"""What ranks of a coalesced step wait for, from prices: how long the step takes with its waits, and which whole
sequences a rank runs first, while its exchange in is under way, so that the fewest wait.

What a rank runs before its attention holds up those that share a sequence with it at the exchange back; what it runs
after that holds up those that it meets in the next layer. A plan whose ranks are equally busy may wait for a third of
the step if its whole sequences are cut in the wrong place, and for none of it otherwise (docs/planner.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from zellige import waits_kernel
from zellige.memory import Checkpoint
from zellige.placement import Placement
from zellige.problem import Option, Problem
from zellige.shards import WHOLE
from zellige.waits_kernel import CORE_PARTS, FULL, LEVEL, NONE, SELECTIVE, Ints, Plan, Room

CUTS = (LEVEL, 50, -50, 90, -25, 75)
"""First batches that are tried: the one that levels the ends of attention, then parts of the whole work in percent, the
longest sequences first or (negative) the shortest."""

AGAIN: Mapping[Checkpoint, int] = {"none": NONE, "selective": SELECTIVE, "full": FULL}

PROJECTIONS = 6
"""FLOPs of the Q, K and V projections of a token, in squares of the hidden size."""

LARGEST = 2**56
"""Sums of a plan's figures stay below this where loops are compiled; a few layers of both passes are added up."""


class Way(NamedTuple):
    """A split sequence: its bucket, how it runs, and on which ranks."""

    bucket: str
    option: Option
    ranks: Sequence[int]


class Cut(NamedTuple):
    """The step with its waits, in nanoseconds, and by bucket how many of each rank's whole sequences run first."""

    step_ns: int
    first: dict[str, list[int]]


class Loops(NamedTuple):
    """How the loops of :mod:`zellige.waits_kernel` are run: as they are, or compiled and on arrays."""

    best_cut: Callable[[Plan, Room, Any, int, Ints], int]
    array: Callable[[Any], Ints]
    table: Callable[[list[list[int]], int], Ints]
    zeros: Callable[..., Ints]


def zero_lists(*shape: int) -> Ints:
    """Zeros as lists of lists."""
    first, *rest = shape
    return [zero_lists(*rest) for _ in range(first)] if rest else [0] * first


def rows_of(rows: list[list[int]], _: int) -> Ints:
    """Rows as they are."""
    return rows


AS_THEY_ARE = Loops(waits_kernel.best_cut, list, rows_of, zero_lists)


def best_cut(
    problem: Problem,
    ways: Sequence[Way],
    whole: Mapping[str, Sequence[int]],
    goal: int = 0,
    loops: Loops = AS_THEY_ARE,
) -> Cut:
    """The cut of the whole sequences that waits least of those that are tried, up to the first within ``goal``.

    ``whole`` has by bucket how many sequences each rank runs whole. The step is an estimate: passes are followed at
    prices, transfers of later ring rounds are taken to hide, and compute is not slowed by what runs beside it.
    """
    num_ranks = problem.cluster.num_ranks
    alone = {name: option for name in whole if (option := problem.option(name, WHOLE, 1)) is not None}
    names = sorted(alone, key=lambda name: (-alone[name].time_ns, name))
    rounds = max([way.option.config.k for way in ways], default=1)
    again = AGAIN[problem.memory.checkpoint]
    passes = 3 if again == FULL else 2
    calls = problem.shared_calls_ns(num_ranks, problem.cluster.num_nodes, rounds) if ways else 0
    rows, members = _columns(problem, ways, passes)
    plan = Plan(
        num_ranks,
        rounds,
        again,
        calls // (passes * (rounds + 1)),
        loops.table(rows, waits_kernel.BACK + 1),
        loops.array(members),
        loops.table([_kind(problem, alone[name], name) for name in names], waits_kernel.CORE + 1),
        loops.table([list(whole[name]) for name in names], num_ranks),
    )
    taken = loops.zeros(len(names), num_ranks)
    step = int(loops.best_cut(plan, _room(num_ranks, rounds, loops.zeros), loops.array(CUTS), goal, taken))
    return Cut(step, {name: [int(number) for number in taken[row]] for row, name in enumerate(names)})


def _room(num_ranks: int, rounds: int, zeros: Callable[..., Ints]) -> Room:
    return Room(
        before=zeros(2, num_ranks),
        after=zeros(2, num_ranks),
        attend=zeros(2, rounds, num_ranks),
        whole=zeros(2, num_ranks),
        first=zeros(2, num_ranks),
        moving=zeros(2, rounds + 1, num_ranks),
        linear=zeros(num_ranks),
        now=zeros(num_ranks),
        entered=zeros(num_ranks),
        then=zeros(num_ranks),
        marks=zeros(num_ranks),
        tops=zeros(num_ranks),
    )


def _columns(problem: Problem, ways: Iterable[Way], passes: int) -> tuple[list[list[int]], list[int]]:
    """The columns of split sequences, and their ranks one after another."""
    known = problem.columns
    rows: list[list[int]] = []
    members: list[int] = []
    for way in ways:
        key = id(way.option)
        if key not in known:
            known[key] = _way(problem, way, passes)
        rows.append([len(members), *known[key]])
        members += way.ranks
    return rows, members


def _way(problem: Problem, way: Way, passes: int) -> list[int]:
    """A split sequence's columns but the first.

    Of a ring's transfers what is exposed counts as attention, whose rounds it lengthens; else a pass's transfer is
    shared out by rows: before attention, a rank of q x h gets q - 1/h shards of K and of V and 1 - 1/h of Q, after it
    1 - 1/h of O; in backward the other way round.
    """
    option, config = way.option, way.option.config
    price = problem.price(way.bucket, config, option.num_nodes)
    before = price.linear_ns * PROJECTIONS * problem.model.geometry.hidden_dim**2
    project = before // problem.model.linear_flops_per_token()
    moving = option.time_ns - option.compute_ns
    attention, into, back = price.attention_ns, 0, 0
    if config.k > 1:
        early, late = CORE_PARTS
        attention += moving * late // (late + early * (passes - 2))
    else:
        rows_in, rows_back = 2 * (config.q * config.h - 1) + config.h - 1, config.h - 1
        into = moving // passes * rows_in // (rows_in + rows_back)
        back = moving // passes - into
    split = [config.q, config.h, config.k, int(option.num_nodes > 1)]
    return [*split, project, price.linear_ns - project, attention, into, back]


def _kind(problem: Problem, option: Option, name: str) -> list[int]:
    price = problem.price(name, option.config, option.num_nodes)
    return [price.linear_ns, price.attention_ns]


def first_batch(problem: Problem, placements: Sequence[Placement], goal: int) -> frozenset[str] | None:
    """The whole sequences that run while the first exchange in is under way, under the cut that is expected to wait
    least, or the first that is expected to end by ``goal``; None where nothing is split, or a split has no price."""
    ways: list[Way] = []
    whole: dict[str, list[int]] = {}
    members: dict[tuple[str, int], list[str]] = {}
    for placement in placements:
        option = problem.option_on(placement.bucket, placement.config, placement.ranks)
        if option is None:
            return None
        if placement.config.is_split:
            ways.append(Way(placement.bucket, option, placement.ranks))
            continue
        (rank,) = placement.ranks
        whole.setdefault(placement.bucket, [0] * problem.cluster.num_ranks)[rank] += 1
        members.setdefault((placement.bucket, rank), []).append(placement.sequence)
    if not ways:
        return None
    first = best_cut(problem, ways, whole, goal).first
    return frozenset(
        sequence for (bucket, rank), waiting in members.items() for sequence in waiting[: first[bucket][rank]]
    )
