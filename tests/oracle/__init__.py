"""Brute-force oracles: slow, obvious restatements of a definition that tests compare the package with."""
