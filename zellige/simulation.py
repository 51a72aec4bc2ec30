"""One plan through the simulator: once or several times under noise, and beside its sums."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from zellige.outcomes import Fidelities
from zellige.placement import Plan, Problem
from zellige.program import lower
from zellige.program_checks import check_program
from zellige.sim import DEFAULTS, Additivity, Fidelity, SimReport, additivity, simulate
from zellige.sim.simulate import program_prices
from zellige.sim.stats import Summary, replicate, summarize
from zellige.trace import Trace


class PlanSimulation(msgspec.Struct, frozen=True, kw_only=True):
    """The report of a step (the first replica), all replicas' step times, and the additivity where it was asked for."""

    SCHEMA: ClassVar[str] = "zellige.simulations/1"

    schema: str = "zellige.simulations/1"
    report: SimReport
    step_times_ns: tuple[int, ...] = ()
    summary: Summary | None = None
    additivity: Additivity | None = None


class Simulated(msgspec.Struct, frozen=True, kw_only=True):
    """A simulation with its trace."""

    result: PlanSimulation
    trace: Trace

    @property
    def report(self) -> SimReport:
        """The (first) step."""
        return self.result.report

    @property
    def summary(self) -> Summary | None:
        """Of the replicas, where there are several."""
        return self.result.summary

    @property
    def additivity(self) -> Additivity | None:
        """Where it was asked for."""
        return self.result.additivity

    @property
    def answer(self) -> Any:
        """What ``--json`` prints: the report alone where nothing else was asked for."""
        alone = self.result.summary is None and self.result.additivity is None
        return self.result.report if alone else self.result


def simulate_plan(plan: Plan, problem: Problem, how: Fidelities) -> Simulated:
    """Lower, check and simulate a plan; raises what these raise."""
    program = lower(plan, problem)
    check_program(program)
    options = how.options
    prices = program_prices(program, problem, options)
    done = simulate(program, problem, how.fidelity, options, prices=prices)
    steps: tuple[int, ...] = ()
    if how.replicas > 1:
        steps = tuple(replicate(program, problem, how.fidelity, options, replicas=how.replicas))
    split = None
    if how.additivity:
        quiet = msgspec.structs.replace(options, noise=DEFAULTS.noise, trace=False)
        fidelities: tuple[Fidelity, ...] = ("additive", "event", "flow")
        split = additivity(*(simulate(program, problem, each, quiet, prices=prices).report for each in fidelities))
    result = PlanSimulation(
        report=done.report, step_times_ns=steps, summary=summarize(steps) if steps else None, additivity=split
    )
    return Simulated(result=result, trace=done.trace)
