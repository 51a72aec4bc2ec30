"""Clips, buckets, sequences and batches: from what is on disk to what trains, with a report of what was dropped."""

from __future__ import annotations

import re
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Annotated, ClassVar, Literal

import msgspec

from zellige.errors import ClipError, FormatError
from zellige.files import PositiveFloat, PositiveInt, shown
from zellige.model import ModelSpec
from zellige.units import count_of

MAX_SIDE = 65_536
MAX_FRAMES = 10_000_000
MAX_TOKENS = 2**27
"""The longest sequence that is priced: above it, step times in nanoseconds leave 64 bits."""

MAX_SEQUENCES = 1_000_000

_SHAPE = re.compile(r"(\d{1,12})x(\d{1,12})(?:x(\d{1,12}))?", re.ASCII)
_FPS = re.compile(r"\d{1,9}(?:\.\d{1,9})?(?:/\d{1,9})?", re.ASCII)


class Clip(msgspec.Struct, frozen=True, kw_only=True):
    """What is on disk. One frame is an image; ``fps`` 0 means unknown. ``where`` names its row for messages."""

    id: str
    width: int
    height: int
    num_frames: int
    fps: Fraction = Fraction(0)
    where: str = ""

    def __post_init__(self) -> None:
        for name, value, top in (
            ("width", self.width, MAX_SIDE),
            ("height", self.height, MAX_SIDE),
            ("num_frames", self.num_frames, MAX_FRAMES),
        ):
            if not 1 <= value <= top:
                raise FormatError(
                    f"{name} of clip {shown(self.id)} is {value}, outside 1..{top}",
                    where=self.where,
                    fix="take the row out, or cut the clip",
                )

    @property
    def shape(self) -> str:
        """``1280x720x161``."""
        return f"{self.width}x{self.height}x{self.num_frames}"


class Bucket(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, order=True):
    """One shape that trains; ``num_tokens`` belongs to one model."""

    width: PositiveInt
    height: PositiveInt
    num_frames: PositiveInt
    num_tokens: PositiveInt

    @property
    def name(self) -> str:
        """``1280x720x161``."""
        return f"{self.width}x{self.height}x{self.num_frames}"

    @property
    def is_video(self) -> bool:
        """Whether it has more than one frame."""
        return self.num_frames > 1


