"""The machine in unit work: who waits for whom, what fills waits, what overlap costs, gathers, and orders that stop."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import msgspec
import pytest
from builders import ALONE, Placed, cluster_of, model_of, priced, problem_of, program_of, with_times
from hypothesis import given, settings
from hypothesis import strategies as st

from zellige.errors import StuckError, UnequalGathersError
from zellige.op_prices import OpPrices
from zellige.placement import Engine
from zellige.program_parts import PASSES, Op, Pass
from zellige.sim import Fidelity, SimOptions, simulate
from zellige.sim.results import SimReport
from zellige.sim.scripts import AHEAD, check_collectives, make_scripts
from zellige.sim.state import state_traffic

UNIT = 1_000_000


def only(kind: str, unit: int = UNIT) -> Callable[[Pass, int, Op], int]:
    """Work of one kind of operation, nothing else."""
    return lambda _phase, _rank, op: unit if op.kind == kind else 0


def run(
    prices: OpPrices,
    fidelity: Fidelity = "event",
    options: SimOptions = ALONE,
) -> SimReport:
    program = prices.program
    problem = problem_of(prices.cluster, model_of(program.num_layers), engine=program.engine, checkpoint="none")
    return simulate(program, problem, fidelity, options, prices=prices).report


def unit_prices(
    placed: list[Placed], num_ranks: int, engine: Engine, *, layers: int = 1, transfer_ns: int = 0
) -> OpPrices:
    problem = problem_of(cluster_of(num_ranks), model_of(layers), engine=engine, checkpoint="none")
    prices = priced(program_of(placed, problem), problem)
    return with_times(prices, only("attend"), transfer_ns=transfer_ns)


# --- the no-wait theorem


@pytest.mark.parametrize("layers", [1, 3])
def test_a_triangle_takes_three_where_two_would_do(layers: int) -> None:
    triangle = [(6_000, "h2", (0, 1)), (6_000, "h2", (1, 2)), (6_000, "h2", (0, 2))]
    prices = unit_prices(triangle, 3, "per_sequence", layers=layers)
    assert run(prices, "additive").step_time_ns == 2 * layers * 2 * UNIT
    assert run(prices).step_time_ns == 2 * layers * 3 * UNIT
    assert sum(rank.wait_ns for rank in run(prices).ranks) > 0


def test_laminar_blocks_with_equal_loads_never_wait() -> None:
    laminar = [(6_000, "h4", (0, 1, 2, 3)), (6_000, "h2", (0, 1)), (6_000, "h2", (2, 3)), (6_000, "h2", (2, 3))]
    laminar += [(6_000, "h2", (0, 1))]
    report = run(unit_prices(laminar, 4, "per_sequence", layers=2))
    assert report.step_time_ns == 2 * 2 * 3 * UNIT
    assert all(rank.wait_ns == rank.idle_ns == 0 for rank in report.ranks)


@settings(max_examples=40)
@given(
    blocks=st.lists(st.tuples(st.sampled_from([1, 2, 4, 8]), st.integers(0, 7)), min_size=1, max_size=14),
    layers=st.integers(1, 3),
)
def test_laminar_plans_take_their_additive_time(blocks: list[tuple[int, int]], layers: int) -> None:
    """Aligned blocks, larger ones first: the step is the largest load, whatever the loads."""
    heads = {1: "whole", 2: "h2", 4: "h4", 8: "q2h4"}
    placed = [
        (6_000 + 12 * size, heads[size], tuple(range(start // size * size, start // size * size + size)))
        for size, start in blocks
    ]
    problem = problem_of(cluster_of(8), model_of(layers), engine="per_sequence", checkpoint="none")
    prices = with_times(
        priced(program_of(placed, problem), problem),
        lambda _phase, _rank, op: UNIT if op.kind in ("attend", "whole") else 0,
    )
    assert run(prices).step_time_ns == run(prices, "additive").step_time_ns


# --- the coalesced engine's chain


def longest_chain(prices: OpPrices) -> int:
    """The step without whole work and without gathers, by recurrence over ranks, one exchange in and one back."""
    program = prices.program
    time = [0] * program.num_ranks
    stages: list[Pass] = ["forward"] * program.num_layers
    stages += [*PASSES[1:]] * program.num_layers
    for phase in stages:
        for rank, work in enumerate(program.ranks):
            assert [op.kind for op in work.ops(phase)][1:6] == ["issue", "wait", "attend", "issue", "wait"]
            time[rank] += prices.compute[phase][rank][0]
        for index, later in ((1, 3), (4, 6)):
            exchange = prices.exchanges[program.ranks[0].ops(phase)[index].index]
            called = [moment + exchange.call_ns for moment in time]
            for meeting in exchange.meetings:
                for rank in meeting.members:
                    time[rank] = max(called[peer] for peer in meeting.peers) + meeting.transfer_ns
            for rank in range(program.num_ranks):
                time[rank] += prices.compute[phase][rank][later]
    return max(time)


@settings(max_examples=30)
@given(
    lengths=st.lists(st.integers(600, 90_000), min_size=1, max_size=6),
    configs=st.lists(st.sampled_from(["h2", "h4", "q2h2", "q3"]), min_size=6, max_size=6),
    order=st.permutations(range(8)),
)
def test_the_coalesced_step_is_the_longest_chain(lengths: list[int], configs: list[str], order: list[int]) -> None:
    degrees = {"h2": 2, "h4": 4, "q2h2": 4, "q3": 3}
    placed = [
        (length, config, tuple(order[(index + i) % 8] for i in range(degrees[config])))
        for index, (length, config) in enumerate(zip(lengths, configs, strict=False))
    ]
    problem = problem_of(model=model_of(4), engine="coalesced", checkpoint="full")
    prices = priced(program_of(placed, problem), problem)
    assert simulate(prices.program, problem, "event", ALONE).report.step_time_ns == longest_chain(prices)


def test_whole_work_fills_the_wait_for_an_exchange() -> None:
    split = [(6_000, "h2", (0, 1))]
    filled = [*split, *((600, "whole", (rank,)) for rank in (0, 0, 1, 1))]

    def step(placed: list[Placed], whole_ns: int, transfer_ns: int) -> int:
        problem = problem_of(cluster_of(2), model_of(1), checkpoint="none")
        prices = priced(program_of(placed, problem), problem)
        work = {"attend": UNIT, "whole": whole_ns}
        timed = with_times(prices, lambda _phase, _rank, op: work.get(op.kind, 0), transfer_ns=transfer_ns)
        return run(timed, options=msgspec.structs.replace(ALONE, slowdown=0.0)).step_time_ns

    assert step(split, 0, UNIT) == 2 * (UNIT + 2 * UNIT)
    assert step(filled, UNIT // 2, UNIT) == step(split, 0, UNIT)
    assert step(filled, 3 * UNIT, UNIT) == 2 * (UNIT + 2 * 3 * UNIT)


@pytest.mark.parametrize("transfer_ns", [0, 1, 999, 500_000, 1_129_999, 1_130_000, 3_000_000])
def test_compute_is_slower_beside_a_transfer(transfer_ns: int) -> None:
    """In one nanosecond beside a transfer 1/1.13 of the work is done."""
    problem = problem_of(cluster_of(2), model_of(1), checkpoint="none")
    prices = priced(program_of([(6_000, "h2", (0, 1)), (600, "whole", (0,)), (600, "whole", (1,))], problem), problem)
    report = run(with_times(prices, only("whole"), transfer_ns=transfer_ns))
    beside = min(transfer_ns, -(-UNIT * 113 // 100))
    took = beside - -(UNIT * 1130 - beside * 1000) // 1130 if beside * 1000 < UNIT * 1130 else beside
    # The one batch of whole work runs during the exchange in; the one back is exposed.
    assert report.step_time_ns == 2 * (max(took, transfer_ns) + transfer_ns)
    assert report.ranks[0].slowdown_ns == 2 * (took - UNIT)


# --- gathers and reductions


def state_step(work_ns: tuple[int, ...], gather_ns: int, reduce_ns: int, *, layers: int, prefetch: int) -> SimReport:
    """Ranks with whole work only, as long in backward as in forward; gathers and reductions as given."""
    problem = problem_of(cluster_of(len(work_ns)), model_of(layers), engine="per_sequence", checkpoint="none")
    placed: list[Placed] = [(600, "whole", (rank,)) for rank in range(len(work_ns))]
    prices = with_times(priced(program_of(placed, problem), problem), lambda _phase, rank, _op: work_ns[rank])
    state = state_traffic(problem.model, problem.cluster, "zero3")
    assert state.gather is not None
    timed = msgspec.structs.replace(
        state,
        gather=msgspec.structs.replace(state.gather, latency_ns=0, transfer_ns=gather_ns),
        reduce=msgspec.structs.replace(state.reduce, latency_ns=0, transfer_ns=reduce_ns),
        optimizer_ns=UNIT,
    )
    options = SimOptions(slowdown=0.0, prefetch=prefetch)
    return simulate(prices.program, problem, "event", options, prices=prices, state=timed).report


def test_a_gather_that_compute_hides_is_exposed_once() -> None:
    report = state_step((UNIT, UNIT), UNIT // 2, UNIT // 4, layers=5, prefetch=1)
    assert report.step_time_ns == UNIT // 2 + 10 * UNIT + UNIT // 4 + UNIT
    assert report.ranks[0].gather_ns == UNIT // 2
    assert report.ranks[0].reduce_ns == UNIT // 4


def test_gathers_longer_than_compute_set_the_pace() -> None:
    """Ten gathers of three units, one after the other; after the last a layer, its reduction and the optimizer."""
    report = state_step((UNIT, UNIT), 3 * UNIT, UNIT, layers=5, prefetch=1)
    assert report.step_time_ns == 10 * 3 * UNIT + UNIT + UNIT + UNIT


def test_nothing_ahead_exposes_every_gather() -> None:
    report = state_step((UNIT, UNIT), UNIT // 2, 0, layers=5, prefetch=0)
    assert report.step_time_ns == 10 * (UNIT // 2 + UNIT) + UNIT


@pytest.mark.parametrize("prefetch", [1, 2, 4])
def test_a_fast_rank_gets_no_further_ahead_than_gathers_do(prefetch: int) -> None:
    """A gather needs all ranks; the fast one runs ahead by as many layers as are gathered ahead, then keeps pace."""
    report = state_step((4 * UNIT, UNIT), 0, 0, layers=6, prefetch=prefetch)
    assert report.step_time_ns == 12 * 4 * UNIT + UNIT
    fast = report.ranks[1]
    # The last of its 12 stages starts when the slow rank is that many stages before it.
    assert fast.gather_wait_ns == (4 * (11 - prefetch) - 11) * UNIT
    assert fast.gather_wait_ns + fast.reduce_wait_ns == 12 * 3 * UNIT


# --- orders that stop


def swapped(prices: OpPrices, rank: int) -> OpPrices:
    """The same program, in which one rank enters its first two exchanges in the other order, before it waits."""
    works = []
    for work in prices.program.ranks:
        issues = [place for place, op in enumerate(work.forward) if op.kind == "issue"][:2]
        ops = list(work.forward)
        waits = [op for op in ops if op.kind == "wait"][:2]
        early = [ops[place] for place in issues]
        if work.rank == rank:
            early.reverse()
        rest = [op for op in ops if op not in early and op not in waits]
        works.append(msgspec.structs.replace(work, forward=(*early, *waits, *rest)))
    program = msgspec.structs.replace(prices.program, ranks=tuple(works))
    return with_times(msgspec.structs.replace(prices, program=program), only("attend"), transfer_ns=5)


def test_an_order_that_stops_is_an_error() -> None:
    problem = problem_of(cluster_of(2), model_of(2), engine="per_sequence", checkpoint="none")
    prices = priced(program_of([(6_000, "h2", (0, 1)), (6_000, "h2", (0, 1))], problem), problem)
    with pytest.raises(StuckError, match="2 of 2 ranks wait for ever") as caught:
        run(swapped(prices, 0))
    assert caught.value.code == "ZL310"
    assert any("rank 0 waits for forward.s0" in line and "behind" in line for line in caught.value.details)
    assert run(swapped(prices, rank=99)).step_time_ns > 0


def test_a_rank_that_never_enters_is_an_error() -> None:
    problem = problem_of(cluster_of(2), model_of(1), checkpoint="none")
    prices = priced(program_of([(6_000, "h2", (0, 1))], problem), problem)
    works = list(prices.program.ranks)
    works[1] = msgspec.structs.replace(works[1], backward=tuple(op for op in works[1].backward if op.kind == "attend"))
    program = msgspec.structs.replace(prices.program, ranks=tuple(works))
    with pytest.raises(StuckError, match="1 of 2 ranks wait"):
        run(with_times(msgspec.structs.replace(prices, program=program), only("attend")))


def test_ranks_that_gather_unequally_are_refused() -> None:
    problem = problem_of(cluster_of(4), model_of(2), engine="per_sequence", checkpoint="none")
    prices = priced(program_of([(6_000, "whole", (rank,)) for rank in range(4)], problem), problem)
    scripts = make_scripts(prices, SimOptions(), state_traffic(problem.model, problem.cluster, "zero3"), 2)
    check_collectives(scripts)
    scripts.parts[0][2] = [instruction for instruction in scripts.parts[0][2] if instruction[0] != AHEAD]
    with pytest.raises(UnequalGathersError, match=r"rank 2 enters fsdp.gather 0 times") as caught:
        check_collectives(scripts)
    assert caught.value.code == "ZL311"


def test_streams_run_in_order() -> None:
    """Two exchanges entered at once run one after the other on every rank."""
    problem = problem_of(cluster_of(2), model_of(1), engine="per_sequence", checkpoint="none")
    prices = swapped(priced(program_of([(6_000, "h2", (0, 1)), (6_000, "h2", (0, 1))], problem), problem), 99)
    exchanges = sum(op.kind == "issue" for phase in PASSES for op in prices.program.ranks[0].ops(phase))
    assert run(prices).step_time_ns == exchanges * 5 + 4 * UNIT
    assert sum(1 for _ in itertools.pairwise(prices.program.ranks[0].forward)) > 4
