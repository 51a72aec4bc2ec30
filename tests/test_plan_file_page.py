"""``docs/plan-file.md`` says what plan files hold: its example is a plan, and its tables name every field."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from zellige.files import decode_json
from zellige.placement import Inputs, Placement, Plan, RankPrediction, Solver, plan_digest
from zellige.plan_check import check_plan
from zellige.schedule import Schedule
from zellige.shards import ParallelConfig
from zellige.sources import Options

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "plan-file.md").read_text(encoding="utf-8")
SCHEDULE_PART = PAGE[PAGE.index("## Several plans") :]


def fenced(language: str) -> str:
    """The one fenced block of a language."""
    (block,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return str(block)


def table(heading: str) -> list[str]:
    """The fields of the first table under a heading."""
    part = PAGE[PAGE.index(f"\n{heading}\n") :]
    rows = part[part.index("| field |") :].split("\n\n")[0].splitlines()[2:]
    return [row.split("`")[1] for row in rows]


def example() -> Plan:
    return decode_json(fenced("json"), Plan, "docs/plan-file.md")


def test_the_example_is_a_plan_that_its_digest_fits() -> None:
    plan = example()
    assert plan.digest == plan_digest(plan)
    assert check_plan(plan, "docs/plan-file.md", Options()) == []


def test_the_program_on_the_page_gives_the_digest(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(fenced("json"), encoding="utf-8")
    command = [sys.executable, "-c", fenced("python")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == example().digest


@pytest.mark.parametrize(
    ("heading", "kind"),
    [
        ("## Fields of a plan", Plan),
        ("### `placements`", Placement),
        ("### `config`", ParallelConfig),
        ("### `predicted`", RankPrediction),
        ("### `inputs`", Inputs),
        ("### `solver`", Solver),
    ],
)
def test_every_field_has_its_row(heading: str, kind: Any) -> None:
    assert table(heading) == [field.encode_name for field in msgspec.structs.fields(kind)]


def test_every_field_of_a_schedule_is_named() -> None:
    own = table("## Several plans in a file")
    fields = {field.encode_name for field in msgspec.structs.fields(Schedule)}
    assert set(own) <= fields
    shared = set(re.findall(r"`(\w+)`", SCHEDULE_PART[: SCHEDULE_PART.index("| field |")]))
    assert fields - set(own) <= shared


def test_the_readme_links_the_page() -> None:
    assert "(docs/plan-file.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
