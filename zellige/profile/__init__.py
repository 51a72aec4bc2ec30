"""Prices measured where the user stands, and what measuring them would take."""

from zellige.profile.estimate import ProfileEstimate, estimate_profile

__all__ = ["ProfileEstimate", "estimate_profile"]
