"""Options and profiles shared by all tests."""

from __future__ import annotations

import pytest
from hypothesis import settings

settings.register_profile("zellige", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("zellige")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cases", default=None, metavar="PATH", help="a file or folder of cases of the same form as tests/cases"
    )
    parser.addoption("--plans", default=96, type=int, metavar="N", help="random plans that the engine is held against")
    parser.addoption(
        "--training",
        default=1,
        type=int,
        metavar="N",
        help="scale of the training runs: steps of loss curves, ranks that are killed; 20 is the full check",
    )
