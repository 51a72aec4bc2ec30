"""Simulated annealing over any rank sets, as a loop for numba: what minutes can still take off a plan.

A state gives every sequence a rung and ranks; its energy is the sum of the 32nd powers of the ranks' times over a
time to aim at. A move takes one sequence to another rung or other ranks (the least loaded of some nodes,
with or without noise), or swaps two whole ones. No model of the step but prices: waits are not looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt

from zellige.placement import Placement, Plan, Problem
from zellige.problem import Rung

HEATS = (0.03, 0.01, 0.003)
"""Temperatures at the beginning of a run; each falls to a hundredth."""

SWAPS, SAME_RUNG, NOISY, NOISE = 0.3, 0.6, 0.5, 0.3

Ints = npt.NDArray[np.int64]


class Annealed(NamedTuple):
    """The longest rank's time, without shared calls, and the placements that reach it."""

    longest: int
    placements: tuple[Placement, ...]


def anneal(problem: Problem, plan: Plan, aim: int, moves: int, seed: int) -> Annealed | None:
    """The best state of runs from a plan, one for each of :data:`HEATS`; None where a sequence is on no rung."""
    limit = _ring_limit(problem, plan)
    rungs = problem.rungs_within[limit]
    names = list(dict.fromkeys(placement.bucket for placement in plan.placements))
    flat = [rung for name in names for rung in rungs[name]]
    firsts = np.cumsum([0, *(len(rungs[name]) for name in names)])
    bucket = np.array([names.index(placement.bucket) for placement in plan.placements])
    start = [_place_of(placement, rungs[placement.bucket]) for placement in plan.placements]
    if None in start:
        return None
    num_ranks = problem.cluster.num_ranks
    rung = np.array([firsts[b] + place for b, place in zip(bucket, start, strict=True)])
    ranks = np.zeros((len(bucket), num_ranks), np.int64)
    for row, placement in zip(ranks, plan.placements, strict=True):
        row[: len(placement.ranks)] = placement.ranks
    figures = np.array([[each.time, each.degree, each.nodes, each.kept + each.live] for each in flat])
    best: tuple[float, Any, Any] = (float("inf"), None, None)
    for turn, heat in enumerate(HEATS):
        found = _run(
            problem.cluster.num_nodes, problem.cluster.ranks_per_node, bucket, firsts, figures,
            problem.memory.room_bytes, rung.copy(), ranks.copy(), float(aim), moves, heat, seed + turn,
        )  # fmt: skip
        best = min(best, found, key=lambda each: each[0])
    longest, at_rung, at_ranks = best
    placements = tuple(
        Placement(
            sequence=placement.sequence, bucket=placement.bucket, config=flat[number].option.config,
            ranks=tuple(sorted(int(rank) for rank in row[: flat[number].degree])),
        )
        for placement, number, row in zip(plan.placements, at_rung, at_ranks, strict=True)
    )  # fmt: skip
    return Annealed(round(longest), placements)


def _ring_limit(problem: Problem, plan: Plan) -> int:
    rounds = max(placement.config.k for placement in plan.placements)
    return next(limit for limit in problem.ring_limits if limit >= rounds)


def _place_of(placement: Placement, rungs: Sequence[Rung]) -> int | None:
    return next((place for place, rung in enumerate(rungs) if rung.option.config == placement.config), None)


@numba.njit(cache=True)
def _energy(load: float, aim: float) -> float:
    return (load / aim) ** 32


