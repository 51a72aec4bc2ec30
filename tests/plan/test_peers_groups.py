"""FlexSP and FCP against exhaustive search, and the length buckets against all cuts."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from functools import cache

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle.brute_force import small_cluster

from zellige.catalog import load_model
from zellige.placement import Placement, Problem, rank_costs
from zellige.plan.fcp import NEVER, apportion, first_speeds, plan_fcp
from zellige.plan.flexsp import plan_flexsp, plan_flexsp_16, token_chunks
from zellige.plan.groups import heads_first, splits_by_degree
from zellige.plan.length_buckets import length_buckets, rounding_waste
from zellige.sources import build_problem
from zellige.workload import Batch, make_bucket
from zellige.workload import Sequence as Clip

IMAGE, SHORT, LONG = (1280, 720, 1), (832, 480, 81), (1280, 720, 81)


@cache
def problem_of(images: int, shorts: int, longs: int, ranks: int = 4) -> Problem:
    spec = load_model("wan2.1-t2v-1.3b")
    buckets = [make_bucket(spec, *shape) for shape in (IMAGE, SHORT, LONG)]
    clips = tuple(
        Clip(f"{bucket.name}-{i}", bucket)
        for bucket, n in zip(buckets, (images, shorts, longs), strict=True)
        for i in range(n)
    )
    batch = Batch(name="made", sequences=clips, buckets=tuple(buckets))
    return build_problem(batch, cluster=small_cluster(ranks), model=spec, engine="group")


def partitions(total: int, sizes: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Multisets of sizes with the sum ``total``, the largest first."""
    if total == 0:
        yield ()
    for index, size in enumerate(sizes):
        if size <= total:
            yield from ((size, *rest) for rest in partitions(total - size, sizes[index:]))


def best_groups(problem: Problem, clips: tuple[Clip, ...]) -> int | None:
    """The least makespan of ``clips`` on disjoint groups of powers of two, none of them empty, that use all ranks."""
    ranks = problem.cluster.num_ranks
    splits = splits_by_degree(problem, heads_first)
    best = None
    for sizes in partitions(ranks, (4, 2, 1)):
        starts = [sum(sizes[:index]) for index in range(len(sizes))]
        for owners in itertools.product(range(len(sizes)), repeat=len(clips)):
            if len(set(owners)) < len(sizes):
                continue
            placements = [
                Placement(
                    sequence=clip.id, bucket=clip.bucket.name, config=splits[sizes[g]],
                    ranks=tuple(range(starts[g], starts[g] + sizes[g])),
                )
                for clip, g in zip(clips, owners, strict=True)
            ]  # fmt: skip
            end = max(rank_costs(problem, placements).times_ns)
            best = end if best is None else min(best, end)
    return best


@pytest.mark.parametrize("counts", [(1, 1, 1), (4, 0, 1), (0, 2, 2), (6, 0, 0), (0, 0, 1), (2, 2, 0)])
def test_flexsp_finds_what_exhaustive_search_finds(counts: tuple[int, int, int]) -> None:
    problem = problem_of(*counts)
    longest_first = tuple(sorted(problem.batch.sequences, key=lambda clip: -clip.bucket.num_tokens))
    best = min(
        sum(ends)
        for number in range(1, min(5, len(longest_first)) + 1)
        if None not in (ends := [best_groups(problem, tuple(c)) for c in token_chunks(longest_first, number)])
    )
    plan = plan_flexsp(problem)
    assert plan.makespan_ns == pytest.approx(best, rel=2e-4)
    assert plan.makespan_ns >= best
    assert plan_flexsp_16(problem).placements == plan.placements


def test_flexsp_groups_have_powers_of_two_and_use_every_rank() -> None:
    problem = problem_of(9, 3, 2, 8)
    plan = plan_flexsp(problem)
    for stage in {p.stage for p in plan.placements}:
        groups = {p.ranks for p in plan.placements if p.stage == stage}
        assert sorted(rank for group in groups for rank in group) == list(range(8))
        assert all(len(group) & (len(group) - 1) == 0 for group in groups)


def test_flexsp_16_rounds_many_lengths_and_stays_near_the_exact_programme() -> None:
    spec = load_model("wan2.1-t2v-1.3b")
    chance = random.Random(3)
    buckets = sorted({make_bucket(spec, 16 * chance.randint(20, 80), 16 * chance.randint(20, 60), f) for f in
                      (1, 17, 33) for _ in range(6)}, key=lambda b: (b.num_tokens, b))  # fmt: skip
    clips = tuple(Clip(bucket.name, bucket) for bucket in buckets)
    batch = Batch(name="many", sequences=clips, buckets=tuple(buckets))
    problem = build_problem(batch, cluster=small_cluster(4), model=spec, engine="group")
    rounded, exact = plan_flexsp_16(problem), plan_flexsp(problem)
    assert any("rounded up to 16" in note for note in rounded.notes)
    assert not any("rounded" in note for note in exact.notes)
    assert {p.sequence for p in rounded.placements} == {clip.id for clip in clips}
    assert rounded.makespan_ns <= 1.25 * exact.makespan_ns


