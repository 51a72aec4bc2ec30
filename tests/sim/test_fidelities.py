"""What the three fidelities must agree on, what must be conserved, and that repeated layers are the full run."""

from __future__ import annotations

import msgspec
import pytest
from builders import ALONE, NODE, ONE_STREAM, TWO_NODES, WAN, Placed, model_of, priced, problem_of, program_of
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from zellige.catalog import load_cluster
from zellige.cluster import Cluster
from zellige.placement import Engine
from zellige.shards import parse_config
from zellige.sim import FIDELITIES, Fidelity, SimOptions, additivity, simulate
from zellige.sim.simulate import Simulation

ENGINES: tuple[Engine, ...] = ("per_sequence", "group", "coalesced")
CONFIGS = ("whole", "whole", "h2", "h4", "q2", "q3", "k2", "h2k2", "q2h2", "h4k2")

PLANS = st.lists(
    st.tuples(st.integers(500, 60_000), st.sampled_from(CONFIGS), st.permutations(range(8))), min_size=1, max_size=9
).map(lambda rows: [(length, config, tuple(order[: parse_config(config).degree])) for length, config, order in rows])


def mixed(num_ranks: int = 8) -> list[Placed]:
    """Overlapping sets, rings and whole sequences of several lengths."""
    placed: list[Placed] = [
        (75_600, "h4k2", tuple(range(8))), (40_000, "h4", (0, 1, 2, 3)), (33_000, "h4", (3, 4, 5, 6)),
        (20_000, "k2", (6, 7)), (18_000, "q2h2", (1, 2, 6, 7)),
    ]  # fmt: skip
    return placed + [(1_000 + 700 * index, "whole", (index * 5 % num_ranks,)) for index in range(21)]


def run(
    placed: list[Placed],
    engine: Engine,
    fidelity: Fidelity = "event",
    options: SimOptions = ALONE,
    *,
    cluster: Cluster = NODE,
    layers: int = 3,
) -> Simulation:
    problem = problem_of(cluster, model_of(layers), engine=engine)
    return simulate(program_of(placed, problem), problem, fidelity, options)


# --- agreement


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=25)
@given(length=st.integers(500, 90_000), count=st.integers(1, 4), config=st.sampled_from(["h4", "q8", "h2k4", "h4k2"]))
def test_one_stream_without_partners_to_wait_for_is_additive(
    engine: Engine, length: int, count: int, config: str
) -> None:
    """Ranks with the same work never wait: whole sequences alike, and splits over all ranks that divide the tokens."""
    degree = parse_config(config).degree
    placed = [(length - length % 8 + 8, config, tuple(range(degree)))] * count
    placed += [(length, "whole", (rank,)) for rank in range(8) for _ in range(count)]
    assume(degree == 8 or config == "h4")
    event = run(placed, engine, "event", ONE_STREAM).report
    additive = run(placed, engine, "additive", ONE_STREAM).report
    assert event.step_time_ns == additive.step_time_ns
    assert [msgspec.structs.replace(rank) for rank in event.ranks] == list(additive.ranks)


@pytest.mark.parametrize("engine", ENGINES)
def test_without_whole_work_two_streams_are_additive_as_well(engine: Engine) -> None:
    """Nothing fills the exchanges, and ring rounds hide behind the same attention."""
    placed = [(75_600, "h4k2", tuple(range(8))), (48_000, "h2k4", tuple(range(8)))]
    times = {fidelity: run(placed, engine, fidelity).report.step_time_ns for fidelity in FIDELITIES}
    assert len(set(times.values())) == 1


@pytest.mark.parametrize("name", ["a800x8", "a800x16", "l40sx8", "h100x64"])
@pytest.mark.parametrize("engine", ENGINES)
def test_shared_links_are_event_where_nothing_overlaps(engine: Engine, name: str) -> None:
    """One sequence on all ranks, and the same whole work on each: no port ever carries two transfers."""
    cluster = load_cluster(name)
    ranks = tuple(range(cluster.num_ranks))
    lonely = [
        (cluster.num_ranks * 6_000, f"h4k{cluster.num_ranks // 4}", ranks),
        *((9_000, "whole", (rank,)) for rank in ranks),
    ]
    event, flow = (run(lonely, engine, fidelity, cluster=cluster).report for fidelity in ("event", "flow"))
    assert event.step_time_ns == flow.step_time_ns
    assert event.ranks == flow.ranks


