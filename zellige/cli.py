"""The command line: parse, call, print. What a command does is in the modules that it calls."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

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
from zellige.errors import InternalError, ZelligeError

app = typer.Typer(
    name="zellige-sim",
    help="Plan, simulate and compare placements of mixed image/video batches on a cluster of GPUs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    if version:
        from zellige import __version__

        typer.echo(__version__)
        raise typer.Exit


app.command("compare", short_help="Every policy on every batch, side by side.")(compare_command)
app.command("plan", short_help="The plan of a batch, or of a run of batches.")(plan_command)


@app.command("check", short_help="Drops, misfits and contradictions in files.")
def check_command(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="Clip lists, workloads, plans, price tables, catalogs.")
    ],
    cluster: ClusterOption = "",
    model: ModelOption = "",
    sharding: ShardingOption = ShardingChoice.ZERO3,
    checkpoint: CheckpointOption = CheckpointChoice.FULL,
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
        cluster, model, sharding, checkpoint, None, buckets, keep_fps, prices, settings=settings, device=device
    )
    reports = [check_file(name, options, batch_size, timeout) for name in files]
    if json:
        print_json({"schema": "zellige.findings/1", "files": reports})
    else:
        for report in reports:
            print_lines([f"{report.file}: {len(report.findings)} findings", *(f"  {line}" for line in report.summary)])
            for finding in report.findings:
                print_lines(
                    [f"  [{finding.code}] {finding.message}" + (f" ({finding.where})" if finding.where else "")]
                )
                if finding.fix:
                    print_lines([f"      try: {finding.fix}"])
    if any(report.findings for report in reports):
        raise typer.Exit(1)


@app.command("inspect", short_help="Tokens, splits and prices of a clip.")
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
    from zellige.report import inspection_lines, inspection_table
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
        print_lines(["prices: analytic, per step"])


app.command("cut", short_help="What every catalog cut does to a plan.")(cut_command)
app.command("prices", short_help="Write the analytic price table of a batch.")(prices_command)
app.command("theory", short_help="Why disjoint groups lose, on made batches.")(theory_command)
app.command("simulate", short_help="Run a plan through the simulator.")(simulate_command)
app.command("execute", short_help="Run a plan for real, on processes here.")(execute_command)
app.command("profile", short_help="Measure prices here, or say what that takes.")(profile_command)
app.command("validate", short_help="Predicted against measured, for real.")(validate_command)
app.add_typer(catalog_app, name="catalog", no_args_is_help=True)


def main() -> None:
    """Run the command line; the console script's entry point."""
    wants_json = "--json" in sys.argv
    try:
        app(standalone_mode=True)
    except ZelligeError as error:
        print_error(error, wants_json)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        bug = InternalError(
            f"{type(error).__name__}: {error}",
            where=last_frame(error),
            fix="this is a bug in Zellige: please report the command and its input",
        )
        print_error(bug, wants_json)
        sys.exit(bug.exit_code)


if __name__ == "__main__":
    main()
