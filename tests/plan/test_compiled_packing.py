"""Packing and improvement compiled against interpreted: the same counts and loads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zellige.plan import packing_kernel
from zellige.plan.compiled import is_compiled, prefer_compiled
from zellige.plan.improve import improve
from zellige.plan.packing import EXACT, Filler, Packed, Ranks, pack
from zellige.plan.packing_kernel import BLENDED, LOOSE, TIGHT, Fillers
from zellige.problem import Option, Rung
from zellige.shards import ParallelConfig

pytest.importorskip("numba", reason="compiled loops need numba (extra fast)")

many = settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    was = is_compiled()
    yield
    prefer_compiled(was)


def whole(time: int, kept: int, live: int) -> Rung:
    option = Option(ParallelConfig(), 1, time, time, time, kept, live, 0)
    return Rung(time, time, 1, 1, kept, live, option)


small = st.tuples(st.integers(1, 9), st.integers(0, 12), st.sampled_from([0, 0, 3]))
large = st.tuples(st.integers(10**6, 10**10), st.integers(10**6, 10**9), st.sampled_from([0, 10**8]))


@st.composite
def packings(draw: st.DrawFn) -> tuple[Ranks, list[Filler], int, int]:
    """Ranks with some load, fillers, room and target: figures small enough for ties or as large as real ones, memory
    from plenty to too little."""
    figures = draw(st.sampled_from([small, large]))
    number = st.integers(0, 40)
    fillers = [Filler(str(n), whole(*draw(figures)), (), draw(number)) for n in range(draw(st.integers(0, 6)))]
    fillers.sort(key=lambda filler: -filler.whole.time)
    ranks = Ranks(draw(st.integers(1, 12)))
    for rank in range(len(ranks.time)):
        ranks.add((rank,), whole(*draw(figures)), draw(st.integers(0, 6)))
    needed = sum(filler.number * filler.whole.kept for filler in fillers) + sum(ranks.kept)
    each = needed // len(ranks.time) + max([0, *(filler.whole.live for filler in fillers)])
    target = (sum(filler.number * filler.whole.time for filler in fillers) + sum(ranks.time)) // len(ranks.time)
    return ranks, fillers, max(1, each * draw(st.integers(60, 200)) // 100), max(1, target)


def packed(case: tuple[Ranks, list[Filler], int, int], how: bool) -> tuple[Packed, object]:
    prefer_compiled(how)
    ranks = Ranks(0)
    ranks.time, ranks.kept, ranks.live = (load[:] for load in case[0].loads)
    return pack(ranks, *case[1:]), ranks.loads


@many
@given(packings())
def test_packing_is_the_same(case: tuple[Ranks, list[Filler], int, int]) -> None:
    assert packed(case, True) == packed(case, False)


@pytest.mark.parametrize(("room", "how"), [(10**6, LOOSE), (94, BLENDED), (60, TIGHT)])
def test_each_way_of_packing_is_the_same(room: int, how: int) -> None:
    """Plenty of memory, memory for a blend of both kinds, and too little."""
    ranks, again = Ranks(4), Ranks(4)
    ranks.add((0, 1), whole(0, 30, 0))
    again.add((0, 1), whole(0, 30, 0))
    case = ranks, [Filler("a", whole(10, 4, 0), (), 20), Filler("b", whole(4, 10, 0), (), 20)], room, 80
    assert packed(case, True) == packed(case, False)
    figures = Fillers([10, 4], [4, 10], [0, 0], [20, 20])
    assert packing_kernel.pack(again.loads, figures, room, 80, [[0] * 4, [0] * 4], [0, 0]) == how


def test_figures_beyond_what_doubles_hold_are_packed_as_well() -> None:
    prefer_compiled(True)
    scale = 4 * EXACT
    ranks, scaled = Ranks(3), Ranks(3)
    ranks.add((1,), whole(7, 5, 0))
    scaled.add((1,), whole(7 * scale, 5 * scale, 0))
    kinds = [(9, 5, 11), (4, 3, 8)]
    expected = pack(ranks, [Filler("", whole(time, kept, 0), (), n) for time, kept, n in kinds], 40, 60)
    fillers = [Filler("", whole(time * scale, kept * scale, 0), (), n) for time, kept, n in kinds]
    assert pack(scaled, fillers, 40 * scale, 60 * scale) == expected
    assert scaled.time == [scale * time for time in ranks.time]


@many
@given(packings(), st.data(), st.integers(0, 20), st.integers(1, 12))
def test_improvement_is_the_same(
    case: tuple[Ranks, list[Filler], int, int], data: st.DataObject, limit: int, partners: int
) -> None:
    before, fillers, room, goal = case
    kinds, num_ranks = [filler.whole for filler in fillers], len(before.time)
    start = [data.draw(st.lists(st.integers(0, 3), min_size=num_ranks, max_size=num_ranks)) for _ in kinds]
    found = []
    for how in (True, False):
        prefer_compiled(how)
        ranks, counts = Ranks(num_ranks), [by_rank[:] for by_rank in start]
        ranks.add_counts([1] * num_ranks, whole(1, 0, 0))
        for kind, by_rank in zip(kinds, counts, strict=True):
            ranks.add_counts(by_rank, kind)
        improve(ranks, kinds, counts, room, goal // 8, limit, partners)
        found.append((counts, ranks.loads))
    assert found[0] == found[1]
