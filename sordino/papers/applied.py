"""Which published bounds speak about a given protocol, and what they say of its final model. None of them is a promise."""

from __future__ import annotations

from typing import Any

from sordino.papers import convergent
from sordino.protocol import Constant, Everyone, FedAvg, FedProx, Mean, Protocol, StageWise


def published_bounds(protocol: Protocol) -> dict[str, float]:
    """The Gaussian parameter that each applicable theorem of convergent-dp states for who sees the last model only.

    They speak of full participation and the plain mean; Theorems 3(a) and 4 need a smoothness, which the protocol vouches for or not.

    Example:
        >>> from sordino.protocol import Gaussian
        >>> local = FedAvg(steps=5, batch=32, clip=1.0, schedule=StageWise(rate=0.1))
        >>> published_bounds(Protocol(clients=50, rounds=1, local=local, noise=Gaussian(sigma=1.0)))
        {'convergent/theorem-3c': 0.1414213562373095}
    """
    rule, sigma = protocol.local, protocol.noise.sigma
    plain = isinstance(protocol.participation, Everyone) and protocol.aggregation == Mean() and not protocol.client
    if not plain or sigma == 0 or not isinstance(rule, FedAvg) or protocol.keeps_models:
        return {}
    shared: dict[str, Any] = {"rounds": protocol.rounds, "clip": rule.clip, "clients": protocol.clients, "sigma": sigma}
    smoothness = protocol.assumptions.smoothness
    found: dict[str, float] = {}
    if isinstance(rule, FedProx):
        if smoothness is not None and 0 < smoothness < rule.proximal:
            found["convergent/theorem-4"] = convergent.theorem_4(**shared, smoothness=smoothness, proximal=rule.proximal)
    elif isinstance(rule.schedule, StageWise):
        found["convergent/theorem-3c"] = convergent.theorem_3c(**shared, steps=rule.steps, rate=rule.schedule.rate)
    elif isinstance(rule.schedule, Constant) and smoothness is not None and smoothness > 0:
        stated = convergent.theorem_3a(**shared, steps=rule.steps, rate=rule.schedule.rate, smoothness=smoothness)
        found["convergent/theorem-3a"] = stated
    return found
