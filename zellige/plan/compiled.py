"""The planner's inner loops compiled by numba, where it is installed (extra ``fast``) and many plans are to come.

Compiled or not, a plan is the same byte for byte. Loading compiled loops takes about a second in a new process, and
compiling them about a minute the first time on a machine; then they are kept beside the sources or in numba's
cache folder, if either can be written. So a single plan is made without.
"""

from __future__ import annotations

import hashlib
import importlib
import types
from functools import cache
from pathlib import Path
from typing import Any

LARGEST = 2**62
"""No figure in compiled loops may reach this."""

ALLOCATING = frozenset({"zellige.plan.packing_kernel"})
"""Modules whose functions make lists. All others need no count of who holds an array, which numba would keep on every
call (``_nrt``) and which takes longer than what they do."""

_state = {"wanted": False}


def prefer_compiled(wanted: bool = True) -> None:
    """Use compiled loops from now on in this process where numba can be imported, or no longer."""
    _state["wanted"] = wanted


def is_compiled() -> bool:
    """Whether this process uses compiled loops."""
    return _state["wanted"] and _has_numba()


@cache
def _has_numba() -> bool:
    """Whether numba is installed and fits this Python and numpy, which it says by an ImportError."""
    try:
        importlib.import_module("numba")
    except ImportError:
        return False
    return True


@cache
def compiled(module_name: str, function: str) -> Any:
    """A function of a module whose functions take integers, arrays and named tuples of them, compiled with all that it
    calls in its module."""
    return _compile_module(module_name)[function]


@cache
def _compile_module(module_name: str) -> dict[str, Any]:
    """Copies of a module's functions that call each other's compiled copies, and those of other kernels."""
    options: dict[str, Any] = {"_nrt": module_name in ALLOCATING}
    module = importlib.import_module(module_name)
    names = dict(vars(module))
    for name, function in vars(module).items():
        if not isinstance(function, types.FunctionType):
            continue
        if function.__module__ == module_name:
            copy = types.FunctionType(function.__code__, names, name)
            copy.__module__, copy.__qualname__ = module_name, f"{name}_F{_stamp()}"
            names[name] = _jit(copy, {**options, "forceinline": name.startswith("_")})
        elif function.__module__.endswith("_kernel"):
            names[name] = compiled(function.__module__, function.__name__)
    return names


@cache
def _stamp() -> str:
    """A hash of all kernels' sources. numba keeps a function on disk until its own file changes; with the hash in its
    name it is made anew as well where what it calls has changed, or a constant from elsewhere."""
    sources = sorted([*Path(__file__).parent.glob("*.py"), *Path(__file__).parents[1].glob("*_kernel.py")])
    kernels = [path.read_bytes() for path in sources if path.stem.endswith(("_kernel", "_places"))]
    return hashlib.sha256(b"".join(kernels)).hexdigest()[:12]


def _jit(function: Any, options: dict[str, Any]) -> Any:
    """A function for numba, kept on disk; where no folder for that can be written, compiled anew in each process."""
    import numba

    try:
        return numba.njit(function, cache=True, **options)
    except RuntimeError:
        return numba.njit(function, **options)
