"""Properties of bucket assignment: nothing is lost, the named rule chooses, and suggestions keep the clip."""

from __future__ import annotations

from fractions import Fraction
from math import prod

import msgspec
from hypothesis import assume, given
from hypothesis import strategies as st

from zellige.catalog import load_model
from zellige.workload import BucketPattern, Clip, build_batch, parse_patterns, training_frames

WAN = load_model("wan2.1-t2v-1.3b")

SIDES = st.integers(1, 1400)
CLIPS = st.builds(
    lambda width, height, frames, fps: Clip(id="c", width=width, height=height, num_frames=frames, fps=fps),
    SIDES,
    SIDES,
    st.one_of(st.just(1), st.integers(1, 200)),
    st.sampled_from([Fraction(0), Fraction(16), Fraction(24), Fraction(24000, 1001), Fraction(8)]),
)
SIZES = st.sampled_from([(0, 0), (256, 256), (480, 832), (832, 480), (640, 640), (1280, 320), (1280, 720), (17, 33)])
PATTERNS = st.lists(
    st.builds(
        lambda size, frames: BucketPattern(width=size[0], height=size[1], num_frames=frames),
        SIZES,
        st.sampled_from([1, 1, 5, 33, 49, 50, 81, 121]),
    ),
    min_size=1,
    max_size=8,
)


@given(clips=st.lists(CLIPS, max_size=12), patterns=st.one_of(st.just([]), PATTERNS))
def test_every_clip_is_kept_or_dropped_once_and_tokens_add_up(clips: list[Clip], patterns: list[BucketPattern]) -> None:
    given_clips = [msgspec.structs.replace(item, id=str(index)) for index, item in enumerate(clips)]
    batch, drops = build_batch("b", given_clips, WAN, patterns)
    kept = [item.id for item in batch.sequences]
    dropped = [drop.clip.id for drop in drops]
    assert sorted([*kept, *dropped], key=int) == [item.id for item in given_clips]
    assert kept == sorted(kept, key=int)
    assert [drop.clip for drop in drops] == [given_clips[int(name)] for name in dropped]
    assert all(drop.reason for drop in drops)
    assert all(
        bool(drop.suggestion) == (WAN.snap_frames(drop.clip.num_frames) > 1 or drop.clip.num_frames == 1)
        for drop in drops
        if drop.clip.fps in (0, 16)
    )
    tokens = [prod(WAN.grid(b.width, b.height, b.num_frames)) for b in (item.bucket for item in batch.sequences)]
    assert batch.num_tokens == sum(tokens)
    assert {item.bucket for item in batch.sequences} <= set(batch.buckets)
    assert list(batch.buckets) == sorted(set(batch.buckets), key=lambda bucket: (bucket.num_tokens, bucket))


def best_patterns(item: Clip, patterns: list[BucketPattern]) -> list[BucketPattern]:
    """The patterns that the rule allows, one criterion after another; several where they tie in all of them."""
    snapped = training_frames(item, WAN)[1]
    width, height = WAN.snap_size(item.width, item.height)
    video = item.num_frames > 1
    left = [p for p in patterns if (p.num_frames > 1) == video and p.num_frames <= snapped]
    same_grid = (width, height)
    left = [
        p
        for p in left
        if p.keeps_size
        or p.width * p.height <= item.width * item.height
        or WAN.snap_size(p.width, p.height) == same_grid
    ]
    left = [p for p in left if p.num_frames == max(q.num_frames for q in left)]

    def area(pattern: BucketPattern) -> int:
        return item.width * item.height if pattern.keeps_size else pattern.width * pattern.height

    left = [p for p in left if area(p) == max(area(q) for q in left)]

    def distortion(pattern: BucketPattern) -> Fraction:
        if pattern.keeps_size:
            return Fraction(1)
        a, b = item.width * pattern.height, item.height * pattern.width
        return Fraction(max(a, b), min(a, b))

    return [p for p in left if distortion(p) == min(distortion(q) for q in left)]


@given(item=CLIPS, patterns=PATTERNS)
def test_the_bucket_is_the_one_that_the_rule_names(item: Clip, patterns: list[BucketPattern]) -> None:
    batch, drops = build_batch("b", [item], WAN, patterns)
    allowed = best_patterns(item, patterns)
    frames, snapped = training_frames(item, WAN)
    if not batch.sequences:
        too_short = item.num_frames > 1 and snapped == 1
        assert too_short or not allowed or allowed[0].num_frames % 4 != 1, drops
        return
    bucket = batch.sequences[0].bucket
    own = WAN.snap_size(item.width, item.height)
    shapes = {((p.width, p.height) if not p.keeps_size else own, p.num_frames) for p in allowed}
    assert ((bucket.width, bucket.height), bucket.num_frames) in shapes
    assert bucket.num_frames <= frames
    assert bucket.is_video == (item.num_frames > 1)


@given(item=CLIPS, patterns=PATTERNS)
def test_a_suggested_bucket_keeps_the_clip(item: Clip, patterns: list[BucketPattern]) -> None:
    _, drops = build_batch("b", [item], WAN, patterns)
    assume(drops and (item.num_frames == 1 or training_frames(item, WAN)[1] > 1))
    suggested = parse_patterns([drops[0].suggestion])
    batch, still = build_batch("b", [item], WAN, [*patterns, *suggested])
    assert still == ()
    assert batch.sequences[0].bucket.num_frames == training_frames(item, WAN)[1]


# --- shapes, patterns, groups and limits
