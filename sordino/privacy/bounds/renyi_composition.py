"""Uploads with noise of any kind, composed by their Rényi divergences.

See docs/theory.md#b2, #a10 and #a11.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from sordino.mechanisms import NoisePrice, mechanism_of
from sordino.privacy.amplification.bounded_losses import bounded_loss_curve
from sordino.privacy.amplification.cohorts import first_use
from sordino.privacy.bounds.minibatches import secret_batches
from sordino.privacy.bounds.priced_view import observe_models
from sordino.privacy.bounds.question import Bound, Protection, Provider, Question
from sordino.privacy.curves.gaussian_curve import NOTHING
from sordino.privacy.guarantee import round_up
from sordino.privacy.noise_releases import dimension_of, price_of, releases_curve
from sordino.privacy.similar_rounds import join_similar_rounds
from sordino.protocol import Laplace, Noise, Registry, UserError

# An event of dp_accounting for one coordinate of a noise that moves by a shift.
ShiftEvent = Callable[[Any, float], Any]
SHIFT_EVENTS: Registry[ShiftEvent | None] = Registry("event of dp_accounting", "noise", Noise)
SHIFT_EVENTS.register_others(None)


@SHIFT_EVENTS.register(Laplace)
def _make_laplace_event(noise: Laplace, shift: float) -> Any:
    import dp_accounting

    return dp_accounting.LaplaceDpEvent(noise.scale / shift)


# How a line ends that says with which probability a round uses the record.
HIDDEN_USE = ", and nobody sees whether it does (docs/theory.md#a14)."
SEEN_USE = ", and it may be seen whether it does (docs/theory.md#a11)."


def applies_to(question: Question) -> bool:
    """Returns whether uploads with noise that is not Gaussian hide the client."""
    hidden_by_uploads = question.protection is Protection.UPLOADS
    return hidden_by_uploads and not question.protocol.noise.normal and len(question.rounds) > 0


def compose_divergences(question: Question) -> Iterator[Bound]:
    """Yields bounds for the server; all that other views see is made of what it sees."""
    protocol = question.protocol
    prices = question.prices
    counts = question.counts
    # Noise of 0 still suffices where nothing moves.
    if mechanism_of(protocol.noise).silent and prices.shifts.max() > 0:
        line = "Without noise nothing hides a client's contribution."
        yield Bound(curve=NOTHING, method="no noise", lines=(line,))
        return
    norm = protocol.release.clip_norm
    dimension = dimension_of(protocol)
    price = price_of(protocol.noise, norm, dimension)
    lines = (
        f"{prices.reason}; over these rounds that is {round_up(float(prices.shifts.max()))}.",
        describe_view(question),
        f"One release: {price.reason}.",
    )
    part = question.chance
    drawn = ""
    if part < 1:
        drawn = (
            f" A client takes part with probability {part:.3g}, and it is seen whether it does, so "
            "moments are averaged (docs/theory.md#a10)."
        )
    curve = releases_curve(
        protocol.noise, norm, dimension, prices.shifts[:, None], np.array([part]), counts
    )
    how = f"Rényi divergences add up over {counts.sum()} rounds.{drawn}"
    # Divergences add up for any noise, at some loss where they become an epsilon
    # (docs/theory.md#b5).
    yield Bound(curve=curve, method="Rényi composition", lines=(*lines, how), vouched=price.vouched)
    yield from bound_losses(question, price, lines)
    if prices.first_used is not None and question.records is not None:
        batch = protocol.local.batch or 1
        # Who takes part and which batch is drawn are independent, so their chances multiply.
        use = part * first_use(batch=batch, records=question.records, steps=protocol.local.steps)
        curve = releases_curve(protocol.noise, norm, dimension, prices.first_used, use, counts)
        how = (
            f"A step draws {batch} of {question.records} records: moments are averaged over the "
            f"step that uses the record first (docs/theory.md#a11).{drawn}"
        )
        yield Bound(
            curve=curve, method="first-hit mixture", lines=(*lines, how), vouched=price.vouched
        )
    # A bound that rests on the user's word needs one next to it that does not.
    if price.vouched:
        line = "Only what was vouched for is known about this noise: without it no bound holds."
        yield Bound(curve=NOTHING, method="no claim", lines=(line,))


def bound_losses(question: Question, price: NoisePrice, lines: tuple[str, ...]) -> Iterator[Bound]:
    """Yields the bounds by loss distributions, where the worst vector is known for every epsilon.

    Args:
        question: The protocol, view and unit to bound.
        price: The price of one release.
        lines: The derivation of the prices.
    """
    # Of most noise it is not known which move is the worst at every epsilon (docs/theory.md#b10).
    if price.deltas is None:
        return
    protocol = question.protocol
    prices = question.prices
    part = question.chance
    # First as if every batch held the record, which always applies.
    moves = [(prices.shifts[:, None], np.ones(1), False)]
    if prices.first_used is not None and question.records is not None:
        rule = protocol.local
        use = first_use(batch=rule.batch or 1, records=question.records, steps=rule.steps)
        moves.append((prices.first_used, use, secret_batches(question)))
    for shifts, use, hidden in moves:
        rows, often = join_similar_rounds(shifts, question.counts)
        renyi = releases_curve(
            protocol.noise,
            protocol.release.clip_norm,
            dimension_of(protocol),
            shifts,
            part * use,
            question.counts,
        )
        curve = bounded_loss_curve(
            price.deltas,
            rows,
            often,
            largest_loss=price.pure(float(rows.max())),
            use=use,
            hidden=hidden,
            probability=part,
            renyi=renyi,
        )
        # Noise that hides next to nothing has no such curve; the Rényi bound remains.
        if curve is None:
            return
        how = f"Privacy losses add up over {question.counts.sum()} rounds (docs/theory.md#b10)."
        method = "loss composition"
        if len(use) > 1 or use[0] < 1:
            how += f" A round uses the record with probability {use.sum():.3g}"
            how += HIDDEN_USE if hidden else SEEN_USE
            method = "secret batches" if hidden else "first-hit mixture"
        yield Bound(curve=curve, method=method, lines=(*lines, how), vouched=price.vouched)


def describe_view(question: Question) -> str:
    """Returns what the adversary sees, and that other noise has no better bound for a mean."""
    sees = f"The adversary sees {question.sees}."
    if question.view.is_server:
        return sees
    return (
        f"{sees} That is computed from the uploads: the server's bound holds, and no other is "
        "known for this noise."
    )


def export_shift_events(question: Question) -> Any:
    """Returns composed events of dp_accounting, where uploads are clipped in the l1 norm.

    Then a single coordinate is the worst case (docs/theory.md#b2).

    Raises:
        UserError: dp_accounting has no event for the noise, or for a draw of clients.
    """
    import dp_accounting

    protocol = question.protocol
    # dp_accounting's event is one coordinate; under an l2 clip many moving ones are worse.
    make_event = SHIFT_EVENTS.of(protocol.noise)
    if make_event is None or protocol.release.clip_norm != "l1":
        raise UserError(
            "dp_accounting has no event for this noise on a vector; `certify` prices it."
        )
    if protocol.participation.draws or protocol.client:
        raise UserError(
            "dp_accounting has no event for a visible draw of clients; `certify` prices it."
        )
    events = []
    shifts = question.prices.shifts.tolist()
    for shift, count in zip(shifts, question.counts.tolist(), strict=True):
        event = make_event(protocol.noise, shift)
        events.append(dp_accounting.SelfComposedDpEvent(event, count))
    return events[0] if len(events) == 1 else dp_accounting.ComposedDpEvent(events)


RENYI_COMPOSITION = Provider(
    applies=applies_to,
    bounds=compose_divergences,
    observes=observe_models,
    event=export_shift_events,
)
