"""Sums for sweeps are those of the plan."""

from __future__ import annotations

import dataclasses

import pytest
from builders import TWO_NODES, WAN
from hypothesis import given, settings
from hypothesis import strategies as st

from zellige.analytic import analytic_table
from zellige.errors import InternalError
from zellige.memory import memory_model
from zellige.placement import ENGINES, Engine, Placement, Problem, rank_costs
from zellige.program import lower
from zellige.shards import parse_config
from zellige.sim import simulate
from zellige.sim.sweep import PlanSums
from zellige.workload import Batch, Sequence, make_bucket

BUCKETS = tuple(make_bucket(WAN, *shape) for shape in ((256, 256, 1), (832, 480, 1), (832, 480, 81)))
PRICES = analytic_table(WAN, TWO_NODES, BUCKETS, "full", max_degree=8)
BATCH = Batch(name="test", sequences=tuple(Sequence(f"s{i}", BUCKETS[i % 3]) for i in range(24)), buckets=BUCKETS)


def problem_under(engine: Engine) -> Problem:
    memory = memory_model(WAN, TWO_NODES, "zero3", "full")
    return Problem(BATCH, TWO_NODES, WAN, PRICES, memory, engine)


PROBLEMS = {engine: problem_under(engine) for engine in ENGINES}
SUMS = {engine: PlanSums(PROBLEMS[engine]) for engine in ENGINES}


@settings(max_examples=60)
@given(
    choices=st.lists(
        st.tuples(st.sampled_from(["whole", "h2", "h4", "k2", "q2h2", "h2k4"]), st.permutations(range(16))),
        min_size=1,
        max_size=24,
    ),
    engine=st.sampled_from(ENGINES),
)
def test_sums_are_those_of_the_plan(choices: list[tuple[str, list[int]]], engine: Engine) -> None:
    placements = []
    for sequence, (text, order) in zip(BATCH.sequences, choices, strict=False):
        config = parse_config(text)
        ranks = tuple(order[: config.degree])
        placements.append(Placement(sequence=sequence.id, bucket=sequence.bucket.name, config=config, ranks=ranks))
    assert tuple(SUMS[engine].times_ns(placements)) == rank_costs(PROBLEMS[engine], placements).times_ns


@settings(max_examples=40)
@given(
    choices=st.lists(
        st.tuples(st.sampled_from(["whole", "h2", "h4", "q2", "q2h2"]), st.sampled_from([0, 4, 8, 12])),
        min_size=1,
        max_size=24,
    ),
    engine=st.sampled_from(["per_sequence", "group"]),
)
def test_an_additive_program_takes_what_its_plan_predicts(choices: list[tuple[str, int]], engine: Engine) -> None:
    """Without rings (see the prices of operations), to the token by which shards differ."""
    problem = PROBLEMS[engine]
    placements = []
    for sequence, (text, start) in zip(BATCH.sequences, choices, strict=False):
        config = parse_config(text)
        ranks = tuple(range(start, start + config.degree))
        placements.append(Placement(sequence=sequence.id, bucket=sequence.bucket.name, config=config, ranks=ranks))
    report = simulate(lower(placements, problem), problem, "additive").report
    predicted = rank_costs(problem, placements).times_ns
    for rank, time in zip(report.ranks, predicted, strict=True):
        assert rank.busy_ns == pytest.approx(time, rel=2e-3)
    assert report.step_time_ns == pytest.approx(max(predicted), rel=1e-3)


def test_what_has_no_price_is_an_error() -> None:
    placement = Placement(sequence="s0", bucket=BUCKETS[0].name, config=parse_config("k16"), ranks=tuple(range(16)))
    bare = dataclasses.replace(PROBLEMS["group"])
    with pytest.raises(InternalError, match="no price"):
        PlanSums(bare).times_ns([placement])
