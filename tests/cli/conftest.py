"""Commands run in an empty folder, on a screen so wide that no line of text is wrapped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Run, run_main

from zellige.plan.compiled import is_compiled, prefer_compiled


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Run]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "1000")
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    was = is_compiled()
    yield run_main
    prefer_compiled(was)
