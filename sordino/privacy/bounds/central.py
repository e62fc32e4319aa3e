"""Noise that the server adds to the mean, alone or on top of the clients' (docs/theory.md#a10).

Views of the models are covered; the server's is not. The server adds its noise to the
mean of the uploads, once in a round. One upload of n moves the mean by s_t / n. A public draw of
n gives a mixture. Where the denominator is fixed and the noise does not depend on who takes part,
a Poisson draw stays hidden and amplifies: for replace-one by the pair of `two_sided`, for adding
or removing a client by the sampled Gaussian.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from sordino.mechanisms import mechanism_of
from sordino.privacy.amplification import subsampling
from sordino.privacy.amplification.cohorts import Cohort, rounds_curve
from sordino.privacy.amplification.two_sided import price_two_sided
from sordino.privacy.bounds.bezier_mixture import spread_over_curve
from sordino.privacy.bounds.central_cohorts import (
    client_noise,
    find_cohort,
    find_denominator,
    server_noise,
)
from sordino.privacy.bounds.composition import TAKEN_PART
from sordino.privacy.bounds.minibatches import bound_minibatches
from sordino.privacy.bounds.priced_view import observe_models
from sordino.privacy.bounds.question import Bound, Protection, Provider, Question
from sordino.privacy.curves.curve import Curve
from sordino.privacy.curves.gaussian_curve import NOTHING, GaussianCurve, compose_curves
from sordino.privacy.curves.renyi import INTEGER_ORDERS, RenyiCurve, amplify_divergence
from sordino.privacy.guarantee import round_up
from sordino.privacy.noise_releases import dimension_of, price_of, releases_curve
from sordino.privacy.upload_sensitivity import UploadPrices, price_uploads
from sordino.protocol import Gaussian, UserError

# The mu of a round above which a hidden draw is not counted: it hides next to nothing, and grids
# grow.
STRONGEST = 10.0
# Shifts of rounds that differ are rounded up to powers of this, so that few kinds are composed.
LEVELS = 0.97
TRUSTED = (
    "The server receives uploads without noise and adds it itself: view server is not private at "
    "all. This protocol is for a server that everybody trusts with their uploads."
)


def applies_to(question: Question) -> bool:
    """Returns whether the server's noise on the mean hides the client."""
    return question.protection is Protection.MEAN and len(question.rounds) > 0


def bound_noisy_means(question: Question) -> Iterator[Bound]:
    """Yields every bound that holds where the server adds noise."""
    protocol = question.protocol
    # The server adds its noise after it has seen the uploads.
    if question.view.is_server:
        yield Bound(curve=NOTHING, method="trusted server", lines=(TRUSTED,))
    elif server_noise(protocol) == 0 and mechanism_of(protocol.noise).silent:
        line = "Without noise nothing hides a client's contribution."
        yield Bound(curve=NOTHING, method="no noise", lines=(line,))
    elif question.present is not None:
        yield from central_known_rounds(question)
    elif protocol.noise.normal:
        yield from central_gaussian(question)
    else:
        yield from central_renyi(question)


def describe_prices(question: Question) -> tuple[str, ...]:
    """Returns how far uploads move and what the adversary sees, line by line."""
    largest = round_up(float(question.prices.shifts.max()))
    lines = (
        f"{question.prices.reason}; over these rounds that is {largest}.",
        f"The adversary sees {question.sees}.",
    )
    if not removes_client(question):
        return lines
    line = (
        "A client is added or removed: an absent update counts as 0, and a present one is at most "
        "s_t / 2 away from it."
    )
    return (*lines, line)


def removes_client(question: Question) -> bool:
    """Returns whether a whole client is added or removed.

    The mean then moves by one update, of norm s_t / 2, and not by two.
    """
    # A record that comes or goes leaves its client's update in the sum (docs/theory.md#a17).
    return question.protocol.adjacency == "add-or-remove" and question.unit == "client"


