"""The makespan that measured times of ranks add up to, had every rank a core of its own and wires nothing to carry.

Every rank steps through its operations with the time that each of them really took; a wait ends when the last real peer
has entered the exchange. Where nothing runs under an exchange this is the sum over segments, from one exchange to the
next, of the slowest rank's time. It is a replay, not a measurement of a makespan, and reports say so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from zellige.errors import StuckError
from zellige.program import Program
from zellige.program_parts import Op, Pass

Durations = Mapping[tuple[str, int], int]
"""Own nanoseconds of a rank by (span name, layer)."""


def replay(program: Program, spans: Sequence[Durations], outside_ns: Sequence[int]) -> tuple[int, ...]:
    """When each rank ends its step: ``spans`` and ``outside_ns`` (which nobody waits for) by rank."""
    peers = [_peers(program, index) for index in range(len(program.exchanges))]
    clocks = [0] * program.num_ranks
    for phase, layer in stages(program):
        clocks = _stage(program, phase, layer, clocks, spans, peers)
    return tuple(clock + outside for clock, outside in zip(clocks, outside_ns, strict=True))


def stages(program: Program) -> list[tuple[Pass, int]]:
    """Passes and layers in the order of a step."""
    forward: list[tuple[Pass, int]] = [("forward", layer) for layer in range(program.num_layers)]
    for layer in reversed(range(program.num_layers)):
        forward += [("recompute", layer), ("backward", layer)]
    return forward


def _peers(program: Program, index: int) -> dict[int, set[int]]:
    exchange = program.exchanges[index]
    met: dict[int, set[int]] = {rank: set() for rank in exchange.ranks}
    for message in exchange.messages:
        met[message.source].add(message.destination)
        met[message.destination].add(message.source)
    return met


def _stage(
    program: Program,
    phase: Pass,
    layer: int,
    clocks: Sequence[int],
    spans: Sequence[Durations],
    peers: Sequence[Mapping[int, set[int]]],
) -> list[int]:
    """The clocks after a pass of a layer: ranks go on in turn until each is through."""
    now, place = list(clocks), [0] * program.num_ranks
    entered: dict[tuple[int, int], int] = {}
    moved = True
    while moved:
        moved = False
        for rank in range(program.num_ranks):
            ops = program.ranks[rank].ops(phase)
            while place[rank] < len(ops):
                op = ops[place[rank]]
                if op.kind == "wait":
                    others = [entered.get((op.index, peer)) for peer in peers[op.index][rank]]
                    if None in others:
                        break
                    now[rank] = max([now[rank], *(each for each in others if each is not None)])
                now[rank] += _own_ns(program, phase, op, layer, spans[rank])
                if op.kind == "issue":
                    entered[op.index, rank] = now[rank]
                place[rank] += 1
                moved = True
    stuck = [rank for rank in range(program.num_ranks) if place[rank] < len(program.ranks[rank].ops(phase))]
    if stuck:
        raise StuckError(f"rank {stuck[0]} waits for ever in {phase} of layer {layer}")
    return now


def _own_ns(program: Program, phase: Pass, op: Op, layer: int, spans: Durations) -> int:
    """What an operation took its rank, the packing or unpacking of its exchange included; 0 where it was not timed."""
    name = program.span(phase, op)
    if op.kind == "issue":
        return spans.get((f"{name}.pack", layer), 0) + spans.get((f"{name}.enter", layer), 0)
    if op.kind == "wait":
        return spans.get((name, layer), 0) + spans.get((f"{name.removesuffix('.wait')}.unpack", layer), 0)
    return spans.get((name, layer), 0)
