"""From placed sequences to the pieces of a program: shares, groups, exchanges with their messages, ordered work."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Literal, NamedTuple

from zellige.cluster import CollectiveOp
from zellige.errors import ProgramError
from zellige.memory import Checkpoint
from zellige.placement import Engine
from zellige.program_parts import Exchange, Group, Message, Op, OpKind, Part, RankWork, Segment, Share
from zellige.shards import (
    AttentionShape,
    ParallelConfig,
    head_range,
    key_ranges,
    kv_head_range,
    kv_rows,
    owned_range,
    query_range,
    query_rows,
)
from zellige.units import count_of

Phase = Literal["forward", "backward"]
PHASES: tuple[Phase, ...] = ("forward", "backward")


class Assignment(NamedTuple):
    """A sequence of ``length`` tokens, its split, and its ordered ranks: what a program is built from."""

    sequence: str
    length: int
    config: ParallelConfig
    ranks: tuple[int, ...]


class Heads(NamedTuple):
    """Attention heads of a layer."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


class GroupExchanges(NamedTuple):
    """Indexes of a group's exchanges in one pass: those in by ring round, and those back."""

    into: list[list[int]]
    back: list[int]


def make_segments(assignments: Sequence[Assignment], heads: Heads, num_ranks: int) -> tuple[Segment, ...]:
    """Segments with the shares of their ranks; raises :class:`ProgramError` for ranks that do not exist."""
    shares: dict[tuple[int, ParallelConfig], tuple[Share, ...]] = {}
    segments = []
    for sequence, length, config, ranks in assignments:
        if len(ranks) != config.degree or len(set(ranks)) != len(ranks):
            raise ProgramError(
                f"sequence {sequence} as {config} needs {count_of(config.degree, 'distinct rank')},"
                f" and has {list(ranks)}",
                fix="plan the batch again",
            )
        if not all(0 <= rank < num_ranks for rank in ranks):
            raise ProgramError(
                f"sequence {sequence} is placed on ranks {list(ranks)}, of {num_ranks} (0 to {num_ranks - 1})",
                fix="plan for the cluster that runs the program",
            )
        if (length, config) not in shares:
            shape = AttentionShape(length, *heads)
            shares[length, config] = tuple(_share(shape, config, index) for index in range(config.degree))
        segments.append(
            Segment(sequence=sequence, length=length, config=config, ranks=ranks, shares=shares[length, config])
        )
    return tuple(segments)


def _share(shape: AttentionShape, config: ParallelConfig, index: int) -> Share:
    return Share(
        owned=owned_range(shape.length, config, index),
        queries=query_range(shape.length, config, index),
        heads=head_range(shape, config, index),
        kv_heads=kv_head_range(shape, config, index),
        keys=tuple(tuple(key_ranges(shape.length, config, index, t)) for t in range(config.k)),
    )


def make_groups(segments: Sequence[Segment], engine: Engine, num_ranks: int) -> tuple[Group, ...]:
    """The groups of split segments that share exchanges, by their first segment."""
    members: dict[object, list[int]] = {}
    for index, segment in enumerate(segments):
        if segment.config.is_split:
            members.setdefault(_group_key(segment, index, engine), []).append(index)
    groups = []
    for chosen in members.values():
        first = segments[chosen[0]]
        coalesced = engine == "coalesced"
        more = f"+{len(chosen) - 1}" if len(chosen) > 1 else ""
        groups.append(
            Group(
                name="split" if coalesced else first.sequence + more,
                segments=tuple(chosen),
                ranks=tuple(range(num_ranks)) if coalesced else tuple(sorted(first.ranks)),
                rounds=max(segments[index].config.k for index in chosen),
                packed=coalesced or (engine == "group" and first.config.h == first.config.degree),
            )
        )
    return tuple(groups)


def _group_key(segment: Segment, index: int, engine: Engine) -> object:
    if engine == "coalesced":
        return "split"
    if engine == "group" and segment.config.h == segment.config.degree:
        return segment.config, segment.ranks
    return index


def _parts(phase: Phase, rounds: int) -> tuple[list[list[Part]], list[Part]]:
    """What each exchange of a group carries: those in by ring round, and the one back."""
    if phase == "forward":
        into = [[Part("k", t), Part("v", t)] for t in range(rounds)]
        into[0].insert(0, Part("q"))
        return into, [Part("o")]
    into = [[Part("do")]] + [[Part("k", t), Part("v", t)] for t in range(1, rounds)]
    for t in range(2, rounds):
        into[t] += [Part("dk", t - 2), Part("dv", t - 2)]
    last = range(max(0, rounds - 2), rounds)
    return into, [Part("dq"), *(Part("dk", t) for t in last), *(Part("dv", t) for t in last)]


