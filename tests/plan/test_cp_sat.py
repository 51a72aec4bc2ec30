"""CP-SAT's answers, and that an interrupt ends a search at once, whichever planner asked for it."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from ortools.sat.python import cp_model

from zellige.plan.cp_sat import make_solver, solve

ROOT = Path(__file__).resolve().parents[2]

LONG = 8
"""Seconds within which an interrupted search must end; those interrupted here go on for longer if they are let."""

INTERRUPTED = """
import os, pathlib, signal, threading, time

def interrupt():
    while not pathlib.Path("begun").exists():
        time.sleep(0.01)
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt, daemon=True).start()
"""

MODEL = """
import random
from ortools.sat.python import cp_model
from zellige.plan.cp_sat import make_solver, solve

chance, model = random.Random(1), cp_model.CpModel()
sizes = [chance.randint(10**6, 10**7) for _ in range(300)]
bins = [[model.new_bool_var("") for _ in range(17)] for _ in sizes]
for each in bins:
    model.add_exactly_one(each)
longest = model.new_int_var(0, sum(sizes), "")
for place in range(17):
    model.add(sum(size * each[place] for size, each in zip(sizes, bins)) <= longest)
model.minimize(longest)
pathlib.Path("begun").touch()
try:
    solve(make_solver(600), model)
    print("not interrupted")
except KeyboardInterrupt:
    print("interrupted", signal.getsignal(signal.SIGINT) is signal.default_int_handler)
    caught = int([line for line in open("/proc/self/status") if line.startswith("SigCgt")][0].split()[1], 16)
    print("handler", bool(caught & 1 << signal.SIGINT - 1))
"""


def run(program: str, folder: Path) -> str:
    """What a program in a fresh interpreter prints that is interrupted a second after its search began."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED + textwrap.dedent(program)], cwd=folder, env={"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=300, check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert not done.stderr, done.stderr
    assert time.time() - (folder / "begun").stat().st_mtime < LONG
    return done.stdout


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc/self/status")
def test_an_interrupt_ends_a_search_and_leaves_pythons_handler(tmp_path: Path) -> None:
    assert run(MODEL, tmp_path) == "interrupted True\nhandler True\n"


def test_an_interrupt_ends_a_plan_by_cp_sat_and_nothing_is_written(tmp_path: Path) -> None:
    clips = [f'{{"id": "{n}", "width": {256 + 16 * n}, "height": 480, "num_frames": 33, "fps": 16}}' for n in range(48)]
    (tmp_path / "clips.jsonl").write_text("\n".join(clips))
    program = """
        import sys
        import zellige.plan.cp_sat as cp_sat

        real = cp_sat.make_solver
        def made(limit, **options):
            pathlib.Path("begun").touch()
            return real(600, **options | {"gap": 0.0})

        cp_sat.make_solver = made
        import zellige.cli
        sys.argv = "zellige-sim plan clips.jsonl --cluster a800x16 --model wan2.1-t2v-1.3b --policy joint".split()
        sys.argv += ["-o", "plan.json"]
        try:
            zellige.cli.main()
        except SystemExit as end:
            print("ended with", end.code)
    """
    assert run(program, tmp_path) == "ended with 130\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["begun", "clips.jsonl"]


def test_a_search_says_what_it_found() -> None:
    model = cp_model.CpModel()
    number = model.new_int_var(0, 10, "")
    model.add(2 * number <= 13)
    model.maximize(number)
    solver = make_solver(1)
    assert solve(solver, model) == cp_model.OPTIMAL
    assert solver.value(number) == 6
    model.add(number >= 7)
    assert solve(make_solver(1), model) == cp_model.INFEASIBLE


def test_no_planner_makes_a_solver_of_its_own() -> None:
    """One of its own would answer an interrupt by its best plan so far."""
    sources = [*ROOT.glob("zellige/**/*.py"), *ROOT.glob("benchmarks/*.py")]
    assert [path.name for path in sources if "CpSolver()" in path.read_text()] == ["cp_sat.py"]
