"""What one policy's plan of one batch comes to: planned, and simulated where that is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from zellige.errors import InfeasibleError, MissingPriceError, ProgramError, TimeLimitError, UsageError
from zellige.files import NonNegativeInt, PositiveInt
from zellige.op_prices import OpPricer
from zellige.placement import Engine, Plan, Problem
from zellige.plan import find_policy, plan_batch
from zellige.program import lower
from zellige.sim import DEFAULTS, Additivity, Fidelity, SimOptions, SimReport, additivity, simulate
from zellige.sim.simulate import program_prices
from zellige.sim.state import StateTraffic, state_traffic
from zellige.units import count_of

Planner = Callable[[Problem, str, Engine | None], Plan]

NO_PLAN = (InfeasibleError, TimeLimitError)
"""Why a policy may have no plan for a batch; anything else is raised."""


NOT_SIMULATED = "planned, but not simulated"
"""How a reason begins where there is a plan, and no program of it."""


class Fidelities(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How plans are judged: by the sums of their prices (``additive``), or in the simulator, perhaps several times.

    ``additivity``: also how far the simulator is from the sums, and why. Raises :class:`UsageError` for noise that
    would be ignored, and for replicas that would be all alike.
    """

    fidelity: Fidelity = "additive"
    options: SimOptions = DEFAULTS
    replicas: int = 1
    additivity: bool = False

    def __post_init__(self) -> None:
        if self.fidelity == "additive" and not self.options.noise.is_silent:
            raise UsageError("sums of prices know no jitter", fix="--fidelity event or flow with --jitter")
        if self.replicas > 1 and self.options.noise.is_silent:
            raise UsageError(f"{count_of(self.replicas, 'replica')} without noise are all alike", fix="--jitter 0.02")

    @property
    def is_noisy(self) -> bool:
        """Whether steps differ from one replica to the next."""
        return not self.options.noise.is_silent


ADDITIVE = Fidelities()


class Causes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A simulated step by cause, the mean over ranks (and replicas) in nanoseconds; the parts add up to the step.

    ``wait_ns`` is for partners that have not come to an exchange, a gather or a reduction; ``exchange_ns`` exposed
    transfer of exchanges, ``gather_ns`` that of gathers and reductions; ``idle_ns`` until the slowest rank is done.
    """

    compute_ns: int
    calls_ns: int
    wait_ns: int
    exchange_ns: int
    gather_ns: int
    slowdown_ns: int
    optimizer_ns: int
    jitter_ns: int
    idle_ns: int


class Outcome(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One policy on one batch; without a plan only the first fields and ``reason`` are set.

    ``step_time_ns`` is the plan's own (``additive``) or the simulated step, the mean over ``replica_ns`` where there is
    noise. ``compute_ns``, ``communication_ns`` and ``wait_ns`` are means over ranks. ``max_over_mean`` compares the
    ranks' times, in simulations without waiting and gathers. ``usp_bytes`` is what USP moves (-1: it has no plan).
    ``plan_ns`` is the plan's own step, ``planning_ns`` wall-clock time, which files leave out.
    """

    batch: NonNegativeInt
    name: str
    policy: str
    engine: Engine
    num_sequences: PositiveInt
    num_tokens: PositiveInt
    video_tokens: NonNegativeInt
    usp_bytes: int = -1
    reason: str = ""
    fits: bool = False
    step_time_ns: NonNegativeInt = 0
    plan_ns: NonNegativeInt = 0
    bound_ns: NonNegativeInt = 0
    max_over_mean: float = 0.0
    flops_max_over_mean: float = 0.0
    comm_bytes: NonNegativeInt = 0
    num_split: NonNegativeInt = 0
    peak_memory_bytes: NonNegativeInt = 0
    memory_limit_bytes: NonNegativeInt = 0
    compute_ns: NonNegativeInt = 0
    communication_ns: NonNegativeInt = 0
    wait_ns: NonNegativeInt = 0
    causes: Causes | None = None
    replica_ns: tuple[NonNegativeInt, ...] = ()
    additivity: Additivity | None = None
    notes: tuple[str, ...] = ()
    planning_ns: NonNegativeInt = 0


