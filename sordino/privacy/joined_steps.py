"""noisy-sgd with one step a round, against who sees means: the noise of all honest clients adds up (THEORY A14).

With K = 1 and plain steps an upload is the global model minus eta / B times the client's noisy sum, so the mean of equal shares
holds the sum of all noisy sums and nothing else of the clients: mu / sqrt(n) among n honest participants. A batch that hides the
record does so under that noise. With more steps, an optimizer that keeps moments, or models of the clients' own, a mean is no
function of that sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import numpy as np

from sordino.privacy import subsampled, two_sided
from sordino.privacy.certify import Bound, Question, effective_view, visible_share
from sordino.privacy.curves import Curve, GaussianCurve, composed
from sordino.privacy.losses import LossCurve
from sordino.privacy.participation import Cohort, rounds_curve
from sordino.protocol import FixedSize, Mean, NoisySgd, Poisson, Protocol

GROUPS = 32  # numbers of honest participants that are told apart


def adds_up(protocol: Protocol) -> bool:
    """Returns whether means of a round hold the sum of all noisy sums alone, so that others' noise hides a client.

    Example:
        >>> from sordino.protocol import Constant, Gaussian
        >>> rule = NoisySgd(steps=1, batch=4, clip=1.0, schedule=Constant(rate=0.1))
        >>> adds_up(Protocol(clients=5, rounds=2, local=rule, noise=Gaussian(multiplier=1.0)))
        True
    """
    rule = protocol.local
    return (
        isinstance(rule, NoisySgd)
        and (rule.steps, rule.optimizer) == (1, "sgd")
        and isinstance(protocol.aggregation, Mean)
        and not protocol.keeps_models
        and not protocol.client
    )


def joined_step_bounds(
    question: Question, mu: float, rate: float, draw: str, strongest: float
) -> Iterator[Bound]:
    """Yields the bounds that count the others' noise, against who sees means.

    Args:
        question: what is asked.
        mu: of a step on its batch, under the client's own noise.
        rate: probability that a batch holds the unit.
        draw: how batches are drawn and what neighbours are.
        strongest: largest mu for which batches are counted as hiding.
    """
    view, note = effective_view(question)
    if not adds_up(question.protocol) or view.kind == "server" or math.isinf(mu):
        return
    cohort, rounds = grouped(honest_participants(question)), len(question.rounds)
    how = "With one plain step a round, a mean holds the sum of all noisy sums: the honest participants' noise adds up (THEORY A14)."
    lines = (note, how)
    if cohort.probability == 1 and len(cohort.counts) == 1:
        plain: Curve = GaussianCurve(mu=mu * math.sqrt(rounds / cohort.counts[0]))
    else:
        plain = rounds_curve(np.array([[mu]]), np.array([rounds]), sigma=1.0, cohort=cohort)
    yield Bound(curve=plain, method="joined noise", lines=lines)
    if rate < 1 and mu / math.sqrt(min(cohort.counts)) <= strongest:
        one = joined_round(mu, rate, draw, cohort, max(question.protocol.rounds, rounds))
        hidden = f"A batch holds the unit with probability q = {rate:.6g}, unseen."
        yield Bound(
            curve=one.repeat(rounds), method="subsampled joined steps", lines=(*lines, hidden)
        )


def honest_participants(question: Question) -> Cohort:
    """Returns how many honest clients take part beside the attacked one, itself included; unequal shares count as fewer."""
    protocol, rule = question.protocol, question.protocol.participation
    colluding = question.colluders
    if isinstance(rule, Poisson):
        return Cohort.poisson(clients=protocol.clients, rate=rule.rate, colluding=colluding)
    if isinstance(rule, FixedSize):
        return Cohort.fixed(clients=protocol.clients, size=rule.size, colluding=colluding)
    share = visible_share(question, effective_view(question)[0])
    return Cohort(probability=1.0, counts=(share**-2,), masses=(1.0,))


def grouped(cohort: Cohort) -> Cohort:
    """Returns a cohort with few numbers of participants, each rounded down.

    Example:
        >>> len(grouped(Cohort.poisson(clients=100, rate=0.5)).counts) <= GROUPS
        True
    """
    if len(cohort.counts) <= GROUPS:
        return cohort
    order = np.argsort(cohort.counts)
    counts, masses = np.array(cohort.counts)[order], np.array(cohort.masses)[order]
    # Groups of about the same mass, and the few smallest counts, which matter most, by themselves.
    place = np.minimum((np.cumsum(masses) * (GROUPS - 3)).astype(int), GROUPS - 4) + 2
    place[:2] = (0, 1)
    kept = np.unique(place)
    return Cohort(
        probability=cohort.probability,
        counts=tuple(float(counts[place == one].min()) for one in kept),
        masses=tuple(float(masses[place == one].sum()) for one in kept),
    )


@lru_cache(maxsize=16)
def joined_round(mu: float, rate: float, draw: str, cohort: Cohort, planned: int) -> LossCurve:
    """Returns one round, a public mixture over how many honest clients take part."""
    mus = [mu / math.sqrt(count) for count in cohort.counts]
    widest = max(mus)
    interval = max(
        subsampled.suitable_interval(mu=widest, rate=rate, steps=planned), min(1e-3, 4e-4 * widest)
    )
    if draw == "poisson-added":
        return mixed_rounds(mus, rate, cohort, interval)
    law = _DELTAS[draw]

    def profile(epsilons: np.ndarray) -> np.ndarray:
        return cohort.probability * sum(
            (mass * law(epsilons, one, rate) for one, mass in zip(mus, cohort.masses, strict=True)),
            start=np.zeros_like(epsilons),
        )

    return LossCurve.from_profile(profile, interval=interval)


def mixed_rounds(mus: Sequence[float], rate: float, cohort: Cohort, interval: float) -> LossCurve:
    """Returns the same where adding and removing differ, so that each number of participants has two curves."""
    found: LossCurve | None = None
    total = 0.0
    for mu, mass in zip(mus, cohort.masses, strict=True):
        one = subsampled.poisson(multiplier=1 / mu, rate=rate, interval=interval)
        if not isinstance(one, LossCurve):
            raise TypeError("a sampled step under noise has a privacy-loss distribution")
        total += mass
        found = one if found is None else one.mixed_with(found, min(1.0, mass / total))
    if found is None:
        raise TypeError("somebody takes part in a round")
    return found if cohort.probability == 1 else found.mixed_with_nothing(cohort.probability)


def realised_joined(
    question: Question, mu: float, rate: float, draw: str, present: Sequence[int]
) -> Curve:
    """Returns the curve of a client that took part in rounds with so many participants each.

    Args:
        question: what is asked.
        mu: of a step on its batch, under the client's own noise.
        rate: probability that a batch holds the unit.
        draw: how batches are drawn and what neighbours are.
        present: in how many's company, itself included, for every round that it took part in.
    """
    honest = [max(1, number - question.colluders) for number in present]
    if rate == 1:
        return GaussianCurve(mu=mu * math.sqrt(sum(1 / number for number in honest)))
    curves = []
    for number in sorted(set(honest)):
        alone = Cohort(probability=1.0, counts=(number,), masses=(1.0,))
        one = joined_round(mu, rate, draw, alone, max(question.protocol.rounds, len(present)))
        curves.append(one.repeat(honest.count(number)))
    return composed(curves)


def _fixed(epsilons: np.ndarray, mu: float, rate: float) -> np.ndarray:
    return subsampled.deltas(epsilons, mu=mu, rate=rate)


def _replaced(epsilons: np.ndarray, mu: float, rate: float) -> np.ndarray:
    return two_sided.deltas(epsilons, reach=mu / 2, rate=rate)


_DELTAS: dict[str, Callable[[np.ndarray, float, float], np.ndarray]] = {
    "fixed": _fixed,
    "poisson-replaced": _replaced,
}
