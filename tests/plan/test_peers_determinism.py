"""Peers plan the same in another process, whatever order its sets have."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from oracle.batches import make_problem

from zellige.plan import plan_batch

PEERS = (
    "flexsp", "fcp", "megatron-hybrid-cp", "bytescale-hdp", "hydraulis", "hotspa", "dcp", "loongtrain-2d",
)  # fmt: skip
SHAPES = [(1280, 720, 1)] * 4 + [(832, 480, 81)]

PROGRAM = """
    import sys
    from oracle.batches import make_problem
    from zellige.plan import plan_batch
    problem = make_problem([(1280, 720, 1)] * 4 + [(832, 480, 81)], "a800x4")
    print(*(plan_batch(problem, name).digest for name in sys.argv[1:]))
"""


@pytest.mark.slow
def test_plans_are_the_same_under_another_hash_seed() -> None:
    problem = make_problem(SHAPES, "a800x4")
    here = [plan_batch(problem, name).digest for name in PEERS]
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), *PEERS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.split() == here
