"""The law of the noise in a mean: how many clients share it, and with which probability."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sordino.privacy.amplification.cohorts import Cohort, find_cohort_law
from sordino.privacy.bounds.priced_view import find_priced_view
from sordino.privacy.bounds.question import Question, visible_share
from sordino.protocol import (
    Everyone,
    FixedSize,
    Participation,
    Poisson,
    Protocol,
    Registry,
    noisy_upload_of,
)

# How many amounts of noise in a round are kept apart.
SPREADS = 64
# Of a round that the attacked client is in: honest participants, participants in all, and the
# probability of both numbers.
Numbers = list[tuple[float, float, float]]


def server_noise(protocol: Protocol) -> float:
    """Returns the standard deviation of the server's Gaussian noise on the mean.

    Args:
        protocol: The federation that is priced.
    """
    return noisy_upload_of(protocol).server_sigma


def client_noise(protocol: Protocol) -> float:
    """Returns the standard deviation of each client's Gaussian noise on its upload.

    Args:
        protocol: The federation that is priced.
    """
    return noisy_upload_of(protocol).client_sigma


def find_denominator(protocol: Protocol) -> float:
    """Returns the constant by which the sum of updates is divided: the expected participants.

    Args:
        protocol: The federation that is priced.
    """
    return protocol.participation.count_expected(clients=protocol.clients)


def find_cohort(question: Question, numbers: Sequence[float] | None = None) -> Cohort:
    """Returns how much noise there is in a round, in units of one upload's move.

    The cohort's `counts` are squared, and the noise itself is taken as 1. Of n participants at
    least n - k honest ones (and the attacked one) add noise.

    Args:
        question: The protocol, view and unit to bound.
        numbers: The number of participants, where it is known.
    """
    protocol = question.protocol
    if numbers is None:
        # Only then does it matter how many of the participants collude: their noise is known.
        if question.equal_shares and question.colluders > 0 and client_noise(protocol) > 0:
            return mix_with_colluders(question)
        cohort = find_cohort_law(protocol.participation, clients=protocol.clients)
    else:
        masses = (1.0,) * len(numbers)
        cohort = Cohort(probability=1.0, counts=tuple(numbers), masses=masses)
    planned = numbers is None
    counts = [find_spread(question, number, planned=planned) for number in cohort.counts]
    return replace(cohort, counts=tuple(counts))


def find_spread(question: Question, number: float, *, planned: bool) -> float:
    """Returns the squared noise of a round in units of one upload's move.

    Args:
        question: The protocol, view and unit to bound.
        number: The number of participants.
        planned: Whether the round has not been run yet.
    """
    protocol = question.protocol
    # The attacked client itself is honest, however many collude.
    honest = max(1.0, number - question.colluders)
    by = float(number)
    if protocol.aggregation.fixed_denominator:
        by = find_denominator(protocol)
    if not question.equal_shares and (planned or not question.knows_present):
        by, honest = count_planned_equals(question)
    return server_noise(protocol) ** 2 * by**2 + client_noise(protocol) ** 2 * honest


def count_planned_equals(question: Question) -> tuple[float, float]:
    """Returns as how many equal clients those of unequal weight count before a run.

    Returns:
        The number that divides the mean, and the number whose noise is in it.
    """
    shares = question.shares
    if shares is None or question.protocol.participation.draws:
        # The client's share of the mean is not known: at worst no other client is in it.
        return 1.0, 1.0
    share = float(shares.max()) if question.attacked is None else question.attacked.share
    visible = visible_share(question, find_priced_view(question).view)
    return 1 / share, visible**-2


JOINT_NUMBERS: Registry[Callable[[Any, int, int], Numbers]] = Registry(
    "law of honest and colluding participants", "participation", Participation
)


@JOINT_NUMBERS.register(Everyone)
def _count_everyone(rule: Everyone, clients: int, colluding: int) -> Numbers:
    return [(clients - colluding, clients, 1.0)]


@JOINT_NUMBERS.register(Poisson)
def _count_poisson(rule: Poisson, clients: int, colluding: int) -> Numbers:
    honest = Cohort.poisson(clients=clients - colluding, rate=rule.rate)
    # Of k colluders a binomial number is there, as of the others of k + 1 clients.
    others = Cohort.poisson(clients=colluding + 1, rate=rule.rate)
    found = []
    for count, mass in zip(honest.counts, honest.masses, strict=True):
        for extra, chance in zip(others.counts, others.masses, strict=True):
            found.append((count, count + extra - 1, mass * chance))
    return found


@JOINT_NUMBERS.register(FixedSize)
def _count_fixed_size(rule: FixedSize, clients: int, colluding: int) -> Numbers:
    honest = Cohort.fixed(clients=clients, size=rule.size, colluding=colluding)
    masses = zip(honest.counts, honest.masses, strict=True)
    return [(count, rule.size, mass) for count, mass in masses]


def mix_with_colluders(question: Question) -> Cohort:
    """Returns the noise of a round where some participants collude.

    It is a mixture over how many of them are in the round, and how many honest ones. Who takes part
    is seen, so the law of both numbers is public; the colluders' noise hides nothing, and their
    places still divide the sum (docs/theory.md#a17).
    """
    protocol = question.protocol
    rule = protocol.participation
    numbers = JOINT_NUMBERS.of(rule)(rule, protocol.clients, question.colluders)
    spreads = []
    masses = []
    for honest, participants, mass in numbers:
        by = float(participants)
        if protocol.aggregation.fixed_denominator:
            by = find_denominator(protocol)
        spread = server_noise(protocol) ** 2 * by**2 + client_noise(protocol) ** 2 * honest
        spreads.append(spread)
        masses.append(mass)
    probability = rule.find_chance(clients=protocol.clients)
    return group_spreads(probability, np.array(spreads), np.array(masses))


def group_spreads(probability: float, spreads: np.ndarray, masses: np.ndarray) -> Cohort:
    """Returns a cohort with at most `SPREADS` amounts of noise, each rounded down.

    Args:
        probability: The probability that the attacked client takes part.
        spreads: The squared noises that are possible.
        masses: The probability of each.

    Example:
        >>> group_spreads(0.5, np.array([4.0, 1.0]), np.array([0.75, 0.25]))
        Cohort(probability=0.5, counts=(1.0, 4.0), masses=(0.25, 0.75))
    """
    order = np.argsort(spreads)
    values = spreads[order]
    chances = masses[order] / masses.sum()
    place = np.arange(len(values))
    if len(values) > SPREADS:
        # Each group counts with its smallest noise, so that grouping never lowers the bound.
        edges = np.geomspace(values[0], values[-1], SPREADS + 1)[:-1]
        place = np.searchsorted(edges, values, side="right") - 1
    kept = np.unique(place)
    counts = [float(values[place == one].min()) for one in kept]
    joined = [float(chances[place == one].sum()) for one in kept]
    return Cohort(probability=probability, counts=tuple(counts), masses=tuple(joined))
