"""Gaussian noise on uploads, composed over rounds (docs/theory.md#a8, #a10).

With everyone in every round the composition is Gaussian, else a mixture over who takes part.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from sordino.mechanisms import mechanism_of
from sordino.privacy.amplification.cohorts import Cohort, find_cohort_law, first_use, rounds_curve
from sordino.privacy.bounds.bezier_mixture import spread_over_curve
from sordino.privacy.bounds.minibatches import bound_minibatches, secret_batches
from sordino.privacy.bounds.priced_view import find_priced_view, observe_models
from sordino.privacy.bounds.question import (
    Bound,
    Protection,
    Provider,
    Question,
    visible_share,
)
from sordino.privacy.bounds.summed_noise import (
    count_known_honest,
    find_secure_sum,
    scale_secure_share,
)
from sordino.privacy.curves.gaussian_curve import GaussianCurve
from sordino.privacy.guarantee import round_up
from sordino.privacy.upload_sensitivity import price_history
from sordino.protocol import UserError, View

UNKNOWN_SIZES = (
    "How many records clients have is not stated, so every step counts as if its batch held the "
    "record."
)
TAKEN_PART = "Composed over the rounds in which the client took part."


def applies_to(question: Question) -> bool:
    """Returns whether uploads with Gaussian noise hide the client, and rounds were run."""
    hidden_by_uploads = question.protection is Protection.UPLOADS and question.protocol.noise.normal
    return hidden_by_uploads and len(question.rounds) > 0


def compose_rounds(question: Question) -> Iterator[Bound]:
    """Yields the bounds of rounds whose uploads have Gaussian noise."""
    # Noise of 0 still suffices where nothing moves.
    if mechanism_of(question.protocol.noise).silent and question.prices.shifts.max() > 0:
        line = "Without noise (sigma = 0) nothing hides a client's contribution."
        yield Bound(curve=GaussianCurve(mu=math.inf), method="no noise", lines=(line,))
    elif question.present is not None:
        yield from compose_known_rounds(question)
    else:
        yield from compose_planned_rounds(question)


def compose_planned_rounds(question: Question) -> Iterator[Bound]:
    """Yields bounds before a run: without regard to minibatches, and with what they add."""
    protocol = question.protocol
    prices = question.prices
    counts = question.counts
    sigma = question.noise.sigma
    priced = find_priced_view(question)
    lines: tuple[str, ...] = (
        f"{prices.reason}; over these rounds that is {round_up(float(prices.shifts.max()))}.",
        priced.sentence,
    )
    if question.unit == "record" and question.records is None and protocol.local.draws_batches:
        lines = (*lines, UNKNOWN_SIZES)
    cohort, scale = find_visible_cohort(question, priced.view)
    # Given who takes part, every round is Gaussian; without a draw the whole composition is
    # (docs/theory.md#a8).
    if not protocol.participation.draws:
        mu = scale * math.sqrt(float(np.dot(counts, prices.shifts**2))) / sigma
        how = (
            f"Gaussian composition over {counts.sum()} rounds: "
            f"mu = sqrt(sum s_t^2) x {round_up(scale)} / sigma (docs/theory.md#a8)."
        )
        yield Bound(curve=GaussianCurve(mu=mu), method="composition", lines=(*lines, how))
    else:
        how = (
            "Each round is a public mixture: with probability 1 - q the client takes no part; "
            "otherwise the round is Gaussian, under all noise that hides the client in this view "
            "(docs/theory.md#a10)."
        )
        curve = rounds_curve(prices.shifts[:, None] * scale, counts, sigma=sigma, cohort=cohort)
        yield Bound(curve=curve, method="participation mixture", lines=(*lines, how))
    yield from bound_minibatches(
        question, prices, counts, sigma=sigma, cohort=cohort, scale=scale, lines=lines
    )
    if question.spreads_curve:
        yield bound_bezier_points(question, cohort, scale, lines)


def bound_bezier_points(
    question: Question, cohort: Cohort, scale: float, lines: tuple[str, ...]
) -> Bound:
    """Returns the bound of the rule bezier, a mixture over the public point of its curve.

    Where minibatches hide the record, it is a mixture over the record's first use too.

    Args:
        question: The protocol, view and unit to bound.
        cohort: The honest participants of a round, whose noise hides the attacked client.
        scale: The share of an upload's move that the view sees.
        lines: The derivation of the prices.
    """
    rule = question.protocol.local
    prices = question.prices
    rows, use = spread_over_curve(prices.shifts[:, None])
    if prices.first_used is not None and question.records is not None:
        first = first_use(batch=rule.batch or 1, records=question.records, steps=rule.steps)
        rows, use = spread_over_curve(prices.first_used, first)
    how = (
        "The point r of the Bezier curve is public and drawn afresh, so each round is a mixture "
        "over c(r) = (1 - r)(1 + 1.2 r) (docs/theory.md#b9)."
    )
    sigma = question.noise.sigma
    curve = rounds_curve(rows * scale, question.counts, sigma=sigma, cohort=cohort, use=use)
    return Bound(curve=curve, method="Bezier mixture", lines=(*lines, how))


def find_visible_cohort(question: Question, view: View) -> tuple[Cohort, float]:
    """Returns who hides the attacked client, and the share of its upload that the view sees.

    Args:
        question: The protocol, view and unit to bound.
        view: View whose bound is taken.
    """
    rule = question.protocol.participation
    cohort = find_cohort_law(rule, clients=question.protocol.clients, colluding=view.colluders)
    if find_secure_sum(question) is not None and (not rule.draws or view.is_server):
        # Without a draw the number of honest contributions is known, and from a server that may
        # wait for the fewest it is taken to be the fewest.
        return cohort.alone(), scale_secure_share(question, view)
    if not rule.draws:
        # Unequal shares: as if that many equal clients were honest. The number need not be whole,
        # so it goes into the shift.
        return cohort.alone(), visible_share(question, view)
    if view.is_server:
        return cohort.alone(), 1.0
    return cohort, 1.0


def compose_known_rounds(question: Question) -> Iterator[Bound]:
    """Yields bounds of a client that took part in rounds whose number of contributors is known."""
    protocol = question.protocol
    view = find_priced_view(question).view
    summed = find_secure_sum(question) is not None
    if question.shares is not None and not question.knows_present and not summed:
        view = View.SERVER
    kinds = Counter(zip(question.rounds.tolist(), question.present or (), strict=True))
    rounds = np.array([round_index for round_index, _ in kinds], dtype=np.int64)
    counts = np.array(list(kinds.values()))
    # Of n participants k may collude.
    if view.is_server and not summed:
        honest = np.ones(len(kinds))
    else:
        honest = np.array([count_known_honest(question, view, number) for _, number in kinds])
    weight = question.sum_weight
    prices = price_history(protocol, rounds, question.unit, question.records, weight)
    sigma = question.noise.sigma
    scale = weight / np.sqrt(honest)
    mu = float(np.sqrt(np.dot(counts, (prices.shifts * scale) ** 2))) / sigma
    lines = (f"{prices.reason}.", TAKEN_PART)
    yield Bound(curve=GaussianCurve(mu=mu), method="composition", lines=lines)
    alone = Cohort.everyone(clients=1)
    yield from bound_minibatches(
        question, prices, counts, sigma=sigma, cohort=alone, scale=scale, lines=lines
    )
    if question.spreads_curve:
        rows, use = spread_over_curve((prices.shifts * scale)[:, None])
        curve = rounds_curve(rows, counts, sigma=sigma, cohort=alone, use=use)
        how = "Each round is a mixture over the point of the Bezier curve (docs/theory.md#b9)."
        yield Bound(curve=curve, method="Bezier mixture", lines=(*lines, how))


def export_gaussian_event(question: Question) -> Any:
    """Returns composed Gaussian events of dp_accounting, one for each price of a round.

    Raises:
        UserError: dp_accounting has no event for a draw of clients that is seen.
    """
    import dp_accounting

    protocol = question.protocol
    # An event that leaves out the draw would overstate the price; one that hides it would
    # understate it.
    if protocol.participation.draws or protocol.client:
        raise UserError(
            "dp_accounting has no event for a visible draw of clients whose number changes the "
            "noise; `certify` prices it."
        )
    _, factor = find_visible_cohort(question, find_priced_view(question).view)
    sigma = question.noise.sigma
    events = []
    shifts = question.prices.shifts.tolist()
    for shift, count in zip(shifts, question.counts.tolist(), strict=True):
        event = dp_accounting.GaussianDpEvent(noise_multiplier=sigma / (shift * factor))
        event = draw_batch_event(question, event)
        if count > 1:
            event = dp_accounting.SelfComposedDpEvent(event, count)
        events.append(event)
    return events[0] if len(events) == 1 else dp_accounting.ComposedDpEvent(events)


def draw_batch_event(question: Question, event: Any) -> Any:
    """Returns a round's event with the secret draw of its batch, where dp_accounting has one.

    A round of one step on a batch of distinct records, one of which is replaced, is the event of
    sampling without replacement (docs/theory.md#a14 with K = 1). Of several steps there is none;
    the event without the draw holds then.

    Args:
        question: The protocol, view and unit to bound.
        event: A round in which the record is used for certain.
    """
    import dp_accounting

    rule = question.protocol.local
    if question.prices.first_used is None or question.records is None or rule.batch is None:
        return event
    # Several steps would be several draws of one upload, which no event describes.
    if rule.steps > 1 or not secret_batches(question):
        return event
    return dp_accounting.SampledWithoutReplacementDpEvent(question.records, rule.batch, event)


COMPOSITION = Provider(
    applies=applies_to,
    bounds=compose_rounds,
    observes=observe_models,
    event=export_gaussian_event,
)
