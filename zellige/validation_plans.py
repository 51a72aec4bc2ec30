"""Plans to validate with: the published rotation, placements that crowd ranks, and the policies' own.

The rotation (arXiv 2608.01150) gives the 480p, 720p and 1080p video of one batch three of 18 splits, so that in 18
plans every resolution meets every split once; images stay whole. Three corner plans keep everything whole. Policies
plan the same batch with the same prices.
"""

from __future__ import annotations

import msgspec

from zellige.errors import UsageError
from zellige.model import ModelSpec
from zellige.placement import Placement, Plan, Problem, Solver, make_plan, plan_digest
from zellige.shards import WHOLE, ParallelConfig
from zellige.workload import Batch, Bucket, Sequence, make_bucket

VIDEO_SIZES = ((832, 480), (1280, 720), (1920, 1088))
IMAGES = ((256, 256, 30), (832, 480, 11), (1280, 720, 6), (1920, 1088, 3))
"""Width, height and count of the 50 images: the suite publishes their number and range of sizes only. With these counts
videos have 36 % of the tokens, about the least share (35 %) of the published batches."""

POLICIES = ("zellige", "usp", "dp", "knapformer")
"""Policies that plan the batch as well, unless others are named."""

GIVEN = Solver(name="given", status="given")
"""What stands in a plan that no policy made."""

VIDEO_FRAMES = 9


def suite_batch(model: ModelSpec, *, frames: int = VIDEO_FRAMES, images: int = 50) -> Batch:
    """One video of each size and about ``images`` images."""
    clips = [(*size, frames, 1) for size in VIDEO_SIZES]
    clips += [(width, height, 1, max(1, round(count * images / 50))) for width, height, count in IMAGES]
    sequences = []
    for width, height, length, count in clips:
        bucket = make_bucket(model, width, height, length)
        kind = "v" if length > 1 else "i"
        sequences += [Sequence(f"{kind}{width}x{height}-{number}", bucket) for number in range(count)]
    buckets = tuple(sorted({s.bucket for s in sequences}, key=lambda bucket: (bucket.num_tokens, bucket)))
    return Batch(name=f"rotation-{len(sequences)}", sequences=tuple(sequences), buckets=buckets)


def rotation_configs(problem: Problem) -> list[ParallelConfig]:
    """The splits that rotate: all of a power of two ranks, up to the cluster's; on 8 ranks and 4 heads there are 18."""
    bucket = max(problem.batch.buckets, key=lambda bucket: bucket.num_tokens)
    found = [o.config for o in problem.options[bucket.name] if o.config.is_split]
    return [config for config in dict.fromkeys(found) if config.degree & (config.degree - 1) == 0]


def rotation(problem: Problem, count: int = 18) -> list[tuple[str, Plan]]:
    """``count`` plans that rotate splits over the videos, which start on ranks further on in each plan."""
    videos = [s for s in problem.batch.sequences if s.bucket.is_video]
    configs, ranks = rotation_configs(problem), problem.cluster.num_ranks
    if not videos or not configs:
        raise UsageError("the rotation needs videos and at least two ranks", fix="zellige-sim validate suite")
    plans = []
    for number in range(count):
        placed = []
        for place, video in enumerate(videos):
            turn = number + place * max(1, len(configs) // len(videos)) + number // len(configs) * place
            config = configs[turn % len(configs)]
            first = (number * 3 + place * 5) % ranks
            chosen = tuple((first + step) % ranks for step in range(config.degree))
            placed.append(_placement(video, config, chosen))
        plans.append((f"rotate{number:02d}", _filled(problem, f"rotate{number:02d}", placed)))
    return plans


def corners(problem: Problem) -> list[tuple[str, Plan]]:
    """Everything whole: the longest first to the least loaded rank, dealt in turn, and all videos on one rank."""
    sequences = problem.batch.sequences
    ranks = problem.cluster.num_ranks
    dealt = [_placement(s, WHOLE, (number % ranks,)) for number, s in enumerate(sequences)]
    together = [_placement(s, WHOLE, (0,)) for s in sequences if s.bucket.is_video]
    return [
        ("whole-balanced", _filled(problem, "whole-balanced", [])),
        ("whole-dealt", _plan(problem, "whole-dealt", dealt)),
        ("whole-crowded", _filled(problem, "whole-crowded", together)),
    ]


def crowded(problem: Problem) -> list[tuple[str, Plan]]:
    """Adversarial co-locations: all images on the ranks of a split video, and every sequence split."""
    ranks = problem.cluster.num_ranks
    degree = max(config.degree for config in rotation_configs(problem))
    widest = next(config for config in rotation_configs(problem) if config.degree == degree)
    videos = [s for s in problem.batch.sequences if s.bucket.is_video]
    images = [s for s in problem.batch.sequences if not s.bucket.is_video]
    split = [_placement(s, widest, tuple(range(degree))) for s in videos]
    half = max(1, ranks // 2)
    onto = [_placement(s, WHOLE, (number % half,)) for number, s in enumerate(images)]
    everything = [_placement(s, widest, tuple(range(degree))) for s in problem.batch.sequences]
    return [
        ("images-crowded", _plan(problem, "images-crowded", [*split, *onto])),
        ("all-split", _plan(problem, "all-split", everything)),
    ]


def _placement(sequence: Sequence, config: ParallelConfig, ranks: tuple[int, ...]) -> Placement:
    return Placement(sequence=sequence.id, bucket=sequence.bucket.name, config=config, ranks=ranks)


def _filled(problem: Problem, name: str, placed: list[Placement]) -> Plan:
    """The plan with the rest whole, longest first to the least loaded rank."""
    loads = [0] * problem.cluster.num_ranks
    for placement in placed:
        option = problem.option_on(placement.bucket, placement.config, placement.ranks)
        for rank in placement.ranks:
            loads[rank] += option.floor_ns if option else 0
    have = {placement.sequence for placement in placed}
    rest = [s for s in problem.batch.sequences if s.id not in have]
    for sequence in sorted(rest, key=lambda s: (-_whole_ns(problem, s.bucket), s.id)):
        rank = min(range(len(loads)), key=lambda rank: (loads[rank], rank))
        loads[rank] += _whole_ns(problem, sequence.bucket)
        placed = [*placed, _placement(sequence, WHOLE, (rank,))]
    return _plan(problem, name, placed)


def _whole_ns(problem: Problem, bucket: Bucket) -> int:
    return problem.whole(bucket).floor_ns


def _plan(problem: Problem, name: str, placed: list[Placement]) -> Plan:
    """A plan without a certificate: its bound is one nanosecond."""
    return make_plan(problem, name, placed, bound=(1, "none"), solver=GIVEN)


def is_policy_plan(plan: Plan) -> bool:
    """Whether a policy made a plan."""
    return plan.solver.name != GIVEN.name


def policy_plans(problem: Problem, policies: tuple[str, ...]) -> list[tuple[str, Plan]]:
    """The plans that policies make of the batch, each priced under its own engine."""
    import dataclasses

    from zellige.plan import find_policy

    found = []
    for name in policies:
        policy = find_policy(name)
        plan = policy.plan(dataclasses.replace(problem, engine=policy.engine))
        named = msgspec.structs.replace(plan, policy=name)
        found.append((name, msgspec.structs.replace(named, digest=plan_digest(named))))
    return found
