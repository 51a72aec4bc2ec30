"""KnapFormer's sequence balancer: fixed disjoint groups of ranks ("bags"), each filled to the same occupancy.

Source of the algorithm: arXiv 2508.06001 and Kai-46/KnapFormer (commit efda11b0), reimplemented from its description
and checked against outputs of its own program. In short: a bag's capacity is its share of the whole workload by ranks;
sequences go by decreasing workload to the least occupied bag that can hold them; one that no bag can hold goes to the
least occupied of the largest bags. Communication and memory are ignored, as there.

Three departures, all where that program stops or reads carelessly: specs are parsed strictly; a bag without any
sequence is an error with a name (or an idle bag, if the caller allows it); and where rounding of the capacities alone
leaves a bag without sequences, capacities are compared again with some slack.
"""

from __future__ import annotations

import heapq
import itertools
import math
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from zellige.errors import BagSpecError, UsageError

ROUNDING_SLACK = 1e-9
"""Relative slack of the second look at the capacities: well above the rounding of sums, well below a token."""

_TERM = re.compile(r"g(?P<size>0|[1-9][0-9]{0,5})n(?P<count>0|[1-9][0-9]{0,5})")


class BagSpec(msgspec.Struct, frozen=True, order=True, forbid_unknown_fields=True):
    """``count`` bags of ``size`` ranks each. Raises BagSpecError where either is below 1."""

    size: int
    count: int

    def __post_init__(self) -> None:
        for name, value in (("size", self.size), ("count", self.count)):
            if value < 1:
                raise BagSpecError(
                    f"bag term {self} has {name} {value}",
                    fix="leave the term out, or give both numbers as 1 or more, such as g4n2",
                )

    def __str__(self) -> str:
        return f"g{self.size}n{self.count}"


