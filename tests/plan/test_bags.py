"""KnapFormer's balancer against its own program's outputs (``--cases PATH``: other files), crashes, and properties."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zellige.errors import BagSpecError, UsageError
from zellige.plan.bags import (
    ROUNDING_SLACK,
    BagAssignment,
    BagSpec,
    assign_to_bags,
    bag_layout,
    check_bag_spec,
    chunk_lengths,
    flatten_by_rank,
    format_bag_spec,
    parse_bag_spec,
    spec_ranks,
    workload,
)

OWN_CASES = Path(__file__).parent.parent / "cases" / "knapformer.json"
CLEAN_SPEC = re.compile(r"(g[1-9][0-9]*n[1-9][0-9]*)(\+g[1-9][0-9]*n[1-9][0-9]*)*")


class Work(TypedDict):
    hidden_dim: int
    gamma: float


FLUX: Work = {"hidden_dim": 3072, "gamma": 0.4}


def read_cases(option: str | None) -> dict[str, Any]:
    path = Path(option) if option else OWN_CASES
    if path.is_dir():
        path = path / OWN_CASES.name
    text = path.read_text() if path.is_file() else ""
    # The option serves tests of other forms too: a file without bag specs is none of ours.
    return json.loads(text if '"bag_spec"' in text else OWN_CASES.read_text())  # type: ignore[no-any-return]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    cases = read_cases(metafunc.config.getoption("cases", default=None))
    for argument, key in (("golden", "cases"), ("stopped", "errors")):
        if argument in metafunc.fixturenames:
            metafunc.parametrize(argument, cases[key], ids=[case["name"] for case in cases[key]])


def own_case(key: str, name: str) -> dict[str, Any]:
    (case,) = [case for case in json.loads(OWN_CASES.read_text())[key] if case["name"] == name]
    return case  # type: ignore[no-any-return]


def assign_case(case: dict[str, Any], lens_by_rank: list[list[int]], kept: Sequence[int] | None) -> BagAssignment:
    lengths, _ = flatten_by_rank(lens_by_rank)
    work: Work = {"hidden_dim": case["token_dim"], "gamma": case["gamma"]}
    return assign_to_bags(lengths, parse_bag_spec(case["bag_spec"]), **work, fallback_order=kept)


def as_replica(assignment: BagAssignment, source_ranks: Sequence[int], gpus: list[int]) -> dict[str, Any]:
    """The assignment as KnapFormer's program reports a replica; ranks of the replica renamed to ``gpus``."""
    before, after = assignment.load_before(source_ranks), assignment.load_after()
    num_sequences = len(assignment.lengths)
    return {
        "gpus": gpus,
        "bag_id2gpu_ids": {str(bag): [gpus[r] for r in ranks] for bag, ranks in enumerate(assignment.bag_ranks)},
        "per_gpu_capacity": assignment.rank_capacity,
        "bag_capacity": list(assignment.bag_capacity),
        "bag_occupancy": list(assignment.bag_occupancy),
        "bag_assigned_seq_ids_in_assign_order": [list(sequences) for sequences in assignment.bag_sequences],
        "sequences": {
            "len": list(assignment.lengths),
            "src_gpu": [gpus[rank] for rank in source_ranks],
            "workload": list(assignment.workloads),
            "bag": list(assignment.sequence_bag),
            "chunk_lens": [list(assignment.chunk_lengths(seq)) for seq in range(num_sequences)],
        },
        "gpu_chunk_ids_after_route": [list(chunks) for chunks in assignment.rank_chunk_ids()],
        "gpu_tokens_before": list(before.tokens),
        "gpu_tokens_after": list(after.tokens),
        "gpu_workload_before": list(before.workloads),
        "gpu_workload_after": list(after.workloads),
        "max_over_mean_before": before.max_over_mean,
        "max_over_mean_after": after.max_over_mean,
        "max_over_min_before": before.max_over_min,
        "max_over_min_after": after.max_over_min,
        "token_max_over_mean_after": after.token_max_over_mean,
        "tokens_moved_cross_gpu": assignment.tokens_moved(source_ranks),
        "tokens_total": sum(assignment.lengths),
        "tokens_in_split_sequences": sum(assignment.lengths[seq] for seq in assignment.split_sequences),
        "num_split_sequences": len(assignment.split_sequences),
    }


