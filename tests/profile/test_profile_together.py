"""Probes that ranks run beside each other: the same work on every rank, and real exchanges in what they measure."""

from __future__ import annotations

import msgspec
import pytest
from oracle.made_measurements import HOST, setting

from zellige.measuring import ranks_together
from zellige.op_terms import KEPT, LIVE
from zellige.profile.compute import BOX_NS, FEWEST, MOST, probe_measure, probe_result, trial_of
from zellige.profile.grid import Probe, probe_program, probes
from zellige.profile.timing import Sample, merged, operations
from zellige.shards import WHOLE, ParallelConfig


@pytest.mark.parametrize("cluster", ["cpux2", "cpux4", "cpux8"])
def test_the_measured_rank_does_the_same_alone_and_among_others(cluster: str) -> None:
    place = setting(cluster)
    num_ranks = place.cluster.num_ranks
    for probe in probes(*place[:3]):
        alone = probe_program(probe, place.model, "full")
        among = probe_program(probe, place.model, "full", num_ranks)
        assert (alone.num_ranks, among.num_ranks) == (probe.config.degree, num_ranks)
        assert list(operations(among, probe.rank)) == list(operations(alone, probe.rank))
        busy = [rank for rank in range(num_ranks) if among.positions(rank)]
        assert busy == list(range(num_ranks - num_ranks % probe.config.degree))


def test_ranks_measure_together_where_each_has_a_core() -> None:
    two, eight = setting("cpux2"), setting("cpux8")
    assert ranks_together(two, "cpu", HOST) == 2
    assert ranks_together(two, "cpu", msgspec.structs.replace(HOST, cores=1)) == 1
    assert ranks_together(eight, "cpu", HOST) == 1
    assert ranks_together(eight, "cpu", msgspec.structs.replace(HOST, cores=8)) == 8
    assert ranks_together(two, "cuda", HOST) == 1


def test_samples_of_ranks_are_averaged() -> None:
    def sample(ns: float, spread: float) -> Sample:
        return Sample(key="x", terms={"calls": 1.0}, ns=ns, spread=spread)

    assert merged([[sample(10, 0.1)], [sample(20, 0.3)]]) == (sample(15, 0.2),)
    with pytest.raises(ValueError, match="shorter"):
        merged([[sample(10, 0.1)], []])


@pytest.mark.dist
def test_probes_are_measured_by_ranks_that_exchange() -> None:
    place = setting()
    small, large = place.buckets[0], place.buckets[2]
    wanted = [
        Probe(small, WHOLE, 3),
        Probe(large, ParallelConfig(h=2), 2, 1),
        Probe(small, ParallelConfig(k=2), 4),
        Probe(large, ParallelConfig(q=2), others=((small, 2),)),
    ]
    with probe_measure(place.model, "full", "cpu", "fp32", together=2) as measure:
        found = [measure(probe) for probe in wanted]
    for probe, result in zip(wanted, found, strict=True):
        program = probe_program(probe, place.model, "full")
        assert result.probe == probe.key
        keys = [key for key, _ in operations(program, probe.rank)]
        assert [sample.key for sample in result.samples] == [*keys, KEPT, LIVE]
        assert all(sample.ns > 0 for sample in result.samples)
        assert result.own_ns > 0.8 * sum(
            sample.ns * (1 if sample.key == "outside" else program.num_layers)
            for sample in result.samples
            if sample.key not in (KEPT, LIVE)
        )
    with probe_measure(place.model, "full", "cpu", "fp32") as measure:
        alone = measure(wanted[1])
    here = {sample.key: sample for sample in found[1].samples}
    for sample in alone.samples:
        assert here[sample.key].terms == sample.terms
        if sample.key in (KEPT, LIVE):
            assert here[sample.key].ns == pytest.approx(sample.ns, rel=0.02)


@pytest.mark.dist
def test_as_many_steps_as_fit_and_the_same_on_every_rank() -> None:
    from zellige.exec.launch import staying_ranks
    from zellige.exec.trial import RankTrial, staying_task

    place = setting()
    probe = Probe(place.buckets[0], ParallelConfig(q=2), 2)
    trial = trial_of(probe, place.model, "full", "fp32", 2)
    with staying_ranks(staying_task, b"", 2) as ask:
        counts = []
        for box_ns in (1, BOX_NS, 1 << 60):
            request = msgspec.json.encode(msgspec.structs.replace(trial, box_ns=box_ns))
            ranks = [msgspec.json.decode(answer, type=RankTrial) for answer in ask(request)]
            assert len({len(rank.steps) for rank in ranks}) == 1
            counts.append(len(ranks[0].steps))
            made = probe_result(probe, trial.program, dict(enumerate(ranks)), lambda: 1.0)
            assert made.spread >= 0
    assert (counts[0], counts[2]) == (FEWEST, MOST)
    assert FEWEST <= counts[1] <= MOST
