"""Print times, bytes and tokens. Decimal units only: 1 GB is 1e9 bytes; GiB (2**30) appears by that name alone."""

from __future__ import annotations

GIB = 2**30
MIB = 2**20
NS_PER_SECOND = 1_000_000_000


def format_time(nanoseconds: int) -> str:
    """A duration with three significant figures: ``238 s``, ``1.52 ms``, ``840 ns``."""
    for unit, scale in (("s", NS_PER_SECOND), ("ms", 1_000_000), ("us", 1_000)):
        if abs(nanoseconds) >= 0.9995 * scale:
            return f"{_three_figures(nanoseconds / scale)} {unit}"
    return f"{nanoseconds} ns"


def format_bytes(count: int) -> str:
    """A size in decimal units with three significant figures: ``85.9 GB``, ``512 B``."""
    for unit, scale in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if abs(count) >= 0.9995 * scale:
            return f"{_three_figures(count / scale)} {unit}"
    return f"{count} B"


def format_count(count: int) -> str:
    """An integer with thousands separators: ``147,600``."""
    return f"{count:,}"


def format_percent(fraction: float) -> str:
    """A fraction as a percentage with two decimals: ``0.08 %``."""
    return f"{100 * fraction:.2f} %"


def ceil_div(numerator: int, denominator: int) -> int:
    """Integer division rounded up, for non-negative numerators and positive denominators."""
    return -(-numerator // denominator)


def _three_figures(value: float) -> str:
    magnitude = abs(value)
    if magnitude >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if magnitude >= 9.995 else f"{value:.2f}"
