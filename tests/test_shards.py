"""Token ownership, attention work and exchanged rows: against explicit sets, and against the closed formulas."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from itertools import product

import pytest
from oracle.attention_sets import AttentionSets, Channel

from zellige.errors import UsageError
from zellige.shards import (
    WHOLE,
    AttentionShape,
    LayerBytes,
    ParallelConfig,
    coordinates,
    head_range,
    key_ranges,
    kv_head_range,
    kv_rows,
    legal_heads,
    owned_range,
    parse_config,
    query_range,
    query_rows,
    received_bytes,
    received_rows,
    sequence_bytes,
)

CASES_PER_SEED = 100
SEEDS = range(20)
SMALL_CONFIGS = [ParallelConfig(q, h, k) for q, h, k in product(range(1, 9), repeat=3)]
RANDOM_CONFIGS = {
    limit: [config for config in SMALL_CONFIGS if config.degree <= limit and max(config.q, config.h, config.k) <= 5]
    for limit in (6, 12, 24)
}
"""Splits by their greatest degree: the cost of a case grows with its square."""

MODEL_HEADS = [(12, 12), (24, 8), (40, 8), (40, 40), (8, 2), (16, 1)]


def random_cases(seed: int) -> Iterator[tuple[AttentionShape, ParallelConfig]]:
    """Shapes and splits of which most divide nothing: L may be below the degree, h above or across the K/V heads."""
    rng = random.Random(seed)
    for _ in range(CASES_PER_SEED):
        length = rng.randint(1, rng.choice((5, 10, 20, 30, 60)))
        num_heads = rng.randint(1, 12)
        num_kv_heads = rng.choice([heads for heads in range(1, num_heads + 1) if num_heads % heads == 0])
        config = rng.choice(RANDOM_CONFIGS[rng.choice((6, 6, 12, 12, 24))])
        yield AttentionShape(length, num_heads, num_kv_heads, head_dim=rng.choice((1, 3, 64, 128))), config


def explicit_sets(shape: AttentionShape, config: ParallelConfig) -> AttentionSets:
    """The oracle of one case."""
    return AttentionSets(shape.length, shape.num_heads, shape.num_kv_heads, config.q, config.h, config.k)


def legal_cases(num_heads: int, num_kv_heads: int) -> Iterator[ParallelConfig]:
    """Every split with factors up to 8 that the heads allow."""
    heads = legal_heads(num_heads, num_kv_heads, limit=8)
    return (config for config in SMALL_CONFIGS if config.h in heads)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_token_has_one_owner_and_every_product_one_worker(seed: int) -> None:
    for shape, config in random_cases(seed):
        indexes = range(config.degree)
        owned = [token for index in indexes for token in range(*owned_range(shape.length, config, index))]
        assert owned == list(range(shape.length)), (shape, config)
        triples = [
            triple
            for index in indexes
            for ring_round in range(config.k)
            for keys in key_ranges(shape.length, config, index, ring_round)
            for triple in product(
                range(*query_range(shape.length, config, index)), range(*keys), range(*head_range(shape, config, index))
            )
        ]
        assert len(triples) == shape.length**2 * shape.num_heads, (shape, config)
        assert len(set(triples)) == len(triples), (shape, config)


@pytest.mark.parametrize("seed", SEEDS)
def test_ranges_are_the_explicit_sets(seed: int) -> None:
    for shape, config in random_cases(seed):
        sets = explicit_sets(shape, config)
        for index, position in enumerate(sets.positions):
            case = (shape, config, index)
            heads = sets.heads(index)
            kv_heads = {sets.kv_head[head] for head in heads}
            assert coordinates(config, index) == position, case
            assert set(range(*owned_range(shape.length, config, index))) == sets.owned(index), case
            assert set(range(*query_range(shape.length, config, index))) == sets.queries(index), case
            assert set(range(*head_range(shape, config, index))) == heads, case
            assert set(range(*kv_head_range(shape, config, index))) == kv_heads, case


@pytest.mark.parametrize("seed", SEEDS)
def test_key_ranges_of_all_rounds_partition_the_sequence(seed: int) -> None:
    for shape, config in random_cases(seed):
        sets = explicit_sets(shape, config)
        for index in range(config.degree):
            case = (shape, config, index)
            everything: list[int] = []
            for ring_round in range(config.k):
                ranges = key_ranges(shape.length, config, index, ring_round)
                tokens = [token for start, stop in ranges for token in range(start, stop)]
                assert all(start < stop for start, stop in ranges), case
                assert tokens == sorted(sets.keys(index, ring_round)), case
                everything += tokens
            assert sorted(everything) == list(range(shape.length)), case
            assert sets.owned(index) <= sets.keys(index, 0), case


def channel_sizes(shape: AttentionShape, config: ParallelConfig) -> dict[Channel, int]:
    """The rows of every channel in both directions of both passes, from the two row functions; empty ones left out."""
    sizes: dict[Channel, int] = {}
    for owner, worker in product(range(config.degree), repeat=2):
        if rows := query_rows(shape, config, owner, worker):
            sizes[Channel("Q", "forward", 0, owner, worker)] = rows
            sizes[Channel("O", "forward", 0, worker, owner)] = rows
            sizes[Channel("dO", "backward", 0, owner, worker)] = rows
            sizes[Channel("dQ", "backward", 0, worker, owner)] = rows
        for t in range(config.k):
            if rows := kv_rows(shape, config, owner, worker, t):
                sizes[Channel("K", "forward", t, owner, worker)] = rows
                sizes[Channel("V", "forward", t, owner, worker)] = rows
                if t > 0:
                    sizes[Channel("K", "backward", t, owner, worker)] = rows
                    sizes[Channel("V", "backward", t, owner, worker)] = rows
                sizes[Channel("dK", "backward", t, worker, owner)] = rows
                sizes[Channel("dV", "backward", t, worker, owner)] = rows
    return sizes


def check_received(
    shape: AttentionShape, config: ParallelConfig, sets: AttentionSets, sizes: dict[Channel, int]
) -> None:
    """Compare what each position receives, in rows and bytes, with the sums over all sources."""
    rows: Counter[tuple[int, str, str, int]] = Counter()
    received: Counter[tuple[int, str]] = Counter()
    sent: Counter[tuple[int, str]] = Counter()
    for channel, size in sizes.items():
        rows[channel.destination, channel.phase, channel.tensor, channel.ring_round] += size
        wire_bytes = size * shape.head_dim * sets.row_width(channel)
        received[channel.destination, channel.phase] += wire_bytes
        sent[channel.source, channel.phase] += wire_bytes
    for n in range(config.degree):
        case, counted = (shape, config, n), received_rows(shape, config, n)
        by_round = tuple(rows[n, "forward", "K", t] + rows[n, "forward", "V", t] for t in range(config.k))
        gradients = tuple(rows[n, "backward", "dK", t] + rows[n, "backward", "dV", t] for t in range(config.k))
        assert counted.query == rows[n, "forward", "Q", 0] == rows[n, "backward", "dO", 0], case
        assert counted.kv_by_round == by_round, case
        assert counted.kv == sum(by_round), case
        assert counted.output == rows[n, "forward", "O", 0] == rows[n, "backward", "dQ", 0], case
        assert counted.kv_gradient_by_round == gradients, case
        assert counted.kv_gradient == sum(gradients), case
        expected = LayerBytes(forward=received[n, "forward"], backward=received[n, "backward"])
        assert received_bytes(shape, config, n) == expected, case
    total = sequence_bytes(shape, config)
    assert total.forward == sum(sent[n, "forward"] for n in range(config.degree)), (shape, config)
    assert total.backward == sum(sent[n, "backward"] for n in range(config.degree)), (shape, config)


@pytest.mark.parametrize("seed", SEEDS)
def test_exchanged_rows_are_the_set_differences(seed: int) -> None:
    for shape, config in random_cases(seed):
        sets = explicit_sets(shape, config)
        sizes = {channel: len(rows) for channel, rows in sets.transfers().items()}
        assert channel_sizes(shape, config) == sizes, (shape, config)
        check_received(shape, config, sets, sizes)


def test_a_worker_without_queries_receives_no_keys() -> None:
    # One token on two query blocks: position 0 owns nothing and computes nothing, so nothing need reach it.
    shape, config = AttentionShape(length=1, num_heads=2, num_kv_heads=2, head_dim=4), ParallelConfig(q=2)
    assert query_range(shape.length, config, 0) == (0, 0)
    assert kv_rows(shape, config, 1, 0, 0) == 0
    assert sequence_bytes(shape, config) == LayerBytes(forward=0, backward=0)


@pytest.mark.parametrize(("num_heads", "num_kv_heads"), MODEL_HEADS)
def test_closed_formulas_where_the_split_divides_everything(num_heads: int, num_kv_heads: int) -> None:
    head_dim, checked = 128, 0
    for config in legal_cases(num_heads, num_kv_heads):
        q, h, k, degree = config.q, config.h, config.k, config.degree
        length = degree * (1 + (q + h + k) % 3)
        shape = AttentionShape(length, num_heads, num_kv_heads, head_dim)
        query = Fraction(length, q * k) * Fraction(num_heads, h) * head_dim * (1 - Fraction(1, h))
        kv = 2 * length * max(Fraction(num_kv_heads, h), Fraction(1)) * head_dim * (1 - Fraction(1, degree))
        indexes = random.Random(degree).sample(range(degree), min(degree, 24))
        for index in indexes[:3]:
            rows = received_rows(shape, config, index)
            assert rows.query * head_dim == query == rows.output * head_dim, (shape, config, index)
            assert rows.kv * head_dim == kv == rows.kv_gradient * head_dim, (shape, config, index)
        forward = 2 * query + 2 * kv + 2 * query
        later = 2 * length * max(Fraction(num_kv_heads, h), Fraction(1)) * head_dim * (1 - Fraction(1, k))
        backward = 2 * query + 2 * query + 2 * (kv - later) + 4 * later + 2 * later
        received = {received_bytes(shape, config, index) for index in indexes}
        assert received == {LayerBytes(int(forward), int(backward))}, (shape, config)
        checked += 1
    assert checked >= 4 * 64  # at least four head splits are legal for each of these models


def test_a_ring_backward_moves_three_times_the_keys_of_its_forward() -> None:
    # Without a head split only K and V travel forward; backward they travel again, and twice as wide as gradients.
    ring = sequence_bytes(AttentionShape(96, 12, 12, 128), ParallelConfig(k=4))
    gathered = sequence_bytes(AttentionShape(96, 12, 12, 128), ParallelConfig(q=4))
    assert ring.backward == 3 * ring.forward
    assert gathered.backward == gathered.forward == ring.forward == 4 * (2 * 72 * 12 * 128 * 2)


def test_worked_example_with_heads_and_ring() -> None:
    # 8 tokens, 4 heads, 2 K/V heads on h2k2: positions 0 and 1 share queries 0-3, positions 2 and 3 share 4-7.
    shape, config = AttentionShape(length=8, num_heads=4, num_kv_heads=2, head_dim=10), ParallelConfig(h=2, k=2)
    assert [coordinates(config, n) for n in range(4)] == [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1)]
    assert [query_range(8, config, n) for n in range(4)] == [(0, 4), (0, 4), (4, 8), (4, 8)]
    assert [head_range(shape, config, n) for n in range(4)] == [(0, 2), (2, 4), (0, 2), (2, 4)]
    assert [key_ranges(8, config, 3, t) for t in range(2)] == [[(4, 8)], [(0, 4)]]
    # Q: 2 tokens of the neighbour, 2 heads. K and V: 2 rows of the neighbour, then 4 of the other block.
    assert [received_rows(shape, config, n).query for n in range(4)] == [4] * 4
    assert [received_rows(shape, config, n).kv_by_round for n in range(4)] == [(4, 8)] * 4
    # Forward (4 + 12 + 4) rows of 20 bytes; backward dO, dQ, 8 of K and V again, 4 and 8 gradient rows of 20 and 40.
    assert received_bytes(shape, config, 1) == LayerBytes(forward=400, backward=320 + 80 + 320)


def test_whole_sequences_move_nothing() -> None:
    for length, (num_heads, num_kv_heads) in product((1, 7, 147_600), MODEL_HEADS):
        shape = AttentionShape(length, num_heads, num_kv_heads, 128)
        assert sequence_bytes(shape, WHOLE) == LayerBytes(forward=0, backward=0)
        assert owned_range(length, WHOLE, 0) == query_range(length, WHOLE, 0) == (0, length)


@pytest.mark.parametrize("config", SMALL_CONFIGS[::7], ids=str)
def test_coordinates_enumerate_blocks_rings_and_heads(config: ParallelConfig) -> None:
    seen = [coordinates(config, index) for index in range(config.degree)]
    assert seen == list(product(range(config.q), range(config.k), range(config.h)))


@pytest.mark.parametrize("seed", SEEDS)
def test_shards_differ_by_at_most_one_token(seed: int) -> None:
    for shape, config in random_cases(seed):
        owned = [owned_range(shape.length, config, index) for index in range(config.degree)]
        sizes = {stop - start for start, stop in owned}
        assert max(sizes) - min(sizes) <= 1, (shape, config)


@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "limit", "expected"),
    [
        (12, 12, None, [1, 2, 3, 4, 6, 12]),
        (12, 12, 8, [1, 2, 3, 4, 6]),
        (40, 40, 16, [1, 2, 4, 5, 8, 10]),
        (40, 8, None, [1, 2, 4, 8, 40]),
        (40, 8, 39, [1, 2, 4, 8]),
        (24, 8, None, [1, 2, 4, 8, 24]),
        (8, 2, None, [1, 2, 4, 8]),
        (12, 3, None, [1, 3, 6, 12]),
        (12, 1, None, [1, 2, 3, 4, 6, 12]),
        (1, 1, 8, [1]),
    ],
)
def test_legal_heads(num_heads: int, num_kv_heads: int, limit: int | None, expected: list[int]) -> None:
    assert legal_heads(num_heads, num_kv_heads, limit) == expected


def test_config_text_round_trip() -> None:
    assert {parse_config(str(config)) for config in SMALL_CONFIGS} == set(SMALL_CONFIGS)
    assert all(parse_config(str(config)) == config for config in SMALL_CONFIGS)
    assert len({str(config) for config in SMALL_CONFIGS}) == len(SMALL_CONFIGS)


@pytest.mark.parametrize(
    ("text", "config"),
    [
        ("whole", ParallelConfig(1, 1, 1)),
        ("h4k2", ParallelConfig(q=1, h=4, k=2)),
        ("q2h3", ParallelConfig(q=2, h=3, k=1)),
        ("q2h3k5", ParallelConfig(q=2, h=3, k=5)),
        ("k128", ParallelConfig(q=1, h=1, k=128)),
    ],
)
def test_config_texts(text: str, config: ParallelConfig) -> None:
    assert parse_config(text) == config
    assert str(config) == text
    assert config.degree == config.q * config.h * config.k
    assert config.is_split == (text != "whole")


BAD_TEXTS = [
    *("", " ", "4", "h", "hq", "h0", "h04", "h-2", "h+2", "h2.0", "h1e2", "h1_0", "H4", "x2", "u4r2"),
    *("k2h4", "h4q2", "h4h2", "q2q2", "h4 ", " h4", "h4\n", "h4 k2", "h4,k2", "h4xk2", "wholeh4", "Whole", "(1,4,2)"),
    *("h1234567", "h\u0664", "h1\u0664", "k2\uff18"),
]


@pytest.mark.parametrize("text", BAD_TEXTS, ids=ascii)
def test_bad_config_texts_are_usage_errors(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_config(text)
    assert repr(text) in caught.value.message
    assert "h4k2" in caught.value.fix


@pytest.mark.parametrize("factors", [(0, 1, 1), (1, 0, 1), (1, 1, 0), (-2, 1, 1), (2, -1, -1)])
def test_factors_below_one_are_refused(factors: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        ParallelConfig(*factors)
