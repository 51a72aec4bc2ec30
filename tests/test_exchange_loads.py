"""The loads of a sequence that is alone, against the rows that every pair of ranks exchanges, counted one by one."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zellige.catalog import load_cluster, names
from zellige.exchange_loads import Load, load_ns, pass_loads
from zellige.shards import AttentionShape, ParallelConfig, kv_rows, query_rows

HEADS = ((12, 12), (12, 4), (12, 1))


def configs(heads: int, kv_heads: int) -> list[ParallelConfig]:
    head_splits = [h for h in range(1, 13) if heads % h == 0 and (kv_heads % h == 0 or h % kv_heads == 0)]
    return [
        ParallelConfig(q, h, k) for h in head_splits for q in range(1, 5) for k in range(1, 7) if 1 < q * h * k <= 24
    ]


CASES = [(heads, config) for heads in HEADS for config in configs(*heads)]


def busiest(config: ParallelConfig, nodes: int, flows: Counter[tuple[int, int]]) -> tuple[int, int, int]:
    """Bytes at the busiest link in a node, way out of a node, and node, in or out."""
    local: Counter[tuple[str, int]] = Counter()
    remote: Counter[tuple[str, int]] = Counter()
    pool: Counter[tuple[str, int]] = Counter()
    for (source, destination), size in flows.items():
        here, there = (position * nodes // config.degree for position in (source, destination))
        side = local if here == there else remote
        side["out", source] += size
        side["in", destination] += size
        if here != there:
            pool["out", here] += size
            pool["in", there] += size
    return tuple(max(part.values(), default=0) for part in (local, remote, pool))  # type: ignore[return-value]


def rows_of(
    shape: AttentionShape, config: ParallelConfig, tensor: str, ring_round: int = 0
) -> Counter[tuple[int, int]]:
    """Rows of a tensor by (source, destination): Q and K towards workers; O, dQ and dK back to owners."""
    flows: Counter[tuple[int, int]] = Counter()
    for owner in range(config.degree):
        for worker in range(config.degree):
            if tensor in ("q", "o"):
                rows = query_rows(shape, config, owner, worker)
            else:
                rows = kv_rows(shape, config, owner, worker, ring_round)
            if rows:
                flows[(owner, worker) if tensor in ("q", "k") else (worker, owner)] += rows
    return flows


def total(*parts: tuple[Counter[tuple[int, int]], int]) -> Counter[tuple[int, int]]:
    flows: Counter[tuple[int, int]] = Counter()
    for part, width in parts:
        for pair, rows in part.items():
            flows[pair] += rows * width
    return flows


def backward_round(shape: AttentionShape, config: ParallelConfig, t: int) -> Counter[tuple[int, int]]:
    """K and V of a round in bf16 with dK and dV of two rounds before, in fp32 but for the first round's."""
    parts = [(rows_of(shape, config, "k", t), 4)]
    if t >= 2:
        parts.append((rows_of(shape, config, "dk", t - 2), 8 if t > 2 else 4))
    return total(*parts)


@given(case=st.sampled_from(CASES), data=st.data())
def test_ring_rounds_are_the_rows_of_the_split(
    case: tuple[tuple[int, int], ParallelConfig], data: st.DataObject
) -> None:
    (heads, kv_heads), config = case
    nodes = data.draw(st.sampled_from([n for n in (1, 2, 3, 4) if config.degree % n == 0]))
    packed = data.draw(st.booleans())
    shape = AttentionShape(config.degree, heads, kv_heads, 1)
    forward, backward = pass_loads(config, nodes, heads // config.h, max(kv_heads // config.h, 1), packed=packed)
    assert len(forward.hidden) == len(backward.hidden) == config.k - 1
    for t in range(1, config.k):
        assert forward.hidden[t - 1][:3] == busiest(config, nodes, total((rows_of(shape, config, "k", t), 4)))
        assert backward.hidden[t - 1][:3] == busiest(config, nodes, backward_round(shape, config, t))


@given(case=st.sampled_from(CASES), data=st.data())
def test_packed_exchanges_carry_all_of_a_phase(
    case: tuple[tuple[int, int], ParallelConfig], data: st.DataObject
) -> None:
    (heads, kv_heads), config = case
    nodes = data.draw(st.sampled_from([n for n in (1, 2, 3, 4) if config.degree % n == 0]))
    shape = AttentionShape(config.degree, heads, kv_heads, 1)
    forward, backward = pass_loads(config, nodes, heads // config.h, max(kv_heads // config.h, 1), packed=True)
    into = total((rows_of(shape, config, "q"), 2), (rows_of(shape, config, "k"), 4))
    assert forward.exposed[0][:3] == busiest(config, nodes, into)
    out = total((rows_of(shape, config, "o"), 2))
    if config.h > 1:
        assert forward.exposed[1][:3] == busiest(config, nodes, out)
        assert backward.exposed[0][:3] == busiest(config, nodes, total((rows_of(shape, config, "q"), 2)))
    last = [(rows_of(shape, config, "dk", t), 8 if t else 4) for t in range(max(0, config.k - 2), config.k)]
    assert backward.exposed[-1][:3] == busiest(config, nodes, total((rows_of(shape, config, "o"), 2), *last))


@pytest.mark.parametrize("config", [ParallelConfig(1, 4, 1), ParallelConfig(2, 2, 2), ParallelConfig(1, 1, 4)])
def test_unpacked_and_packed_move_the_same_bytes_in_a_node(config: ParallelConfig) -> None:
    unpacked, packed = (pass_loads(config, 1, 12 // config.h, 12 // config.h, packed=way) for way in (False, True))
    for alone, together in zip(unpacked, packed, strict=True):
        assert sum(load.local for load in alone.exposed) == sum(load.local for load in together.exposed)
        assert [load.local for load in alone.hidden] == [load.local for load in together.hidden]


# --- the time of a load


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        (Load(1147, 0, 0, "all_to_all", 8), 10.0),  # at 114.7 GB/s
        (Load(1147, 470, 0, "all_to_all", 8), 20.0),  # one NIC has 23.5
        (Load(1147, 470, 3760, "all_to_all", 8), 80.0),  # half of the ranks have half of four
    ],
)
def test_the_busiest_port_decides(load: Load, expected: float) -> None:
    assert load_ns(load_cluster("a800x16"), load, 1000, 4) == pytest.approx(1000 * expected)


@given(
    name=st.sampled_from(names("clusters")),
    local=st.integers(1, 10**6),
    remote=st.integers(0, 10**6),
    rows=st.integers(1, 10**6),
    more=st.integers(1, 100),
)
def test_loads_grow_with_rows(name: str, local: int, remote: int, rows: int, more: int) -> None:
    cluster = load_cluster(name)
    load = Load(local, remote, 2 * remote, "all_to_all", 8)
    once, many = load_ns(cluster, load, rows, 4), load_ns(cluster, load, more * rows, 4)
    assert once <= many * (1 + 1e-12)
    if cluster.node_link.measured is None:
        assert many == pytest.approx(more * once)
