"""CP-SAT as every planner here uses it: the same answer every time, and an interrupt ends it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait

from ortools.sat.python import cp_model

POLL_S = 0.05
"""How often a search that does not know yet that it is to stop is told."""


def make_solver(deterministic_limit: float, *, gap: float = 0.0, linearization: int = 1) -> cp_model.CpSolver:
    """A solver with one worker, a seed, a limit in CP-SAT's deterministic units, which are about seconds, and the
    relative gap at which it may end."""
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.linearization_level = linearization
    solver.parameters.max_deterministic_time = deterministic_limit
    solver.parameters.relative_gap_limit = gap
    return solver


def solve(
    solver: cp_model.CpSolver, model: cp_model.CpModel, callback: cp_model.CpSolverSolutionCallback | None = None
) -> cp_model.CpSolverStatus:
    """The status that a search ends with. An interrupt, or another exception of a signal, stops it and is raised.

    CP-SAT's own handler would take an interrupt for a limit: what had been found by then would be the answer. Without
    it Python hears of signals only between two of its own instructions, so the search runs beside them in a thread.
    """
    solver.parameters.catch_sigint_signal = False
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(solver.solve, model, callback)
        try:
            return found.result()
        finally:
            while not found.done():
                solver.stop_search()
                wait([found], POLL_S)
