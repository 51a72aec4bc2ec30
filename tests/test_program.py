"""Programs as values: what they conserve, in which order ranks work, how broken ones are found, what prices say."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Sequence

import msgspec
import pytest
from oracle.engine_reference import ENGINES, random_program

from zellige.analytic import analytic_price, analytic_table
from zellige.catalog import load_cluster, load_model
from zellige.cluster import CollectiveOp
from zellige.collectives import call_ns, own_calls_ns
from zellige.errors import (
    ConservationError,
    CyclicWaitError,
    ExchangeOrderError,
    ProgramError,
    ResidentMemoryError,
)
from zellige.files import canonical_json, decode_json
from zellige.memory import Checkpoint, live_bytes, memory_model
from zellige.model import ModelSpec
from zellige.placement import Engine, Placement, Problem, Solver, make_plan
from zellige.prices import attention_shape
from zellige.program import Assignment, Heads, Program, build_program, lower, shrink
from zellige.program_checks import (
    check_counts,
    check_order,
    check_program,
    check_resident,
    check_rows,
    check_tasks,
    check_tokens,
    check_waits,
    resident_bytes,
)
from zellige.program_parts import PASSES, Message, Op
from zellige.shards import WHOLE, ParallelConfig, parse_config
from zellige.workload import Batch, make_bucket
from zellige.workload import Sequence as TrainedSequence

HEADS = Heads(12, 4, 64)


def program_of(
    *placed: tuple[int, str, tuple[int, ...]],
    num_ranks: int = 4,
    engine: Engine = "coalesced",
    checkpoint: Checkpoint = "none",
    heads: Heads = HEADS,
) -> Program:
    """A program of (length, configuration, ranks), named s0, s1 ..."""
    return build_program(
        [
            Assignment(f"s{index}", length, parse_config(config), ranks)
            for index, (length, config, ranks) in enumerate(placed)
        ],
        heads,
        num_ranks=num_ranks,
        engine=engine,
        checkpoint=checkpoint,
    )


def mixed(engine: Engine = "coalesced", checkpoint: Checkpoint = "none") -> Program:
    """Overlapping rank sets of every kind, and whole sequences."""
    return program_of(
        (33, "whole", (1,)),
        (70, "q2", (0, 1)),
        (41, "h2", (1, 2)),
        (50, "k3", (3, 0, 2)),
        (12, "whole", (1,)),
        (97, "h2k2", (2, 0, 1, 3)),
        (9, "whole", (0,)),
        (60, "h2", (1, 2)),
        engine=engine,
        checkpoint=checkpoint,
    )


def with_exchange(program: Program, index: int, **changes: object) -> Program:
    """The program with one exchange changed."""
    changed = msgspec.structs.replace(program.exchanges[index], **changes)
    exchanges = (*program.exchanges[:index], changed, *program.exchanges[index + 1 :])
    return msgspec.structs.replace(program, exchanges=exchanges)


def with_ops(program: Program, rank: int, forward: Sequence[Op]) -> Program:
    """The program with another forward order on one rank."""
    works = list(program.ranks)
    works[rank] = msgspec.structs.replace(works[rank], forward=tuple(forward))
    return msgspec.structs.replace(program, ranks=tuple(works))


def with_first_share(program: Program, **changes: object) -> Program:
    """The program with the first share of its first segment changed."""
    first = program.segments[0]
    shares = (msgspec.structs.replace(first.shares[0], **changes), *first.shares[1:])
    return msgspec.structs.replace(
        program, segments=(msgspec.structs.replace(first, shares=shares), *program.segments[1:])
    )


def issues(program: Program, rank: int = 0) -> dict[str, int]:
    """Exchanges that a rank issues, by pass."""
    work = program.ranks[rank]
    return {phase: sum(op.kind == "issue" for op in work.ops(phase)) for phase in PASSES}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("num_ranks", [1, 2, 4, 8])
def test_programs_of_random_plans_conserve_tokens_and_rows_and_never_wait_in_a_circle(
    engine: Engine, num_ranks: int
) -> None:
    for seed in range(40):
        check_program(random_program(seed, num_ranks, engine))


def test_segments_stand_by_split_degree_and_then_in_placement_order() -> None:
    program = mixed()
    assert [segment.sequence for segment in program.segments] == ["s5", "s3", "s1", "s2", "s7", "s0", "s4", "s6"]
    assert program.groups[0].segments == (0, 1, 2, 3, 4)
    assert [work.whole for work in program.ranks] == [((7,),), ((5,), (6,)), (), ()]


def test_the_coalesced_engine_makes_exchanges_by_ring_rounds_only() -> None:
    one = program_of((40, "q2", (0, 1)))
    many = program_of(*[(20 + n, config, (n % 4, (n + 1) % 4)) for n in range(30) for config in ("q2", "h2")])
    ring = program_of((40, "k3", (0, 1, 2)), (20, "k2", (1, 3)), (10, "h2", (0, 3)))
    for rank in range(4):
        assert issues(one, rank) == issues(many, rank) == {"forward": 2, "recompute": 0, "backward": 2}
        assert issues(ring, rank) == {"forward": 4, "recompute": 0, "backward": 4}
    assert issues(program_of((40, "whole", (0,)), (41, "whole", (3,)))) == {"forward": 0, "recompute": 0, "backward": 0}


def test_other_engines_make_exchanges_by_sequence() -> None:
    placed = [(40 + n, "h2", (0, 1)) for n in range(5)]
    assert issues(program_of(*placed, engine="per_sequence")) == {"forward": 20, "recompute": 0, "backward": 20}
    assert issues(program_of(*placed, engine="group")) == {"forward": 2, "recompute": 0, "backward": 2}
    # A pure ring sends only keys and values, a gather of keys needs neither Q nor O to travel.
    assert issues(program_of((40, "k4", (0, 1, 2, 3)), engine="per_sequence")) == {
        "forward": 3,
        "recompute": 0,
        "backward": 4,
    }
    assert issues(program_of((40, "q4", (0, 1, 2, 3)), engine="per_sequence")) == {
        "forward": 2,
        "recompute": 0,
        "backward": 2,
    }


@pytest.mark.parametrize("engine", ENGINES)
def test_engines_move_the_same_bytes(engine: Engine) -> None:
    for phase in PASSES:
        assert mixed(engine, "full").layer_bytes(phase) == mixed("coalesced", "full").layer_bytes(phase)


def test_recompute_repeats_exchanges_only_under_full_checkpointing() -> None:
    full, selective, kept = (mixed(checkpoint=mode) for mode in ("full", "selective", "none"))
    assert full.layer_bytes("recompute") == full.layer_bytes("forward") > 0
    assert full.ranks[1].recompute == full.ranks[1].forward
    assert [work.recompute for work in selective.ranks] == [(Op("relinear"),)] * 4
    assert [work.recompute for work in kept.ranks] == [()] * 4


def test_whole_sequences_run_while_exchanges_are_in_flight() -> None:
    kinds = [(op.kind, op.index) for op in mixed().ranks[1].forward]
    assert kinds[:4] == [("project", 0), ("issue", 0), ("whole", 0), ("wait", 0)]
    assert kinds[-4:] == [("issue", 3), ("whole", 1), ("wait", 3), ("finish", 0)]


def test_a_program_is_canonical_and_reads_back() -> None:
    program = mixed()
    again = decode_json(canonical_json(program).decode(), Program, "program.json")
    assert again == program
    assert again.digest == program.digest == mixed().digest
    assert program.digest != mixed("per_sequence").digest
    assert "8 sequences, 5 split" in str(program)
    assert "forward.split.in0" in str(program)


def test_span_names_are_distinct_within_a_rank() -> None:
    for engine in ENGINES:
        program = mixed(engine, "full")
        for work in program.ranks:
            names = [program.span(phase, op) for phase in PASSES for op in work.ops(phase)]
            assert len(names) == len(set(names))


def test_tokens_and_tasks_that_are_lost_are_found() -> None:
    program = mixed()
    first = program.segments[0]
    short = msgspec.structs.replace(
        first, shares=(msgspec.structs.replace(first.shares[0], owned=(1, 24)), *first.shares[1:])
    )
    with pytest.raises(ConservationError, match="s5"):
        check_tokens(msgspec.structs.replace(program, segments=(short, *program.segments[1:])))
    blind = msgspec.structs.replace(
        first, shares=(msgspec.structs.replace(first.shares[0], keys=((), ())), *first.shares[1:])
    )
    with pytest.raises(ConservationError, match="every key once"):
        check_tasks(msgspec.structs.replace(program, segments=(blind, *program.segments[1:])))
    works = (msgspec.structs.replace(program.ranks[0], whole=()), *program.ranks[1:])
    with pytest.raises(ConservationError, match="whole sequences"):
        check_tokens(msgspec.structs.replace(program, ranks=works))


def test_rows_that_are_lost_are_found() -> None:
    program = mixed()
    for index, exchange in enumerate(program.exchanges):
        with pytest.raises(ConservationError, match="receives"):
            check_rows(with_exchange(program, index, messages=exchange.messages[1:]))
    message = program.exchanges[0].messages[0]
    more = msgspec.structs.replace(message, rows=message.rows + 1)
    with pytest.raises(ConservationError):
        check_rows(with_exchange(program, 0, messages=(more, *program.exchanges[0].messages[1:])))
    with pytest.raises(ConservationError, match="pairs"):
        check_rows(with_exchange(program, 0, messages=(Message(1, 1, 4, 0), *program.exchanges[0].messages)))


def test_a_rank_that_leaves_an_exchange_out_is_found() -> None:
    program = mixed()
    ops = [op for op in program.ranks[2].forward if op != Op("issue", 1)]
    with pytest.raises(ExchangeOrderError, match=r"rank 2.*in1"):
        check_counts(with_ops(program, 2, ops))
    early = sorted(program.ranks[2].forward, key=lambda op: op.kind == "issue")
    with pytest.raises(ExchangeOrderError, match="before it enters"):
        check_counts(with_ops(program, 2, early))


def triangle() -> Program:
    """Three sequences on the edges of a triangle of ranks, one by one."""
    return program_of((40, "h2", (0, 1)), (40, "h2", (1, 2)), (40, "h2", (2, 0)), num_ranks=3, engine="per_sequence")


def test_a_cyclic_wait_is_found_and_names_its_sequences() -> None:
    program = triangle()
    check_waits(program)
    # Every rank starts with another edge: 0 waits for 1 (s0), 1 for 2 (s1), 2 for 0 (s2).
    order = {0: [0, 2], 1: [1, 0], 2: [2, 1]}
    for rank, groups in order.items():
        ops = program.ranks[rank].forward
        by_group = {group: [op for op in ops if group_of(program, op) == group] for group in groups}
        program = with_ops(program, rank, list(itertools.chain(*(by_group[group] for group in groups))))
    with pytest.raises(CyclicWaitError) as caught:
        check_waits(program)
    assert all(name in caught.value.message for name in ("s0", "s1", "s2"))
    assert caught.value.exit_code == 3
    with pytest.raises(ExchangeOrderError):
        check_order(program)


def group_of(program: Program, op: Op) -> int:
    """The group that an operation belongs to."""
    return program.exchanges[op.index].group if op.kind in ("issue", "wait", "keep") else op.index


def test_ranks_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ProgramError, match="ranks \\[0, 4\\], of 4"):
        program_of((40, "q2", (0, 4)))
    with pytest.raises(ProgramError, match="distinct"):
        program_of((40, "q2", (1, 1)))


def test_shrinking_keeps_the_plan() -> None:
    program = mixed("group")
    small = shrink(program, 10)
    check_program(small)
    assert [s.length for s in small.segments] == [9, 5, 7, 4, 6, 3, 1, 1]
    assert [(s.sequence, s.config, s.ranks) for s in small.segments] == [
        (s.sequence, s.config, s.ranks) for s in program.segments
    ]


# Prices, memory and program


def lone_problem(engine: Engine, checkpoint: Checkpoint, model: str = "wan2.1-t2v-1.3b") -> Problem:
    """A batch of one video on eight ranks."""
    spec, cluster = load_model(model), load_cluster("a800x8")
    bucket = make_bucket(spec, 832, 480, 81)
    return Problem(
        batch=Batch(name="one", sequences=(TrainedSequence("clip", bucket),), buckets=(bucket,)),
        cluster=cluster,
        model=spec,
        prices=analytic_table(spec, cluster, [bucket], checkpoint),
        memory=memory_model(spec, cluster, "zero3", checkpoint),
        engine=engine,
    )


CONFIGS = ["whole", "q2", "h2", "k2", "q8", "h4k2", "q2h2k2", "k8", "h3", "q3", "q5", "h6", "q2h4"]


@pytest.mark.parametrize("checkpoint", ["full", "selective", "none"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_price_of_one_sequence_says_the_bytes_of_its_program(engine: Engine, checkpoint: Checkpoint) -> None:
    problem = lone_problem(engine, checkpoint)
    bucket = problem.batch.buckets[0]
    for text in CONFIGS:
        config = parse_config(text)
        ranks = tuple(range(config.degree))
        program = lower([Placement(sequence="clip", bucket=bucket.name, config=config, ranks=ranks)], problem)
        check_program(program)
        price = analytic_price(problem.model, problem.cluster, bucket.num_tokens, config, 1, checkpoint)
        assert program.step_bytes == price.comm_bytes, text


@pytest.mark.parametrize("text", CONFIGS)
def test_a_price_of_one_sequence_says_the_calls_of_its_program(text: str) -> None:
    problem = lone_problem("per_sequence", "full")
    config = parse_config(text)
    placement = Placement(
        sequence="clip", bucket=problem.batch.buckets[0].name, config=config, ranks=tuple(range(config.degree))
    )
    program = lower([placement], problem)

    def calls(phase: str) -> list[CollectiveOp]:
        return [call for e in program.exchanges if e.phase == phase for call in e.calls]

    width = {"all_to_all": config.h, "all_gather": config.degree, "send_recv": config.degree}
    priced = sum(call_ns(problem.cluster, call, width[call], 1) for call in calls("forward"))
    assert priced == pytest.approx(own_calls_ns(problem.cluster, config, 1))
    assert calls("backward").count("send_recv") == 2 * calls("forward").count("send_recv")


@pytest.mark.parametrize("text", ["q2", "h2", "k2", "q8", "h4k2", "q2h2k2", "k8"])
def test_resident_memory_is_that_of_the_memory_model(text: str) -> None:
    model = load_model("wan2.1-t2v-1.3b")
    # An FFN of one column frees next to nothing, so that the model's live memory shows all of attention's.
    model = msgspec.structs.replace(model, geometry=msgspec.structs.replace(model.geometry, ffn_dim=1))
    config = parse_config(text)
    shape = attention_shape(model, 16 * 9 * 10)
    geometry = model.geometry
    program = program_of(
        (shape.length, text, tuple(range(config.degree))),
        num_ranks=8,
        heads=Heads(geometry.num_heads, geometry.num_kv_heads, geometry.head_dim),
    )
    attention = live_bytes(model, shape, config) - linear_live_bytes(model, shape.length // config.degree)
    freed = 4 * shape.length // config.degree
    for rank in range(config.degree):
        assert resident_bytes(program, rank) == attention + freed
    check_resident(program, attention + freed)
    with pytest.raises(ResidentMemoryError, match="rank 0"):
        check_resident(program, attention + freed - 1)


def linear_live_bytes(model: ModelSpec, tokens: int) -> int:
    """What the layer being run needs for whole tokens."""
    return live_bytes(model, attention_shape(model, tokens), WHOLE)


def test_a_plan_lowers_for_its_own_engine() -> None:
    problem = lone_problem("per_sequence", "full")
    bucket = problem.batch.buckets[0]
    placement = Placement(sequence="clip", bucket=bucket.name, config=parse_config("h4k2"), ranks=tuple(range(8)))
    solver = Solver(name="none", status="given")
    plan = make_plan(problem, "by-hand", [placement], bound=(1, "none"), solver=solver)
    other = msgspec.structs.replace(plan, engine="coalesced")
    assert (lower(plan, problem).engine, lower(other, problem).engine) == ("per_sequence", "coalesced")
    assert lower(plan, problem).plan == plan.digest
    assert lower(plan, problem).step_bytes == plan.comm_bytes
    stranger = msgspec.structs.replace(placement, sequence="other")
    with pytest.raises(ProgramError, match="other"):
        lower([stranger], problem)


def test_a_large_batch_lowers_in_no_time() -> None:
    rng = random.Random(5)
    lengths, configs = (
        [256, 920, 2040, 3600, 8160, 32760, 147600],
        [WHOLE, ParallelConfig(1, 2, 1), ParallelConfig(1, 4, 2)],
    )
    placed = []
    for index in range(531):
        config = rng.choice(configs)
        placed.append(Assignment(f"s{index}", rng.choice(lengths), config, tuple(rng.sample(range(8), config.degree))))
    start = time.process_time()
    program = build_program(placed, Heads(12, 12, 128), num_ranks=8, num_layers=30)
    assert program.digest
    # About 0.05 s on an idle machine.
    assert time.process_time() - start < 1.0
    assert len(canonical_json(program)) < 1_000_000
    check_program(program)
