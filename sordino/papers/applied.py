"""Which published bounds speak about a given protocol, and what they say of its final model. None of them is a promise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sordino.papers import convergent
from sordino.protocol import (
    Bezier,
    Constant,
    Continuous,
    Everyone,
    FedAvg,
    FedProx,
    Gaussian,
    Mean,
    Protocol,
    Scaffold,
    StageWise,
    View,
)

if TYPE_CHECKING:
    from sordino.audit.verdict import Finding


# Theorem 3(b) wants c with 1 + 1/2 + ... + 1/K <= c ln(K + 1), and leaves it open; this one serves every K.
HARMONIC = 1.5


def published_bounds(protocol: Protocol) -> dict[str, float]:
    """The Gaussian parameter that each applicable theorem of convergent-dp states for who sees the last model only.

    They speak of full participation and the plain mean; Theorems 3(a), 3(b) and 4 need a smoothness, which the protocol vouches for or not.

    Example:
        >>> from sordino.protocol import Gaussian
        >>> local = FedAvg(steps=5, batch=32, clip=1.0, schedule=StageWise(rate=0.1))
        >>> published_bounds(Protocol(clients=50, rounds=1, local=local, noise=Gaussian(sigma=1.0)))
        {'convergent/theorem-3c': 0.1414213562373095}
    """
    rule, noise = protocol.local, protocol.noise
    if not isinstance(noise, Gaussian) or noise.where != "client":
        return {}
    sigma = noise.sigma
    plain = (
        isinstance(protocol.participation, Everyone)
        and protocol.aggregation == Mean()
        and not protocol.client
    )
    if (
        not plain
        or sigma == 0
        or not isinstance(rule, FedAvg)
        or isinstance(rule, (Bezier, Scaffold))
        or rule.clip_target != "step"
    ):
        return {}
    if protocol.keeps_models:
        return {}
    shared: dict[str, Any] = {
        "rounds": protocol.rounds,
        "clip": rule.clip,
        "clients": protocol.clients,
        "sigma": sigma,
    }
    smoothness = protocol.assumptions.smoothness
    found: dict[str, float] = {}
    if isinstance(rule, FedProx):
        if smoothness is not None and 0 < smoothness < rule.proximal:
            found["convergent/theorem-4"] = convergent.theorem_4(
                **shared, smoothness=smoothness, proximal=rule.proximal
            )
    elif isinstance(rule.schedule, StageWise):
        found["convergent/theorem-3c"] = convergent.theorem_3c(
            **shared, steps=rule.steps, rate=rule.schedule.rate
        )
    elif isinstance(rule.schedule, Continuous):
        z = convergent.theorem_3d_least_z(
            steps=rule.steps, rate=rule.schedule.rate
        )  # the paper leaves it open; less is false
        found["convergent/theorem-3d"] = convergent.theorem_3d(**shared, z=z)
    elif smoothness is not None and smoothness > 0:
        stated = {
            **shared,
            "steps": rule.steps,
            "rate": rule.schedule.rate,
            "smoothness": smoothness,
        }
        if isinstance(rule.schedule, Constant):
            found["convergent/theorem-3a"] = convergent.theorem_3a(**stated)
        else:
            found["convergent/theorem-3b"] = convergent.theorem_3b(**stated, c=HARMONIC)
    return found


def audit_with_claims(
    source: Protocol | str | Path,
    view: str | View = View.SERVER,
    unit: str = "record",
    **options: Any,
) -> Finding:
    """Audit, and hold the result against the published bounds that speak about the protocol too.

    Example:
        >>> audit_with_claims(protocol, "final").claims  # doctest: +SKIP
    """
    from sordino.audit.auditing import audit, subject_of
    from sordino.audit.verdict import Claim

    subject = subject_of(source)
    bounds = published_bounds(replace(subject.protocol, rounds=max(1, len(set(subject.rounds)))))
    given = tuple(options.pop("claims", ()))
    return audit(
        source,
        view,
        unit,
        claims=(*(Claim(name=name, mu=mu) for name, mu in bounds.items()), *given),
        **options,
    )
