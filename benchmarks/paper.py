"""The suites of arXiv 2608.01150 against this model: step times, slow-downs, and what every term contributes.

    python benchmarks/paper.py [SUITE ...] [--fidelity additive|event|flow] [--policy NAME ...] [--terms] [--json]

Every policy is priced (or simulated) under its own engine and under the coalesced one, so that what coalescing wins and
what placement wins can be told apart. ``--terms`` switches the model's terms off one at a time, by giving a constant a
value that makes it vanish; everything else, plans included, is computed again. Published figures are second-hand
readings of the paper's plots; the batches are inferred (see their files).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
from collections.abc import Callable

import msgspec

from zellige.catalog import load_cluster, load_model
from zellige.cluster import Cluster
from zellige.model import ModelSpec
from zellige.outcomes import Fidelities, Judge, Outcome
from zellige.placement import Engine
from zellige.plan import find_policy
from zellige.sim.options import FIDELITIES
from zellige.sources import Options, batches_of, build_problem, read_source

SHARES = (35, 40, 45, 50, 55, 60)
POLICIES = ("dp", "adaptive-load", "usp", "knapformer", "static", "zellige-paper", "zellige", "portfolio")
OURS: Engine = "coalesced"
BASE = "zellige-paper"
"""Slow-downs are against this policy under its own engine, as published."""

PUBLISHED_SECONDS = {BASE: (199, 238), "usp": (273, 305), "knapformer": (260, 260), "dp": (488, 488)}
"""Of the 10 s high suite, V35 and V60; dp stands for AdaptiveLoad, whose sequences are whole too."""

SUITES: dict[str, dict[str, tuple[float, float]]] = {
    "paper-10s-high": {"knapformer": (1.31, 1.10), "usp": (1.37, 1.28), "dp": (2.45, 2.06)},
    "paper-10s-low": {},
    "paper-15s-a800x16": {"knapformer": (1.48, 1.12), "usp": (2.06, 1.63)},
    "paper-15s-a6000x32": {},
}
"""Published slow-downs at V35 and V60; AdaptiveLoad is out of memory on the 15 s suite, the others were not read."""

ATTRIBUTED = "paper-10s-high"
PUBLISHED_MEANS = {"usp": 1.33, "knapformer": 1.22}
NOTHING, EVERYTHING = 1e-9, 1e9

Change = Callable[[Cluster, ModelSpec], tuple[Cluster, ModelSpec]]
Steps = dict[str, Outcome]
"""Outcomes by label: the policy under its own engine, or ``POLICY+coalesced``."""

replace = msgspec.structs.replace


def main() -> None:
    parser = argparse.ArgumentParser(description="Published step times against this model.")
    parser.add_argument("suites", nargs="*", help=", ".join(SUITES))
    parser.add_argument("--fidelity", choices=FIDELITIES, default="additive")
    parser.add_argument("--policy", action="append", help="only these (repeatable); zellige-paper is always there")
    parser.add_argument("--terms", action="store_true", help=f"switch terms off one at a time on {ATTRIBUTED}")
    parser.add_argument("--json", action="store_true")
    told = parser.parse_args()
    how = Fidelities(fidelity=told.fidelity)
    policies = tuple(dict.fromkeys([*(told.policy or POLICIES), BASE]))
    report = {}
    for suite in told.suites or SUITES:
        shares = {share: run(suite, share, unchanged, policies, how) for share in SHARES}
        without = {}
        if told.terms and suite == ATTRIBUTED:
            for name, change in TERMS.items():
                without[name] = slow_downs({s: run(suite, s, change, policies, how) for s in SHARES})
        report[suite] = {
            "fidelity": told.fidelity,
            "seconds": {n: [shares[s][n].step_time_ns / 1e9 for s in SHARES] for n in labels(shares)},
            "fits": {n: [shares[s][n].fits for s in SHARES] for n in labels(shares)},
            "no_plan": {n: shares[35][n].reason for n in shares[35] if n not in labels(shares)},
            "slow_downs": slow_downs(shares),
            "coalescing_wins": coalescing_wins(shares),
            "placement_wins": placement_wins(shares),
            "without": without,
        }
        if not told.json:
            print(f"\n{suite}, fidelity {told.fidelity}", flush=True)
            print_steps(suite, shares)
            print_slow_downs(suite, shares)
            print_wins(shares)
            print_terms(slow_downs(shares), without)
    if told.json:
        json.dump(report, sys.stdout, indent=2)
        print()


def run(suite: str, share: int, change: Change, policies: tuple[str, ...], how: Fidelities) -> Steps:
    """Every policy under its own engine, and under ours where that is another."""
    source = read_source(f"{suite}-v{share}", Options())
    cluster, model = change(load_cluster(source.cluster), load_model(source.model))
    batch, _ = next(iter(batches_of(source, model, Options())))
    problem = build_problem(batch, cluster=cluster, model=model, setup=source.setup)
    judge = Judge(how)
    own = judge.outcomes(problem, [(policy, problem) for policy in policies])
    others = [policy for policy in policies if find_policy(policy).engine != OURS]
    posed = dataclasses.replace(problem, engine=OURS)
    ours = judge.outcomes(posed, [(policy, posed) for policy in others], engine=OURS)
    return {o.policy: o for o in own} | {f"{o.policy}+{OURS}": o for o in ours}


def labels(shares: dict[int, Steps]) -> list[str]:
    """What has a step at every V."""
    return [label for label in shares[SHARES[0]] if not any(steps[label].reason for steps in shares.values())]


def ratios(shares: dict[int, Steps], first: str, second: str) -> list[float]:
    """A step over another, by V."""
    return [steps[first].step_time_ns / steps[second].step_time_ns for steps in shares.values()]


def slow_downs(shares: dict[int, Steps]) -> dict[str, float]:
    """Mean over V of each step over that of ``zellige-paper``."""
    return {label: statistics.fmean(ratios(shares, label, BASE)) for label in labels(shares)}


def coalescing_wins(shares: dict[int, Steps]) -> dict[str, float]:
    """By how much a policy's step is longer under its own engine than under ours, planned for each; mean over V."""
    there = labels(shares)
    return {
        label: statistics.fmean(ratios(shares, label, f"{label}+{OURS}")) - 1
        for label in there
        if f"{label}+{OURS}" in there
    }