class Judge:
    """Plans and simulates batches of one cluster and model; equal shards are priced once for all of them."""

    def __init__(self, how: Fidelities = ADDITIVE, planner: Planner = plan_batch) -> None:
        self._how = how
        self._planner = planner
        self._pricer: OpPricer | None = None
        self._state: StateTraffic | None = None
        self.sources: tuple[str, ...] = ()

    def outcomes(
        self,
        problem: Problem,
        posed: Sequence[tuple[str, Problem]],
        index: int = 0,
        engine: Engine | None = None,
        progress: Callable[[], None] = lambda: None,
    ) -> list[Outcome]:
        """One outcome a policy, in order; ``posed`` are the policies with the problem as each of them is told it."""
        plans: dict[str, Plan | str] = {}
        for policy, told in posed:
            plans[policy] = self._attempt(told, policy, engine)
            progress()
        usp = plans.get("usp") or self._attempt(problem, "usp", None)
        usp_bytes = usp.comm_bytes if isinstance(usp, Plan) else -1
        return [self._outcome(problem, policy, plans[policy], index, engine, usp_bytes) for policy, _ in posed]

    def _attempt(self, problem: Problem, policy: str, engine: Engine | None) -> Plan | str:
        """A plan, or why this policy has none; bad input still raises."""
        try:
            return self._planner(problem, policy, engine)
        except NO_PLAN as error:
            return "; ".join((error.message, *error.details))

    def _outcome(
        self, problem: Problem, policy: str, plan: Plan | str, index: int, engine: Engine | None, usp_bytes: int
    ) -> Outcome:
        video = sum(s.bucket.num_tokens for s in problem.batch.sequences if s.bucket.is_video)
        bare = Outcome(
            batch=index,
            name=problem.batch.name,
            policy=policy,
            engine=plan.engine if isinstance(plan, Plan) else engine or find_policy(policy).engine,
            num_sequences=len(problem.batch.sequences),
            num_tokens=problem.batch.num_tokens,
            video_tokens=video,
            usp_bytes=usp_bytes,
        )
        if isinstance(plan, str):
            return msgspec.structs.replace(bare, reason=plan)
        planned = _planned(bare, plan, problem)
        if self._how.fidelity == "additive" and not self._how.additivity:
            return planned
        try:
            return self._simulated(planned, plan, problem)
        except (ProgramError, MissingPriceError) as error:
            return msgspec.structs.replace(bare, reason=f"{NOT_SIMULATED}: {error.message}")

    def _simulated(self, planned: Outcome, plan: Plan, problem: Problem) -> Outcome:
        program = lower(plan, problem)
        how, options = self._how, self._how.options
        if self._pricer is None:
            self._pricer = OpPricer(problem.model, problem.cluster, all_to_all=options.all_to_all)
            self._state = state_traffic(problem.model, problem.cluster, problem.memory.sharding)
        prices = program_prices(program, problem, options, self._pricer)

        def run(fidelity: Fidelity, told: SimOptions) -> SimReport:
            return simulate(program, problem, fidelity, told, prices=prices, state=self._state).report

        if how.additivity:
            quiet = msgspec.structs.replace(options, noise=DEFAULTS.noise)
            sums, event, flow = (run(fidelity, quiet) for fidelity in ("additive", "event", "flow"))
            planned = msgspec.structs.replace(planned, additivity=additivity(sums, event, flow))
        if how.fidelity == "additive":
            return planned
        reports = []
        for replica in range(how.replicas):
            noise = msgspec.structs.replace(options.noise, seed=options.noise.seed + replica, batch=planned.batch)
            reports.append(run(how.fidelity, msgspec.structs.replace(options, noise=noise)))
        self.sources = reports[0].sources
        return _with_reports(planned, reports, noisy=how.is_noisy)


