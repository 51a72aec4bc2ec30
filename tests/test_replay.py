from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zellige.catalog import load_model
from zellige.errors import StuckError
from zellige.exchange_prices import ExchangePrice, Meeting
from zellige.op_prices import OpPrices
from zellige.placement import Problem
from zellige.program import Assignment, Heads, Program, build_program
from zellige.replay import replay, stages
from zellige.shards import WHOLE, ParallelConfig
from zellige.sim.options import SimOptions
from zellige.sim.simulate import simulate
from zellige.sources import build_problem
from zellige.validation_plans import suite_batch

HEADS = Heads(4, 4, 32)


def program(engine: str = "coalesced", layers: int = 2) -> Program:
    return build_program(
        [
            Assignment("a", 40, ParallelConfig(1, 2, 1), (0, 1)),
            Assignment("b", 30, ParallelConfig(1, 1, 2), (1, 2)),
            Assignment("c", 9, WHOLE, (2,)),
            Assignment("d", 7, WHOLE, (3,)),
            Assignment("e", 5, WHOLE, (0,)),
        ],
        HEADS,
        num_ranks=4,
        engine=engine,  # type: ignore[arg-type]
        num_layers=layers,
        checkpoint="full",
    )


def durations(made: Program, rank: int, times: list[int]) -> dict[tuple[str, int], int]:
    """A time for every computing operation, equal in all layers; exchanges cost the rank nothing."""
    found, place = {}, rank * 7
    for phase, layer in stages(made):
        for number, op in enumerate(made.ranks[rank].ops(phase)):
            if op.kind not in ("issue", "wait", "keep"):
                found[made.span(phase, op), layer] = times[(place + number + len(phase)) % len(times)]
    return found


@pytest.fixture(scope="module")
def problem() -> Problem:
    return build_problem(suite_batch(load_model("tiny-dit"), images=4), cluster="cpux4", model="tiny-dit")


@settings(max_examples=25)
@given(
    times=st.lists(st.integers(1, 1000), min_size=5, max_size=40), engine=st.sampled_from(["coalesced", "per_sequence"])
)
def test_a_replay_is_what_the_simulator_makes_of_the_same_times(
    problem: Problem, times: list[int], engine: str
) -> None:
    made = program(engine)
    spans = [durations(made, rank, times) for rank in range(4)]
    compute = {
        phase: tuple(
            tuple(spans[rank].get((made.span(phase, op), 0), 0) for op in made.ranks[rank].ops(phase))
            for rank in range(4)
        )
        for phase in ("forward", "recompute", "backward")
    }
    exchanges = []
    for exchange in made.exchanges:
        met: dict[int, set[int]] = {rank: {rank} for rank in exchange.ranks}
        for message in exchange.messages:
            met[message.source].add(message.destination)
            met[message.destination].add(message.source)
        meetings = tuple(Meeting((rank,), tuple(sorted(peers)), 0) for rank, peers in met.items())
        exchanges.append(ExchangePrice(0, meetings, ()))
    prices = OpPrices(
        program=made, cluster=problem.cluster, compute=compute, exchanges=tuple(exchanges),
        kept_bytes=(0,) * 4, live_bytes=(0,) * 4,
    )  # fmt: skip
    report = simulate(made, problem, "event", SimOptions(slowdown=0, state_traffic=False), prices=prices).report
    ends = replay(made, spans, [0] * 4)
    assert ends == tuple(report.step_time_ns - rank.idle_ns for rank in report.ranks)


def test_segments_of_the_slowest_rank_add_up() -> None:
    made = build_program(
        [Assignment("a", 40, ParallelConfig(1, 2, 1), (0, 1))], HEADS, num_ranks=2, num_layers=1, checkpoint="none"
    )
    spans: list[dict[tuple[str, int], int]] = [{}, {}]
    times = ({"project": 5, "attend0": 7, "finish": 1}, {"project": 2, "attend0": 9, "finish": 4})
    for rank in (0, 1):
        for phase in ("forward", "backward"):
            for kind, ns in times[rank].items():
                spans[rank][f"{phase}.split.{kind}", 0] = ns
    # forward: project, attend, finish; backward starts from finish, right behind forward's.
    assert max(replay(made, spans, [0, 0])) == 5 + 9 + (4 + 4) + 9 + max(5, 2)
    assert replay(made, spans, [100, 0])[0] == replay(made, spans, [0, 0])[0] + 100


def test_packing_and_unpacking_count() -> None:
    made = build_program(
        [Assignment("a", 40, ParallelConfig(1, 2, 1), (0, 1))], HEADS, num_ranks=2, num_layers=1, checkpoint="none"
    )
    late = {("forward.split.in0.pack", 0): 3, ("forward.split.in0.enter", 0): 4, ("forward.split.in0.unpack", 0): 5}
    assert replay(made, [late, {}], [0, 0]) == (12, 12)


def test_a_wait_that_never_ends_is_an_error() -> None:
    made = program()
    ranks = tuple(
        type(work)(rank=work.rank, whole=work.whole, forward=() if work.rank == 1 else work.forward,
                   recompute=work.recompute, backward=work.backward)
        for work in made.ranks
    )  # fmt: skip
    import msgspec

    broken = msgspec.structs.replace(made, ranks=ranks)
    with pytest.raises(StuckError, match="rank 0"):
        replay(broken, [{}] * 4, [0] * 4)
