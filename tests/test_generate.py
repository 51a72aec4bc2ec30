"""Batch generators: the same seed gives the same clips in every process; shares, budgets and limits hold."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest

from zellige.catalog import load_generator, load_model, names
from zellige.generate import Durations, generate_clips
from zellige.workload import make_bucket

WAN = load_model("wan2.1-t2v-1.3b")
PRINT = (
    "from zellige.catalog import *; from zellige.generate import generate_clips;"
    "print([c.shape for c in generate_clips(load_generator('openvid'), load_model('wan2.1-t2v-1.3b'), 8, 7, 3)])"
)


def tokens(clips: list, video: bool) -> int:
    chosen = [clip for clip in clips if (clip.num_frames > 1) == video]
    return sum(make_bucket(WAN, clip.width, clip.height, clip.num_frames).num_tokens for clip in chosen)


@pytest.mark.parametrize("name", names("generators"))
def test_batches_meet_their_budget_and_share_within_one_clip(name: str) -> None:
    generator = load_generator(name)
    budget = generator.tokens_per_rank * 8
    longest = max(part.high for part in generator.durations)
    for index in range(3):
        clips = generate_clips(generator, WAN, 8, 0, index)
        widest = max((clip for clip in clips if clip.num_frames > 1), key=lambda clip: clip.width * clip.height)
        frames = WAN.snap_frames(round(longest * 16) + 1)
        giant = make_bucket(WAN, widest.width, widest.height, frames).num_tokens
        total, video = tokens(clips, True) + tokens(clips, False), tokens(clips, True)
        assert abs(total - budget) <= 8160
        assert generator.video_share_low * budget - giant <= video <= generator.video_share_high * budget + giant
        assert len({clip.id for clip in clips}) == len(clips)
        assert all(clip.num_frames == WAN.snap_frames(clip.num_frames) for clip in clips)


def test_a_seed_means_the_same_clips_in_another_process() -> None:
    runs = [subprocess.run([sys.executable, "-c", PRINT], capture_output=True, text=True, check=True) for _ in range(2)]
    here = [clip.shape for clip in generate_clips(load_generator("openvid"), WAN, 8, 7, 3)]
    assert runs[0].stdout == runs[1].stdout == f"{here}\n"


def test_seed_index_and_generator_all_matter() -> None:
    generator = load_generator("openvid")
    first = generate_clips(generator, WAN, 8, 0, 0)
    assert first != generate_clips(generator, WAN, 8, 1, 0)
    assert first != generate_clips(generator, WAN, 8, 0, 1)
    assert first != generate_clips(load_generator("panda"), WAN, 8, 0, 0)


def test_durations_stay_within_their_limits_and_have_the_published_mean() -> None:
    part = Durations(weight=1, shape="lognormal", low=2, high=16, mean=8.48, sigma=0.5)
    chance = random.Random(0)
    drawn = [part.draw(chance) for _ in range(20_000)]
    assert min(drawn) >= 2
    assert max(drawn) <= 16
    assert sum(drawn) / len(drawn) == pytest.approx(8.48, rel=0.01)


def test_image_models_get_images_only() -> None:
    clips = generate_clips(load_generator("openvid"), load_model("flux.1-dev"), 8, 0, 0)
    assert clips
    assert all(clip.num_frames == 1 for clip in clips)


def test_a_mean_outside_the_limits_is_refused() -> None:
    with pytest.raises(ValueError, match="outside the limits"):
        Durations(weight=1, shape="lognormal", low=2, high=16, mean=17)


@pytest.mark.parametrize(("low", "high"), [(5.0, 4.0), (1.0, 4000.0)])
def test_ranges_that_are_none_are_refused(low: float, high: float) -> None:
    with pytest.raises(ValueError, match="are not a range"):
        Durations(weight=1, shape="uniform", low=low, high=high)
