"""Price tables: what is in them, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from zellige.analytic import analytic_price, analytic_table
from zellige.catalog import load_cluster, load_model
from zellige.errors import FormatError, ModelMismatchError
from zellige.files import canonical_json, decode_json, readable_json
from zellige.prices import (
    EDITED,
    MOST_NS,
    UNVERIFIED,
    PriceTable,
    check_table,
    footprints,
    legal_configs,
    read_table,
    stamped,
)
from zellige.shards import ParallelConfig
from zellige.workload import make_bucket

WAN = load_model("wan2.1-t2v-1.3b")
NODE = load_cluster("a800x8")
TWO_NODES = load_cluster("a800x16")
DEVICE = TWO_NODES.device


@pytest.fixture(scope="module")
def table() -> PriceTable:
    buckets = [make_bucket(WAN, 832, 480, 1), make_bucket(WAN, 832, 480, 81)]
    return analytic_table(WAN, TWO_NODES, buckets, "full")


def test_a_table_has_every_bucket_configuration_and_footprint(table: PriceTable) -> None:
    keys = {
        (config, nodes) for config in legal_configs(WAN, TWO_NODES) for nodes in footprints(TWO_NODES, config.degree)
    }
    prices = table.by_bucket()
    assert list(prices) == ["832x480x1", "832x480x81"]
    assert all(set(row) == keys for row in prices.values())
    config = ParallelConfig(1, 4, 2)
    for nodes in (1, 2):
        assert prices["832x480x81"][config, nodes] == analytic_price(WAN, TWO_NODES, 32_760, config, nodes, "full")
    assert {row.num_tokens for row in table.rows} == {1_560, 32_760}
    assert table.sources == ("analytic",)


def test_a_table_says_what_it_is_for_and_what_it_assumes(table: PriceTable) -> None:
    header = table.header
    assert (header.model, header.cluster, header.device) == ("wan2.1-t2v-1.3b", "a800x16", "a800-80gb")
    assert (header.kind, header.dtype, header.checkpoint) == ("components", "bf16", "full")
    text = "\n".join(header.assumptions)
    for source in (DEVICE.compute.source, DEVICE.attention.source, TWO_NODES.node_link.source, TWO_NODES.host.source):
        assert source in text
    assert TWO_NODES.network is not None
    assert TWO_NODES.network.source in text


def test_tables_survive_json(table: PriceTable) -> None:
    text = readable_json(table)
    assert text.startswith('{\n  "schema": "zellige.prices/1"')
    loaded = decode_json(text, PriceTable, "prices.json")
    assert loaded == table
    assert canonical_json(loaded) == canonical_json(table)
    again = analytic_table(WAN, TWO_NODES, [make_bucket(WAN, 832, 480, f) for f in (1, 81)], "full")
    assert canonical_json(again) == canonical_json(table)


def damaged(table: PriceTable, change: dict[str, Any]) -> str:
    raw = msgspec.to_builtins(table)
    raw["rows"][0].update(change)
    return readable_json(raw)


DAMAGE: list[tuple[dict[str, Any], str]] = [
    ({"num_tokens": 0}, "num_tokens"),
    ({"num_nodes": -1}, "num_nodes"),
    ({"config": {"q": 0, "h": 1, "k": 1}}, "split factors must be at least 1"),
    ({"price": {"linear_ns": 1}}, "missing required field"),
    ({"prize": 1}, "unknown field `prize`"),
    ({"bucket": "832x480x1", "config": {"q": 1, "h": 2, "k": 1}, "num_nodes": 1}, "stands twice"),
]


def test_damaged_tables_are_refused(table: PriceTable) -> None:
    for change, message in DAMAGE:
        with pytest.raises(FormatError, match=message):
            decode_json(damaged(table, change), PriceTable, "prices.json")

    for value in (-1, 1.5, True, "1", None):
        price_of_row = msgspec.to_builtins(table.rows[0].price) | {"attention_ns": value}
        with pytest.raises(FormatError, match="attention_ns"):
            decode_json(damaged(table, {"price": price_of_row}), PriceTable, "prices.json")


def test_tables_for_something_else_are_refused_by_name(table: PriceTable) -> None:
    check_table(table, WAN, TWO_NODES, "full", "prices.json")
    for model, cluster, checkpoint, message in (
        ("wan2.1-t2v-14b", "a800x16", "full", "for model 'wan2.1-t2v-1.3b', not 'wan2.1-t2v-14b'"),
        ("wan2.1-t2v-1.3b", "a800x8", "full", "for cluster 'a800x16', not 'a800x8'"),
        ("wan2.1-t2v-1.3b", "a800x16", "none", "for checkpointing mode 'full', not 'none'"),
    ):
        with pytest.raises(ModelMismatchError) as caught:
            check_table(table, load_model(model), load_cluster(cluster), checkpoint, "prices.json")
        assert caught.value.message == f"this price table is {message}"
        assert (caught.value.where, caught.value.exit_code) == ("prices.json", 2)


def test_end_to_end_tables_and_other_devices_are_refused_by_name(table: PriceTable) -> None:
    for change, message in (
        ({"kind": "end_to_end"}, "an end_to_end table"),
        ({"device": "h200"}, "device 'h200'"),
    ):
        other = msgspec.structs.replace(table, header=msgspec.structs.replace(table.header, **change))
        with pytest.raises(ModelMismatchError, match=message):
            check_table(other, WAN, TWO_NODES, "full", "prices.json")


# --- whether a file still holds what was written


def written(path: Path, table: PriceTable) -> str:
    path.write_text(readable_json(table), encoding="utf-8")
    return str(path)


def test_a_table_that_was_written_is_read_as_it_was(table: PriceTable, tmp_path: Path) -> None:
    """Also after an editor laid the JSON out anew: the digest is of the content."""
    path = tmp_path / "prices.json"
    assert read_table(written(path, stamped(table))) == table
    path.write_bytes(msgspec.json.encode(msgspec.json.decode(path.read_bytes()), order="sorted"))
    assert read_table(str(path)) == table
    assert read_table(str(path)).sources == ("analytic",)


@pytest.mark.parametrize("change", ["a time", "an assumption", "a row less", "the digest"])
def test_a_table_that_was_changed_says_edited(table: PriceTable, tmp_path: Path, change: str) -> None:
    raw = msgspec.json.decode(msgspec.json.encode(stamped(table)))
    if change == "a time":
        raw["rows"][3]["price"]["linear_ns"] += 1
    elif change == "an assumption":
        raw["header"]["assumptions"][0] += "!"
    elif change == "a row less":
        del raw["rows"][-1]
    else:
        raw["digest"] = "edited, and proud of it"
    (tmp_path / "prices.json").write_bytes(msgspec.json.encode(raw))
    changed = read_table(str(tmp_path / "prices.json"))
    assert changed.sources == (EDITED,)
    assert len(changed.rows) == len(raw["rows"])


def test_a_table_without_a_digest_is_read_and_says_so(table: PriceTable, tmp_path: Path) -> None:
    """Files of before, which had none."""
    old = read_table(written(tmp_path / "old.json", table))
    assert old.rows == table.rows
    assert old.sources == ("analytic", UNVERIFIED)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"linear_ns": MOST_NS + 1}, "ns"),
        ({"packed_exchange_ns": 2**60}, "ns"),
        ({"kept_bytes": 2**60}, "bytes"),
        ({"live_bytes": 2**62, "kept_bytes": 2**62}, "bytes"),
    ],
)
def test_prices_of_no_machine_are_refused(table: PriceTable, tmp_path: Path, change: dict[str, int], what: str) -> None:
    row = table.rows[0]
    absurd = msgspec.structs.replace(row, price=msgspec.structs.replace(row.price, **change))
    path = written(tmp_path / "absurd.json", msgspec.structs.replace(table, rows=(absurd, *table.rows[1:])))
    with pytest.raises(FormatError, match=f"{what} on each rank, which is no price") as caught:
        read_table(path)
    assert caught.value.where == path
