"""The numbers that the page of a run opens with, and what its headline means."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sordino.privacy.guarantee import MEANINGFUL, format_delta
from sordino.protocol.views import UNIT_IN_WORDS
from sordino.report.evidence import Audit
from sordino.report.number_formats import (
    format_cases_of_100,
    format_lower_bound,
    format_percent,
    format_upper_bound,
)
from sordino.report.phrasing import describe_ending, describe_test_records
from sordino.report.run_summary import RunSummary, find_last_scores

CONTRADICTED = "The audit contradicts the guarantee"


@dataclass(frozen=True, kw_only=True)
class Tile:
    """Holds one number with its words.

    Attributes:
        word: What the number is, printed above it.
        number: The number, as a text.
        note: What is printed below it.
        share: The length of a bar below it, from 0 to 1; None for no bar.
    """

    word: str
    number: str
    note: str
    share: float | None = None


def explain_headline(summary: RunSummary) -> str:
    """Says what the headline means, without a formula.

    Args:
        summary: Summary of a run.

    Returns:
        A few sentences.
    """
    view, unit, _ = summary.headline
    right = format_cases_of_100(summary.odds[view])
    pair = (
        f"Take two data sets that differ in {UNIT_IN_WORDS[unit]}, and let the best "
        "possible adversary say which of them was used for training."
    )
    # Rounded up to 100, the bound allows certainty; a sentence with "at most 100" would sound like
    # a promise.
    if right == "100":
        return f"{pair} It may always be right: nothing is promised."
    holds = "This holds whatever the adversary knows or computes"
    if not summary.run.protocol.noise.secure:
        holds = (
            "This holds whatever the adversary computes, and whatever it knows other than the seed "
            "of the noise"
        )
    if summary.main.condition:
        holds += f", {summary.main.condition}"
    return f"{pair} It is right in at most {right} of 100 cases; guessing gives 50. {holds}."


def list_tiles(summary: RunSummary) -> list[Tile]:
    """Lists the numbers that sum a run up.

    Args:
        summary: Summary of a run.

    Returns:
        Privacy spent, the best adversary's success, what was measured, and the model's score.
    """
    return [
        show_spending(summary),
        show_best_guess(summary),
        show_audit(summary),
        show_score(summary),
    ]


def show_spending(summary: RunSummary) -> Tile:
    """Shows the privacy spent, of the budget where there is one.

    Args:
        summary: Summary of a run.
    """
    view, unit, delta = summary.headline
    epsilon = summary.main.epsilon(delta)
    where = f"view {view}, unit {unit}, δ = {format_delta(delta)}"
    if summary.main.condition:
        where += f"; {summary.main.condition}"
    note = f"no budget was set; {where}"
    share = None
    if summary.budget is not None:
        note = f"of {summary.budget.epsilon:g} allowed; {where}"
        # A bar cannot be more than full.
        share = min(1.0, epsilon / summary.budget.epsilon)
    elif summary.run.protocol.privacy.budget is not None:
        note = f"the budget is in another view; {where}"
    number = format_upper_bound(epsilon)
    if epsilon <= MEANINGFUL:
        number = f"ε {number}"
    return Tile(
        word="Privacy spent, at most",
        number=number,
        note=note,
        share=share,
    )


def show_best_guess(summary: RunSummary) -> Tile:
    """Shows how often the best adversary is right.

    Args:
        summary: Summary of a run.
    """
    share = summary.odds[summary.headline[0]]
    return Tile(
        word="The best adversary is right",
        number=f"{format_cases_of_100(share)} of 100",
        note="times at most; guessing gives 50",
        share=share,
    )


def show_audit(summary: RunSummary) -> Tile:
    """Shows what an audit has measured in the headline's view, or that there was none.

    Args:
        summary: Summary of a run.
    """
    view, unit, _ = summary.headline
    found = summary.audits_in(view, unit)
    # Audits whose adversary was given more than the view shows: they test the promise too.
    stronger = summary.audits_in(view, unit, given_more=True)
    word = "Measured by audit, at least"
    # Any refutation outweighs the numbers next to it.
    refuted = any(audit.verdict == "refuted" for audit in (*found, *stronger))
    if refuted:
        word = CONTRADICTED
    if found:
        note = _say_trainings(found[0])
        if not refuted:
            note += "; the truth lies between the two"
        return Tile(word=word, number=f"ε {format_lower_bound(found[0].epsilon_lower)}", note=note)
    if stronger:
        note = f"by an adversary that was given {stronger[0].given}, as the bound allows"
        return Tile(
            word=word, number=f"ε {format_lower_bound(stronger[0].epsilon_lower)}", note=note
        )
    note = f"in the view {view}, about one {unit}"
    # An audit of something else says nothing here, but readers should know that it exists.
    if summary.audits:
        note += "; none of the audits below bounds that"
    return Tile(word=word, number="not audited", note=note)


def _say_trainings(audit: Audit) -> str:
    """Says how many trainings an audit took, and how sure its bound is."""
    trainings = "by one training"
    if audit.trainings > 1:
        trainings = f"by {audit.trainings:,} trainings on each side"
    if audit.confidence is None:
        return trainings
    return f"{trainings}, {100 * audit.confidence:g} % sure"


def show_score(summary: RunSummary) -> Tile:
    """Shows how well the model does.

    Args:
        summary: Summary of a run.
    """
    scores = find_last_scores(summary.run)
    if math.isnan(scores["loss"]):
        return Tile(word="The model", number="not scored", note="no test records were used")
    status = describe_ending(summary.run.status).partition(":")[0]
    if math.isnan(scores["accuracy"]):
        return Tile(
            word=f"Loss on {describe_test_records(summary.run)}",
            number=f"{scores['loss']:.4g}",
            note=status,
        )
    return Tile(
        word=f"Accuracy on {describe_test_records(summary.run)}",
        number=format_percent(scores["accuracy"]),
        note=f"loss {scores['loss']:.3g}; {status.partition(',')[0]}",
        share=scores["accuracy"],
    )
