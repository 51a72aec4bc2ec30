"""What the commands share: option types, printing, progress, errors. Nothing heavy is imported here."""

from __future__ import annotations

import contextlib
import enum
import os
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from zellige.errors import ZelligeError


def complete_catalog(incomplete: str) -> list[str]:
    """Bundled names of any kind that start with what was typed."""
    from zellige.catalog import KINDS, names

    return [name for kind in KINDS for name in names(kind) if name.startswith(incomplete)]


def _complete(kind: str) -> Callable[[str], list[str]]:
    def names_of_kind(incomplete: str) -> list[str]:
        from zellige.catalog import names

        return [name for name in names(kind) if name.startswith(incomplete)]

    return names_of_kind


def complete_batch(incomplete: str) -> list[str]:
    """Workloads, and generators behind ``gen:``."""
    from zellige.catalog import names

    found = [*names("workloads"), *(f"gen:{name}" for name in names("generators"))]
    return [name for name in found if name.startswith(incomplete)]


def complete_policy(incomplete: str) -> list[str]:
    """Policies by name."""
    from zellige.plan import POLICIES

    return [name for name in POLICIES if name.startswith(incomplete)]


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


class FidelityChoice(enum.StrEnum):
    """How closely a step is simulated."""

    ADDITIVE = "additive"
    EVENT = "event"
    FLOW = "flow"


BatchArguments = Annotated[
    list[str],
    typer.Argument(
        metavar="BATCH...",
        help="Clip lists (.jsonl, .csv, .parquet), workloads, or gen:NAME.",
        autocompletion=complete_batch,
    ),
]
BatchArgument = Annotated[
    str,
    typer.Argument(metavar="BATCH", help="A clip list, a workload, or gen:NAME.", autocompletion=complete_batch),
]
ClusterOption = Annotated[
    str, typer.Option("--cluster", help="A cluster's name or .toml file.", autocompletion=_complete("clusters"))
]
ModelOption = Annotated[
    str, typer.Option("--model", help="A model's name or .toml file.", autocompletion=_complete("models"))
]
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
BatchesOption = Annotated[int, typer.Option("--batches", min=1, max=100_000, help="How many batches gen:NAME draws.")]
MAX_SEED = 2**62
"""Seeds beside it, of replicas and ranks, still fit into 64 bits."""

SeedOption = Annotated[
    int, typer.Option("--seed", min=0, max=MAX_SEED, help="Seed of gen:NAME, and of jitter where there is any.")
]
KnapformerOption = Annotated[str, typer.Option("--knapformer", help="KnapFormer's bags, as g2n1+g6n1.")]
FidelityOption = Annotated[
    FidelityChoice, typer.Option("--fidelity", help="Sums of prices, events, or events with shared links.")
]
JitterOption = Annotated[float, typer.Option("--jitter", min=0, max=1, help="Lognormal sigma of every operation.")]
ReplicasOption = Annotated[
    int, typer.Option("--replicas", min=1, max=10_000, help="Steps under as many seeds, the same for all policies.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KNOB=VALUE", help="What if: nic.bandwidth=2x, link.latency=5us (repeatable)."),
]
DeviceOption = Annotated[
    str, typer.Option("--device", help="What if: another device.", autocompletion=_complete("devices"))
]
AdditivityOption = Annotated[
    bool, typer.Option("--additivity", help="How far the simulator is from the sums, by cause.")
]
ReserveOption = Annotated[
    str, typer.Option("--reserve", metavar="SHARE", help="Keep so much of a GPU's memory free: 5%, 2GB.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON; errors too, on stderr.")]


def planning_options(
    cluster: str,
    model: str,
    sharding: ShardingChoice,
    checkpoint: CheckpointChoice,
    engine: EngineChoice | None,
    buckets: str,
    keep_fps: bool,
    prices: str,
    usp: str = "",
    knapformer: str = "",
    batches: int = 1,
    seed: int = 0,
    settings: list[str] | None = None,
    device: str = "",
    reserve: str = "",
) -> Any:
    """Parse the options that planning commands share; raises where a value cannot be read."""
    from zellige.shards import parse_config
    from zellige.sources import Options

    if usp:
        parse_config(usp)
    if knapformer:
        from zellige.plan.bags import parse_bag_spec

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
        batches=batches,
        seed=seed,
        settings=tuple(settings or ()),
        device=device,
        reserve=reserve,
    )


def simulation_options(
    fidelity: FidelityChoice,
    jitter: float,
    replicas: int,
    seed: int,
    *,
    additivity: bool = False,
    state: bool = True,
    trace: bool = False,
) -> Any:
    """How to simulate, as the options say; raises for noise that would be ignored."""
    from zellige.outcomes import Fidelities
    from zellige.sim import Noise, SimOptions

    noise = Noise(seed=seed if jitter else 0, jitter=jitter)
    options = SimOptions(trace=trace, state_traffic=state, noise=noise)
    return Fidelities(fidelity=fidelity.value, options=options, replicas=replicas, additivity=additivity)


