"""Counts in English, and shares or sizes as people type them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from zellige.errors import UsageError
from zellige.units import count_of, format_bytes, format_percent, share_of, share_or_bytes

PACKAGE = Path(__file__).resolve().parent.parent / "zellige"


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (0, "sequence", "0 sequences"),
        (1, "sequence", "1 sequence"),
        (2000, "sequence", "2,000 sequences"),
        (1, "batch", "1 batch"),
        (3, "batch", "3 batches"),
        (2, "more rank", "2 more ranks"),
        (1, "GPU", "1 GPU"),
    ],
)
def test_counts_agree_with_what_is_counted(number: int, noun: str, text: str) -> None:
    assert count_of(number, noun) == text


NOUNS = (
    "sequence|rank|clip|plan|step|frame|token|layer|node|GPU|micro-step|finding|price|video|split|bucket|shape|row|job"
    "|replica|exchange|file|event|message|bag|group|round|batche"
)
RAW_COUNT = re.compile(rf"(?<![A-Z])(?<![A-Z]:,)\}}\s(?:{NOUNS})s\b")
"""A fixed plural behind a number that is no constant."""

NO_NUMBER = "{result.source} prices"
COUNTED_ELSEWHERE = {"cluster.py", "collectives.py", "placement.py", "problem.py", "measuring.py", "theory.py"}
"""Modules whose counts are never one, or stand in errors that only a program meets."""


def raw_counts(text: str) -> list[str]:
    """Lines that put a number before a fixed plural."""
    return [line.strip() for line in text.splitlines() if RAW_COUNT.search(line.replace(NO_NUMBER, ""))]


def test_no_message_counts_by_hand() -> None:
    """``1 sequences``: a number before a fixed plural, in the modules of the command line and the hallway."""
    modules = [
        path
        for path in sorted(PACKAGE.glob("*.py"))
        if path.name not in COUNTED_ELSEWHERE and not path.name.startswith("valid")
    ]
    assert len(modules) > 40
    assert {path.name: found for path in modules if (found := raw_counts(path.read_text(encoding="utf-8")))} == {}


def test_counting_by_hand_is_seen() -> None:
    assert raw_counts('f"{len(ranks)} ranks"') == ['f"{len(ranks)} ranks"']
    assert raw_counts("f\"{count_of(n, 'rank')}\"") == []


def test_parts_and_wholes_are_written_alike() -> None:
    assert share_of(2000, 2000, "clip") == "2,000 of 2,000 clips"
    assert share_of(0, 1, "batch") == "0 of 1 batch"


PART_OF_COUNT = re.compile(r"\{(?!count_of|format_count|run\.network)[^{}]*\}\sof\s\{count_of\(")
"""A number as it is beside one with separators: ``2000 of 2,000 clips``. A network's name is none."""

PERCENT = re.compile(r"%\}")
"""Python's own percentages have no space before their sign."""


def test_no_message_mixes_ways_to_write_numbers() -> None:
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        assert PART_OF_COUNT.findall(text) == [], path.name
        assert PERCENT.search(text) is None, path.name


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (512, "512 B"),
        (85_899_345_920, "85.9 GB"),
        (647_000_000_000, "647 GB"),
        (1_546_000_000_000, "1,546 GB"),
        (9_990_000_000_000, "9,990 GB"),
        (9_996_000_000_000, "10.0 TB"),
        (2 * 10**14, "200 TB"),
        (-1_546_000_000_000, "-1,546 GB"),
    ],
)
def test_sizes_beside_each_other_are_in_one_unit(count: int, text: str) -> None:
    assert format_bytes(count) == text


def test_percentages() -> None:
    assert format_percent(0.0008) == "0.08 %"
    assert format_percent(0.141, 1) == "14.1 %"
    assert format_percent(0.034, 1, signed=True) == "+3.4 %"
    assert format_percent(-0.5, 0, signed=True) == "-50 %"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("5%", 50),
        ("0.05%", 1),
        ("0%", 0),
        ("12.5 %", 125),
        ("2GB", 2 * 10**9),
        ("1.5 GB", 1_500_000_000),
        ("512MB", 512 * 10**6),
        ("1GiB", 2**30),
        ("3kB", 3000),
        ("7B", 7),
    ],
)
def test_shares_and_sizes(text: str, found: int) -> None:
    assert share_or_bytes(text, 1000, "--reserve") == found


@pytest.mark.parametrize(
    "text", ["", "5", "GB", "-1%", "1e3GB", "5%GB", "٣%", "nan%", "1" * 30 + "B", "5 percent", "5g"]
)
def test_what_is_neither_says_what_would_be(text: str) -> None:
    with pytest.raises(UsageError, match="--reserve") as caught:
        share_or_bytes(text, 1000, "--reserve")
    assert caught.value.fix == "--reserve 5%, or --reserve 2GB"
