"""Print and read times, bytes and counts. 1 GB is 1e9 bytes; GiB (2**30) appears by that name alone."""

from __future__ import annotations

import re
from fractions import Fraction

from zellige.errors import UsageError

GIB = 2**30
MIB = 2**20
NS_PER_SECOND = 1_000_000_000

_SHARE_OR_BYTES = re.compile(r"(?P<number>\d{1,15}(?:\.\d{1,9})?) ?(?P<unit>%|[kMGT]?B|[KMGT]iB)", re.ASCII)
_BYTES = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12} | {
    f"{letter}iB": 2 ** (10 * power) for power, letter in enumerate("KMGT", 1)
}


def format_time(nanoseconds: int) -> str:
    """A duration with three significant figures: ``238 s``, ``1.52 ms``, ``840 ns``."""
    for unit, scale in (("s", NS_PER_SECOND), ("ms", 1_000_000), ("us", 1_000)):
        if abs(nanoseconds) >= 0.9995 * scale:
            return f"{_three_figures(nanoseconds / scale)} {unit}"
    return f"{nanoseconds} ns"


def format_bytes(count: int) -> str:
    """A size in decimal units with three significant figures: ``85.9 GB``, ``512 B``.

    TB from ten of them on: needs of a TB and rooms of less stand beside each other, and differ by GB.
    """
    for unit, scale, least in (("TB", 10**12, 10), ("GB", 10**9, 1), ("MB", 10**6, 1), ("kB", 10**3, 1)):
        if abs(count) >= 0.9995 * least * scale:
            return f"{_three_figures(count / scale)} {unit}"
    return f"{count} B"


def format_count(count: int) -> str:
    """An integer with thousands separators: ``147,600``."""
    return f"{count:,}"


def count_of(number: int, noun: str) -> str:
    """A number and what is counted, in English: ``1 sequence``, ``2,000 sequences``, ``2 batches``."""
    ending = "" if number == 1 else "es" if noun.endswith(("s", "x", "ch", "sh")) else "s"
    return f"{format_count(number)} {noun}{ending}"


def share_of(number: int, total: int, noun: str) -> str:
    """How many of how many, in one way of writing: ``1 of 20 videos``, ``2,000 of 2,000 clips``."""
    return f"{format_count(number)} of {count_of(total, noun)}"


def format_percent(fraction: float, decimals: int = 2, *, signed: bool = False) -> str:
    """A fraction as a percentage: ``0.08 %``, with one decimal and a sign ``+3.4 %``. Tables print it ``tight``."""
    return f"{100 * fraction:{'+' if signed else ''}.{decimals}f} %"


def ceil_div(numerator: int, denominator: int) -> int:
    """Integer division rounded up, for non-negative numerators and positive denominators."""
    return -(-numerator // denominator)


def share_or_bytes(text: str, whole: int, what: str) -> int:
    """Bytes of ``5%`` (of ``whole``, rounded up), ``2GB`` or ``2GiB``; ``what`` names the option in the error.

    Raises :class:`UsageError` for anything else.
    """
    match = _SHARE_OR_BYTES.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{what} {text!r} is no share and no size", fix=f"{what} 5%, or {what} 2GB")
    number, unit = Fraction(match["number"]), match["unit"]
    exact = whole * number / 100 if unit == "%" else number * _BYTES[unit]
    return ceil_div(exact.numerator, exact.denominator)


def _three_figures(value: float) -> str:
    magnitude = abs(value)
    if magnitude >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if magnitude >= 9.995 else f"{value:.2f}"
