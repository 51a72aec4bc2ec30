"""Bucket sets: the shapes of a training run, with the batch sizes that a published configuration gives them."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from zellige.files import NonNegativeInt, PositiveInt
from zellige.memory import Sharding, kept_bytes, live_bytes
from zellige.model import ModelSpec
from zellige.prices import attention_shape
from zellige.shards import WHOLE
from zellige.workload import BucketPattern, make_bucket, parse_patterns


class BucketEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One size with the frame counts that share a batch size a GPU (0: none is published)."""

    size: str
    num_frames: Annotated[tuple[PositiveInt, ...], msgspec.Meta(min_length=1)]
    batch_size: NonNegativeInt = 0


class BucketSet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Named buckets; ``unchecked_layers`` of the model's layers keep all activations in the published run."""

    SCHEMA: ClassVar[str] = "zellige.buckets/1"

    schema: str = "zellige.buckets/1"
    name: str
    title: str
    model: str
    sharding: Sharding = "zero3"
    unchecked_layers: NonNegativeInt = 0
    entries: Annotated[tuple[BucketEntry, ...], msgspec.Meta(min_length=1)]
    source: str

    def patterns(self) -> tuple[BucketPattern, ...]:
        """All shapes of the set."""
        return parse_patterns(f"{entry.size}x{frames}" for entry in self.entries for frames in entry.num_frames)


class BucketMemory(msgspec.Struct, frozen=True, kw_only=True):
    """One shape's memory on a GPU: for its published batch size, and the largest batch that fits."""

    shape: str
    num_tokens: int
    batch_size: int
    needed_bytes: int
    max_batch: int


def bucket_memory(bucket_set: BucketSet, model: ModelSpec, room_bytes: int) -> list[BucketMemory]:
    """Every shape against the room that a GPU has beside the model's state; a batch runs a layer at once."""
    share = min(1.0, bucket_set.unchecked_layers / model.geometry.num_layers)
    rows = []
    for entry in bucket_set.entries:
        for pattern in parse_patterns(f"{entry.size}x{frames}" for frames in entry.num_frames):
            bucket = make_bucket(model, pattern.width, pattern.height, pattern.num_frames, bucket_set.name)
            shape = attention_shape(model, bucket.num_tokens)
            kept = (1 - share) * kept_bytes(model, shape, WHOLE, "full") + share * kept_bytes(
                model, shape, WHOLE, "none"
            )
            one = round(kept) + live_bytes(model, shape, WHOLE)
            rows.append(
                BucketMemory(
                    shape=bucket.name,
                    num_tokens=bucket.num_tokens,
                    batch_size=entry.batch_size,
                    needed_bytes=one * max(entry.batch_size, 1),
                    max_batch=max(0, room_bytes // one),
                )
            )
    return rows
