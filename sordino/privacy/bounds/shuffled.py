"""Rounds behind a shuffler: the clones bound of one round, carried over many (docs/theory.md#b7).

Conditions, which the protocol enforces: every client applies the same randomiser (same rule,
clip, noise, public model) to its whole data set, the shuffler is trusted, and an adversary behind
it sees a multiset. eps0 is between any two data sets of a client, so the bound is for the unit
client, and for one record because replacing one is a special case.

One round has many bounds: what the upload alone reveals, and for every (eps0, delta0) that one
upload satisfies the clones' delta plus (1 + e^eps) delta0 (1 + 2 (n - 1) e^-eps0). Each holds at
every epsilon, in both directions, whatever was released before. So does the smallest of them at
each epsilon, and, as the true curve is convex in e^eps, their lower convex hull. A pair of laws
with that curve dominates the round, and dominated rounds compose adaptively as their dominating
pairs do (Zhu, Dong and Wang 2022, Thm 10).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sordino.mechanisms import mechanism_of
from sordino.privacy.amplification import shuffling
from sordino.privacy.bounds.priced_view import observe_models
from sordino.privacy.bounds.question import Bound, Protection, Provider, Question
from sordino.privacy.curves.curve import Curve
from sordino.privacy.curves.gaussian_curve import GaussianCurve
from sordino.privacy.curves.loss_distributions import INTERVAL, LossCurve
from sordino.privacy.curves.renyi import convex_profile
from sordino.privacy.guarantee import round_up
from sordino.privacy.noise_releases import dimension_of, price_of, release_curve
from sordino.privacy.upload_sensitivity import distinct_rounds, price_uploads
from sordino.protocol import Gaussian, Noise

SPILLS = tuple(10.0**-k for k in range(4, 19))  # delta0 of the (eps0, delta0) that are tried
NEGLIGIBLE = 1e-18  # delta at which the curve of a round ends; the rest counts as infinite loss
LARGEST = 60.0  # eps0 above which no clone is ever seen
POINTS = 400


@dataclass(frozen=True, kw_only=True)
class Crowd:
    """Among whom a shuffler hides a client.

    Attributes:
        others: The number of other honest clients who may share a batch with the attacked one.
        share: The probability that each of them does.
        chance: The probability that the attacked client is in a batch.
    """

    others: int
    share: float
    chance: float


def applies_to(question: Question) -> bool:
    """Returns whether uploads with noise pass a shuffler."""
    hidden_by_uploads = question.protection is Protection.UPLOADS and len(question.rounds) > 0
    return hidden_by_uploads and question.protocol.release.shuffled


def bound_clones(question: Question) -> list[Bound]:
    """Returns the clones bound, if there is anybody to hide among.

    Args:
        question: The question to answer, of a protocol with a shuffler.
    """
    protocol = question.protocol
    crowd = find_crowd(question)
    # Between any two data sets of a client, whatever the unit that is asked about.
    found, _ = distinct_rounds(protocol, question.rounds)
    shift = float(price_uploads(protocol, found, "client", None).shifts.max())
    if crowd.others < 1 or mechanism_of(protocol.noise).silent or shift == 0:
        return []
    norm = protocol.release.clip_norm
    dimension = dimension_of(protocol)
    noise = find_priced_noise(question)
    alone, pure = make_upload_curve(noise, norm, dimension, shift)
    # Epsilon grows as delta falls, so the first of the pairs that are tried has the smallest.
    if min(pure, alone.epsilon(SPILLS[0])) > LARGEST:
        return []
    # So much noise that no loss shows: the bound on the uploads themselves is next to 0.
    if min(pure, alone.epsilon(NEGLIGIBLE)) == 0:
        return []
    one = make_shuffled_round(noise, norm, dimension, shift, crowd.others, crowd.share)
    if crowd.chance < 1:
        one = one.mix_with_nothing(crowd.chance)
    return [
        Bound(
            curve=one.repeat(len(question.rounds)),
            method="shuffled clones",
            lines=describe_clones(question, crowd, shift),
            vouched=price_of(protocol.noise, norm, dimension).vouched,
        )
    ]


def find_priced_noise(question: Question) -> Noise:
    """Returns the clients' noise, or normal noise that hides as much where it is of integers."""
    if not question.protocol.release.integers:
        return question.protocol.noise
    return Gaussian(sigma=question.noise.sigma)


