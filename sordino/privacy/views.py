"""Gaussian parameters of the adversaries of THEORY A8 when every client takes part in every round.

`shifts` are the sensitivities s_t of one upload, round by round; every client adds N(0, sigma^2 I) to its upload and the server
takes the plain mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from sordino.privacy import checks
from sordino.privacy.bounded_domain import last_iterate_bounded
from sordino.privacy.last_iterate import last_iterate


def uploads(shifts: Iterable[float], *, sigma: float) -> float:
    """Sees every noisy upload, as the server does: S / sigma with S^2 = sum s_t^2; other clients' noise does not help.

    Example:
        >>> uploads([1.0] * 100, sigma=2.0)
        5.0
    """
    return _ratio(_length(shifts), sigma)


def models(shifts: Iterable[float], *, sigma: float, honest: int) -> float:
    """Sees every global model; `honest` clients, the attacked one included, added noise unknown to the adversary.

    S / (sqrt(honest) sigma): all clients for an eavesdropper, m - k against k colluding clients.

    Example:
        >>> round(models([1.0] * 100, sigma=2.0, honest=50), 8)
        0.70710678
    """
    checks.whole(at_least=1, honest=honest)
    return _ratio(_length(shifts) / math.sqrt(honest), sigma)


def final(shifts: Iterable[float], *, sigma: float, clients: int, rho: Iterable[float], diameter: float | None = None) -> float:
    """Sees the last global model only: sqrt(m H) / sigma with gamma_t = s_t / m (THEORY A7).

    Args:
        shifts: Sensitivity of one upload in each round.
        sigma: Standard deviation of each upload's noise.
        clients: Number m of clients, all of which take part and add noise.
        rho: By how much each round stretches the distance of two global models, at most.
        diameter: Diameter of the ball onto which every released global model is projected, if it is.

    Example:
        >>> round(final([1.0] * 100, sigma=2.0, clients=50, rho=[0.9] * 100), 8)
        0.30821251
    """
    checks.whole(at_least=1, clients=clients)
    gamma = checks.vector("shifts", shifts) / clients
    energy = last_iterate(rho, gamma) if diameter is None else last_iterate_bounded(rho, gamma, diameter)[0]
    return _ratio(math.sqrt(clients * energy), sigma)


def _length(shifts: Iterable[float]) -> float:
    array = checks.vector("shifts", shifts)
    largest = float(array.max())
    return largest * math.sqrt(float(np.square(array / largest).sum())) if largest > 0 else 0.0


def _ratio(shift: float, sigma: float) -> float:
    """shift / sigma, where no noise reveals everything unless there is nothing to reveal."""
    checks.not_negative(sigma=sigma)
    if shift == 0:
        return 0.0
    return shift / sigma if sigma > 0 else math.inf
