"""The exact compact formulation: integer counts in place of one binary for every sequence, option and rank set.

Sequences of one bucket are interchangeable, so integers count them: ``z[option, domain]`` members use an option on a
domain (an aligned run of nodes as wide as the option's footprint). Inside a node every subset of the right size is
legal at one price, so rank sets need no variables either: ``eta[rank]`` counts the members on a rank, with
``0 <= eta <= z`` and ``sum over the node's ranks = (degree / nodes) * z``. By Gale and Ryser such counts always
decompose into z sets of distinct ranks; :func:`deal` does it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ortools.sat.python import cp_model

from zellige.placement import Option, Problem
from zellige.units import MIB, ceil_div


@dataclass(frozen=True)
class AnchorGroup:
    """``count`` interchangeable sequences and their options."""

    bucket: str
    count: int
    options: tuple[Option, ...]


@dataclass(frozen=True)
class Assignment:
    """``ranks`` of one member of a group, under an option."""

    bucket: str
    option: Option
    ranks: tuple[int, ...]


@dataclass
class Choice:
    """An option of a group on a domain: ``used`` members in all, ``on_rank`` of them on each rank of the domain."""

    group: int
    option: Option
    ranks_by_node: list[range]
    used: cp_model.IntVar
    on_rank: dict[int, cp_model.IntVar] = field(default_factory=dict)


def add_choices(model: cp_model.CpModel, problem: Problem, groups: Sequence[AnchorGroup]) -> list[Choice]:
    """Variables and constraints by which every member of every group gets an option and ranks."""
    choices = []
    for index, group in enumerate(groups):
        uses = []
        for option in group.options:
            for by_node in domains(problem, option):
                used = model.new_int_var(0, group.count, "z")
                choice = Choice(index, option, by_node, used)
                _spread_over_ranks(model, choice, group.count)
                uses.append(used)
                choices.append(choice)
        model.add(sum(uses) == group.count)
    return choices


def domains(problem: Problem, option: Option) -> list[list[range]]:
    """The aligned runs of nodes that an option may use, each as the ranks of its nodes."""
    cluster = problem.cluster
    starts = range(0, cluster.num_nodes - option.num_nodes + 1, option.num_nodes)
    per_node = cluster.ranks_per_node
    return [[range(n * per_node, (n + 1) * per_node) for n in range(s, s + option.num_nodes)] for s in starts]


def _spread_over_ranks(model: cp_model.CpModel, choice: Choice, count: int) -> None:
    per_node = choice.option.config.degree // choice.option.num_nodes
    for ranks in choice.ranks_by_node:
        for rank in ranks:
            if per_node == len(ranks):
                choice.on_rank[rank] = choice.used
                continue
            choice.on_rank[rank] = model.new_int_var(0, count, "eta")
            model.add(choice.on_rank[rank] <= choice.used)
        if per_node < len(ranks):
            model.add(sum(choice.on_rank[rank] for rank in ranks) == per_node * choice.used)


def rank_loads(choices: Sequence[Choice], num_ranks: int, unit: int) -> list[cp_model.LinearExprT]:
    """Each rank's time in units of ``unit`` ns; prices are rounded up."""
    terms: list[list[cp_model.LinearExprT]] = [[] for _ in range(num_ranks)]
    for choice in choices:
        price = ceil_div(choice.option.time_ns, unit)
        for rank, variable in choice.on_rank.items():
            terms[rank].append(price * variable)
    return [cp_model.LinearExpr.sum(here) for here in terms]


def limit_memory(model: cp_model.CpModel, problem: Problem, choices: Sequence[Choice]) -> None:
    """Per rank: kept bytes add up, and the largest live segment is reserved once. Units lose at most 1 MiB a term."""
    room = problem.memory.room_bytes // MIB
    largest_live = max(ceil_div(choice.option.live_bytes, MIB) for choice in choices)
    for rank in range(problem.cluster.num_ranks):
        here = [choice for choice in choices if rank in choice.on_rank]
        kept = sum(ceil_div(choice.option.kept_bytes, MIB) * choice.on_rank[rank] for choice in here)
        live = model.new_int_var(0, largest_live, "live")
        model.add(kept + live <= room)
        for choice in here:
            if choice.option.live_bytes:
                present = model.new_bool_var("present")
                model.add(choice.on_rank[rank] == 0).only_enforce_if(present.negated())
                model.add(live >= ceil_div(choice.option.live_bytes, MIB)).only_enforce_if(present)


def time_unit(problem: Problem, groups: Sequence[AnchorGroup], units: int) -> int:
    """Nanoseconds in a solver unit, such that a lower bound on the makespan has about ``units`` of them."""
    work = sum(group.count * min(o.time_ns * o.config.degree for o in group.options) for group in groups)
    longest = max(min(o.time_ns for o in group.options) for group in groups)
    return max(1, max(work // problem.cluster.num_ranks, longest) // units)


def makespan_range(groups: Sequence[AnchorGroup], unit: int) -> tuple[int, int]:
    """Trivial bounds on the makespan in units: the longest member at its fastest, and everything on one rank."""
    floor = max(min(ceil_div(o.time_ns, unit) for o in group.options) for group in groups)
    return floor, sum(group.count * max(ceil_div(o.time_ns, unit) for o in group.options) for group in groups)


def fits_in_memory(problem: Problem, assignments: Sequence[Assignment]) -> bool:
    """Whether every rank has room for what it is assigned."""
    kept, live = [0] * problem.cluster.num_ranks, [0] * problem.cluster.num_ranks
    for chosen in assignments:
        for rank in chosen.ranks:
            kept[rank] += chosen.option.kept_bytes
            live[rank] = max(live[rank], chosen.option.live_bytes)
    return all(a + b <= problem.memory.room_bytes for a, b in zip(kept, live, strict=True))


def decode_counts(
    value: Callable[[cp_model.IntVar], int], groups: Sequence[AnchorGroup], choices: Sequence[Choice]
) -> list[Assignment]:
    """Rank sets from the counts that ``value`` reads from a solution."""
    assignments = []
    for choice in choices:
        members = value(choice.used)
        if not members:
            continue
        parts: list[list[int]] = [[] for _ in range(members)]
        for ranks in choice.ranks_by_node:
            hands = deal([(rank, value(choice.on_rank[rank])) for rank in ranks], members)
            for part, hand in zip(parts, hands, strict=True):
                part.extend(hand)
        bucket = groups[choice.group].bucket
        assignments += [Assignment(bucket, choice.option, tuple(part)) for part in parts]
    return assignments


def deal(counts: Sequence[tuple[int, int]], members: int) -> list[list[int]]:
    """Decompose per-rank counts into ``members`` sets of distinct ranks of equal size.

    ``counts`` holds (rank, how many members use it), each at most ``members``, summing to a multiple of it. Ranks are
    written out one after another, fullest first, and dealt round: copies of a rank are neighbours and at most
    ``members``, so no member gets one twice.
    """
    line = [rank for rank, count in sorted(counts, key=lambda item: (-item[1], item[0])) for _ in range(count)]
    if any(count > members for _, count in counts) or (members and len(line) % members):
        raise ValueError("counts do not decompose into sets of distinct ranks")
    return [sorted(line[member::members]) for member in range(members)]
