"""Rounds behind a shuffler: the clones bound of one round (THEORY B7, `shuffling`) carried over many rounds and random batches.

Conditions, which the protocol enforces: every client applies the same randomiser (same rule, clip, noise, public model) to its whole
data set, the shuffler is trusted, and who sees its output sees a multiset. eps0 is between any two data sets of a client, so the
bound is for the unit client, and for one record because replacing one is a special case.

One round has many bounds: what the upload alone reveals, and for every (eps0, delta0) that one upload satisfies the clones' delta plus
(1 + e^eps) delta0 (1 + 2 (n - 1) e^-eps0). Each holds at every epsilon, in both directions, whatever was released before. So does the
smallest of them at each epsilon, and, as the true curve is convex in e^eps, their lower convex hull. A pair of laws with that curve
dominates the round, and dominated rounds compose adaptively as their dominating pairs do (Zhu, Dong and Wang 2022, Thm 10).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from sordino.privacy import shuffling
from sordino.privacy.certify import Bound, Question
from sordino.privacy.curves import Curve, GaussianCurve
from sordino.privacy.guarantee import rounded_up
from sordino.privacy.losses import INTERVAL, LossCurve
from sordino.privacy.mechanisms import (
    clip_norm,
    dimension_of,
    price_of,
    release_curve,
    silent,
    taking_part,
)
from sordino.privacy.renyi import convex_profile
from sordino.privacy.uploads import distinct_rounds, upload_prices
from sordino.protocol import FixedSize, Gaussian, Noise, Poisson, Protocol

SPILLS = tuple(10.0**-k for k in range(4, 19))  # delta0 of the (eps0, delta0) that are tried
NEGLIGIBLE = 1e-18  # delta at which the curve of a round ends; the rest counts as infinite loss
LARGEST = 60.0  # eps0 above which no clone is ever seen
POINTS = 400


def clones_bounds(question: Question, batch: int | None = None) -> list[Bound]:
    """The clones bound of a protocol with a shuffler, if there is anybody to hide among; `batch` is what a round is known to hold."""
    protocol, colluding = question.protocol, question.colluders
    others, share, part = (
        company(protocol, colluding) if batch is None else (batch - 1 - colluding, 1.0, 1.0)
    )
    found, _ = distinct_rounds(protocol, question.rounds)
    shift = float(upload_prices(protocol, found, "client", None).shifts.max())
    if others < 1 or silent(protocol.noise) or shift == 0:
        return []
    norm, dimension = clip_norm(protocol), dimension_of(protocol)
    if all(
        local > LARGEST
        for local, _ in local_guarantees(*alone_curve(protocol.noise, norm, dimension, shift))
    ):
        return []
    one = shuffled_round(protocol.noise, norm, dimension, shift, others, share)
    curve = (one if part == 1 else one.mixed_with_nothing(part)).repeat(len(question.rounds))
    how = (
        f"Among {others} other honest clients{'' if share == 1 else f', each in a batch with probability {share:.3g},'} every one imitates "
        f"either data set with probability e^-eps0 (clones, THEORY B7), over {len(question.rounds)} rounds. All uploads are priced as the "
        f"one that moves most, by {rounded_up(shift)}, whatever the data set."
    )
    lines = (
        f"Who is behind a trusted shuffler sees a multiset of uploads without names. View {question.view}.",
        how,
    )
    vouched = price_of(protocol.noise, norm, dimension).vouched
    return [Bound(curve=curve, method="shuffled clones", lines=lines, vouched=vouched)]


def company(protocol: Protocol, colluding: int) -> tuple[int, float, float]:
    """Other honest clients who may share a batch, the probability that each does, and that the attacked one is in it."""
    rule, clients = protocol.participation, protocol.clients
    if isinstance(rule, Poisson):
        return clients - 1 - colluding, rule.rate, rule.rate
    if isinstance(rule, FixedSize):
        honest = rule.size - min(colluding, rule.size - 1)  # at least: all colluders in the batch
        return honest - 1, 1.0, taking_part(protocol)
    return clients - 1 - colluding, 1.0, 1.0


@lru_cache(maxsize=64)
def shuffled_round(
    noise: Noise, norm: str, dimension: int | None, shift: float, others: int, share: float = 1.0
) -> LossCurve:
    """One round of a client that takes part, among `others` of whom each does with probability `share`.

    Example:
        >>> from sordino.protocol import Laplace
        >>> round(shuffled_round(Laplace(scale=1.0), "l1", None, 1.0, 999).epsilon(1e-6), 3)
        0.182
    """
    alone, pure = alone_curve(noise, norm, dimension, shift)
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
    bounds = [alone.deltas(grid)] + [
        local_bound(grid, local, spill, others, share)
        for local, spill in local_guarantees(alone, pure)
        if local <= LARGEST
    ]
    lowest = np.minimum.accumulate(np.min(bounds, axis=0))
    floor = float(lowest[-1]) if top < pure else 0.0  # beyond a pure epsilon nothing is left
    profile: Callable[[np.ndarray], np.ndarray] = convex_profile(
        grid, np.maximum(lowest - floor, 0.0)
    )
    return LossCurve.from_profile(profile, interval=max(INTERVAL, top * 1e-4)).charged(floor)


def alone_curve(
    noise: Noise, norm: str, dimension: int | None, shift: float
) -> tuple[Curve, float]:
    """What one upload reveals by itself, and its pure epsilon."""
    pure = price_of(noise, norm, dimension).pure(shift)
    if isinstance(noise, Gaussian):
        return GaussianCurve(mu=shift / noise.sigma), pure
    return release_curve(noise, norm, dimension, shift), pure


def local_bound(
    epsilons: np.ndarray, local: float, spill: float, others: int, share: float
) -> np.ndarray:
    """The clones' delta plus (1 + e^eps) delta0 (1 + 2 (n - 1) e^-eps0); a random batch averages both, which keeps the form."""
    pure = np.array(
        [
            shuffling.delta(float(value), local=local, clients=others + 1, share=share)
            for value in epsilons
        ]
    )
    with np.errstate(over="ignore"):
        return (
            pure + (1 + np.exp(epsilons)) * spill * (1 + 2 * others * share * math.exp(-local))
            if spill > 0
            else pure
        )


def local_guarantees(alone: Curve, pure: float) -> list[tuple[float, float]]:
    """Pairs (eps0, delta0) that hold for one upload between any two data sets of a client."""
    found = [(pure, 0.0)] if math.isfinite(pure) else []
    for spill in SPILLS:
        local = alone.epsilon(spill)
        if 0 < local < pure:
            found.append((local, alone.delta(local)))
    return found
