"""The machine that one sits at, without loading torch, and whether a measured table is of another one."""

from __future__ import annotations

import importlib.metadata
import os
import platform

import msgspec

import zellige
from zellige.calibration import HostInfo, host_differences
from zellige.prices import PriceTable


def local_host() -> HostInfo:
    """This machine and its versions; ``torch`` is empty where it is not installed."""
    return HostInfo(
        machine=platform.node() or "unknown",
        processor=platform.processor() or platform.machine(),
        cores=available_cores(),
        python=platform.python_version(),
        torch=_version("torch"),
        zellige=zellige.__version__,
    )


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def table_warnings(table: PriceTable) -> tuple[str, ...]:
    """A line that names what a measured table was measured with and is not here; none for other tables.

    The processor of a table of GPUs is the GPU, of which nothing can be said without torch.
    """
    calibration = table.header.calibration
    if calibration is None:
        return ()
    here = local_host()
    if calibration.device == "cuda":
        here = msgspec.structs.replace(here, processor=calibration.host.processor, cores=calibration.host.cores)
    other = host_differences(calibration.host, here)
    if not other:
        return ()
    return (f"warning: these prices were measured with {', '.join(other)}; zellige-sim profile measures them here",)
