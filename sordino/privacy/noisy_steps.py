"""What the rule noisy-sgd promises: noisy steps on random batches, in the rounds that a client takes part in (THEORY C1, C4, C6).

Given all that was released before, a step releases a sum of clipped gradients under noise. Whatever is made of such sums is
post-processing: optimizers, models, what the server and other clients do with them. So one bound holds against the server and
everyone behind it: server, rounds, coalition, final, weak and strong alike. With one plain step a round, who sees means alone
learns less (`joined_steps`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import gammaln

from sordino.privacy import subsampled
from sordino.privacy.certify import Bound, Question
from sordino.privacy.curves import Curve, GaussianCurve
from sordino.privacy.guarantee import rounded_up
from sordino.privacy.joined_steps import joined_step_bounds
from sordino.privacy.mixtures import mixture
from sordino.privacy.two_sided import two_sided
from sordino.protocol import Everyone, FixedSize, NoisySgd, Protocol

LAWS = {
    "fixed": "C_q(G_mu)",
    "poisson-added": "the Poisson-sampled Gaussian, add or remove",
    "poisson-replaced": "(1 - q) N(0, 1) + q N(r, 1) against its mirror image, r = mu / 2",
}
_STRONGEST = 5.0  # mu of a step above which batches are not counted as hiding: they hide next to nothing, and grids grow


@dataclass(frozen=True, kw_only=True)
class StepPrice:
    """One step: mu-GDP on its batch; `rate` is the probability that the record is in the batch, 1 where that hides nothing."""

    mu: float
    rate: float
    reason: str


def noisy_step_bounds(question: Question) -> Iterator[Bound]:
    """The bounds that hold: without regard to the batches, and with it."""
    protocol, rule, rounds = question.protocol, question.protocol.local, len(question.rounds)
    if not isinstance(rule, NoisySgd):
        raise TypeError(f"{rule.tag} has no noisy steps")
    price, probability = step_price(question, rule), attendance(protocol)
    seen = f"The adversary sees {question.view.sees}: made of noisy sums of gradients alone, as all that leaves a client (THEORY C4, C6)."
    often = f"{rounds} rounds of {rule.steps} steps" + (
        f", each taken part in with probability {probability:g}" if probability < 1 else ""
    )
    if math.isinf(price.mu):
        yield Bound(curve=GaussianCurve(mu=math.inf), method="no noise", lines=(seen, price.reason))
        return
    plain = unamplified(mu=price.mu, steps=rule.steps, rounds=rounds, probability=probability)
    how = f"Composition of {often}: ((1 - p) Id + p G_mu^K)^R, as if every batch held the record."
    yield Bound(curve=plain, method="composition", lines=(seen, price.reason, how))
    draw = draw_of(protocol, rule)
    strongest = 2 * _STRONGEST if draw == "poisson-replaced" else _STRONGEST  # in either direction
    if price.rate < 1 and rule.minibatches == "public":
        known = unamplified(
            mu=price.mu, steps=rule.steps, rounds=rounds, probability=probability, rate=price.rate
        )
        how = f"A batch holds the record with probability q = {price.rate:.6g}, which may be seen: a mixture over how many do (A11)."
        yield Bound(curve=known, method="known batches", lines=(seen, price.reason, how))
    elif price.rate < 1 and price.mu <= strongest:
        curve = amplified(
            price.mu, price.rate, rule.steps, rounds, probability, protocol.rounds, draw
        )
        law = LAWS[draw]
        how = f"A batch holds the record with probability q = {price.rate:.6g}, unseen: {law}, composed over {often} (THEORY C1, C4)."
        yield Bound(curve=curve, method="subsampled steps", lines=(seen, price.reason, how))
    if probability > 0:
        yield from joined_step_bounds(question, price.mu, price.rate, draw, strongest)


def draw_of(protocol: Protocol, rule: NoisySgd) -> str:
    """Returns the law of a step whose batch holds the record with some probability, by its name in `LAWS`."""
    if rule.sampling == "fixed":
        return "fixed"
    return "poisson-replaced" if protocol.adjacency == "replace-one" else "poisson-added"


def attendance(protocol: Protocol) -> float:
    """The probability that a client takes part in a round, drawn afresh in every round."""
    rule = protocol.participation
    if isinstance(rule, Everyone):
        return 1.0
    return rule.size / protocol.clients if isinstance(rule, FixedSize) else rule.rate


def step_price(question: Question, rule: NoisySgd) -> StepPrice:
    """How far a step's sum moves, over its noise, when the unit is replaced, or added or removed.

    Clipping the l1 norm to C leaves the l2 norm at most C, so one price holds for both. The worst client counts: for a record the
    smallest, whose batches hold it most often.
    """
    multiplier = getattr(question.protocol.noise, "multiplier", None)
    replaced = question.protocol.adjacency == "replace-one"
    move = rule.clip * (2 if replaced else 1)
    if question.unit == "client":
        # All examples of a batch move: exactly B of them, or for Poisson batches up to all that the largest client has.
        largest = max(question.sizes) if question.sizes is not None else question.records
        most = rule.batch if rule.sampling == "fixed" else largest
        moved, rate, what = (
            (math.inf if most is None else most * move),
            1.0,
            f"its {'B' if rule.sampling == 'fixed' else 'n'} examples move",
        )
    else:
        moved, what = move, "one example moves"
        rate = 1.0 if question.records is None else min(1.0, rule.batch / question.records)
    if not replaced:
        what += ", its place being left empty or filled: how many places there are is public, and so is the rate of a batch"
    unit = "2C" if rule.sampling == "fixed" else "C"
    reason = f"A step's sum of clipped gradients moves by at most {rounded_up(moved)} as {what}; its noise is multiplier x {unit}"
    if multiplier is None or multiplier == 0:
        return StepPrice(
            mu=math.inf, rate=rate, reason=reason + " = 0: nothing hides a contribution."
        )
    mu = moved / (multiplier * rule.noise_unit)
    return StepPrice(mu=mu, rate=rate, reason=f"{reason}: mu = {rounded_up(mu)} on its batch.")


def unamplified(
    *, mu: float, steps: int, rounds: int, probability: float, rate: float = 1.0
) -> Curve:
    """Every batch counted as holding the unit with probability `rate`, which may be seen.

    Example:
        >>> unamplified(mu=0.5, steps=4, rounds=9, probability=1.0).mu
        3.0
    """
    if rate < 1:
        held = np.arange(1, steps + 1)
        ways = gammaln(steps + 1) - gammaln(held + 1) - gammaln(steps - held + 1)
        logs = ways + held * math.log(rate) + (steps - held) * math.log1p(-rate)
        masses = probability * np.exp(logs)
        mus = [0.0, *(mu * np.sqrt(held)).tolist()]
        return mixture(mus, [1 - masses.sum(), *masses.tolist()]).repeat(rounds)
    whole = mu * math.sqrt(steps)
    if probability == 1:
        return GaussianCurve(mu=whole).repeat(rounds)
    return mixture([0.0, whole], [1 - probability, probability]).repeat(rounds)


@lru_cache(maxsize=4)  # curves are large
def amplified(
    mu: float,
    rate: float,
    steps: int,
    rounds: int,
    probability: float,
    planned: int,
    draw: str,
) -> Curve:
    """The composition of `rounds` of the `planned` rounds with batches that hide the record; they share the grid of privacy losses.

    Example:
        >>> round(amplified(1.0, 16 / 600, 38, 194, 0.5, 194, "fixed").epsilon(1e-5), 3)
        14.524
    """
    one = one_round(mu, rate, steps, probability, max(planned, rounds), draw)
    return one.repeat(rounds)


@lru_cache(maxsize=4)
def one_round(
    mu: float, rate: float, steps: int, probability: float, planned: int, draw: str
) -> Curve:
    """One round: K steps with `probability`, else nothing."""
    # Losses of a step spread with its mu, and so may the grid: this one costs some 1e-5 of epsilon and saves most of the time.
    interval = max(
        subsampled.suitable_interval(mu=mu, rate=rate, steps=steps * planned), min(1e-3, 4e-4 * mu)
    )
    if draw == "poisson-replaced":
        return two_sided(
            reach=mu / 2, rate=rate, steps=steps, probability=probability, interval=interval
        )
    if draw == "fixed":
        return subsampled.participating(
            mu=mu, rate=rate, steps=steps, rounds=1, probability=probability, interval=interval
        )
    return subsampled.poisson_participating(
        multiplier=1 / mu,
        rate=rate,
        steps=steps,
        rounds=1,
        probability=probability,
        interval=interval,
    )
