"""Many batches of one setting, on one process or several: every bucket priced once, every make-up planned once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import NamedTuple, TypeVar

import msgspec

from zellige.cluster import Cluster
from zellige.compare import pose_one
from zellige.errors import MissingExtraError
from zellige.files import canonical_json
from zellige.memory import Checkpoint, Sharding
from zellige.model import ModelSpec
from zellige.outcomes import Fidelities, Judge, Outcome
from zellige.placement import Engine, Problem, Setup
from zellige.plan.cache import PlanCache
from zellige.price_book import PriceBook
from zellige.prices import PriceTable
from zellige.sources import build_problem, price_book
from zellige.units import count_of
from zellige.workload import Batch

T = TypeVar("T")
R = TypeVar("R")

KEPT_PLANS = 256
"""Plans that a process keeps."""

TASKS_A_ROUND = 4
"""Batches that each process is given at a time: results are written, and progress is shown, after each round."""


class Setting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that outcomes depend on, besides the batches. ``spec`` is KnapFormer's best specification over the run."""

    cluster: Cluster
    model: ModelSpec
    sharding: Sharding
    checkpoint: Checkpoint
    engine: Engine | None
    policies: tuple[str, ...]
    how: Fidelities
    prices: PriceTable | None = None
    spec: str = ""
    reserve: str = ""


class Task(NamedTuple):
    """One batch of a sweep: its number, and what the baselines are told."""

    number: int
    batch: Batch
    setup: Setup


class Workshop:
    """What a process keeps from batch to batch of a setting."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.judge = Judge(setting.how, PlanCache(KEPT_PLANS).plan)
        self._prices: PriceTable | PriceBook = setting.prices or price_book(
            setting.model, setting.cluster, setting.checkpoint
        )

    def problem(self, batch: Batch, setup: Setup) -> Problem:
        """The problem of a batch."""
        setting = self.setting
        return build_problem(
            batch,
            cluster=setting.cluster,
            model=setting.model,
            sharding=setting.sharding,
            checkpoint=setting.checkpoint,
            prices=self._prices,
            setup=setup,
            reserve=setting.reserve,
        )

    def outcomes(self, task: Task, progress: Callable[[], None] = lambda: None) -> list[Outcome]:
        """A batch under all policies."""
        setting, problem = self.setting, self.problem(task.batch, task.setup)
        posed = [(policy, pose_one(problem, policy, setting.spec)) for policy in setting.policies]
        return self.judge.outcomes(problem, posed, task.number, setting.engine, progress)


@lru_cache(maxsize=2)
def workshop(setting: bytes) -> Workshop:
    """The process's workshop for a setting, as canonical JSON."""
    return Workshop(msgspec.json.decode(setting, type=Setting))


def run_sweep(
    setting: Setting, tasks: Iterable[Task], *, jobs: int = 1, progress: Callable[[], None] = lambda: None
) -> Iterator[list[Outcome]]:
    """The outcomes of every batch, batch by batch in order, the same whatever ``jobs``.

    ``progress`` is called for every plan. Raises :class:`MissingExtraError` for several jobs without joblib.
    """
    told = canonical_json(setting)
    if jobs == 1:
        for task in tasks:
            yield workshop(told).outcomes(task, progress)
        return
    for outcomes in in_parallel(_run_task, ((told, task) for task in tasks), jobs):
        for _ in setting.policies:
            progress()
        yield outcomes


def _run_task(work: tuple[bytes, Task]) -> list[Outcome]:
    setting, task = work
    return workshop(setting).outcomes(task)


def in_parallel(function: Callable[[T], R], work: Iterable[T], jobs: int) -> Iterator[R]:
    """Results in order, by joblib on ``jobs`` processes (loky, or the back end that ``joblib.parallel_config`` names).

    Work is taken round by round, as lists: that is what all back ends can do, in bounded memory.
    """
    try:
        import joblib
    except ModuleNotFoundError:
        raise MissingExtraError(
            f"{count_of(jobs, 'job')} need joblib", fix="pip install -e '.[sweep]' in the checkout, or --jobs 1"
        ) from None
    pending = iter(work)
    with joblib.Parallel(n_jobs=jobs) as parallel:
        while batch := list(islice(pending, TASKS_A_ROUND * jobs)):
            yield from parallel(joblib.delayed(function)(item) for item in batch)


def strip(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Outcomes without what differs from run to run."""
    return [msgspec.structs.replace(outcome, planning_ns=0) for outcome in outcomes]
