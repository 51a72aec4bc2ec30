"""How long the planners take on the 10 s suite of arXiv 2608.01150, and how far their plans are from the joint bound.

    python benchmarks/ablation.py [V ...] [--limit UNITS]

Three planners, all with one CP-SAT worker: Eq. 1 with one binary for every sequence, option and rank set (``naive``),
Eq. 1 by counts (``joint``, started from the two-stage plan), and the two-stage planner. All run under the ``group``
engine; seconds include building the model. ``bound`` is what joint by counts proved for any rank sets.
Published figures are second-hand: joint none within 600 s; joint by counts 8.1 5.5 4.6 63.8 7.9 89.0 s; two-stage .033
.039 .037 .043 .116 .119 s, above joint by 0 0 .02 0 .32 .24 %.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

import msgspec

from zellige.catalog import load_model
from zellige.compare import build_problem
from zellige.placement import Placement, Problem, rank_costs
from zellige.plan import plan_batch
from zellige.plan.joint import DEFAULT_LIMITS, JointSolution, joint_bound, pose_binaries, solve_joint
from zellige.sources import Options, batches_of, read_source

SHARES = (35, 40, 45, 50, 55, 60)
NAIVE_LIMIT = 2.0
"""Deterministic time of the naive solve; with its presolve about 20 s, where the counts need 3 to 20."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shares", nargs="*", type=int, default=SHARES, metavar="V")
    parser.add_argument("--limit", type=float, default=NAIVE_LIMIT, help="deterministic limit of the naive solve")
    arguments = parser.parse_args()
    print("seconds, and step above the joint bound")
    print(f"{'':5s}{'bound':>10s}{'naive':>22s}{'joint by counts':>22s}{'two-stage':>22s}")
    for share in arguments.shares:
        print_row(share, arguments.limit)


def print_row(share: int, naive_limit: float) -> None:
    problem = suite_problem(share)
    _ = problem.options
    staged = plan_batch(problem, "zellige-paper")
    counted, counted_s = timed(lambda: solve_joint(problem, start=staged.placements))
    bound, _name = joint_bound(problem, counted, start=staged.placements)
    limits = msgspec.structs.replace(DEFAULT_LIMITS, deterministic=naive_limit)
    naive, naive_s = timed(lambda: solve_joint(problem, pose_binaries, limits=limits))
    cells = (
        cell(naive_s, step_ns(problem, naive), bound),
        cell(counted_s, step_ns(problem, counted), bound),
        cell(staged.solver.planning_ns / 1e9, staged.makespan_ns, bound),
    )
    print(f"V{share:<4d}{bound / 1e9:8.2f} s" + "".join(f"{text:>22s}" for text in cells), flush=True)


def suite_problem(share: int) -> Problem:
    source = read_source(f"paper-10s-high-v{share}", Options())
    model = load_model(source.model)
    batch, _ = next(iter(batches_of(source, model, Options())))
    return build_problem(batch, cluster=source.cluster, model=model, setup=source.setup, engine="group")


def timed(solve: Callable[[], JointSolution]) -> tuple[JointSolution, float]:
    started = time.perf_counter()
    return solve(), time.perf_counter() - started


def step_ns(problem: Problem, solution: JointSolution) -> int | None:
    """The step of the solution under the engine's own calls; None where the limit came first."""
    if solution.assignments is None:
        return None
    waiting: dict[str, list[str]] = {}
    for sequence in problem.batch.sequences:
        waiting.setdefault(sequence.bucket.name, []).append(sequence.id)
    placements: Sequence[Placement] = [
        Placement(sequence=waiting[a.bucket].pop(), bucket=a.bucket, config=a.option.config, ranks=a.ranks)
        for a in solution.assignments
    ]
    return max(rank_costs(problem, placements).times_ns)


def cell(seconds: float, step: int | None, bound: int) -> str:
    spent = f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1e3:.0f} ms"
    return f"{spent}  " + ("no plan" if step is None else f"+{100 * (step / bound - 1):.2f} %")


if __name__ == "__main__":
    main()
