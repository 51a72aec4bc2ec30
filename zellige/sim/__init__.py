"""Simulate programs on clusters: additive, by discrete events, and with shared links."""

from zellige.sim.options import DEFAULTS, FIDELITIES, Fidelity, Noise, SimOptions
from zellige.sim.results import Additivity, RankTime, SimReport, additivity
from zellige.sim.simulate import Simulation, simulate

__all__ = [
    "DEFAULTS",
    "FIDELITIES",
    "Additivity",
    "Fidelity",
    "Noise",
    "RankTime",
    "SimOptions",
    "SimReport",
    "Simulation",
    "additivity",
    "simulate",
]
