"""noisy-sgd with one step a round, against the views of means (docs/theory.md#a16).

With K = 1 and plain steps an upload is the global model minus eta / B times the client's noisy
sum, so the mean of equal shares holds the sum of all noisy sums and nothing else of the clients:
mu / sqrt(n) among n honest participants. A batch that hides the record does so under that noise; of
batches that adversaries know, a round is a mixture over whether one holds it (docs/theory.md#a11).
With more steps, an optimizer that keeps moments, or models that clients keep, a mean is no
function of that sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sordino.privacy.amplification import subsampling, two_sided
from sordino.privacy.amplification.cohorts import Cohort, find_cohort_law, rounds_curve
from sordino.privacy.bounds.priced_view import find_priced_view
from sordino.privacy.bounds.question import Bound, Question, visible_share
from sordino.privacy.curves.curve import Curve
from sordino.privacy.curves.gaussian_curve import GaussianCurve, compose_curves
from sordino.privacy.curves.loss_distributions import LossCurve
from sordino.protocol import Protocol

GROUPS = 32  # numbers of honest participants that are kept apart
# The method of bounds that count on nobody seeing which records a batch or a lot holds.
HIDDEN_DRAW = "subsampled joined steps"
# The method of bounds that hold even against adversaries who see it.
SEEN_DRAW = "known batches"


def adds_up(protocol: Protocol) -> bool:
    """Returns whether others' noise hides a client in a mean.

    The means of a round must hold the sum of all noisy sums alone.

    Args:
        protocol: The federation that is priced.

    Example:
        >>> from sordino.protocol import Constant, Gaussian, NoisySgd
        >>> rule = NoisySgd(steps=1, batch=4, clip=1.0, schedule=Constant(rate=0.1))
        >>> adds_up(Protocol(clients=5, rounds=2, local=rule, noise=Gaussian(multiplier=1.0)))
        True
    """
    holds_sums_alone = protocol.release.one_plain_step and protocol.aggregation.averages
    return holds_sums_alone and not protocol.keeps_models and not protocol.client


def bound_joined_steps(
    question: Question, mu: float, rate: float, draw: str, strongest: float
) -> Iterator[Bound]:
    """Yields the bounds that count the others' noise, against the views of means.

    Args:
        question: The protocol, view and unit to bound.
        mu: The mu of a step whose batch holds the unit, under the client's own noise.
        rate: The probability that a batch holds the unit.
        draw: The law of a step, by its name in `noisy_steps.LAWS`.
        strongest: The largest mu for which batches are counted as hiding.
    """
    priced = find_priced_view(question)
    # The server sees every upload, each under its own client's noise only.
    if not adds_up(question.protocol) or priced.view.is_server or math.isinf(mu):
        return
    how = (
        "With one plain step a round, a mean holds the sum of all noisy sums: the honest "
        "participants' noise adds up (docs/theory.md#a16)."
    )
    secret = question.protocol.release.secret_batches
    step = JoinedStep(mu=mu, rate=rate, draw=draw, strongest=strongest, secret=secret)
    yield from bound_cohort(question, step, honest_participants(question), (priced.sentence, how))


@dataclass(frozen=True, kw_only=True)
class JoinedStep:
    """One noisy sum a round, to which several clients' noise is added.

    Attributes:
        mu: The mu of the sum under the noise of a single client.
        rate: The probability that a batch holds the unit.
        draw: The law of a step, by its name in `noisy_steps.LAWS`.
        strongest: The largest mu for which batches are counted as hiding.
        secret: Whether nobody but the client knows which records its batch holds.
    """

    mu: float
    rate: float
    draw: str
    strongest: float
    secret: bool = True


def bound_cohort(
    question: Question, step: JoinedStep, honest: Cohort, lines: tuple[str, ...]
) -> Iterator[Bound]:
    """Yields the bounds of sums under the noise of a number of honest clients.

    Args:
        question: The protocol, view and unit to bound.
        step: What a round releases.
        honest: The number of clients whose noise hides the attacked one.
        lines: The derivation so far.
    """
    cohort = group_cohort(honest)
    rounds = len(question.rounds)
    mu = step.mu
    # Without a draw of clients all is Gaussian: mu^2 adds up over rounds, and the variance over
    # honest clients (docs/theory.md#a16).
    if cohort.probability == 1 and len(cohort.counts) == 1:
        plain: Curve = GaussianCurve(mu=mu * math.sqrt(rounds / cohort.counts[0]))
    else:
        plain = rounds_curve(np.array([[mu]]), np.array([rounds]), sigma=1.0, cohort=cohort)
    yield Bound(curve=plain, method="joined noise", lines=lines)
    if not step.secret:
        if step.rate < 1:
            held = (
                f"A batch holds the unit with probability q = {step.rate:.6g}, and it may be seen "
                "whether it does: each round is a mixture of the two (docs/theory.md#a11)."
            )
            curve = mix_seen_rounds(np.array([mu]), np.array([rounds]), step.rate, cohort)
            yield Bound(curve=curve, method=SEEN_DRAW, lines=(*lines, held))
        return
    # The fewest honest clients make the largest mu, which decides whether a grid is affordable.
    if step.rate < 1 and mu / math.sqrt(min(cohort.counts)) <= step.strongest:
        planned = max(question.protocol.rounds, rounds)
        curve = compose_joined_rounds(mu, step.rate, step.draw, cohort, planned, rounds)
        hidden = (
            f"A batch holds the unit with probability q = {step.rate:.6g}, and nobody sees whether "
            "it does."
        )
        yield Bound(curve=curve, method=HIDDEN_DRAW, lines=(*lines, hidden))


def honest_participants(question: Question) -> Cohort:
    """Returns how many honest clients take part, the attacked one included.

    Unequal shares count as fewer clients.
    """
    protocol = question.protocol
    rule = protocol.participation
    if rule.draws:
        return find_cohort_law(rule, clients=protocol.clients, colluding=question.colluders)
    # n equal clients have the share 1 / sqrt(n), so share^-2 is their number.
    share = visible_share(question, find_priced_view(question).view)
    return Cohort(probability=1.0, counts=(share**-2,), masses=(1.0,))


def group_cohort(cohort: Cohort) -> Cohort:
    """Returns a cohort with few numbers of participants, each rounded down.

    Args:
        cohort: The cohort to group.

    Example:
        >>> len(group_cohort(Cohort.poisson(clients=100, rate=0.5)).counts) <= GROUPS
        True
    """
    # Each group counts with its smallest number, so that grouping never lowers a bound.
    if len(cohort.counts) <= GROUPS:
        return cohort
    order = np.argsort(cohort.counts)
    counts = np.array(cohort.counts)[order]
    masses = np.array(cohort.masses)[order]
    # Groups of about the same mass, and the few smallest counts, which matter most, by themselves.
    place = np.minimum((np.cumsum(masses) * (GROUPS - 3)).astype(int), GROUPS - 4) + 2
    place[:2] = (0, 1)
    kept = np.unique(place)
    return Cohort(
        probability=cohort.probability,
        counts=tuple(float(counts[place == one].min()) for one in kept),
        masses=tuple(float(masses[place == one].sum()) for one in kept),
    )


def mix_seen_rounds(mus: np.ndarray, counts: np.ndarray, rate: float, cohort: Cohort) -> Curve:
    """Returns the composition of rounds whose adversary may know if a batch holds the unit.

    Args:
        mus: The mu of each round's step, under the client's own noise.
        counts: How often each round occurs.
        rate: The probability that a batch holds the unit.
        cohort: The honest participants.
    """
    return rounds_curve(mus[:, None], counts, sigma=1.0, cohort=cohort, use=np.array([rate]))


@lru_cache(maxsize=4)  # views ask for the same curve; curves are large
def compose_joined_rounds(
    mu: float, rate: float, draw: str, cohort: Cohort, planned: int, rounds: int
) -> LossCurve:
    """Returns the composition of equal rounds; see `make_joined_round`.

    Args:
        mu: The mu of a step whose batch holds the unit, under the client's own noise.
        rate: The probability that a batch holds the unit.
        draw: The law of a step, by its name in `noisy_steps.LAWS`.
        cohort: The honest participants.
        planned: The number of rounds of the plan, for which the grid of privacy losses is chosen.
        rounds: The number of rounds to compose.
    """
    return make_joined_round(mu, rate, draw, cohort, planned).repeat(rounds)


@lru_cache(maxsize=16)
def make_joined_round(mu: float, rate: float, draw: str, cohort: Cohort, planned: int) -> LossCurve:
    """Returns the curve of one round, a public mixture over how many honest clients take part.

    Args:
        mu: The mu of a step whose batch holds the unit, under the client's own noise.
        rate: The probability that a batch holds the unit.
        draw: The law of a step, by its name in `noisy_steps.LAWS`.
        cohort: The honest participants.
        planned: The number of rounds of the plan, for which the grid of privacy losses is chosen.
    """
    mus = [mu / math.sqrt(count) for count in cohort.counts]
    widest = max(mus)
    # One grid for all numbers of rounds that a budget asks for, so that curves are reused.
    finest = subsampling.choose_interval(mu=widest, rate=rate, steps=planned)
    interval = max(finest, min(1e-3, 4e-4 * widest))
    # Adding a record and removing one have different curves, and one profile is only one of them.
    if draw == "poisson-added":
        return mix_rounds(mus, rate, cohort, interval)
    find_deltas = _DELTAS[draw]

    def find_profile(epsilons: np.ndarray) -> np.ndarray:
        """Returns the mean of the deltas over the numbers of participants.

        Args:
            epsilons: Epsilons of at least 0.
        """
        total = np.zeros_like(epsilons)
        for one, mass in zip(mus, cohort.masses, strict=True):
            total = total + mass * find_deltas(epsilons, one, rate)
        # Otherwise the client takes no part, which is seen, and nothing about it is learnt
        # (docs/theory.md#a10).
        return cohort.probability * total

    return LossCurve.from_profile(find_profile, interval=interval)


def mix_rounds(mus: Sequence[float], rate: float, cohort: Cohort, interval: float) -> LossCurve:
    """Returns one round where adding and removing differ, so that each number has two curves.

    Args:
        mus: The mu of a step for each number of honest participants.
        rate: The probability that a batch holds the unit.
        cohort: The honest participants.
        interval: The spacing of the grid of privacy losses.
    """
    found: LossCurve | None = None
    total = 0.0
    for mu, mass in zip(mus, cohort.masses, strict=True):
        one = subsampling.compose_poisson_batches(multiplier=1 / mu, rate=rate, interval=interval)
        if not isinstance(one, LossCurve):
            raise TypeError("a sampled step under noise has a privacy-loss distribution")
        total += mass
        # Each has its share of the mass so far, so that in the end all have their masses; the
        # minimum is against rounding.
        found = one if found is None else one.mix_with(found, min(1.0, mass / total))
    if found is None:
        raise TypeError("somebody takes part in a round")
    if cohort.probability == 1:
        return found
    return found.mix_with_nothing(cohort.probability)


def compose_known_joins(question: Question, mu: float, rate: float, draw: str) -> Curve:
    """Returns the curve of a client that took part in rounds with known numbers of contributors.

    Args:
        question: The protocol, view and unit to bound.
        mu: The mu of a step whose batch holds the unit, under the client's own noise.
        rate: The probability that a batch holds the unit.
        draw: The law of a step, by its name in `noisy_steps.LAWS`.
    """
    present = question.present or ()
    # Against all others together, a client still has its own noise.
    honest = [float(max(1, number - question.colluders)) for number in present]
    if not question.protocol.release.secret_batches and rate < 1:
        numbers, counts = np.unique(honest, return_counts=True)
        return mix_seen_rounds(mu / np.sqrt(numbers), counts, rate, Cohort.everyone(clients=1))
    return compose_known_shares(honest, mu, rate, draw, question.protocol.rounds)


def compose_known_shares(
    honest: Sequence[float], mu: float, rate: float, draw: str, planned: int
) -> Curve:
    """Returns the curve of rounds, given how many clients' noise hid the attacked one in each.

    Args:
        honest: The number of shares of noise in every round.
        mu: The mu of a sum under one share.
        rate: The probability that a batch holds the unit.
        draw: The law of a step, by its name in `noisy_steps.LAWS`.
        planned: The number of rounds of the plan, for which the grid of privacy losses is chosen.
    """
    # Without a draw of batches the rounds are Gaussian, and so is their composition.
    if rate == 1:
        return GaussianCurve(mu=mu * math.sqrt(sum(1 / number for number in honest)))
    planned = max(planned, len(honest))
    curves = []
    # Rounds with equally many shares have one curve, which is made once and repeated.
    for number in sorted(set(honest)):
        alone = Cohort(probability=1.0, counts=(number,), masses=(1.0,))
        one = make_joined_round(mu, rate, draw, alone, planned)
        curves.append(one.repeat(honest.count(number)))
    return compose_curves(curves)


def _find_fixed_deltas(epsilons: np.ndarray, mu: float, rate: float) -> np.ndarray:
    return subsampling.find_sampled_deltas(epsilons, mu=mu, rate=rate)


def _find_replaced_deltas(epsilons: np.ndarray, mu: float, rate: float) -> np.ndarray:
    # mu is how far apart two records are; each is half as far from a batch without it
    # (docs/theory.md#a15).
    return two_sided.find_two_sided_deltas(epsilons, reach=mu / 2, rate=rate)


_DELTAS: dict[str, Callable[[np.ndarray, float, float], np.ndarray]] = {
    "fixed": _find_fixed_deltas,
    "poisson-replaced": _find_replaced_deltas,
}
