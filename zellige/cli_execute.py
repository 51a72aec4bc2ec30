"""The command that runs plans for real: training steps, or attention alone."""

from __future__ import annotations

import enum
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from zellige.cli_arguments import refuse_overwriting, require_places
from zellige.cli_support import MAX_SEED, JsonOption, PricesOption, print_json, print_lines, say
from zellige.errors import MissingExtraError, PreflightError, UsageError


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


class NetworkChoice(enum.StrEnum):
    """What trains: an own transformer of the model's geometry, or diffusers' Wan."""

    DIT = "dit"
    WAN = "wan"


class SizeChoice(enum.StrEnum):
    """How much of the model trains; heads stay."""

    FULL = "full"
    SMALL = "small"
    TINY = "tiny"


StepsOption = Annotated[int, typer.Option("--steps", min=1, max=1_000_000, help="Training steps.")]
NetworkOption = Annotated[NetworkChoice, typer.Option("--network", help="Own transformer, or diffusers' Wan.")]
SizeOption = Annotated[SizeChoice, typer.Option("--model-size", help="Layers and widths, for slower ranks.")]
ShardedOption = Annotated[bool, typer.Option("--fsdp/--ddp", help="Shard parameters (FSDP2), or replicate them.")]
AccumulateOption = Annotated[int, typer.Option("--accumulate", min=1, max=4096, help="Micro-steps a step.")]
RateOption = Annotated[float, typer.Option("--learning-rate", min=0, help="AdamW's.")]
DirectoryOption = Annotated[Path | None, typer.Option("--out", help="Folder of metrics and checkpoints.")]
SaveOption = Annotated[int, typer.Option("--save-every", min=0, help="Steps between checkpoints; 0: none.")]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint in --out.")]
MemoryOption = Annotated[bool, typer.Option("--memory", help="Count live tensors in the second step (CPU).")]


TRAINING_ONLY = (
    "steps", "network", "model_size", "fsdp", "accumulate", "learning_rate", "out", "save_every", "resume", "memory"
)  # fmt: skip
ATTENTION_ONLY = ("layers", "verify", "prices")
"""Options that mean something in one of the two ways to execute a plan."""


def _refuse_unused(context: typer.Context, unused: Sequence[str], attention_only: bool) -> None:
    """Raise :class:`UsageError` for an option that was given and would be ignored."""
    for name in unused:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = "--" + name.replace("_", "-")
            if attention_only:
                raise UsageError(
                    f"attention alone makes no use of {option}", fix=f"leave out {option}, or --attention-only"
                )
            raise UsageError(f"training makes no use of {option}", fix=f"--attention-only {option} ...")


def execute_command(
    context: typer.Context,
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="A plan file, or a plan of many: FILE#2.")],
    steps: StepsOption = 1,
    network: NetworkOption = NetworkChoice.DIT,
    model_size: SizeOption = SizeChoice.FULL,
    fsdp: ShardedOption = False,
    accumulate: AccumulateOption = 1,
    learning_rate: RateOption = 1e-4,
    out: DirectoryOption = None,
    save_every: SaveOption = 0,
    resume: ResumeOption = False,
    memory: MemoryOption = False,
    attention_only: Annotated[
        bool, typer.Option("--attention-only", help="Run attention layers on random inputs.")
    ] = False,
    layers: Annotated[int, typer.Option("--layers", min=1, max=1000, help="Layers, with --attention-only.")] = 1,
    shrink: Annotated[
        int, typer.Option("--shrink", min=1, max=1_000_000, help="Divide all lengths, to fit slower ranks.")
    ] = 1,
    dtype: Annotated[DtypeChoice, typer.Option("--dtype", help="Element type.")] = DtypeChoice.FP32,
    backend: Annotated[BackendChoice, typer.Option("--backend", help="Communication library.")] = BackendChoice.GLOO,
    transport: Annotated[
        TransportChoice, typer.Option("--transport", help="All-to-all, or sends to real peers only.")
    ] = TransportChoice.ALL_TO_ALL,
    verify: Annotated[bool, typer.Option("--verify", help="Compare attention with unsharded fp64.")] = False,
    seed: Annotated[int, typer.Option("--seed", min=0, max=MAX_SEED, help="Seed of weights and data.")] = 0,
    timeout: Annotated[
        float, typer.Option("--timeout", min=1, max=86_400, help="Seconds after which the whole run is ended.")
    ] = 600.0,
    trace: Annotated[Path | None, typer.Option("--trace", help="Write the spans (Chrome trace).")] = None,
    prices: PricesOption = "",
    json: JsonOption = False,
) -> None:
    """Run a plan on processes of this machine, one a rank, and measure it with the program's span names."""
    _refuse_unused(context, TRAINING_ONLY if attention_only else ATTENTION_ONLY, attention_only)
    refuse_overwriting({"--trace": trace, "--out": out}, [plan, prices])
    require_places({"--trace": trace}, {"--out": out})
    common = {"dtype": dtype.value, "seed": seed, "backend": backend.value, "transport": transport.value}
    if attention_only:
        result, lines = _attention(plan, prices, shrink, layers, verify, timeout, common)
    else:
        if (resume or save_every) and out is None:
            raise UsageError("checkpoints need a folder", fix="--out FOLDER")
        settings = {
            **common, "steps": steps, "network": network.value, "parallel": "fsdp" if fsdp else "ddp",
            "accumulate": accumulate, "learning_rate": learning_rate, "directory": str(out) if out else "",
            "save_every": save_every, "resume": resume, "measure_memory": memory, "trace": trace is not None,
        }  # fmt: skip
        result, lines = _training(plan, model_size.value, shrink, timeout, settings)
    if trace is not None:
        _write_trace(trace, result.trace)
    if json:
        print_json(result)
        return
    print_lines(lines)
    if trace is not None:
        print_lines([f"spans written to {trace}: open them in Perfetto or chrome://tracing"])


