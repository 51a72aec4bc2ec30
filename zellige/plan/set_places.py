"""Where the search over any rank sets keeps its figures (:mod:`zellige.plan.any_sets_kernel`)."""

from __future__ import annotations

from typing import NamedTuple

NODES, NEXT_TARGET, ROWS, KEPT_TARGET = range(4)
"""The places of :attr:`SetPlaces.numbers`: states visited, the least target at which a cut would not have been made,
states remembered, and the target of the placement that is kept (0: none)."""


class SetPlaces(NamedTuple):
    """Where the figures of a search stand in its one array of integers, and how many of some there are.

    * By anchor its bucket, its first rung and the one past the last; by rung work, time, degree, and whether it is over
      nodes.
    * By bucket how many of its sequences are no anchors, its least work, and where its front (times, which rise, and
      works) starts and ends; ``times``: all at which something more fits.
    * By depth the loads (node by node, ascending in each), the work before it, the rung and the node of an anchor, and
      classes of equally loaded ranks of a node below the target: load, node, ranks, how many of them are taken, the
      first class of the node and the one past its last, how many nodes behind it have the same loads, and how many
      ranks the classes of all nodes behind these have.
    * ``raised``: room for the loads of the nodes that an anchor is laid on.
    * ``rest``: by depth the least work that is still to come; ``numbers``: :data:`NODES` and what follows it.
    * ``kept_rung``, ``kept_taken``: of the placement below the lowest target yet, by depth the rung, and which of the
      ranks, in the order of their loads, it takes.
    * ``rows``: states that failed; ``table``: a hash table of their places (one more; 0: none).
    """

    bucket: int
    rung_first: int
    rung_last: int
    rung_work: int
    rung_time: int
    rung_degree: int
    rung_wide: int
    sand: int
    front_first: int
    front_last: int
    front_time: int
    front_work: int
    times: int
    least: int
    path_load: int
    path_work: int
    path_rung: int
    path_node: int
    path_count: int
    class_load: int
    class_node: int
    class_ranks: int
    class_taken: int
    class_first: int
    class_last: int
    class_alike: int
    class_beyond: int
    raised: int
    rest: int
    kept_rung: int
    kept_taken: int
    numbers: int
    table: int
    rows: int
    num_anchors: int
    num_buckets: int
    num_times: int
    num_nodes: int
    per_node: int
    table_size: int