def placement_wins(shares: dict[int, Steps]) -> dict[str, float]:
    """By how much each policy's step is longer than that of ``zellige-paper``, all under our engine, mean over V."""
    under_ours = [n for n in labels(shares) if n.endswith(f"+{OURS}") or find_policy(n).engine == OURS]
    return {label: statistics.fmean(ratios(shares, label, f"{BASE}+{OURS}")) - 1 for label in under_ours}


def print_steps(suite: str, shares: dict[int, Steps]) -> None:
    print("step seconds, and in brackets communication relative to USP; ! is over the memory of a GPU")
    print(f"{'':26s}" + "".join(f"{f'V{share}':>15s}" for share in SHARES))
    for label in labels(shares):
        cells = []
        for steps in shares.values():
            one = steps[label]
            moved = one.comm_bytes / one.usp_bytes if one.usp_bytes > 0 else 0.0
            cells.append(f"{one.step_time_ns / 1e9:8.1f} ({moved:.2f})" + (" " if one.fits else "!"))
        tail = ""
        if suite == ATTRIBUTED and label in PUBLISHED_SECONDS:
            tail = "  published {} -> {}".format(*PUBLISHED_SECONDS[label])
        print(f"{label:26s}" + "".join(cells) + tail)
    for label, one in shares[SHARES[0]].items():
        if label not in labels(shares):
            print(f"{label:26s}no step at some V: {one.reason or 'see the other V'}")
    planning = [steps[BASE].planning_ns / 1e6 for steps in shares.values()]
    print(f"{BASE} plans in " + ", ".join(f"{ms:.0f}" for ms in planning) + " ms")


