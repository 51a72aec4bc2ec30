"""Memory: published rows of state and activations, splits worked by hand, and the set-up that cannot fit."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zellige.catalog import load_cluster, load_model
from zellige.cluster import Cluster
from zellige.errors import StateTooLargeError, UsageError
from zellige.memory import (
    SHARDINGS,
    Checkpoint,
    Sharding,
    kept_bytes,
    layer_bytes_per_token,
    live_bytes,
    memory_model,
    state_bytes,
    with_reserve,
)
from zellige.model import ModelSpec
from zellige.prices import attention_shape, legal_configs
from zellige.shards import WHOLE, ParallelConfig

SMALL, LARGE, MIDDLE = "wan2.1-t2v-1.3b", "wan2.1-t2v-14b", "wan2.2-ti2v-5b"
CHECKPOINTS: tuple[Checkpoint, ...] = ("full", "selective", "none")


def kept(model: ModelSpec, length: int, config: ParallelConfig = WHOLE, checkpoint: Checkpoint = "full") -> int:
    return kept_bytes(model, attention_shape(model, length), config, checkpoint)


def live(model: ModelSpec, length: int, config: ParallelConfig = WHOLE) -> int:
    return live_bytes(model, attention_shape(model, length), config)


# --- parameters, gradients, optimizer


@pytest.mark.parametrize(
    ("name", "num_ranks", "shared", "gathered"),
    [
        (SMALL, 8, 3.2e9, 0.2e9),
        (LARGE, 8, 32e9, 1.4e9),
        (LARGE, 128, 2.0e9, 1.4e9),
    ],
)
def test_zero3_state(name: str, num_ranks: int, shared: float, gathered: float) -> None:
    model = load_model(name)
    largest_layer = 4 * model.layer_parameters()
    assert largest_layer == pytest.approx(gathered, rel=0.1)
    assert state_bytes(model, "zero3", num_ranks) - largest_layer == pytest.approx(shared, rel=0.1)


@pytest.mark.parametrize(
    ("sharding", "num_ranks", "expected"),
    [
        ("ddp", 1, 16 * 1.419e9),
        ("ddp", 64, 16 * 1.419e9),
        ("zero2", 8, 2 * 1.419e9 + 18 * 1.419e9 / 8),
        ("zero2", 64, 2 * 1.419e9 + 18 * 1.419e9 / 64),
        ("zero3", 64, 18 * 1.419e9 / 64 + 4 * 46.4e6),
    ],
)
def test_state_by_sharding(sharding: Sharding, num_ranks: int, expected: float) -> None:
    assert state_bytes(load_model(SMALL), sharding, num_ranks) == pytest.approx(expected, rel=1e-3)


@given(name=st.sampled_from([SMALL, MIDDLE, LARGE]), num_ranks=st.integers(2, 4096))
def test_more_ranks_and_more_sharding_never_cost_state(name: str, num_ranks: int) -> None:
    model = load_model(name)
    for sharding in SHARDINGS:
        assert state_bytes(model, sharding, num_ranks) <= state_bytes(model, sharding, num_ranks - 1)
    assert state_bytes(model, "zero3", num_ranks) < state_bytes(model, "zero2", num_ranks)


# --- activations of whole sequences


@pytest.mark.parametrize(
    ("tokens", "gigabytes"), [(125_000, 26), (175_000, 36), (334_560, 69), (350_000, 72), (497_760, 102)]
)
def test_full_checkpointing_of_whole_sequences(tokens: int, gigabytes: float) -> None:
    model = load_model(SMALL)
    assert kept(model, tokens) == 92_160 * tokens == 30 * 2 * 1536 * tokens
    assert live(model, tokens) == pytest.approx(112e3 * tokens, rel=0.01)
    assert kept(model, tokens) + live(model, tokens) == pytest.approx(1e9 * gigabytes, rel=0.1)


def test_fifteen_seconds_of_1080p_do_not_fit_an_80_gb_device_whole() -> None:
    """The testbed's adaptive data parallelism ran out of memory there (arXiv 2608.01150), and not at 10 s."""
    model, cluster = load_model(SMALL), load_cluster("a800x16")
    room = memory_model(model, cluster, "zero3", "full").room_bytes
    assert kept(model, 497_760) + live(model, 497_760) > room
    assert kept(model, 334_560) + live(model, 334_560) < room


@pytest.mark.parametrize(("name", "widths"), [(SMALL, 73), (LARGE, 61), (MIDDLE, 69)])
def test_a_block_keeps_as_many_hidden_widths_a_token_as_were_counted(name: str, widths: int) -> None:
    model = load_model(name)
    d = model.geometry.hidden_dim
    per_token_modulation = 6 * d * 2 if model.modulation.per_token else 0
    assert round((layer_bytes_per_token(model) - per_token_modulation) / d) == widths
    assert live(model, 1000) == 1000 * layer_bytes_per_token(model)


