"""What the GPU script writes, and how it times and checks: rows with medians and spreads, on any device."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from typing import Literal, NamedTuple

import msgspec
import torch

import zellige
from zellige import catalog
from zellige.cluster import Device
from zellige.exec.kernels import Kernel


class HostInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Where the rows were measured."""

    platform: str
    cpus: int
    python: str
    zellige: str
    torch: str
    cuda: str
    nccl: str
    driver: str
    device: str
    capability: str
    memory_bytes: int
    multiprocessors: int
    kernel: str


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One check (``passed`` is set) or one measurement (times are set): quartiles are the spread of its repeats."""

    part: str
    name: str
    passed: bool | None = None
    repeats: int = 0
    median_ns: int = 0
    low_quartile_ns: int = 0
    high_quartile_ns: int = 0
    figures: dict[str, float] = {}
    note: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All rows of a run; ``left_out`` names what the time did not suffice for."""

    schema: str = "zellige.gpu-checks/1"
    origin: Literal["gpu", "cpu-rehearsal"]
    host: HostInfo
    seconds: float
    rows: tuple[Row, ...]
    left_out: tuple[str, ...]

    @property
    def failed(self) -> list[Row]:
        """Checks that did not pass, and rows that ended in an error."""
        return [row for row in self.rows if row.passed is False]


class Timing(NamedTuple):
    """Repeats of one call, in nanoseconds."""

    repeats: list[int]

    @property
    def median(self) -> float:
        """The median repeat."""
        return statistics.median(self.repeats)


def host_info(device: torch.device, kernel: Kernel) -> HostInfo:
    """Host, device and versions."""
    properties = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    return HostInfo(
        platform=platform.platform(),
        cpus=os.cpu_count() or 0,
        python=platform.python_version(),
        zellige=zellige.__version__,
        torch=str(torch.__version__),
        cuda=str(torch.version.cuda),
        nccl=".".join(map(str, torch.cuda.nccl.version())) if properties else "",
        driver=_driver() if properties else "",
        device=properties.name if properties else "cpu",
        capability=f"{properties.major}.{properties.minor}" if properties else "",
        memory_bytes=properties.total_memory if properties else 0,
        multiprocessors=properties.multi_processor_count if properties else 0,
        kernel=kernel.name,
    )


def _driver() -> str:
    try:
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError) as error:
        return f"unknown ({type(error).__name__})"


def catalog_device(name: str) -> Device | None:
    """The catalog's device that a driver's name holds (``NVIDIA H200`` is h200), the longest match; None without."""
    words = name.lower().replace("-", " ").split()
    found = [entry for entry in catalog.names("devices") if entry.split("-")[0] in words or entry in "-".join(words)]
    return catalog.load_device(max(found, key=len)) if found else None


class Bench:
    """A run: its device and kernel, its deadline, and the rows so far."""

    def __init__(self, device: torch.device, kernel: Kernel, *, rehearsal: bool, minutes: float) -> None:
        self.device = device
        self.kernel = kernel
        self.rehearsal = rehearsal
        self.info = host_info(device, kernel)
        self.known = catalog_device(self.info.device)
        self.rows: list[Row] = []
        self.left_out: list[str] = []
        self._started = time.monotonic()
        self._deadline = self._started + 60 * minutes

    def report(self) -> Report:
        """The rows so far."""
        return Report(
            origin="cpu-rehearsal" if self.rehearsal else "gpu",
            host=self.info,
            seconds=round(time.monotonic() - self._started, 3),
            rows=tuple(self.rows),
            left_out=tuple(self.left_out),
        )

    def scaled(self, size: int) -> int:
        """A size as it is, or small enough for a rehearsal."""
        return max(1, min(size // 16, 16 + size % 7)) if self.rehearsal else size

    def attempt(self, part: str, name: str, run: Callable[[], Row | None], *, needs_s: float = 2.0) -> None:
        """Add a row if time is left. A failure becomes a row too, so that the rest is still measured."""
        if time.monotonic() + (0 if self.rehearsal else needs_s) > self._deadline:
            self.left_out.append(f"{part}: {name}")
            return
        try:
            row = run()
        except Exception as error:
            note = f"{type(error).__name__}: {error}"
            row = Row(part=part, name=name, passed=False, note=note[:2000])
        if row is not None:
            self.rows.append(row)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def time(self, call: Callable[[], object], *, budget_s: float = 0.4) -> Timing:
        """Repeat a call, after warm-ups, for about ``budget_s`` seconds: 3 to 30 times, in a rehearsal twice."""
        for _ in range(0 if self.rehearsal else 2):
            call()
        first = self._once(call)
        count = 2 if self.rehearsal else max(3, min(30, int(budget_s * 1e9 / max(first, 1))))
        return Timing([self._once(call) for _ in range(count)])

    def _once(self, call: Callable[[], object]) -> int:
        if self.device.type != "cuda":
            start = time.perf_counter_ns()
            call()
            return time.perf_counter_ns() - start
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        begin.record()
        call()
        end.record()
        end.synchronize()
        return int(begin.elapsed_time(end) * 1e6)


def timed_row(part: str, name: str, timing: Timing, figures: dict[str, float], note: str = "") -> Row:
    """A measurement."""
    low, _, high = statistics.quantiles(timing.repeats, n=4)
    return Row(
        part=part,
        name=name,
        repeats=len(timing.repeats),
        median_ns=int(timing.median),
        low_quartile_ns=int(low),
        high_quartile_ns=int(high),
        figures={key: float(f"{value:.6g}") for key, value in figures.items()},
        note=note,
    )


def checked_row(part: str, name: str, errors: dict[str, float], limits: dict[str, float], note: str = "") -> Row:
    """A check: every figure that has a limit must not exceed it; NaN exceeds any."""
    passed = all(errors[key] <= limit for key, limit in limits.items())
    figures = {**errors, **{f"limit_{key}": limit for key, limit in limits.items()}}
    return Row(
        part=part,
        name=name,
        passed=passed,
        figures={key: float(f"{value:.6g}") for key, value in figures.items()},
        note=note,
    )
