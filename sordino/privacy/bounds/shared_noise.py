"""Bounds of protocols in which all clients have the same noise and none leaves with its budget.

The bounds of protocols with budgets in [[client]] rest on these: there each client is priced as
in a federation of clients like itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from sordino.privacy.bounds.best_bound import choose_guarantee, epsilon_at
from sordino.privacy.bounds.central import CENTRAL
from sordino.privacy.bounds.composition import COMPOSITION
from sordino.privacy.bounds.final_model import FINAL_MODEL
from sordino.privacy.bounds.lots import LOTS
from sordino.privacy.bounds.noisy_steps import NOISY_STEPS
from sordino.privacy.bounds.nothing_released import NOTHING_RELEASED
from sordino.privacy.bounds.priced_view import refuse_unknown_view
from sordino.privacy.bounds.question import Bound, Question, ask_providers
from sordino.privacy.bounds.renyi_composition import RENYI_COMPOSITION
from sordino.privacy.bounds.shuffled import SHUFFLED
from sordino.privacy.bounds.step_divergences import STEP_DIVERGENCES
from sordino.privacy.bounds.unequal_clients import join_bounds, split_question
from sordino.privacy.curves.near_law import allow_distance
from sordino.privacy.guarantee import Guarantee, round_up
from sordino.privacy.integer_noise import bound_sampler_distance

# In this order the first that applies is the base, which an audit plays against and events are
# exported from; the later ones only improve on it.
SHARED_NOISE = (
    NOTHING_RELEASED,
    NOISY_STEPS,
    STEP_DIVERGENCES,
    LOTS,
    CENTRAL,
    RENYI_COMPOSITION,
    COMPOSITION,
    SHUFFLED,
    FINAL_MODEL,
)


def find_shared_bounds(question: Question) -> Iterator[Bound]:
    """Yields every bound that holds for a client that takes part as often as it is drawn.

    More noise makes each of them smaller.

    Raises:
        UnknownKind: A view for which nobody has said whose bound holds.
    """
    # Before any provider is asked: a view without a rule must not fall to a default.
    refuse_unknown_view(question)
    found = [list(ask_providers(SHARED_NOISE, one)) for one in split_question(question)]
    distance = bound_sampler_distance(question.protocol, len(question.rounds))
    # The only place where it is counted: all other bounds are made of these.
    for bound in join_bounds(found):
        yield allow_sampler(bound, distance)


def allow_sampler(bound: Bound, distance: float) -> Bound:
    """Returns a bound that holds for noise as it is drawn, which is near its law.

    Args:
        bound: A bound that is proved for noise of exactly its law.
        distance: The total variation between all noise of the rounds and that law.
    """
    # Without noise there is no law to be near to, and nothing is promised.
    if distance == 0 or bound.curve.mu == math.inf:
        return bound
    line = (
        f"Noise is drawn from its law up to a total variation of {round_up(distance)}; "
        "1 + e^epsilon times that is added to delta (docs/theory.md#a12)."
    )
    return replace(bound, curve=allow_distance(bound.curve, distance), lines=(*bound.lines, line))


def certify_shared(question: Question, delta: float = 1e-5) -> Guarantee:
    """Returns the smallest of these bounds.

    Args:
        question: The question to answer, of a protocol without budgets in [[client]].
        delta: The delta at which bounds are compared by their epsilon.
    """
    return choose_guarantee(question, find_shared_bounds(question), epsilon_at(delta))
