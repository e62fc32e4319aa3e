"""What the draw of minibatches is worth to a record.

There are bounds for batches that nobody sees, and for batches that the adversary knows. Both rest
on when the record is first used in a round: until then the client's steps agree. Where the
batches are as secret as the noise, the draw itself hides the record (docs/theory.md#a14); where
they may be known, the bound is a mixture over them (docs/theory.md#a11). Clients must carry nothing
from round to round but what was released: `upload_sensitivity` offers no first use where they do.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sordino.privacy.amplification.cohorts import Cohort, first_use, rounds_curve
from sordino.privacy.amplification.hidden_batches import hidden_curve
from sordino.privacy.bounds.bezier_mixture import spread_over_curve
from sordino.privacy.bounds.question import Bound, Question
from sordino.privacy.upload_sensitivity import UploadPrices

# Probability of use in a round above which a mixture over known batches may be as small.
CERTAIN = 0.9


def bound_minibatches(
    question: Question,
    prices: UploadPrices,
    counts: np.ndarray,
    *,
    sigma: float,
    cohort: Cohort,
    scale: float | np.ndarray = 1.0,
    lines: tuple[str, ...] = (),
) -> Iterator[Bound]:
    """Yields bounds for Gaussian noise that use when the record is first drawn.

    There are none where minibatches hide nothing.

    Args:
        question: The protocol, view and unit to bound.
        prices: The prices of the uploads, one row per round.
        counts: How often each round occurs.
        sigma: The standard deviation of each participant's noise.
        cohort: The honest participants of every round.
        scale: The share of an upload's move that is seen, in all rounds or in each.
        lines: The derivation of the prices.
    """
    # Without a first use, or without the number of records, every batch counts as holding it.
    if prices.first_used is None or question.records is None:
        return
    batch = question.protocol.local.batch or 1
    steps = question.protocol.local.steps
    use = first_use(batch=batch, records=question.records, steps=steps)
    shifts = prices.first_used * np.reshape(scale, (-1, 1))
    if question.spreads_curve:
        # The point of the curve is public.
        shifts, use = spread_over_curve(shifts, use)
    drawn = (
        f"A step draws {batch} of {question.records} records. Up to the first step that draws the "
        "record the client's steps agree, so only the steps from then on move the upload"
    )
    hidden = None
    if secret_batches(question):
        hidden = hidden_curve(shifts, counts, sigma=sigma, cohort=cohort, use=use)
    if hidden is not None:
        how = (
            f"{drawn}. A round uses the record with probability {use.sum():.3g}, and nobody sees "
            "whether it does, which amplifies. The rounds are composed (docs/theory.md#a14)."
        )
        yield Bound(curve=hidden, method="secret batches", lines=(*lines, how))
    if hidden is None or use.sum() > CERTAIN:
        curve = rounds_curve(shifts, counts, sigma=sigma, cohort=cohort, use=use)
        how = (
            f"{drawn}. Each round is a mixture over the step of the first use, and the rounds are "
            "composed (docs/theory.md#a11)."
        )
        yield Bound(curve=curve, method="first-hit mixture", lines=(*lines, how))


def secret_batches(question: Question) -> bool:
    """Returns whether nobody sees the minibatches, and that is proved to amplify.

    It is proved for replacing a record: adding one would change the law of the batches.
    """
    unseen = question.protocol.release.secret_batches
    replaces_record = question.unit == "record" and question.protocol.adjacency == "replace-one"
    return unseen and replaces_record