def console(*, stderr: bool = False) -> Any:
    """A rich console on stdout or stderr."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=False)


def print_lines(lines: Iterable[str], hang: int = 2) -> None:
    """Print lines, wrapped to the terminal (or to COLUMNS) with what follows indented by ``hang``.

    Into pipes and files they go as they are.
    """
    _write(sys.stdout, lines, console(), hang)


def say(*lines: str) -> None:
    """The same on stderr: notes, warnings and errors."""
    _write(sys.stderr, lines, console(stderr=True))


def _write(stream: Any, lines: Iterable[str], screen: Any, hang: int = 2) -> None:
    wide = screen.width if screen.is_terminal or os.environ.get("COLUMNS") else 0
    for line in (line for text in lines for line in text.split("\n")):
        stream.write("\n".join(wrapped(line, wide, hang) if wide else [line]) + "\n")


MIN_COLUMNS = 20


def wrapped(line: str, columns: int, hang: int = 2) -> list[str]:
    """A line in parts of at most so many columns, the later ones indented; words that are longer stay whole."""
    indent = line[: len(line) - len(line.lstrip(" "))]
    parts = textwrap.wrap(
        line, max(columns, MIN_COLUMNS), subsequent_indent=indent + " " * hang, break_long_words=False,
        break_on_hyphens=False, replace_whitespace=False, expand_tabs=False,
    )  # fmt: skip
    return parts or [""]


def print_json(value: Any) -> None:
    """Print a value as JSON for people."""
    from zellige.files import readable_json

    sys.stdout.write(readable_json(value))


def print_error(error: ZelligeError, as_json: bool) -> None:
    """Print an error on stderr, as text or as JSON."""
    if as_json:
        from zellige.files import readable_json

        sys.stderr.write(readable_json(error.as_dict()))
    else:
        say(*str(error).splitlines())


def last_frame(error: BaseException) -> str:
    """File and line where an exception was raised."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return f"{Path(frame.tb_frame.f_code.co_filename).name}:{frame.tb_lineno}" if frame else ""


def warn_fitting(sources: Iterable[Any], options: Any) -> None:
    """Say on stderr, once for a file or workload, how its clips were read and what they go through to train."""
    from zellige.fitting import fitting_lines
    from zellige.sources import GeneratedClips, load_setting

    for source in sources:
        if not isinstance(source.clips, GeneratedClips):
            _, model = load_setting(source, options)
            say(*(f"note: {line}" for line in fitting_lines(source, model, options)))


def warn_drops(source: Any, drops: Any) -> None:
    """Say on stderr which clips were dropped, and why."""
    from zellige.report import drop_lines

    first, *more = drop_lines(drops, sum(len(clips) for clips in source.clips.values()))
    say(f"warning: {source.label}: {first}", *more)


SECONDS_BETWEEN_LINES = 10


@contextlib.contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[], None]]:
    """Progress on stderr: a bar where that is a terminal, else a line every ten seconds."""
    from rich.progress import Progress

    terminal = console(stderr=True)
    if not terminal.is_terminal:
        yield _progress_lines(title, total)
        return
    with Progress(console=terminal, transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda: bar.advance(task)


def _progress_lines(title: str, total: int) -> Callable[[], None]:
    done, tell = 0, _seldom(title)

    def advance() -> None:
        nonlocal done
        done += 1
        tell(f"{done} of {total}")

    return advance


@contextlib.contextmanager
def open_progress(title: str) -> Iterator[Callable[[str], None]]:
    """Progress without a known end, in words: beside a bar that only moves, or in lines, as with :func:`progress`."""
    from rich.progress import BarColumn, Progress, TextColumn

    terminal = console(stderr=True)
    if not terminal.is_terminal:
        yield _seldom(title)
        return
    with Progress(TextColumn("{task.description}"), BarColumn(), console=terminal, transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda text: bar.update(task, description=f"{title}: {text}")


def _seldom(title: str) -> Callable[[str], None]:
    """Says what it is told on stderr, but no line sooner than ten seconds after the one before."""
    last = time.monotonic()

    def tell(text: str) -> None:
        nonlocal last
        if time.monotonic() - last > SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            say(f"{title}: {text}")

    return tell


def require_one_setting(problems: list[Any]) -> None:
    """Refuse problems that are for different clusters or models."""
    refuse_several({(problem.cluster.name, problem.model.name) for problem in problems})


def refuse_several(names: set[tuple[str, str]]) -> None:
    """Refuse more than one pair of cluster and model."""
    from zellige.errors import UsageError

    settings = sorted(names)
    if len(settings) > 1:
        listed = ", ".join(f"{model} on {cluster}" for cluster, model in settings)
        raise UsageError(
            f"the batches are for different set-ups: {listed}", fix="one --cluster and one --model for all"
        )
