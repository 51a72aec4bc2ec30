"""LoongTrain: head parallelism times context parallelism, every sequence on all ranks (arXiv 2406.18485).

From the source: 2D-Attention runs every sequence on all ``d_hp * d_cp`` ranks, an all-to-all over heads inside and a
ring outside; ranks of one head group are neighbours (head-first) or those of one ring are (context-first), and the ring
is cut into an inner and an outer one (Double-Ring) so that all network ports work. Sequences share no calls with one
another, hence ``per_sequence``.

Inferred: the user takes the head degree that is best for the batch. Double-Ring is in the prices already: rounds of a
ring here fetch keys from their owners, and so use all ports whatever the inner size. Prices are for head-first rank
lists; the simulator, which prices the actual ranks, finds context-first no faster at the best head degree (between
nodes 0 to 3.6 % slower for one sequence on a800x16 and a6000x32). Copies of K/V heads that let the head degree exceed
their number are not modelled.
"""

from __future__ import annotations

from zellige.errors import MissingPriceError
from zellige.placement import Placement, Plan, Problem, Solver, make_plan, rank_costs
from zellige.plan.bounds import best_bound
from zellige.plan.groups import place, priced_splits


def plan_loongtrain_2d(problem: Problem) -> Plan:
    """The best head degree for the batch, the rest a ring over all ranks: plans that fit first, then the shortest step.

    Raises :class:`MissingPriceError` where the table prices no such split.
    """
    num_ranks = problem.cluster.num_ranks
    ranks = tuple(range(num_ranks))
    best: tuple[tuple[bool, int, int], list[Placement], str] | None = None
    for config in priced_splits(problem):
        if config.degree != num_ranks or config.q > 1:
            continue
        placements = place(problem.batch.sequences, config, ranks)
        costs = rank_costs(problem, placements)
        over = max(costs.memory_bytes) > problem.memory.usable_bytes
        key = (over, max(costs.memory_bytes) if over else costs.makespan_ns, -config.h)
        if best is None or key < best[0]:
            best = (key, placements, f"heads x context {config.h} x {config.k}, head-first")
    if best is None:
        raise MissingPriceError(
            f"the price table splits no sequence by heads and ring over all {num_ranks} ranks",
            fix="analytic prices (leave --prices out)",
        )
    solver = Solver(name="enumeration", status="heuristic")
    return make_plan(problem, "loongtrain-2d", best[1], bound=best_bound(problem), solver=solver, notes=(best[2],))
