"""What every operation of a program takes: integer nanoseconds by pass, rank and place in the rank's list.

The formulas and constants are those of :mod:`zellige.analytic`, cut where the program cuts the layer:

* ``project``: norm and modulation, Q, K and V projections, their norms and RoPE, of a rank's split tokens;
* ``finish``: output projection, cross-attention with the text's K and V (every rank of a split repeats them), FFN;
* ``attend``: the self-attention core of one ring round, and from the second round on the merge of its result;
* ``whole``: all of the above for whole sequences; ``relinear``: linear work alone, without attention of either kind.

Backward has 2x the linear work and 2.5x the attention of forward. Every operation is rounded up to a nanosecond.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from zellige.analytic import (
    BACKWARD_ATTENTION,
    BACKWARD_GEMM,
    ELEMENTWISE_PASSES,
    core_ns,
    cross_ns,
    elementwise_ns,
    gemm_ns,
    merge_ns,
)
from zellige.cluster import Cluster
from zellige.errors import OtherClusterError
from zellige.exchange_prices import AllToAll, ExchangePrice, exchange_prices
from zellige.memory import kept_bytes, live_bytes
from zellige.model import ModelSpec
from zellige.program import Program
from zellige.program_parts import PASSES, Op, Pass, Segment
from zellige.shards import ParallelConfig

PROJECT_PASSES = 10
"""Of the elementwise passes, those before attention: norm and modulation, Q and K norms, RoPE (counted: 8 to 12)."""


class Work(NamedTuple):
    """A rank's work on one sequence in one pass of one layer, in nanoseconds; ``attend`` by ring round."""

    project: float
    finish: float
    linear: float
    attend: tuple[float, ...]


