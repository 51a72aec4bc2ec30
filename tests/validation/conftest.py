"""The made suite that validation is tested on: a table, a problem and plans, the same for all tests of a process."""

from __future__ import annotations

import pytest
from oracle.made_runs import made_runs, suite_problem, suite_table

from zellige.placement import Plan, Problem
from zellige.prices import PriceTable
from zellige.validate import SetupReport, validate
from zellige.validation_plans import corners, crowded, rotation


@pytest.fixture(scope="session")
def table(tmp_path_factory: pytest.TempPathFactory) -> PriceTable:
    return suite_table("cpux8", tmp_path_factory.mktemp("tables"))


@pytest.fixture(scope="session")
def problem(table: PriceTable) -> Problem:
    return suite_problem(table)


@pytest.fixture(scope="session")
def plans(problem: Problem) -> list[tuple[str, Plan]]:
    return [*rotation(problem, 4), *corners(problem), *crowded(problem)]


@pytest.fixture(scope="session")
def perfect(problem: Problem, plans: list[tuple[str, Plan]]) -> SetupReport:
    """What is said where everything was measured as predicted."""
    return validate(made_runs(problem, plans), problem)