def test_a_timestep_for_every_token_costs_six_vectors_a_token() -> None:
    model = load_model(MIDDLE)
    once = msgspec.structs.replace(model, modulation=msgspec.structs.replace(model.modulation, per_token=False))
    assert model.modulation.per_token
    assert live(model, 1000) - live(once, 1000) == 1000 * 6 * 3072 * 2


@pytest.mark.parametrize("name", [SMALL, LARGE])
def test_checkpointing_modes_of_whole_sequences(name: str) -> None:
    """Selective keeps the block's input and Q, K, V, O: five hidden states; without checkpoints everything stays."""
    model = load_model(name)
    layers, full = model.geometry.num_layers, kept(model, 1000)
    assert full == layers * 1000 * 2 * model.geometry.hidden_dim
    assert kept(model, 1000, checkpoint="selective") == 5 * full
    assert kept(model, 1000, checkpoint="none") == layers * live(model, 1000)


# --- splits


@pytest.fixture(scope="module")
def tiny() -> ModelSpec:
    """d 8, two heads of 4, f 4, 3 layers; 416 bytes a token and block. Small enough to count by hand."""
    model = load_model(SMALL)
    changes = {"hidden_dim": 8, "num_layers": 3, "num_heads": 2, "num_kv_heads": 2, "head_dim": 4, "ffn_dim": 4}
    return msgspec.structs.replace(model, geometry=msgspec.structs.replace(model.geometry, **changes))


BLOCK = 4 * (50 * 8 + 4 * 4)  # a shard of 4 tokens
FREED = 4 * 4 * 4  # the FFN's activations, free again in attention's backward


@pytest.mark.parametrize(
    ("config", "query_block", "kv_round", "working"),
    [
        # Q, O: 8 tokens of one head; K and V: 8 tokens of one head. Backward: dO, dQ, and dK and dV in bf16.
        (ParallelConfig(1, 2, 1), 8 * 4 * 2, 2 * 8 * 4 * 2, 2 * (8 * 4 * 2) + 2 * 8 * 4 * 2),
        # Q, O: 4 tokens of two heads; K and V of all 8 tokens.
        (ParallelConfig(2, 1, 1), 4 * 8 * 2, 2 * 8 * 8 * 2, 2 * (4 * 8 * 2) + 2 * 8 * 8 * 2),
        # K and V of 4 tokens a round; backward: a second round of them, and two rounds of dK and dV in fp32.
        (ParallelConfig(1, 1, 2), 4 * 8 * 2, 2 * 4 * 8 * 2, 2 * (4 * 8 * 2) + 2 * 4 * 8 * 2 + 2 * 2 * 4 * 8 * 4),
    ],
    ids=str,
)
def test_splits_worked_by_hand(
    tiny: ModelSpec, config: ParallelConfig, query_block: int, kv_round: int, working: int
) -> None:
    saved = 2 * query_block + kv_round
    assert live(tiny, 8, config) == BLOCK + saved + working - FREED
    own = 4 * 8 * 2  # a hidden state of the shard
    assert kept(tiny, 8, config, "full") == 3 * own
    # The block's input, the finished output at its owner, and what attention saved where it was computed.
    assert kept(tiny, 8, config, "selective") == 3 * (own + own + saved)
    # What attention saved takes the place of the owner's Q, K and V; a ring sends the owner's K and V again.
    sent_again = 2 * own if config.k > 1 else 0
    assert kept(tiny, 8, config, "none") == 3 * (BLOCK + max(0, saved - 3 * own) + sent_again)


def test_the_largest_of_uneven_shards_counts(tiny: ModelSpec) -> None:
    assert kept(tiny, 9, ParallelConfig(1, 2, 1)) == 3 * 5 * 8 * 2
    assert kept(tiny, 8, ParallelConfig(3, 1, 1)) == 3 * 3 * 8 * 2
    assert kept(tiny, 1, ParallelConfig(1, 1, 8)) == 3 * 1 * 8 * 2


def test_ring_holds_less_keys_than_gathering_them() -> None:
    """K and V resident: all tokens over h for q, over h for Ulysses, two rounds of a k-th for ring."""
    model = load_model(SMALL)
    q8, h4q2, k8 = (
        live(model, 147_600, config) for config in (ParallelConfig(8), ParallelConfig(2, 4), ParallelConfig(k=8))
    )
    assert k8 < q8
    assert h4q2 < q8
    assert q8 > 2 * 147_600 * 1536 * 2


