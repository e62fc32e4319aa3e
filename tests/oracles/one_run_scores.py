"""The bound that the scores of one training give, when what is guessed is chosen beforehand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from sordino.audit.canaries.one_run_bounds import (
    OneRunBound,
    bound_epsilon,
    count_guesses,
    split_guesses,
)


def bound_from_scores(
    scores: ArrayLike,
    coins: ArrayLike,
    *,
    splits: Sequence[tuple[int, int]] | None = None,
    bound: Callable[..., OneRunBound] = bound_epsilon,
    delta: float = 1e-5,
    confidence: float = 0.95,
) -> OneRunBound:
    """Returns the bound that one training's scores give.

    Args:
        scores: One number for each slot; high speaks for alternative 1.
        coins: Which alternative each slot held.
        splits: How many highest and lowest scores to guess, as pairs that are chosen before the
            coins are looked at. Of several pairs the best bound is returned, each computed at its
            share of the allowed error (Bonferroni): to try all at full confidence and keep the best
            would show leaks that do not exist. None: `split_guesses`.
        bound: `bound_epsilon` or `bound_mu`.
        delta: The delta that goes with epsilon.
        confidence: Of the result, whichever pair it comes from.
    """
    pairs = [split_guesses(np.size(scores))] if splits is None else list(splits)
    found = []
    for high, low in pairs:
        result = count_guesses(scores, coins, high=high, low=low)
        found.append(bound(result, delta=delta, confidence=1 - (1 - confidence) / len(pairs)))
    return replace(max(found, key=lambda one: one.mu_lower), confidence=confidence)
