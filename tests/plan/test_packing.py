"""Filler packing in bulk against one by one, improvement against trying every change, and the blocks of a pod."""

from __future__ import annotations

from itertools import combinations
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from zellige.plan import improve_kernel
from zellige.plan.blocks import make_pod
from zellige.plan.improve import improve
from zellige.plan.packing import Filler, Ranks, pack, pour_all
from zellige.plan.packing_kernel import Fillers, pack_tight, pour
from zellige.problem import Option, Rung
from zellige.shards import ParallelConfig

loads = st.lists(st.integers(0, 60), min_size=1, max_size=9)


def rung(time: int, kept: int = 0, live: int = 0) -> Rung:
    option = Option(ParallelConfig(), 1, time, time, time, kept, live, 0)
    return Rung(time, time, 1, 1, kept, live, option)


@given(loads, st.integers(1, 25), st.integers(0, 60))
def test_pouring_is_placing_one_by_one(start: list[int], time: int, count: int) -> None:
    heights, expected = list(start), [0] * len(start)
    for _ in range(count):
        rank = min(range(len(start)), key=lambda rank: (heights[rank], rank))
        heights[rank] += time
        expected[rank] += 1
    counts = [0] * len(start)
    pour(start, time, count, counts)
    assert counts == expected


fillers = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20), st.integers(0, 12)), min_size=1, max_size=4)


@given(loads, fillers, st.integers(20, 200))
def test_packing_keeps_counts_and_memory(start: list[int], kinds: list[tuple[int, int, int]], room: int) -> None:
    ranks = Ranks(len(start))
    ranks.time = list(start)
    waiting = [
        Filler(str(n), rung(time, kept), (), number) for n, (time, kept, number) in enumerate(sorted(kinds)[::-1])
    ]
    packed = pack(ranks, waiting, room, 100)
    for filler, counts, left in zip(waiting, packed.counts, packed.left, strict=True):
        assert sum(counts) + left == filler.number
        assert min(counts) >= 0
    for rank, time in enumerate(start):
        mine = [(filler.whole, counts[rank]) for filler, counts in zip(waiting, packed.counts, strict=True)]
        assert ranks.time[rank] == time + sum(whole.time * count for whole, count in mine)
        assert ranks.kept[rank] == sum(whole.kept * count for whole, count in mine) <= room


@given(loads, fillers)
def test_pouring_all_is_pouring_each_and_ignores_memory(start: list[int], kinds: list[tuple[int, int, int]]) -> None:
    ranks, heights, expected = Ranks(len(start)), list(start), []
    ranks.time = list(start)
    for time, _, number in kinds:
        expected.append([0] * len(start))
        pour(heights, time, number, expected[-1])
        heights = [height + time * count for height, count in zip(heights, expected[-1], strict=True)]
    waiting = [Filler(str(n), rung(time, 10**6 * kept), (), number) for n, (time, kept, number) in enumerate(kinds)]
    assert pour_all(ranks, waiting) == expected
    assert ranks.time == heights


@given(loads, st.integers(1, 20), st.integers(1, 20), st.integers(0, 40), st.integers(10, 120))
def test_the_heap_of_equation_8_finds_what_a_scan_finds(
    start: list[int], time: int, kept: int, number: int, room: int
) -> None:
    target = 90
    times, rooms, expected = list(start), [room] * len(start), [0] * len(start)
    for _ in range(number):
        scores = [
            (min((target - times[rank] - time) * room, (rooms[rank] - kept) * target), -rank)
            for rank in range(len(start))
            if rooms[rank] >= kept
        ]
        if not scores:
            break
        rank = -max(scores)[1]
        times[rank], rooms[rank], expected[rank] = times[rank] + time, rooms[rank] - kept, expected[rank] + 1
    ranks = Ranks(len(start))
    ranks.time = list(start)
    counts = [0] * len(start)
    left = pack_tight(ranks.loads, Fillers([time], [kept], [0], [number]), 0, room, target, counts)
    assert (counts, left) == (expected, number - sum(expected))
    assert (ranks.time, ranks.kept) == (times, [room - left for left in rooms])


@given(st.lists(st.integers(0, 6), min_size=6, max_size=6), st.integers(30, 80))
def test_improvement_never_slows_a_step_nor_overfills_a_rank(counts: list[int], room: int) -> None:
    kinds = [rung(9, 5), rung(4, 3)]
    held = [counts[:3], counts[3:]]
    ranks = Ranks(3)
    for kind, by_rank in zip(kinds, held, strict=True):
        ranks.add_counts(by_rank, kind)
    room = max(room, *ranks.kept)
    before, totals = max(ranks.time), [sum(by_rank) for by_rank in held]
    improve(ranks, kinds, held, room, 0, 50)
    assert max(ranks.time) <= before
    assert [sum(by_rank) for by_rank in held] == totals
    assert ranks.time == [9 * a + 4 * b for a, b in zip(*held, strict=True)]
    assert max(ranks.kept) <= room
    busiest = max(range(3), key=ranks.time.__getitem__)
    for rank in range(3):
        for kind, by_rank in zip(kinds, held, strict=True):
            moved = by_rank[busiest] and ranks.kept[rank] + kind.kept <= room
            assert not moved or ranks.time[rank] + kind.time >= ranks.time[busiest]


