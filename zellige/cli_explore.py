"""Commands that explore: the catalog cut, the theorems, what is bundled."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

import typer

from zellige.cli_arguments import StrictCommand, help_alone, refuse_overwriting, require_places
from zellige.cli_support import (
    BatchArgument,
    BatchArguments,
    BatchesOption,
    BucketsOption,
    CheckpointChoice,
    CheckpointOption,
    ClusterOption,
    JsonOption,
    KeepFpsOption,
    ModelOption,
    PricesOption,
    SeedOption,
    ShardingChoice,
    ShardingOption,
    complete_catalog,
    console,
    planning_options,
    print_json,
    print_lines,
    progress,
    require_one_setting,
    warn_drops,
    warn_fitting,
)
from zellige.errors import UsageError


def cut_command(
    arguments: BatchArguments,
    cluster: ClusterOption = "",
    model: ModelOption = "",
    sharding: ShardingOption = ShardingChoice.ZERO3,
    checkpoint: CheckpointOption = CheckpointChoice.FULL,
    buckets: BucketsOption = "",
    keep_fps: KeepFpsOption = False,
    prices: PricesOption = "",
    batches: BatchesOption = 1,
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """The catalog cut: sorted whole prices, then dispersion and plan quality at every number of fillers."""
    from zellige.cuts import explore_cut
    from zellige.report_explore import CUT_LEGEND, PRICES_LEGEND, cut_tables
    from zellige.sources import build_problems, read_sources
    from zellige.units import share_of

    options = planning_options(
        cluster, model, sharding, checkpoint, None, buckets, keep_fps, prices, batches=batches, seed=seed
    )
    sources = read_sources(arguments, options)
    warn_fitting(sources, options)
    problems = [
        dataclasses.replace(problem, engine="group")
        for source in sources
        for problem in build_problems(source, options, warn_drops)
    ]
    require_one_setting(problems)
    steps = len(problems) * (len(problems[0].batch.buckets) + 1)
    with progress("planning", steps) as advance:
        report = explore_cut(problems, advance)
    if json:
        print_json(report)
        return
    for table, legend in zip(cut_tables(report), (PRICES_LEGEND, CUT_LEGEND), strict=True):
        console().print(table)
        print_lines(["", legend, ""])
    chosen = f"{share_of(report.k, len(report.buckets), 'bucket')} {'is a filler' if report.k == 1 else 'are fillers'}"
    print_lines([f"the chosen cut: {chosen}, the rest anchors"])


def prices_command(
    batch: BatchArgument,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Where to write the table.")] = None,
    cluster: ClusterOption = "",
    model: ModelOption = "",
    checkpoint: CheckpointOption = CheckpointChoice.FULL,
    buckets: BucketsOption = "",
    keep_fps: KeepFpsOption = False,
    json: JsonOption = False,
) -> None:
    """Write the analytic price table of a batch's buckets, with what it assumes; --prices reads such tables."""
    from zellige.files import readable_json, write_text
    from zellige.prices import stamped
    from zellige.sources import build_problems, read_source
    from zellige.units import count_of

    refuse_overwriting({"-o": output}, [batch, cluster, model, buckets])
    require_places({"-o": output})
    options = planning_options(cluster, model, ShardingChoice.ZERO3, checkpoint, None, buckets, keep_fps, "")
    source = read_source(batch, options)
    warn_fitting([source], options)
    table = stamped(build_problems(source, options, warn_drops)[0].prices)
    if output is not None:
        write_text(output, readable_json(table))
    if output is None or json:
        print_json(table)
        return
    origin = f"{', '.join(table.sources)} price"
    print_lines([f"{count_of(len(table.rows), origin)} written to {output}; they assume:"])
    print_lines([f"  {line}" for line in table.header.assumptions])


def theory_command(
    ranks: Annotated[list[int] | None, typer.Option("--ranks", min=2, max=64, help="Numbers of ranks.")] = None,
    json: JsonOption = False,
) -> None:
    """Why disjoint groups lose, on batches made for it: the ratio reaching N/g, and 1 split against m + 1."""
    from zellige.report_explore import theory_tables
    from zellige.theory import theory_rows

    result = theory_rows(ranks=tuple(ranks or (2, 4, 8, 16, 32, 64)), fillers_per_rank=4)
    if json:
        print_json(result)
        return
    for title, table, legend in theory_tables(result):
        print_lines([title])
        console().print(table)
        print_lines(["", legend, ""])


catalog_app = typer.Typer(
    help="What is bundled: models, devices, clusters, workloads, generators, bucket sets.",
    short_help="What is bundled, with sources.",
)


@catalog_app.callback(invoke_without_command=True)
def _catalog(context: typer.Context) -> None:
    help_alone(context)


@catalog_app.command("list", cls=StrictCommand, short_help="Names of what is bundled.")
def catalog_list_command(
    kind: Annotated[str, typer.Argument(metavar="[KIND]", help="models, devices, clusters, ...")] = "",
    json: JsonOption = False,
) -> None:
    """Names of what is bundled."""
    from zellige.catalog import catalog_index

    index = catalog_index(kind)
    if json:
        print_json({"schema": "zellige.catalog/1", "entries": index})
        return
    print_lines((f"{entry.kind:13s}{entry.name:28s}{entry.title}" for entry in index), hang=41)


@catalog_app.command("show", cls=StrictCommand, short_help="One entry, with its sources.")
def catalog_show_command(
    name: Annotated[
        str,
        typer.Argument(
            metavar="[NAME]", help="A bundled name; --errors does without.", autocompletion=complete_catalog
        ),
    ] = "",
    errors: Annotated[
        str, typer.Option("--errors", metavar="TABLE", help="Analytic prices against this measured table, by term.")
    ] = "",
    json: JsonOption = False,
) -> None:
    """One entry as its file holds it, sources included; or how far its constants are from what was measured."""
    if errors:
        from zellige.measuring import analytic_errors
        from zellige.validation_report import error_lines

        found = analytic_errors(errors, name)
        if json:
            print_json(found)
        else:
            print_lines(error_lines(found))
        return
    if not name:
        raise UsageError("show needs a name", fix="zellige-sim catalog list shows all of them; or --errors TABLE")
    from zellige.catalog import catalog_text
    from zellige.files import decode_toml

    text = catalog_text(name)
    if json:
        print_json(decode_toml(text, dict, name))
    else:
        sys.stdout.write(text)
