"""Who hides a client where the server learns only sums (docs/theory.md#a12, #a19).

The noise of all honest contributions to a sum adds up. Before a run, only as many are counted on
as a sum must have to be opened; after it, as many as there were.
"""

from __future__ import annotations

import math

from sordino.privacy.bounds.question import Question
from sordino.protocol import SecureAggregation, View


def find_secure_sum(question: Question) -> SecureAggregation | None:
    """Returns the secure aggregation that the question is about, or None."""
    return question.protocol.release.secure_sum


def count_planned_honest(question: Question, view: View) -> int:
    """Returns how many honest clients contribute to every sum, at least, before a run.

    Args:
        question: The question to answer, of a protocol in which everyone takes part.
        view: The view whose bound is taken.
    """
    secure_sum = find_secure_sum(question)
    # A server may leave out all clients but the fewest that open a sum.
    if secure_sum is not None and view.is_server:
        # Where this bound is taken for a larger coalition, the attacked client's own noise is left.
        return max(1, secure_sum.threshold - view.colluders)
    # Adversaries that do not run the server cannot leave clients out of a sum.
    return question.protocol.clients - view.colluders


def count_known_honest(question: Question, view: View, present: float) -> float:
    """Returns how many honest clients contributed to the sum of a round, at least.

    Args:
        question: The protocol, view and unit to bound.
        view: The view whose bound is taken.
        present: The number of clients that contributed.
    """
    secure_sum = find_secure_sum(question)
    fewest = 1
    if secure_sum is not None:
        # Of fewer contributions no sum was opened, and nothing was seen.
        fewest = secure_sum.threshold
    # Alone against all others, only its own noise protects a client.
    return max(1, max(present, fewest) - view.colluders)


def scale_secure_share(question: Question, view: View) -> float:
    """Returns the largest share of an upload's move in a sum, over the norm of the honest noise.

    Args:
        question: The question to answer, of a protocol in which everyone takes part.
        view: The view whose bound is taken.
    """
    # Clients weigh their updates by at most 1, before the noise.
    weight = 1.0 if question.attacked is None else question.attacked.share
    return weight / math.sqrt(count_planned_honest(question, view))


def describe_honest(question: Question, view: View) -> str:
    """Returns whose noise hides a client from the server, as a sentence.

    Args:
        question: The protocol, view and unit to bound.
        view: The server's view, alone or with colluders.
    """
    honest = count_planned_honest(question, view)
    return (
        f"No sum of fewer uploads than the threshold is opened, so the noise of at least {honest} "
        "honest clients is in it (docs/theory.md#a12)."
    )
