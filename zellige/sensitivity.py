"""What every constant of a cluster does to the verdict: one at a time, by 10 and 50 %, and where the verdict flips.

The policies that decide the verdict plan again at every point, under prices that are computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import msgspec

from zellige.cluster import Cluster
from zellige.compare import best_moldable, best_static, verdict_kind
from zellige.errors import UsageError
from zellige.files import canonical_json
from zellige.plan import find_policy
from zellige.rows import Row, best_row, tally
from zellige.sim.what_if import KNOBS, Flip, find_knob, flip_point
from zellige.sweep import Setting, Task, Workshop, in_parallel

FACTORS = (0.5, 0.9, 1.1, 1.5)

WIDEST = 8.0
"""A flip is looked for between an eighth of a constant and eight times it."""

VARIED = tuple(name for name in KNOBS if name != "nic.count")
"""The knobs that are varied: NICs are whole, and ``nic.bandwidth`` says the same of all of them."""

NUM_KNOBS = len(VARIED)


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict with one knob at ``factor`` times its value.

    ``gain`` is by how much the moldable plan's step is shorter than that of the best static split under the coalesced
    engine (None where one of them does not fit), ``step_time_ns`` the shortest step.
    """

    factor: float
    value: float
    verdict: str
    best: str
    step_time_ns: int
    gain: float | None


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """One knob: its unit and present value, the points around it, and the nearest flip of the verdict."""

    knob: str
    unit: str
    present: float
    points: tuple[Point, ...]
    flip: Flip

    @property
    def swing(self) -> float:
        """How far apart the gains are."""
        gains = [point.gain for point in self.points if point.gain is not None]
        return max(gains) - min(gains) if gains else 0.0


class Sensitivity(msgspec.Struct, frozen=True, kw_only=True):
    """Effects by swing, the largest first; ``present`` is the verdict as things are."""

    SCHEMA: ClassVar[str] = "zellige.sensitivity/1"

    schema: str = "zellige.sensitivity/1"
    cluster: str
    model: str
    fidelity: str
    batches: int
    policies: tuple[str, ...]
    present: Point
    effects: tuple[Effect, ...]
    skipped: tuple[str, ...]


def explore(
    setting: Setting, tasks: Sequence[Task], *, jobs: int = 1, progress: Callable[[], None] = lambda: None
) -> Sensitivity:
    """Vary every knob that the cluster has; ``progress`` is called for each of all knobs.

    Raises :class:`UsageError` for given prices, which no setting changes, and for policies without a verdict.
    """
    setting = msgspec.structs.replace(setting, policies=deciding(setting.policies))
    if setting.prices is not None:
        raise UsageError("given prices do not change with the cluster", fix="leave --prices out")
    absent = tuple(name for name in VARIED if name.startswith("nic.") and setting.cluster.network is None)
    present = _point(setting, tasks, setting.cluster, 1.0, 0.0)
    for _ in absent:
        progress()
    names = [name for name in VARIED if name not in absent]
    told = canonical_json(setting)
    work = [(told, tuple(tasks), name, present) for name in names]
    effects = []
    for effect in map(_effect, work) if jobs == 1 else in_parallel(_effect, work, jobs):
        effects.append(effect)
        progress()
    return Sensitivity(
        cluster=setting.cluster.name,
        model=setting.model.name,
        fidelity=setting.how.fidelity,
        batches=len(tasks),
        policies=setting.policies,
        present=present,
        effects=tuple(sorted(effects, key=lambda effect: (-effect.swing, effect.knob))),
        skipped=absent,
    )


def deciding(policies: Sequence[str]) -> tuple[str, ...]:
    """The policies that decide the verdict: the best static split, and the moldable ones."""
    chosen = tuple(name for name in policies if name == "static-coalesced" or find_policy(name).moldable)
    if "static-coalesced" not in chosen or len(chosen) < 2:
        raise UsageError(
            "a verdict compares static-coalesced with a moldable policy",
            fix="--policy static-coalesced --policy zellige-paper-coalesced, or no --policy",
        )
    return chosen


def _effect(work: tuple[bytes, tuple[Task, ...], str, Point]) -> Effect:
    told, tasks, name, present = work
    setting, knob = msgspec.json.decode(told, type=Setting), find_knob(name)
    value = knob.read(setting.cluster)
    known = {round(value, 9): present}

    def at(cluster: Cluster) -> Point:
        key = knob.read(cluster)
        if round(key, 9) not in known:
            known[round(key, 9)] = _point(setting, tasks, cluster, key / value, key)
        return known[round(key, 9)]

    points = tuple(at(knob.write(setting.cluster, value * factor)) for factor in FACTORS)
    flip = flip_point(setting.cluster, name, lambda cluster: at(cluster).verdict, widest=WIDEST)
    return Effect(knob=name, unit=knob.unit, present=value, points=points, flip=flip)


def _point(setting: Setting, tasks: Sequence[Task], cluster: Cluster, factor: float, value: float) -> Point:
    shop = Workshop(msgspec.structs.replace(setting, cluster=cluster))
    rows, _ = tally([outcome for task in tasks for outcome in shop.outcomes(task)], {}, paired=False)
    best = best_row(rows)
    return Point(
        factor=round(factor, 6),
        value=value,
        verdict=verdict_kind(rows),
        best=best.policy if best is not None else "",
        step_time_ns=(best.step_time_ns or 0) if best is not None else 0,
        gain=gain(rows),
    )


def gain(rows: Sequence[Row]) -> float | None:
    """By how much the best moldable step is shorter than the best static one; None where one does not fit."""
    static, moldable = best_static(rows), best_moldable(rows)
    return 1 - moldable[1] / static[1] if static is not None and moldable is not None else None
