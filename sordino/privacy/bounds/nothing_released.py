"""No round was run: nothing was released, and nothing is learnt."""

from __future__ import annotations

from collections.abc import Iterator

from sordino.privacy.bounds.priced_view import observe_models
from sordino.privacy.bounds.question import Bound, Provider, Question
from sordino.privacy.curves.gaussian_curve import GaussianCurve


def applies_to(question: Question) -> bool:
    """Returns whether no round is run."""
    # Other providers divide by, or take the largest of, the rounds, and leave this case here.
    return len(question.rounds) == 0


def bound_by_nothing(question: Question) -> Iterator[Bound]:
    """Yields the bound that holds where nothing is seen."""
    yield Bound(
        curve=GaussianCurve(mu=0.0), method="nothing released", lines=("No round was run.",)
    )


NOTHING_RELEASED = Provider(applies=applies_to, bounds=bound_by_nothing, observes=observe_models)
