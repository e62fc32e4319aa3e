"""One shuffled round as a privacy-loss distribution, from the exact profile of its deltas."""

from __future__ import annotations

import numpy as np

from sordino.privacy.amplification.shuffling import find_shuffled_deltas, find_shuffled_epsilon
from sordino.privacy.curves.loss_distributions import INTERVAL, LossCurve

# Grid points of the losses at which the profile is asked for.
_DOTS = 400


def price_shuffled_round(
    *, local: float, clients: int, share: float = 1.0, interval: float = INTERVAL
) -> LossCurve:
    """Returns one shuffled round as a privacy-loss distribution, to be composed over rounds.

    Args:
        local: Pure epsilon of the randomiser that every client applies.
        clients: Outputs in the batch, the attacked client's included.
        share: Probability that each of the others is in the batch.
        interval: Grid of the privacy losses.

    Example:
        >>> round(price_shuffled_round(local=1.0, clients=1000).epsilon(1e-6), 3)
        0.182
    """
    reach = find_shuffled_epsilon(
        1e-18,
        local=local,
        clients=clients,
        share=share,
    )
    top = max(reach, interval)

    def find_profile(epsilons: np.ndarray) -> np.ndarray:
        """Returns the deltas of the shuffled uploads.

        Args:
            epsilons: where delta is asked for.
        """
        return find_shuffled_deltas(
            epsilons,
            local=local,
            clients=clients,
            share=share,
        )

    gap = max(1, round(top / _DOTS / interval))
    return LossCurve.from_profile(find_profile, interval=interval, gap=gap)
