"""How clips became what trains: what a file's reader made of it, frame rates, sizes and frames that do not stay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from typing import NamedTuple

from zellige.model import ModelSpec
from zellige.sources import Options, Source, patterns_of
from zellige.units import count_of, share_of
from zellige.workload import Bucket, Clip, Drop, assign_bucket, training_frames


class Fit(NamedTuple):
    """A shape of clips: the first of them, how many there are, their frames at the model's rate, and their bucket."""

    clip: Clip
    number: int
    frames: int
    bucket: Bucket

    @property
    def size(self) -> str:
        """``1920x1080``, as on disk."""
        return f"{self.clip.width}x{self.clip.height}"


def fitting_lines(source: Source, model: ModelSpec, options: Options) -> list[str]:
    """What a source's clips go through to train, a line each for what happens to any of them; drops are left out."""
    fits = _fits(source, model, options)
    videos = [fit for fit in fits if fit.clip.num_frames > 1]
    lines = [
        *source.reading,
        *_resampled(videos, model),
        *_silent(videos, model, options),
        *_resized(fits, model),
        *_cut(videos, model),
    ]
    return [f"{source.label}: {line}" for line in lines]


def _fits(source: Source, model: ModelSpec, options: Options) -> list[Fit]:
    """The shapes of all clips that a bucket takes, in order of first sight."""
    patterns = patterns_of(source, options)
    firsts: dict[tuple[int, int, int, Fraction], Clip] = {}
    counts: Counter[tuple[int, int, int, Fraction]] = Counter()
    for clips in source.clips.values():
        for clip in clips:
            key = (clip.width, clip.height, clip.num_frames, clip.fps)
            firsts.setdefault(key, clip)
            counts[key] += 1
    fits = []
    for key, clip in firsts.items():
        bucket = assign_bucket(clip, model, patterns, resample=options.resample)
        if not isinstance(bucket, Drop):
            frames, _ = training_frames(clip, model, resample=options.resample)
            fits.append(Fit(clip, counts[key], frames, bucket))
    return fits


def _told(changed: list[Fit], among: list[Fit], noun: str, what: str, example: str) -> list[str]:
    """``5 of 155 clips are WHAT (EXAMPLE)``; nothing where nothing changed. The example is of the first of them."""
    number = _number(changed)
    if not number:
        return []
    more = len({fit.clip.shape for fit in changed}) - 1
    others = f", and {count_of(more, 'other shape')}" if more else ""
    share = share_of(number, _number(among), noun)
    return [f"{share} {'is' if number == 1 else 'are'} {what} ({changed[0].clip.id}: {example}{others})"]


def _number(fits: Iterable[Fit]) -> int:
    return sum(fit.number for fit in fits)


def _resampled(videos: list[Fit], model: ModelSpec) -> list[str]:
    changed = [fit for fit in videos if fit.frames != fit.clip.num_frames]
    example = f"{changed[0].clip.num_frames} to {count_of(changed[0].frames, 'frame')}" if changed else ""
    told = _told(changed, videos, "video", f"resampled to {model.native.fps} fps", example)
    return [f"{line}; --keep-fps leaves the rate alone" for line in told]


def _silent(videos: list[Fit], model: ModelSpec, options: Options) -> list[str]:
    silent = _number(fit for fit in videos if fit.clip.fps == 0)
    if not silent or not options.resample:
        return []
    say = "says" if silent == 1 else "say"
    return [f"{count_of(silent, 'video')} {say} no fps: taken as {model.native.fps}, the model's"]


def _resized(fits: list[Fit], model: ModelSpec) -> list[str]:
    """Sizes that are padded up to whole tokens, and sizes that a bucket changes beyond that."""
    padded: list[Fit] = []
    resized: list[Fit] = []
    for fit in fits:
        trained = model.snap_size(fit.bucket.width, fit.bucket.height)
        if trained == (fit.clip.width, fit.clip.height):
            continue
        whole = model.snap_size(fit.clip.width, fit.clip.height)
        (padded if trained == whole else resized).append(fit)
    rows, columns = model.pixels_per_token
    lines = []
    for changed, what in (
        (padded, f"padded to whole tokens of {columns}x{rows} pixels"),
        (resized, "resized to the bucket's size"),
    ):
        if changed:
            width, height = model.snap_size(changed[0].bucket.width, changed[0].bucket.height)
            lines += _told(changed, fits, "clip", what, f"{changed[0].size} to {width}x{height}")
    return lines


def _cut(videos: list[Fit], model: ModelSpec) -> list[str]:
    """Frames beyond the frame rule, and frames beyond those of a bucket."""
    lines = []
    by_rule = [fit for fit in videos if fit.bucket.num_frames == model.snap_frames(fit.frames) != fit.frames]
    by_bucket = [fit for fit in videos if fit.bucket.num_frames < model.snap_frames(fit.frames)]
    for changed, what in (
        (by_rule, f"cut to {model.latent.vae_stride_t}n+1 frames"),
        (by_bucket, "cut to the bucket's frames"),
    ):
        if changed:
            example = f"{changed[0].frames} to {count_of(changed[0].bucket.num_frames, 'frame')}"
            lines += _told(changed, videos, "video", what, example)
    return lines
