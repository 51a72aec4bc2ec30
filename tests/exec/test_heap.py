"""Freed memory stays: what a step frees costs the next one no page fault."""

from __future__ import annotations

import subprocess
import sys

import pytest

REPEATED = """
import resource, sys
import torch
from zellige.exec.heap import keep_freed_memory

if sys.argv[1] == "kept":
    assert keep_freed_memory()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for megabytes in (3, 20, 7, 48, 1):
        torch.ones(megabytes << 18).add_(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(min(faults() for _ in range(5)))
"""


def page_faults(how: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", REPEATED, how], capture_output=True, text=True, check=True, timeout=120
    )
    return int(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mallopt is glibc's")
def test_what_a_step_frees_costs_the_next_one_no_page_fault() -> None:
    kept, given_back = page_faults("kept"), page_faults("given back")
    # 79 MB are some 20,000 pages of 4 KiB, fewer where the system has larger ones.
    assert kept < 5
    assert given_back > 10 * max(kept, 1)
