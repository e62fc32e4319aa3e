"""What the rule dp-sgd promises: one noise on a sum over a lot of all records (docs/theory.md#a13).

Every client adds a share of the noise. The sum over all clients holds the shares of all
honest contributors, one client's upload that client's alone. Given the past, a round is a sampled
Gaussian, and whatever the server makes of the sum is post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from sordino.privacy.amplification.cohorts import Cohort
from sordino.privacy.bounds.central import TRUSTED
from sordino.privacy.bounds.joined_steps import (
    HIDDEN_DRAW,
    JoinedStep,
    bound_cohort,
    compose_known_shares,
    honest_participants,
)
from sordino.privacy.bounds.noisy_steps import (
    LAWS,
    compose_seen_batches,
    find_strongest,
    name_draw,
)
from sordino.privacy.bounds.priced_view import find_priced_view
from sordino.privacy.bounds.question import Bound, Observation, Protection, Provider, Question
from sordino.privacy.curves.gaussian_curve import NOTHING, compose_curves
from sordino.privacy.guarantee import round_up
from sordino.privacy.upload_sensitivity import move_of_lot
from sordino.protocol import NoisyUpload, UserError, noisy_upload_of
from sordino.protocol.release import Lot


def applies_to(question: Question) -> bool:
    """Returns whether one noise on a sum over all clients hides the client."""
    return question.protection is Protection.LOT and len(question.rounds) > 0


def observe_lots(question: Question) -> Observation:
    """Returns what bounds on lots are proved against."""
    return Observation.UPLOADS if sees_uploads(question) else Observation.MODELS


def sees_uploads(question: Question) -> bool:
    """Returns whether the adversary is given single clients' uploads."""
    # Then the server is shown no single upload either (docs/theory.md#a19).
    if question.protocol.channel.sums_only:
        return False
    return find_priced_view(question).view.is_server


def bound_lots(question: Question) -> Iterator[Bound]:
    """Yields the bounds that hold, with and without counting the draw of the lot."""
    release = noisy_upload_of(question.protocol)
    lot = find_lot(release)
    # The server adds its noise after it has seen the sums.
    if release.at_server and sees_uploads(question):
        yield Bound(curve=NOTHING, method="trusted server", lines=(TRUSTED,))
        return
    if lot.multiplier == 0:
        line = "Without noise nothing hides a contribution."
        yield Bound(curve=NOTHING, method="no noise", lines=(line,))
        return
    step = find_lot_step(question)
    if math.isinf(step.mu):
        line = "A Poisson lot may hold any number of a client's records, which are not stated."
        yield Bound(curve=NOTHING, method="no limit", lines=(line,))
        return
    sentence = find_priced_view(question).sentence
    law = (
        f"A lot's sum of clipped gradients moves by at most {round_up(step.mu)} times one share of "
        f"the noise; a round is priced as {LAWS[step.draw]} (docs/theory.md#a13)."
    )
    if release.adaptive is not None:
        law += (
            " The sum holds the count of examples within the clip, too, and so moves "
            f"{release.adaptive.price_factor:.6g} times as far (docs/theory.md#a22)."
        )
    shares = count_known_shares(question, release)
    if shares is None:
        lines = (sentence, law, describe_shares(question, release))
        hiding = find_hiding_shares(question, release)
        yield from bound_cohort(question, step, hiding, lines)
        yield from bound_seen_lots(question, step, hiding, lines)
        return
    rate = step.rate
    # Batches are not counted where the weakest round would need an endless grid.
    if step.mu / math.sqrt(min(shares)) > step.strongest:
        rate = 1.0
    curve = compose_known_shares(shares, step.mu, rate, step.draw, question.protocol.rounds)
    how = "Each round is priced with the clients that contributed to it."
    yield Bound(curve=curve, method=HIDDEN_DRAW, lines=(sentence, law, how))
    if step.rate < 1:
        curves = [
            compose_seen_batches(
                mu=step.mu / math.sqrt(number),
                steps=1,
                rounds=shares.count(number),
                probability=1.0,
                rate=step.rate,
            )
            for number in sorted(set(shares))
        ]
        yield Bound(
            curve=compose_curves(curves), method="known batches", lines=(sentence, law, how)
        )


