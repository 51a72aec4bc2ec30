"""Options and profiles shared by all tests."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("zellige", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("zellige")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Tests of compiled loops, which say so in their names, go to one process, and first.

    Compiling takes a minute, and two processes would compile the same at once. xdist's own groups (3.8) name tests in a
    way that pytest 9.2 no longer lets them.
    """
    from xdist.scheduler import LoadScopeScheduling

    class OneCompiles(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "compiled" if "compiled" in nodeid else nodeid

    return OneCompiles(config, log) if config.getoption("dist") == "load" else None


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
