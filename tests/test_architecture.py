"""Who may import whom, what loads when, and how large files and functions may be."""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "zellige"

HALLWAY = (
    "errors",
    "units",
    "interrupts",
    "standard_streams",
    "files",
    "lines",
    "model",
    "cluster",
    "workload",
    "generate",
    "clips",
    "shards",
    "collectives",
    "exchange_loads",
    "memory",
    "calibration",
    "prices",
    "bucket_sets",
    "analytic",
    "price_book",
    "spreads",
    "problem",
    "placement",
    "schedule",
    "waits_kernel",
    "waits",
    "program_parts",
    "lowering",
    "program",
    "replay",
    "program_checks",
    "trace",
    "chrome_trace",
    "kineto",
    "exchange_prices",
    "op_prices",
    "op_terms",
    "measured_ops",
    "catalog",
)
"""Nouns, in order: each imports only what stands before it."""

TOP = (
    "sources",
    "outcomes",
    "rows",
    "simulation",
    "compare",
    "sweep",
    "sweep_file",
    "sensitivity",
    "batch_memory",
    "fitting",
    "check",
    "plan_check",
    "schedule_check",
    "inspection",
    "report",
    "report_explore",
    "report_simulation",
    "cuts",
    "theory",
    "interference",
    "trials",
    "validation_plans",
    "recorded_runs",
    "predictions",
    "validate",
    "measuring",
    "validation_report",
    "train",
    "importers",
    "cli_arguments",
    "cli_support",
    "cli_compare",
    "cli_execute",
    "cli_explore",
    "cli_measure",
    "cli_plan",
    "cli_run",
    "cli_app",
    "cli",
)
"""The layer that joins rooms: nothing below imports it."""

FORBIDDEN = {
    "plan": {"sim", "exec", "torch"},
    "sim": {"plan", "exec", "torch", "ortools"},
    "exec": {"plan", "sim", "ortools"},
    "profile": set[str](),
}
"""The rooms, and what each never imports."""

HEAVY = {"torch", "ortools", "scipy", "networkx"}
"""What ``import zellige.cli`` must not load, and no hallway module may use."""

CLI_ROOTS = {"errors", "cli_arguments", "cli_support"}
ONLY_LAZILY = {
    "cli": CLI_ROOTS,
    "cli_app": CLI_ROOTS | {"cli_compare", "cli_execute", "cli_explore", "cli_measure", "cli_plan", "cli_run"},
    "cli_compare": CLI_ROOTS,
    "cli_execute": CLI_ROOTS,
    "cli_explore": CLI_ROOTS,
    "cli_measure": CLI_ROOTS,
    "cli_plan": CLI_ROOTS,
    "cli_run": CLI_ROOTS,
    "cli_support": {"errors"},
    "cli_arguments": {"errors"},
}
"""Modules that import the rest of the package inside function bodies only, and what they may load at once."""


class Import(NamedTuple):
    """One imported module: its dotted name, where it stands, and whether that is inside a function."""

    name: str
    line: int
    lazy: bool


def imports(source: str, module: str) -> Iterator[Import]:
    """Every import of a module's source; ``from a import b`` counts as ``a.b``, relative ones are made absolute."""
    tree = ast.parse(source)
    lazy = {
        inner
        for outer in ast.walk(tree)
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for inner in ast.walk(outer)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, node in lazy)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*module.split(".")[: -node.level], *filter(None, [base])])
            for alias in node.names:
                yield Import(f"{base}.{alias.name}", node.lineno, node in lazy)


def unit(name: str) -> str:
    """The flat module or room of a dotted name inside the package, or the name of another package."""
    parts = name.split(".")
    return parts[1] if parts[0] == "zellige" and len(parts) > 1 else parts[0]


def complaint(importer: str, imported: Import) -> str:
    """Why a module of the package may not have an import; empty where it may."""
    here, there = unit(importer), unit(imported.name)
    foreign = imported.name.split(".")[0] != "zellige"
    if here in HALLWAY:
        if foreign:
            return f"the hallway does without {there}" if there in HEAVY else ""
        if there in HALLWAY[: HALLWAY.index(here)]:
            return ""
        return f"{there} does not stand above {here}"
    if not foreign and there in TOP and here not in TOP:
        return f"{there} is of the top layer"
    if there in FORBIDDEN.get(here, ()):
        return f"{here} never imports {there}"
    if here == "profile" and there in {"exec", "torch"} and not imported.lazy:
        return f"profile imports {there} inside functions only"
    if here in ONLY_LAZILY and not foreign and not imported.lazy and there not in ONLY_LAZILY[here]:
        return f"{here} imports {there} inside functions only"
    if here in TOP and there in HEAVY and not imported.lazy:
        return f"the top layer imports {there} inside functions only"
    return ""


