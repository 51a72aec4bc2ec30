"""The command line: parse, call, print. What a command does is in the modules that it calls."""

from __future__ import annotations

import contextlib
import enum
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from zellige.errors import InternalError, ZelligeError

app = typer.Typer(
    name="zellige-sim",
    help="Plan, simulate and compare placements of mixed image/video batches on a cluster of GPUs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class ShardingChoice(enum.StrEnum):
    """How parameters, gradients and optimizer state are spread over ranks."""

    DDP = "ddp"
    ZERO2 = "zero2"
    ZERO3 = "zero3"


class CheckpointChoice(enum.StrEnum):
    """What is recomputed in backward."""

    FULL = "full"
    SELECTIVE = "selective"
    NONE = "none"


class EngineChoice(enum.StrEnum):
    """Who shares attention calls."""

    COALESCED = "coalesced"
    PER_SEQUENCE = "per_sequence"
    GROUP = "group"


BatchArguments = Annotated[
    list[str], typer.Argument(metavar="BATCH...", help="Clip lists (.jsonl, .csv), workload files or names.")
]
ClusterOption = Annotated[str, typer.Option("--cluster", help="A cluster's name or .toml file.")]
ModelOption = Annotated[str, typer.Option("--model", help="A model's name or .toml file.")]
ShardingOption = Annotated[ShardingChoice, typer.Option("--sharding", help="Sharding of the model's state.")]
CheckpointOption = Annotated[CheckpointChoice, typer.Option("--checkpoint", help="Activation checkpointing.")]
EngineOption = Annotated[
    EngineChoice | None, typer.Option("--engine", help="Price under this engine, not the policy's own.")
]
BucketsOption = Annotated[
    str, typer.Option("--buckets", help="Bucket set: 1280x720x81,480x480,... or frame counts 1,81 or a .txt file.")
]
KeepFpsOption = Annotated[bool, typer.Option("--keep-fps", help="Take frames as they are, without resampling.")]
PricesOption = Annotated[str, typer.Option("--prices", help="A price table instead of analytic prices.")]
UspOption = Annotated[str, typer.Option("--usp", help="USP's configuration, as h4k2.")]
KnapformerOption = Annotated[str, typer.Option("--knapformer", help="KnapFormer's bags, as g2n1+g6n1.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON; errors too, on stderr.")]


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    if version:
        from zellige import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.command("compare")
def compare_command(
    batches: BatchArguments,
    cluster: ClusterOption = "",
    model: ModelOption = "",
    sharding: ShardingOption = ShardingChoice.ZERO3,
    checkpoint: CheckpointOption = CheckpointChoice.FULL,
    policy: Annotated[list[str] | None, typer.Option("--policy", help="Only these policies (repeatable).")] = None,
    engine: EngineOption = None,
    buckets: BucketsOption = "",
    keep_fps: KeepFpsOption = False,
    prices: PricesOption = "",
    usp: UspOption = "",
    knapformer: KnapformerOption = "",
    json: JsonOption = False,
) -> None:
    """Plan each batch with every policy and compare: step time, balance, communication, memory, gap to the bound."""
    from zellige.compare import compare, default_policies
    from zellige.plan import find_policy
    from zellige.sources import build_problems, read_source

    options = _options(cluster, model, sharding, checkpoint, engine, buckets, keep_fps, prices, usp, knapformer)
    for name in policy or []:
        find_policy(name)
    sources = [read_source(argument) for argument in batches]
    problems = [problem for source in sources for problem in build_problems(source, options, _warn_drops)]
    first = problems[0]
    _require_one_setting(problems)
    chosen = tuple(policy) if policy else default_policies(problems)
    notes = tuple(source.note for source in sources[:1] if source.note)
    with _progress("planning", len(chosen) * len(problems)) as advance:
        result = compare(problems, chosen, engine=first.engine if engine else None, notes=notes, progress=advance)
    if json:
        _print_json(result)
        return
    _print_comparison(result)


@app.command("plan")
def plan_command(
    batch: Annotated[str, typer.Argument(metavar="BATCH", help="A clip list, workload file or name.")],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Where to write the plan.")] = None,
    policy: Annotated[str, typer.Option("--policy", help="Which policy plans.")] = "zellige-paper",
    cluster: ClusterOption = "",
    model: ModelOption = "",
    sharding: ShardingOption = ShardingChoice.ZERO3,
    checkpoint: CheckpointOption = CheckpointChoice.FULL,
    engine: EngineOption = None,
    buckets: BucketsOption = "",
    keep_fps: KeepFpsOption = False,
    prices: PricesOption = "",
    usp: UspOption = "",
    knapformer: KnapformerOption = "",
    json: JsonOption = False,
) -> None:
    """Plan one batch and write the plan: which ranks run each sequence, under which split."""
    from zellige.errors import UsageError
    from zellige.files import readable_json, write_text
    from zellige.plan import find_policy, plan_batch
    from zellige.report import plan_lines
    from zellige.sources import build_problems, read_source

    find_policy(policy)
    options = _options(cluster, model, sharding, checkpoint, engine, buckets, keep_fps, prices, usp, knapformer)
    problems = build_problems(read_source(batch), options, _warn_drops)
    if len(problems) > 1:
        raise UsageError(f"{batch} holds {len(problems)} batches", fix="compare takes many; give plan a file of one")
    plan = plan_batch(problems[0], policy, options.engine)
    if output is not None:
        write_text(output, readable_json(plan))
    if json:
        _print_json(plan)
        return
    _print_lines([*plan_lines(plan), *([f"written to {output}"] if output else [])])
    if not plan.fits:
        raise typer.Exit(1)


@app.command("check")
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
    json: JsonOption = False,
) -> None:
    """Check files: drops, illegal splits, memory, plans that contradict themselves. Exit 1 if anything is found."""
    from zellige.check import check_file

    options = _options(cluster, model, sharding, checkpoint, None, buckets, keep_fps, prices, "", "")
    reports = [check_file(name, options, batch_size) for name in files]
    if json:
        _print_json({"schema": "zellige.findings/1", "files": reports})
    else:
        for report in reports:
            _print_lines([f"{report.file}: {len(report.findings)} findings", *(f"  {line}" for line in report.summary)])
            for finding in report.findings:
                _print_lines(
                    [f"  [{finding.code}] {finding.message}" + (f" ({finding.where})" if finding.where else "")]
                )
                if finding.fix:
                    _print_lines([f"      try: {finding.fix}"])
    if any(report.findings for report in reports):
        raise typer.Exit(1)


