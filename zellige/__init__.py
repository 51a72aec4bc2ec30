"""Zellige: plan, simulate and run mixed image/video batches for diffusion transformers."""

__version__ = "0.1.0"
