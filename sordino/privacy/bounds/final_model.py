"""The last model alone: what earlier rounds revealed fades (docs/theory.md#a7).

The convex minorant holds for everyone or a fixed number of participants, under Gaussian
noise on uploads or on the mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sordino.privacy.amplification.bounded_domain import last_iterate_bounded
from sordino.privacy.amplification.last_iterate import last_iterate
from sordino.privacy.bounds.priced_view import observe_models
from sordino.privacy.bounds.question import Bound, Protection, Provider, Question
from sordino.privacy.curves.gaussian_curve import GaussianCurve
from sordino.privacy.upload_sensitivity import Dynamics
from sordino.protocol import Protocol, View, noisy_upload_of
from sordino.protocol.aggregation_kinds import find_mixing


def applies_to(question: Question) -> bool:
    """Returns whether only the last of consecutive rounds is seen, with all noise known."""
    protocol = question.protocol
    # The convex minorant is proved for Gaussian noise, before a run (docs/theory.md#a7).
    if question.view != View.FINAL or question.present is not None or not protocol.noise.normal:
        return False
    if question.protection not in (Protection.UPLOADS, Protection.MEAN):
        return False
    # Moments carry earlier updates into later moves, about which the minorant says nothing.
    if not protocol.plain_server:
        return False
    # The noise of every round has to be known in advance, as it is not with a random number of
    # clients.
    if protocol.client or protocol.participation.varies or not protocol.aggregation.averages:
        return False
    if question.shares is None or (protocol.participation.draws and not question.equal_shares):
        return False
    # Rounds in another order, or charged twice, are another sequence of models.
    planned = np.arange(len(question.rounds))
    return len(planned) > 0 and np.array_equal(question.rounds, planned)


def bound_final_model(question: Question) -> Iterator[Bound]:
    """Yields a bound for every way to see how two neighbouring models move apart.

    With a mixing b the model moves by (1 - b) w + b mean: the stretch is (1 - b) + b rho, the
    shift b gamma, the noise b sigma. In units of each round's noise it is the same problem with
    noise of 1, whatever b does from round to round (docs/theory.md#a34).
    """
    protocol = question.protocol
    shares = question.shares
    if shares is None:
        return
    if protocol.participation.draws:
        size = int(protocol.participation.count_expected(clients=protocol.clients))
        shares = np.full(size, 1 / size)
    noise = find_mean_noise(protocol, shares)
    if noise == 0:
        return
    share = float(shares.max()) if question.attacked is None else question.attacked.share
    domain = find_domain(question)
    for dynamics in question.prices.dynamics:
        # Where every client's upload may shift, only a bounded distance forgets that.
        if dynamics.shared or domain is not None:
            yield bound_dynamics(question, dynamics, domain, share, noise)


@dataclass(frozen=True, kw_only=True)
class Domain:
    """How far apart two runs that share all noise ever are.

    Attributes:
        diameter: The largest distance between two runs.
        reason: Why they come no further apart, for the derivation.
    """

    diameter: float
    reason: str


def find_domain(question: Question) -> Domain | None:
    """Returns the smaller of an enforced diameter and of what pulls to public models leave.

    Where every step is pulled to a model that both runs have, two runs whose steps all differ by 2V
    come no further apart than d <- rho d + s leads to, rho < 1 (docs/theory.md#a32).
    """
    domains = []
    diameter = question.protocol.assumptions.diameter
    if diameter is not None:
        reason = f"Models stay in a ball of diameter {diameter:g} (enforced)"
        domains.append(Domain(diameter=diameter, reason=reason))
    for dynamics in question.prices.dynamics:
        # A stretch of 1 may have been rounded down.
        if dynamics.shared or not np.all(dynamics.stretch < 1 - 1e-9):
            continue
        # The largest fixed point of a round: below it, no round leads above it.
        reach = float(np.max(dynamics.shift / (1 - dynamics.stretch)))
        reason = (
            f"Pulls to public models keep two runs within {reach:.4g} "
            "(docs/theory.md#a32, enforced)"
        )
        domains.append(Domain(diameter=reach, reason=reason))
    return min(domains, key=lambda domain: domain.diameter, default=None)


def find_mean_noise(protocol: Protocol, shares: np.ndarray) -> float:
    """Returns the standard deviation of all noise in a mean, the clients' and the server's.

    Args:
        protocol: The federation that is priced.
        shares: The share of each participant in the mean.
    """
    release = noisy_upload_of(protocol)
    of_clients = release.client_sigma * math.sqrt(float(np.square(shares).sum()))
    return math.hypot(of_clients, release.server_sigma)


def bound_dynamics(
    question: Question, dynamics: Dynamics, domain: Domain | None, share: float, noise: float
) -> Bound:
    """Returns the bound of one way to see the dynamics.

    Args:
        question: The protocol, view and unit to bound.
        dynamics: How a round moves two neighbouring models apart.
        domain: How far apart two runs ever are, where that is known.
        share: The attacked client's share in the mean.
        noise: The standard deviation of the noise in the mean.
    """
    counts = question.counts
    repeats = np.ones(len(counts), dtype=np.int64)
    if len(counts) < len(question.rounds):
        repeats = counts
    rule = question.protocol.aggregation
    mixing = np.array([find_mixing(rule, t) for t in range(int(repeats.sum()))])
    # Of the model before each round; before the first there is none.
    earlier = np.append(mixing[:1], mixing[:-1])
    # Where every client's upload may shift, the mean moves as far as one upload does.
    moved = share if dynamics.shared else 1.0
    stretch = (1 - mixing) + mixing * np.repeat(dynamics.stretch, repeats)
    stretch *= earlier / mixing
    shift = np.repeat(dynamics.shift * moved, repeats)
    tail = ""
    if domain is None:
        energy = last_iterate(stretch, shift)
    else:
        energy, start = last_iterate_bounded(stretch, shift, domain.diameter / earlier)
        if start:
            tail = f" {domain.reason}, so what happened before round {start + 1} is forgotten."
    how = (
        f"Last iterate: {dynamics.reason}. With H from the greatest convex minorant, "
        f"mu = sqrt(H) / (noise of the mean) (docs/theory.md#a7).{tail}"
    )
    return Bound(
        curve=GaussianCurve(mu=math.sqrt(energy) / noise),
        method="last iterate",
        lines=(f"The adversary sees {question.sees}.", how),
        vouched=(dynamics.vouched,) if dynamics.vouched else (),
    )


FINAL_MODEL = Provider(applies=applies_to, bounds=bound_final_model, observes=observe_models)