wholes = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9), st.sampled_from([0, 0, 4])), min_size=1, max_size=4)


@given(wholes, st.data(), st.integers(20, 90), st.integers(0, 12), st.integers(1, 5))
def test_improvement_makes_the_best_change_each_time(
    figures: list[tuple[int, int, int]], data: st.DataObject, room: int, limit: int, partners: int
) -> None:
    kinds, num_ranks = [rung(*each) for each in figures], data.draw(st.integers(1, 6))
    counts = [[data.draw(st.integers(0, 4)) for _ in range(num_ranks)] for _ in kinds]
    ranks, slowly = Ranks(num_ranks), Ranks(num_ranks)
    expected = [by_rank[:] for by_rank in counts]
    for kind, by_rank in zip(kinds, counts, strict=True):
        ranks.add_counts(by_rank, kind)
        slowly.add_counts(by_rank, kind)
    with patch.object(improve_kernel, "_divide", lambda *_: -1):
        improve(ranks, kinds, counts, room, 3, limit, partners)
    improve_slowly(slowly, kinds, expected, room, 3, limit, partners)
    assert counts == expected
    assert ranks.loads == slowly.loads


def improve_slowly(
    ranks: Ranks, kinds: list[Rung], counts: list[list[int]], room: int, goal: int, limit: int, partners: int
) -> None:
    """Of all changes the one that leaves the lesser maximum of both ranks; of equal ones the partner with less, then
    the one that takes more than half the difference off."""
    nothing = rung(0)
    for _ in range(limit):
        by_load = sorted(range(len(ranks.time)), key=lambda rank: (ranks.time[rank], rank))
        slowest = max(by_load, key=lambda rank: (ranks.time[rank], -rank))
        if ranks.time[slowest] <= goal:
            return
        found = []
        for near, rank in enumerate(by_load[:partners]):
            for leaves, comes in ((a, b) for a in range(len(kinds)) for b in range(-1, len(kinds))):
                one, other = kinds[leaves], kinds[comes] if comes >= 0 else nothing
                saves = one.time - other.time
                reached = max(ranks.time[slowest] - saves, ranks.time[rank] + saves)
                if not counts[leaves][slowest] or (comes >= 0 and not counts[comes][rank]):
                    continue
                full = ranks.kept[rank] + one.kept - other.kept + max(ranks.live[rank], one.live) > room
                back = ranks.kept[slowest] + other.kept - one.kept + max(ranks.live[slowest], other.live)
                if full or (comes >= 0 and back > room) or reached >= ranks.time[slowest] or rank == slowest:
                    continue
                low = 2 * saves < ranks.time[slowest] - ranks.time[rank]
                order = (-saves, -leaves, -comes) if low else (saves, leaves, comes)
                found.append((reached, near, low, order, rank, leaves, comes))
        if not found:
            return
        *_, rank, leaves, comes = min(found)
        for kind, source, target in ((leaves, slowest, rank), (comes, rank, slowest)):
            if kind >= 0:
                counts[kind][source] -= 1
                counts[kind][target] += 1
                ranks.time[source] -= kinds[kind].time
                ranks.kept[source] -= kinds[kind].kept
                ranks.add((target,), kinds[kind])


def test_blocks_are_aligned_and_powers_of_two_nest() -> None:
    pod = make_pod(2, 8, frozenset({(1, 1), (2, 1), (4, 1), (8, 1), (16, 2)}))
    blocks = [set(block.ranks) for several in pod.blocks.values() for block in several]
    assert len(blocks) == 16 + 8 + 4 + 2 + 1
    for one, other in combinations(blocks, 2):
        assert not one & other or one <= other or other <= one


def test_mirrors_exchange_equal_halves_and_keep_all_blocks() -> None:
    pod = make_pod(2, 8, frozenset({(1, 1), (2, 1), (6, 1), (12, 2)}))
    assert [block.ranks for block in pod.blocks[12, 2]] == [(0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13)]
    known = {block.ranks for several in pod.blocks.values() for block in several}
    for several in pod.blocks.values():
        for block in several:
            for start, middle, stop in block.mirrors:
                size = middle - start
                image = [
                    tuple(
                        sorted(
                            r + size if start <= r < middle else r - size if middle <= r < stop else r for r in ranks
                        )
                    )
                    for ranks in known
                ]
                assert set(image) == known
                assert all(middle <= rank < stop for rank in block.ranks)
