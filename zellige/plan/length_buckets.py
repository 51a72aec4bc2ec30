"""Lengths rounded up to few, by the exact dynamic programme of FlexSP (arXiv 2412.01523, sequence bucketing)."""

from __future__ import annotations

from collections.abc import Mapping


def length_buckets(counts: Mapping[int, int], number: int) -> dict[int, int]:
    """The longest length of the bucket of every length, for at most ``number`` buckets.

    ``counts`` says how many sequences have each length. Buckets are runs of neighbouring lengths with the least sum of
    ``bucket's longest - length`` over all sequences; of equals, the one whose last cut is the lowest.
    """
    lengths = sorted(counts)
    if len(lengths) <= number:
        return {length: length for length in lengths}
    sequences, tokens = [0], [0]
    for length in lengths:
        sequences.append(sequences[-1] + counts[length])
        tokens.append(tokens[-1] + counts[length] * length)

    def waste(first: int, last: int) -> int:
        return lengths[last - 1] * (sequences[last] - sequences[first]) - (tokens[last] - tokens[first])

    best: list[list[int | None]] = [[0] + [None] * len(lengths)]
    cuts: list[list[int]] = [[0] * (len(lengths) + 1)]
    for _ in range(number):
        row: list[int | None] = [None] * (len(lengths) + 1)
        cut = [0] * (len(lengths) + 1)
        for last in range(1, len(lengths) + 1):
            for first in range(last):
                before = best[-1][first]
                if before is None:
                    continue
                total = before + waste(first, last)
                held = row[last]
                if held is None or total < held:
                    row[last], cut[last] = total, first
        best.append(row)
        cuts.append(cut)
    tops: dict[int, int] = {}
    last = len(lengths)
    for level in range(number, 0, -1):
        first = cuts[level][last]
        tops.update(dict.fromkeys(lengths[first:last], lengths[last - 1]))
        last = first
    return tops


def rounding_waste(counts: Mapping[int, int], tops: Mapping[int, int]) -> int:
    """Tokens that the buckets add over all sequences."""
    return sum(count * (tops[length] - length) for length, count in counts.items())
