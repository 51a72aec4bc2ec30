"""What models say of plans, interference in sums and in the simulator, and what residuals are put beside."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle.made_runs import made_runs

from zellige.calibration import Interference
from zellige.errors import UsageError
from zellige.interference import (
    RankCounts,
    fit_interference,
    fullest_rank,
    plan_chain_ns,
    rank_counts,
    residual_terms,
    with_interference,
)
from zellige.measured_ops import outside_ns
from zellige.placement import Plan, Problem, rank_costs
from zellige.predictions import PlanPace, Predictor, interference_table, measured_calibration, predict_all
from zellige.program import lower
from zellige.program_parts import PASSES
from zellige.shards import WHOLE
from zellige.sim.options import SimOptions
from zellige.sim.planned_work import in_proportion, planned_work_ns, without_wires
from zellige.sim.simulate import program_prices, simulate
from zellige.trials import Runs
from zellige.validate import ModelReport, SetupReport, validate
from zellige.validation_plans import policy_plans, rotation

QUIET = SimOptions(slowdown=0.0, state_traffic=False)


def longer(runs: Runs, more: Callable[[Plan], list[int]]) -> Runs:
    """Observations whose ranks took so much longer."""
    observed = []
    for seen, plan in zip(runs.observed, runs.plans, strict=True):
        ranks = tuple(
            msgspec.structs.replace(rank, own_ns=rank.own_ns + extra)
            for rank, extra in zip(seen.ranks, more(plan), strict=True)
        )
        longest = max(rank.own_ns for rank in ranks)
        observed.append(msgspec.structs.replace(seen, ranks=ranks, replays_ns=(longest,) * 3))
    return msgspec.structs.replace(runs, observed=tuple(observed))


def test_interference_that_is_there_is_found_and_used(problem: Problem, plans: list[tuple[str, Plan]]) -> None:
    runs = longer(
        made_runs(problem, plans), lambda plan: [4_000_000 * count.sequences for count in rank_counts(plan, problem)]
    )
    report = validate(runs, problem)
    assert report.interference_helps
    by_name: dict[str, ModelReport] = {model.model: model for model in report.models}
    for name in ("additive", "event"):
        assert by_name[f"{name}+interference"].replay.mape.mean < 0.5 * by_name[name].replay.mape.mean
    assert by_name["additive"].residual.per_sequence_ns == pytest.approx(4e6, rel=0.4)
    better = interference_table(problem.prices, runs, problem)
    images = [row for row in better.rows if row.config == WHOLE]
    before = {(r.bucket, r.config): r.price.linear_ns for r in problem.prices.rows}
    assert all(row.price.linear_ns > before[row.bucket, row.config] for row in images)
    calibration = better.header.calibration
    assert calibration is not None
    assert calibration.interference is not None
    assert calibration.interference.held_out < 0.5 * calibration.interference.held_out_before
    assert calibration.interference.plans == len(plans)


def test_interference_that_is_not_there_changes_nothing(perfect: SetupReport) -> None:
    assert not perfect.interference_helps
    assert perfect.models[2].replay.worst < 1e-3


def terms(per_split: float, per_sequence: float, per_byte: float, per_step: float) -> Interference:
    return Interference(
        per_split_ns=per_split, per_sequence_ns=per_sequence, per_byte_ns=per_byte, per_step_ns=per_step,
        plans=1, held_out=0.0, held_out_before=0.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    "found", [terms(0, 0, 0, 0), terms(9e5, 3e5, 0.02, 5e6), terms(-2e5, -1e5, 0, -1e6)], ids=["none", "more", "less"]
)
def test_the_simulator_takes_the_work_of_the_sums(
    problem: Problem, plans: list[tuple[str, Plan]], found: Interference
) -> None:
    """Rank by rank, under every engine: its operations and what is outside take what prices with interference say."""
    changed = dataclasses.replace(problem, prices=with_interference(problem.prices, found))
    calibration = changed.prices.header.calibration
    assert calibration is not None
    dry = without_wires(changed)
    for _, plan in [*plans, *policy_plans(problem, ("usp", "knapformer"))]:
        program = lower(plan, changed)
        prices = program_prices(program, changed)
        costs = rank_costs(dataclasses.replace(dry, engine=plan.engine), plan.placements)
        for rank, time_ns in enumerate(costs.times_ns):
            inside = program.num_layers * sum(sum(prices.compute[phase][rank]) for phase in PASSES)
            if not inside:
                continue
            total = inside + outside_ns(program, rank, calibration)
            assert abs(total - (time_ns + calibration.step_ns)) <= program.num_layers
        walked = simulate(program, changed, "additive", QUIET, prices=prices).report
        stepped = simulate(program, changed, "event", QUIET, prices=prices).report
        assert [rank.work_ns for rank in walked.ranks] == [rank.work_ns for rank in stepped.ranks]


def test_operations_keep_their_proportions(problem: Problem, plans: list[tuple[str, Plan]]) -> None:
    program = lower(plans[0][1], problem)
    changed = dataclasses.replace(problem, prices=with_interference(problem.prices, terms(1e6, 5e5, 0, 0)))
    before, after = program_prices(program, problem), program_prices(program, changed)
    for rank in range(program.num_ranks):
        pairs = [
            pair
            for phase in PASSES
            for pair in zip(before.compute[phase][rank], after.compute[phase][rank], strict=True)
        ]
        factor = sum(b for _, b in pairs) / sum(a for a, _ in pairs)
        assert all(abs(b - factor * a) <= 1 for a, b in pairs)


def test_without_interference_the_simulator_keeps_its_laws(problem: Problem, plans: list[tuple[str, Plan]]) -> None:
    program = lower(plans[0][1], problem)
    assert problem.prices.header.calibration is not None
    assert problem.prices.header.calibration.interference is None
    sums = planned_work_ns(program, problem)
    prices = program_prices(program, problem)
    inside = [program.num_layers * sum(sum(prices.compute[p][r]) for p in PASSES) for r in range(program.num_ranks)]
    assert any(abs(a - b) > program.num_layers for a, b in zip(sums, inside, strict=True))


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=30), st.integers(0, 10**12))
def test_shares_are_whole_and_add_up(values: list[int], total: int) -> None:
    found = in_proportion(values, total)
    if not sum(values):
        assert found == [0] * len(values)
        return
    assert sum(found) == total
    assert all(
        abs(share - value * total / sum(values)) <= 1 + 1e-6 * total for share, value in zip(found, values, strict=True)
    )


def test_terms_add_up_and_only_measured_tables_have_them(problem: Problem) -> None:
    once = with_interference(problem.prices, terms(1e5, 2e5, 0.5, 3e5))
    twice = with_interference(once, terms(1e5, 2e5, 0.5, 3e5))
    calibration = twice.header.calibration
    assert calibration is not None
    assert calibration.interference is not None
    assert calibration.interference.per_sequence_ns == 4e5
    direct = with_interference(problem.prices, terms(2e5, 4e5, 1.0, 6e5))
    assert [r.price.linear_ns for r in twice.rows] == pytest.approx([r.price.linear_ns for r in direct.rows], abs=2)
    bare = msgspec.structs.replace(
        problem.prices, header=msgspec.structs.replace(problem.prices.header, calibration=None)
    )
    with pytest.raises(UsageError, match="measured table"):
        with_interference(bare, terms(1, 1, 1, 1))


def test_a_term_without_variation_is_left_alone(problem: Problem, plans: list[tuple[str, Plan]]) -> None:
    counts = rank_counts(plans[0][1], problem)
    assert sum(count.splits for count in counts) == sum(
        p.config.degree for p in plans[0][1].placements if p.config.is_split
    )
    same = [counts[0]] * 4
    assert fit_interference(same, [5.0] * 4) == (0.0, 0.0, 0.0, 5.0)
    assert residual_terms(same, [7] * 4, [5.0] * 4).explained == 0.0


def test_a_residual_of_each_kind_is_found_where_it_is() -> None:
    draw = random.Random(1)
    counts = [RankCounts(draw.randrange(9), draw.randrange(30), draw.randrange(10**6)) for _ in range(60)]
    chains = [draw.randrange(10**8) for _ in counts]
    for slopes in ((3e5, 0, 0, 0), (0, 2e5, 0, 0), (0, 0, 0.7, 0), (0, 0, 0, 0.3), (1e5, -2e4, 0.1, -0.2)):
        wanted = [
            5e6 + slopes[0] * c.splits + slopes[1] * c.sequences + slopes[2] * c.received_bytes + slopes[3] * chain
            for c, chain in zip(counts, chains, strict=True)
        ]
        found = residual_terms(counts, chains, wanted)
        got = (found.per_split_ns, found.per_sequence_ns, found.per_byte_ns, found.per_chain_ns)
        assert got == pytest.approx(slopes, rel=1e-6, abs=1e-6)
        assert found.explained == pytest.approx(1.0)


def test_steps_that_wait_for_the_chain_say_so(problem: Problem, plans: list[tuple[str, Plan]]) -> None:
    dry = without_wires(problem)
    runs = made_runs(problem, [*rotation(problem, 9), *plans[4:]])
    observed = []
    for seen, plan in zip(runs.observed, runs.plans, strict=True):
        late = round(seen.replay_ns + 0.4 * plan_chain_ns(plan, dry))
        observed.append(msgspec.structs.replace(seen, replays_ns=(late,) * 3))
    report = validate(msgspec.structs.replace(runs, observed=tuple(observed)), problem)
    steps = report.models[0].step_residual
    assert steps.per_chain_ns == pytest.approx(0.4, rel=0.01)
    assert steps.explained > 0.999
    assert abs(report.models[0].residual.per_chain_ns) < 1e-6


def test_a_chain_is_the_split_work_of_the_slowest_ranks(problem: Problem, plans: list[tuple[str, Plan]]) -> None:
    by_label = dict(plans)
    assert plan_chain_ns(by_label["whole-balanced"], problem) == 0
    alone = plan_chain_ns(by_label["images-crowded"], problem)
    everything = plan_chain_ns(by_label["all-split"], problem)
    assert 0 < alone < everything
    dry = without_wires(problem)
    for _, plan in plans:
        split = [p for p in plan.placements if p.config.is_split]
        # Each part is that of the rank with the most of it: at least the busiest rank's split work, at most three.
        longest = max(rank_costs(dry, split).times_ns) if split else 0
        chain = plan_chain_ns(plan, dry)
        assert chain <= 3 * longest
        assert chain >= 0.8 * (longest - dry.shared_calls_ns(8, 1, max((p.config.k for p in split), default=1)))
    counts = rank_counts(by_label["all-split"], problem)
    assert fullest_rank(counts).sequences == max(count.sequences for count in counts)


def test_event_predictions_wait_and_sums_do_not(problem: Problem, plans: list[tuple[str, Plan]]) -> None:
    runs = made_runs(problem, plans)
    found = predict_all(runs, problem, [PlanPace()] * len(plans))
    for additive, event in zip(found["additive"], found["event"], strict=True):
        assert event.replay_ns <= event.makespan_ns
        assert event.replay_ns >= max(event.rank_ns)
        assert max(event.rank_ns) == pytest.approx(additive.replay_ns, rel=0.1)


def test_the_simulator_waits_longer_where_operations_differ_more(
    problem: Problem, plans: list[tuple[str, Plan]]
) -> None:
    def predicted(jitter: float) -> list[int]:
        header = problem.prices.header
        calibration = msgspec.structs.replace(measured_calibration(problem), jitter=jitter)
        table = msgspec.structs.replace(problem.prices, header=msgspec.structs.replace(header, calibration=calibration))
        predictor = Predictor(dataclasses.replace(problem, prices=table))
        return [predictor.event(plan).replay_ns for _, plan in plans]

    silent, slight, wild = predicted(0.0), predicted(0.05), predicted(0.3)
    assert wild == predicted(0.3)
    for quiet, noisy, noisier in zip(silent, slight, wild, strict=True):
        assert quiet <= noisy < 1.1 * quiet
        assert quiet <= noisier
    place = [label for label, _ in plans].index("all-split")
    assert slight[place] > 1.01 * silent[place]
    assert wild[place] > 1.1 * silent[place]


def test_with_interference_both_models_have_the_same_ranks(problem: Problem, plans: list[tuple[str, Plan]]) -> None:
    runs = longer(
        made_runs(problem, plans), lambda plan: [3_000_000 * count.splits for count in rank_counts(plan, problem)]
    )
    found = predict_all(runs, problem, [PlanPace()] * len(plans))
    for additive, event in zip(found["additive+interference"], found["event+interference"], strict=True):
        assert event.rank_ns == pytest.approx(additive.rank_ns, abs=4)
        assert event.replay_ns >= additive.replay_ns - 4


def test_memory_of_sums_is_what_the_executor_holds(problem: Problem) -> None:
    """A per-sequence engine would free a segment before the next; ranks here hold the layer."""
    ((_, plan),) = policy_plans(problem, ("usp",))
    held = Predictor(problem).additive(plan).memory_bytes
    assert held == rank_costs(dataclasses.replace(problem, engine="coalesced"), plan.placements).memory_bytes
    assert max(held) > max(rank_costs(dataclasses.replace(problem, engine=plan.engine), plan.placements).memory_bytes)
