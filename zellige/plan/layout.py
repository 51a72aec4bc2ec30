"""Arrays of integers for the compiled loops; numpy loads on first use."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Ints = Any
"""An int64 array, or where nothing is compiled a list of integers."""


def int_array(values: Iterable[Any]) -> Ints:
    """An int64 array of integers, or of rows of them."""
    import numpy

    return numpy.array(values if isinstance(values, (list, tuple)) else list(values), dtype=numpy.int64)


def zeros(*shape: int) -> Ints:
    """An int64 array of zeros."""
    import numpy

    return numpy.zeros(shape, dtype=numpy.int64)


def int_table(rows: list[list[int]], columns: int) -> Ints:
    """Rows of so many integers as an array, also where there are none."""
    return int_array(rows).reshape(len(rows), columns)