def mean_shifts(question: Question, shifts: np.ndarray) -> np.ndarray:
    """Returns by how much the sum of updates moves.

    Args:
        question: The protocol, view and unit to bound.
        shifts: How far uploads move when an update is replaced.
    """
    # Replacing takes one update away and adds another; removing does only the first.
    return shifts / 2 if removes_client(question) else shifts


def central_gaussian(question: Question) -> Iterator[Bound]:
    """Yields bounds under Gaussian noise, with the draw of clients seen, and with it hidden."""
    protocol = question.protocol
    lines = describe_prices(question)
    yield from bound_visible_draws(question, lines)
    weakest = STRONGEST * server_noise(protocol) * find_denominator(protocol)
    if protocol.hides_participants and float(question.prices.shifts.max()) <= weakest:
        how = (
            f"Each client is drawn with probability {question.chance:.3g}, which only the server "
            f"knows; the noise and the denominator {find_denominator(protocol):g} do not depend "
            "on it, so the draw amplifies (docs/theory.md#a10)."
        )
        curve = hidden_draw_curve(question)
        yield Bound(curve=curve, method="hidden Poisson sampling", lines=(*lines, how))


def bound_visible_draws(question: Question, lines: tuple[str, ...]) -> Iterator[Bound]:
    """Yields bounds for an adversary who may see who takes part.

    They are a mixture over how many do, and over the first use of the record.

    Args:
        question: The protocol, view and unit to bound.
        lines: The derivation of the prices.
    """
    counts = question.counts
    cohort = find_cohort(question)
    shifts = mean_shifts(question, question.prices.shifts)
    what = "the server's noise"
    if client_noise(question.protocol) > 0:
        what = "the server's noise and the honest clients'"
    # Nothing is random about the round but its noise: the composition is exactly Gaussian.
    if cohort.probability == 1 and len(cohort.counts) == 1:
        mu = math.sqrt(float(np.dot(counts, shifts**2)) / cohort.counts[0])
        how = (
            f"Gaussian composition over {counts.sum()} rounds under {what}: "
            f"mu = sqrt(sum s_t^2) / {math.sqrt(cohort.counts[0]):.4g}."
        )
        yield Bound(curve=GaussianCurve(mu=mu), method="composition", lines=(*lines, how))
    else:
        curve = rounds_curve(shifts[:, None], counts, sigma=1.0, cohort=cohort)
        how = (
            f"Each round is a public mixture over how many take part, under {what} "
            "(docs/theory.md#a10)."
        )
        yield Bound(curve=curve, method="participation mixture", lines=(*lines, how))
    yield from bound_minibatches(
        question,
        question.prices,
        counts,
        sigma=1.0,
        cohort=cohort,
        lines=(*lines, f"The client is hidden by {what}."),
    )
    if question.spreads_curve:
        rows, use = spread_over_curve(shifts[:, None])
        curve = rounds_curve(rows, counts, sigma=1.0, cohort=cohort, use=use)
        how = (
            "The point r of the Bezier curve is public and drawn afresh, so each round is a "
            f"mixture over c(r) = (1 - r)(1 + 1.2 r), under {what} (docs/theory.md#b9)."
        )
        yield Bound(curve=curve, method="Bezier mixture", lines=(*lines, how))


def hidden_draw_curve(question: Question) -> Curve:
    """Returns the composition of rounds with a hidden Poisson draw."""
    protocol = question.protocol
    noise = server_noise(protocol) * find_denominator(protocol)
    rate = question.chance
    curves = []
    for shift, count in group_shifts(question.prices.shifts, question.counts):
        # An update has norm s_t / 2 at most, and an absent one is 0.
        if removes_client(question):
            curves.append(make_sampled_step(2 * noise / shift, rate).repeat(count))
        else:
            curves.append(price_two_sided(reach=shift / noise / 2, rate=rate, steps=count))
    return compose_curves(curves)