def _bundles(parts: Iterable[Part]) -> list[tuple[str, list[Part]]]:
    """Parts as unpacked groups send them: each tensor alone, but what later ring rounds left as one."""
    bundles: dict[str, list[Part]] = {}
    for part in parts:
        bundles.setdefault("ring" if part.ring_round > 0 else part.tensor, []).append(part)
    return list(bundles.items())


class ExchangeBuilder:
    """Makes the exchanges of groups; counts the rows of equal sequences once."""

    def __init__(self, segments: Sequence[Segment], heads: Heads) -> None:
        self._segments = segments
        self._heads = heads
        self._templates: dict[tuple[int, ParallelConfig, tuple[Part, ...]], list[tuple[int, int, int, int]]] = {}
        self._known: dict[object, tuple[Message, ...]] = {}

    def add(self, phase: Phase, index: int, group: Group, exchanges: list[Exchange]) -> GroupExchanges:
        """Append a group's exchanges of one pass."""
        into, back = _parts(phase, group.rounds)
        placed = GroupExchanges([[] for _ in into], [])
        pending = [(f"in{t}", parts, placed.into[t]) for t, parts in enumerate(into)] + [("back", back, placed.back)]
        for name, parts, target in pending:
            one_by_one = not group.packed and name in ("in0", "back")
            for label, bundle in _bundles(parts) if one_by_one else [("", parts)]:
                messages = self._messages(group, tuple(bundle))
                target.append(len(exchanges))
                exchanges.append(
                    Exchange(
                        name=f"{name}.{label}" if label else name,
                        phase=phase,
                        group=index,
                        parts=tuple(bundle),
                        ranks=group.ranks,
                        calls=("all_to_all",) if group.packed else self._calls(group, bundle) if messages else (),
                        messages=messages,
                    )
                )
        return placed

    def _calls(self, group: Group, parts: Iterable[Part]) -> tuple[CollectiveOp, ...]:
        """The calls of USP's implementations: all-to-all for heads, all-gather for q, a step for a ring round."""
        config = self._segments[group.segments[0]].config
        calls: list[CollectiveOp] = []
        for part in parts:
            if part.ring_round > 0:
                calls += ["send_recv"] if part.tensor in ("k", "dk") else []
                continue
            calls += ["all_to_all"] if config.h > 1 else []
            calls += ["all_gather"] if config.q > 1 and part.tensor in ("k", "v", "dk", "dv") else []
        return tuple(calls)

    def _messages(self, group: Group, parts: tuple[Part, ...]) -> tuple[Message, ...]:
        equal: dict[tuple[int, ParallelConfig, tuple[int, ...]], int] = {}
        for index in group.segments:
            segment = self._segments[index]
            key = (segment.length, segment.config, segment.ranks)
            equal[key] = equal.get(key, 0) + 1
        known = (tuple(equal.items()), parts)
        if known not in self._known:
            self._known[known] = self._sum(equal, parts)
        return self._known[known]

    def _sum(
        self, equal: dict[tuple[int, ParallelConfig, tuple[int, ...]], int], parts: tuple[Part, ...]
    ) -> tuple[Message, ...]:
        totals: dict[tuple[int, int], list[int]] = {}
        for (length, config, ranks), count in equal.items():
            for source, destination, rows, ring_rows in self._template(length, config, parts):
                total = totals.setdefault((ranks[source], ranks[destination]), [0, 0])
                total[0] += count * rows
                total[1] += count * ring_rows
        return tuple(Message(s, d, rows, ring_rows) for (s, d), (rows, ring_rows) in sorted(totals.items()))

    def _template(
        self, length: int, config: ParallelConfig, parts: tuple[Part, ...]
    ) -> list[tuple[int, int, int, int]]:
        """(source position, destination position, rows, ring rows) of one sequence, without empty entries."""
        key = (length, config, parts)
        if key not in self._templates:
            shape = AttentionShape(length, *self._heads)
            totals: dict[tuple[int, int], list[int]] = {}
            for part in parts:
                for owner, worker, rows in _moves(shape, config, part):
                    pair = (owner, worker) if part.to_worker else (worker, owner)
                    totals.setdefault(pair, [0, 0])[part.is_ring_gradient] += rows
            self._templates[key] = [(s, d, rows, ring) for (s, d), (rows, ring) in totals.items()]
        return self._templates[key]


def _moves(shape: AttentionShape, config: ParallelConfig, part: Part) -> Iterable[tuple[int, int, int]]:
    """(owner, worker, rows) of a tensor: the row count of :mod:`zellige.shards`, empty pairs left out."""
    q, h, k = config.q, config.h, config.k
    is_query = part.tensor in ("q", "o", "do", "dq")
    if part.ring_round >= k:
        return
    for worker in range(config.degree):
        block, ring = worker // h, worker // h % k
        source_ring = (ring + part.ring_round) % k
        blocks = [block] if is_query else [i * k + source_ring for i in range(q)]
        for source_block in blocks:
            for owner in range(source_block * h, source_block * h + h):
                if is_query:
                    rows = query_rows(shape, config, owner, worker)
                else:
                    rows = kv_rows(shape, config, owner, worker, part.ring_round)
                if rows:
                    yield owner, worker, rows