def bound_seen_lots(
    question: Question, step: JoinedStep, hiding: Cohort, lines: tuple[str, ...]
) -> Iterator[Bound]:
    """Yields the bound that holds even if lots are seen: under little noise they almost are.

    Args:
        question: The protocol, view and unit to bound.
        step: What a round releases.
        hiding: The law of the number of shares that hide the attacked client.
        lines: The derivation so far.
    """
    # The curve below is for one number of shares; with a random one only the other bounds apply.
    if step.rate == 1 or len(hiding.counts) > 1:
        return
    curve = compose_seen_batches(
        mu=step.mu / math.sqrt(hiding.counts[0]),
        steps=1,
        rounds=len(question.rounds),
        probability=hiding.probability,
        rate=step.rate,
    )
    how = (
        f"A lot holds the record with probability q = {step.rate:.6g}, and the bound holds even "
        "if it is seen whether it does (docs/theory.md#a11)."
    )
    yield Bound(curve=curve, method="known batches", lines=(*lines, how))


def find_lot(release: NoisyUpload) -> Lot:
    """Returns the lot of a release.

    Args:
        release: The release of a protocol with the rule dp-sgd.

    Raises:
        TypeError: The protocol draws no lots.
    """
    if release.lot is None:
        raise TypeError("no lot is drawn")
    return release.lot


def find_lot_step(question: Question) -> JoinedStep:
    """Returns what a round releases, in units of one share of the noise."""
    protocol = question.protocol
    release = noisy_upload_of(protocol)
    lot = find_lot(release)
    # Matters for whole clients only: the one with the most records moves the sum the furthest.
    moved = move_of_lot(protocol, question.unit, question.most_records)
    if release.adaptive is not None:
        # The count moves in the same draw as the gradients (docs/theory.md#a22).
        moved *= release.adaptive.price_factor
    share = lot.share
    if release.integers:
        # Rounding to integers moves sums further, and hides as much less (docs/theory.md#a12).
        # Uploads are sums divided by B, so on a sum their rounding counts B times
        # (docs/theory.md#a13).
        moved += lot.batch * question.noise.rounding
        share = lot.batch * question.noise.sigma
    draw = name_draw(protocol)
    return JoinedStep(
        mu=moved / share,
        rate=find_lot_rate(question, lot),
        draw=draw,
        strongest=find_strongest(draw),
    )


def find_lot_rate(question: Question, lot: Lot) -> float:
    """Returns the largest probability that a lot holds a record.

    Args:
        question: The protocol, view and unit to bound.
        lot: The lot of the release.
    """
    # A whole client is practically always in the lot.
    if question.unit == "client" or question.records is None:
        return 1.0
    sizes = question.sizes or (question.records,)
    if lot.varying:
        # A client that prices itself knows its own records; the file says the others'.
        sizes = question.protocol.stated_sizes or sizes
    # A fixed number of records hides one worst among the fewest; Poisson coins depend on the mean
    # of all clients.
    fewest = question.records if question.attacked is not None else min(sizes)
    return lot.find_rate(fewest, sum(sizes) / len(sizes))


def find_hiding_shares(question: Question, release: NoisyUpload) -> Cohort:
    """Returns how many shares of the noise hide the attacked client, before a run.

    Args:
        question: The protocol, view and unit to bound.
        release: The noisy upload of a client.
    """
    alone = Cohort(probability=question.chance, counts=(1.0,), masses=(1.0,))
    # The server's noise is one share, which nobody else knows.
    if release.at_server or sees_uploads(question):
        return alone
    if release.secure_sum is not None:
        # A sum may be opened without the others' contributions.
        number = count_certain_shares(
            release.secure_sum.threshold, count_colluders(question, release)
        )
        return replace(alone, counts=(float(number),))
    return honest_participants(question)