def _planned(bare: Outcome, plan: Plan, problem: Problem) -> Outcome:
    """What the plan itself says."""
    times = [prediction.time_ns for prediction in plan.predicted]
    mean = sum(times) / len(times)
    return msgspec.structs.replace(
        bare,
        fits=plan.fits,
        step_time_ns=plan.makespan_ns,
        plan_ns=plan.makespan_ns,
        bound_ns=plan.bound_ns,
        max_over_mean=plan.max_over_mean,
        flops_max_over_mean=flops_balance(plan, problem),
        comm_bytes=plan.comm_bytes,
        num_split=plan.num_split,
        peak_memory_bytes=plan.peak_memory_bytes,
        memory_limit_bytes=plan.memory_limit_bytes,
        compute_ns=round(mean - plan.mean_communication_ns),
        communication_ns=round(plan.mean_communication_ns),
        wait_ns=round(plan.makespan_ns - mean),
        notes=plan.notes,
        planning_ns=plan.solver.planning_ns,
    )


def _with_reports(planned: Outcome, reports: Sequence[SimReport], *, noisy: bool) -> Outcome:
    """What the simulator says: the mean of its reports."""
    steps = [report.step_time_ns for report in reports]
    step = round(sum(steps) / len(steps))
    causes = mean_causes(reports, step)
    return msgspec.structs.replace(
        planned,
        step_time_ns=step,
        max_over_mean=sum(_balance(report) for report in reports) / len(reports),
        compute_ns=causes.compute_ns + causes.slowdown_ns + causes.jitter_ns + causes.optimizer_ns,
        communication_ns=causes.calls_ns + causes.exchange_ns + causes.gather_ns,
        wait_ns=causes.wait_ns + causes.idle_ns,
        causes=causes,
        replica_ns=tuple(steps) if noisy else (),
    )


def mean_causes(reports: Sequence[SimReport], step_time_ns: int) -> Causes:
    """Where the step goes, the mean over ranks and reports; what rounding leaves is idle."""

    def mean(*causes: str) -> int:
        return round(sum(report.mean(cause) for report in reports for cause in causes) / len(reports))

    optimizer = sum(rank.work_ns.get("optimizer", 0) for report in reports for rank in report.ranks)
    parts = {
        "compute_ns": mean("compute_ns"),
        "calls_ns": mean("calls_ns"),
        "wait_ns": mean("wait_ns", "gather_wait_ns", "reduce_wait_ns"),
        "exchange_ns": mean("exchange_ns"),
        "gather_ns": mean("gather_ns", "reduce_ns"),
        "slowdown_ns": mean("slowdown_ns"),
        "optimizer_ns": round(optimizer / sum(len(report.ranks) for report in reports)),
        "jitter_ns": mean("jitter_ns"),
    }
    return Causes(**parts, idle_ns=step_time_ns - sum(parts.values()))


def _balance(report: SimReport) -> float:
    """The busiest rank over the mean, waiting of all kinds left out."""
    busy = [
        rank.busy_ns - rank.wait_ns - rank.gather_wait_ns - rank.gather_ns - rank.reduce_wait_ns - rank.reduce_ns
        for rank in report.ranks
    ]
    return max(busy) * len(busy) / sum(busy)


def flops_balance(plan: Plan, problem: Problem) -> float:
    """The largest rank's forward FLOPs over the mean; a split sequence's are spread evenly."""
    flops = [0.0] * problem.cluster.num_ranks
    tokens = {sequence.id: sequence.bucket.num_tokens for sequence in problem.batch.sequences}
    for placement in plan.placements:
        one = problem.model.sequence_flops(tokens[placement.sequence], linear_factor=1, attention_factor=1)
        for rank in placement.ranks:
            flops[rank] += one / placement.config.degree
    return max(flops) * len(flops) / sum(flops)