@lru_cache(maxsize=64)
def make_sampled_step(multiplier: float, rate: float) -> Curve:
    """Returns the curve of one sampled Gaussian step.

    It is cached, since the search for what a budget affords tries many numbers of rounds.

    Args:
        multiplier: The standard deviation of the noise, in units of the move.
        rate: The probability that a client is drawn.
    """
    return subsampling.compose_poisson_batches(multiplier=multiplier, rate=rate)


def group_shifts(shifts: np.ndarray, counts: np.ndarray) -> list[tuple[float, int]]:
    """Returns shifts rounded up to a few levels, and how often each occurs.

    Args:
        shifts: How far an upload moves in each round.
        counts: How often each round occurs.

    Example:
        >>> group_shifts(np.array([1.0, 0.999, 0.5]), np.array([1, 2, 3]))  # doctest: +ELLIPSIS
        [(1.0, 3), (0.51..., 3)]
    """
    top = float(shifts.max())
    if top == 0:
        return []
    with np.errstate(divide="ignore"):
        # Rounded up to the next level, so that the bound is never too small.
        steps = np.floor(np.minimum(np.log(shifts / top) / math.log(LEVELS), 1000)).astype(int)
    found = []
    for step in np.unique(steps).tolist():
        found.append((top * LEVELS**step, int(counts[steps == step].sum())))
    return found


def central_renyi(question: Question) -> Iterator[Bound]:
    """Yields bounds by Rényi divergences of the mean's move, as for Laplace noise on the mean.

    The draw of clients is public, or hidden (docs/theory.md#b6).
    """
    protocol = question.protocol
    norm = protocol.release.clip_norm
    dimension = dimension_of(protocol)
    price = price_of(protocol.noise, norm, dimension)
    cohort = find_divisors(question)
    masses = cohort.probability * np.array(cohort.masses)
    moved = mean_shifts(question, question.prices.shifts)
    shifts = np.divide.outer(moved, np.array(cohort.counts, dtype=float))
    lines = (*describe_prices(question), f"One release: {price.reason}.")
    curve = releases_curve(protocol.noise, norm, dimension, shifts, masses, question.counts)
    yield Bound(curve=curve, method="Rényi composition", lines=lines, vouched=price.vouched)
    if not (protocol.hides_participants and removes_client(question)):
        return
    rate = question.chance
    totals = np.zeros(len(INTEGER_ORDERS))
    for shift, count in group_shifts(question.prices.shifts, question.counts):
        move = shift / 2 / find_denominator(protocol)

        def find_divergence(order: float, move: float = move) -> float:
            """Returns the divergence of a release that holds the client.

            Args:
                order: The order of the Rényi divergence, above 1.
                move: How far the mean moves.
            """
            return price.divergence(order, move)

        one = [amplify_divergence(order, rate, find_divergence) for order in INTEGER_ORDERS]
        totals += count * np.array(one)
    how = (
        f"Each client is drawn with probability {rate:.3g}, hidden under noise that does not "
        "depend on it (docs/theory.md#b6, #a10)."
    )
    orders = tuple(float(order) for order in INTEGER_ORDERS)
    yield Bound(
        curve=RenyiCurve(orders=orders, values=tuple(totals.tolist())),
        method="hidden Poisson sampling",
        lines=(*lines, how),
        vouched=price.vouched,
    )


def find_divisors(question: Question, numbers: Sequence[float] | None = None) -> Cohort:
    """Returns by what the sum of updates is divided, and how probable that is.

    Args:
        question: The protocol, view and unit to bound.
        numbers: The number of participants, where it is known.
    """
    # Under Gaussian noise of deviation 1 from the server alone, the spread is the squared divisor.
    gaussian = replace(question.protocol, noise=Gaussian(sigma=1.0, where="server"))
    cohort = find_cohort(replace(question, protocol=gaussian), numbers)
    return replace(cohort, counts=tuple(math.sqrt(count) for count in cohort.counts))


