"""Privacy-loss distributions of dp_accounting as curves of ours, and the way back.

The only module that reads private attributes of dp_accounting, which has no public ones for the
masses of a distribution; pyproject.toml bounds its version for that reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sordino.privacy.curves.loss_direction import Direction
from sordino.privacy.curves.loss_distributions import LossCurve

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution


def read_distribution(distribution: PrivacyLossDistribution) -> LossCurve:
    """Returns the curve of a distribution of dp_accounting.

    Args:
        distribution: With one law for both directions, or with two.

    Returns:
        The same masses on the same grid.
    """
    pmfs = [distribution._pmf_remove]
    if distribution._pmf_add is not distribution._pmf_remove:
        pmfs.append(distribution._pmf_add)
    directions = []
    for pmf in pmfs:
        dense = pmf.to_dense_pmf()
        masses = np.asarray(dense._probs)
        infinite = float(dense._infinity_mass)
        directions.append(Direction(dense._lower_loss, dense._discretization, masses, infinite))
    return LossCurve(directions=tuple(directions))


def write_distribution(curve: LossCurve) -> PrivacyLossDistribution:
    """Returns the distribution of a curve, for functions of dp_accounting.

    Args:
        curve: With one law for both directions, or with two.

    Returns:
        The same masses on the same grid.
    """
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    pmfs = [
        pld_pmf.DensePLDPmf(one.interval, one.lowest, one.masses, one.infinite, True)
        for one in curve.directions
    ]
    return PrivacyLossDistribution(*pmfs)
