"""Uploads of clients that keep models of their own without noise: what a record has changed stays with the client.

A client of fedavg with a personal model uploads it under noise and goes on from the model itself. Given all that was released, two
neighbouring clients hold models at a distance D, and a round moves that to a D + s_t, where s_t = 2V sum_k eta_k is the shift of
the round's own steps and a is the share of the own model in what comes out of a round. A round that is not taken part in
changes nothing. So with E_0 = 0, E_(t+1) = max(E_t, a E_t + s_t) no history is further apart than E_t, and no upload than
U_t = a E_t + s_t. Distances after a number of rounds taken part in are the largest when these are the first ones, as rates never
grow and a is the largest over all rounds. Own models are kept in float64: rounded to float32 after every round they would be further
apart than that.
"""

from __future__ import annotations

import numpy as np

from sordino.privacy import sensitivity
from sordino.protocol import FedAvg, Interpolate, Protocol


def carries(protocol: Protocol) -> bool:
    """Whether something that no noise ever touched passes from round to round in a client.

    With noisy-sgd nothing does. A client that starts every round from the global model, or from one made of uploads, forgets its own.
    """
    own = protocol.personalization
    if not protocol.keeps_models or not isinstance(protocol.local, FedAvg):
        return False
    return getattr(own, "pull", None) is not None or (
        isinstance(own, Interpolate) and own.alpha < 1
    )


def carried_shifts(protocol: Protocol, rates: np.ndarray) -> np.ndarray:
    """U_t for every round: how far an upload moves at most; one row of `rates` per round, from the first on.

    Example:
        >>> from sordino.protocol import Constant, Gaussian
        >>> local = FedAvg(steps=1, batch=1, clip=1.0, schedule=Constant(rate=0.5))
        >>> plan = Protocol(clients=2, rounds=3, local=local, noise=Gaussian(sigma=1.0), personalization=Interpolate(alpha=0.5))
        >>> carried_shifts(plan, np.full((3, 1), 0.5)).tolist()
        [1.0, 1.5, 1.75]
    """
    own, rule = protocol.personalization, protocol.local
    if not isinstance(rule, FedAvg):
        raise TypeError(f"{rule.tag} carries nothing")
    pull = getattr(own, "pull", None) or 0.0
    moved = sensitivity.first_used(rates, rule.clip, proximal=pull)[:, 0]
    share = float(kept_shares(own, rates).max())
    uploads, apart = np.empty(len(rates)), 0.0
    for t, shift in enumerate(np.asarray(moved).tolist()):
        uploads[t] = share * apart + shift
        apart = max(apart, uploads[t])
    return uploads


def kept_shares(own: object, rates: np.ndarray) -> np.ndarray:
    """a for every round: how much of a distance between own models is left after it.

    Started from the helper it is the own model's share in that. Pulled to the helper it is prod |1 - eta_k pull| for the start, and
    eta_k pull prod_(j>k) |1 - eta_j pull| of the helper's distance for every step.
    """
    in_helper = 1 - own.alpha if isinstance(own, Interpolate) else 0.0
    pull = getattr(own, "pull", None)
    if pull is None:
        return np.full(len(rates), in_helper)
    left = np.ones(len(rates))
    for step in range(rates.shape[1]):
        left = np.abs(1 - rates[:, step] * pull) * left + rates[:, step] * pull * in_helper
    return left
