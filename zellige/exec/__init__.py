"""Runs programs on ranks: exact attention of split and whole sequences, forward and backward.

Imports torch, and never ``plan`` or ``sim``: what to do comes from a :class:`zellige.program.Program` alone.
"""
