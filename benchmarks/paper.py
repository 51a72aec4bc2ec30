"""The suites of arXiv 2608.01150 against this model: step times, slow-downs, and what every term contributes.

    python benchmarks/paper.py [SUITE ...] [--json]

A term is switched off by giving its constant a value that makes it vanish; everything else, plans included, is computed
again. Published figures are second-hand readings of the paper's plots; the batches are inferred (see their files).
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable

import msgspec

from zellige.catalog import load_cluster, load_model
from zellige.cluster import Cluster
from zellige.compare import build_problem
from zellige.model import ModelSpec
from zellige.placement import Plan
from zellige.plan import plan_batch
from zellige.sources import Options, batches_of, read_source

SHARES = (35, 40, 45, 50, 55, 60)
POLICIES = ("dp", "usp", "knapformer", "static", "static-coalesced", "zellige-paper", "zellige-paper-coalesced")
PUBLISHED = {"usp": 1.33, "knapformer": 1.22}
PUBLISHED_SECONDS = {"zellige-paper": (199, 238), "usp": (273, 305), "knapformer": (260, 260), "dp": (488, 488)}
SUITES = {
    "paper-10s-high": "KnapFormer 1.31 -> 1.10, USP 1.37 -> 1.28, AdaptiveLoad 2.45 -> 2.06",
    "paper-10s-low": "not read",
    "paper-15s-a800x16": "KnapFormer 1.12-1.48, USP 1.63-2.06, AdaptiveLoad out of memory",
    "paper-15s-a6000x32": "not read",
}
ATTRIBUTED = "paper-10s-high"
NOTHING, EVERYTHING = 1e-9, 1e9

Change = Callable[[Cluster, ModelSpec], tuple[Cluster, ModelSpec]]
replace = msgspec.structs.replace


def main() -> None:
    chosen = [name for name in sys.argv[1:] if not name.startswith("-")] or list(SUITES)
    report = {}
    for suite in chosen:
        plans = {share: run(suite, share, unchanged) for share in SHARES}
        without = {}
        if suite == ATTRIBUTED:
            without = {name: slow_downs({s: run(suite, s, change) for s in SHARES}) for name, change in TERMS.items()}
        if "--json" not in sys.argv:
            print(f"\n{suite} (published slow-downs against Zellige, V35 -> V60: {SUITES[suite]})")
            print_steps(suite, plans)
            print_attribution(slow_downs(plans), without)
        report[suite] = {
            "seconds": {p: [plans[s][p].makespan_ns / 1e9 for s in SHARES] for p in POLICIES},
            "slow_downs": slow_downs(plans),
            "without": without,
        }
    if "--json" in sys.argv:
        print(json.dumps(report, indent=2))


def run(suite: str, share: int, change: Change) -> dict[str, Plan]:
    source = read_source(f"{suite}-v{share}", Options())
    cluster, model = change(load_cluster(source.cluster), load_model(source.model))
    batch, _ = next(iter(batches_of(source, model, Options())))
    problem = build_problem(batch, cluster=cluster, model=model, setup=source.setup)
    return {policy: plan_batch(problem, policy) for policy in POLICIES}


def slow_downs(plans: dict[int, dict[str, Plan]]) -> dict[str, float]:
    """Mean over V of each policy's step over that of ``zellige-paper``."""
    return {
        policy: statistics.fmean(p[policy].makespan_ns / p["zellige-paper"].makespan_ns for p in plans.values())
        for policy in POLICIES
    }


def print_steps(suite: str, plans: dict[int, dict[str, Plan]]) -> None:
    print("step seconds, and in brackets communication relative to USP")
    print(f"{'policy':26s}" + "".join(f"{f'V{share}':>15s}" for share in SHARES))
    for policy in POLICIES:
        cells = []
        for share in SHARES:
            plan, usp = plans[share][policy], plans[share]["usp"]
            moved = plan.comm_bytes / usp.comm_bytes
            cells.append(f"{plan.makespan_ns / 1e9:8.1f} ({moved:.2f})" + (" " if plan.fits else "!"))
        tail = ""
        if suite == ATTRIBUTED and policy in PUBLISHED_SECONDS:
            tail = "  published {} -> {}".format(*PUBLISHED_SECONDS[policy])
        print(f"{policy:26s}" + "".join(cells) + tail)
    over = {
        policy: max((plan[policy].peak_memory_bytes - plan[policy].memory_limit_bytes) / 1e9 for plan in plans.values())
        for policy in POLICIES
    }
    listed = ", ".join(f"{policy} by up to {value:.0f} GB" for policy, value in over.items() if value > 0)
    print(f"! over the memory of a GPU by this memory model: {listed or 'none'}")
    planning = [plans[share]["zellige-paper"].solver.planning_ns / 1e6 for share in SHARES]
    print("zellige-paper plans in " + ", ".join(f"{ms:.0f}" for ms in planning) + " ms\n")


def print_attribution(full: dict[str, float], attribution: dict[str, dict[str, float]]) -> None:
    shown = [policy for policy in POLICIES if not policy.startswith("zellige")]
    print("mean slow-down against zellige-paper")
    print(f"{'':34s}" + "".join(f"{policy:>18s}" for policy in shown))
    if attribution:
        print(f"{'published':34s}" + "".join(f"{PUBLISHED.get(policy, float('nan')):18.2f}" for policy in shown))
    print(f"{'all terms':34s}" + "".join(f"{full[policy]:18.3f}" for policy in shown))
    for name, values in attribution.items():
        print(f"{'without ' + name:34s}" + "".join(f"{values[p]:18.3f}" for p in shown))


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