def central_known_rounds(question: Question) -> Iterator[Bound]:
    """Yields bounds of a client that took part in rounds whose number of contributors is known.

    The draw of clients is known then, and amplifies nothing.
    """
    protocol = question.protocol
    numbers = question.present or ()
    prices = price_uploads(protocol, question.rounds, question.unit, question.records)
    shifts = mean_shifts(question, prices.shifts)
    if protocol.noise.normal:
        spreads = np.array([find_cohort(question, [number]).counts[0] for number in numbers])
        # One round without noise reveals everything, however much noise the others have.
        if (spreads == 0).any():
            line = "Without noise nothing is hidden."
            yield Bound(curve=NOTHING, method="no noise", lines=(line,))
        else:
            yield from gaussian_known_rounds(question, prices, spreads)
        return
    moves = []
    for shift, number in zip(shifts, numbers, strict=True):
        moves.append(float(shift) / find_divisors(question, [number]).counts[0])
    curve = releases_curve(
        protocol.noise,
        protocol.release.clip_norm,
        dimension_of(protocol),
        np.array(moves)[:, None],
        np.ones(1),
        np.ones(len(moves), dtype=np.int64),
    )
    yield Bound(curve=curve, method="composition", lines=(TAKEN_PART,))


def gaussian_known_rounds(
    question: Question, prices: UploadPrices, spreads: np.ndarray
) -> Iterator[Bound]:
    """Yields composition, and what the draw of minibatches adds to it.

    Args:
        question: The protocol, view and unit to bound.
        prices: The prices of the uploads, one row per round.
        spreads: The squared noise of each round, in units of one upload's move.
    """
    shifts = mean_shifts(question, prices.shifts)
    mu = math.sqrt(float(np.sum(np.square(shifts) / spreads)))
    yield Bound(curve=GaussianCurve(mu=mu), method="composition", lines=(TAKEN_PART,))
    yield from bound_minibatches(
        question,
        prices,
        np.ones(len(spreads), dtype=np.int64),
        sigma=1.0,
        cohort=Cohort.everyone(clients=1),
        scale=1 / np.sqrt(spreads),
        lines=(TAKEN_PART,),
    )


def export_mean_event(question: Question) -> Any:
    """Returns the means under the server's noise as events of dp_accounting.

    Raises:
        UserError: The server is the adversary, the noise is not Gaussian, or the draw of clients
            is seen, or hidden from neighbours that dp_accounting does not know.
    """
    import dp_accounting

    protocol = question.protocol
    cohort = find_cohort(question)
    hidden = protocol.hides_participants and removes_client(question)
    certain = cohort.probability == 1 and len(cohort.counts) == 1
    if question.view.is_server or not protocol.noise.normal or not (hidden or certain):
        raise UserError(
            "dp_accounting has no event for this noise at the server. It has one for Gaussian "
            "noise against an adversary that sees models, where everyone takes part, or where "
            "whole clients are added or removed whose Poisson draw is hidden. `certify` prices it."
        )
    events = []
    for shift, count in zip(question.prices.shifts.tolist(), question.counts.tolist(), strict=True):
        if hidden:
            noise = server_noise(protocol) * find_denominator(protocol)
            # An update has norm s_t / 2 at most, and an absent one is 0.
            step = dp_accounting.GaussianDpEvent(noise_multiplier=2 * noise / shift)
            event = dp_accounting.PoissonSampledDpEvent(question.chance, step)
        else:
            moved = float(mean_shifts(question, np.array(shift)))
            event = dp_accounting.GaussianDpEvent(math.sqrt(cohort.counts[0]) / moved)
        events.append(dp_accounting.SelfComposedDpEvent(event, count) if count > 1 else event)
    return events[0] if len(events) == 1 else dp_accounting.ComposedDpEvent(events)


CENTRAL = Provider(
    applies=applies_to, bounds=bound_noisy_means, observes=observe_models, event=export_mean_event
)