class RankLoad(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What each rank holds, by rank: tokens, and workload in forward TFLOP a layer."""

    tokens: tuple[int, ...]
    workloads: tuple[float, ...]

    @property
    def max_over_mean(self) -> float:
        """Largest workload over the mean one; 1.0 where there is no work at all."""
        return _max_over_mean(self.workloads)

    @property
    def max_over_min(self) -> float:
        """Largest workload over the smallest one; infinite where some rank idles, 1.0 where all do."""
        largest, smallest = max(self.workloads), min(self.workloads)
        if largest == 0:
            return 1.0
        return largest / smallest if smallest else math.inf

    @property
    def token_max_over_mean(self) -> float:
        """Most tokens on a rank over the mean number; 1.0 where there are no tokens."""
        return _max_over_mean(self.tokens)


class BagAssignment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which bag every sequence goes to. Sequences are their positions in ``lengths``; bags, positions in ``bag_ranks``.

    Workloads and capacities are forward TFLOP a layer. ``bag_sequences`` keeps the order of assignment.
    ``fallback_order`` is what KnapFormer remembers from one batch to the next; see :func:`assign_to_bags`.
    """

    spec: tuple[BagSpec, ...]
    lengths: tuple[int, ...]
    workloads: tuple[float, ...]
    rank_capacity: float
    bag_ranks: tuple[tuple[int, ...], ...]
    bag_capacity: tuple[float, ...]
    bag_occupancy: tuple[float, ...]
    bag_sequences: tuple[tuple[int, ...], ...]
    sequence_bag: tuple[int, ...]
    fallback_order: tuple[int, ...]

    @property
    def num_ranks(self) -> int:
        """Ranks of all bags together."""
        return sum(len(ranks) for ranks in self.bag_ranks)

    @property
    def split_sequences(self) -> tuple[int, ...]:
        """Sequences in bags of more than one rank."""
        return tuple(seq for seq, bag in enumerate(self.sequence_bag) if len(self.bag_ranks[bag]) > 1)

    def chunk_lengths(self, sequence: int) -> tuple[int, ...]:
        """Tokens of each chunk of a sequence; chunk i lies on the i-th rank of its bag. See :func:`chunk_lengths`."""
        size = len(self.bag_ranks[self.sequence_bag[sequence]])
        return chunk_lengths(self.lengths[sequence], size, sequence)

    def rank_chunk_ids(self) -> tuple[tuple[int, ...], ...]:
        """Chunks on each rank, in order; chunks of all sequences are numbered through, by sequence and then rank."""
        held: list[list[int]] = [[] for _ in range(self.num_ranks)]
        chunk = 0
        for bag in self.sequence_bag:
            for rank in self.bag_ranks[bag]:
                held[rank].append(chunk)
                chunk += 1
        return tuple(map(tuple, held))

    def load_before(self, source_ranks: Sequence[int]) -> RankLoad:
        """Load of each rank while sequences lie whole on their source ranks (one rank per sequence)."""
        tokens, workloads = [0] * self.num_ranks, [0.0] * self.num_ranks
        for rank, length, work in zip(source_ranks, self.lengths, self.workloads, strict=True):
            tokens[rank] += length
            workloads[rank] += work
        return RankLoad(tokens=tuple(tokens), workloads=tuple(workloads))

    def load_after(self) -> RankLoad:
        """Load of each rank in its bag: exact tokens; workload as KnapFormer counts it, the bag's divided evenly."""
        tokens, workloads = [0] * self.num_ranks, [0.0] * self.num_ranks
        for ranks, sequences, capacity, occupancy in zip(
            self.bag_ranks, self.bag_sequences, self.bag_capacity, self.bag_occupancy, strict=True
        ):
            base = sum(self.lengths[seq] // len(ranks) for seq in sequences)
            for rank in ranks:
                tokens[rank] = base
                workloads[rank] = occupancy * capacity / len(ranks)
            for seq in sequences:
                tokens[ranks[seq % len(ranks)]] += self.lengths[seq] % len(ranks)
        return RankLoad(tokens=tuple(tokens), workloads=tuple(workloads))

    def tokens_moved(self, source_ranks: Sequence[int]) -> int:
        """Tokens that change rank when every sequence leaves its source rank for its bag."""
        moved = 0
        for seq, (source, bag) in enumerate(zip(source_ranks, self.sequence_bag, strict=True)):
            chunks = zip(self.bag_ranks[bag], self.chunk_lengths(seq), strict=True)
            moved += sum(tokens for rank, tokens in chunks if rank != source)
        return moved


def parse_bag_spec(text: str) -> tuple[BagSpec, ...]:
    """Read ``g{size}n{count}`` terms joined by ``+``, such as ``g1n16+g2n4+g8n1``; returns them by ascending size.

    Raises BagSpecError, with the term, for anything else: other characters, a zero, a size given twice.
    """
    terms = []
    for term in text.split("+"):
        match = _TERM.fullmatch(term)
        if match is None:
            raise BagSpecError(
                f"bag term {term!r} is not of the form g<size>n<count>",
                where=f"bag spec {text!r}",
                fix="join terms by + without spaces: g6n1+g2n1 is one bag of 6 ranks and one of 2",
            )
        terms.append(BagSpec(size=int(match["size"]), count=int(match["count"])))
    return _ascending(terms)


def format_bag_spec(spec: Iterable[BagSpec]) -> str:
    """The text that :func:`parse_bag_spec` reads."""
    return "+".join(map(str, spec))


def spec_ranks(spec: Iterable[BagSpec]) -> int:
    """The number of ranks that a spec describes."""
    return sum(term.size * term.count for term in spec)


def check_bag_spec(spec: Sequence[BagSpec], num_ranks: int, num_heads: int) -> None:
    """Refuse a spec that a cluster or a model does not allow.

    The spec must describe ``num_ranks`` ranks, or a divisor of them (a node, say) and is then repeated; and every size
    must divide ``num_heads``, since inside a bag KnapFormer splits attention by heads alone. Raises BagSpecError.
    """
    _check_ranks(_ascending(spec), num_ranks)
    for term in spec:
        if num_heads % term.size:
            legal = [size for size in range(1, min(num_heads, num_ranks) + 1) if num_heads % size == 0]
            raise BagSpecError(
                f"bag term {term}: {term.size} ranks cannot share {num_heads} heads evenly",
                where=f"bag spec {format_bag_spec(spec)}",
                fix="bag sizes that divide the heads: " + " ".join(map(str, legal)),
            )


def bag_layout(spec: Sequence[BagSpec], num_ranks: int | None = None) -> tuple[tuple[int, ...], ...]:
    """Ranks of each bag: consecutive ranks, smallest bags first as in KnapFormer, repeated to fill ``num_ranks``.

    Raises BagSpecError where the spec describes neither ``num_ranks`` nor a divisor of it, or repeats a size.
    """
    ordered = _ascending(spec)
    total = spec_ranks(ordered) if num_ranks is None else num_ranks
    _check_ranks(ordered, total)
    layout = []
    start = 0
    for _ in range(total // spec_ranks(ordered)):
        for term in ordered:
            for _ in range(term.count):
                layout.append(tuple(range(start, start + term.size)))
                start += term.size
    return tuple(layout)


def workload(length: int, hidden_dim: int, gamma: float) -> float:
    """Forward TFLOP of one layer for a sequence of ``length`` tokens; ``gamma`` scales attention to measured time.

    24 L d^2 + gamma 4 L^2 d. The order of the operations is part of it: it settles ties as KnapFormer does.
    """
    return float((24 * length * hidden_dim**2 + gamma * 4 * length**2 * hidden_dim) / 1e12)


def chunk_lengths(length: int, size: int, sequence: int) -> tuple[int, ...]:
    """Tokens of each of ``size`` chunks: the quotient everywhere, the whole remainder on chunk ``sequence % size``.

    Chunks may thus differ by up to ``size - 1`` tokens, and are empty where a sequence is shorter than its bag.
    """
    base, remainder = divmod(length, size)
    taker = sequence % size
    return tuple(base + remainder if chunk == taker else base for chunk in range(size))


def flatten_by_rank(lengths_by_rank: Iterable[Sequence[int]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Lengths in rank order, numbered through, and the source rank of each."""
    pairs = [(length, rank) for rank, lengths in enumerate(lengths_by_rank) for length in lengths]
    return tuple(length for length, _ in pairs), tuple(rank for _, rank in pairs)


def assign_to_bags(
    lengths: Sequence[int],
    spec: Sequence[BagSpec],
    *,
    hidden_dim: int,
    gamma: float,
    num_ranks: int | None = None,
    fallback_order: Sequence[int] | None = None,
    allow_empty: bool = False,
) -> BagAssignment:
    """Assign sequences (known by position) to the bags of ``spec``, repeated over ``num_ranks`` if those are more.

    All bags compete for all sequences, also when the spec is repeated. KnapFormer sorts its list of the largest bags in
    place whenever no bag can hold a sequence, and keeps that list from batch to batch, so ties depend on its past: pass
    the ``fallback_order`` of the previous assignment to follow it, or None to start afresh.

    Raises BagSpecError for a spec that cannot be laid out, a ``fallback_order`` of another spec, and, unless
    ``allow_empty``, a bag that ends without a sequence; UsageError for a length below 1, ``hidden_dim`` below 1 or a
    negative ``gamma``.
    """
    _check_inputs(lengths, hidden_dim, gamma)
    layout = bag_layout(spec, num_ranks)
    workloads = tuple(workload(length, hidden_dim, gamma) for length in lengths)
    # Added one by one: from Python 3.12 on, sum() compensates rounding, and the capacities would depend on the version.
    total = 0.0
    for work in workloads:
        total += work
    rank_capacity = total / sum(map(len, layout))
    capacity = tuple(rank_capacity * len(ranks) for ranks in layout)
    deal = _deal_out(lengths, workloads, layout, capacity, fallback_order)
    if deal.num_idle:
        retry = _deal_out(lengths, workloads, layout, capacity, fallback_order, slack=ROUNDING_SLACK)
        deal = min(deal, retry, key=lambda dealt: dealt.num_idle)
    if deal.num_idle and not allow_empty:
        raise _idle_bag_error(spec, layout, deal, len(lengths))
    return BagAssignment(
        spec=_ascending(spec),
        lengths=tuple(lengths),
        workloads=workloads,
        rank_capacity=rank_capacity,
        bag_ranks=layout,
        bag_capacity=capacity,
        bag_occupancy=deal.bag_occupancy,
        bag_sequences=deal.bag_sequences,
        sequence_bag=deal.sequence_bag,
        fallback_order=deal.fallback_order,
    )


class _Deal(NamedTuple):
    bag_occupancy: tuple[float, ...]
    bag_sequences: tuple[tuple[int, ...], ...]
    sequence_bag: tuple[int, ...]
    fallback_order: tuple[int, ...]

    @property
    def num_idle(self) -> int:
        return self.bag_sequences.count(())


def _deal_out(
    lengths: Sequence[int],
    workloads: Sequence[float],
    layout: Sequence[tuple[int, ...]],
    capacity: Sequence[float],
    fallback_order: Sequence[int] | None,
    slack: float = 0.0,
) -> _Deal:
    occupancy = [0.0] * len(layout)
    bag_sequences: list[list[int]] = [[] for _ in layout]
    sequence_bag = [0] * len(lengths)
    # Per size a heap of (occupancy, bag): its top is the least occupied bag, the lowest number among equals.
    heaps: dict[int, list[tuple[float, int]]] = {}
    limits: dict[int, float] = {}
    for bag, ranks in enumerate(layout):
        heaps.setdefault(len(ranks), []).append((0.0, bag))
        limits[len(ranks)] = capacity[bag] * (1.0 + slack)
    largest = max(heaps)
    fallback = _fallback_start([bag for _, bag in heaps[largest]], fallback_order)
    for seq in sorted(range(len(lengths)), key=workloads.__getitem__, reverse=True):
        length, work = lengths[seq], workloads[seq]
        able = [heap for size, heap in heaps.items() if work <= limits[size] and length >= size]
        if able:
            heap = min(able)  # their tops decide: no two are equal
            bag = heap[0][1]
            occupancy[bag] += work / capacity[bag]
            heapq.heapreplace(heap, (occupancy[bag], bag))
        else:
            # Sorted in place, and stable: earlier sorts keep deciding between bags of equal occupancy.
            fallback.sort(key=occupancy.__getitem__)
            bag = fallback[0]
            occupancy[bag] += work / capacity[bag]
            heaps[largest] = [(occupancy[peer], peer) for peer in fallback]
            heapq.heapify(heaps[largest])
        bag_sequences[bag].append(seq)
        sequence_bag[seq] = bag
    return _Deal(tuple(occupancy), tuple(map(tuple, bag_sequences)), tuple(sequence_bag), tuple(fallback))


def _fallback_start(largest_bags: list[int], kept: Sequence[int] | None) -> list[int]:
    if kept is None:
        return largest_bags
    if sorted(kept) != largest_bags:
        raise BagSpecError(
            f"fallback order {tuple(kept)} is not an order of the largest bags {tuple(largest_bags)}",
            fix="pass the order that an assignment with the same spec returned, or none",
        )
    return list(kept)


def _ascending(spec: Iterable[BagSpec]) -> tuple[BagSpec, ...]:
    terms = tuple(sorted(spec))
    if not terms:
        raise BagSpecError("a bag spec without any bag", fix="name at least one, such as g1n8")
    for smaller, larger in itertools.pairwise(terms):
        if smaller.size == larger.size:
            raise BagSpecError(
                f"bag terms {smaller} and {larger} have the same size",
                where=f"bag spec {format_bag_spec(terms)}",
                fix=f"give their sum: g{smaller.size}n{smaller.count + larger.count}",
            )
    return terms


def _check_ranks(spec: tuple[BagSpec, ...], num_ranks: int) -> None:
    described = spec_ranks(spec)
    if num_ranks < 1 or num_ranks % described:
        raise BagSpecError(
            f"the bags take {described} ranks, and {num_ranks} ranks are not a multiple of that",
            where=f"bag spec {format_bag_spec(spec)}",
            details=tuple(f"{term}: {term.size} x {term.count} = {term.size * term.count} ranks" for term in spec),
            fix=f"bags whose sizes add up to {num_ranks} or to a divisor of it, such as g1n{num_ranks}",
        )


def _check_inputs(lengths: Sequence[int], hidden_dim: int, gamma: float) -> None:
    for seq, length in enumerate(lengths):
        if length < 1:
            raise UsageError(f"sequence {seq} has {length} tokens", fix="drop sequences without tokens before planning")
    if hidden_dim < 1:
        raise UsageError(f"hidden dimension {hidden_dim} is below 1", fix="give the model's width, such as 3072")
    if not (0 <= gamma < math.inf):
        raise UsageError(f"gamma {gamma} is not a finite number of at least 0", fix="KnapFormer's example uses 0.4")


def _idle_bag_error(
    spec: Sequence[BagSpec], layout: Sequence[tuple[int, ...]], deal: _Deal, num_sequences: int
) -> BagSpecError:
    bag = deal.bag_sequences.index(())
    ranks = layout[bag]
    return BagSpecError(
        f"bag {bag} (size {len(ranks)}, first rank {ranks[0]}) gets no sequence",
        where=f"bag spec {format_bag_spec(_ascending(spec))}",
        details=(f"{num_sequences} sequences, {len(layout)} bags, {deal.num_idle} of them without a sequence",),
        fix="fewer and larger bags, more sequences a batch, or let bags idle",
    )


def _max_over_mean(values: Sequence[float]) -> float:
    total = sum(values)
    return max(values) / (total / len(values)) if total else 1.0
