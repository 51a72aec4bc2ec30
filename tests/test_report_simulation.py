"""A rank's columns add up to its step, with noise and without, and so do the means of a comparison."""

from __future__ import annotations

import msgspec
import pytest
from rich.table import Table

from zellige.compare import Comparison, compare
from zellige.outcomes import Fidelities
from zellige.placement import Problem
from zellige.plan import plan_batch
from zellige.report_simulation import causes_table, rank_parts, simulation_legend, simulation_table
from zellige.sim import Noise, SimOptions
from zellige.simulation import simulate_plan
from zellige.sources import Options, build_problems, read_source

POLICIES = ("dp", "usp", "zellige")


@pytest.fixture(scope="module")
def problem() -> Problem:
    """A video and images: ranks that wait for one another."""
    options = Options()
    (posed,) = build_problems(read_source("motivation", options), options, print)
    return posed


def titles(table: Table) -> list[str]:
    return [str(column.header).replace("-\n", "-").replace("\n", " ") for column in table.columns]


@pytest.mark.parametrize("jitter", [0.0, 0.05])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_ranks_columns_add_up_to_the_step(problem: Problem, policy: str, jitter: float) -> None:
    how = Fidelities(fidelity="event", options=SimOptions(noise=Noise(seed=int(jitter > 0), jitter=jitter)))
    report = simulate_plan(plan_batch(problem, policy), problem, how).report
    for rank in report.ranks:
        parts = rank_parts(rank)
        assert sum(parts.values()) == report.step_time_ns
        waits = rank.wait_ns + rank.gather_wait_ns + rank.reduce_wait_ns
        assert parts["wait"] == waits
        assert parts["state"] == rank.gather_ns + rank.reduce_ns + rank.work_ns["optimizer"], "no waiting in it"
        assert (parts["jitter"] != 0) == (jitter > 0)
    shown = titles(simulation_table(report))
    assert ("jitter" in shown) == (jitter > 0)
    (legend,) = simulation_legend(report)
    assert all(f"{title}: " in legend for title in shown if title not in {"rank", "compute"})


def test_waiting_for_slow_ranks_is_called_waiting(problem: Problem) -> None:
    """dp leaves ranks idle: they wait in the reduction of gradients, whatever the state is."""
    how = Fidelities(fidelity="event", options=SimOptions())
    report = simulate_plan(plan_batch(problem, "dp"), problem, how).report
    fast = min(report.ranks, key=lambda rank: rank.compute_ns)
    parts = rank_parts(fast)
    assert parts["wait"] + parts["idle"] > 10 * parts["state"]


def test_the_means_of_a_comparison_add_up(problem: Problem) -> None:
    done: Comparison = compare([problem], POLICIES, how=Fidelities(fidelity="event"))
    for row in done.rows:
        assert row.causes is not None
        assert sum(msgspec.structs.astuple(row.causes)) == row.step_time_ns
        assert row.wait_ns == row.causes.wait_ns + row.causes.idle_ns
    table = causes_table(done)
    assert titles(table) == ["policy", "compute", "calls", "wait", "ex-change", "gath-ers", "slow-down", "other"]
