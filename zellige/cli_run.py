"""Commands that run plans: through the simulator, and for real."""

from __future__ import annotations

import enum
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from zellige.cli_support import (
    BatchArgument,
    ClusterOption,
    JsonOption,
    ModelOption,
    PricesOption,
    console,
    print_json,
    print_lines,
    warn_drops,
)
from zellige.errors import MissingExtraError, UsageError


class FidelityChoice(enum.StrEnum):
    """How closely a step is simulated."""

    ADDITIVE = "additive"
    EVENT = "event"
    FLOW = "flow"


class DtypeChoice(enum.StrEnum):
    """Element type of the tensors."""

    FP64 = "fp64"
    FP32 = "fp32"
    BF16 = "bf16"


class BackendChoice(enum.StrEnum):
    """Communication library."""

    GLOO = "gloo"
    NCCL = "nccl"


class TransportChoice(enum.StrEnum):
    """How an exchange travels."""

    ALL_TO_ALL = "all-to-all"
    PEER_TO_PEER = "peer-to-peer"


def simulate_command(
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="A plan file.")],
    fidelity: Annotated[
        FidelityChoice, typer.Option("--fidelity", help="Sums, events, or events with shared links.")
    ] = FidelityChoice.EVENT,
    cluster: ClusterOption = "",
    model: ModelOption = "",
    jitter: Annotated[float, typer.Option("--jitter", min=0, max=1, help="Lognormal sigma of every operation.")] = 0.0,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the jitter.")] = 0,
    no_state: Annotated[
        bool, typer.Option("--no-state", help="Leave out parameter gathers, reductions and the optimizer.")
    ] = False,
    trace: Annotated[Path | None, typer.Option("--trace", help="Write the spans (Chrome trace).")] = None,
    json: JsonOption = False,
) -> None:
    """Run a plan through the simulator: step time, and where each rank's time goes."""
    from zellige.plan_check import load_plan, plan_problem
    from zellige.program import lower
    from zellige.program_checks import check_program
    from zellige.report import simulation_lines, simulation_table
    from zellige.sim import Noise, SimOptions, simulate
    from zellige.sources import Options

    loaded = load_plan(plan)
    problem = plan_problem(loaded, plan, Options(cluster=cluster, model=model))
    program = lower(loaded, problem)
    check_program(program)
    options = SimOptions(trace=trace is not None, state_traffic=not no_state, noise=Noise(seed=seed, jitter=jitter))
    done = simulate(program, problem, fidelity.value, options)
    if trace is not None:
        _write_trace(trace, done.trace)
    if json:
        print_json(done.report)
        return
    print_lines(simulation_lines(done.report, loaded))
    console().print(simulation_table(done.report))
    if trace is not None:
        print_lines([f"spans written to {trace}: open them in Perfetto or chrome://tracing"])


def profile_command(
    batch: BatchArgument,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Say what measuring would take, and measure nothing.")
    ] = False,
    cluster: ClusterOption = "",
    model: ModelOption = "",
    json: JsonOption = False,
) -> None:
    """What it takes to measure the prices of a batch's buckets on one device of a cluster."""
    from zellige.profile import estimate_profile
    from zellige.report import estimate_lines
    from zellige.sources import Options, build_problems, read_source

    if not estimate:
        raise UsageError("prices are not measured yet", fix="--estimate says what measuring would take")
    options = Options(cluster=cluster, model=model)
    problem = build_problems(read_source(batch, options), options, warn_drops)[0]
    result = estimate_profile(
        problem.model, problem.cluster, problem.batch.buckets, problem.memory, problem.memory.checkpoint
    )
    if json:
        print_json(result)
        return
    print_lines(estimate_lines(result))


def execute_command(
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="A plan file.")],
    attention_only: Annotated[
        bool, typer.Option("--attention-only", help="Run attention layers on random inputs.")
    ] = False,
    layers: Annotated[int, typer.Option("--layers", min=1, max=1000, help="Layers to measure.")] = 1,
    shrink: Annotated[
        int, typer.Option("--shrink", min=1, max=1_000_000, help="Divide all lengths, to fit slower ranks.")
    ] = 1,
    dtype: Annotated[DtypeChoice, typer.Option("--dtype", help="Element type.")] = DtypeChoice.FP32,
    backend: Annotated[BackendChoice, typer.Option("--backend", help="Communication library.")] = BackendChoice.GLOO,
    transport: Annotated[
        TransportChoice, typer.Option("--transport", help="All-to-all, or sends to real peers only.")
    ] = TransportChoice.ALL_TO_ALL,
    verify: Annotated[bool, typer.Option("--verify", help="Compare with unsharded attention in fp64.")] = False,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the inputs.")] = 0,
    timeout: Annotated[
        float, typer.Option("--timeout", min=1, max=86_400, help="Seconds after which the whole run is ended.")
    ] = 600.0,
    trace: Annotated[Path | None, typer.Option("--trace", help="Write the spans (Chrome trace).")] = None,
    prices: PricesOption = "",
    json: JsonOption = False,
) -> None:
    """Run a plan on processes of this machine, one a rank, and measure it with the program's span names."""
    from zellige.plan_check import load_plan, plan_problem
    from zellige.program import lower
    from zellige.program import shrink as shrink_program
    from zellige.program_checks import check_program
    from zellige.sources import Options

    if not attention_only:
        raise UsageError("training steps are not executed yet", fix="--attention-only runs the plan's attention layers")
    loaded = load_plan(plan)
    program = lower(loaded, plan_problem(loaded, plan, Options(prices=prices)))
    if shrink > 1:
        program = shrink_program(program, shrink)
    check_program(program)
    run, summary = _attention_runner()
    _announce(program.num_ranks, layers, verify, timeout)
    result = run(
        program,
        dtype=dtype.value,
        seed=seed,
        layers=layers,
        timeout_s=timeout,
        deadline_s=timeout,
        backend=backend.value,
        transport=transport.value,
        verify=verify,
    )
    if trace is not None:
        _write_trace(trace, result.trace)
    if json:
        print_json(result)
        return
    print_lines([str(program), "", *str(summary(result)).splitlines()])
    if trace is not None:
        print_lines([f"spans written to {trace}: open them in Perfetto or chrome://tracing"])


def _announce(num_ranks: int, layers: int, verify: bool, timeout: float) -> None:
    """Say what will run, and make ranks and their folder go with this process when it is terminated."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    more = ", a comparison in fp64" if verify else ""
    steps = f"{num_ranks} ranks: a warm-up layer, {layers} measured{more}"
    sys.stderr.write(f"{steps}; at most {timeout:g} s (a larger --shrink is faster)\n")


def _attention_runner() -> tuple[Any, Any]:
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError:
        raise MissingExtraError("executing a plan needs torch", fix="pip install 'zellige[exec]'") from None
    from zellige.exec.execute import execute_attention, summary

    return execute_attention, summary


def _write_trace(path: Path, trace: Any) -> None:
    from zellige.files import canonical_json, write_text
    from zellige.trace import chrome_events

    write_text(path, canonical_json(chrome_events(trace)).decode() + "\n")