class OpPrices(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Durations of a program's operations; ``compute[pass][rank][i]`` belongs to operation i (0 for exchanges).

    ``kept_bytes`` is what a rank keeps of each layer from forward to backward, ``live_bytes`` what the layer that runs
    needs besides.
    """

    program: Program
    cluster: Cluster
    compute: dict[Pass, tuple[tuple[int, ...], ...]]
    exchanges: tuple[ExchangePrice, ...]
    kept_bytes: tuple[int, ...]
    live_bytes: tuple[int, ...]


class OpPricer:
    """Prices programs of one model on one cluster; equal shards are priced once."""

    def __init__(self, model: ModelSpec, cluster: Cluster, *, all_to_all: AllToAll = "flat") -> None:
        self.model = model
        self.cluster = cluster
        self._all_to_all: AllToAll = all_to_all
        self._known: dict[tuple[int, ParallelConfig, int, bool], Work] = {}
        self._memory: dict[tuple[int, ParallelConfig, str], tuple[int, int]] = {}
        self._rates = {late: self._linear_rates(late) for late in (False, True)}

    def price(self, program: Program) -> OpPrices:
        """Raises :class:`OtherClusterError` or :class:`zellige.errors.DeadLinkError`."""
        _check_fit(program, self.model, self.cluster)
        kept, live = self._resident(program)
        return OpPrices(
            program=program,
            cluster=self.cluster,
            compute={phase: self._pass(program, phase) for phase in PASSES},
            exchanges=exchange_prices(program, self.cluster, self._all_to_all),
            kept_bytes=kept,
            live_bytes=live,
        )

    def work(self, segment: Segment, position: int, *, backward: bool) -> Work:
        """A position's work on a sequence in one pass of one layer."""
        key = (segment.length, segment.config, position, backward)
        if key not in self._known:
            self._known[key] = self._work(segment, position, backward)
        return self._known[key]

    def _linear_rates(self, backward: bool) -> tuple[float, float, float]:
        """Nanoseconds of linear work: per token before attention, per token after it, per sequence (the text side)."""
        model, cluster = self.model, self.cluster
        factor = BACKWARD_GEMM if backward else 1.0
        before = 6 * model.geometry.hidden_dim**2
        after = model.linear_flops_per_token() - before
        project = gemm_ns(cluster, before) + elementwise_ns(model, cluster, 1, PROJECT_PASSES)
        finish = gemm_ns(cluster, after) + elementwise_ns(model, cluster, 1, ELEMENTWISE_PASSES - PROJECT_PASSES)
        return factor * project, factor * finish, factor * gemm_ns(cluster, model.text_flops())

    def _work(self, segment: Segment, position: int, backward: bool) -> Work:
        share, config = segment.shares[position], segment.config
        tokens = share.owned[1] - share.owned[0]
        per_project, per_finish, per_sequence = self._rates[backward]
        project, after = tokens * per_project, tokens * per_finish + per_sequence
        factor = BACKWARD_ATTENTION if backward else 1.0
        cross = factor * cross_ns(self.model, self.cluster, tokens, backward=backward)
        queries, heads = share.queries[1] - share.queries[0], share.heads[1] - share.heads[0]
        tile = min(queries, -(-segment.length // config.k))
        rounds = []
        for ring_round, ranges in enumerate(share.keys if share.has_work else ()):
            keys = sum(stop - start for start, stop in ranges)
            core = factor * core_ns(self.model, self.cluster, queries, keys, heads, tile, backward=backward)
            if ring_round and keys:
                core += merge_ns(self.cluster, queries * heads * self.model.geometry.head_dim, backward=backward)
            rounds.append(core)
        return Work(project, after + cross, project + after, tuple(rounds))

    def _pass(self, program: Program, phase: Pass) -> tuple[tuple[int, ...], ...]:
        backward = phase == "backward"
        split = self._split_work(program, backward)
        result = []
        for rank in range(program.num_ranks):
            whole = [self._whole(program, part, backward) for part in program.ranks[rank].whole]
            linear = sum(work.linear for work in split[rank].values()) + sum(work.linear for work in whole)
            result.append(tuple(_duration(op, split[rank], whole, linear) for op in program.ranks[rank].ops(phase)))
        return tuple(result)

    def _split_work(self, program: Program, backward: bool) -> list[dict[int, Work]]:
        """For each rank, its work by group."""
        totals: list[dict[int, list[Work]]] = [{} for _ in range(program.num_ranks)]
        for index, group in enumerate(program.groups):
            for number in group.segments:
                segment = program.segments[number]
                for position, rank in enumerate(segment.ranks):
                    totals[rank].setdefault(index, []).append(self.work(segment, position, backward=backward))
        return [{index: _total(works) for index, works in groups.items()} for groups in totals]

    def _whole(self, program: Program, part: Iterable[int], backward: bool) -> Work:
        return _total([self.work(program.segments[index], 0, backward=backward) for index in part])

    def _resident(self, program: Program) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Per rank: bytes kept of each layer, and bytes that the running layer needs under the program's engine."""
        kept, live = [0] * program.num_ranks, [0] * program.num_ranks
        layers = self.model.geometry.num_layers
        for segment in program.segments:
            key = (segment.length, segment.config, program.checkpoint)
            if key not in self._memory:
                shape = program.shape(segment)
                self._memory[key] = (
                    kept_bytes(self.model, shape, segment.config, program.checkpoint) // layers,
                    live_bytes(self.model, shape, segment.config),
                )
            stays, runs = self._memory[key]
            for rank in segment.ranks:
                kept[rank] += stays
                live[rank] = live[rank] + runs if program.engine == "coalesced" else max(live[rank], runs)
        return tuple(kept), tuple(live)


def _total(works: list[Work]) -> Work:
    if len(works) == 1:
        return works[0]
    rounds = max((len(work.attend) for work in works), default=0)
    return Work(
        sum(work.project for work in works),
        sum(work.finish for work in works),
        sum(work.linear for work in works),
        tuple(sum(work.attend[t] for work in works if t < len(work.attend)) for t in range(rounds)),
    )


def _duration(op: Op, split: dict[int, Work], whole: list[Work], linear: float) -> int:
    if op.kind in ("issue", "wait", "keep"):
        return 0
    if op.kind == "relinear":
        return math.ceil(linear)
    if op.kind == "whole":
        part = whole[op.index]
        return math.ceil(part.project + part.finish + sum(part.attend))
    work = split.get(op.index)
    if work is None:
        return 0
    if op.kind == "attend":
        return math.ceil(work.attend[op.ring_round]) if op.ring_round < len(work.attend) else 0
    return math.ceil(work.project if op.kind == "project" else work.finish)


def _check_fit(program: Program, model: ModelSpec, cluster: Cluster) -> None:
    geometry = model.geometry
    for what, found, wanted in (
        ("ranks", program.num_ranks, cluster.num_ranks),
        ("layers", program.num_layers, geometry.num_layers),
        ("heads", program.num_heads, geometry.num_heads),
        ("K/V heads", program.num_kv_heads, geometry.num_kv_heads),
    ):
        if found != wanted:
            raise OtherClusterError(
                f"the program has {found} {what}, and {model.name} on {cluster.name} has {wanted}",
                fix="simulate a plan on the cluster, and with the model, that it was made for",
            )
