"""Where a search over aligned blocks keeps its figures for the compiled loops of :mod:`zellige.plan.search_kernel`."""

from __future__ import annotations

from typing import NamedTuple

NODES, QUOTA, NEXT_TARGET, CUT, ROWS, GIANTS, BUDGET, LOWER, KEPT, NUMBERS = range(10)
"""The places of :attr:`Places.numbers`: nodes visited, their number at which the search turns back, the least target
at which a cut would not have been made, whether the limit of nodes came first, states remembered; how many first
anchors have quotas; nodes left to all targets, a lower bound on any, placements found. How many places these are."""

KEPT_MOST = 64
"""Room for placements: each halves what is left between two targets, which are below 2**62."""


class Places(NamedTuple):
    """Where the figures of a search stand in its one array of integers, and how many of some there are.

    * By shape its first block (the next shape's is one past the last); by block its first piece and its first mirror;
      by piece its first rank and the one past the last; by mirror the starts of its two runs and the second's end.
    * By anchor its first rung and the one past the last; by rung work, time, degree, shape, kept and live bytes.
    * By rank time, kept and live bytes: its load.
    * By depth the rung and the block of an anchor, the work before it, how many candidates were tried and how many
      there are, ``stride`` candidates and their scores, and the live bytes that a placement covered.
    * ``rest`` and ``waiting``: by depth what is still to come, of work and (times densities) of coins.
    * By placement that was found the rungs and the blocks of all anchors, and its target (``kept_...``).
    * ``numbers``: :data:`NODES` and what follows it.
    * ``rows``: states that failed, in full, ``width`` integers each; ``table``: a hash table of their places (one more;
      0: none).
    """

    shape_first: int
    piece_first: int
    mirror_first: int
    piece_start: int
    piece_stop: int
    mirror_start: int
    mirror_middle: int
    mirror_stop: int
    rung_first: int
    rung_last: int
    rung_work: int
    rung_time: int
    rung_degree: int
    rung_shape: int
    rung_kept: int
    rung_live: int
    load_time: int
    load_kept: int
    load_live: int
    path_rung: int
    path_block: int
    path_work: int
    path_first: int
    path_last: int
    path_candidates: int
    path_scores: int
    path_undo: int
    kept_rung: int
    kept_block: int
    kept_target: int
    rest: int
    waiting: int
    densities: int
    numbers: int
    table: int
    rows: int
    num_anchors: int
    num_ranks: int
    num_densities: int
    stride: int
    table_size: int
    width: int


class Frame(NamedTuple):
    """What a search is about: the target, the limit of its nodes, the work that fillers need, the room of a rank,
    whether the fullest block goes first, whether memory may bind, the highest target that loops may compute, and
    whether the search is to refute."""

    target: int
    limit: int
    sand_work: int
    room: int
    tight: bool
    binds: bool
    per_density: int
    highest: int
    refutes: bool
