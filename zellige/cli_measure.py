"""Commands that measure: prices of this machine, and how far predictions from them can be trusted."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated, Any

import typer

from zellige.cli_arguments import refuse_overwriting, require_places
from zellige.cli_support import (
    BatchArgument,
    CheckpointChoice,
    CheckpointOption,
    ClusterOption,
    JsonOption,
    ModelOption,
    console,
    print_json,
    print_lines,
    progress,
    say,
    warn_drops,
)
from zellige.errors import UsageError


class DeviceChoice(enum.StrEnum):
    """What is measured."""

    CPU = "cpu"
    CUDA = "cuda"


SUITE = "suite"
"""The batch argument that means the validation suite's own batch."""

MinutesOption = Annotated[
    float, typer.Option("--minutes", min=0.05, max=10_000, help="Measure no longer; fit the rest.")
]


def profile_command(
    batch: Annotated[str, typer.Argument(metavar="BATCH", help="A clip list, a workload, gen:NAME, or 'suite'.")],
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Say what measuring would take, and measure nothing.")
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Where the table goes; its journal lies beside it.")] = None,
    device: Annotated[
        DeviceChoice | None, typer.Option("--device", help="Measure a CPU core or a GPU; else what the cluster has.")
    ] = None,
    minutes: MinutesOption = 6.0,
    end_to_end: Annotated[bool, typer.Option("--end-to-end", help="One figure a price, as the paper has.")] = False,
    alone: Annotated[
        bool, typer.Option("--alone", help="One rank measures, even where every rank has a core.")
    ] = False,
    no_links: Annotated[bool, typer.Option("--no-links", help="Keep the cluster's own links.")] = False,
    checkpoint: CheckpointOption = CheckpointChoice.FULL,
    cluster: ClusterOption = "",
    model: ModelOption = "",
    json: JsonOption = False,
) -> None:
    """Measure the prices of a batch's buckets on this machine (resumable), or say what that would take."""
    if estimate:
        if out is not None:
            raise UsageError(
                "--estimate measures nothing and writes no table", where="--out", fix="leave one of them out"
            )
        _estimate(batch, cluster, model, checkpoint, device, json, links=not no_links)
        return
    if out is None:
        raise UsageError("a table needs a place", fix="--out table.json (or --estimate)")
    refuse_overwriting({"--out": out}, [batch, cluster, model])
    require_places({"--out": out})
    from zellige.files import readable_json, write_text
    from zellige.measuring import measure_table, measuring_setting, own_device
    from zellige.prices import stamped
    from zellige.validation_report import profile_lines

    setting = measuring_setting(batch, cluster, model, checkpoint.value, warn_drops)
    with progress("measuring", setting.num_probes) as advance:
        table, done = measure_table(
            setting,
            out,
            device=own_device(setting.setting) if device is None else device.value,
            seconds=60 * minutes,
            links=not no_links,
            alone=alone,
            end_to_end=end_to_end,
            advance=advance,
        )
    write_text(out, readable_json(stamped(table)))
    if json:
        print_json({"schema": "zellige.profile/1", "rows": len(table.rows), "progress": done})
        return
    print_lines(profile_lines(table, done, str(out)))


def _estimate(
    batch: str,
    cluster: str,
    model: str,
    checkpoint: CheckpointChoice,
    device: DeviceChoice | None,
    json: bool,
    *,
    links: bool,
) -> None:
    from zellige.measuring import measured_link_ranks, measuring_setting, own_device
    from zellige.profile import estimate_profile
    from zellige.validation_report import estimate_lines

    setting = measuring_setting(batch, cluster, model, checkpoint.value, warn_drops).setting
    used = own_device(setting) if device is None else device.value
    result = estimate_profile(setting, measured_link_ranks(setting, used) if links else ())
    if json:
        print_json(result)
        return
    print_lines(estimate_lines(result))


def validate_command(
    batch: BatchArgument = SUITE,
    prices: Annotated[str, typer.Option("--prices", help="A measured table; without it one is measured.")] = "",
    cluster: Annotated[
        list[str] | None,
        typer.Option(
            "--cluster", help="Clusters whose plans run (repeatable); else the recorded, or one by the cores."
        ),
    ] = None,
    model: ModelOption = "tiny-dit",
    device: Annotated[
        DeviceChoice, typer.Option("--device", help="Run ranks on CPU cores or a GPU.")
    ] = DeviceChoice.CPU,
    alone: Annotated[bool, typer.Option("--alone", help="Run ranks one by one, and replay them.")] = False,
    plans: Annotated[int, typer.Option("--plans", min=1, max=10_000, help="Plans of the rotation.")] = 18,
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", help="A policy's plan as well (repeatable); else zellige, usp, dp, knapformer."),
    ] = None,
    repeats: Annotated[int, typer.Option("--repeats", min=2, max=1000, help="Measured steps of a plan.")] = 4,
    minutes: MinutesOption = 0.65,
    measured: Annotated[str, typer.Option("--measured", help="Compare runs of this file; needs --prices.")] = "",
    save: Annotated[Path | None, typer.Option("--save", help="Keep the runs in this folder, and the table.")] = None,
    raw_pace: Annotated[bool, typer.Option("--raw-pace", help="Do not scale predictions to the pace.")] = False,
    interference: Annotated[
        Path | None, typer.Option("--write-interference", help="Write the table with interference terms.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Predicted against measured, for real: run plans here and say how far to trust the order of plans."""
    from zellige.measuring import Wanted, run_validation
    from zellige.validation_plans import POLICIES

    refuse_overwriting({"--save": save, "--write-interference": interference}, [batch, prices, measured, model])
    require_places({"--write-interference": interference}, {"--save": save})
    wanted = Wanted(
        batch=batch,
        prices=prices,
        clusters=tuple(cluster or ()),
        model=model,
        device=device.value,
        alone=alone,
        plans=plans,
        policies=tuple(policy or POLICIES),
        repeats=repeats,
        seconds=60 * minutes,
        measured=measured,
        save=save,
        at_pace=not raw_pace,
        interference=interference,
    )
    report = run_validation(wanted, warn_drops, say)
    if json:
        print_json(report)
        return
    _print_validation(report)


def _print_validation(report: Any) -> None:
    from zellige.validation_report import validation_lines, validation_tables

    for setup in report.setups:
        print_lines(validation_lines(setup))
        for table in validation_tables(setup):
            console().print(table)
    print_lines([f"all of it took {report.seconds:.0f} s"])
