"""Where the figures of all attempts at a draft on free rank sets stand in one array of integers."""

from __future__ import annotations

from typing import NamedTuple

SPLIT, BEST, SAND, FULL = range(4)
"""The places of :attr:`AttemptPlaces.numbers`: split sequences, those of the best draft, the work of fillers, and the
attempts before the first draft that left a rank no room."""


class Setting(NamedTuple):
    """What is drafted: the time that no plan is below, the room of a rank, nodes and ranks of each, and how many
    buckets, buckets whose sequences fit whole, rungs and attempts there are; how many attempts are usual, and steps of
    a local search."""

    start: int
    room: int
    num_nodes: int
    per_node: int
    buckets: int
    kinds: int
    rungs: int
    attempts: int
    usual: int
    steps: int


class AttemptPlaces(NamedTuple):
    """Where figures stand in their one array of integers. Buckets that fit whole come first, the longest before others.

    * Given, by bucket: how many sequences, its first rung and the one past the last; the buckets by decreasing work;
      of those that fit whole the rung, and its time, kept and live bytes. By rung what it is, and its ring rounds. By
      attempt the cut and the least degrees of longer and of shorter anchors.
    * By cut how many sequences of each bucket are anchors; by attempt whether a rung is one of their front.
    * By anchor its bucket; by rung of the search over rank sets which it is.
    * By rank its loads, room to sort ranks and nodes, and how many of a kind go there.
    * ``table_...``: the rungs of the local search (:class:`zellige.plan.held_kernel.Table`), which each is
      (``table_source``), and where a rung stands among them (``slot``, -1 for nowhere). By kind what two ranks divide.
    * ``way_...``: what is split (:class:`zellige.plan.held_kernel.Ways`); ``best_...``: of the best draft, with rungs
      as given; ``spare_...``: room to write them anew.
    * ``numbers``: :data:`SPLIT` and what follows it.
    """

    number: int
    first: int
    last: int
    by_work: int
    alone: int
    kind_time: int
    kind_kept: int
    kind_live: int
    rung_work: int
    rung_time: int
    rung_degree: int
    rung_nodes: int
    rung_kept: int
    rung_live: int
    rung_rounds: int
    trial: int
    anchors: int
    front: int
    member: int
    flat: int
    time: int
    kept: int
    live: int
    order: int
    chosen: int
    free: int
    poured: int
    table_work: int
    table_time: int
    table_degree: int
    table_nodes: int
    table_kept: int
    table_live: int
    table_first: int
    table_last: int
    table_alone: int
    table_source: int
    slot: int
    tried: int
    pool: int
    taken: int
    divided: int
    way_bucket: int
    way_rung: int
    way_first: int
    way_listed: int
    way_ranks: int
    spare_bucket: int
    spare_rung: int
    spare_first: int
    spare_ranks: int
    best_bucket: int
    best_rung: int
    best_first: int
    best_ranks: int
    numbers: int
