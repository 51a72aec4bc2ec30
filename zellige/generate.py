"""Seeded batch generators: clips drawn by a dataset's durations and resolutions up to a token budget."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from functools import cache
from typing import Annotated, ClassVar, Literal

import msgspec

from zellige.errors import FormatError
from zellige.files import PositiveFloat, PositiveInt
from zellige.model import ModelSpec
from zellige.workload import MAX_SEQUENCES, Clip, make_bucket, parse_shape

Weight = Annotated[float, msgspec.Meta(gt=0, le=1e9)]


class Durations(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Part of a mixture of clip lengths in seconds: uniform, or lognormal by its mean and sigma, limits included."""

    weight: Weight
    shape: Literal["uniform", "lognormal"]
    low: PositiveFloat
    high: PositiveFloat
    mean: PositiveFloat = 1.0
    sigma: PositiveFloat = 0.5

    def __post_init__(self) -> None:
        if self.high < self.low or self.high > 3600:
            raise ValueError(f"durations {self.low}..{self.high} are not a range within an hour")

        if self.shape == "lognormal" and not self.low < self.mean < self.high:
            raise ValueError(f"mean {self.mean} is outside the limits {self.low}..{self.high}")

    def draw(self, chance: random.Random) -> float:
        """A length in seconds; lognormal draws outside the limits are drawn again."""
        if self.shape == "uniform":
            return self.low + (self.high - self.low) * chance.random()
        mu = _location(self.mean, self.sigma, self.low, self.high)
        while True:
            value = chance.lognormvariate(mu, self.sigma)
            if self.low <= value <= self.high:
                return value


@cache
def _location(mean: float, sigma: float, low: float, high: float) -> float:
    """The location of a lognormal whose mean within limits is ``mean``, by bisection (the mean rises with it)."""
    left, right = math.log(low) - 2 * sigma**2, math.log(high) + 2 * sigma**2
    for _ in range(60):
        middle = (left + right) / 2
        if _mean_within(middle, sigma, math.log(low), math.log(high)) < mean:
            left = middle
        else:
            right = middle
    return (left + right) / 2


def _mean_within(mu: float, sigma: float, low: float, high: float) -> float:
    """The mean of a lognormal restricted to ``exp(low) .. exp(high)``."""

    def below(point: float) -> float:
        return 0.5 * (1 + math.erf(point / math.sqrt(2)))

    inside = below((high - mu) / sigma) - below((low - mu) / sigma)
    shifted = below((high - mu) / sigma - sigma) - below((low - mu) / sigma - sigma)
    return math.exp(mu + sigma**2 / 2) * shifted / inside


class Size(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A resolution, ``WxH``, and how often it is drawn."""

    size: str
    weight: Weight


class BatchGenerator(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How batches of a dataset look: lengths, sizes, the share of tokens that videos have, and tokens a GPU."""

    SCHEMA: ClassVar[str] = "zellige.generator/1"

    schema: str = "zellige.generator/1"
    name: str
    title: str
    cluster: str
    model: str
    tokens_per_rank: PositiveInt
    video_share_low: Annotated[float, msgspec.Meta(ge=0, le=1)]
    video_share_high: Annotated[float, msgspec.Meta(ge=0, le=1)]
    durations: Annotated[tuple[Durations, ...], msgspec.Meta(min_length=1)]
    videos: Annotated[tuple[Size, ...], msgspec.Meta(min_length=1)]
    images: Annotated[tuple[Size, ...], msgspec.Meta(min_length=1)]
    source: str


def generate_clips(generator: BatchGenerator, model: ModelSpec, num_ranks: int, seed: int, index: int) -> list[Clip]:
    """The clips of one batch, the same for the same arguments in every process.

    Videos are drawn until their share of the budget is met, images until the budget is; the last of each is kept where
    that comes closer. At least one clip is drawn.
    """
    chance = random.Random(f"{generator.name}/{seed}/{index}")
    budget = generator.tokens_per_rank * num_ranks
    low, high = generator.video_share_low, generator.video_share_high
    share = low + (high - low) * chance.random()
    clips = _draw(generator, model, chance, round(share * budget), video=True) if model.takes_videos else []
    used = sum(_tokens(model, clip) for clip in clips)
    clips += _draw(generator, model, chance, budget - used, video=False)
    return clips


def _draw(
    generator: BatchGenerator, model: ModelSpec, chance: random.Random, budget: int, *, video: bool
) -> list[Clip]:
    clips: list[Clip] = []
    used = 0
    while used < budget:
        clip = _clip(generator, model, chance, f"{'v' if video else 'i'}{len(clips)}", video=video)
        tokens = _tokens(model, clip)
        if used + tokens - budget > budget - used and clips:
            break
        clips.append(clip)
        used += tokens
        if len(clips) > MAX_SEQUENCES:
            raise FormatError(
                f"generator {generator.name} draws more than {MAX_SEQUENCES:,} clips a batch",
                where=generator.name,
                fix="fewer tokens a rank, or longer clips",
            )
    return clips


def _clip(generator: BatchGenerator, model: ModelSpec, chance: random.Random, name: str, *, video: bool) -> Clip:
    sizes = generator.videos if video else generator.images
    width, height, _ = parse_shape(chance.choices([s.size for s in sizes], [s.weight for s in sizes])[0])
    frames = 1
    if video:
        part = chance.choices(generator.durations, [d.weight for d in generator.durations])[0]
        shortest = model.latent.vae_stride_t + 1
        frames = max(model.snap_frames(round(part.draw(chance) * model.native.fps) + 1), shortest)
    return Clip(id=name, width=width, height=height, num_frames=frames, fps=Fraction(model.native.fps))


def _tokens(model: ModelSpec, clip: Clip) -> int:
    return make_bucket(model, clip.width, clip.height, clip.num_frames).num_tokens
