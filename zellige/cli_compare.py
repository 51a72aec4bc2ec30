"""The compare command: every policy on every batch, by sums or in the simulator, on this process or on several."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from zellige.cli_arguments import refuse_overwriting
from zellige.cli_support import (
    AdditivityOption,
    BatchArguments,
    BatchesOption,
    BucketsOption,
    CheckpointChoice,
    CheckpointOption,
    ClusterOption,
    DeviceOption,
    EngineOption,
    FidelityChoice,
    FidelityOption,
    JitterOption,
    JsonOption,
    KeepFpsOption,
    KnapformerOption,
    ModelOption,
    PricesOption,
    ReplicasOption,
    ReserveOption,
    SeedOption,
    SetOption,
    ShardingChoice,
    ShardingOption,
    UspOption,
    complete_policy,
    console,
    planning_options,
    print_json,
    print_lines,
    progress,
    refuse_several,
    say,
    simulation_options,
    warn_drops,
    warn_fitting,
)

DRAWN_AHEAD = 100
"""The most batches that are read, and complained about, before the first is planned."""


def compare_command(
    arguments: BatchArguments,
    cluster: ClusterOption = "",
    model: ModelOption = "",
    sharding: ShardingOption = ShardingChoice.ZERO3,
    checkpoint: CheckpointOption = CheckpointChoice.FULL,
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", help="Only these policies (repeatable).", autocompletion=complete_policy),
    ] = None,
    engine: EngineOption = None,
    buckets: BucketsOption = "",
    keep_fps: KeepFpsOption = False,
    prices: PricesOption = "",
    reserve: ReserveOption = "",
    usp: UspOption = "",
    knapformer: KnapformerOption = "",
    batches: BatchesOption = 1,
    seed: SeedOption = 0,
    breakdown: Annotated[bool, typer.Option("--breakdown", help="Show compute, communication and waiting.")] = False,
    fidelity: FidelityOption = FidelityChoice.ADDITIVE,
    jitter: JitterOption = 0.0,
    replicas: ReplicasOption = 1,
    settings: SetOption = None,
    device: DeviceOption = "",
    additivity: AdditivityOption = False,
    sensitivity: Annotated[bool, typer.Option("--sensitivity", help="What each constant does to the verdict.")] = False,
    jobs: Annotated[int, typer.Option("--jobs", min=1, max=1024, help="Processes (needs joblib).")] = 1,
    out: Annotated[Path | None, typer.Option("--out", help="Results as JSONL; goes on where it stopped.")] = None,
    json: JsonOption = False,
) -> None:
    """Plan each batch with every policy and compare: step time, balance, communication, memory, gap to the bound.

    Exit 3 where no policy's plans fit in memory.
    """
    refuse_overwriting({"--out": out}, [*arguments, prices, cluster, model, buckets])
    options = planning_options(
        cluster, model, sharding, checkpoint, engine, buckets, keep_fps, prices, usp, knapformer, batches, seed,
        settings, device, reserve,
    )  # fmt: skip
    how = simulation_options(fidelity, jitter, replicas, seed, additivity=additivity)
    run = _Run(arguments, options, how, tuple(dict.fromkeys(policy or ())))
    if sensitivity:
        _refuse_with_sensitivity({"--out": out is not None, "--breakdown": breakdown, "--additivity": additivity})
        _explore(run, jobs, json)
        return
    result = run.compare(jobs, out)
    if json:
        print_json(result)
    else:
        _print_comparison(result, breakdown)
    _require_a_fit(result)


class _Run:
    """What is compared: the batches, in order, and the setting."""

    def __init__(self, arguments: list[str], options: Any, how: Any, policies: tuple[str, ...]) -> None:
        from zellige.plan import find_policy
        from zellige.sources import load_setting, read_sources

        for name in policies:
            find_policy(name)
        self.options = options
        self.sources = read_sources(arguments, options)
        pairs = [load_setting(source, options) for source in self.sources]
        refuse_several({(cluster.name, model.name) for cluster, model in pairs})
        self.cluster, self.model = pairs[0]
        warn_fitting(self.sources, options)
        self.num_batches = sum(len(source.clips) for source in self.sources)
        self._ahead = list(itertools.islice(self._draw(0), DRAWN_AHEAD))
        self.setting = self._setting(how, policies)

    def _setting(self, how: Any, policies: tuple[str, ...]) -> Any:
        from zellige.compare import SPEC_BATCHES, default_policies, run_spec
        from zellige.profile.host import table_warnings
        from zellige.sources import load_prices
        from zellige.sweep import Setting, Workshop

        options = self.options
        first = self._ahead[0]
        chosen = policies or default_policies(first.setup, self.num_batches)
        setting = Setting(
            cluster=self.cluster, model=self.model, sharding=options.sharding, checkpoint=options.checkpoint,
            engine=options.engine, policies=chosen, how=how, prices=load_prices(options.prices),
            reserve=options.reserve,
        )  # fmt: skip
        shop = Workshop(setting)
        self.first = shop.problem(first.batch, first.setup)
        say(*table_warnings(self.first.prices))
        if "knapformer-best" not in chosen or self.num_batches == 1:
            return setting
        spec = run_spec([shop.problem(task.batch, task.setup) for task in self._ahead[:SPEC_BATCHES]])
        return Setting(**{name: getattr(setting, name) for name in setting.__struct_fields__} | {"spec": spec})

    def _draw(self, start: int) -> Iterator[Any]:
        """Batches from number ``start`` on, with warnings on stderr."""
        from zellige.sources import kept_batches, source_setup
        from zellige.sweep import Task

        number = 0
        for source in self.sources:
            skipped = min(max(0, start - number), len(source.clips))
            number += skipped
            setup = source_setup(source, self.options)
            for batch in kept_batches(source, self.model, self.options, warn_drops, skipped):
                yield Task(number, batch, setup)
                number += 1

    def tasks(self, start: int = 0) -> Iterator[Any]:
        """Batches from number ``start`` on; those that were read ahead are not read again."""
        yield from self._ahead[start:]
        yield from self._draw(max(start, len(self._ahead))) if self.num_batches > len(self._ahead) else ()

    def compare(self, jobs: int, out: Path | None) -> Any:
        """Plan, simulate, and compare; results go to a file where one is named."""
        from zellige.compare import add_planning, make_comparison
        from zellige.sim.simulate import constant_sources
        from zellige.sim.state import state_traffic
        from zellige.sweep import run_sweep, strip

        how, policies = self.setting.how, self.setting.policies
        planning: dict[str, list[int]] = {}
        with contextlib.nullcontext([]) if out is None else self._file(out) as kept:
            done = kept.num_batches if out is not None else 0
            with progress("planning", (self.num_batches - done) * len(policies)) as advance:
                for outcomes in run_sweep(self.setting, self.tasks(done), jobs=jobs, progress=advance):
                    add_planning(planning, outcomes)
                    kept.append(strip(outcomes)) if out is not None else kept.extend(outcomes)
            sources: tuple[str, ...] = ()
            if how.fidelity != "additive":
                state = state_traffic(self.model, self.cluster, self.options.sharding)
                sources = constant_sources(self.cluster, state)
            return make_comparison(
                kept,
                planning,
                self.first,
                how=how,
                notes=tuple(source.note for source in self.sources[:1] if source.note),
                sources=sources,
                prices=self.first.prices.sources,
                paired=out is not None and self.num_batches > 1,
            )

    def _file(self, path: Path) -> Any:
        from zellige import __version__
        from zellige.errors import UsageError
        from zellige.files import digest
        from zellige.sweep_file import SweepFile, SweepHeader
        from zellige.units import count_of

        identities = [source.identity for source in self.sources]
        header = SweepHeader(
            digest=digest([self.setting, identities, __version__]),
            version=__version__,
            cluster=self.cluster.name,
            model=self.model.name,
            fidelity=self.setting.how.fidelity,
            policies=self.setting.policies,
            source=tuple(source.origin for source in self.sources),
        )
        file = SweepFile(path, header)
        if file.num_batches > self.num_batches:
            file.close()
            raise UsageError(
                f"{path} holds {count_of(file.num_batches, 'batch')}, and {self.num_batches} asked for",
                fix=f"--batches {file.num_batches}, or another --out",
            )
        return file


def _refuse_with_sensitivity(given: dict[str, bool]) -> None:
    from zellige.errors import UsageError

    ignored = [name for name, used in given.items() if used]
    if ignored:
        raise UsageError(f"--sensitivity makes no use of {', '.join(ignored)}", fix="one of them at a time")


def _explore(run: _Run, jobs: int, json: bool) -> None:
    from zellige.report_simulation import SENSITIVITY_LEGEND, sensitivity_lines, sensitivity_table
    from zellige.sensitivity import NUM_KNOBS, explore

    with progress("changing constants", NUM_KNOBS) as advance:
        result = explore(run.setting, list(run.tasks()), jobs=jobs, progress=advance)
    if json:
        print_json(result)
        return
    lines = sensitivity_lines(result)
    print_lines(lines[:1])
    console().print(sensitivity_table(result))
    print_lines(["", SENSITIVITY_LEGEND, "", *lines[1:]])


def _print_comparison(result: Any, breakdown: bool) -> None:
    from zellige import report, report_simulation

    simulated = result.fidelity != "additive"
    legend = report.COMPARISON_LEGEND + (f"; {report.SIMULATED_LEGEND}" if simulated else "")
    tables: list[tuple[bool, Callable[[Any], Any], str]] = [
        (True, report.comparison_table, legend),
        (breakdown and not simulated, report.breakdown_table, report.BREAKDOWN_LEGEND),
        (simulated, report_simulation.causes_table, report_simulation.CAUSES_LEGEND),
        (result.batches > 1, report.spread_table, report.SPREAD_LEGEND),
        (
            any(row.interval_ns for row in result.rows),
            report_simulation.paired_table,
            report_simulation.PAIRED_LEGEND,
        ),
    ]
    print_lines(report.comparison_lines(result))
    for wanted, table_of, explained in tables:
        if wanted:
            console().print(table_of(result))
            print_lines(["", explained, ""])
    if any(row.additivity for row in result.rows):
        for title, table in report_simulation.additivity_tables(result):
            print_lines([title])
            console().print(table)
            print_lines([""])
        print_lines([report_simulation.ADDITIVITY_LEGEND, ""])
    print_lines(report.comparison_footer(result))


def _require_a_fit(result: Any) -> None:
    """Raise :class:`NoRoomError` where no policy has a plan for every batch that fits in memory."""
    from zellige.errors import NoRoomError
    from zellige.units import count_of, format_bytes

    if any(row.fits for row in result.rows):
        return
    over = {row.policy: row.memory_over_bytes for row in result.rows if row.step_time_ns is not None}
    least = min(over, key=lambda policy: over[policy], default="")
    raise NoRoomError(
        "no policy's plans fit in memory",
        where=f"{count_of(result.batches, 'batch')} on {result.cluster},"
        f" {format_bytes(result.memory_limit_bytes)} usable a GPU",
        details=(f"the least is over it by {format_bytes(over[least])}, under {least}",) if least else (),
        fix="plan --micro-steps auto; more ranks, or fewer sequences a step",
    )
