"""What a clip is to a model and a cluster: tokens, grid, legal splits, shards and prices."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from zellige.analytic import analytic_price
from zellige.cluster import Cluster
from zellige.errors import ClipError, IllegalSplitError
from zellige.memory import Checkpoint, Sharding, memory_model
from zellige.model import ModelSpec
from zellige.prices import attention_shape, legal_configs
from zellige.shards import ParallelConfig, legal_heads, owned_range
from zellige.units import count_of
from zellige.workload import MAX_FRAMES, MAX_SIDE, make_bucket, parse_shape


class ConfigRow(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration that fits, and its price on the smallest footprint."""

    q: int
    h: int
    k: int
    degree: int
    time_ns: int
    memory_bytes: int
    comm_bytes: int
    source: str


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``inspect``; ``configs`` and ``splits_by_degree`` need a cluster."""

    SCHEMA: ClassVar[str] = "zellige.inspect/1"

    schema: str = "zellige.inspect/1"
    model: str
    width: int
    height: int
    frames: int
    grid: tuple[int, int, int]
    tokens: int
    legal_h: tuple[int, ...]
    configs: tuple[ConfigRow, ...] = ()
    shards: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


def clip_frames(
    model: ModelSpec, text: str, seconds: float | None, fps: float | None
) -> tuple[int, int, int, tuple[str, ...]]:
    """Width, height and frames of a clip typed as ``WxHxF``, or ``WxH`` with seconds and fps.

    Seconds at a rate make ``fps * seconds + 1`` frames.

    Frames are snapped down to the model's rule; a note says so, and that a size is padded to whole tokens.
    """
    width, height, frames = parse_shape(text)
    if not frames and seconds is not None:
        rate = model.native.fps if fps is None else fps
        if not (0 < seconds <= 86_400 and 0 < rate <= 1_000):
            raise ClipError(f"{seconds} seconds at {rate} fps is out of range", fix="seconds 0..86400, fps 0..1000")
        frames = round(rate * seconds) + 1
    elif frames and seconds is not None:
        raise ClipError(f"{text} has frames already", fix="leave --seconds out, or write WIDTHxHEIGHT")
    frames = frames or 1
    if not (1 <= width <= MAX_SIDE and 1 <= height <= MAX_SIDE and frames <= MAX_FRAMES):
        raise ClipError(f"{text} is out of range", fix=f"sides 1..{MAX_SIDE}, frames 1..{MAX_FRAMES}")
    if frames > 1 and not model.takes_videos:
        raise ClipError(
            f"{model.name} is an image model, {text} has {count_of(frames, 'frame')}", fix=f"{width}x{height}"
        )
    snapped = model.snap_frames(frames)
    notes = []
    if snapped != frames:
        notes.append(f"{count_of(frames, 'frame')} become {snapped}: {model.name} takes {model.latent.vae_stride_t}n+1")
    if (whole := model.snap_size(width, height)) != (width, height):
        rows, columns = model.pixels_per_token
        notes.append(f"{width}x{height} is padded to {whole[0]}x{whole[1]}: whole tokens of {columns}x{rows} pixels")
    return width, height, snapped, tuple(notes)


def inspect_clip(
    model: ModelSpec,
    cluster: Cluster | None,
    clip: tuple[int, int, int],
    *,
    sharding: Sharding = "zero3",
    checkpoint: Checkpoint = "full",
    split: ParallelConfig | None = None,
    notes: tuple[str, ...] = (),
) -> Inspection:
    """Tokens and splits of a clip; with a cluster, the configurations that fit, by degree and then by price."""
    bucket = make_bucket(model, *clip)
    geometry = model.geometry
    limit = cluster.num_ranks if cluster else None
    heads = legal_heads(geometry.num_heads, geometry.num_kv_heads, limit)
    rows: list[ConfigRow] = []
    if cluster is not None:
        room = memory_model(model, cluster, sharding, checkpoint).room_bytes
        for config in legal_configs(model, cluster):
            nodes = cluster.smallest_footprint(config.degree)
            price = analytic_price(model, cluster, bucket.num_tokens, config, nodes, checkpoint)
            if price.memory_bytes <= room:
                rows.append(_config_row(config, price.time_ns, price.memory_bytes, price.comm_bytes))
    if split is not None:
        _require_legal(model, split, heads, limit)
    shards = _shards(model, bucket.num_tokens, split) if split else ()
    rows.sort(key=lambda row: (row.degree, row.time_ns))
    return Inspection(
        model=model.name,
        width=clip[0],
        height=clip[1],
        frames=clip[2],
        grid=model.grid(*clip),
        tokens=bucket.num_tokens,
        legal_h=tuple(heads),
        configs=tuple(rows),
        shards=shards,
        notes=notes + head_notes(model, cluster),
    )


def head_notes(model: ModelSpec, cluster: Cluster | None) -> tuple[str, ...]:
    """How the heads cap h, and how all ranks can still be used: the rest goes to q and k."""
    if cluster is None:
        return ()
    ranks, geometry = cluster.num_ranks, model.geometry
    heads = legal_heads(geometry.num_heads, geometry.num_kv_heads, ranks)
    ways = " or ".join(f"h{h} x {ranks // h}" for h in sorted(heads, reverse=True) if ranks % h == 0)
    lines = [f"all {count_of(ranks, 'rank')}: {ways} (the rest by q and k)"]
    if ranks not in heads:
        why = (
            f"{ranks} does not divide its {count_of(geometry.num_heads, 'head')}"
            if geometry.num_heads >= ranks
            else f"it has {count_of(geometry.num_heads, 'head')} only"
        )
        lines.append(f"h={ranks} is not legal for {model.name}: {why}")
    return tuple(lines)


def _config_row(config: ParallelConfig, time_ns: int, memory_bytes: int, comm_bytes: int) -> ConfigRow:
    return ConfigRow(
        q=config.q, h=config.h, k=config.k, degree=config.degree, time_ns=time_ns, memory_bytes=memory_bytes,
        comm_bytes=comm_bytes, source="analytic",
    )  # fmt: skip


def _require_legal(model: ModelSpec, split: ParallelConfig, heads: list[int], limit: int | None) -> None:
    if split.h not in heads:
        raise IllegalSplitError(
            f"the clip cannot be split {split.h} ways by heads",
            where=f"{model.name} has {count_of(model.geometry.num_heads, 'head')};"
            f" legal h: {' '.join(map(str, heads))}",
            fix="a legal h, with the rest in q or k",
        )
    if limit is not None and split.degree > limit:
        raise IllegalSplitError(
            f"{split} needs {count_of(split.degree, 'rank')}, the cluster has {limit}",
            where=f"{model.name} on {count_of(limit, 'rank')}",
            fix=f"q, h and k that make {limit} or less; without --split all of them are listed",
        )


def _shards(model: ModelSpec, length: int, split: ParallelConfig) -> tuple[int, ...]:
    shape = attention_shape(model, length)
    ranges = (owned_range(shape.length, split, index) for index in range(split.degree))
    return tuple(stop - start for start, stop in ranges)