def count_certain_shares(threshold: int, colluders: int) -> int:
    """Returns how many shares of the noise every opened sum holds that the adversary cannot know.

    Args:
        threshold: The smallest number of uploads in a sum that is opened.
        colluders: How many clients' shares the adversary knows.
    """
    # The attacked client's own share is in every sum that holds its gradients.
    return max(1, threshold - colluders)


def count_known_shares(question: Question, release: NoisyUpload) -> list[float] | None:
    """Returns how many shares hid the client in every round; None before a run.

    Args:
        question: The protocol, view and unit to bound.
        release: The noisy upload of a client.
    """
    if question.present is None:
        return None
    if sees_uploads(question):
        return [1.0] * len(question.present)
    if release.at_server:
        return [_find_server_share(question, release, number) for number in question.present]
    colluders = count_colluders(question, release)
    return [float(max(1, number - colluders)) for number in question.present]


def _find_server_share(question: Question, release: NoisyUpload, present: float) -> float:
    """Returns the variance of the server's noise on the sum, over what was planned."""
    if question.protocol.aggregation.fixed_denominator:
        return 1.0
    # The noise is on a mean: over fewer clients than planned, it is less on their sum.
    return min(1.0, (present / find_lot(release).clients) ** 2)


def count_colluders(question: Question, release: NoisyUpload) -> int:
    """Returns how many clients' noise the adversary knows.

    Args:
        question: The protocol, view and unit to bound.
        release: The noisy upload of a client.
    """
    if release.secure_sum is not None and question.view.is_server:
        # Those that the protocol provides for count even where the view names fewer.
        return max(question.colluders, release.secure_sum.colluders)
    return question.colluders


def describe_shares(question: Question, release: NoisyUpload) -> str:
    """Returns whose noise counts, in a sentence.

    Args:
        question: The protocol, view and unit to bound.
        release: The noisy upload of a client.
    """
    lot = find_lot(release)
    if release.at_server:
        return f"The server adds the whole noise, {lot.multiplier:g} V."
    share = f"a client's share is {lot.multiplier:g} V / sqrt({lot.holders:g})"
    if sees_uploads(question):
        return f"Every upload is seen, under its own noise only: {share}."
    if release.secure_sum is not None:
        number = count_certain_shares(
            release.secure_sum.threshold, count_colluders(question, release)
        )
        shares = "1 honest share" if number == 1 else f"{number} honest shares"
        return f"Only sums are seen, with at least {shares}: {share}."
    return f"The honest participants' shares add up: {share}."


def export_lot_event(question: Question) -> Any:
    """Returns the lots as an event of dp_accounting.

    Raises:
        UserError: Participation is random, the unit is a client, the number of records is not
            known, or the server adds the noise and is the adversary.
    """
    import dp_accounting

    protocol = question.protocol
    if protocol.release.at_server and question.view.is_server:
        raise UserError(
            "dp_accounting has no event against a server that adds the noise itself: nothing is "
            "hidden from it."
        )
    release = noisy_upload_of(protocol)
    shares = find_hiding_shares(question, release)
    known = question.unit == "record" and question.records is not None
    if protocol.participation.draws or not known:
        raise UserError(
            "dp_accounting has no event for these lots: everyone must take part, for one record "
            "of a known number."
        )
    step = find_lot_step(question)
    multiplier = math.sqrt(shares.counts[0]) / step.mu
    # dp_accounting's REPLACE_ONE counts Poisson batches in units of the radius, of which a replaced
    # record moves by two.
    if release.varying_batches and protocol.adjacency == "replace-one":
        multiplier = 2 * multiplier
    noise = dp_accounting.GaussianDpEvent(noise_multiplier=multiplier)
    if release.varying_batches:
        event = dp_accounting.PoissonSampledDpEvent(step.rate, noise)
    else:
        event = dp_accounting.SampledWithoutReplacementDpEvent(
            question.records, find_lot(release).batch, noise
        )
    return dp_accounting.SelfComposedDpEvent(event, protocol.rounds)


LOTS = Provider(
    applies=applies_to,
    bounds=bound_lots,
    observes=observe_lots,
    event=export_lot_event,
)
