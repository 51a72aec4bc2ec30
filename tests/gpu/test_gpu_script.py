"""The GPU script: its rehearsal on CPU runs every part, and its checks can fail."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from gpu_checks import KERNEL_CASES, check_kernel, check_ring_backward  # noqa: E402
from gpu_report import Bench, Report, catalog_device  # noqa: E402

from zellige.exec.kernels import CpuFlash, Kernel, Packing  # noqa: E402
from zellige.files import decode_json  # noqa: E402


@pytest.fixture
def script() -> Iterator[ModuleType]:
    """``run.py`` as a module; threads are as before afterwards."""
    spec = importlib.util.spec_from_file_location("gpu_script", HERE / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    threads = torch.get_num_threads()
    yield module
    torch.set_num_threads(threads)


@pytest.mark.slow
def test_a_rehearsal_runs_every_part(tmp_path: Path, script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    status = script.main(["--out", str(tmp_path), "--cpu-rehearsal"])
    printed = capsys.readouterr().out
    assert status == 0, printed
    report = decode_json((tmp_path / "gpu_checks.json").read_text(), Report, "gpu_checks.json")
    assert report.origin == "cpu-rehearsal"
    assert report.left_out == ()
    assert {row.part for row in report.rows} == {
        *("kernel", "engine", "group", "attention", "gemm", "fusion", "layer", "copies")
    }
    for row in report.rows:
        assert row.figures
        assert (row.passed is True) != (row.low_quartile_ns <= row.median_ns <= row.high_quartile_ns > 0)
    assert f"0 of {len(report.rows)} rows failed" in printed


def test_without_a_gpu_it_says_so(
    tmp_path: Path, script: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert script.main(["--out", str(tmp_path / "out")]) == 6
    assert "error[ZL600] there is no CUDA device" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


class Faulty(CpuFlash):
    """A kernel with one fault: a log-sum-exp by base 2, a gradient that is not written, one of another entry."""

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def forward(self, q: Tensor, k: Tensor, v: Tensor, packing: Packing) -> tuple[Tensor, Tensor]:
        out, lse = super().forward(q, k, v, packing)
        return out, lse * 1.4427 if self.fault == "lse" else lse

    def backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, packing: Packing
    ) -> tuple[Tensor, Tensor, Tensor]:
        dq, dk, dv = super().backward(grad, q, k, v, out, lse, packing)
        if self.fault == "unwritten":
            dv[-1] = torch.nan
        if self.fault == "shifted":
            dk = dk.roll(1, 0)
        return dq, dk, dv


def bench(kernel: Kernel, *, minutes: float = 1.0) -> Bench:
    return Bench(torch.device("cpu"), kernel, rehearsal=True, minutes=minutes)


@pytest.mark.parametrize(("fault", "passed"), [("", True), ("lse", False), ("unwritten", False), ("shifted", False)])
def test_a_kernel_with_a_fault_fails_its_check(fault: str, passed: bool) -> None:
    for row in (check_kernel(bench(Faulty(fault)), KERNEL_CASES[2]), check_ring_backward(bench(Faulty(fault)))):
        assert row.passed is passed, row


def test_what_the_time_does_not_suffice_for_is_named_and_an_error_is_a_failed_row() -> None:
    late = bench(CpuFlash(), minutes=-1)
    late.attempt("kernel", "anything", lambda: None)
    assert late.report().left_out == ("kernel: anything",)
    broken = bench(CpuFlash())
    broken.attempt("kernel", "division", lambda: 1 // 0)  # type: ignore[arg-type,return-value]
    (row,) = broken.report().failed
    assert row.note.startswith("ZeroDivisionError")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100-80gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA T4", ""),
    ],
)
def test_a_device_is_found_in_the_catalog_by_its_drivers_name(name: str, found: str) -> None:
    device = catalog_device(name)
    assert (device.name if device else "") == found