def modules() -> dict[str, Path]:
    """The package's modules by dotted name, its own ``__init__`` left out."""
    paths = sorted(PACKAGE.rglob("*.py"))
    dotted = {".".join(("zellige", *path.relative_to(PACKAGE).with_suffix("").parts)): path for path in paths}
    return {name: path for name, path in dotted.items() if name != "zellige.__init__"}


def test_imports_go_one_way() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{imported.line}: {why}"
        for name, path in modules().items()
        for imported in imports(path.read_text(encoding="utf-8"), name)
        if (why := complaint(name, imported))
    ]
    assert found == []


def test_every_module_has_its_place() -> None:
    flat = {unit(name) for name, path in modules().items() if path.parent == PACKAGE}
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert flat <= {*HALLWAY, *TOP}
    assert rooms <= set(FORBIDDEN)
    assert not set(FORBIDDEN) & {*HALLWAY, *TOP}
    assert not set(HALLWAY) & set(TOP)
    assert (flat | rooms) >= {"errors", "workload", "prices", "placement", "cli", "plan"}


@pytest.mark.parametrize(
    ("module", "source", "why"),
    [
        ("zellige.units", "from zellige.errors import UsageError", ""),
        ("zellige.units", "from zellige.files import digest", "files does not stand above units"),
        ("zellige.units", "import zellige.files", "files does not stand above units"),
        ("zellige.units", "from zellige import units", "units does not stand above units"),
        ("zellige.units", "from .files import digest", "files does not stand above units"),
        (
            "zellige.prices",
            "def f():\n    from zellige.plan.cut import catalog_cut",
            "plan does not stand above prices",
        ),
        ("zellige.prices", "from zellige.sources import Source", "sources does not stand above prices"),
        ("zellige.memory", "import torch", "the hallway does without torch"),
        ("zellige.memory", "import math, msgspec", ""),
        ("zellige.plan.cut", "import torch.distributed", "plan never imports torch"),
        ("zellige.plan.cut", "from zellige import exec", "plan never imports exec"),
        ("zellige.plan.cut", "from ..sim.events import Event", "plan never imports sim"),
        ("zellige.plan.cut", "from ortools.sat.python import cp_model\nfrom .bags import x", ""),
        ("zellige.plan.cut", "from zellige.compare import compare", "compare is of the top layer"),
        ("zellige.sim.events", "def f():\n    import ortools", "sim never imports ortools"),
        ("zellige.sim.events", "from zellige.plan import plan_batch", "sim never imports plan"),
        ("zellige.exec.loopback", "import torch", ""),
        ("zellige.exec.loopback", "from zellige.sim import simulate", "exec never imports sim"),
        ("zellige.profile.grid", "import torch", "profile imports torch inside functions only"),
        ("zellige.profile.grid", "def f():\n    import torch", ""),
        ("zellige.compare", "from zellige.plan import plan_batch", ""),
        ("zellige.compare", "import scipy.stats", "the top layer imports scipy inside functions only"),
        ("zellige.cli", "from zellige.errors import ZelligeError\nimport typer", ""),
        ("zellige.cli", "from zellige.files import digest", "cli imports files inside functions only"),
        ("zellige.cli", "if True:\n    import zellige.plan", "cli imports plan inside functions only"),
        ("zellige.cli", "def f():\n    from zellige.plan import plan_batch", ""),
    ],
)
def test_the_rule_tells_right_from_wrong(module: str, source: str, why: str) -> None:
    assert [text for imported in imports(source, module) if (text := complaint(module, imported))] == [why] * bool(why)


# --- what loads when


