"""The numbers that the page of a run opens with, and what its headline means."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sordino.privacy.guarantee import format_delta
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
        word: What it is.
        number: The number, as a text.
        note: What is printed below it.
        share: Share of 1, drawn as a bar; None for no bar.
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
    return (
        f"{pair} It is right in at most {right} of 100 cases; guessing gives 50. "
        "This holds whatever the adversary knows or computes."
    )


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
    budget = summary.run.protocol.privacy.budget
    if budget is not None:
        note = f"of {budget.epsilon:g} allowed; {where}"
        # A bar cannot be more than full.
        share = min(1.0, epsilon / budget.epsilon)
    return Tile(
        word="Privacy spent, at most",
        number=f"ε {format_upper_bound(epsilon)}",
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
    if any(audit.verdict == "refuted" for audit in (*found, *stronger)):
        word = CONTRADICTED
    if found:
        note = f"{_say_trainings(found[0])}; the truth lies between the two"
        return Tile(word=word, number=f"ε {format_lower_bound(found[0].epsilon_lower)}", note=note)
    if stronger:
        note = f"by an adversary that was given {stronger[0].given}, as the bound allows"
        return Tile(
            word=word, number=f"ε {format_lower_bound(stronger[0].epsilon_lower)}", note=note
        )
    # An audit in another view says nothing here, but readers should know that it exists.
    others = sorted({audit.view for audit in summary.audits})
    elsewhere = f"; audited in the view {', '.join(others)}" if others else ""
    return Tile(word=word, number="not audited", note=f"in the view {view}{elsewhere}")


def _say_trainings(audit: Audit) -> str:
    """Says how many trainings an audit took."""
    if audit.trainings > 1:
        return f"by {audit.trainings:,} trainings on each side"
    return "by one training"


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
