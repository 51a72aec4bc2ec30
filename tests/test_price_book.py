"""Tables of a book are those of the formulas, row for row, whatever was asked before."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zellige import price_book as module
from zellige.analytic import analytic_table
from zellige.catalog import load_cluster, load_model
from zellige.price_book import PriceBook
from zellige.sources import Options, build_problems, read_source
from zellige.workload import make_bucket

WAN, NODE = load_model("wan2.1-t2v-1.3b"), load_cluster("a800x4")
SHAPES = ((256, 256, 1), (480, 272, 1), (832, 480, 33), (832, 480, 49), (832, 480, 81))
BUCKETS = tuple(make_bucket(WAN, *shape) for shape in SHAPES)


@settings(max_examples=20)
@given(asked=st.lists(st.lists(st.sampled_from(BUCKETS), unique=True), min_size=1, max_size=4))
def test_a_book_has_the_tables_of_the_formulas(asked: list[list[module.Bucket]]) -> None:
    book = PriceBook(WAN, NODE, "full")
    for buckets in asked:
        assert book.table(buckets) == analytic_table(WAN, NODE, buckets, "full")


def test_a_bucket_is_priced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def spy(model: module.ModelSpec, cluster: module.Cluster, buckets: list[module.Bucket], checkpoint: str) -> object:
        asked.extend(bucket.name for bucket in buckets)
        return analytic_table(model, cluster, buckets, "full")

    monkeypatch.setattr(module, "analytic_table", spy)
    options = Options(batches=12, cluster="a800x4", seed=3)
    problems = build_problems(read_source("gen:openvid", options), options, lambda *_: None)
    assert len(asked) == len(set(asked))
    assert sum(len(problem.batch.buckets) for problem in problems) > 2 * len(asked)


def test_what_is_extrapolated_says_so() -> None:
    plain, marked = (PriceBook(WAN, NODE, "full", extrapolated=yes).table(BUCKETS[:2]) for yes in (False, True))
    assert (plain.sources, marked.sources) == (("analytic",), ("extrapolated",))
    unmarked = [msgspec.structs.replace(row.price, source="analytic") for row in marked.rows]
    assert unmarked == [row.price for row in plain.rows]