def run_python(program: str, *arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run a program in a fresh interpreter that has the checkout on its path."""
    command = [sys.executable, "-c", textwrap.dedent(program), *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)


def test_the_command_line_loads_nothing_heavy() -> None:
    done = run_python("""
        import sys
        import zellige.cli
        foreign = {"torch", "ortools", "scipy", "networkx", "numpy", "typer", "msgspec"}
        print(*sorted({name.split(".")[0] for name in sys.modules} & foreign))
        import zellige.cli_app
        print(*sorted({name.split(".")[0] for name in sys.modules} & foreign))
    """)
    assert (done.stdout.splitlines(), done.stderr) == (["", "typer"], "")


def test_planning_loads_no_solver_that_it_does_not_use(tmp_path: Path) -> None:
    """OR-Tools brings pandas along, and takes a second: only policies that solve with it load it, when they plan."""
    (tmp_path / "small.jsonl").write_text('{"width": 512, "height": 512, "num_frames": 1, "count": 6}\n')
    arguments = ["plan", "small.jsonl", "--cluster", "a800x4", "--model", "wan2.1-t2v-1.3b", "--policy"]
    program = """
        import sys
        from zellige.cli import main

        try:
            main()
        finally:
            print("loaded:", *sorted({"torch", "ortools", "pandas", "scipy", "networkx"} & set(sys.modules)))
        """
    for policy, loaded in (("zellige", []), ("zellige-paper", ["ortools", "pandas"])):
        done = run_python(program, *arguments, policy, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1].split()[1:] == loaded, policy


def test_the_core_compares_without_torch(tmp_path: Path) -> None:
    batch = tmp_path / "small.jsonl"
    batch.write_text(
        '{"width": 832, "height": 480, "num_frames": 81, "fps": 16, "count": 2}\n'
        '{"width": 512, "height": 512, "num_frames": 1, "count": 6}\n'
    )
    done = run_python(
        """
        import sys

        class NoTorch:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] in {"torch", "flash_attn"}:
                    raise ImportError(name)

        sys.meta_path.insert(0, NoTorch())
        from zellige.cli import main

        sys.argv = ["zellige-sim", "compare", sys.argv[1], "--cluster", "a800x4", "--model", "wan2.1-t2v-1.3b"]
        try:
            main()
        finally:
            print("torch loaded:", "torch" in sys.modules)
        """,
        str(batch),
    )
    assert done.returncode == 0, done.stderr
    assert "torch loaded: False" in done.stdout
    assert all(policy in done.stdout for policy in ("dp", "usp", "static", "zellige-paper"))


def test_a_room_named_as_a_standard_module_shadows_nothing() -> None:
    """``profile`` and ``trace`` are also modules of the standard library, which cProfile imports by bare name."""
    done = run_python("""
        import cProfile, profile, trace
        import zellige.trace
        print(hasattr(profile, "Profile"), hasattr(trace, "Trace"), hasattr(cProfile, "Profile"))
    """)
    assert (done.stdout.split(), done.stderr) == (["True"] * 3, "")


def test_the_command_line_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "zellige.cli", "--version"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    init = (PACKAGE / "__init__.py").read_text(encoding="utf-8")
    assert f'__version__ = "{done.stdout.strip()}"' in init


# --- sizes

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60


def python_files() -> list[Path]:
    folders = [ROOT / name for name in ("zellige", "tests", "benchmarks", "examples")]
    return [path for folder in folders if folder.is_dir() for path in sorted(folder.rglob("*.py"))]


def too_long(source: str) -> list[str]:
    """The functions of a source that take more lines than a screen has, decorators included."""
    return [
        f"{node.name}: {length} lines"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or 0) - min([node.lineno, *(d.lineno for d in node.decorator_list)]) + 1)
        > MAX_FUNCTION_LINES
    ]


def test_files_and_functions_stay_readable() -> None:
    texts = {path.relative_to(ROOT): path.read_text(encoding="utf-8") for path in python_files()}
    long_files = {str(path): len(text.splitlines()) for path, text in texts.items()}
    assert {path: lines for path, lines in long_files.items() if lines > MAX_FILE_LINES} == {}
    assert {str(path): names for path, text in texts.items() if (names := too_long(text))} == {}


def test_long_functions_are_seen() -> None:
    body = "    pass\n" * (MAX_FUNCTION_LINES - 1)
    assert too_long(f"def short():\n{body}") == []
    assert too_long(f"def long():\n{body}    pass\n") == ["long: 61 lines"]
    decorated = "@decorated\nasync def long():\n" + body
    assert too_long(decorated) == ["long: 61 lines"]
