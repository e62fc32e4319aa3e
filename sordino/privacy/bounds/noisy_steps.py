"""What the rule noisy-sgd promises: noisy steps on random batches (docs/theory.md#c1, #c4, #c6).

Given all that was released before, a step releases a sum of clipped gradients under noise.
Whatever is made of such sums is post-processing: optimizers, models, what the server and other
clients do with them. So one bound holds against the server and everyone behind it: server,
rounds, coalition, final, weak and strong. With one plain step a round, an adversary who
sees only means learns less (`joined_steps`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import gammaln

from sordino.mechanisms import mechanism_of
from sordino.privacy.amplification import subsampling
from sordino.privacy.amplification.two_sided import price_two_sided
from sordino.privacy.bounds.joined_steps import (
    adds_up,
    bound_joined_steps,
    compose_known_joins,
    honest_participants,
)
from sordino.privacy.bounds.priced_view import find_priced_view
from sordino.privacy.bounds.question import Bound, Observation, Protection, Provider, Question
from sordino.privacy.curves.curve import Curve
from sordino.privacy.curves.gaussian_curve import GaussianCurve
from sordino.privacy.curves.mixtures import mix_gaussians
from sordino.privacy.guarantee import round_up
from sordino.privacy.upload_sensitivity import step_move
from sordino.protocol import NoisySteps, Protocol, UserError, noisy_steps_of

# The law of a step whose batch holds the record with probability q.
LAWS = {
    "fixed": "C_q(G_mu)",
    "poisson-added": "the Poisson-sampled Gaussian, add or remove",
    "poisson-replaced": "(1 - q) N(0, 1) + q N(r, 1) against its mirror image, r = mu / 2",
}
# The mu of a step above which batches are not counted as hiding: they hide next to nothing, and
# grids grow.
STRONGEST = 5.0


@dataclass(frozen=True, kw_only=True)
class StepMove:
    """How far one step's sum of clipped gradients moves.

    Attributes:
        distance: The distance in the clipped norm, for a batch that holds the unit.
        rate: The probability that a batch holds the unit; 1 where the draw hides nothing.
        reason: Where the distance comes from, for the derivation.
    """

    distance: float
    rate: float
    reason: str


@dataclass(frozen=True, kw_only=True)
class StepPrice:
    """What one step costs.

    Attributes:
        mu: The Gaussian parameter of a step whose batch holds the unit.
        rate: The probability that a batch holds the unit; 1 where the draw hides nothing.
        reason: Where mu comes from, for the derivation.
    """

    mu: float
    rate: float
    reason: str


def applies_to(question: Question) -> bool:
    """Returns whether normal noise in every step hides the client."""
    in_steps = question.protection is Protection.STEPS and len(question.rounds) > 0
    return in_steps and question.protocol.noise.normal


def observe_steps(question: Question) -> Observation:
    """Returns what bounds on noisy steps are proved against."""
    # Where the others' noise adds up in the mean, a smaller bound holds against adversaries that
    # see only means.
    if adds_up(question.protocol) and not question.view.is_server:
        return Observation.MODELS
    return Observation.STEPS


def bound_noisy_steps(question: Question) -> Iterator[Bound]:
    """Yields the bounds that hold, with and without counting the draw of batches."""
    protocol = question.protocol
    price = find_step_price(question)
    sees = (
        f"The adversary sees {question.sees}. Like everything that leaves a client, it is computed "
        "only from noisy sums of gradients (docs/theory.md#c4, #c6)."
    )
    lines = (sees, price.reason)
    if math.isinf(price.mu):
        yield Bound(curve=GaussianCurve(mu=math.inf), method="no noise", lines=lines)
        return
    yield from bound_single_client(question, price, lines)
    draw = name_draw(protocol)
    if question.present is None:
        yield from bound_joined_steps(question, price.mu, price.rate, draw, find_strongest(draw))
        return
    means_only = not question.view.is_server and question.knows_present
    if adds_up(protocol) and means_only and price.mu <= STRONGEST:
        curve = compose_known_joins(question, price.mu, price.rate, draw)
        how = "The noise of all who took part adds up in the mean (docs/theory.md#a16)."
        yield Bound(curve=curve, method="joined noise", lines=(price.reason, how))


def bound_single_client(
    question: Question, price: StepPrice, lines: tuple[str, ...]
) -> Iterator[Bound]:
    """Yields the bounds that count the client's own noise alone.

    Args:
        question: The protocol, view and unit to bound.
        price: The price of a step.
        lines: The derivation of the price.
    """
    release = noisy_steps_of(question.protocol)
    rounds = len(question.rounds)
    often = describe_rounds(question, release)
    plain = compose_seen_batches(
        mu=price.mu, steps=release.steps, rounds=rounds, probability=question.chance
    )
    how = (
        f"Composed over {often}, as if every batch held the record: ((1 - p) Id + p G_mu^K)^R, p "
        "being the probability of taking part."
    )
    yield Bound(curve=plain, method="composition", lines=(*lines, how))
    # Every batch holds the unit, so there is no draw to count.
    if price.rate == 1:
        return
    held = f"A batch holds the record with probability q = {price.rate:.6g}"
    draw = name_draw(question.protocol)
    if not release.secret_batches:
        curve = compose_seen_batches(
            mu=price.mu,
            steps=release.steps,
            rounds=rounds,
            probability=question.chance,
            rate=price.rate,
        )
        how = (
            f"{held}, and it may be seen whether it does: each round is a mixture over how many of "
            "its batches do (docs/theory.md#a11)."
        )
        yield Bound(curve=curve, method="known batches", lines=(*lines, how))
    elif price.mu <= find_strongest(draw):
        curve = compose_hidden_batches(
            price.mu,
            price.rate,
            release.steps,
            rounds,
            question.chance,
            question.protocol.rounds,
            draw,
        )
        how = (
            f"{held}, and nobody sees whether it does. A step is priced as {LAWS[draw]}, composed "
            f"over {often} (docs/theory.md#c1, #c4)."
        )
        yield Bound(curve=curve, method="subsampled steps", lines=(*lines, how))


def describe_rounds(question: Question, release: NoisySteps) -> str:
    """Returns how many rounds of how many steps are run, in words.

    Args:
        question: The protocol, view and unit to bound.
        release: The noisy steps of the client.
    """
    words = f"{len(question.rounds)} rounds of {release.steps} steps"
    if question.chance < 1:
        words += f", each taken part in with probability {question.chance:g}"
    return words


def name_draw(protocol: Protocol) -> str:
    """Returns the law of a step whose batch may hold the record, by its name in `LAWS`.

    Args:
        protocol: The federation that is priced.
    """
    if not protocol.release.varying_batches:
        return "fixed"
    return "poisson-replaced" if protocol.adjacency == "replace-one" else "poisson-added"


def find_strongest(draw: str) -> float:
    """Returns the largest mu of a step for which batches are counted as hiding.

    Args:
        draw: The law of a step, by its name in `LAWS`.
    """
    # A replaced record moves the sum by mu / 2 in either direction.
    return 2 * STRONGEST if draw == "poisson-replaced" else STRONGEST


def find_step_price(question: Question) -> StepPrice:
    """Returns how far a step's sum moves, over its normal noise, when the unit changes.

    Clipping the l1 norm to C leaves the l2 norm at most C, so one price holds for both.
    """
    release = noisy_steps_of(question.protocol)
    move = find_step_move(question)
    unit = "C" if release.varying_batches else "2C"
    reason = f"{move.reason}. The standard deviation of its noise is multiplier x {unit}"
    deviation = mechanism_of(release.sum_noise).deviation
    if deviation == 0:
        reason += " = 0, and nothing hides a contribution."
        return StepPrice(mu=math.inf, rate=move.rate, reason=reason)
    mu = move.distance / deviation
    reason += f", so mu = {round_up(mu)} where the batch holds the unit."
    return StepPrice(mu=mu, rate=move.rate, reason=reason)


def find_step_move(question: Question) -> StepMove:
    """Returns how far a step's sum moves when the unit changes.

    The worst client counts: for a record the smallest, whose batches hold it most often.
    """
    release = noisy_steps_of(question.protocol)
    moved = step_move(question.protocol)
    rate = 1.0
    what = "one example changes"
    if question.unit == "client":
        moved = move_of_client(question, release, moved)
        what = "all B examples of its batch change"
        if release.varying_batches:
            what = "all n examples of the client change"
    elif question.records is not None:
        rate = min(1.0, release.batch / question.records)
    if question.protocol.adjacency != "replace-one":
        what += (
            ", being left out or put in (the number of places for examples is public, and so is "
            "the rate of a batch)"
        )
    reason = f"A step's sum of clipped gradients moves by at most {round_up(moved)} when {what}"
    return StepMove(distance=moved, rate=rate, reason=reason)


def move_of_client(question: Question, release: NoisySteps, move: float) -> float:
    """Returns how far a step's sum moves when all records of a client change.

    Args:
        question: The protocol, view and unit to bound.
        release: The noisy steps of the client.
        move: How far one example moves the sum.
    """
    if not release.varying_batches:
        return release.batch * move
    # A Poisson batch may hold all records that the largest client has.
    largest = question.most_records
    return math.inf if largest is None else largest * move


@lru_cache(maxsize=16)  # views ask for the same curve, and a curve remembers its sums
def compose_seen_batches(
    *, mu: float, steps: int, rounds: int, probability: float, rate: float = 1.0
) -> Curve:
    """Returns the composition of rounds whose batches may be seen.

    Args:
        mu: The mu of a step whose batch holds the unit.
        steps: The number of steps in a round.
        rounds: The number of rounds to compose.
        probability: The probability that the client takes part in a round.
        rate: The probability that a batch holds the unit.

    Example:
        >>> compose_seen_batches(mu=0.5, steps=4, rounds=9, probability=1.0).mu
        3.0
    """
    if rate < 1:
        held = np.arange(1, steps + 1)
        # In logarithms: binomial coefficients of thousands of steps overflow.
        ways = gammaln(steps + 1) - gammaln(held + 1) - gammaln(steps - held + 1)
        logs = ways + held * math.log(rate) + (steps - held) * math.log1p(-rate)
        masses = probability * np.exp(logs)
        mus = [0.0, *(mu * np.sqrt(held)).tolist()]
        return mix_gaussians(mus, [1 - masses.sum(), *masses.tolist()]).repeat(rounds)
    whole = mu * math.sqrt(steps)
    if probability == 1:
        return GaussianCurve(mu=whole).repeat(rounds)
    return mix_gaussians([0.0, whole], [1 - probability, probability]).repeat(rounds)


@lru_cache(maxsize=4)  # curves are large
def compose_hidden_batches(
    mu: float,
    rate: float,
    steps: int,
    rounds: int,
    probability: float,
    planned: int,
    draw: str,
) -> Curve:
    """Returns the composition of rounds whose batches hide the record.

    Args:
        mu: The mu of a step whose batch holds the unit.
        rate: The probability that a batch holds the record.
        steps: The number of steps in a round.
        rounds: The number of rounds to compose.
        probability: The probability that the client takes part in a round.
        planned: The number of rounds of the plan, for which the grid of privacy losses is chosen.
        draw: The law of a step, by its name in `LAWS`.

    Example:
        >>> curve = compose_hidden_batches(1.0, 16 / 600, 38, 194, 0.5, 194, "fixed")
        >>> round(curve.epsilon(1e-5), 3)
        14.524
    """
    longest = max(planned, rounds)
    # Rounds that nobody is drawn for are their steps: composed at once, not step by round.
    if probability == 1:
        return make_round(mu, rate, 1, 1.0, steps * longest, draw).repeat(steps * rounds)
    return make_round(mu, rate, steps, probability, longest, draw).repeat(rounds)


@lru_cache(maxsize=4)
def make_round(
    mu: float, rate: float, steps: int, probability: float, planned: int, draw: str
) -> Curve:
    """Returns one round: its steps with `probability`, else nothing; see `compose_hidden_batches`.

    Args:
        mu: The mu of a step whose batch holds the unit.
        rate: The probability that a batch holds the record.
        steps: The number of steps in a round.
        probability: The probability that the client takes part in a round.
        planned: The number of rounds of the plan, for which the grid of privacy losses is chosen.
        draw: The law of a step, by its name in `LAWS`.
    """
    # Losses of a step spread with its mu, and so may the grid: this one costs some 1e-5 of epsilon
    # and saves most of the time.
    finest = subsampling.choose_interval(mu=mu, rate=rate, steps=steps * planned)
    interval = max(finest, min(1e-3, 4e-4 * mu))
    if draw == "poisson-replaced":
        return price_two_sided(
            reach=mu / 2, rate=rate, steps=steps, probability=probability, interval=interval
        )
    if draw == "fixed":
        return subsampling.compose_fixed_rounds(
            mu=mu, rate=rate, steps=steps, rounds=1, probability=probability, interval=interval
        )
    return subsampling.compose_poisson_rounds(
        multiplier=1 / mu,
        rate=rate,
        steps=steps,
        rounds=1,
        probability=probability,
        interval=interval,
    )


def export_step_event(question: Question) -> Any:
    """Returns the steps as an event of dp_accounting.

    The noise multiplier is in the unit that dp_accounting wants, that of the adjacency. Of batches
    that adversaries know there is no event; the one without the draw holds then.

    Raises:
        UserError: Participation is random, the unit is a client, or the number of records is not
            known.
    """
    import dp_accounting

    protocol = question.protocol
    price = find_step_price(question)
    release = noisy_steps_of(protocol)
    if protocol.participation.draws or question.unit != "record" or question.records is None:
        raise UserError(
            "dp_accounting has no event for these steps: everyone must take part, for one record "
            "of a known number."
        )
    # dp_accounting's REPLACE_ONE counts Poisson batches in units of the radius, of which a replaced
    # record moves by two.
    twofold = release.varying_batches and protocol.adjacency == "replace-one"
    # Without a draw it is a release that moves by 1 / multiplier, as of uploads.
    twofold = twofold and release.secret_batches
    alone = not adds_up(protocol) or find_priced_view(question).view.is_server
    honest = 1.0
    if not alone:
        honest = honest_participants(question).counts[0]
    multiplier = math.sqrt(honest) / price.mu
    if twofold:
        multiplier = 2 * multiplier
    noise = dp_accounting.GaussianDpEvent(noise_multiplier=multiplier)
    if not release.secret_batches:
        step = noise
    elif release.varying_batches:
        step = dp_accounting.PoissonSampledDpEvent(price.rate, noise)
    else:
        step = dp_accounting.SampledWithoutReplacementDpEvent(
            question.records, release.batch, noise
        )
    return dp_accounting.SelfComposedDpEvent(step, release.steps * protocol.rounds)


NOISY_STEPS = Provider(
    applies=applies_to,
    bounds=bound_noisy_steps,
    observes=observe_steps,
    event=export_step_event,
)
