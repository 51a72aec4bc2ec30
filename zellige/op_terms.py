"""What an operation of a program is made of, counted: the terms that laws of measured times are sums over.

The same counts are taken of the operations that are measured and of those that are priced. Whole sequences and linear
work count tokens and entries; attention counts (query, key) pairs of all heads, rows that it reads, and rows that a
ring round merges (every round does, the first into nothing); exchanges count the rows that a rank packs or unpacks,
those that stay on it included.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from zellige.program import Program
from zellige.program_parts import PASSES, Exchange, Op, Pass

Terms = Mapping[str, float]

OUTSIDE = "outside"
"""The law of a step's time outside all operations: embeddings, head, loss."""

KEPT, LIVE = "memory.kept", "memory.live"
"""The laws of memory, in bytes: what forward keeps for backward, and what the fullest moment needs besides."""


def exchange_kind(name: str) -> str:
    """``first``, ``ring`` or ``back``: exchanges of a kind carry the same tensors."""
    head = name.split(".")[0]
    return "back" if head == "back" else "first" if head == "in0" else "ring"


def law_key(program: Program, phase: Pass, op: Op, part: str = "") -> str:
    """The law of an operation; of an issue or wait that of its ``pack`` or ``unpack``."""
    if op.kind in ("issue", "wait", "keep"):
        kind = exchange_kind(program.exchanges[op.index].name)
        return f"{phase}.{kind}.{part or ('pack' if op.kind == 'issue' else 'unpack')}"
    return f"{phase}.{op.kind}"


def op_terms(program: Program, rank: int, op: Op) -> Terms:
    """The terms of an operation of a rank; empty where it does nothing."""
    if op.kind == "whole":
        return _whole_terms(program, rank, op.index)
    if op.kind == "attend":
        return _attend_terms(program, rank, op)
    if op.kind in ("project", "finish"):
        mine = [i for i in program.groups[op.index].segments if i in program.positions(rank)]
        return _with_doublings(_linear_terms(program, rank, mine))
    if op.kind == "relinear":
        return _with_doublings(_linear_terms(program, rank, list(program.positions(rank))))
    return exchange_terms(program, rank, op.index, packs=op.kind != "wait")


def _linear_terms(program: Program, rank: int, segments: list[int]) -> dict[str, float]:
    tokens = entries = 0
    for index in segments:
        start, stop = program.segments[index].shares[program.positions(rank)[index]].owned
        tokens += stop - start
        entries += stop > start
    return {"calls": 1.0, "tokens": float(tokens), "entries": float(entries)} if tokens else {"calls": 1.0}


def _with_doublings(terms: Terms) -> dict[str, float]:
    """The terms of a stage, with its tokens times how often they double: a stage that outgrows a cache pays for it.

    On a core each doubling makes a token a little dearer; where none does, the law gives the term no cost.
    """
    tokens = terms.get("tokens", 0.0)
    return {**terms, "token_doublings": tokens * math.log2(tokens)} if tokens else dict(terms)


def _whole_terms(program: Program, rank: int, batch: int) -> Terms:
    lengths = [program.segments[index].length for index in program.ranks[rank].whole[batch]]
    terms = {
        "calls": 1.0,
        "entries": float(len(lengths)),
        "tokens": float(sum(lengths)),
        "pairs": float(program.num_heads * sum(length * length for length in lengths)),
    }
    return _with_doublings(terms)


def _attend_terms(program: Program, rank: int, op: Op) -> Terms:
    pairs = query_side = key_side = entries = merged = 0
    for task in program.tasks(rank, op.index, op.ring_round):
        heads = task.heads[1] - task.heads[0]
        queries = task.queries[1] - task.queries[0]
        entries += 1
        pairs += queries * task.num_keys * heads
        query_side += queries * heads
        key_side += task.num_keys * (task.kv_heads[1] - task.kv_heads[0])
        merged += queries * heads if program.segments[task.segment].config.k > 1 else 0
    if not entries:
        return {"calls": 1.0}
    return {
        "calls": 1.0,
        "entries": float(entries),
        "pairs": float(pairs),
        "query_rows": float(query_side),
        "key_rows": float(key_side),
        "merged_rows": float(merged),
    }


def exchange_terms(program: Program, rank: int, index: int, *, packs: bool) -> Terms:
    """Rows that a rank packs for an exchange, or unpacks of it, those that never leave it included."""
    exchange = program.exchanges[index]
    moved = 0
    for message in exchange.messages:
        if rank == (message.source if packs else message.destination):
            moved += message.rows + message.ring_rows
    kept = kept_rows(program, rank, exchange)
    return {"calls": 1.0, "rows": float(moved + kept)}


def kept_rows(program: Program, rank: int, exchange: Exchange) -> int:
    """Rows of an exchange that stay on the rank: own tokens of the heads that it computes itself."""
    total = 0
    for index in program.groups[exchange.group].segments:
        position = program.positions(rank).get(index)
        if position is None:
            continue
        share = program.segments[index].shares[position]
        tokens = share.owned[1] - share.owned[0]
        for part in exchange.parts:
            if part.tensor in ("q", "o", "do", "dq"):
                total += tokens * (share.heads[1] - share.heads[0])
            elif part.ring_round == 0 and share.has_work:
                total += tokens * (share.kv_heads[1] - share.kv_heads[0])
    return total


def outside_terms(program: Program, rank: int) -> Terms:
    """Terms of a rank's step outside all operations."""
    operations = program.num_layers * sum(len(program.ranks[rank].ops(phase)) for phase in PASSES)
    return {**_linear_terms(program, rank, list(program.positions(rank))), "operations": float(operations)}


def kept_terms(program: Program, rank: int, num_layers: int = 0) -> Terms:
    """What forward keeps of a rank's sequences: once in ``num_layers`` layers (0: the program's), and once outside.

    Embeddings and head keep something of every token as well, whatever the depth of the model.
    """
    layers = num_layers or program.num_layers
    outside = _linear_terms(program, rank, list(program.positions(rank)))
    inside = {**outside, **_gathered_terms(program, rank)}
    del inside["calls"]
    return {**outside, **{f"layer_{term}": layers * count for term, count in inside.items()}}


def live_terms(program: Program, rank: int) -> Terms:
    """What the layer that runs needs: own tokens, those of the largest stage, and gathered rows.

    Backward holds the graphs of all stages of a layer, and runs them one by one.
    """
    batches = [sum(program.segments[i].length for i in batch) for batch in program.ranks[rank].whole]
    groups = [program.owned_tokens(rank, group) for group in range(len(program.groups))]
    return {
        **_linear_terms(program, rank, list(program.positions(rank))),
        "stage_tokens": float(max([0, *batches, *groups])),
        **_gathered_terms(program, rank),
    }


def _gathered_terms(program: Program, rank: int) -> dict[str, float]:
    """Rows of split sequences where attention is computed: of Q, of one round's K and V, and of these the ring's."""
    query_side = key_side = ring_side = 0
    for index, position in program.positions(rank).items():
        segment = program.segments[index]
        share = segment.shares[position]
        if not segment.config.is_split or not share.has_work:
            continue
        query_side += (share.queries[1] - share.queries[0]) * (share.heads[1] - share.heads[0])
        rows = -(-segment.length // segment.config.k) * (share.kv_heads[1] - share.kv_heads[0])
        key_side += rows
        ring_side += rows if segment.config.k > 1 else 0
    return {"query_rows": float(query_side), "key_rows": float(key_side), "ring_rows": float(ring_side)}
