"""Counts in English, and shares or sizes as people type them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from zellige.errors import UsageError
from zellige.units import count_of, share_or_bytes

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
