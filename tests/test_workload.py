"""Clips to sequences: exact resampling, bucket assignment, and drops that say what would help."""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from zellige.catalog import load_model
from zellige.errors import ClipError, FormatError
from zellige.workload import (
    MAX_TOKENS,
    BucketPattern,
    Clip,
    ClipGroup,
    build_batch,
    expand_group,
    make_bucket,
    parse_fps,
    parse_patterns,
    parse_shape,
    training_frames,
)

WAN = load_model("wan2.1-t2v-1.3b")


def clip(shape: str, fps: str = "16", name: str = "c") -> Clip:
    width, height, frames = parse_shape(shape)
    return Clip(id=name, width=width, height=height, num_frames=frames, fps=parse_fps(fps, ""), where="batch.jsonl:1")


def assigned(shape: str, buckets: str, fps: str = "16") -> str:
    """The bucket of one clip, or why it is dropped."""
    batch, drops = build_batch("b", [clip(shape, fps)], WAN, parse_patterns(buckets.split()))
    return drops[0].reason if drops else batch.sequences[0].bucket.name


# --- resampling


@pytest.mark.parametrize(
    ("frames", "fps", "resampled", "snapped"),
    [
        (101, "23.976", 67, 65),
        (113, "23.976", 75, 73),
        (101, "24000/1001", 67, 65),
        (161, "16", 161, 161),
        (161, "16.0", 161, 161),
        (161, "0", 161, 161),  # an unknown rate leaves the frames alone
        (161, "", 161, 161),
        (161, "nan", 161, 161),
        (243, "24", 162, 161),
        (244, "24", 162, 161),
        (240, "24", 160, 157),
        (81, "8", 162, 161),  # upsampled
        (300, "30000/1001", 160, 157),
        (1, "23.976", 1, 1),  # an image keeps its frame
        (1, "1000", 1, 1),
        (2, "60", 1, 1),
    ],
)
def test_resampling_and_snapping(frames: int, fps: str, resampled: int, snapped: int) -> None:
    assert training_frames(clip(f"256x256x{frames}", fps), WAN) == (resampled, snapped)


@pytest.mark.parametrize(
    ("frames", "fps", "resampled"),
    [
        (2_997, "23.976", 2_000),  # 2997 * 16 / 23.976 is 2000 exactly
        (2_996, "23.976", 1_999),
        (1_500, "24000/1001", 1_001),  # exactly; in floats 1500 / 23.976... * 16 falls short and floors to 1000
        (3_000, "24000/1001", 2_002),
        (2_999, "24000/1001", 2_001),
        (1_498_500, "23.976", 1_000_000),  # the rate written with three decimals ...
        (1_498_500, "24000/1001", 999_999),  # ... is not NTSC's own
    ],
)
def test_resampling_is_exact_at_whole_numbers(frames: int, fps: str, resampled: int) -> None:
    assert training_frames(clip(f"256x256x{frames}", fps), WAN)[0] == resampled


@given(seconds=st.integers(1, 2_000), numerator=st.integers(1, 120_000), denominator=st.sampled_from([1, 1000, 1001]))
def test_whole_seconds_resample_to_whole_seconds(seconds: int, numerator: int, denominator: int) -> None:
    """The number of frames in ``seconds * denominator`` seconds is whole at both rates; floats lose some of these."""
    frames = seconds * numerator
    assume(2 <= frames <= 10**7)
    moving = Clip(id="v", width=16, height=16, num_frames=frames, fps=Fraction(numerator, denominator))
    assert training_frames(moving, WAN)[0] == seconds * denominator * WAN.native.fps


@given(frames=st.integers(2, 10**6), fps=st.fractions(Fraction(1, 10), 240, max_denominator=1001))
def test_resampling_takes_the_floor(frames: int, fps: Fraction) -> None:
    moving = Clip(id="v", width=16, height=16, num_frames=frames, fps=fps)
    resampled, snapped = training_frames(moving, WAN)
    exact = frames * WAN.native.fps / fps
    assert resampled == max(1, exact.numerator // exact.denominator)
    assert snapped == WAN.snap_frames(resampled)
    assert training_frames(moving, WAN, resample=False) == (frames, WAN.snap_frames(frames))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("23.976", Fraction(2997, 125)),
        ("24000/1001", Fraction(24000, 1001)),
        ("29.97/1", Fraction(2997, 100)),
        (" 16 ", Fraction(16)),
        ("1e1", Fraction(10)),
        ("NaN", Fraction(0)),
        ("None", Fraction(0)),
        ("null", Fraction(0)),
        ("", Fraction(0)),
        ("0", Fraction(0)),
    ],
)
def test_frame_rates_are_read_exactly(text: str, value: Fraction) -> None:
    assert parse_fps(text, "a.csv:2") == value


