"""Bounds noisy-sgd under noise that is not Gaussian (docs/theory.md#b2, #b6).

A step releases a sum of clipped gradients under noise on every coordinate, so it costs what a
release of a vector costs: the largest divergence over all moves of the clipped norm. A Poisson
batch that nobody sees amplifies: with symmetric noise its divergence of an integer order is that of
the sampled release, into which the largest divergences of all lower orders may be put. For batches
of a fixed size that is proved where the worst move is known for every epsilon
(docs/theory.md#b10): Laplace noise under an l1 clip, and a single coordinate. Elsewhere
batches are priced as if they were seen, which holds whatever they hide (docs/theory.md#a11).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sordino.mechanisms import NoisePrice, mechanism_of
from sordino.privacy.amplification.bounded_losses import BoundedLossCurve, bounded_loss_curve
from sordino.privacy.bounds.noisy_steps import StepMove, describe_rounds, find_step_move
from sordino.privacy.bounds.question import Bound, Observation, Protection, Provider, Question
from sordino.privacy.curves.gaussian_curve import NOTHING
from sordino.privacy.curves.renyi import INTEGER_ORDERS, ORDERS, RenyiCurve, amplify_divergences
from sordino.privacy.noise_releases import average_moments, dimension_of, price_of
from sordino.protocol import InvalidValue, NoisySteps, noisy_steps_of

_ORDERS = np.array(ORDERS)
_INTEGERS = np.array(INTEGER_ORDERS, dtype=float)


def applies_to(question: Question) -> bool:
    """Returns whether noise in every step hides the client, and is not Gaussian."""
    in_steps = question.protection is Protection.STEPS and len(question.rounds) > 0
    return in_steps and not question.protocol.noise.normal


def observe_own_steps(question: Question) -> Observation:
    """Returns what these bounds are proved against: every noisy step of the attacked client."""
    return Observation.STEPS


def bound_step_divergences(question: Question) -> Iterator[Bound]:
    """Yields the bounds that hold, with and without counting the draw of batches."""
    protocol = question.protocol
    release = noisy_steps_of(protocol)
    move = find_step_move(question)
    sees = (
        f"The adversary sees {question.sees}. Like everything that leaves a client, it is computed "
        "only from noisy sums of gradients (docs/theory.md#c4, #c6)."
    )
    if mechanism_of(release.sum_noise).silent or np.isinf(move.distance):
        line = "Without noise, or without a limit to the move, nothing hides a contribution."
        yield Bound(curve=NOTHING, method="no noise", lines=(sees, f"{move.reason}.", line))
        return
    price = price_of(release.sum_noise, release.clip_norm, dimension_of(protocol))
    lines = (sees, f"{move.reason}.", f"One step: {price.reason}.")
    often = describe_rounds(question, release)
    try:
        one = price.table(np.array([move.distance]), _ORDERS)[0]
    except InvalidValue as refusal:
        # A staircase as wide as one record can move a sum: of all records of a client it is not
        # known what it hides.
        if question.unit != "client":
            raise
        yield Bound(curve=NOTHING, method="no bound", lines=(sees, f"{move.reason}.", f"{refusal}"))
        return
    plain = compose_steps(question, one, _ORDERS)
    how = f"Rényi divergences add up over {often}, as if every batch held the record."
    yield Bound(curve=plain, method="Rényi composition", lines=(*lines, how), vouched=price.vouched)
    best = plain
    if move.rate < 1:
        best, method, how = count_the_draw(question, price, move)
        lines_of_draw = (*lines, f"{how} Divergences add up over {often}.")
        yield Bound(curve=best, method=method, lines=lines_of_draw, vouched=price.vouched)
    yield from add_losses(question, price, move, best, lines)
    # A bound that rests on the user's word needs one next to it that does not.
    if price.vouched:
        line = "Only what was vouched for is known about this noise: without it no bound holds."
        yield Bound(curve=NOTHING, method="no claim", lines=(line,))


def count_the_draw(
    question: Question, price: NoisePrice, move: StepMove
) -> tuple[RenyiCurve, str, str]:
    """Returns the composition of steps whose batch may not hold the record.

    Args:
        question: The protocol, view and unit to bound.
        price: The price of one step whose batch holds the unit.
        move: How far a step's sum moves, and with which probability.

    Returns:
        The curve, the name of the bound, and what the draw hides.
    """
    release = noisy_steps_of(question.protocol)
    how = f"A batch holds the record with probability q = {move.rate:.6g}"
    if release.secret_batches and hides_by_draw(question, price):
        whole = np.arange(2.0, _INTEGERS[-1] + 1)
        table = price.table(np.array([move.distance]), whole)[0]
        sampled = amplify_divergences(np.array(INTEGER_ORDERS), move.rate, table)
        curve = compose_steps(question, sampled, _INTEGERS)
        return (
            curve,
            "subsampled steps",
            f"{how}, and nobody sees whether it does (docs/theory.md#b6).",
        )
    # Seen batches are a public mixture, whose moments average. An adversary who does not see them
    # learns no more.
    one = price.table(np.array([move.distance]), _ORDERS)[None]
    held = average_moments(one, np.array([move.rate]))[0]
    how += ", and it may be seen whether it does (docs/theory.md#a11)."
    if release.secret_batches:
        how += " What a draw that nobody sees hides besides is not proved here"
        how += f"{advise_poisson(release)}."
    return compose_steps(question, held, _ORDERS), "known batches", how


def hides_by_draw(question: Question, price: NoisePrice) -> bool:
    """Returns whether it is proved that a secret draw of batches amplifies (docs/theory.md#b6).

    Args:
        question: The protocol, view and unit to bound.
        price: The price of one step whose batch holds the unit.
    """
    # The statement is about a record that comes or goes; of a replaced one it says nothing.
    comes_or_goes = question.protocol.adjacency != "replace-one"
    varying = noisy_steps_of(question.protocol).varying_batches
    # It needs symmetric noise, which a user's own need not be.
    return varying and comes_or_goes and not price.vouched


def advise_poisson(release: NoisySteps) -> str:
    """Returns what to write for a draw whose worth is proved; empty where it is written.

    Args:
        release: The noisy steps of a client.
    """
    return "" if release.varying_batches else '; with local.sampling = "poisson" it is'


def compose_steps(question: Question, one: np.ndarray, orders: np.ndarray) -> RenyiCurve:
    """Returns rounds of steps, in each of which the client takes part with some probability.

    Args:
        question: The protocol, view and unit to bound.
        one: The Rényi divergences of one step.
        orders: The order of each of them.
    """
    release = noisy_steps_of(question.protocol)
    together = (release.steps * one)[None, None]
    # That a client takes part is seen, and the moments of a public mixture average
    # (docs/theory.md#a10).
    per_round = average_moments(together, np.array([question.chance]), orders)[0]
    total = len(question.rounds) * per_round
    return RenyiCurve(orders=tuple(orders.tolist()), values=tuple(total.tolist()))


def add_losses(
    question: Question,
    price: NoisePrice,
    move: StepMove,
    renyi: RenyiCurve,
    lines: tuple[str, ...],
) -> Iterator[Bound]:
    """Yields the bound by loss distributions, where the worst move is known for every epsilon.

    A draw with a common part amplifies whatever the noise: of a Poisson batch with and without the
    record, and of batches of a fixed size (docs/theory.md#a14 with one step).

    Args:
        question: The protocol, view and unit to bound.
        price: The price of one step whose batch holds the unit.
        move: How far a step's sum moves, and with which probability.
        renyi: The best bound by Rényi divergences.
        lines: The derivation of the prices.
    """
    if price.deltas is None:
        return
    release = noisy_steps_of(question.protocol)
    rounds = len(question.rounds)
    drawn = question.chance < 1
    # Steps of a round that may not be taken part in are taken together or not at all.
    steps = release.steps if drawn else release.steps * rounds
    curve = bounded_loss_curve(
        price.deltas,
        np.array([[move.distance]]),
        np.array([steps]),
        largest_loss=price.pure(move.distance),
        use=np.array([move.rate]),
        hidden=release.secret_batches,
        probability=1.0,
        renyi=renyi,
    )
    # Noise that hides next to nothing has no such curve; the Rényi bound remains.
    if curve is None:
        return
    if drawn:
        whole = curve.mix_with_nothing(question.chance).repeat(rounds)
        curve = BoundedLossCurve(directions=whole.directions, renyi=renyi)
    seen = "and it may be seen whether it does"
    if release.secret_batches:
        seen = "and nobody sees whether it does"
    how = (
        f"Privacy losses add up over {describe_rounds(question, release)} (docs/theory.md#b10); a "
        f"batch holds the unit with probability q = {move.rate:.6g}, {seen}."
    )
    yield Bound(curve=curve, method="loss composition", lines=(*lines, how), vouched=price.vouched)


STEP_DIVERGENCES = Provider(
    applies=applies_to, bounds=bound_step_divergences, observes=observe_own_steps
)