@numba.njit(cache=True)
def _run(  # type: ignore[no-untyped-def]
    num_nodes, per_node, bucket, firsts, figures, room, rung, ranks, aim, moves, heat, seed
):
    """The longest time of the best state that was met, its rungs and its ranks."""
    np.random.seed(seed)
    num_ranks, count = num_nodes * per_node, len(bucket)
    load, held = np.zeros(num_ranks), np.zeros(num_ranks)
    for i in range(count):
        for a in range(figures[rung[i], 1]):
            load[ranks[i, a]] += figures[rung[i], 0]
            held[ranks[i, a]] += figures[rung[i], 3]
    best = load.max()
    best_rung, best_ranks = rung.copy(), ranks.copy()
    chosen, after, taken = np.zeros(num_ranks, np.int64), np.zeros(num_ranks), np.zeros(num_ranks, np.bool_)
    for move in range(moves):
        cold = heat * 0.01 ** (move / moves)
        i = np.random.randint(count)
        if np.random.random() < SWAPS:
            j = np.random.randint(count)
            done = bucket[i] != bucket[j] and _swap(i, j, figures, room, rung, ranks, load, held, aim, cold)
        else:
            new = rung[i]
            if np.random.random() >= SAME_RUNG:
                new = firsts[bucket[i]] + np.random.randint(firsts[bucket[i] + 1] - firsts[bucket[i]])
            after[:] = load
            for a in range(figures[rung[i], 1]):
                after[ranks[i, a]] -= figures[rung[i], 0]
            _choose(num_nodes, per_node, figures[new, 1], figures[new, 2], after, aim, chosen, taken)
            done = _take(i, new, chosen, after, figures, room, rung, ranks, load, held, aim, cold)
        if done and load.max() < best:
            best = load.max()
            best_rung[:] = rung
            best_ranks[:] = ranks
    return best, best_rung, best_ranks


@numba.njit(cache=True)
def _goes(change, cold):  # type: ignore[no-untyped-def]
    """Whether a change of the energy is taken."""
    return change <= 0 or np.random.random() < np.exp(-change / cold)


@numba.njit(cache=True)
def _swap(i, j, figures, room, rung, ranks, load, held, aim, cold):  # type: ignore[no-untyped-def]
    """Exchange the ranks of two whole sequences, if that is to be."""
    old, new, x, y = rung[i], rung[j], ranks[i, 0], ranks[j, 0]
    if figures[old, 1] != 1 or figures[new, 1] != 1 or x == y:
        return False
    less, freed = figures[old, 0] - figures[new, 0], figures[old, 3] - figures[new, 3]
    change = _energy(load[x] - less, aim) + _energy(load[y] + less, aim)
    change -= _energy(load[x], aim) + _energy(load[y], aim)
    if held[x] - freed > room or held[y] + freed > room or not _goes(change, cold):
        return False
    load[x], load[y] = load[x] - less, load[y] + less
    held[x], held[y] = held[x] - freed, held[y] + freed
    ranks[i, 0], ranks[j, 0] = y, x
    return True


@numba.njit(cache=True)
def _take(i, new, chosen, after, figures, room, rung, ranks, load, held, aim, cold):  # type: ignore[no-untyped-def]
    """Take a sequence to a rung on the chosen ranks, if that is to be; ``after``: loads without it."""
    old, fits, change = rung[i], True, 0.0
    for a in range(figures[old, 1]):
        held[ranks[i, a]] -= figures[old, 3]
    for a in range(figures[new, 1]):
        after[chosen[a]] += figures[new, 0]
        held[chosen[a]] += figures[new, 3]
        fits = fits and held[chosen[a]] <= room
    for rank in range(len(load)):
        if after[rank] != load[rank]:
            change += _energy(after[rank], aim) - _energy(load[rank], aim)
    if fits and _goes(change, cold):
        ranks[i, : figures[new, 1]] = chosen[: figures[new, 1]]
        rung[i] = new
        load[:] = after
        return True
    for a in range(figures[new, 1]):
        held[chosen[a]] -= figures[new, 3]
    for a in range(figures[old, 1]):
        held[ranks[i, a]] += figures[old, 3]
    return False


@numba.njit(cache=True)
def _choose(num_nodes, per_node, degree, nodes, load, aim, chosen, taken):  # type: ignore[no-untyped-def]
    """As many ranks of each of some nodes, the least loaded, with noise in half of all cases."""
    first, noisy, place = np.random.randint(num_nodes), np.random.random() < NOISY, 0
    for number in range(nodes):
        node = (first + number) % num_nodes
        taken[:per_node] = False
        for _ in range(degree // nodes):
            least, at = np.inf, -1
            for a in range(per_node):
                value = load[node * per_node + a]
                if noisy:
                    value += np.random.random() * NOISE * aim
                if not taken[a] and value < least:
                    least, at = value, a
            taken[at] = True
            chosen[place] = node * per_node + at
            place += 1
