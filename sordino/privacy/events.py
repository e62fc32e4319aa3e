"""A protocol as an event of dp_accounting, for its accountants, where it has one that fits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sordino.privacy.certify import Question, asked, effective_view, visible_share
from sordino.privacy.uploads import distinct_rounds, upload_prices
from sordino.protocol import Everyone, Gaussian, Laplace, NoisySgd, Protocol, UserError, View


def dp_event(protocol: Protocol, view: View = View.SERVER, unit: str = "record") -> Any:
    """Composed Gaussian events whose noise multiplier is that of one round, in units of its replace-one sensitivity.

    Raises:
        UserError: participation is random. dp_accounting has an event for sampling that is hidden under constant noise, and none for a
            visible draw with noise that depends on who takes part; `certify` prices it.

    Example:
        >>> from sordino.protocol import Constant, FedAvg, Gaussian
        >>> local = FedAvg(steps=5, batch=32, clip=1.0, schedule=Constant(rate=0.1))
        >>> dp_event(Protocol(clients=50, rounds=600, local=local, noise=Gaussian(sigma=2.0)))
        SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=2.0), count=600)
    """
    import dp_accounting

    question = asked(protocol, view, unit, None, None)
    if protocol.noise.where != "client" or protocol.channel != "direct":
        raise UserError(
            "dp_accounting has no event for noise at the server beside a shuffler or a draw of clients; `certify` prices it."
        )
    if isinstance(protocol.local, NoisySgd):
        return noisy_step_event(question, protocol.local)
    if not isinstance(protocol.noise, Gaussian):
        return other_event(protocol, question)
    if not isinstance(protocol.participation, Everyone) or protocol.client:
        raise UserError(
            "dp_accounting has no event for a visible draw of clients whose number changes the noise; `certify` prices it."
        )
    rounds, counts = distinct_rounds(protocol, np.arange(protocol.rounds))
    prices = upload_prices(protocol, rounds, unit, question.records)
    factor = visible_share(question, effective_view(question)[0])
    events = []
    for shift, count in zip(prices.shifts.tolist(), counts.tolist(), strict=True):
        one = dp_accounting.GaussianDpEvent(
            noise_multiplier=protocol.noise.sigma / (shift * factor)
        )
        events.append(dp_accounting.SelfComposedDpEvent(one, count) if count > 1 else one)
    return events[0] if len(events) == 1 else dp_accounting.ComposedDpEvent(events)


def other_event(protocol: Protocol, question: Question) -> Any:
    """Composed Laplace events, where uploads are clipped in the l1 norm: then one coordinate is the worst case (THEORY B2)."""
    import dp_accounting

    from sordino.privacy.mechanisms import clip_norm

    if not isinstance(protocol.noise, Laplace) or clip_norm(protocol) != "l1":
        raise UserError(
            "dp_accounting has no event for this noise on a vector; `certify` prices it."
        )
    if not isinstance(protocol.participation, Everyone) or protocol.client:
        raise UserError(
            "dp_accounting has no event for a visible draw of clients; `certify` prices it."
        )
    rounds, counts = distinct_rounds(protocol, np.arange(protocol.rounds))
    prices = upload_prices(protocol, rounds, question.unit, question.records)
    events = [
        dp_accounting.SelfComposedDpEvent(
            dp_accounting.LaplaceDpEvent(protocol.noise.scale / shift), count
        )
        for shift, count in zip(prices.shifts.tolist(), counts.tolist(), strict=True)
    ]
    return events[0] if len(events) == 1 else dp_accounting.ComposedDpEvent(events)


def noisy_step_event(question: Question, rule: NoisySgd) -> Any:
    """The steps of noisy-sgd; its noise multiplier is in the unit that dp_accounting wants, that of the adjacency.

    Raises:
        UserError: participation is random, the unit is a client, or the number of records is not known.
    """
    import dp_accounting

    from sordino.privacy.joined_steps import adds_up, honest_participants
    from sordino.privacy.noisy_steps import step_price

    protocol, price = question.protocol, step_price(question, rule)
    if (
        not isinstance(protocol.participation, Everyone)
        or question.unit != "record"
        or question.records is None
    ):
        raise UserError(
            "dp_accounting has no event for these steps: everyone must take part, for one record of a known number."
        )
    # dp_accounting's REPLACE_ONE counts Poisson batches in units of the radius, of which a replaced record moves by two.
    twofold = rule.sampling == "poisson" and protocol.adjacency == "replace-one"
    alone = not adds_up(protocol) or effective_view(question)[0].kind == "server"
    honest = 1.0 if alone else honest_participants(question).counts[0]
    multiplier = (2 if twofold else 1) * math.sqrt(honest) / price.mu
    noise = dp_accounting.GaussianDpEvent(noise_multiplier=multiplier)
    if rule.sampling == "fixed":
        step = dp_accounting.SampledWithoutReplacementDpEvent(question.records, rule.batch, noise)
    else:
        step = dp_accounting.PoissonSampledDpEvent(price.rate, noise)
    return dp_accounting.SelfComposedDpEvent(step, rule.steps * protocol.rounds)