@settings(max_examples=25)
@given(placed=PLANS, engine=st.sampled_from(ENGINES))
def test_shared_links_are_never_faster(placed: list[Placed], engine: Engine) -> None:
    """Without slow-down: what shares a link ends later, and nothing else starts earlier."""
    options = SimOptions(slowdown=0.0)
    event, flow = (run(placed, engine, fidelity, options).report for fidelity in ("event", "flow"))
    assert flow.step_time_ns >= event.step_time_ns


def test_pairs_share_a_host_bridge() -> None:
    """Four pairs on PCIe at once: the bridge carries what one pair does, so each exchange takes four times as long."""
    cluster = load_cluster("l40sx8")
    pairs: list[Placed] = [(48_000, "h2", (rank, rank + 1)) for rank in (0, 2, 4, 6)]
    one, event, flow = (
        run(placed, "per_sequence", fidelity, cluster=cluster).report
        for placed, fidelity in ((pairs[:1], "event"), (pairs, "event"), (pairs, "flow"))
    )
    assert event.step_time_ns == one.step_time_ns
    bridge = max(point.num_ranks * point.bus_gb_per_s for point in cluster.node_link.fits)
    pair = 2 * next(p.bus_gb_per_s for p in cluster.node_link.fits if (p.op, p.num_ranks) == ("all_to_all", 2))
    assert flow.ranks[0].exchange_ns / event.ranks[0].exchange_ns == pytest.approx(4 * pair / bridge, rel=1e-4)


# --- conservation


@settings(max_examples=40)
@given(placed=PLANS, engine=st.sampled_from(ENGINES), fidelity=st.sampled_from(FIDELITIES), state=st.booleans())
def test_work_is_conserved_and_causes_add_up(
    placed: list[Placed], engine: Engine, fidelity: Fidelity, state: bool
) -> None:
    problem = problem_of(model=model_of(3), engine=engine)
    program = program_of(placed, problem)
    prices = priced(program, problem)
    report = simulate(program, problem, fidelity, SimOptions(state_traffic=state), prices=prices).report
    for rank in report.ranks:
        assert rank.total_ns == report.step_time_ns
        assert min(rank.slowdown_ns, rank.wait_ns, rank.exchange_ns, rank.gather_ns, rank.idle_ns) >= 0
        due = sum(sum(prices.compute[phase][rank.rank]) for phase in ("forward", "recompute", "backward"))
        assert rank.compute_ns == 3 * due


@settings(max_examples=40)
@given(placed=PLANS, engine=st.sampled_from(ENGINES))
def test_no_step_is_shorter_than_its_work_or_longer_than_all_of_it(placed: list[Placed], engine: Engine) -> None:
    report = run(placed, engine).report
    busy = [rank.compute_ns + rank.calls_ns for rank in report.ranks]
    transfers = sum(rank.exchange_ns + rank.slowdown_ns for rank in report.ranks)
    assert max(busy) <= report.step_time_ns <= sum(busy) + transfers


@settings(max_examples=25)
@given(
    placed=PLANS,
    engine=st.sampled_from(ENGINES),
    factor=st.floats(1.0, 4.0),
    faster=st.sampled_from(["link", "compute"]),
)
def test_a_faster_cluster_is_never_slower(placed: list[Placed], engine: Engine, factor: float, faster: str) -> None:
    """Without slow-down of overlapped compute, which a transfer that starts earlier can cause elsewhere."""
    device = NODE.device
    fits = tuple(
        msgspec.structs.replace(point, bus_gb_per_s=point.bus_gb_per_s * factor) for point in NODE.node_link.fits
    )
    if faster == "link":
        better = msgspec.structs.replace(NODE, node_link=msgspec.structs.replace(NODE.node_link, fits=fits))
    else:
        compute = msgspec.structs.replace(device.compute, bf16_tflops=device.compute.bf16_tflops * factor)
        better = msgspec.structs.replace(NODE, device=msgspec.structs.replace(device, compute=compute))
    options = SimOptions(slowdown=0.0)
    for fidelity in FIDELITIES:
        before = run(placed, engine, fidelity, options).report.step_time_ns
        assert run(placed, engine, fidelity, options, cluster=better).report.step_time_ns <= before


