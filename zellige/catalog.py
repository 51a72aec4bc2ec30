"""Find what is bundled under ``catalogs/`` and load it by name, or load a file of the same form by path."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from zellige.bucket_sets import BucketSet
from zellige.cluster import Cluster, Device, MeasuredTables
from zellige.collectives import link_sources
from zellige.errors import FormatError, UnknownNameError
from zellige.files import convert, decode_toml, did_you_mean, read_text
from zellige.generate import BatchGenerator
from zellige.model import ModelSpec
from zellige.units import count_of
from zellige.workload import Workload

KINDS = ("models", "devices", "clusters", "collectives", "workloads", "generators", "buckets")


A_FULL_CLUSTER = "a800x16"
"""A bundled cluster of several nodes, for examples."""


def catalog_root() -> Path:
    """The folder of the bundled catalogs: inside the installed package, or beside it in a checkout."""
    packaged = Path(str(resources.files("zellige"))) / "catalogs"
    return packaged if packaged.is_dir() else Path(__file__).resolve().parent.parent / "catalogs"


def names(kind: str) -> list[str]:
    """The bundled names of a kind, sorted."""
    return sorted(path.stem for path in (catalog_root() / kind).glob("*.toml"))


def load_model(name: str) -> ModelSpec:
    """A model by bundled name or by path of a TOML file."""
    path = _locate("models", name)
    return decode_toml(read_text(path), ModelSpec, path.name)


def load_device(name: str) -> Device:
    """A device by bundled name or by path of a TOML file."""
    path = _locate("devices", name)
    return decode_toml(read_text(path), Device, path.name)


def load_collectives(name: str) -> MeasuredTables:
    """Measured tables of collectives by bundled name or by path of a TOML file."""
    path = _locate("collectives", name)
    return decode_toml(read_text(path), MeasuredTables, path.name)


def load_cluster(name: str) -> Cluster:
    """A cluster by bundled name or by path of a TOML file.

    Its ``device`` and its link's ``measured`` tables are names, or paths beside it; ``measured_bandwidth_scale`` fits
    tables of other links to its own.
    """
    path = _locate("clusters", name)
    text = read_text(path)
    raw: dict[str, Any] = decode_toml(text, dict, path.name)
    device = raw.get("device")
    if not isinstance(device, str):
        raise FormatError(
            "device must name a device of the catalog",
            where=path.name,
            fix="one of catalog list devices",
        )
    if device.endswith(".toml"):
        device = str(path.parent / device)
    raw["device"] = msgspec.to_builtins(load_device(device))
    if "network" not in raw and isinstance(nodes := raw.get("num_nodes"), int) and nodes > 1:
        raise FormatError(
            f"{count_of(nodes, 'node')} need a [network] between them",
            where=path.name,
            details=("as this one, with figures of your own:", *network_example()),
            fix="add a [network] at the end of the file, or num_nodes = 1",
        )
    link = raw.get("node_link")
    if isinstance(link, dict) and "measured" in link:
        link["measured"] = _measured(link, path)
    return convert(raw, Cluster, path.name)


def network_example() -> list[str]:
    """The lines of a bundled cluster's [network]."""
    text = read_text(catalog_root() / "clusters" / f"{A_FULL_CLUSTER}.toml")
    return text[text.index("[network]") :].split("\n\n")[0].splitlines()


def _measured(link: dict[str, Any], path: Path) -> dict[str, Any]:
    """The tables that a link names, with the scale that it gives them."""
    name, scale = link["measured"], link.pop("measured_bandwidth_scale", 1.0)
    if not isinstance(name, str):
        raise FormatError(
            "node_link.measured must name tables of the catalog", where=path.name, fix="catalog list collectives"
        )
    tables = load_collectives(str(path.parent / name) if name.endswith(".toml") else name)
    return {**msgspec.to_builtins(tables), "bandwidth_scale": scale}


def load_workload(name: str) -> Workload:
    """A workload by bundled name or by path of a TOML file."""
    path = _locate("workloads", name)
    return decode_toml(read_text(path), Workload, path.name)


def load_generator(name: str) -> BatchGenerator:
    """A batch generator by bundled name or by path of a TOML file."""
    path = _locate("generators", name)
    return decode_toml(read_text(path), BatchGenerator, path.name)


def load_bucket_set(name: str) -> BucketSet:
    """A bucket set by bundled name or by path of a TOML file."""
    path = _locate("buckets", name)
    return decode_toml(read_text(path), BucketSet, path.name)


class CatalogEntry(msgspec.Struct, frozen=True):
    """A line of the catalog's index."""

    kind: str
    name: str
    title: str


def catalog_index(kind: str = "") -> list[CatalogEntry]:
    """All bundled entries, or those of one kind; raises :class:`UnknownNameError` for another kind."""
    if kind and kind not in KINDS:
        raise UnknownNameError(
            f"there is no kind {kind!r}", fix=f"{did_you_mean(kind, KINDS)}known: {', '.join(KINDS)}"
        )
    return [
        CatalogEntry(
            each, name, str(decode_toml(read_text(catalog_root() / each / f"{name}.toml"), dict, name)["title"])
        )
        for each in (KINDS if not kind else (kind,))
        for name in names(each)
    ]


def catalog_text(name: str) -> str:
    """The file of a bundled entry, of whatever kind; where kinds share a name, all of them.

    A cluster's ends with comments on what its times inside a node rest on.
    """
    found = [catalog_root() / kind / f"{name}.toml" for kind in KINDS if name in names(kind)]
    if not found:
        known = [known for kind in KINDS for known in names(kind)]
        raise UnknownNameError(f"nothing bundled is called {name!r}", fix=f"{did_you_mean(name, known)}catalog list")
    return "\n".join(read_text(path) + _provenance(path) for path in found)


def _provenance(path: Path) -> str:
    if path.parent.name != "clusters":
        return ""
    return "\n" + "".join(f"# {line}\n" for line in link_sources(load_cluster(path.stem)))


def is_workload(name: str) -> bool:
    """Whether a batch argument is a bundled workload or a workload file, rather than a clip list."""
    return name.endswith(".toml") or name in names("workloads")


def _locate(kind: str, name: str) -> Path:
    if name.endswith(".toml"):
        return Path(name)
    known = names(kind)
    noun = {"buckets": "bucket set", "collectives": "table of collectives"}.get(kind, kind.removesuffix("s"))
    if name not in known:
        raise UnknownNameError(
            f"there is no {noun} {name!r}",
            details=(_another_size(name, known),) if kind == "clusters" else (),
            fix=f"{did_you_mean(name, known)}known: {', '.join(known)}; or give a .toml file",
        )
    return catalog_root() / kind / f"{name}.toml"


def _another_size(name: str, known: list[str]) -> str:
    """How to make a cluster of another size from the bundled one that is most like it, one of several nodes first."""
    family = [each for each in known if each.rpartition("x")[0] == name.rpartition("x")[0]]
    start = max(family or [A_FULL_CLUSTER], key=lambda each: (_nodes(each) > 1, -_nodes(each)))
    network = (
        "" if _nodes(start) > 1 else f", and for several nodes add a [network] as in catalog show {A_FULL_CLUSTER}"
    )
    return (
        f"a cluster of another size: zellige-sim catalog show {start} > mine.toml, change name and num_nodes in"
        f" mine.toml{network}; then --cluster mine.toml (--device NAME puts another device into any cluster)"
    )


def _nodes(cluster: str) -> int:
    return load_cluster(cluster).num_nodes
