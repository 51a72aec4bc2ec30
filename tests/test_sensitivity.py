"""Constants are varied one at a time, plans are made again, and the verdict flips where it does."""

from __future__ import annotations

import joblib
import msgspec
import pytest

from zellige import sensitivity
from zellige.catalog import load_cluster, load_model
from zellige.compare import compare, verdict_kind
from zellige.errors import UsageError
from zellige.outcomes import Fidelities
from zellige.placement import NO_SETUP, Problem
from zellige.prices import PriceTable
from zellige.sensitivity import FACTORS, NUM_KNOBS, VARIED, Sensitivity, deciding, explore, gain
from zellige.sim.what_if import KNOBS, what_if
from zellige.sources import build_problem
from zellige.sweep import Setting, Task
from zellige.workload import Batch, Sequence, make_bucket

MODEL, CLUSTER = load_model("wan2.1-t2v-1.3b"), load_cluster("a800x4")
POLICIES = ("dp", "static-coalesced", "zellige-paper-coalesced")
BUCKETS = tuple(make_bucket(MODEL, *shape) for shape in ((256, 256, 1), (1280, 720, 1), (1280, 720, 161)))
BATCH = Batch(
    name="test",
    sequences=tuple(Sequence(f"s{i}", BUCKETS[min(i // 12, 2)]) for i in range(26)),
    buckets=BUCKETS,
)
SETTING = Setting(
    cluster=CLUSTER, model=MODEL, sharding="zero3", checkpoint="full", engine=None, policies=POLICIES, how=Fidelities()
)


@pytest.fixture(scope="module")
def result() -> Sensitivity:
    steps = []
    found = explore(SETTING, [Task(0, BATCH, NO_SETUP)], progress=lambda: steps.append(1))
    assert len(steps) == NUM_KNOBS
    return found


def problem_under(setting: str) -> Problem:
    return build_problem(BATCH, cluster=what_if(CLUSTER, [setting]), model=MODEL)


def test_every_knob_is_varied_alone(result: Sensitivity) -> None:
    assert {effect.knob for effect in result.effects} == set(VARIED) - set(result.skipped)
    assert result.skipped == ("nic.bandwidth", "nic.latency"), "one node has no NICs"
    assert result.policies == POLICIES[1:]
    for effect in result.effects:
        assert tuple(point.factor for point in effect.points) == FACTORS
        assert effect.present == KNOBS[effect.knob].read(CLUSTER)
    swings = [effect.swing for effect in result.effects]
    assert swings == sorted(swings, reverse=True)
    assert msgspec.json.decode(msgspec.json.encode(result))["schema"] == "zellige.sensitivity/1"


def test_points_are_what_a_comparison_under_that_setting_says(result: Sensitivity) -> None:
    effects = {effect.knob: effect for effect in result.effects}
    for knob, place in (("link.bandwidth", 0), ("compute", 3)):
        point = effects[knob].points[place]
        there = compare([problem_under(f"{knob}={point.factor:g}x")], result.policies)
        assert point.gain == pytest.approx(gain(there.rows))
        assert point.verdict == verdict_kind(there.rows)
        assert point.step_time_ns == min(row.step_time_ns or 0 for row in there.rows)


def test_flips_are_where_the_verdict_changes(result: Sensitivity) -> None:
    flips = [effect for effect in result.effects if effect.flip.value is not None]
    assert flips, "this batch is near the edge"
    for effect in flips[:2]:
        value = effect.flip.value
        assert value is not None
        outside, inside = (0.97, 1.04) if value < effect.present else (1.03, 0.96)
        kinds = [
            verdict_kind(compare([problem_under(f"{effect.knob}={value * side:.6f}")], result.policies).rows)
            for side in (outside, inside)
        ]
        below, above = effect.flip.below, effect.flip.above
        assert kinds == ([below, above] if value < effect.present else [above, below])
        assert below != above


def test_jobs_do_not_show(result: Sensitivity, monkeypatch: pytest.MonkeyPatch) -> None:
    few = ("compute", "host.calls")
    monkeypatch.setattr(sensitivity, "VARIED", few)
    with joblib.parallel_config(backend="threading"):
        found = explore(SETTING, [Task(0, BATCH, NO_SETUP)], jobs=2)
    assert found.effects == tuple(effect for effect in result.effects if effect.knob in few)


def test_a_verdict_needs_its_two_sides() -> None:
    assert deciding(POLICIES) == POLICIES[1:]
    for policies in (("dp", "usp"), ("static-coalesced",), ("zellige-paper", "portfolio")):
        with pytest.raises(UsageError, match="a verdict compares"):
            deciding(policies)


def test_given_prices_do_not_move() -> None:
    prices: PriceTable = build_problem(BATCH, cluster=CLUSTER, model=MODEL).prices
    with pytest.raises(UsageError, match="do not change"):
        explore(msgspec.structs.replace(SETTING, prices=prices), [Task(0, BATCH, NO_SETUP)])
