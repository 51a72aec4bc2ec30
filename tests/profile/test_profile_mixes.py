"""Probes of all buckets at once."""

from __future__ import annotations

from collections import Counter

import pytest
from oracle.made_measurements import setting

from zellige.profile.estimate import work_estimate
from zellige.profile.grid import CROWD, MOST_COPIES, Probe, mixes, probe_buckets, probe_program
from zellige.shards import WHOLE


def test_mixes_hold_every_bucket_in_about_equal_parts() -> None:
    place = setting("cpux4")
    longest_first = sorted(place.buckets, key=lambda bucket: -bucket.num_tokens)
    whole, split = mixes(place.model, place.cluster, longest_first)
    assert (whole.config, split.config.degree) == (WHOLE, 2)
    for probe in (whole, split):
        assert not probe.is_plain
        assert [bucket for bucket, _ in probe.others] == longest_first[1:]
        fill = CROWD * longest_first[0].num_tokens / len(longest_first)
        for bucket, count in probe.others:
            assert count == MOST_COPIES or fill - bucket.num_tokens < count * bucket.num_tokens <= max(
                fill, bucket.num_tokens
            )
        program = probe_program(probe, place.model, "full", 4)
        buckets = probe_buckets(probe, place.model, 4)
        for segment in program.segments:
            assert segment.length == place.model.sequence_length(buckets[segment.sequence].num_tokens)
        # Each rank has its own of everything that is whole, and a share of what is split.
        for rank in range(4):
            mine = Counter(buckets[program.segments[index].sequence] for index in program.positions(rank))
            assert mine == Counter(dict(probe.others)) + Counter([probe.bucket])
    alone = work_estimate(place, Probe(whole.bucket, WHOLE))
    rest = sum(count * work_estimate(place, Probe(bucket, WHOLE)) for bucket, count in whole.others)
    assert work_estimate(place, whole) == pytest.approx(alone + rest, rel=1e-6)
    assert mixes(place.model, place.cluster, longest_first[:1]) == []