@pytest.mark.parametrize(
    "text", ["-1", "inf", "-inf", "1/0", "abc", "16 fps", "16/", "0x10", "1/2/3", "100001", "999999999", "1e300"]
)
def test_what_is_not_a_frame_rate_is_refused_by_row(text: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse_fps(text, "a.csv:2")
    assert caught.value.where == "a.csv:2"
    assert repr(text) in caught.value.message


def test_absurd_exponents_are_refused_without_writing_them_out() -> None:
    """In a process of its own: building the integer 10**(10**9) would never end."""
    program = """
from zellige.errors import FormatError
from zellige.workload import parse_fps
for text in ("1e999999999", "1e-999999999", "-1e999999999", "1e100000000000000"):
    try:
        parse_fps(text, "a.csv:2")
    except FormatError as error:
        print(error.where)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout.split() == ["a.csv:2"] * 4


# --- the cases of public threads


def test_retimed_clips_are_dropped_with_the_buckets_that_keep_them() -> None:
    """tdrussell/diffusion-pipe#391: clips retimed from 23.976 to 16 fps were all too short for their buckets."""
    clips = [clip("832x480x101", "23.976", f"a{index}") for index in range(3)] + [clip("832x480x113", "23.976", "b")]
    assert [training_frames(item, WAN) for item in clips] == [(67, 65)] * 3 + [(75, 73)]
    batch, drops = build_batch("b", clips, WAN, parse_patterns(["1", "101", "113"]))
    assert batch.sequences == ()
    assert [drop.clip.id for drop in drops] == ["a0", "a1", "a2", "b"]
    assert [drop.suggestion for drop in drops] == ["832x480x65"] * 3 + ["832x480x73"]
    assert drops[0].reason == "101 frames at 23.976 fps are 67 at 16 fps, 65 as 4n+1: fewer than in every video bucket"
    kept, none = build_batch("b", clips, WAN, parse_patterns(["1", "65", "73"]))
    assert none == ()
    assert [item.bucket.num_frames for item in kept.sequences] == [65, 65, 65, 73]
    untouched, none = build_batch("b", clips, WAN, parse_patterns(["1", "101", "113"]), resample=False)
    assert none == ()
    assert [item.bucket.num_frames for item in untouched.sequences] == [101, 101, 101, 113]


def test_a_clip_whose_frames_break_the_rule_is_snapped_not_lost() -> None:
    """modelscope/DiffSynth-Studio#1682: 243 frames are not 4n+1."""
    batch, drops = build_batch("b", [clip("1344x768x243")], WAN)
    assert drops == ()
    assert batch.sequences[0].bucket.name == "1344x768x241"
    assert batch.num_tokens == 61 * 48 * 84


# --- bucket assignment


@pytest.mark.parametrize(
    ("shape", "buckets", "chosen"),
    [
        # videos: the longest bucket that is not longer than the clip
        ("832x480x81", "1 49 81 121", "832x480x81"),
        ("832x480x80", "1 49 81 121", "832x480x49"),
        ("832x480x500", "1 49 81 121", "832x480x121"),
        ("832x480x121", "121 1 81", "832x480x121"),
        # never the one-frame bucket
        ("832x480x48", "1 49", "48 frames, 45 as 4n+1: fewer than in every video bucket"),
        ("832x480x81", "832x480", "81 frames: fewer than in every video bucket"),
        # length before area, area before aspect
        ("1280x720x81", "832x480x81 1280x720x49", "832x480x81"),
        ("1280x720x81", "832x480x81 1280x720x81", "1280x720x81"),
        ("1280x720x81", "720x1280x81 832x480x81", "720x1280x81"),
        ("1280x720x81", "1280x720x81 720x1280x81", "1280x720x81"),
        ("720x1280x81", "1280x720x81 720x1280x81", "720x1280x81"),
        ("1000x1000x81", "1600x400x81 800x800x81 400x1600x81", "800x800x81"),
        # areas above the clip's are passed over, also where that means a shorter bucket
        ("832x480x81", "1280x720x81 832x480x81", "832x480x81"),
        ("832x480x81", "1280x720x81 832x480x49", "832x480x49"),
        ("832x480x81", "1280x720x81", "81 frames: 832x480 is smaller than every bucket of that length"),
        # a bucket without a size takes the clip's own, padded to whole tokens
        ("830x470x81", "81", "832x480x81"),
        ("1280x720x81", "832x480x81 81", "1280x720x81"),
        # images: area, then aspect
        ("1024x1024x1", "512x512 1024x1024 2048x2048", "1024x1024x1"),
        ("1000x1000x1", "512x512 1024x1024", "512x512x1"),
        ("900x600x1", "512x512 640x432 432x640", "640x432x1"),
        ("1920x1080x1", "1920x1080 1080x1920", "1920x1080x1"),
        ("1080x1920x1", "1920x1080 1080x1920", "1080x1920x1"),
        ("300x300x1", "81", "the bucket set has no one-frame bucket"),
        ("300x300x1", "256x256x81", "the bucket set has no one-frame bucket"),
        ("200x200x1", "256x256 512x512x81", "200x200 is smaller than every bucket of that length"),
        ("300x200x1", "1 81", "304x208x1"),
        # a bucket that the model cannot train is never used
        ("832x480x81", "80", "bucket of 80 frames breaks the rule 4n+1"),
    ],
)
def test_bucket_assignment(shape: str, buckets: str, chosen: str) -> None:
    assert assigned(shape, buckets) == chosen


def test_a_size_as_the_clip_is_padded_counts_as_its_own() -> None:
    """1080 rows are trained as 1088: a bucket written either way takes the clip, with the same tokens."""
    for bucket in ("1920x1080", "1920x1088"):
        batch, drops = build_batch("b", [clip("1920x1080x1")], WAN, parse_patterns([bucket]))
        assert drops == ()
        assert batch.num_tokens == 8160


def test_without_buckets_every_snapped_shape_is_its_own() -> None:
    shapes = {"d": "832x480x84", "b": "300x200x1", "c": "304x208x1", "a": "832x480x81"}
    batch, drops = build_batch("b", [clip(shape, name=name) for name, shape in shapes.items()], WAN)
    assert drops == ()
    assert [item.id for item in batch.sequences] == ["d", "b", "c", "a"]
    assert [item.bucket.name for item in batch.sequences] == ["832x480x81", "304x208x1", "304x208x1", "832x480x81"]
    assert [bucket.name for bucket in batch.buckets] == ["304x208x1", "832x480x81"]


@pytest.mark.parametrize("frames", [2, 3, 4])
def test_videos_of_less_than_two_latent_frames_are_dropped(frames: int) -> None:
    for patterns in ((), parse_patterns(["1", "5"])):
        batch, drops = build_batch("b", [clip(f"256x256x{frames}")], WAN, patterns)
        assert batch.sequences == ()
        assert drops[0].reason == f"{frames} frames, and a video has at least 5"
        assert drops[0].suggestion == ""


def test_the_catalog_of_a_batch_holds_unused_buckets_too() -> None:
    """Policies cut the catalog of the training run, not the shapes that one batch happens to have."""
    batch, _ = build_batch("b", [clip("256x256x1")], WAN, parse_patterns(["256x256", "832x480x81", "480x480x80", "49"]))
    assert [bucket.name for bucket in batch.buckets] == ["256x256x1", "832x480x81"]


def test_video_share_counts_tokens() -> None:
    batch, _ = build_batch("b", [clip("256x256x1"), clip("256x256x1"), clip("256x256x5")], WAN)
    assert batch.num_tokens == 4 * 256
    assert batch.video_share == 0.5


def test_bucket_patterns() -> None:
    patterns = parse_patterns(["81", " 1280x720 ", "832x480x49"])
    assert patterns == (
        BucketPattern(num_frames=81),
        BucketPattern(num_frames=1, width=1280, height=720),
        BucketPattern(num_frames=49, width=832, height=480),
    )
    assert [pattern.keeps_size for pattern in patterns] == [True, False, False]


@pytest.mark.parametrize(
    "text", ["", "x", "0", "-1", "81.0", "0x480x81", "1280x0", "99999x99999", "1x1x99999999", "1x2x3x4", "8１"]
)
def test_impossible_bucket_patterns_are_refused(text: str) -> None:
    with pytest.raises(ClipError):
        parse_patterns([text])


@pytest.mark.parametrize("text", ["", "1280", "1280*720", "1280x720x", "x720", "-1x2", "1e3x2", "1280X720", "１x２"])
def test_what_is_not_a_shape_is_refused(text: str) -> None:
    with pytest.raises(ClipError, match="is not a clip"):
        parse_shape(text)


@pytest.mark.parametrize("shape", ["0x1x1", "1x0x1", "65537x1x1", "1x65537x1", "1x1x10000001"])
def test_clips_out_of_range_are_refused_by_name_and_row(shape: str) -> None:
    with pytest.raises(FormatError, match="of clip 'c' is") as caught:
        clip(shape)
    assert caught.value.where == "batch.jsonl:1"


def test_sequences_too_long_to_price_are_refused_by_row() -> None:
    assert make_bucket(WAN, 256, 256, 4 * (MAX_TOKENS // 256 - 1) + 1).num_tokens == MAX_TOKENS
    with pytest.raises(FormatError, match="tokens, more than the 134,217,728") as caught:
        build_batch("b", [clip("65536x65536x10000000")], WAN)
    assert caught.value.where == "batch.jsonl:1"


def test_groups_expand_to_equal_clips_with_names_of_their_own() -> None:
    group = ClipGroup(id="v", width=832, height=480, num_frames=81, fps=23.976, count=3)
    clips = expand_group(group, "w.toml")
    assert [item.id for item in clips] == ["v-0", "v-1", "v-2"]
    assert {(item.shape, item.fps) for item in clips} == {("832x480x81", Fraction(2997, 125))}
    assert [item.id for item in expand_group(ClipGroup(id="i", width=1, height=1, num_frames=1), "w.toml")] == ["i"]
