"""The policies by name, each with the engine that its authors have."""

from __future__ import annotations

import dataclasses
import importlib
import time
from collections.abc import Callable

import msgspec

from zellige.errors import UnknownNameError
from zellige.files import did_you_mean
from zellige.placement import Engine, Plan, Problem
from zellige.plan.adaptive_load import plan_adaptive_load
from zellige.plan.baselines import plan_dp, plan_static, plan_usp
from zellige.plan.deal import by_bucket, deal
from zellige.plan.karmarkar_karp import plan_dp_kk


class Later(msgspec.Struct, frozen=True):
    """A planner of a module of this room that is imported on first use: OR-Tools and numpy take a second to load."""

    module: str
    name: str

    def load(self) -> Callable[[Problem], Plan]:
        """The planner itself."""
        planner: Callable[[Problem], Plan] = getattr(importlib.import_module(f"zellige.plan.{self.module}"), self.name)
        return planner

    def __call__(self, problem: Problem) -> Plan:
        """Plan with it."""
        return self.load()(problem)


class Policy(msgspec.Struct, frozen=True):
    """A planner, the engine it is priced under unless told otherwise, and a line on what it does.

    ``trial`` finds a plan where ``plan`` does, and only there, in less time; None where there is no such.
    """

    plan: Callable[[Problem], Plan]
    engine: Engine
    summary: str
    moldable: bool = False
    trial: Callable[[Problem], Plan] | None = None


POLICIES: dict[str, Policy] = {
    "dp": Policy(plan_dp, "per_sequence", "every sequence whole, longest first to the least loaded rank"),
    "dp-kk": Policy(
        plan_dp_kk, "per_sequence", "every sequence whole, balanced by largest differencing (Karmarkar-Karp)"
    ),
    "adaptive-load": Policy(
        plan_adaptive_load, "per_sequence", "AdaptiveLoad: micro-batches bounded by tokens and compute, whole"
    ),
    "usp": Policy(plan_usp, "per_sequence", "every sequence on all ranks, Ulysses x ring, one by one"),
    "static": Policy(plan_static, "per_sequence", "the best group size and split for the batch, sequences one by one"),
    "static-coalesced": Policy(plan_static, "coalesced", "the best group size and split, under the coalesced engine"),
    "knapformer": Policy(
        Later("knapformer", "plan_knapformer"),
        "group",
        "fixed disjoint bags, packed Ulysses in each (the set-up's bags)",
    ),
    "knapformer-best": Policy(
        Later("knapformer", "plan_knapformer_best"), "group", "the best bags, the same for all batches of the run"
    ),
    "knapformer-oracle": Policy(
        Later("knapformer", "plan_knapformer_oracle"), "group", "the best bags for this very batch"
    ),
    "zellige": Policy(
        Later("zellige", "plan_zellige"),
        "coalesced",
        "search over aligned blocks with divisible fillers, certified, in milliseconds",
        True,
        Later("zellige", "try_zellige"),
    ),
    "zellige-paper": Policy(
        Later("two_stage", "plan_zellige_paper"),
        "group",
        "catalog cut, anchors by CP-SAT, greedy fillers, with the paper's engine",
        True,
    ),
    "zellige-paper-coalesced": Policy(
        Later("two_stage", "plan_zellige_paper"),
        "coalesced",
        "the same planner, priced under the coalesced engine",
        True,
    ),
    "portfolio": Policy(
        Later("portfolio", "plan_portfolio"),
        "coalesced",
        "the best of zellige-paper, everything split, static and dp, coalesced",
        True,
    ),
    "disjoint": Policy(
        Later("disjoint", "plan_disjoint"), "group", "the best disjoint groups for this very batch, by CP-SAT"
    ),
    "joint": Policy(
        Later("joint", "plan_joint"),
        "group",
        "all sequences at once by CP-SAT, counted: the reference (seconds to a minute)",
        True,
    ),
    "joint-naive": Policy(
        Later("joint", "plan_joint_naive"),
        "group",
        "the same, one binary a sequence, option and rank set (often no plan)",
        True,
    ),
    "flexsp": Policy(
        Later("flexsp", "plan_flexsp"), "group", "FlexSP: unequal power-of-two groups by a mixed-integer programme"
    ),
    "flexsp-16": Policy(Later("flexsp", "plan_flexsp_16"), "group", "FlexSP with lengths rounded up to 16 buckets"),
    "fcp": Policy(Later("fcp", "plan_fcp"), "group", "FCP-like: groups of any degree by dynamic programming"),
    "megatron-hybrid-cp": Policy(
        Later("megatron_hybrid_cp", "plan_megatron_hybrid_cp"),
        "per_sequence",
        "Megatron's hybrid context parallelism: micro-steps with barriers",
    ),
    "bytescale-hdp": Policy(
        Later("bytescale", "plan_bytescale_hdp"),
        "per_sequence",
        "ByteScale: the fewest ranks a sequence needs, on the least loaded",
    ),
    "hydraulis": Policy(
        Later("hydraulis", "plan_hydraulis"),
        "group",
        "Hydraulis, stage 1: the best of 100 greedy trials on mixed groups",
    ),
    "hotspa": Policy(
        Later("hotspa", "plan_hotspa"), "group", "HotSPa: lengths one after another, each under its own equal groups"
    ),
    "dcp": Policy(
        Later("dcp", "plan_dcp"), "coalesced", "DCP-like: blocks placed by hypergraph partitioning (extra dcp)"
    ),
    "loongtrain-2d": Policy(
        Later("loongtrain", "plan_loongtrain_2d"), "per_sequence", "LoongTrain: head x context parallel on all ranks"
    ),
}


def plan_batch(problem: Problem, policy: str, engine: Engine | None = None) -> Plan:
    """Plan a batch by a policy's name, under the policy's own engine unless one is given; records the planning time.

    The plan depends on how many sequences of each bucket there are; those of one bucket take its places in batch order.
    """
    return _planned(problem, policy, find_policy(policy).plan, engine)


def try_batch(problem: Problem, policy: str, engine: Engine | None = None) -> Plan:
    """A plan of a batch where :func:`plan_batch` finds one, and only there; not the same, but in less time where the
    policy has a way. Raises what that raises."""
    entry = find_policy(policy)
    return _planned(problem, policy, entry.trial or entry.plan, engine)


def _planned(problem: Problem, policy: str, planner: Callable[[Problem], Plan], engine: Engine | None) -> Plan:
    """A batch's plan by one of a policy's planners."""
    engine = engine or find_policy(policy).engine
    posed = by_bucket(problem if problem.engine == engine else dataclasses.replace(problem, engine=engine))
    posed.prepare()
    if isinstance(planner, Later):
        planner.load()
    started = time.perf_counter_ns()
    plan = planner(posed)
    elapsed = time.perf_counter_ns() - started
    named = msgspec.structs.replace(
        plan, policy=policy, solver=msgspec.structs.replace(plan.solver, planning_ns=elapsed)
    )
    return deal(named, problem)


def find_policy(name: str) -> Policy:
    """The policy of a name; raises :class:`UnknownNameError`."""
    if name in POLICIES:
        return POLICIES[name]
    raise UnknownNameError(
        f"there is no policy {name!r}", fix=f"{did_you_mean(name, POLICIES)}known: {', '.join(POLICIES)}"
    )
