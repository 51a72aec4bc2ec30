"""Laws from samples: non-negative least squares, each left-out sample predicted by the rest.

Samples that lie far off count less (Huber's weights): on a shared machine some always do.

Coefficients cannot be negative and terms are counts, so a law rises with every term: a longer shard never gets
cheaper. Terms that never vary apart share their cost in a way that predicts equally well.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from zellige.calibration import Law
from zellige.errors import BadTimingError
from zellige.op_terms import LIVE
from zellige.profile.timing import ProbeResult, Sample

ROBUST_ROUNDS = 4
FAR_OFF = 2.0
"""Errors beyond so many median errors count less, in proportion."""

PAST_FLOOR = 1.5
"""Memory peaks of tiny probes are the gradients' and not the tokens': laws are fitted to those this far above the
least."""


def fit_laws(results: Iterable[ProbeResult]) -> tuple[Law, ...]:
    """A law for every operation that was measured, sorted by key."""
    by_key: dict[str, list[Sample]] = {}
    for result in results:
        for sample in result.samples:
            by_key.setdefault(sample.key, []).append(sample)
    by_key[LIVE] = past_floor(by_key.get(LIVE, []))
    return tuple(fit_law(key, by_key[key]) for key in sorted(by_key) if by_key[key])


def past_floor(samples: Sequence[Sample]) -> list[Sample]:
    """Samples that exceed the least by ``PAST_FLOOR``; all of them where few do."""
    if not samples:
        return []
    least = min(sample.ns for sample in samples)
    beyond = [sample for sample in samples if sample.ns > PAST_FLOOR * least]
    return beyond if len(beyond) > 2 * len(samples[0].terms) else list(samples)


def fit_law(key: str, samples: Sequence[Sample]) -> Law:
    """The law of an operation, and how well it predicts samples that it was not fitted on."""
    if not samples:
        raise BadTimingError(f"nothing of {key} was measured")
    terms = sorted({term for sample in samples for term, value in sample.terms.items() if value})
    whole = _solve(terms, samples)
    errors = [abs(_predict(terms, whole, sample) / sample.ns - 1) for sample in samples]
    if len(samples) > len(terms):
        errors = []
        for left_out, sample in enumerate(samples):
            rest = [other for place, other in enumerate(samples) if place != left_out]
            errors.append(abs(_predict(terms, _solve(terms, rest), sample) / sample.ns - 1))
    return Law(
        key=key,
        per_unit={term: value for term, value in zip(terms, whole, strict=True) if value > 0},
        samples=len(samples),
        error=sum(errors) / len(errors),
        worst=max(errors),
    )


def _solve(terms: Sequence[str], samples: Sequence[Sample]) -> list[float]:
    """Coefficients that minimise squared errors over times: relative ones, of which the long operations' count more."""
    import numpy as np
    from scipy.optimize import nnls

    rows = np.array([[sample.terms.get(term, 0.0) / sample.ns for term in terms] for sample in samples])
    scale = np.maximum(rows.max(axis=0), 1e-300)
    rows = rows / scale
    times = np.array([sample.ns for sample in samples])
    size = np.sqrt(times / times.max())
    weights = size
    for _ in range(ROBUST_ROUNDS):
        found, _ = nnls(rows * weights[:, None], weights)
        away = np.abs(rows @ found - 1)
        usual = max(FAR_OFF * float(np.median(away)), 1e-9)
        weights = size * np.sqrt(np.minimum(1.0, usual / np.maximum(away, 1e-12)))
    return [float(value) for value in found / scale]


def _predict(terms: Sequence[str], coefficients: Sequence[float], sample: Sample) -> float:
    return sum(each * sample.terms.get(term, 0.0) for term, each in zip(terms, coefficients, strict=True))
