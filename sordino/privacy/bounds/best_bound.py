"""From bounds to a guarantee: the smallest, and the smallest that is not vouched for."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sordino.privacy.bounds.question import Bound, Question
from sordino.privacy.guarantee import Guarantee, notes_on


def make_guarantee(
    question: Question, bound: Bound, unconditional: Guarantee | None = None
) -> Guarantee:
    """Returns the guarantee that a bound gives.

    Args:
        question: The question that was asked.
        bound: The bound that answers it.
        unconditional: The smallest bound that needs nothing vouched for, where this one does.
    """
    return Guarantee(
        view=question.view,
        unit=question.unit,
        adjacency=question.protocol.adjacency,
        method=bound.method,
        curve=bound.curve,
        assumptions=bound.vouched,
        derivation=bound.lines,
        unconditional=unconditional,
        notes=notes_on(question.protocol),
        sees=question.sees,
    )


def choose_guarantee(
    question: Question, bounds: Iterable[Bound], cost: Callable[[Bound], float]
) -> Guarantee:
    """Returns the guarantee of the bound of least cost.

    Args:
        question: The question that was asked.
        bounds: All bounds that hold.
        cost: Takes a bound and returns the number by which bounds are compared, such as its epsilon
            at a delta; less is better.
    """
    costs = [(cost(bound), bound) for bound in bounds]
    # The smallest of valid bounds is valid: each holds whatever the data are, and none is chosen by
    # them.
    best = min(costs, key=lambda pair: pair[0])[1]
    free = [pair for pair in costs if not pair[1].vouched]
    if not best.vouched or not free:
        return make_guarantee(question, best)
    # Readers who do not believe the user's word are owed a number, too.
    plain = min(free, key=lambda pair: pair[0])[1]
    return make_guarantee(question, best, unconditional=make_guarantee(question, plain))


def epsilon_at(delta: float) -> Callable[[Bound], float]:
    """Returns a function that compares bounds by their epsilon at one delta.

    Args:
        delta: The delta of the guarantee, above 0 and below 1.
    """
    return lambda bound: bound.curve.epsilon(delta)
