"""Problems of other sequences of the same buckets: what is known of prices is shared, and nothing else is."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from functools import cached_property

import pytest
from oracle.batches import SHAPES, make_problem

from zellige.placement import ENGINES, Engine, Problem
from zellige.problem import OF_PRICES

OF_SEQUENCES = {"counts", "members", "numbers", "inputs", "least_times"}
"""What a problem keeps of its own sequences."""


def some_of(problem: Problem) -> Problem:
    """The problem of every other of its sequences."""
    return problem.with_sequences(problem.batch.sequences[::2], "some")


def test_what_is_kept_is_of_prices_or_of_sequences() -> None:
    kept = {name for name, value in vars(Problem).items() if isinstance(value, cached_property)}
    assert kept == OF_PRICES | OF_SEQUENCES
    assert not OF_PRICES & OF_SEQUENCES


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_shared_is_what_would_be_made_anew(engine: Engine) -> None:
    problem = dataclasses.replace(make_problem([*SHAPES, *SHAPES[3:7]], "a800x16"), engine=engine)
    problem.prepare()
    _ = problem.counts, problem.numbers, problem.inputs
    part = some_of(problem)
    anew = dataclasses.replace(problem, batch=part.batch)
    anew.prepare()
    assert part == anew
    assert part.batch.name == "some"
    for name in OF_PRICES:
        assert getattr(part, name) is getattr(problem, name), name
        assert getattr(part, name) == getattr(anew, name), name
    for name in OF_SEQUENCES:
        assert getattr(part, name) == getattr(anew, name), name
    assert part.counts != problem.counts


def test_another_engine_shares_nothing() -> None:
    problem = make_problem(SHAPES[:4])
    problem.prepare()
    other = dataclasses.replace(problem, engine="group")
    assert not OF_PRICES & set(vars(other))


def test_what_is_shared_goes_with_the_last_problem() -> None:
    problem = make_problem(SHAPES[:4])
    problem.prepare()
    part = some_of(problem)
    table = weakref.ref(problem)
    del problem
    gc.collect()
    assert table() is None
    assert part.options