def assert_same(actual: Any, expected: Any, where: str) -> None:
    """Integers and structure exactly, floats to a relative 1e-12."""
    assert type(actual) is type(expected), where
    if isinstance(expected, dict):
        assert actual.keys() == expected.keys(), where
        for key in expected:
            assert_same(actual[key], expected[key], f"{where}.{key}")
    elif isinstance(expected, list):
        assert len(actual) == len(expected), where
        for index, (left, right) in enumerate(zip(actual, expected, strict=True)):
            assert_same(left, right, f"{where}[{index}]")
    elif isinstance(expected, float):
        assert math.isclose(actual, expected, rel_tol=1e-12), (where, actual, expected)
    else:
        assert actual == expected, where


def test_golden_outputs_are_reproduced_in_every_field(golden: dict[str, Any]) -> None:
    for replica in golden["outputs"]["replicas"]:
        gpus = replica["gpus"]
        kept: Sequence[int] | None = None
        for lens_by_rank in golden["history_lens"] or []:
            kept = assign_case(golden, [lens_by_rank[gpu] for gpu in gpus], kept).fallback_order
        local = [golden["gpu_lens"][gpu] for gpu in gpus]
        assignment = assign_case(golden, local, kept)
        assert_same(as_replica(assignment, flatten_by_rank(local)[1], gpus), replica, golden["name"])


def test_workloads_are_equal_to_the_last_bit() -> None:
    """They settle ties; other orders of the same operations differ here."""
    for case in json.loads(OWN_CASES.read_text())["cases"]:
        columns = case["outputs"]["replicas"][0]["sequences"]
        assert [workload(n, case["token_dim"], case["gamma"]) for n in columns["len"]] == columns["workload"]


def test_history_changes_the_ties_only_through_the_value_passed_in() -> None:
    case = own_case("cases", "fallback_after_history")
    fresh = assign_case(case, case["gpu_lens"], None)
    assert fresh.sequence_bag[:3] == (0, 1, 2)
    assert assign_case(case, case["gpu_lens"], None) == fresh
    assert assign_case(case, case["gpu_lens"], (2, 3, 4, 5, 6, 7, 1, 0)).sequence_bag[:3] == (2, 3, 4)


def test_inputs_that_stop_knapformer_are_named_errors_or_planned_right(stopped: dict[str, Any]) -> None:
    """What its program plans from a clean spec we plan; where it stops we refuse by name or leave no bag idle."""
    try:
        outcome: BagAssignment | BagSpecError = assign_case(stopped, stopped["gpu_lens"], None)
    except BagSpecError as error:
        outcome = error
    if isinstance(outcome, BagSpecError):
        assert stopped["planner_error"] is not None or not CLEAN_SPEC.fullmatch(stopped["bag_spec"])
    else:
        assert sorted(seq for bag in outcome.bag_sequences for seq in bag) == list(range(len(outcome.lengths)))
        assert all(outcome.bag_sequences)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("duplicate_size", ("g1n4 and g1n4 have the same size", "g1n8")),
        ("fewer_sequences_than_bags", ("bag 1 (size 1, first rank 1) gets no sequence", "1 sequences, 8 bags, 7")),
        ("trailing_junk_ok", ("'g1n8junk'",)),
        ("zero_bags_then_overflow", ("g4n0 has count 0",)),
    ],
)
def test_own_crash_cases_name_the_offender(name: str, words: tuple[str, ...]) -> None:
    case = own_case("errors", name)
    with pytest.raises(BagSpecError) as caught:
        assign_case(case, case["gpu_lens"], None)
    assert all(word in str(caught.value) for word in words)