def make_works(
    num_ranks: int,
    segments: Sequence[Segment],
    groups: Sequence[Group],
    placed: dict[Phase, list[GroupExchanges]],
    exchanges: Sequence[Exchange],
    engine: Engine,
    checkpoint: Checkpoint,
    first_batch: Collection[str] | None = None,
) -> tuple[RankWork, ...]:
    """The ordered work of every rank; ``first_batch`` are the whole sequences that run first, beside split ones."""
    whole: list[list[int]] = [[] for _ in range(num_ranks)]
    mine: list[list[int]] = [[] for _ in range(num_ranks)]
    owns = [False] * num_ranks
    for index, segment in enumerate(segments):
        for rank in segment.ranks:
            owns[rank] = True
        if not segment.config.is_split:
            whole[segment.ranks[0]].append(index)
    for index, group in enumerate(groups):
        for rank in group.ranks:
            mine[rank].append(index)
    works = []
    for rank in range(num_ranks):
        batches = _batches(whole[rank], segments, 2 if engine == "coalesced" and groups else 1, first_batch)
        fill = [[Op("whole", part)] for part in range(len(batches))]
        passes = {
            phase: _rank_ops(phase, mine[rank], groups, placed[phase], exchanges, fill, engine) for phase in PHASES
        }
        linear = (Op("relinear"),) if owns[rank] else ()
        recompute = {"full": passes["forward"], "selective": linear, "none": ()}[checkpoint]
        works.append(
            RankWork(
                rank=rank,
                whole=batches,
                forward=passes["forward"],
                recompute=recompute,
                backward=passes["backward"],
            )
        )
    return tuple(works)


def _rank_ops(
    phase: Phase,
    mine: Sequence[int],
    groups: Sequence[Group],
    placed: Sequence[GroupExchanges],
    exchanges: Sequence[Exchange],
    fill: list[list[Op]],
    engine: Engine,
) -> tuple[Op, ...]:
    """A rank's operations in one pass.

    A coalesced engine hides its exchanges behind whole sequences; the others run these last, as the order says.
    """
    hides = engine == "coalesced" and bool(mine)
    ops: list[Op] = []
    for index in mine:
        ops += _group_ops(phase, index, groups[index].rounds, placed[index], exchanges, fill if hides else [])
    if not hides:
        ops += [op for batch in fill for op in batch]
    return tuple(ops)


def _batches(
    whole: list[int], segments: Sequence[Segment], parts: int, first: Collection[str] | None
) -> tuple[tuple[int, ...], ...]:
    """Whole segments in order, cut into at most two batches: as told, or where half of their tokens are reached."""
    if parts == 1 or len(whole) < 2:
        return (tuple(whole),) if whole else ()
    if first is not None:
        told = [[index for index in whole if (segments[index].sequence in first) is early] for early in (True, False)]
        return tuple(tuple(batch) for batch in told if batch)
    total = sum(segments[index].length for index in whole)
    seen, cut = 0, 1
    for position, index in enumerate(whole[:-1], start=1):
        seen += segments[index].length
        cut = position
        if 2 * seen >= total:
            break
    return tuple(whole[:cut]), tuple(whole[cut:])


def _group_ops(
    phase: Phase,
    group: int,
    rounds: int,
    placed: GroupExchanges,
    exchanges: Sequence[Exchange],
    fill: list[list[Op]],
) -> list[Op]:
    """A group's operations in one pass; ``fill`` runs while the first exchange in and the one back are in flight."""
    before: OpKind = "project" if phase == "forward" else "finish"
    after: OpKind = "finish" if phase == "forward" else "project"
    ops = [Op(before, group)]
    waiting = list(fill)

    def enter_and_wait(indexes: list[int]) -> None:
        for index in indexes:
            if exchanges[index].is_local:
                ops.append(Op("keep", index))
            else:
                ops.extend((Op("issue", index), *(waiting.pop(0) if waiting else []), Op("wait", index)))

    enter_and_wait(placed.into[0])
    for t in range(rounds):
        coming = placed.into[t + 1] if t + 1 < rounds else []
        ops += [Op("issue", index) for index in coming if not exchanges[index].is_local]
        ops.append(Op("attend", group, t))
        ops += [Op("keep" if exchanges[index].is_local else "wait", index) for index in coming]
    enter_and_wait(placed.back)
    ops.append(Op(after, group))
    return ops
