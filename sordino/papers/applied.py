"""Finds the published bounds that are about a given protocol. None of them is a promise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sordino.papers import convergent
from sordino.protocol import (
    Constant,
    Continuous,
    Cyclic,
    Decay,
    Everyone,
    FedAvg,
    FedProx,
    Mean,
    Protocol,
    ProtocolSource,
    StageWise,
    View,
)
from sordino.protocol.registry import Registry
from sordino.protocol.release import release_of
from sordino.protocol.rule_kinds import LocalRule

if TYPE_CHECKING:
    from sordino.audit.verdict import Finding


# Theorem 3(b) needs a c with 1 + 1/2 + ... + 1/K <= c ln(K + 1), and leaves it open. This one
# serves every K.
HARMONIC = 1.5

Bounds = dict[str, float]
# The parameters that the theorems have in common: rounds, clip, clients and sigma.
Federation = dict[str, Any]

# The bounds of each local rule, from the rule, the protocol and the common parameters.
RULE_BOUNDS: Registry[Callable[[Any, Protocol, Federation], Bounds]] = Registry(
    "published bound", "local rule", LocalRule
)
# The bounds of FedAvg for each schedule of the learning rate.
SCHEDULE_BOUNDS: Registry[Callable[[Any, Protocol, Federation], Bounds]] = Registry(
    "published bound", "schedule", Constant | Cyclic | StageWise | Continuous | Decay
)


def published_bounds(protocol: Protocol) -> Bounds:
    """Returns the mu that each applicable theorem of convergent-dp states for the last model.

    The theorems are about full participation, the plain mean and Gaussian noise at the clients.
    Theorems 3(a), 3(b) and 4 need a smoothness, which the protocol may state.

    Args:
        protocol: The federation.

    Returns:
        The Gaussian parameters by the name of the claim; empty where no theorem applies.

    Example:
        >>> from sordino.protocol import Gaussian
        >>> local = FedAvg(steps=5, batch=32, clip=1.0, schedule=StageWise(rate=0.1))
        >>> noise = Gaussian(sigma=1.0)
        >>> published_bounds(Protocol(clients=50, rounds=1, local=local, noise=noise))
        {'convergent/theorem-3c': 0.1414213562373095}
    """
    release = release_of(protocol)
    # The theorems are about noise that each client adds to an upload whose gradients were clipped.
    if release.in_steps or release.at_server or release.clips_update:
        return {}
    # All clients and their plain mean: Remark 3.2, which would extend the theorems, is unsound.
    if protocol.participation != Everyone() or protocol.aggregation != Mean():
        return {}
    # Their models are those that a mean makes, with nothing after it.
    if not protocol.plain_server:
        return {}
    # Personal budgets give each client another sigma, and no theorem has more than one.
    if release.client_sigma == 0 or protocol.client or protocol.keeps_models:
        return {}
    federation: Federation = {
        "rounds": protocol.rounds,
        "clip": release.clip,
        "clients": protocol.clients,
        "sigma": release.client_sigma,
    }
    return RULE_BOUNDS.of(protocol.local)(protocol.local, protocol, federation)


@RULE_BOUNDS.register_others
def _find_none(rule: LocalRule, protocol: Protocol, federation: Federation) -> Bounds:
    """Returns nothing: the paper has theorems only about FedAvg and FedProx."""
    return {}


@RULE_BOUNDS.register(FedAvg)
def _find_fedavg(rule: FedAvg, protocol: Protocol, federation: Federation) -> Bounds:
    """Returns the part of Theorem 3 that speaks about the schedule."""
    # No theorem has weight decay.
    if rule.weight_decay > 0:
        return {}
    return SCHEDULE_BOUNDS.of(rule.schedule)(rule.schedule, protocol, federation)


@RULE_BOUNDS.register(FedProx)
def _find_fedprox(rule: FedProx, protocol: Protocol, federation: Federation) -> Bounds:
    """Returns Theorem 4, which needs a smoothness below the proximal term."""
    smoothness = protocol.assumptions.smoothness
    if smoothness is None or not 0 < smoothness < rule.proximal:
        return {}
    # Its pull goes to the model of the round, and there is no other.
    if rule.pull != rule.proximal_pull:
        return {}
    mu = convergent.theorem_4(**federation, smoothness=smoothness, proximal=rule.proximal)
    return {"convergent/theorem-4": mu}


@SCHEDULE_BOUNDS.register(Constant)
def _find_constant(schedule: Constant, protocol: Protocol, federation: Federation) -> Bounds:
    """Returns Theorem 3(a), which needs a smoothness."""
    smoothness = protocol.assumptions.smoothness
    if not smoothness:
        return {}
    steps = {"steps": protocol.local.steps, "rate": schedule.rate, **federation}
    return {"convergent/theorem-3a": convergent.theorem_3a(**steps, smoothness=smoothness)}


@SCHEDULE_BOUNDS.register(Cyclic)
def _find_cyclic(schedule: Cyclic, protocol: Protocol, federation: Federation) -> Bounds:
    """Returns Theorem 3(b), which needs a smoothness."""
    smoothness = protocol.assumptions.smoothness
    if not smoothness:
        return {}
    steps = {"steps": protocol.local.steps, "rate": schedule.rate, **federation}
    mu = convergent.theorem_3b(**steps, smoothness=smoothness, c=HARMONIC)
    return {"convergent/theorem-3b": mu}


@SCHEDULE_BOUNDS.register(StageWise)
def _find_stage_wise(schedule: StageWise, protocol: Protocol, federation: Federation) -> Bounds:
    """Returns Theorem 3(c), which needs no smoothness; it is only about the power 1."""
    if schedule.power != 1:
        return {}
    steps = {"steps": protocol.local.steps, "rate": schedule.rate, **federation}
    return {"convergent/theorem-3c": convergent.theorem_3c(**steps)}


@SCHEDULE_BOUNDS.register(Continuous)
def _find_continuous(schedule: Continuous, protocol: Protocol, federation: Federation) -> Bounds:
    """Returns Theorem 3(d) with the least z for which it is true, since the paper leaves z open."""
    z = convergent.theorem_3d_least_z(steps=protocol.local.steps, rate=schedule.rate)
    return {"convergent/theorem-3d": convergent.theorem_3d(**federation, z=z)}


@SCHEDULE_BOUNDS.register(Decay)
def _find_decay(schedule: Decay, protocol: Protocol, federation: Federation) -> Bounds:
    """Returns nothing: the paper has no theorem about rates that fall by a factor."""
    return {}


def audit_with_claims(
    source: ProtocolSource, view: str | View = View.SERVER, unit: str = "record", **options: Any
) -> Finding:
    """Audits, and holds the result against the published bounds about the protocol as well.

    Args:
        source: A protocol, its file or its tables; or the folder of a finished run.
        view: What the adversary sees.
        unit: "record" or "client".
        **options: The options of `sordino.audit.auditing.audit`.

    Returns:
        The finding, with a verdict on each published bound.

    Example:
        >>> audit_with_claims(protocol, "final").claims  # doctest: +SKIP
    """
    from sordino.audit.audit_subject import load_subject
    from sordino.audit.auditing import audit
    from sordino.audit.verdict import Claim

    subject = load_subject(source)
    # An audit may look at some rounds only; a bound that counts all of them would be too easy to
    # keep.
    rounds = max(1, len(set(subject.rounds)))
    bounds = published_bounds(replace(subject.protocol, rounds=rounds))
    published = [Claim(name=name, mu=mu) for name, mu in bounds.items()]
    # The caller's claims come last, so that published ones keep their place in the table.
    claims = (*published, *options.pop("claims", ()))
    return audit(source, view, unit, claims=claims, **options)