def test_rounding_of_the_capacities_does_not_empty_a_bag() -> None:
    """Eight equal sequences, four single ranks and a bag of four: a perfect balance where KnapFormer stops."""
    case = own_case("errors", "balanced_equal_lens_float_rounding")
    assignment = assign_case(case, case["gpu_lens"], None)
    assert [len(bag) for bag in assignment.bag_sequences] == [1, 1, 1, 1, 4]
    assert assignment.load_after().max_over_mean == pytest.approx(1.0, rel=1e-12)


def test_a_rank_without_local_sequences_is_no_obstacle() -> None:
    """KnapFormer plans this one, and stops while it routes."""
    lengths, source_ranks = flatten_by_rank([[33, 40], [], [55, 20], [12]])
    assignment = assign_to_bags(lengths, parse_bag_spec("g1n4"), **FLUX)
    before, after = assignment.load_before(source_ranks), assignment.load_after()
    assert before.tokens == (73, 0, 75, 12)
    assert before.max_over_min == math.inf
    assert after.tokens == (55, 40, 33, 32)


def test_specs_are_read_by_ascending_size() -> None:
    spec = parse_bag_spec("g8n1+g1n16+g2n4")
    assert spec == (BagSpec(1, 16), BagSpec(2, 4), BagSpec(8, 1))
    assert format_bag_spec(spec) == "g1n16+g2n4+g8n1"
    assert spec_ranks(spec) == 32


@pytest.mark.parametrize(
    ("text", "term"),
    [
        ("", "''"),
        ("g8", "'g8'"),
        ("g1n8+", "''"),
        ("g1n4 +g4n1", "'g1n4 '"),
        ("G1N8", "'G1N8'"),
        ("g1n8\n", "'g1n8\\n'"),
        ("g-1n8", "'g-1n8'"),
        ("g1n08", "'g1n08'"),
        ("g1n\u0664", "'g1n\u0664'"),
        ("g1n4+g4n1x", "'g4n1x'"),
        ("g1n" + "9" * 5000, "'g1n999"),
        ("g0n8", "g0n8 has size 0"),
        ("g1n8+g4n0", "g4n0 has count 0"),
        ("g2n1+g1n2+g2n3", "g2n1 and g2n3 have the same size"),
    ],
)
def test_malformed_specs_are_refused_with_the_term_and_a_way_out(text: str, term: str) -> None:
    with pytest.raises(BagSpecError) as caught:
        parse_bag_spec(text)
    assert term in caught.value.message
    assert caught.value.fix


@settings(deadline=None)
@given(st.lists(st.from_regex(r"g\d{1,2}n\d{1,2}[x ]?", fullmatch=True), min_size=1, max_size=3).map("+".join))
def test_a_spec_that_is_read_is_exactly_what_was_written(text: str) -> None:
    try:
        spec = parse_bag_spec(text)
    except BagSpecError:
        return
    assert sorted(format_bag_spec(spec).split("+")) == sorted(text.split("+"))


@pytest.mark.parametrize(
    ("text", "num_ranks", "num_heads", "words"),
    [
        ("g6n1+g2n1", 12, 12, ("8 ranks, and 12 ranks", "g6n1: 6 x 1 = 6 ranks")),
        ("g4n4", 8, 12, ("16 ranks, and 8 ranks",)),
        ("g1n8", 0, 12, ("0 ranks",)),
        # KnapFormer finds this one only at the first attention call.
        ("g3n1", 3, 8, ("g3n1: 3 ranks cannot share 8 heads", "1 2\n")),
        ("g8n1", 8, 12, ("g8n1: 8 ranks cannot share 12 heads", "1 2 3 4 6\n")),
    ],
)
def test_specs_that_ranks_or_heads_do_not_allow(text: str, num_ranks: int, num_heads: int, words: tuple[str]) -> None:
    with pytest.raises(BagSpecError) as caught:
        check_bag_spec(parse_bag_spec(text), num_ranks, num_heads)
    assert all(word in f"{caught.value}\n" for word in words)