@settings(max_examples=40)
@given(placed=PLANS, engine=st.sampled_from(ENGINES), names=st.permutations(range(8)), state=st.booleans())
def test_names_of_equal_ranks_do_not_matter(
    placed: list[Placed], engine: Engine, names: list[int], state: bool
) -> None:
    renamed = [(length, config, tuple(names[rank] for rank in ranks)) for length, config, ranks in placed]
    options = SimOptions(state_traffic=state)
    first, second = (run(plan, engine, "event", options).report for plan in (placed, renamed))
    assert first.step_time_ns == second.step_time_ns
    for rank in first.ranks:
        other = second.ranks[names[rank.rank]]
        assert msgspec.structs.replace(other, rank=rank.rank) == rank


# --- repeated layers


@pytest.mark.parametrize("fidelity", ["event", "flow"])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("cluster", [NODE, TWO_NODES], ids=lambda cluster: cluster.name)
@pytest.mark.parametrize("prefetch", [None, 1, 2])
def test_repeated_layers_are_the_full_run(
    fidelity: Fidelity, engine: Engine, cluster: Cluster, prefetch: int | None
) -> None:
    """Times, causes, memory and every span of 30 layers; None: without gathers."""
    options = SimOptions(trace=True, prefetch=prefetch or 1, state_traffic=prefetch is not None)
    full = msgspec.structs.replace(options, repeat_layers=False)
    short, long = (run(mixed(), engine, fidelity, told, cluster=cluster, layers=30) for told in (options, full))
    assert short.report.layers_simulated < 30 == long.report.layers_simulated
    same = msgspec.structs.replace(
        short.report, layers_simulated=long.report.layers_simulated, events=long.report.events
    )
    assert same == long.report
    assert short.trace.spans == long.trace.spans


@settings(max_examples=15)
@given(placed=PLANS, engine=st.sampled_from(ENGINES), prefetch=st.integers(0, 2))
def test_any_plan_repeats_as_its_full_run(placed: list[Placed], engine: Engine, prefetch: int) -> None:
    options = SimOptions(prefetch=prefetch)
    full = msgspec.structs.replace(options, repeat_layers=False)
    short, long = (run(placed, engine, "event", told, layers=24).report for told in (options, full))
    assert short.ranks == long.ranks
    assert short.memory == long.memory


# --- reports


@pytest.mark.parametrize("engine", ENGINES)
def test_the_difference_from_additive_is_explained_to_the_nanosecond(engine: Engine) -> None:
    reports = {fidelity: run(mixed(), engine, fidelity, SimOptions(), layers=30).report for fidelity in FIDELITIES}
    for fidelity in ("event", "flow"):
        split = additivity(reports["additive"], reports[fidelity], reports["flow"])
        assert split.explained_ns == split.simulated_ns - split.additive_ns
    assert split.ratio == reports["flow"].step_time_ns / reports["additive"].step_time_ns


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_spans_are_those_of_the_program(fidelity: Fidelity) -> None:
    placed = mixed()
    problem = problem_of(model=model_of(3))
    program = program_of(placed, problem)
    done = simulate(program, problem, fidelity, SimOptions(trace=True))
    names = {program.span(phase, op) for work in program.ranks for phase in ("forward", "recompute", "backward")
             for op in work.ops(phase) if op.kind not in ("wait", "keep")}  # fmt: skip
    own = {span.name for span in done.trace.spans if span.lane in ("compute", "network")}
    assert own - names <= {"optimizer", "fsdp.gather", "fsdp.reduce"}
    assert done.trace.program == program.digest
    assert done.trace.duration_ns == done.report.step_time_ns
    for rank in done.report.ranks:
        compute = done.trace.time_in("compute", rank.rank)
        assert compute == sum(rank.work_ns.values()) + rank.slowdown_ns
        waits = [span for span in done.trace.spans if span.lane == "wait" and span.rank == rank.rank]
        assert sum(span.duration_ns for span in waits) == rank.total_ns - compute - rank.idle_ns
    received = sum(span.bytes for span in done.trace.spans if span.lane == "network" and "fsdp" not in span.name)
    assert received == program.step_bytes


def test_memory_grows_in_forward_and_is_freed_in_backward() -> None:
    problem = problem_of(model=model_of(3))
    program = program_of(mixed(), problem)
    report = simulate(program, problem).report
    used = [point.used_bytes for point in report.memory]
    turn = used.index(max(used))
    assert used[: turn + 1] == sorted(used[: turn + 1])
    assert used[turn:] == sorted(used[turn:], reverse=True)
    assert max(used) == report.peak_memory_bytes
    assert used[-1] == problem.memory.base_bytes
    assert WAN.geometry.num_layers != 3