@settings(max_examples=50)
@given(lengths=st.lists(st.integers(1, 60), min_size=1, max_size=9), number=st.integers(1, 9))
def test_chunks_have_the_least_most_tokens_of_all_cuts(lengths: list[int], number: int) -> None:
    number = min(number, len(lengths))
    bucket = make_bucket(load_model("wan2.1-t2v-1.3b"), *IMAGE)
    clips = [Clip(str(i), msgspec.structs.replace(bucket, num_tokens=n)) for i, n in enumerate(lengths)]
    best = min(
        max(sum(lengths[first:last]) for first, last in itertools.pairwise((0, *cuts, len(lengths))))
        for cuts in itertools.combinations(range(1, len(lengths)), number - 1)
    )
    chunks = token_chunks(clips, number)
    assert [clip for chunk in chunks for clip in chunk] == clips
    assert len(chunks) == number
    assert all(chunks)
    assert max(sum(clip.bucket.num_tokens for clip in chunk) for chunk in chunks) == best


@settings(max_examples=50)
@given(counts=st.dictionaries(st.integers(1, 40), st.integers(1, 9), min_size=1, max_size=8), number=st.integers(1, 8))
def test_length_buckets_waste_as_little_as_any_cut(counts: dict[int, int], number: int) -> None:
    lengths = sorted(counts)
    tops = length_buckets(counts, number)
    assert set(tops) == set(lengths)
    assert all(top >= length for length, top in tops.items())
    assert len(set(tops.values())) <= number
    wastes = []
    for inner in itertools.combinations(range(1, len(lengths)), min(number, len(lengths)) - 1):
        runs = itertools.pairwise((0, *inner, len(lengths)))
        wastes.append(sum(counts[n] * (lengths[last - 1] - n) for first, last in runs for n in lengths[first:last]))
    assert rounding_waste(counts, tops) == min(wastes)


@settings(max_examples=50)
@given(data=st.data(), groups=st.integers(1, 4), ranks=st.integers(1, 6))
def test_apportionment_is_the_best_of_all(data: st.DataObject, groups: int, ranks: int) -> None:
    cell = st.one_of(st.integers(1, 40), st.just(int(NEVER)))
    times = np.array([[NEVER] + [data.draw(cell) for _ in range(ranks)] for _ in range(groups)], dtype=np.int64)
    ends = [
        max(int(times[g, m]) for g, m in enumerate(degrees))
        for degrees in itertools.product(range(1, ranks + 1), repeat=groups)
        if sum(degrees) <= ranks
    ]
    best = min(ends, default=int(NEVER))
    degrees = apportion(times)
    if best == NEVER:
        assert degrees is None
        return
    assert degrees is not None
    assert sum(degrees) <= ranks
    assert max(int(times[g, m]) for g, m in enumerate(degrees)) == best


def test_speeds_begin_with_every_number_of_groups() -> None:
    assert sorted({len(speeds) for speeds in first_speeds(6, 4)}) == [1, 2, 3, 4]
    assert list(first_speeds(4, 2)) == [[1], [1, 1], [2, 2], [3, 1]]


@settings(max_examples=10)
@given(images=st.integers(0, 10), shorts=st.integers(0, 3), longs=st.integers(0, 2))
def test_fcp_groups_are_disjoint_of_any_size_and_never_lose_to_one_group(images: int, shorts: int, longs: int) -> None:
    if not images + shorts + longs:
        return
    problem = problem_of(images, shorts, longs, 6)
    plan = plan_fcp(problem)
    groups = {p.ranks for p in plan.placements}
    assert all(a == b or not set(a) & set(b) for a in groups for b in groups)
    assert len({(p.ranks, p.config) for p in plan.placements}) == len(groups)
    one = min(
        max(rank_costs(problem, [
            Placement(sequence=c.id, bucket=c.bucket.name, config=o.config, ranks=tuple(range(6)))
            for c in problem.batch.sequences
        ]).times_ns)
        for o in problem.options[problem.batch.sequences[0].bucket.name] if o.config.degree == 6
    )  # fmt: skip
    assert plan.makespan_ns <= one
