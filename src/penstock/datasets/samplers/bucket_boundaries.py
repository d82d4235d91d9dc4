"""Bucket boundaries at the quantiles of a lognormal distribution.

SpeechBrain computes the quantiles with SciPy. Batches must be the same bit for bit, and SciPy is a
large dependency for one function, so this module uses SciPy's method: the rational approximations
of the Cephes library, in the same order of operations.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float64]]

_ROOT_OF_TWO_PI = 2.50662827463100050242
_TAIL = 0.13533528323661269189  # exp(-2): another approximation below it and above 1 minus it
# Numerator and denominator of each approximation, the highest power first.
_MIDDLE = (
    """-59.9633501014107895267 98.0010754185999661536 -56.6762857469070293439
    13.9312609387279679503 -1.23916583867381258016""",
    """1.0 1.95448858338141759834 4.67627912898881538453 86.3602421390890590575
    -225.462687854119370527 200.260212380060660359 -82.0372256168333339912
    15.9056225126211695515 -1.18331621121330003142""",
)
_OUTER = (
    """4.05544892305962419923 31.5251094599893866154 57.1628192246421288162
    44.0805073893200834700 14.6849561928858024014 2.18663306850790267539
    -0.140256079171354495875 -0.0350424626827848203418 -8.57456785154685413611e-4""",
    """1.0 15.7799883256466749731 45.3907635128879210584 41.3172038254672030440
    15.0425385692907503408 2.50464946208309415979 -0.142182922854787788574
    -0.0380806407691578277194 -9.33259480895457427372e-4""",
)


def make_lognormal_boundaries(count: int, top: float) -> Floats:
    """Return ``count`` evenly spaced quantiles of a lognormal distribution, scaled to ``top``.

    >>> make_lognormal_boundaries(5, 100).round(4).tolist()
    [14.4447, 24.7054, 38.0062, 58.4678, 100.0]
    """
    parts = np.linspace(1 / (count + 1), count / (count + 1), count)
    quantiles = np.exp(compute_normal_quantiles(parts))
    return np.sort(quantiles * top / quantiles[-1])


def compute_normal_quantiles(parts: Floats) -> Floats:
    """Return the quantiles of the normal distribution for probabilities between 0 and 1.

    >>> compute_normal_quantiles(np.array([0.025, 0.5, 0.975])).round(6).tolist()
    [-1.959964, 0.0, 1.959964]
    """
    upper = parts > 1 - _TAIL
    lower = np.where(upper, 1 - parts, parts)
    middle = lower > _TAIL
    found = np.empty_like(parts)

    off = lower[middle] - 0.5
    square = off * off
    above, below = (_evaluate_polynomial(square, terms) for terms in _MIDDLE)
    found[middle] = (off + off * (square * above / below)) * _ROOT_OF_TWO_PI

    # The C library's logarithm: numpy's may differ in the last bit.
    far = np.sqrt(-2.0 * _log(lower[~middle]))
    near = 1.0 / far
    above, below = (_evaluate_polynomial(near, terms) for terms in _OUTER)
    tails = (far - _log(far) / far) - near * above / below
    found[~middle] = np.where(upper[~middle], tails, -tails)
    return found


def _evaluate_polynomial(at: Floats, terms: str) -> Floats:
    first, *others = map(float, terms.split())
    value = np.full_like(at, first)
    for term in others:
        value = value * at + term
    return value


def _log(values: Floats) -> Floats:
    return np.fromiter(map(math.log, values.tolist()), np.float64, len(values))
