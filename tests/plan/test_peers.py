"""Published peers as policies: what all of them keep to, and what each promises, held against brute force."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections import Counter
from collections.abc import Callable
from functools import cache

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle.batches import make_problem
from oracle.brute_force import Way, costs, make_price, small_cluster, synthetic_problem

from zellige.catalog import load_model
from zellige.errors import InfeasibleError, ProgramError, SequenceTooLargeError
from zellige.files import canonical_json, decode_json
from zellige.placement import Placement, Plan, Problem, micro_batches, rank_costs
from zellige.plan import POLICIES, plan_batch
from zellige.plan.bounds import best_bound
from zellige.plan.bytescale import plan_bytescale_hdp, token_capacities
from zellige.plan.groups import aligned_sizes, lay_out
from zellige.plan.hotspa import best_cuts, plan_hotspa
from zellige.plan.hydraulis import best_trial, plan_hydraulis
from zellige.plan_check import check_plan
from zellige.program import lower
from zellige.shards import ParallelConfig
from zellige.sim import simulate
from zellige.sources import Options, build_problem
from zellige.workload import Batch, make_bucket
from zellige.workload import Sequence as Clip

PEERS = (
    "flexsp", "flexsp-16", "fcp", "megatron-hybrid-cp", "bytescale-hdp", "hydraulis", "hotspa", "dcp", "loongtrain-2d",
)  # fmt: skip
IMAGE, SHORT, LONG, GIANT = (1280, 720, 1), (832, 480, 81), (1280, 720, 81), (1920, 1088, 161)


def problem_on(
    counts: dict[tuple[int, int, int], int], ranks: int, nodes: int = 1, model: str = "wan2.1-t2v-1.3b"
) -> Problem:
    """So many sequences of each shape, on ``ranks`` ranks in equal nodes."""
    spec = load_model(model)
    buckets = {shape: make_bucket(spec, *shape) for shape in counts}
    clips = tuple(Clip(f"{buckets[s].name}-{i}", buckets[s]) for s, n in counts.items() for i in range(n))
    ordered = tuple(sorted(set(buckets.values()), key=lambda bucket: (bucket.num_tokens, bucket)))
    batch = Batch(name="made", sequences=clips, buckets=ordered)
    return build_problem(batch, cluster=small_cluster(ranks, nodes), model=spec, engine="group")


@cache
def plans(ranks: int, nodes: int) -> dict[str, tuple[Problem, Plan]]:
    """The plan of every peer for one mixed batch."""
    posed = problem_on({IMAGE: 9, SHORT: 3, LONG: 2}, ranks, nodes)
    return {name: (dataclasses.replace(posed, engine=POLICIES[name].engine), plan_batch(posed, name)) for name in PEERS}


@pytest.mark.parametrize("policy", PEERS)
@pytest.mark.parametrize(("ranks", "nodes"), [(1, 1), (3, 1), (8, 1), (12, 2)])
def test_plans_are_complete_within_bounds_and_priced_as_they_say(policy: str, ranks: int, nodes: int) -> None:
    problem, plan = plans(ranks, nodes)[policy]
    assert [p.sequence for p in plan.placements] == [s.id for s in problem.batch.sequences]
    assert [p.bucket for p in plan.placements] == [s.bucket.name for s in problem.batch.sequences]
    assert all(set(p.ranks) <= set(range(ranks)) for p in plan.placements)
    assert best_bound(problem)[0] == plan.bound_ns <= plan.makespan_ns
    assert plan.makespan_ns == stage_oracle(problem, plan)
    assert plan.makespan_ns >= max(p.time_ns for p in plan.predicted)
    assert plan.fits


def stage_oracle(problem: Problem, plan: Plan) -> int:
    """The step restated from price components: micro-batches of a stage add up on a rank, stages as their slowest."""
    total = 0
    ways = {name: ways_to_run_on(problem, name) for name in problem.options}
    for stage in sorted({p.stage for p in plan.placements}):
        times = [0] * problem.cluster.num_ranks
        for batch in sorted({p.micro_batch for p in plan.placements if p.stage == stage}):
            members = [p for p in plan.placements if (p.stage, p.micro_batch) == (stage, batch)]
            chosen = [ways[p.bucket](p.config, p.ranks) for p in members]
            times = [a + b for a, b in zip(times, costs(problem, chosen).times_ns, strict=True)]
        total += max(times)
    return total


def ways_to_run_on(problem: Problem, bucket: str) -> Callable[[ParallelConfig, tuple[int, ...]], Way]:
    """The way of a bucket on a rank list, as the brute-force costs take it; uneven spreads as the next wider one."""
    table = problem.prices.by_bucket()[bucket]

    def way(config: ParallelConfig, ranks: tuple[int, ...]) -> Way:
        span = len({rank // problem.cluster.ranks_per_node for rank in ranks})
        widths = sorted((n for c, n in table if c == config), key=lambda n: (n < span, n))
        return Way(config, ranks, widths[0], table[config, widths[0]])

    return way


@pytest.mark.parametrize("policy", PEERS)
def test_a_plan_survives_a_file_and_its_check(policy: str) -> None:
    made = make_problem([IMAGE, IMAGE, SHORT, LONG], "a800x4")
    plan = plan_batch(made, policy)
    read = decode_json(canonical_json(plan).decode(), Plan, "plan")
    assert read == plan
    assert [finding.message for finding in check_plan(read, "plan", Options())] == []


@pytest.mark.parametrize("policy", PEERS)
def test_plans_are_the_same_byte_for_byte(policy: str) -> None:
    problem, plan = plans(8, 1)[policy]
    fresh = dataclasses.replace(problem, prices=problem.prices)
    assert plan_batch(fresh, policy).digest == plan.digest


@pytest.mark.parametrize("policy", [name for name in PEERS if name != "dcp"])
@pytest.mark.parametrize("counts", [{LONG: 1}, {IMAGE: 5}, {IMAGE: 1}], ids=["one video", "images", "one image"])
@pytest.mark.parametrize("model", ["wan2.1-t2v-1.3b", "ltx-video-2b"])
def test_small_batches_and_odd_clusters_are_planned(
    policy: str, counts: dict[tuple[int, int, int], int], model: str
) -> None:
    for ranks, nodes in ((1, 1), (5, 1), (6, 2)):
        plan = plan_batch(problem_on(counts, ranks, nodes, model), policy)
        assert plan.fits
        assert len(plan.placements) == sum(counts.values())


@pytest.mark.slow
@pytest.mark.parametrize("policy", [name for name in PEERS if name not in {"dcp", "flexsp-16"}])
def test_sixty_four_ranks(policy: str) -> None:
    plan = plan_batch(problem_on({IMAGE: 24, GIANT: 1}, 64, 8), policy)
    assert plan.fits
    assert plan.makespan_ns >= plan.bound_ns


@pytest.mark.parametrize("policy", [name for name in PEERS if name != "loongtrain-2d"])
def test_what_fits_nowhere_is_refused_by_name(policy: str) -> None:
    problem = problem_on({LONG: 1}, 2)
    memory = msgspec.structs.replace(problem.memory, usable_bytes=problem.memory.base_bytes + 2**24)
    with pytest.raises(SequenceTooLargeError):
        plan_batch(dataclasses.replace(problem, memory=memory), policy)


def test_static_schemes_say_when_they_run_over() -> None:
    problem = problem_on({LONG: 3}, 2)
    memory = msgspec.structs.replace(problem.memory, usable_bytes=problem.memory.base_bytes + 2**24)
    assert not plan_batch(dataclasses.replace(problem, memory=memory), "loongtrain-2d").fits


# --- stages and micro-batches


def test_stages_add_up_and_micro_batches_share_neither_memory_nor_calls() -> None:
    config, kept, live = ParallelConfig(h=2), 5, 3
    price = make_price(100, 10, kept, live)
    problem = synthetic_problem(
        {"16x16x1": {(ParallelConfig(), 1): make_price(70, 0, kept, live), (config, 1): price}},
        {"16x16x1": 3}, small_cluster(2), "group",
    )  # fmt: skip
    base = problem.memory.base_bytes
    calls = problem.shared_calls_ns(2, 1, 1)

    def on(number: int, ranks: tuple[int, ...], stage: int = 0, micro_batch: int = 0) -> Placement:
        split = ParallelConfig(h=2) if len(ranks) == 2 else ParallelConfig()
        return Placement(
            sequence=f"16x16x1-{number}", bucket="16x16x1", config=split, ranks=ranks, stage=stage,
            micro_batch=micro_batch,
        )  # fmt: skip

    together = rank_costs(problem, [on(0, (0, 1)), on(1, (0, 1)), on(2, (0,))])
    assert together.times_ns == (270 + calls, 200 + calls)
    assert together.makespan_ns == max(together.times_ns)
    assert together.memory_bytes == (base + 3 * kept + live, base + 2 * kept + live)
    apart = rank_costs(problem, [on(0, (0, 1)), on(1, (0, 1), 0, 1), on(2, (0,), 0, 2)])
    assert apart.times_ns == (270 + 2 * calls, 200 + 2 * calls)
    assert apart.makespan_ns == 270 + 2 * calls
    assert apart.memory_bytes == (base + kept + live, base + kept + live)
    barred = rank_costs(problem, [on(0, (0,), 0), on(1, (1,), 1), on(2, (1,), 1)])
    assert barred.times_ns == (70, 140)
    assert barred.makespan_ns == 70 + 140
    assert list(micro_batches([on(1, (0,), 1), on(0, (0,), 0, 1), on(2, (0,))])) == [(0, 0), (0, 1), (1, 0)]


def test_a_plan_of_several_micro_batches_is_as_many_programs() -> None:
    problem, plan = plans(8, 1)["megatron-hybrid-cp"]
    assert len(plan.parts) > 1
    with pytest.raises(ProgramError, match="micro-batches"):
        lower(plan, problem)
    assert sum(len(lower(part, problem).segments) for part in plan.parts) == len(plan.placements)


def test_what_has_neither_stage_nor_micro_batch_is_written_as_before() -> None:
    plan = plan_batch(problem_on({IMAGE: 2}, 2), "dp")
    assert set(msgspec.json.decode(canonical_json(plan.placements[0]))) == {"sequence", "bucket", "config", "ranks"}


# --- loongtrain


@pytest.mark.parametrize("shape", [IMAGE, SHORT])
def test_neighbouring_heads_are_the_faster_order_of_ranks(shape: tuple[int, int, int]) -> None:
    problem = dataclasses.replace(problem_on({shape: 1}, 16, 2), engine="per_sequence")
    (placed,) = plan_batch(problem, "loongtrain-2d").placements
    config = placed.config
    context_first = tuple(head * config.k + ring for ring in range(config.k) for head in range(config.h))
    steps = [
        simulate(
            lower([msgspec.structs.replace(placed, ranks=ranks)], problem), problem, "additive"
        ).report.step_time_ns
        for ranks in (placed.ranks, context_first)
    ]
    assert placed.ranks != context_first
    assert steps[0] <= 1.001 * steps[1]


# --- where groups sit


@settings(max_examples=30)
@given(data=st.data(), nodes=st.integers(1, 4), per_node=st.integers(1, 8))
def test_groups_are_disjoint_and_span_few_nodes(data: st.DataObject, nodes: int, per_node: int) -> None:
    cluster = small_cluster(nodes * per_node, nodes)
    left, sizes = nodes * per_node, []
    while left and (size := data.draw(st.integers(0, left))):
        sizes.append(size)
        left -= size
    ranks = lay_out(cluster, sizes)
    assert [len(group) for group in ranks] == sizes
    taken = list(itertools.chain.from_iterable(ranks))
    assert len(set(taken)) == len(taken)
    largest = max(range(len(sizes)), key=lambda index: sizes[index], default=None)
    if largest is not None:
        assert cluster.footprint(ranks[largest]) == cluster.smallest_footprint(sizes[largest])


@settings(max_examples=30)
@given(st.lists(st.sampled_from([1, 2, 4, 8, 16]), min_size=1, max_size=16))
def test_powers_of_two_come_out_aligned(sizes: list[int]) -> None:
    kept = [size for index, size in enumerate(sizes) if sum(sizes[: index + 1]) <= 16]
    for size, ranks in zip(kept, lay_out(small_cluster(16, 2), kept), strict=True):
        assert ranks == tuple(range(ranks[0], ranks[0] + size))
        assert ranks[0] % size == 0


def test_aligned_sizes_divide_one_another() -> None:
    assert aligned_sizes(small_cluster(64, 8)) == (1, 2, 4, 8, 16, 32, 64)
    assert aligned_sizes(small_cluster(18, 3)) == (1, 2, 6, 18)
    assert aligned_sizes(small_cluster(7)) == (1, 7)


# --- hydraulis


@settings(max_examples=20)
@given(seed=st.integers(0, 200))
def test_the_best_trial_is_that_of_a_plain_loop(seed: int) -> None:
    chance = random.Random(seed)
    problem = problem_of_lengths(chance.randint(1, 9))
    mix = chance.choice([((4, 1),), ((2, 2),), ((2, 1), (1, 2)), ((1, 4),)])
    times = {size: {b.name: chance.randint(1, 50) for b in problem.counts} for size in (1, 2, 4)}
    clips = problem.batch.sequences
    sizes = [size for size, count in mix for _ in range(count)]
    ends = []
    for trial in range(100):
        order = list(range(len(clips)))
        random.Random(trial).shuffle(order)
        loads = [0] * len(sizes)
        for index in order:
            after = [load + times[size][clips[index].bucket.name] for load, size in zip(loads, sizes, strict=True)]
            group = after.index(min(after))
            loads[group] = after[group]
        ends.append(max(loads))
    end, owners = best_trial(clips, mix, times)
    assert end == min(ends)
    loads = [0] * len(sizes)
    for clip, owner in zip(clips, owners, strict=True):
        loads[owner] += times[sizes[owner]][clip.bucket.name]
    assert max(loads) == end


@cache
def problem_of_lengths(number: int) -> Problem:
    shapes = [(256 + 32 * index, 256, 1) for index in range(number)]
    return problem_on(dict.fromkeys(shapes, 1), 4)


def test_hydraulis_keeps_to_one_mix_of_disjoint_groups() -> None:
    plan = plan_hydraulis(problem_on({IMAGE: 12, SHORT: 3, LONG: 1}, 8))
    groups = {p.ranks for p in plan.placements}
    assert all(a == b or not set(a) & set(b) for a in groups for b in groups)
    assert len({p.config for p in plan.placements}) <= 2


# --- hotspa


@given(
    times=st.dictionaries(
        st.tuples(st.integers(0, 4), st.integers(1, 5)).filter(lambda run: run[0] < run[1]), st.integers(1, 30)
    ),
    number=st.integers(1, 5),
)
def test_the_cuts_are_those_of_all_cuts(times: dict[tuple[int, int], int], number: int) -> None:
    sums = []
    for inner in itertools.chain.from_iterable(itertools.combinations(range(1, number), n) for n in range(number)):
        runs = list(itertools.pairwise((0, *inner, number)))
        if all(run in times for run in runs):
            sums.append(sum(times[run] for run in runs))
    cuts = best_cuts(number, times)
    assert (cuts is None) == (not sums)
    if cuts is not None:
        assert sum(times[run] for run in cuts) == min(sums)
        assert list(itertools.chain.from_iterable(cuts))[1:-1:2] == list(itertools.chain.from_iterable(cuts))[2::2]


def test_hotspa_runs_lengths_apart_and_never_loses_to_one_strategy() -> None:
    problem = problem_on({IMAGE: 24, SHORT: 4, GIANT: 1}, 8)
    plan = plan_hotspa(problem)
    by_stage: dict[int, set[int]] = {}
    lengths = {s.id: s.bucket.num_tokens for s in problem.batch.sequences}
    for p in plan.placements:
        by_stage.setdefault(p.stage, set()).add(lengths[p.sequence])
    assert len(by_stage) > 1
    assert all(min(by_stage[s]) > max(by_stage[s + 1]) for s in range(len(by_stage) - 1))
    for stage in by_stage:
        assert len({p.config for p in plan.placements if p.stage == stage}) == 1
    assert plan.makespan_ns <= plan_batch(problem, "static", "group").makespan_ns
    assert plan.makespan_ns > max(p.time_ns for p in plan.predicted) or plan.max_over_mean == 1


# --- bytescale


def test_bytescale_ranks_never_wait_for_one_another() -> None:
    problem = dataclasses.replace(problem_on({IMAGE: 13, SHORT: 5, LONG: 3, GIANT: 1}, 8), engine="per_sequence")
    plan = plan_bytescale_hdp(problem)
    assert gang_end(problem, plan) == plan.makespan_ns


def gang_end(problem: Problem, plan: Plan) -> int:
    """When all is done if every sequence starts once all its ranks are free, the widest first."""
    time = {}
    for p in plan.placements:
        option = problem.option_on(p.bucket, p.config, p.ranks)
        assert option is not None
        time[p.sequence] = option.time_ns
    free = [0] * problem.cluster.num_ranks
    for p in sorted(plan.placements, key=lambda p: (-len(p.ranks), p.micro_batch)):
        end = max(free[rank] for rank in p.ranks) + time[p.sequence]
        for rank in p.ranks:
            free[rank] = end
    return max(free)


def test_bytescale_takes_no_more_ranks_than_the_capacity_asks_for() -> None:
    problem = problem_on({IMAGE: 13, SHORT: 5, LONG: 3}, 8)
    plan = plan_bytescale_hdp(problem)
    lengths = {s.bucket.name: s.bucket.num_tokens for s in problem.batch.sequences}
    found = [
        capacity
        for capacity in token_capacities(problem)
        if all(len(p.ranks) == 1 << max(0, math.ceil(math.log2(lengths[p.bucket] / capacity))) for p in plan.placements)
    ]
    assert len(found) == 1
    assert len(token_capacities(problem)) == 4


def test_short_memory_makes_micro_batches_where_the_source_has_them() -> None:
    problem = problem_on({SHORT: 12}, 2)
    whole = problem.whole(problem.batch.buckets[0])
    room = 2 * whole.kept_bytes + whole.live_bytes
    memory = msgspec.structs.replace(problem.memory, usable_bytes=problem.memory.base_bytes + room)
    tight = dataclasses.replace(problem, memory=memory)
    for policy in ("hydraulis", "hotspa", "bytescale-hdp", "megatron-hybrid-cp", "flexsp"):
        plan = plan_batch(tight, policy)
        assert plan.fits, policy
        assert len(plan.parts) > 1, policy
        assert Counter(p.sequence for p in plan.placements) == Counter(s.id for s in problem.batch.sequences)
    with pytest.raises(InfeasibleError):
        plan_batch(tight, "fcp")
