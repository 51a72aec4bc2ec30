"""From what the machine recorded to the spans of a trace; repeated layers are filled in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from zellige.op_prices import OpPrices
from zellige.sim.machine import COMPUTING, FULL_RATE, LINK, TRANSFER, Record
from zellige.sim.network import UNITS, Network
from zellige.sim.scripts import Scripts
from zellige.sim.steady import Repetition
from zellige.trace import Counter, CounterPoint, Lane, Span, Trace

Placed = tuple[Record, int, int]
"""A record, the layer it stands for, and by how much it is later."""


def machine_trace(
    prices: OpPrices,
    scripts: Scripts,
    records: Sequence[Record],
    repetition: Repetition | None,
    network: Network | None = None,
) -> Trace:
    """The trace of a machine's records, in a step of all layers."""
    placed = (
        [(record, scripts.layer(record[3]), 0) for record in records]
        if repetition is None
        else list(_repeated(scripts, records, repetition))
    )
    trace = _trace(prices, scripts, [each for each in placed if each[0][0] != LINK])
    if network is None:
        return trace
    links = _link_counters(prices, network, [each for each in placed if each[0][0] == LINK])
    return msgspec.structs.replace(trace, counters=tuple(links))


def _link_counters(prices: OpPrices, network: Network, placed: Iterable[Placed]) -> Iterator[Counter]:
    """The use of every port that is used, in whole units, so that it returns to zero."""
    changes: dict[int, dict[int, int]] = {}
    for (_, _, channel, _, start, stop, meeting, rate), _, later in placed:
        for port, units in network.usages(channel)[meeting]:
            port_changes = changes.setdefault(port, {})
            port_changes[start + later] = port_changes.get(start + later, 0) + units * rate
            port_changes[stop + later] = port_changes.get(stop + later, 0) - units * rate
    for port, port_changes in sorted(changes.items()):
        label = network.ports.labels[port]
        place, number, *_ = label.split()
        used, points = 0, []
        for time, change in sorted(port_changes.items()):
            used += change
            points.append(CounterPoint(time, used / (UNITS * FULL_RATE)))
        node = prices.cluster.node_of(int(number)) if place == "rank" else int(number)
        yield Counter(name=label, node=node, unit="GB/s", points=tuple(points))


def additive_trace(
    prices: OpPrices, scripts: Scripts, records: Sequence[Record], finished: Sequence[Sequence[int]]
) -> Trace:
    """The trace of every rank's walk through one layer's stages, repeated for all layers."""

    def placed() -> Iterator[Placed]:
        for record in records:
            rank, first = record[1], record[3]
            for stage in range(first, first + scripts.num_layers):
                yield record, scripts.layer(stage), finished[rank][stage - 1] if stage else 0

    return _trace(prices, scripts, placed())


def _repeated(scripts: Scripts, records: Sequence[Record], repetition: Repetition) -> Iterator[Placed]:
    """Stages after the steady forward one stand later by the repeated layers, and those after backward again."""
    short, count = scripts.num_layers, repetition.count
    forward, backward = repetition.forward_stage, repetition.backward_stage
    for record in records:
        rank, stage = record[1], record[3]
        late_forward = count if stage > forward else 0
        late_backward = count if stage > backward else 0
        full = stage + late_forward + late_backward
        layer = full if full < short + count else max(0, 2 * (short + count) - 1 - full)
        yield record, layer, repetition.shift(rank, late_forward, late_backward)
        if stage == forward:
            for again in range(1, count + 1):
                yield record, layer + again, repetition.shift(rank, again, 0)
        elif stage == backward:
            for again in range(1, count + 1):
                yield record, layer - again, repetition.shift(rank, count, again)


def _trace(prices: OpPrices, scripts: Scripts, placed: Iterable[Placed]) -> Trace:
    program = prices.program
    calls = {name for name in range(len(scripts.names)) if scripts.names[name].endswith(".call")}
    spans = []
    for (kind, rank, name, _, start, stop, waited, last), layer, later in placed:
        lane: Lane = "compute"
        received = 0
        if kind == COMPUTING:
            label = scripts.names[name]
            lane = "wait" if name in calls else "compute"
        else:
            channel = scripts.channels[name]
            label = channel.name
            if kind == TRANSFER:
                lane, received = "network", channel.received.get(rank, 0)
            else:
                lane, label = "wait", f"{label}.wait"
        spans.append(
            Span(
                name=label, rank=rank, lane=lane, layer=layer, start_ns=start + later, duration_ns=stop - start,
                bytes=received, waited_ns=waited, last_rank=last,
            )
        )  # fmt: skip
    spans.sort(key=lambda span: (span.start_ns, span.rank, span.lane, span.name))
    return Trace(
        origin="simulated",
        program=program.digest,
        engine=program.engine,
        num_ranks=program.num_ranks,
        ranks_per_node=prices.cluster.ranks_per_node,
        spans=tuple(spans),
    )
