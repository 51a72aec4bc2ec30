"""Megatron's scheduler: worked examples, and what every micro-step keeps to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from zellige.catalog import load_model
from zellige.plan.megatron_hybrid_cp import SLACK, Group, Scheduler
from zellige.workload import Bucket, make_bucket
from zellige.workload import Sequence as Clip

BUCKET: Bucket = make_bucket(load_model("wan2.1-t2v-1.3b"), 256, 256, 1)


def clips(lengths: Sequence[int]) -> list[Clip]:
    ordered = sorted(lengths, reverse=True)
    return [Clip(f"s{i}", msgspec.structs.replace(BUCKET, num_tokens=length)) for i, length in enumerate(ordered)]


def scheduler(ranks: int, max_tokens: int) -> Scheduler:
    powers = [1 << p for p in range(ranks.bit_length()) if 1 << p <= ranks]
    return Scheduler(ranks, max_tokens, sorted({*powers, ranks}))


def seen(groups: Sequence[Group]) -> list[tuple[int, int, list[int]]]:
    return [(g.start, g.size, [clip.bucket.num_tokens for clip in g.clips]) for g in groups]


def test_a_giant_on_all_ranks_leaves_the_rest_to_the_next_micro_step() -> None:
    first, second = scheduler(8, 100).micro_steps(clips([800] + [100] * 16))
    assert seen(first) == [(0, 8, [800])]
    assert seen(second) == [(rank, 1, [100, 100]) for rank in range(8)]


def test_giants_and_short_ones_share_a_micro_step_where_ranks_are_free() -> None:
    # Works: 400**2/4 = 40,000 and 100**2 = 10,000. The balance of 5 % ends the step when four short ones are left.
    steps = scheduler(8, 100).micro_steps(clips([400] + [100] * 20))
    assert seen(steps[0]) == [(0, 4, [400]), *((rank, 1, [100] * 4) for rank in range(4, 8))]
    assert [length for _, _, lengths in seen(steps[1]) for length in lengths] == [100] * 4


def test_the_last_of_the_most_loaded_group_is_taken_back_where_that_evens_out() -> None:
    first, second = scheduler(2, 400).micro_steps(clips([400, 400, 400]))
    assert seen(first) == [(0, 1, [400]), (1, 1, [400])]
    assert seen(second) == [(0, 2, [400])]


def test_idle_ranks_are_filled_by_doubling_the_smallest_group() -> None:
    assert seen(scheduler(8, 100).micro_steps(clips([90]))[0]) == [(0, 8, [90])]
    (step,) = scheduler(8, 100).micro_steps(clips([400, 90]))
    assert seen(step) == [(0, 4, [400]), (4, 4, [90])]
    (step,) = scheduler(6, 100).micro_steps(clips([390]))
    assert seen(step) == [(0, 6, [390])]


def test_where_too_few_ranks_are_idle_to_double_a_group_they_stay_idle() -> None:
    (step,) = scheduler(10, 100).micro_steps(clips([390, 380]))
    assert seen(step) == [(0, 4, [390]), (4, 4, [380])]


@settings(max_examples=150)
@given(
    lengths=st.lists(st.integers(1, 900), min_size=1, max_size=24),
    ranks=st.sampled_from([1, 2, 3, 4, 6, 8, 12]),
    max_tokens=st.integers(100, 500),
)
def test_every_sequence_runs_once_in_disjoint_groups(lengths: list[int], ranks: int, max_tokens: int) -> None:
    plan = scheduler(ranks, max_tokens)
    made = clips(lengths)
    steps = plan.micro_steps(made)
    assert Counter(c.id for groups in steps for g in groups for c in g.clips) == Counter(c.id for c in made)
    for groups in steps:
        taken = [rank for g in groups for rank in range(g.start, g.start + g.size)]
        assert taken == list(range(len(taken)))
        assert len(taken) <= ranks
        assert all(g.clips for g in groups)
        assert all(g.size >= plan.needed(clip) for g in groups for clip in g.clips)
        if ranks & (ranks - 1) == 0:
            assert len(taken) == ranks


@settings(max_examples=80)
@given(lengths=st.lists(st.integers(1, 900), min_size=1, max_size=24), max_tokens=st.integers(100, 500))
def test_buckets_are_runs_within_a_tenth_of_their_share(lengths: list[int], max_tokens: int) -> None:
    plan = scheduler(8, max_tokens)
    made = clips(lengths)
    buckets = plan.equal_buckets(made)
    assert [clip for bucket in buckets for clip in bucket] == made
    share = sum(map(plan.work, made)) / len({plan.needed(clip) for clip in made})
    for bucket in buckets:
        assert len(bucket) == 1 or sum(map(plan.work, bucket)) <= 1.1 * share * (1 + 1e-9)


def test_a_step_that_stops_early_is_balanced() -> None:
    first = scheduler(8, 100).micro_steps(clips([400] + [100] * 20))[0]
    loads = [group.load for group in first]
    assert max(loads) - min(loads) <= SLACK * max(loads)
