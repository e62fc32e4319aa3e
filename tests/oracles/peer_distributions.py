"""Our privacy-loss distributions as those of dp_accounting, for functions of other libraries."""

from __future__ import annotations

from dp_accounting.pld import pld_pmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

from sordino.privacy.curves.loss_distributions import LossCurve


def write_distribution(curve: LossCurve) -> PrivacyLossDistribution:
    """Returns the distribution of a curve, for functions of dp_accounting.

    Args:
        curve: With one law for both directions, or with two.

    Returns:
        The same masses on the same grid.
    """
    pmfs = [
        pld_pmf.DensePLDPmf(one.interval, one.lowest, one.masses, one.infinite, True)
        for one in curve.directions
    ]
    return PrivacyLossDistribution(*pmfs)
