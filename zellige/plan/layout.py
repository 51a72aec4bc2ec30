"""One array of integers that holds many, and where each of them stands: what the compiled loops read and write.

Compiled functions take one array and a named tuple of plain integers faster than many arrays. numpy loads on first use.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Ints = Any
"""An int64 array, or where nothing is compiled a list of integers."""


class Layout:
    """Segments one after another, by name."""

    def __init__(self, before: Layout | None = None) -> None:
        """Empty, or with the segments of another layout in front."""
        self.starts: dict[str, int] = dict(before.starts) if before else {}
        self.parts: list[Ints] = list(before.parts) if before else []
        self.size: int = before.size if before else 0

    def put(self, segments: Mapping[str, Iterable[int]]) -> None:
        """Append segments."""
        for name, values in segments.items():
            part = int_array(values)
            self.starts[name] = self.size
            self.parts.append(part)
            self.size += len(part)

    def leave(self, sizes: Mapping[str, int]) -> None:
        """Append segments of zeros."""
        for name, size in sizes.items():
            self.starts[name] = self.size
            self.size += size
        self.parts.append(zeros(sum(sizes.values())))

    def joined(self) -> Ints:
        """All segments in one array."""
        import numpy

        return numpy.concatenate(self.parts) if self.parts else int_array([])


def int_array(values: Iterable[int]) -> Ints:
    """An int64 array."""
    import numpy

    return numpy.array(values if isinstance(values, list) else list(values), dtype=numpy.int64)


def zeros(*shape: int) -> Ints:
    """An int64 array of zeros."""
    import numpy

    return numpy.zeros(shape, dtype=numpy.int64)