@given(length=st.integers(1, 600_000), checkpoint=st.sampled_from(CHECKPOINTS), data=st.data())
def test_splitting_shrinks_what_is_kept_and_longer_sequences_grow_it(
    length: int, checkpoint: Checkpoint, data: st.DataObject
) -> None:
    model, cluster = load_model(SMALL), load_cluster("a800x8")
    config = data.draw(st.sampled_from(legal_configs(model, cluster)))
    shard = -(-length // config.degree)
    assert kept(model, length, config) == 92_160 * shard
    assert kept(model, length, config, "full") <= kept(model, length, config, "selective")
    assert kept(model, length, config, "selective") < kept(model, length, config, "none")
    assert kept(model, length + 1, config, checkpoint) >= kept(model, length, config, checkpoint)
    assert live(model, length + 1, config) >= live(model, length, config) >= shard * layer_bytes_per_token(model)


# --- set-ups


def test_room_is_what_the_device_can_use_less_the_state() -> None:
    model, cluster = load_model(SMALL), load_cluster("a800x8")
    memory = memory_model(model, cluster, "zero3", "full")
    assert memory.usable_bytes == (81_920 - 1_536) * 2**20
    assert memory.base_bytes == state_bytes(model, "zero3", 8)
    assert memory.room_bytes == memory.usable_bytes - memory.base_bytes
    assert (memory.sharding, memory.checkpoint) == ("zero3", "full")


def test_state_of_14b_under_ddp_does_not_fit_an_h200() -> None:
    """hao-ai-lab/FastVideo#612: 229 GB of state a GPU before any activation; sharded eight ways it would fit."""
    with pytest.raises(StateTooLargeError) as caught:
        memory_model(load_model(LARGE), load_cluster("h200x8"), "ddp", "full")
    error = caught.value
    assert (error.code, error.exit_code) == ("ZL201", 3)
    assert error.message == (
        "wan2.1-t2v-14b under ddp needs 229 GB of state on every GPU, more than the 149 GB it can use"
    )
    assert error.where == "16 P, P = 14.29e9, on 8 ranks"
    assert error.details == ("h200 reports 143,771 MiB = 151 GB; nothing is left for activations",)
    assert error.fix.startswith("--sharding zero3: 28.6 GB of state over 8 ranks (16 P/N, bf16 gradients")
    assert re.search(r"32\.\d GB with fp32 gradients, 18 P/N", error.fix)
    h200 = load_cluster("h200x8")
    assert h200.device.memory.capacity_mib * 2**20 == pytest.approx(150.8e9, rel=1e-3)
    assert memory_model(load_model(LARGE), h200, "zero3", "full").room_bytes > 0


def shrunk(capacity_mib: int, num_nodes: int = 1) -> Cluster:
    """Nodes of 8 devices with little memory."""
    plain = load_cluster("a800x16")
    memory = msgspec.structs.replace(plain.device.memory, capacity_mib=capacity_mib)
    return msgspec.structs.replace(
        plain, num_nodes=num_nodes, device=msgspec.structs.replace(plain.device, memory=memory)
    )


def test_the_way_out_of_too_much_sharded_state_is_more_ranks() -> None:
    model = load_model(LARGE)
    for sharding in SHARDINGS:
        with pytest.raises(StateTooLargeError) as caught:
            memory_model(model, shrunk(24_000), sharding, "full")
        offered = re.search(r"zero3 on (\d+) ranks", caught.value.fix)
        assert offered is not None, caught.value.fix
        ranks = int(offered[1])
        assert memory_model(model, shrunk(24_000, ranks // 8), "zero3", "full").room_bytes > 0
        with pytest.raises(StateTooLargeError):
            memory_model(model, shrunk(24_000, ranks // 16), "zero3", "full")


def test_no_number_of_ranks_is_offered_where_the_largest_layer_alone_is_too_much() -> None:
    with pytest.raises(StateTooLargeError) as caught:
        memory_model(load_model(LARGE), shrunk(2_000), "zero3", "full")
    assert "ranks or more" not in caught.value.fix


# --- memory kept free


@pytest.mark.parametrize(("reserve", "share", "size"), [("5%", 5, 0), ("2GB", 0, 2 * 10**9), ("0%", 0, 0)])
def test_a_reserve_is_kept_free(reserve: str, share: int, size: int) -> None:
    memory = memory_model(load_model(SMALL), load_cluster("a800x8"), "zero3", "full")
    left = with_reserve(memory, reserve)
    due = -(-memory.usable_bytes * share // 100) + size
    assert (left.reserved_bytes, left.usable_bytes) == (due, memory.usable_bytes - due)
    assert left.room_bytes == memory.room_bytes - due
    assert left.base_bytes == memory.base_bytes


@pytest.mark.parametrize("reserve", ["100%", "99.9%", "83GB", "1TB", "half"])
def test_a_reserve_that_leaves_nothing_is_refused(reserve: str) -> None:
    memory = memory_model(load_model(SMALL), load_cluster("a800x8"), "zero3", "full")
    with pytest.raises(UsageError, match="reserve") as caught:
        with_reserve(memory, reserve)
    assert "--reserve 5%" in caught.value.fix
