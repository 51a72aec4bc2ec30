"""The cut explorer: every k is planned, the chosen one is Fisher's, and the ends mean all anchors and no anchors."""

from __future__ import annotations

import dataclasses

from zellige.catalog import load_model
from zellige.compare import build_problem
from zellige.cuts import explore_cut
from zellige.placement import Problem
from zellige.plan import plan_batch
from zellige.plan.cut import catalog_cut
from zellige.sources import Options, build_problems, read_source
from zellige.workload import Clip, build_batch

WAN = load_model("wan2.1-t2v-1.3b")


def small_problem() -> Problem:
    clips = [Clip(id="v", width=832, height=480, num_frames=81)]
    clips += [Clip(id=f"i{n}", width=512, height=512, num_frames=1) for n in range(12)]
    clips += [Clip(id=f"j{n}", width=256, height=256, num_frames=1) for n in range(12)]
    batch, _ = build_batch("small", clips, WAN)
    return build_problem(batch, cluster="a800x4", model=WAN, engine="group")


def test_every_k_from_all_anchors_to_none() -> None:
    problem = small_problem()
    ticks: list[int] = []
    report = explore_cut([problem], lambda: ticks.append(1))
    assert [row.k for row in report.rows] == [0, 1, 2, 3]
    assert len(ticks) == 4
    assert report.rows[3].num_split == 0
    assert [bucket.bucket for bucket in report.buckets] == ["256x256x1", "512x512x1", "832x480x81"]
    assert [bucket.role for bucket in report.buckets] == ["filler", "filler", "anchor"]
    prices = [bucket.whole_ns for bucket in report.buckets]
    assert (report.k, report.dispersion) == (catalog_cut(prices).k, catalog_cut(prices).dispersion)
    assert min(report.dispersion) == report.dispersion[report.k - 1]
    chosen = next(row for row in report.rows if row.k == report.k)
    assert chosen.step_time_ns == plan_batch(problem, "zellige-paper").makespan_ns


def test_many_batches_are_means_over_one_catalog() -> None:
    problem = small_problem()
    one, two = explore_cut([problem]), explore_cut([problem, problem])
    assert [row.step_time_ns for row in one.rows] == [row.step_time_ns for row in two.rows]
    assert [2 * (row.num_split or 0) for row in one.rows] == [row.num_split for row in two.rows]
    assert two.batches == 2


def test_the_published_catalog_cuts_images_from_videos() -> None:
    options = Options()
    problems = build_problems(read_source("paper-10s-low-v50", options), options, lambda *_: None)
    report = explore_cut([dataclasses.replace(problem, engine="group") for problem in problems])
    assert report.k == 4
    assert [bucket.role for bucket in report.buckets] == ["filler"] * 4 + ["anchor"] * 3
