"""Uploads of clients that keep models without noise (docs/theory.md#c8).

What a record has changed in such a model stays there.

A client of fedavg with a personal model uploads it under noise and continues from the model itself.
Given all that was released, two neighbouring clients hold models at a distance D, and a round moves
that to a D + s_t, where s_t = 2V sum_k eta_k is the shift of the round's own steps and a is the
share of the kept model in what comes out of a round. A round without the client changes
nothing. So with E_0 = 0, E_(t+1) = max(E_t, a E_t + s_t) no history is further apart than E_t, and
no upload than U_t = a E_t + s_t. Distances after a number of rounds taken part in are the largest
when these are the first ones, as rates never grow and a is the largest over all rounds. Kept models
are float64: rounded to float32 after every round they would be further apart than that.
"""

from __future__ import annotations

import numpy as np

from sordino.privacy import sensitivity
from sordino.protocol import Personalization, Protocol


def carries_noiseless_state(protocol: Protocol) -> bool:
    """Returns whether anything that no noise ever touched passes from round to round in a client.

    With noisy-sgd nothing does. A client that starts every round from the global model, or from one
    made of uploads, forgets what it had.

    Args:
        protocol: The federation.

    Returns:
        Whether uploads must be priced with `find_upload_shifts`.
    """
    if not protocol.keeps_models or protocol.release.in_steps:
        return False
    rule = protocol.personalization
    return rule.pull is not None or rule.own_share > 0


def find_upload_shifts(protocol: Protocol, rates: np.ndarray) -> np.ndarray:
    """Returns U_t for every round: how far an upload moves at most.

    Args:
        protocol: A federation whose clients keep models.
        rates: The learning rates, one row per round, from the first round on.

    Example:
        >>> from sordino.protocol import Constant, FedAvg, Gaussian, Interpolate
        >>> plan = Protocol(
        ...     clients=2,
        ...     rounds=3,
        ...     local=FedAvg(steps=1, batch=1, clip=1.0, schedule=Constant(rate=0.5)),
        ...     noise=Gaussian(sigma=1.0),
        ...     personalization=Interpolate(alpha=0.5),
        ... )
        >>> find_upload_shifts(plan, np.full((3, 1), 0.5)).tolist()
        [1.0, 1.5, 1.75]
    """
    rule = protocol.personalization
    pull = rule.pull or 0.0
    shifts = sensitivity.first_used(rates, protocol.release.clip, proximal=pull)[:, 0]
    share = float(find_kept_shares(rule, rates).max())
    uploads = np.empty(len(rates))
    distance = 0.0
    for t, shift in enumerate(np.asarray(shifts).tolist()):
        uploads[t] = share * distance + shift
        distance = max(distance, uploads[t])
    return uploads


def find_kept_shares(rule: Personalization, rates: np.ndarray) -> np.ndarray:
    """Returns a for every round: how much of a distance between kept models is left after it.

    Started from the helper it is the kept model's share in that. Pulled to the helper it is
    prod |1 - eta_k pull| for the start, and eta_k pull prod_(j>k) |1 - eta_j pull| of the helper's
    distance for every step.

    Args:
        rule: How kept models and the global one are joined.
        rates: The learning rates, one row per round.
    """
    in_helper = rule.own_share
    pull = rule.pull
    if pull is None:
        return np.full(len(rates), in_helper)
    left = np.ones(len(rates))
    for step in range(rates.shape[1]):
        pulled = rates[:, step] * pull
        left = np.abs(1 - pulled) * left + pulled * in_helper
    return left
