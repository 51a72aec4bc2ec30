"""The command line: parse, call, print. What a command does is in the modules that it calls.

:mod:`zellige.cli` runs it.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from zellige.cli_arguments import ParserError, StrictCommand, help_alone, misread
from zellige.cli_compare import compare_command
from zellige.cli_execute import execute_command
from zellige.cli_explore import catalog_app, cut_command, prices_command, theory_command
from zellige.cli_measure import profile_command, validate_command
from zellige.cli_plan import plan_command
from zellige.cli_run import simulate_command
from zellige.cli_support import (
    BucketsOption,
    CheckpointChoice,
    CheckpointOption,
    ClusterOption,
    DeviceOption,
    EngineOption,
    JsonOption,
    KeepFpsOption,
    ModelOption,
    PricesOption,
    SetOption,
    ShardingChoice,
    ShardingOption,
    console,
    last_frame,
    planning_options,
    print_error,
    print_json,
    print_lines,
)
from zellige.errors import InternalError, UsageError, ZelligeError

app = typer.Typer(
    name="zellige-sim",
    help="Plan, simulate and compare placements of mixed image/video batches on a cluster of GPUs.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    if version:
        from zellige import __version__

        typer.echo(__version__)
        raise typer.Exit
    help_alone(context)


def check_command(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE...", help="Clip lists, workloads, plans (also FILE#2), price tables, catalogs."),
    ],
    cluster: ClusterOption = "",
    model: ModelOption = "",
    sharding: ShardingOption = ShardingChoice.ZERO3,
    checkpoint: CheckpointOption = CheckpointChoice.FULL,
    engine: EngineOption = None,
    buckets: BucketsOption = "",
    keep_fps: KeepFpsOption = False,
    prices: PricesOption = "",
    batch_size: Annotated[int, typer.Option("--batch-size", min=0, help="Clips a step of same-shape batching.")] = 0,
    timeout: Annotated[float, typer.Option("--timeout", min=0.001, help="Collective time-out in seconds.")] = 600.0,
    settings: SetOption = None,
    device: DeviceOption = "",
    json: JsonOption = False,
) -> None:
    """Check files: drops, illegal splits, memory, plans that contradict themselves. Exit 1 if anything is found."""
    from zellige.check import check_file

    options = planning_options(
        cluster, model, sharding, checkpoint, engine, buckets, keep_fps, prices, settings=settings, device=device
    )
    reports = [check_file(name, options, batch_size, timeout) for name in files]
    if json:
        print_json({"schema": "zellige.findings/1", "files": reports})
    else:
        from zellige.report import findings_lines

        for report in reports:
            print_lines(findings_lines(report))
    if any(report.findings for report in reports):
        raise typer.Exit(1)


def inspect_command(
    clip: Annotated[str, typer.Argument(metavar="CLIP", help="WIDTHxHEIGHTxFRAMES, or WIDTHxHEIGHT with --seconds.")],
    model: ModelOption = "wan2.1-t2v-1.3b",
    cluster: ClusterOption = "",
    seconds: Annotated[float | None, typer.Option("--seconds", help="Length, where frames are not given.")] = None,
    fps: Annotated[float | None, typer.Option("--fps", help="Frame rate for --seconds (the model's own).")] = None,
    sharding: ShardingOption = ShardingChoice.ZERO3,
    checkpoint: CheckpointOption = CheckpointChoice.FULL,
    split: Annotated[str, typer.Option("--split", help="Show the shards of a split, as h8 or h4k2.")] = "",
    show_all: Annotated[bool, typer.Option("--all", help="All splits, not the three fastest of a degree.")] = False,
    json: JsonOption = False,
) -> None:
    """Tokens, grid and legal splits of a clip; with a cluster, the splits that fit and their prices."""
    from zellige.catalog import load_cluster, load_model
    from zellige.inspection import clip_frames, inspect_clip
    from zellige.report_explore import INSPECTION_LEGEND, inspection_lines, inspection_table
    from zellige.shards import parse_config

    spec = load_model(model)
    hardware = load_cluster(cluster) if cluster else None
    width, height, frames, notes = clip_frames(spec, clip, seconds, fps)
    result = inspect_clip(
        spec,
        hardware,
        (width, height, frames),
        sharding=sharding.value,
        checkpoint=checkpoint.value,
        split=parse_config(split) if split else None,
        notes=notes,
    )
    if json:
        print_json(result)
        return
    print_lines(inspection_lines(result))
    if result.configs:
        console().print(inspection_table(result, show_all=show_all))
        print_lines(INSPECTION_LEGEND)


for name, command, summary in (
    ("compare", compare_command, "Every policy on every batch, side by side."),
    ("plan", plan_command, "The plan of a batch, or of a run of batches."),
    ("check", check_command, "Drops, misfits and contradictions in files."),
    ("inspect", inspect_command, "Tokens, splits and prices of a clip."),
    ("cut", cut_command, "What every catalog cut does to a plan."),
    ("prices", prices_command, "Write the analytic price table of a batch."),
    ("theory", theory_command, "Why disjoint groups lose, on made batches."),
    ("simulate", simulate_command, "Run a plan through the simulator."),
    ("execute", execute_command, "Run a plan for real, on processes here."),
    ("profile", profile_command, "Measure prices here, or say what that takes."),
    ("validate", validate_command, "Predicted against measured, for real."),
):
    app.command(name, cls=StrictCommand, short_help=summary)(command)
app.add_typer(catalog_app, name="catalog")


def run(wants_json: bool) -> int:
    """The exit status of the command that ``sys.argv`` names; errors are printed."""
    try:
        try:
            status = app(prog_name="zellige-sim", standalone_mode=False)
        finally:
            sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except ParserError as misuse:
        print_error(misread(misuse), wants_json)
        return UsageError.exit_code
    except ZelligeError as error:
        print_error(error, wants_json)
        return error.exit_code
    except Exception as error:
        bug = InternalError(f"{type(error).__name__}: {error}", where=last_frame(error))
        print_error(bug, wants_json)
        return bug.exit_code
