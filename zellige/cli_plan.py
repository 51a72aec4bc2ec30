"""The plan command: one batch, in micro-steps where one step cannot hold it, or a run of batches ahead of a trainer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from zellige.cli_arguments import refuse_overwriting, require_places
from zellige.cli_support import (
    BatchArguments,
    BatchesOption,
    BucketsOption,
    CheckpointChoice,
    CheckpointOption,
    ClusterOption,
    DeviceOption,
    EngineOption,
    JsonOption,
    KeepFpsOption,
    KnapformerOption,
    ModelOption,
    PricesOption,
    ReserveOption,
    SeedOption,
    SetOption,
    ShardingChoice,
    ShardingOption,
    UspOption,
    complete_policy,
    open_progress,
    planning_options,
    print_json,
    print_lines,
    say,
    warn_drops,
    warn_fitting,
)
from zellige.errors import UsageError, ZelligeError


def plan_command(
    arguments: BatchArguments,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Where to write the plan or plans.")] = None,
    policy: Annotated[
        str, typer.Option("--policy", help="Which policy plans.", autocompletion=complete_policy)
    ] = "zellige",
    micro_steps: Annotated[
        str, typer.Option("--micro-steps", help="Accumulate gradients: auto (the fewest), best (least time), a number.")
    ] = "",
    stream: Annotated[bool, typer.Option("--stream", help="Plan a run of batches, one JSON line each.")] = False,
    certify: Annotated[
        bool,
        typer.Option("--certify", help="Look for a better bound (docs/planner.md): seconds to two minutes."),
    ] = False,
    ahead: Annotated[int | None, typer.Option("--ahead", min=1, help="Batches under way with --stream (4).")] = None,
    cluster: ClusterOption = "",
    model: ModelOption = "",
    sharding: ShardingOption = ShardingChoice.ZERO3,
    checkpoint: CheckpointOption = CheckpointChoice.FULL,
    engine: EngineOption = None,
    buckets: BucketsOption = "",
    keep_fps: KeepFpsOption = False,
    prices: PricesOption = "",
    reserve: ReserveOption = "",
    usp: UspOption = "",
    knapformer: KnapformerOption = "",
    batches: BatchesOption = 1,
    seed: SeedOption = 0,
    settings: SetOption = None,
    device: DeviceOption = "",
    json: JsonOption = False,
) -> None:
    """Plan a batch and write the plan: which ranks run each sequence, under which split.

    --micro-steps splits a batch that one step cannot hold, or that takes less time in several. --stream plans many
    batches ahead, a line each as they come.
    """
    from zellige.plan import find_policy
    from zellige.sources import read_sources

    find_policy(policy)
    steps = _micro_steps(micro_steps)
    if stream and micro_steps:
        raise UsageError("--stream plans single steps", fix="plan the batches that need --micro-steps one by one")
    if certify:
        _require_one_step(stream, steps)
    if ahead is not None and not stream:
        raise UsageError("--ahead is for --stream", fix="leave it out")
    refuse_overwriting({"-o": output}, [*arguments, prices, cluster, model, buckets])
    if not stream:
        require_places({"-o": output})
    options = planning_options(
        cluster, model, sharding, checkpoint, engine, buckets, keep_fps, prices, usp, knapformer, batches, seed,
        settings, device, reserve,
    )  # fmt: skip
    sources = read_sources(arguments, options)
    if stream:
        _plan_run(sources, options, policy, ahead, output)
    else:
        _plan_one(sources, options, policy, steps, certify, output, json)


def _require_one_step(stream: bool, steps: Any) -> None:
    """Raise where --certify is given with what makes several plans."""
    if stream or steps != 1:
        other = "--stream" if stream else "--micro-steps"
        raise UsageError(
            f"--certify is for one plan of one step, and not for {other}",
            fix=f"plan a batch alone with --certify, or leave out --certify or {other}",
        )


def _micro_steps(text: str) -> int | str | None:
    """What --micro-steps asks for, as :data:`zellige.schedule.WantedSteps`."""
    if not text:
        return 1
    if text == "auto":
        return None
    if text == "best":
        return "best"
    if text.isascii() and text.isdecimal() and int(text[:9]) >= 1 and len(text) <= 9:
        return int(text)
    raise UsageError(f"--micro-steps {text} is no number of micro-steps", fix="--micro-steps auto, best, or 1 or more")


def _plan_one(
    sources: list[Any], options: Any, policy: str, steps: Any, certify: bool, output: Path | None, json: bool
) -> None:
    from zellige.files import readable_json, write_text
    from zellige.placement import Plan
    from zellige.plan.micro_steps import micro_steps_advice, plan_one_step, policy_planner, trial_planner
    from zellige.profile.host import table_warnings
    from zellige.report import plan_lines, schedule_lines
    from zellige.schedule import Schedule
    from zellige.sources import build_problems
    from zellige.units import count_of

    warn_fitting(sources, options)
    problems = [problem for source in sources for problem in build_problems(source, options, warn_drops)]
    if len(problems) > 1:
        raise UsageError(
            f"these are {count_of(len(problems), 'batch')}", fix="--stream plans a run of them, compare takes many"
        )
    say(*table_warnings(problems[0].prices))
    problem, planner = policy_planner(problems[0], policy, options.engine)
    trial = trial_planner(policy, options.engine)
    result = plan_one_step(problem, planner, trial) if steps == 1 else _plan_in_steps(problem, planner, steps)
    certified: list[str] = []
    if certify and isinstance(result, Plan):
        result, certified = _certified(problem, result)
    if output is not None:
        write_text(output, readable_json(result))
    told = problem.prices.sources, problem.memory.reserved_bytes
    lines = schedule_lines(result, *told) if isinstance(result, Schedule) else plan_lines(result, *told)
    if steps != 1 and not isinstance(result, Schedule):
        why = "no micro-steps that take less were found" if steps == "best" else "one step holds the batch"
        lines.append(f"{why}: this is a plan, and no schedule of micro-steps")
    if json:
        print_json(result)
    else:
        print_lines([*lines, *certified, *([f"written to {output}"] if output else [])])
    if not result.fits:
        say(f"one step does not hold the batch; try: {micro_steps_advice(problem, trial)}")
        raise typer.Exit(1)


def _plan_in_steps(problem: Any, planner: Any, steps: Any) -> Any:
    """A plan or a schedule, with progress on the way."""
    from zellige.plan.micro_steps import compiled_later, plan_in_steps
    from zellige.units import count_of, format_time

    with open_progress("micro-steps") as tell:

        def progress(num_parts: int, best: Any) -> None:
            planned = f"{count_of(num_parts, 'part')} planned"
            if best is not None:
                planned += f"; best so far: {format_time(best.time_ns)} in {count_of(len(best.parts), 'micro-step')}"
            tell(planned)

        return plan_in_steps(problem, compiled_later(planner), steps, progress)


def _certified(problem: Any, plan: Any) -> tuple[Any, list[str]]:
    """A plan with the best bound that can be found for it, and what was found."""
    import time

    from zellige.plan.whole_fillers import MOST_RANKS, certify
    from zellige.units import format_percent, format_time

    if not plan.fits:
        return plan, ["not certified: the plan is over the memory, and the bound is one of plans that fit"]
    if problem.cluster.num_ranks > MOST_RANKS:
        return plan, [f"not certified: the bound is for up to {MOST_RANKS} ranks"]
    began = time.perf_counter_ns()
    found = certify(problem, plan)
    spent = format_time(time.perf_counter_ns() - began)
    if found is plan:
        return plan, [f"certified in {spent}: no better bound was found"]
    before = f"{format_percent(plan.gap)} above {format_time(plan.bound_ns)} ({plan.bound})"
    return found, [f"certified in {spent}; before: {before}"]


ALONE = "plan that batch by itself, without --stream"


@contextlib.contextmanager
def _advice_for_streams() -> Iterator[None]:
    """Errors that advise micro-steps, which a stream has none of, say that they are for the batch alone."""
    try:
        yield
    except ZelligeError as error:
        if "--micro-steps" in error.fix:
            error.fix = f"{ALONE}: {error.fix}"
        raise


def _plan_run(sources: list[Any], options: Any, policy: str, ahead: int | None, output: Path | None) -> None:
    from zellige.lines import LineWriter
    from zellige.plan.stream import DEFAULT_AHEAD, plan_line, plan_stream
    from zellige.sources import each_problem
    from zellige.units import count_of

    warn_fitting(sources, options)
    problems = (problem for source in sources for problem in each_problem(source, options, warn_drops))
    done, unfit = 0, []
    run = plan_stream(problems, policy, engine=options.engine, ahead=ahead or DEFAULT_AHEAD)
    with LineWriter(output) as lines, run as plans, _advice_for_streams():
        for plan in plans:
            lines.write(plan_line(plan))
            done += 1
            if not plan.fits:
                unfit.append(plan.batch)
    written = f" written to {output}" if output else ""
    say(f"{count_of(done, 'plan')}{written}; {run.kept} of them reuse the placement of an equal batch before")
    if unfit:
        do_not = "does not" if len(unfit) == 1 else "do not"
        say(f"{len(unfit)} {do_not} fit in memory, the first for {unfit[0]}; try: {ALONE}, with --micro-steps auto")
        raise typer.Exit(1)
