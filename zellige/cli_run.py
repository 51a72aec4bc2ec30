"""Commands that run plans through the simulator, and say what measuring would take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from zellige.cli_arguments import refuse_overwriting, require_places
from zellige.cli_support import (
    MAX_SEED,
    AdditivityOption,
    ClusterOption,
    DeviceOption,
    FidelityChoice,
    FidelityOption,
    JitterOption,
    JsonOption,
    ModelOption,
    ReplicasOption,
    ReserveOption,
    SetOption,
    console,
    print_json,
    print_lines,
    simulation_options,
)


def simulate_command(
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="A plan file, or a plan of many: FILE#2.")],
    fidelity: FidelityOption = FidelityChoice.EVENT,
    cluster: ClusterOption = "",
    model: ModelOption = "",
    jitter: JitterOption = 0.0,
    replicas: ReplicasOption = 1,
    seed: Annotated[int, typer.Option("--seed", min=0, max=MAX_SEED, help="Seed of the jitter.")] = 0,
    settings: SetOption = None,
    device: DeviceOption = "",
    reserve: ReserveOption = "",
    additivity: AdditivityOption = False,
    no_state: Annotated[
        bool, typer.Option("--no-state", help="Leave out parameter gathers, reductions and the optimizer.")
    ] = False,
    trace: Annotated[Path | None, typer.Option("--trace", help="Write the spans (Chrome trace).")] = None,
    kineto: Annotated[
        Path | None, typer.Option("--kineto", help="Write a folder of Kineto traces, one a rank.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Run a plan through the simulator: step time, and where each rank's time goes."""
    from zellige.plan_check import load_plan, runnable_problem
    from zellige.simulation import simulate_plan
    from zellige.sources import Options

    refuse_overwriting({"--trace": trace, "--kineto": kineto}, [plan, cluster, model])
    require_places({"--trace": trace}, {"--kineto": kineto})
    loaded = load_plan(plan)
    options = Options(cluster=cluster, model=model, settings=tuple(settings or ()), device=device, reserve=reserve)
    problem = runnable_problem(loaded, plan, options)
    traced = trace is not None or kineto is not None
    how = simulation_options(fidelity, jitter, replicas, seed, additivity=additivity, state=not no_state, trace=traced)
    done = simulate_plan(loaded, problem, how)
    if kineto is not None:
        _write_kineto(kineto, done.trace)
    if trace is not None:
        _write_trace(trace, done.trace)
    if json:
        print_json(done.answer)
        return
    _print_simulation(done, loaded, problem.memory.reserved_bytes)
    if trace is not None:
        print_lines([f"spans written to {trace}: open them in Perfetto or chrome://tracing"])
    if kineto is not None:
        print_lines([f"a Kineto trace a rank written to {kineto}"])


def _print_simulation(done: Any, plan: Any, reserved_bytes: int) -> None:
    from zellige import report_simulation as tables

    print_lines(tables.simulation_lines(done.report, plan, reserved_bytes))
    if done.summary is not None:
        print_lines(tables.summary_lines(done.report, done.summary))
    console().print(tables.simulation_table(done.report))
    print_lines(["", *tables.simulation_legend(done.report)])
    if done.additivity is not None:
        print_lines(["", "events and shared links against the sums, by cause, on the rank that the sums call slowest"])
        console().print(tables.additivity_table(done.additivity))


def _write_trace(path: Path, trace: Any) -> None:
    from zellige.chrome_trace import chrome_events
    from zellige.files import canonical_json, write_text

    write_text(path, canonical_json(chrome_events(trace)).decode() + "\n")


def _write_kineto(folder: Path, trace: Any) -> None:
    from zellige.kineto import write_kineto

    write_kineto(trace, folder)