@app.command("inspect")
def inspect_command(
    clip: Annotated[str, typer.Argument(metavar="CLIP", help="WIDTHxHEIGHTxFRAMES, or WIDTHxHEIGHT with --seconds.")],
    model: ModelOption = "wan2.1-t2v-1.3b",
    cluster: ClusterOption = "",
    seconds: Annotated[float | None, typer.Option("--seconds", help="Length, where frames are not given.")] = None,
    fps: Annotated[float | None, typer.Option("--fps", help="Frame rate for --seconds (the model's own).")] = None,
    sharding: ShardingOption = ShardingChoice.ZERO3,
    checkpoint: CheckpointOption = CheckpointChoice.FULL,
    split: Annotated[str, typer.Option("--split", help="Show the shards of a split, as h8 or h4k2.")] = "",
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
        _print_json(result)
        return
    _print_lines(inspection_lines(result))
    if result.configs:
        _console().print(inspection_table(result))


def main() -> None:
    """Run the command line; the console script's entry point."""
    wants_json = "--json" in sys.argv
    try:
        app(standalone_mode=True)
    except ZelligeError as error:
        _print_error(error, wants_json)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        bug = InternalError(
            f"{type(error).__name__}: {error}",
            where=_last_frame(error),
            fix="this is a bug in Zellige: please report the command and its input",
        )
        _print_error(bug, wants_json)
        sys.exit(bug.exit_code)


def _options(
    cluster: str,
    model: str,
    sharding: ShardingChoice,
    checkpoint: CheckpointChoice,
    engine: EngineChoice | None,
    buckets: str,
    keep_fps: bool,
    prices: str,
    usp: str,
    knapformer: str,
) -> Any:
    from zellige.plan.bags import parse_bag_spec
    from zellige.shards import parse_config
    from zellige.sources import Options

    if usp:
        parse_config(usp)
    if knapformer:
        parse_bag_spec(knapformer)
    return Options(
        cluster=cluster,
        model=model,
        sharding=sharding.value,
        checkpoint=checkpoint.value,
        engine=engine.value if engine else None,
        buckets=buckets,
        resample=not keep_fps,
        prices=prices,
        usp=usp,
        knapformer=knapformer,
    )


def _require_one_setting(problems: list[Any]) -> None:
    from zellige.errors import UsageError

    settings = sorted({(problem.cluster.name, problem.model.name) for problem in problems})
    if len(settings) > 1:
        listed = ", ".join(f"{model} on {cluster}" for cluster, model in settings)
        raise UsageError(
            f"the batches are for different set-ups: {listed}", fix="one --cluster and one --model for all"
        )


def _print_comparison(result: Any) -> None:
    from zellige.report import comparison_footer, comparison_lines, comparison_table, spread_table

    _print_lines(comparison_lines(result))
    _console().print(comparison_table(result))
    if result.batches > 1:
        _print_lines([""])
        _console().print(spread_table(result))
    _print_lines(["", *comparison_footer(result)])


def _console(*, stderr: bool = False) -> Any:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=False)


def _print_lines(lines: list[str]) -> None:
    for line in lines:
        _console().print(line, markup=False, soft_wrap=True)


def _print_json(value: Any) -> None:
    from zellige.files import readable_json

    sys.stdout.write(readable_json(value))


def _print_error(error: ZelligeError, as_json: bool) -> None:
    if as_json:
        from zellige.files import readable_json

        sys.stderr.write(readable_json(error.as_dict()))
    else:
        sys.stderr.write(f"{error}\n")


def _last_frame(error: BaseException) -> str:
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return f"{Path(frame.tb_frame.f_code.co_filename).name}:{frame.tb_lineno}" if frame else ""


def _warn_drops(source: Any, drops: Any) -> None:
    from zellige.report import drop_lines

    total = sum(len(clips) for clips in source.clips.values())
    sys.stderr.write(
        "\n".join([f"warning: {source.label}: {drop_lines(drops, total)[0]}", *drop_lines(drops, total)[1:]]) + "\n"
    )


@contextlib.contextmanager
def _progress(title: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar on stderr, where that is a terminal."""
    from rich.progress import Progress

    console = _console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=total)
        yield lambda: bar.advance(task)


if __name__ == "__main__":
    main()