def print_slow_downs(suite: str, shares: dict[int, Steps]) -> None:
    print(f"\nslow-down against {BASE}, V35 -> V60: published, and here")
    for label in labels(shares):
        if label == BASE:
            continue
        here = ratios(shares, label, BASE)
        there = "{:.2f} -> {:.2f}".format(*SUITES[suite][label]) if label in SUITES[suite] else "-"
        print(f"{label:26s}{there:>16s}{here[0]:8.2f} -> {here[-1]:.2f}")


def print_wins(shares: dict[int, Steps]) -> None:
    print("\nmean over V, how much longer a step is:")
    for label, won in coalescing_wins(shares).items():
        print(f"  {label} under its own engine than coalesced (what coalescing wins): {100 * won:+.1f} %")
    for label, won in placement_wins(shares).items():
        print(f"  {label} than {BASE}, both coalesced (what placement wins): {100 * won:+.1f} %")


def print_terms(full: dict[str, float], without: dict[str, dict[str, float]]) -> None:
    if not without:
        return
    shown = [label for label in full if label != BASE and all(label in values for values in without.values())]
    print(f"\nmean slow-down against {BASE}")
    print(f"{'':34s}" + "".join(f"{label:>25s}" for label in shown))
    print(f"{'published':34s}" + "".join(f"{PUBLISHED_MEANS.get(label, float('nan')):25.2f}" for label in shown))
    print(f"{'all terms':34s}" + "".join(f"{full[label]:25.3f}" for label in shown))
    for name, values in without.items():
        print(f"{'without ' + name:34s}" + "".join(f"{values[label]:25.3f}" for label in shown))


def unchanged(cluster: Cluster, model: ModelSpec) -> tuple[Cluster, ModelSpec]:
    return cluster, model


def without_host(cluster: Cluster, model: ModelSpec) -> tuple[Cluster, ModelSpec]:
    return replace(cluster, host=replace(cluster.host, collective_us=NOTHING, ring_step_us=NOTHING)), model


def without_latency(cluster: Cluster, model: ModelSpec) -> tuple[Cluster, ModelSpec]:
    fits = tuple(replace(fit, latency_us=NOTHING) for fit in cluster.node_link.fits)
    return replace(cluster, node_link=replace(cluster.node_link, fits=fits)), model


def without_transfer(cluster: Cluster, model: ModelSpec) -> tuple[Cluster, ModelSpec]:
    fits = tuple(replace(fit, bus_gb_per_s=EVERYTHING) for fit in cluster.node_link.fits)
    return replace(cluster, node_link=replace(cluster.node_link, fits=fits)), model


def without_length_efficiency(cluster: Cluster, model: ModelSpec) -> tuple[Cluster, ModelSpec]:
    attention = replace(cluster.device.attention, points=cluster.device.attention.points[-1:])
    return replace(cluster, device=replace(cluster.device, attention=attention)), model


def without_elementwise(cluster: Cluster, model: ModelSpec) -> tuple[Cluster, ModelSpec]:
    memory = replace(cluster.device.memory, bandwidth_gb_per_s=EVERYTHING)
    return replace(cluster, device=replace(cluster.device, memory=memory)), model


def without_text(cluster: Cluster, model: ModelSpec) -> tuple[Cluster, ModelSpec]:
    return cluster, replace(model, text=replace(model.text, tokens=0))


TERMS: dict[str, Change] = {
    "host time of calls": without_host,
    "latency of calls": without_latency,
    "transfer": without_transfer,
    "attention efficiency by length": without_length_efficiency,
    "elementwise passes and merges": without_elementwise,
    "text side (K, V, cross-attention)": without_text,
}


if __name__ == "__main__":
    main()
