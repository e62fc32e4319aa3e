"""How far one upload can move when a record of its client is replaced (docs/theory.md#a8, #a11).

The numbers are exact sums of the learning rates. A round's `rates` are those of its K local steps.
Everything holds for every loss function: each step's clipped gradient has norm at most `clip`, so
two steps from the same point differ by at most 2 clip rate.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sordino.privacy.curves import checks


def bound_upload(rates: Iterable[float], clip: float, *, proximal: float = 0.0) -> float:
    """Returns the replace-one sensitivity of one upload.

    It is 2V sum_k eta_k prod_{j>k} |1 - eta_j alpha| (docs/theory.md#a8; #a3 for eta > 1/alpha).
    The same number holds when the whole data set of the client is replaced, and when each example's
    gradient is clipped instead of the minibatch's.

    Args:
        rates: eta_k, the learning rates of the steps.
        clip: V, the largest norm of a step's gradient.
        proximal: Alpha, the pull to the global model; 0 for FedAvg, where the products are 1.

    Example:
        >>> bounds = bound_upload([0.1] * 5, 1.0), bound_upload([5.0] * 3, 1.0, proximal=1.0)
        >>> tuple(round(bound, 12) for bound in bounds)
        (1.0, 210.0)
    """
    return float(first_used(rates, clip, proximal=proximal)[0])


def first_used(rates: Iterable[float], clip: float, *, proximal: float = 0.0) -> np.ndarray:
    """Returns the sensitivity of one upload whose differing record is first used at step k.

    Until then the two local trainings agree, so entry k is
    2V sum_{j>=k} eta_j prod_{i>j} |1 - eta_i alpha| (docs/theory.md#a11).

    Args:
        rates: The learning rates of the steps; or an array with the steps on its last axis, such as
            one row per round.
        clip: V, the largest norm of a step's gradient.
        proximal: Alpha, the pull to the global model.

    Example:
        >>> first_used([0.1] * 5, 1.0).round(12).tolist()
        [1.0, 0.8, 0.6, 0.4, 0.2]
    """
    rates = np.asarray(rates if isinstance(rates, np.ndarray) else list(rates), dtype=float)
    checks.read_vector("rates", rates.ravel())
    checks.require_finite(clip=clip, proximal=proximal)
    moves = rates * later_products(np.abs(1 - rates * proximal))
    # Sums over the steps from k on: cumulative sums from the last step backwards.
    backwards = np.cumsum(moves[..., ::-1], axis=-1)
    return 2 * clip * backwards[..., ::-1]


def later_products(factors: np.ndarray) -> np.ndarray:
    """Returns prod_{j>k} factor_j for each step k.

    It is the share that the later steps leave of a difference made by step k.

    Args:
        factors: The factors of the steps, on the last axis.

    Example:
        >>> later_products(np.array([0.5, 2.0, 3.0])).tolist()
        [6.0, 3.0, 1.0]
    """
    backwards = np.cumprod(factors[..., ::-1], axis=-1)[..., :-1]
    # No step follows the last one.
    after_last = np.ones((*factors.shape[:-1], 1))
    products = np.concatenate([after_last, backwards], axis=-1)
    return products[..., ::-1]