def describe_clones(question: Question, crowd: Crowd, shift: float) -> tuple[str, ...]:
    """Returns the derivation of the bound, line by line.

    Args:
        question: The protocol, view and unit to bound.
        crowd: The clients among whom the attacked one hides.
        shift: How far an upload moves at most.
    """
    sometimes = ""
    if crowd.share < 1:
        sometimes = f", who are in a batch with probability {crowd.share:.3g} each,"
    return (
        "An adversary behind a trusted shuffler sees a multiset of uploads without names "
        f"(view {question.view}).",
        f"Each of {crowd.others} other honest clients{sometimes} imitates either data set with "
        f"probability e^-eps0 (clones, docs/theory.md#b7). The {len(question.rounds)} rounds are "
        f"composed, and every upload is priced as the one that moves most, by {round_up(shift)}, "
        "whatever its data set is.",
    )


def find_crowd(question: Question) -> Crowd:
    """Returns among whom the attacked client hides."""
    rule = question.protocol.participation
    clients = question.protocol.clients
    colluding = question.colluders
    if question.present is not None:
        # Every round counts as one with the fewest contributors.
        return Crowd(others=int(min(question.present)) - 1 - colluding, share=1.0, chance=1.0)
    chance = rule.find_chance(clients=clients)
    if rule.draws and not rule.varies:
        size = int(rule.count_expected(clients=clients))
        # At worst all colluders are in the batch.
        honest = size - min(colluding, size - 1)
        return Crowd(others=honest - 1, share=1.0, chance=chance)
    return Crowd(others=clients - 1 - colluding, share=chance, chance=chance)


@lru_cache(maxsize=64)
def make_shuffled_round(
    noise: Noise, norm: str, dimension: int | None, shift: float, others: int, share: float = 1.0
) -> LossCurve:
    """Returns the curve of one round in which the client takes part.

    Args:
        noise: The noise of every client.
        norm: The norm that is clipped, "l1" or "l2".
        dimension: The number of parameters, where known.
        shift: How far an upload moves at most.
        others: The number of other honest clients.
        share: The probability that each of them takes part, too.

    Example:
        >>> from sordino.protocol import Laplace
        >>> round(make_shuffled_round(Laplace(scale=1.0), "l1", None, 1.0, 999).epsilon(1e-6), 3)
        0.182
    """
    alone, pure = make_upload_curve(noise, norm, dimension, shift)
    top = min(pure, alone.epsilon(NEGLIGIBLE))
    grid = np.unique(
        np.concatenate(
            [
                [0.0],
                np.geomspace(top * 1e-4, top, POINTS // 2),
                np.linspace(top / POINTS, top, POINTS // 2),
            ]
        )
    )
    pairs = [pair for pair in list_local_guarantees(alone, pure) if pair[0] <= LARGEST]
    lowest = shuffling.smallest_deltas(grid, alone.deltas(grid), pairs, others=others, share=share)
    lowest = np.minimum.accumulate(lowest)
    floor = float(lowest[-1]) if top < pure else 0.0  # beyond a pure epsilon nothing is left
    profile: Callable[[np.ndarray], np.ndarray] = convex_profile(
        grid, np.maximum(lowest - floor, 0.0)
    )
    return LossCurve.from_profile(profile, interval=max(INTERVAL, top * 1e-4)).add_infinite_mass(
        floor
    )


def make_upload_curve(
    noise: Noise, norm: str, dimension: int | None, shift: float
) -> tuple[Curve, float]:
    """Returns the curve of one upload by itself, and its pure epsilon.

    Args:
        noise: The noise on the upload.
        norm: The norm that is clipped, "l1" or "l2".
        dimension: The number of parameters, where known.
        shift: How far the upload moves at most.
    """
    pure = price_of(noise, norm, dimension).pure(shift)
    if noise.normal:
        return GaussianCurve(mu=shift / mechanism_of(noise).size), pure
    return release_curve(noise, norm, dimension, shift), pure


def list_local_guarantees(alone: Curve, pure: float) -> list[tuple[float, float]]:
    """Returns pairs (eps0, delta0) that hold for one upload between any two data sets of a client.

    Args:
        alone: The curve of one upload by itself.
        pure: The pure epsilon of the upload; may be infinite.
    """
    found = [(pure, 0.0)] if math.isfinite(pure) else []
    for spill in SPILLS:
        local = alone.epsilon(spill)
        if 0 < local < pure:
            found.append((local, alone.delta(local)))
    return found


SHUFFLED = Provider(applies=applies_to, bounds=bound_clones, observes=observe_models)
