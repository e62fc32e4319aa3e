"""The list of all providers, which prices, realised prices, events and audits all ask."""

from __future__ import annotations

from collections.abc import Iterator

from sordino.privacy.bounds.client_budgets import CLIENT_BUDGETS
from sordino.privacy.bounds.harmonizer import HARMONIZER
from sordino.privacy.bounds.question import Bound, Observation, Provider, Question, ask_providers
from sordino.privacy.bounds.shared_noise import SHARED_NOISE, find_shared_bounds

# The last two price a client by the bounds of shared noise, and so are listed above them.
PROVIDERS = (*SHARED_NOISE, HARMONIZER, CLIENT_BUDGETS)


def find_bounds(question: Question) -> Iterator[Bound]:
    """Yields every bound that holds; the smallest of them may be promised."""
    yield from find_shared_bounds(question)
    yield from ask_providers((HARMONIZER, CLIENT_BUDGETS), question)


def find_provider(question: Question) -> Provider:
    """Returns the first provider that applies, whose bounds the others only improve.

    Raises:
        TypeError: No provider applies, so that nothing can be promised.
    """
    # In the order of the list: what the first is proved against, the others hold for, too.
    for provider in PROVIDERS:
        if provider.applies(question):
            return provider
    raise TypeError(f"no bound applies to {question.protocol.local.tag} in this view")


def find_observation(question: Question) -> Observation:
    """Returns what the bounds that answer a question are proved against."""
    return find_provider(question).observes(question)