def test_specs_built_by_hand_are_checked_alike() -> None:
    with pytest.raises(BagSpecError, match="g4n0 has count 0"):
        BagSpec(4, 0)
    with pytest.raises(BagSpecError, match="without any bag"):
        bag_layout(())
    with pytest.raises(BagSpecError, match="same size"):
        check_bag_spec((BagSpec(1, 4), BagSpec(1, 4)), 8, 8)


def test_a_repeated_spec_keeps_its_bags_together_and_pools_the_sequences() -> None:
    spec = parse_bag_spec("g6n1+g2n1")
    layout = ((0, 1), tuple(range(2, 8)), (8, 9), tuple(range(10, 16)))
    check_bag_spec(spec, 8, 12)
    check_bag_spec(spec, 16, 12)
    assert bag_layout(spec, 16) == layout
    assignment = assign_to_bags([60000, 50000, 12000, 11000], spec, **FLUX, num_ranks=16)
    assert assignment.bag_ranks == layout
    # Both giants exceed every bag: they go to the two bags of six, of whichever node.
    assert assignment.sequence_bag == (1, 3, 0, 2)


def test_idle_bags_are_legal_only_on_request() -> None:
    spec = parse_bag_spec("g1n4")
    with pytest.raises(BagSpecError, match="bag 2 "):
        assign_to_bags([512, 512], spec, **FLUX)
    assignment = assign_to_bags([512, 512], spec, **FLUX, allow_empty=True)
    assert assignment.bag_sequences == ((0,), (1,), (), ())
    assert assignment.load_after().max_over_min == math.inf
    nothing = assign_to_bags([], spec, **FLUX, allow_empty=True)
    load = nothing.load_after()
    assert nothing.bag_occupancy == (0.0,) * 4
    assert (load.max_over_mean, load.max_over_min, load.token_max_over_mean) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("lengths", "hidden_dim", "gamma", "words"),
    [
        ([512, 0], 3072, 0.4, "sequence 1 has 0 tokens"),
        ([512, 512], 0, 0.4, "hidden dimension 0"),
        ([512, 512], 3072, -0.1, "gamma -0.1"),
        ([512, 512], 3072, math.nan, "gamma nan"),
    ],
)
def test_impossible_sizes_are_usage_errors(lengths: list[int], hidden_dim: int, gamma: float, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        assign_to_bags(lengths, parse_bag_spec("g1n2"), hidden_dim=hidden_dim, gamma=gamma)


def test_a_fallback_order_of_another_spec_is_refused() -> None:
    with pytest.raises(BagSpecError, match="not an order of the largest bags"):
        assign_to_bags([512] * 3, parse_bag_spec("g1n2+g2n1"), **FLUX, fallback_order=(0, 1))


def test_two_thousand_sequences_over_sixteen_bags_take_well_under_50_ms() -> None:
    lengths = [256 + 7919 * seq % 30000 for seq in range(2000)]
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        assign_to_bags(lengths, parse_bag_spec("g1n12+g2n3+g4n1"), **FLUX)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.05


specs = st.dictionaries(st.integers(1, 8), st.integers(1, 4), min_size=1, max_size=4).map(
    lambda terms: tuple(BagSpec(size, count) for size, count in terms.items())
)
# Few distinct lengths, so that ties are frequent, beside arbitrary ones.
batches = st.lists(st.sampled_from([1, 3, 256, 4096, 147600]) | st.integers(1, 60000), max_size=40)


@settings(deadline=None)
@given(batches, specs)
def test_every_sequence_lies_in_one_bag_and_no_token_is_lost(lengths: list[int], spec: tuple[BagSpec, ...]) -> None:
    assignment = assign_to_bags(lengths, spec, **FLUX, allow_empty=True)
    assert sorted(seq for bag in assignment.bag_sequences for seq in bag) == list(range(len(lengths)))
    for bag, sequences in enumerate(assignment.bag_sequences):
        assert all(assignment.sequence_bag[seq] == bag for seq in sequences)
        held = sum(assignment.workloads[seq] for seq in sequences)
        assert math.isclose(assignment.bag_occupancy[bag] * assignment.bag_capacity[bag], held, rel_tol=1e-12)
    assert [rank for ranks in assignment.bag_ranks for rank in ranks] == list(range(spec_ranks(spec)))
    tokens = [0] * spec_ranks(spec)
    for seq, length in enumerate(lengths):
        chunks = assignment.chunk_lengths(seq)
        assert sum(chunks) == length
        for rank, part in zip(assignment.bag_ranks[assignment.sequence_bag[seq]], chunks, strict=True):
            tokens[rank] += part
    assert assignment.load_after().tokens == tuple(tokens)
    assert math.isclose(sum(assignment.bag_capacity), sum(assignment.workloads), rel_tol=1e-12)


@settings(deadline=None)
@given(st.integers(1, 10**6), st.integers(1, 64), st.integers(0, 1000))
def test_one_chunk_takes_the_whole_remainder(length: int, size: int, sequence: int) -> None:
    chunks = chunk_lengths(length, size, sequence)
    others = chunks[: sequence % size] + chunks[sequence % size + 1 :]
    assert sum(chunks) == length
    assert set(others) <= {length // size}
    assert max(chunks) - min(chunks) == (length % size if size > 1 else 0)


@settings(deadline=None)
@given(st.integers(1, 60000), st.integers(1, 40), st.integers(1, 16))
def test_equal_sequences_are_dealt_round_single_ranks(length: int, num_sequences: int, num_bags: int) -> None:
    spec = (BagSpec(1, num_bags),)
    assignment = assign_to_bags([length] * num_sequences, spec, **FLUX, allow_empty=True)
    assert assignment.sequence_bag == tuple(seq % num_bags for seq in range(num_sequences))


def deal_by_the_book(lengths: list[int], sizes: list[int], slack: float, kept: list[int]) -> list[list[int]]:
    """The described algorithm, one scan over all bags per sequence; changes ``kept`` in place as KnapFormer does."""
    works = [workload(length, **FLUX) for length in lengths]
    total = 0.0
    for work in works:
        total += work
    share = total / sum(sizes)
    occupancy = [0.0] * len(sizes)
    bags: list[list[int]] = [[] for _ in sizes]
    for seq in sorted(range(len(lengths)), key=lambda seq: -works[seq]):
        able = [b for b, g in enumerate(sizes) if share * g * (1 + slack) >= works[seq] and lengths[seq] >= g]
        if not able:
            kept.sort(key=lambda bag: occupancy[bag])
        bag = min(able or kept, key=lambda bag: occupancy[bag])
        occupancy[bag] += works[seq] / (share * sizes[bag])
        bags[bag].append(seq)
    return bags


@settings(max_examples=200, deadline=None)
@given(st.lists(batches, min_size=1, max_size=3), specs)
def test_heaps_give_what_the_description_gives(history: list[list[int]], spec: tuple[BagSpec, ...]) -> None:
    sizes = [term.size for term in sorted(spec) for _ in range(term.count)]
    order = tuple(bag for bag, size in enumerate(sizes) if size == max(sizes))
    for lengths in history:
        assignment = assign_to_bags(lengths, spec, **FLUX, fallback_order=order, allow_empty=True)
        exact, loose = list(order), list(order)
        bags = deal_by_the_book(lengths, sizes, 0.0, exact)
        retry = deal_by_the_book(lengths, sizes, ROUNDING_SLACK, loose)
        if retry.count([]) < bags.count([]):
            bags, exact = retry, loose
        assert [list(bag) for bag in assignment.bag_sequences] == bags
        assert assignment.fallback_order == tuple(exact)
        order = assignment.fallback_order
