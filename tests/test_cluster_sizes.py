"""Ways out for who needs a cluster of another size than the bundled ones: what errors say to do works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from zellige.catalog import catalog_text, load_cluster, names
from zellige.errors import FormatError, UnknownNameError


def resized(text: str, num_nodes: int) -> str:
    """A cluster's file with other nodes, and the name that says so."""
    ranks = num_nodes * load_cluster_ranks(text)
    text = re.sub(r"(?m)^num_nodes = \d+$", f"num_nodes = {num_nodes}", text)
    return re.sub(r'(?m)^name = "(\w+)x\d+"$', rf'name = "\1x{ranks}"', text)


def load_cluster_ranks(text: str) -> int:
    found = re.search(r"(?m)^ranks_per_node = (\d+)$", text)
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize("name", ["h200x24", "h100x16", "a800x24", "a100x16", "l40sx16", "b200x8", "elsewhere", "x"])
def test_an_unknown_cluster_says_how_to_make_one_and_that_works(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        load_cluster(name)
    (told,) = caught.value.details
    assert "--cluster mine.toml" in told
    shown = re.search(r"catalog show (\S+) > mine.toml, change name and num_nodes", told)
    assert shown is not None
    assert shown[1] in names("clusters")
    text = resized(catalog_text(shown[1]), 3)
    network = re.search(r"add a \[network\] as in catalog show (\w+);", told)
    if network is not None:
        lent = catalog_text(network[1])
        text += lent[lent.index("[network]") : lent.index("[host]")]
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    cluster = load_cluster(str(path))
    assert cluster.num_ranks == 3 * cluster.ranks_per_node
    assert cluster.network is not None
    assert cluster.name.endswith(f"x{cluster.num_ranks}")


def test_the_nearest_size_of_the_same_device_is_named() -> None:
    with pytest.raises(UnknownNameError) as caught:
        load_cluster("h200x24")
    assert caught.value.fix.startswith("did you mean h200x")
    assert "catalog show h200x16 >" in caught.value.details[0]


def test_several_nodes_without_a_network_are_shown_one_that_works(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(resized(catalog_text("h100x8"), 2), encoding="utf-8")
    with pytest.raises(FormatError, match=r"2 nodes need a \[network\] between them") as caught:
        load_cluster(str(path))
    said, *example = caught.value.details
    assert said.startswith("as this one")
    with path.open("a", encoding="utf-8") as file:
        file.write("\n".join(["", *example, ""]))
    assert load_cluster(str(path)).num_ranks == 16


@pytest.mark.parametrize("name", ["h200x16", "h200x64"])
def test_larger_h200_clusters_are_made_of_bundled_figures(name: str) -> None:
    """The board of h200x8 and the network of h100x64, which nobody has published for it: assumed."""
    cluster, board, other = load_cluster(name), load_cluster("h200x8"), load_cluster("h100x64")
    assert (cluster.device, cluster.node_link, cluster.host) == (board.device, board.node_link, board.host)
    assert cluster.network is not None
    assert other.network is not None
    for figure in ("nics_per_node", "nic_gb_per_s", "latency_us"):
        assert getattr(cluster.network, figure) == getattr(other.network, figure)
    assert cluster.network.origin == "assumed"
