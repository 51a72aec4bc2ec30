"""Check and measure the engine on one GPU, within a few minutes: ``python tests/gpu/run.py --out DIR [--minutes 4]``.

Kernels and the engine in bf16 against fp64, one packed call against calls per sequence and against the kernel alone,
attention and GEMM rates at bucket lengths beside the catalog's, copies, and engine layers of eight ranks in turn. The
rows go to ``DIR/gpu_checks.json`` (schema ``zellige.gpu-checks/1``) after every part, so that a run that is cut short
leaves what it has. Exits with 0 where every check passed, 1 where one did not, 6 without a GPU.
``--cpu-rehearsal`` runs every part in tiny sizes on the CPU, with torch's CUDA operators emulated.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent.parent)]

import torch  # noqa: E402
from gpu_checks import engine_checks, group_checks, kernel_checks  # noqa: E402
from gpu_measures import (  # noqa: E402
    attention_measures,
    copy_measures,
    fusion_measures,
    gemm_measures,
    layer_measures,
)
from gpu_report import Bench, Report, Row  # noqa: E402
from oracle.cuda_emulation import aten_flash  # noqa: E402

from zellige.errors import MissingExtraError  # noqa: E402
from zellige.exec.cuda_kernels import AtenFlash, cuda_kernel  # noqa: E402
from zellige.files import readable_json, write_text  # noqa: E402
from zellige.units import format_time  # noqa: E402

PARTS: tuple[Callable[[Bench], None], ...] = (
    kernel_checks,
    attention_measures,
    gemm_measures,
    fusion_measures,
    engine_checks,
    group_checks,
    layer_measures,
    copy_measures,
)
"""The most wanted first: what the time does not suffice for is left out, and named."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all parts; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--cpu-rehearsal", action="store_true")
    options = parser.parse_args(arguments)
    if not options.cpu_rehearsal and not torch.cuda.is_available():
        missing = MissingExtraError("there is no CUDA device", fix="--cpu-rehearsal runs every part on the CPU")
        print(missing, file=sys.stderr)
        return missing.exit_code
    if options.cpu_rehearsal:
        torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    with aten_flash() if options.cpu_rehearsal else contextlib.nullcontext():
        device = torch.device("cpu") if options.cpu_rehearsal else torch.device("cuda", 0)
        kernel = AtenFlash() if options.cpu_rehearsal else cuda_kernel()
        bench = Bench(device, kernel, rehearsal=options.cpu_rehearsal, minutes=options.minutes)
        for part in PARTS:
            part(bench)
            write_text(options.out / "gpu_checks.json", readable_json(bench.report()))
    print(table(bench.report()))
    return 1 if bench.report().failed else 0


def table(report: Report) -> str:
    """The rows as text."""
    lines = [f"{report.host.device}, torch {report.host.torch}, {report.host.kernel}, {report.seconds:.0f} s"]
    lines += [line_of(row) for row in report.rows]
    lines += [f"left out, for want of time: {name}" for name in report.left_out]
    lines.append(f"{len(report.failed)} of {len(report.rows)} rows failed")
    return "\n".join(lines)


def line_of(row: Row) -> str:
    """One row: what it is, how it went, its figures."""
    state = format_time(row.median_ns) if row.passed is None else ("ok" if row.passed else "FAILED")
    figures = "  ".join(f"{k} {v:.4g}" for k, v in row.figures.items() if not k.startswith("limit_"))
    return f"{row.part:<10} {row.name:<52} {state:>8}  {figures}  {row.note if row.passed is False else ''}".rstrip()


if __name__ == "__main__":
    sys.exit(main())