def _attention(
    plan: str, prices: str, shrink: int, layers: int, verify: bool, timeout: float, common: dict[str, Any]
) -> tuple[Any, list[str]]:
    """Attention layers of a plan; the execution, and what to print of it."""
    from zellige.plan_check import load_plan, runnable_problem
    from zellige.program import lower
    from zellige.program import shrink as shrink_program
    from zellige.program_checks import check_program
    from zellige.sources import Options

    loaded = load_plan(plan)
    problem = runnable_problem(loaded, plan, Options(prices=prices))
    program = lower(loaded, problem)
    if shrink > 1:
        program = shrink_program(program, shrink)
    check_program(program)
    _require_torch()
    from zellige.exec.devices import require_backend
    from zellige.exec.execute import execute_attention, summary
    from zellige.units import count_of

    require_backend(common["backend"], program.num_ranks)
    more = ", a comparison in fp64" if verify else ""
    _announce(f"{count_of(program.num_ranks, 'rank')}: a warm-up layer, {layers} measured{more}", timeout)
    done = execute_attention(program, layers=layers, verify=verify, timeout_s=timeout, deadline_s=timeout, **common)
    return done, [str(program), "", *summary(done).splitlines()]


def _training(plan: str, size: Any, shrink: int, timeout: float, settings: dict[str, Any]) -> tuple[Any, list[str]]:
    """Training steps of a plan; what they were, and what to print of it."""
    from zellige.plan_check import load_plan, runnable_problem
    from zellige.sources import Options

    loaded = load_plan(plan)
    problem = runnable_problem(loaded, plan, Options())
    _require_torch()
    from zellige.exec.dit import resized
    from zellige.exec.plans import training_plans
    from zellige.exec.training import TrainingRun, execute_training, require_runnable, training_lines
    from zellige.units import count_of

    model = resized(problem.model, size)
    if settings["backend"] == "gloo":
        copies = 1 if settings["parallel"] == "fsdp" else len(loaded.predicted)
        require_host_memory(model.num_parameters() * copies, settings["dtype"])
    parts = training_plans(loaded, model, shrink=shrink, where=plan)
    settings["accumulate"] *= len(parts)
    run = TrainingRun(plans=parts, model=model, **settings)
    require_runnable(run)
    tokens = sum(run.plans[index].num_visual for index in run.plans_of(0))
    steps = f"{count_of(run.steps, 'step')} of {count_of(tokens, 'token')}"
    _announce(f"{count_of(parts[0].program.num_ranks, 'rank')}: {steps}", timeout)
    done = execute_training(run, timeout_s=timeout, deadline_s=timeout)
    return done, training_lines(run, done)


STATE_BYTES = {"fp64": 32, "fp32": 16, "bf16": 8}
"""Bytes a parameter takes: itself, its gradient, and AdamW's two moments."""


def require_host_memory(num_parameters: int, dtype: str) -> None:
    """Raise :class:`PreflightError` where this machine's memory cannot hold the state of all processes.

    Otherwise the system ends a process when memory runs out, minutes later and without a word.
    """
    from zellige.units import format_bytes

    needed = num_parameters * STATE_BYTES[dtype]
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > there:
        raise PreflightError(
            f"parameters, gradients, moments of all ranks take {format_bytes(needed)}, of {format_bytes(there)} here",
            fix="--model-size tiny (or small), or --fsdp, which keeps one copy of them",
        )


def _announce(what: str, timeout: float) -> None:
    """Say what will run, and make ranks and their folder go with this process when it is terminated."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    say(f"{what}; at most {timeout:g} s (a larger --shrink is faster)")


def _require_torch() -> None:
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError:
        raise MissingExtraError(
            "executing a plan needs torch", fix="pip install -e '.[exec]' in the checkout"
        ) from None


def _write_trace(path: Path, trace: Any) -> None:
    from zellige.chrome_trace import chrome_events
    from zellige.files import canonical_json, write_text

    write_text(path, canonical_json(chrome_events(trace)).decode() + "\n")