class Sequence(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What trains: a clip after resampling and bucket assignment."""

    id: str
    bucket: Bucket


class Batch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sequences of one synchronous step, and the buckets of the training run they come from."""

    name: str
    sequences: tuple[Sequence, ...]
    buckets: tuple[Bucket, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens of all sequences."""
        return sum(sequence.bucket.num_tokens for sequence in self.sequences)

    @property
    def video_share(self) -> float:
        """The fraction of tokens that belong to videos."""
        video = sum(sequence.bucket.num_tokens for sequence in self.sequences if sequence.bucket.is_video)
        return video / self.num_tokens


class Drop(msgspec.Struct, frozen=True, kw_only=True):
    """A clip that no bucket takes: why, and the bucket that would keep it (empty where none would)."""

    clip: Clip
    reason: str
    suggestion: str


class BucketPattern(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry of a bucket set: frames, with a size or with every clip's own size."""

    num_frames: PositiveInt
    width: Annotated[int, msgspec.Meta(ge=0, le=MAX_SIDE)] = 0
    height: Annotated[int, msgspec.Meta(ge=0, le=MAX_SIDE)] = 0

    @property
    def keeps_size(self) -> bool:
        """Whether clips keep their own size."""
        return self.width == 0


class ClipGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``count`` equal clips of a workload file."""

    id: str
    width: PositiveInt
    height: PositiveInt
    num_frames: PositiveInt
    fps: PositiveFloat = 16.0
    count: Annotated[int, msgspec.Meta(ge=1, le=MAX_SEQUENCES)] = 1


class Baselines(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the baselines of a published suite were set up."""

    usp: str = ""
    knapformer: str = ""
    source: str


class Workload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A named batch with the cluster and model that it was made for."""

    SCHEMA: ClassVar[str] = "zellige.workload/1"

    schema: str = "zellige.workload/1"
    name: str
    title: str
    cluster: str
    model: str
    origin: Literal["published", "inferred", "constructed"]
    source: str
    buckets: tuple[str, ...] = ()
    baselines: Baselines | None = None
    clips: Annotated[tuple[ClipGroup, ...], msgspec.Meta(min_length=1)]

    def expand(self, where: str) -> list[Clip]:
        """The clips of all groups, in file order."""
        return [clip for group in self.clips for clip in expand_group(group, where)]


def expand_group(group: ClipGroup, where: str) -> list[Clip]:
    """The clips of a group, one by one."""
    clip = Clip(
        id=group.id,
        width=group.width,
        height=group.height,
        num_frames=group.num_frames,
        fps=parse_fps(str(group.fps), where),
        where=where,
    )
    return repeat_clip(clip, group.count)


def repeat_clip(clip: Clip, count: int) -> list[Clip]:
    """``count`` equal clips: the clip itself where it is one, else ``ID-0``, ``ID-1`` ..."""
    if count == 1:
        return [clip]
    return [msgspec.structs.replace(clip, id=f"{clip.id}-{index}") for index in range(count)]


A_FRAME_RATE = "as 24, 23.976 or 24000/1001; or no fps: the model's own"


def parse_fps(text: str, where: str) -> Fraction:
    """An exact frame rate from ``16``, ``23.976`` or ``24000/1001``; 0 and nan mean unknown."""
    cleaned = text.strip().lower()
    if cleaned in {"", "nan", "none", "null"}:
        return Fraction(0)
    try:
        if _FPS.fullmatch(cleaned):
            value = Fraction(*map(Fraction, cleaned.split("/")))
        else:
            decimal = Decimal(cleaned)
            if decimal and decimal.is_finite() and abs(decimal.adjusted()) > 18:
                # A fraction would write the exponent out in digits.
                raise FormatError(f"fps {shown(text)} is outside 0..100000", where=where, fix=A_FRAME_RATE)
            value = Fraction(decimal)
    except (InvalidOperation, ValueError, ZeroDivisionError, OverflowError):
        raise FormatError(f"fps {shown(text)} is not a frame rate", where=where, fix=A_FRAME_RATE) from None
    if not 0 <= value <= 100_000:
        raise FormatError(f"fps {shown(text)} is outside 0..100000", where=where, fix=A_FRAME_RATE)
    return value


def parse_shape(text: str) -> tuple[int, int, int]:
    """Read ``WxH`` or ``WxHxF`` (0 frames where none are given)."""
    match = _SHAPE.fullmatch(text.strip())
    if match is None:
        raise ClipError(f"{shown(text)} is not a clip", fix="write WIDTHxHEIGHTxFRAMES, as 1280x720x161")
    width, height, frames = (int(part or 0) for part in match.groups())
    return width, height, frames


def parse_patterns(items: Iterable[str]) -> tuple[BucketPattern, ...]:
    """Bucket patterns from ``1280x720x81`` (a size) or ``81`` (frames only: clips keep their size)."""
    patterns = []
    for item in items:
        text = item.strip()
        if text.isascii() and text.isdecimal() and len(text) <= 8 and int(text) > 0:
            patterns.append(BucketPattern(num_frames=int(text)))
            continue
        width, height, frames = parse_shape(text)
        if not (1 <= width <= MAX_SIDE and 1 <= height <= MAX_SIDE and 0 <= frames <= MAX_FRAMES):
            raise ClipError(f"bucket {shown(text)} is out of range", fix=f"sides 1..{MAX_SIDE}, frames 1..{MAX_FRAMES}")
        patterns.append(BucketPattern(num_frames=frames or 1, width=width, height=height))
    return tuple(patterns)


def training_frames(clip: Clip, model: ModelSpec, *, resample: bool = True) -> tuple[int, int]:
    """Frames after resampling to the model's rate, and after snapping to its frame rule.

    Resampling takes ``floor(frames * target / fps)``, as loaders do that sample by time stamp; images keep their frame.
    """
    frames = clip.num_frames
    if resample and frames > 1 and clip.fps > 0 and clip.fps != model.native.fps:
        frames = max(1, int(frames * Fraction(model.native.fps) / clip.fps))
    return frames, model.snap_frames(frames)


def make_bucket(model: ModelSpec, width: int, height: int, num_frames: int, where: str = "") -> Bucket:
    """A bucket with its token count under a model; raises :class:`FormatError` beyond ``MAX_TOKENS``."""
    time, rows, columns = model.grid(width, height, num_frames)
    tokens = time * rows * columns
    if tokens > MAX_TOKENS:
        raise FormatError(
            f"{width}x{height}x{num_frames} has {count_of(tokens, 'token')},"
            f" more than the {MAX_TOKENS:,} that can be priced",
            where=where,
            fix="a smaller or shorter clip",
        )
    return Bucket(width=width, height=height, num_frames=num_frames, num_tokens=tokens)


def build_batch(
    name: str,
    clips: SequenceOf[Clip],
    model: ModelSpec,
    patterns: SequenceOf[BucketPattern] = (),
    *,
    resample: bool = True,
) -> tuple[Batch, tuple[Drop, ...]]:
    """Turn clips into sequences: resample, snap, assign to the nearest bucket; what no bucket takes is reported."""
    sequences: list[Sequence] = []
    drops: list[Drop] = []
    shapes: dict[tuple[int, int, int, Fraction], Bucket | Drop] = {}
    for clip in clips:
        key = (clip.width, clip.height, clip.num_frames, clip.fps)
        if key not in shapes:
            shapes[key] = assign_bucket(clip, model, patterns, resample=resample)
        outcome = shapes[key]
        if isinstance(outcome, Drop):
            drops.append(Drop(clip=clip, reason=outcome.reason, suggestion=outcome.suggestion))
        else:
            sequences.append(Sequence(clip.id, outcome))
    catalog = {sequence.bucket for sequence in sequences}
    for pattern in patterns:
        if not pattern.keeps_size and pattern.num_frames == model.snap_frames(pattern.num_frames):
            catalog.add(make_bucket(model, pattern.width, pattern.height, pattern.num_frames))
    ordered = tuple(sorted(catalog, key=lambda bucket: (bucket.num_tokens, bucket)))
    return Batch(name=name, sequences=tuple(sequences), buckets=ordered), tuple(drops)


def assign_bucket(
    clip: Clip, model: ModelSpec, patterns: SequenceOf[BucketPattern] = (), *, resample: bool = True
) -> Bucket | Drop:
    """The bucket that a clip trains in, or why none takes it; raises :class:`FormatError` as :func:`make_bucket`."""
    frames, snapped = training_frames(clip, model, resample=resample)
    if clip.num_frames > 1 and not model.takes_videos:
        return Drop(clip=clip, reason=f"{model.name} is an image model; extract a frame", suggestion="")
    if clip.num_frames > 1 and snapped < 2:
        shortest = model.latent.vae_stride_t + 1
        return Drop(
            clip=clip, reason=f"{count_of(frames, 'frame')}, and a video has at least {shortest}", suggestion=""
        )
    width, height = model.snap_size(clip.width, clip.height)
    if not patterns:
        return make_bucket(model, width, height, snapped, clip.where)
    chosen = _nearest(clip, model, snapped, patterns)
    own = f"{clip.width}x{clip.height}x{snapped}"
    if isinstance(chosen, str):
        return Drop(clip=clip, reason=_frames_text(clip, model, frames, snapped) + chosen, suggestion=own)
    if chosen.num_frames != model.snap_frames(chosen.num_frames):
        reason = f"bucket of {count_of(chosen.num_frames, 'frame')} breaks the rule {model.latent.vae_stride_t}n+1"
        return Drop(clip=clip, reason=reason, suggestion=own)
    if chosen.keeps_size:
        return make_bucket(model, width, height, chosen.num_frames, clip.where)
    return make_bucket(model, chosen.width, chosen.height, chosen.num_frames, clip.where)


def _frames_text(clip: Clip, model: ModelSpec, frames: int, snapped: int) -> str:
    """How a clip's frames came about, for a reason: ``101 frames at 23.976 fps are 67 at 16 fps, 65 as 4n+1: ``."""
    if clip.num_frames == 1:
        return ""
    text = count_of(clip.num_frames, "frame")
    if frames != clip.num_frames:
        text += f" at {float(clip.fps):g} fps are {frames} at {model.native.fps} fps"
    if snapped != frames:
        text += f", {snapped} as {model.latent.vae_stride_t}n+1"
    return text + ": "


def _nearest(clip: Clip, model: ModelSpec, snapped: int, patterns: SequenceOf[BucketPattern]) -> BucketPattern | str:
    """The bucket for a clip, or the reason why there is none.

    Videos: the longest bucket not longer than the clip and never the one-frame one; then the largest area not above the
    clip's; then the nearest aspect ratio. Images: area, then aspect. A bucket of the same grid is never too large.
    """
    is_video = clip.num_frames > 1
    area, grid = clip.width * clip.height, model.snap_size(clip.width, clip.height)
    in_time = [p for p in patterns if (1 < p.num_frames <= snapped if is_video else p.num_frames == 1)]
    if not in_time:
        if not is_video:
            return "the bucket set has no one-frame bucket"
        return "fewer than in every video bucket"
    fitting = [
        p for p in in_time if p.keeps_size or p.width * p.height <= area or model.snap_size(p.width, p.height) == grid
    ]
    if not fitting:
        return f"{clip.width}x{clip.height} is smaller than every bucket of that length"

    def preference(pattern: BucketPattern) -> tuple[int, int, Fraction]:
        if pattern.keeps_size:
            return pattern.num_frames, area, Fraction(0)
        wanted, offered = Fraction(clip.width, clip.height), Fraction(pattern.width, pattern.height)
        distortion = max(wanted, offered) / min(wanted, offered)
        return pattern.num_frames, pattern.width * pattern.height, -distortion

    return max(fitting, key=preference)
