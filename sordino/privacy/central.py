"""Noise that the server adds to the mean, alone or on top of the clients': who sees the models is covered, the server is not (THEORY A10).

The server adds its noise to the mean of the uploads, once in a round. One upload of n moves the mean by s_t / n. A public draw of n
gives a mixture. Where the denominator is fixed and the noise does not depend on who takes part, a Poisson draw stays hidden and
amplifies: for replace-one by the pair of `two_sided`, for adding or removing a client by the sampled Gaussian.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from sordino.privacy import subsampled
from sordino.privacy.certify import Bound, Question
from sordino.privacy.curves import NOTHING, Curve, GaussianCurve, composed
from sordino.privacy.guarantee import rounded_up
from sordino.privacy.mechanisms import (
    clip_norm,
    dimension_of,
    price_of,
    releases_curve,
    silent,
    taking_part,
)
from sordino.privacy.minibatches import minibatch_bounds
from sordino.privacy.participation import Cohort, rounds_curve
from sordino.privacy.renyi import RenyiCurve, poisson_subsampled
from sordino.privacy.two_sided import two_sided
from sordino.privacy.uploads import UploadPrices, upload_prices
from sordino.protocol import Everyone, FixedSize, Gaussian, Mean, Poisson, Protocol, View

STRONGEST = 10.0  # mu of a round above which a hidden draw is not counted: it hides next to nothing, and grids grow
LEVELS = 0.97  # shifts of rounds that differ are rounded up to powers of it, so that few kinds of rounds are composed
INTEGER_ORDERS = (*range(2, 33), 40, 48, 64, 96, 128, 192, 256)
SPREADS = 64  # amounts of noise in a round that are told apart
TAKEN_PART = "Composed over the rounds that were taken part in."
TRUSTED = (
    "The server receives uploads without noise and adds it itself: view server is not private at all. "
    "This protocol is for a server that everybody trusts with their uploads."
)


def central_bounds(question: Question, prices: UploadPrices, counts: np.ndarray) -> Iterator[Bound]:
    """Every bound that holds where the server adds noise."""
    protocol, view = question.protocol, question.view
    if view == View.SERVER:  # where clients add noise too, `certify` prices it
        yield Bound(curve=NOTHING, method="trusted server", lines=(TRUSTED,))
        return
    if server_noise(protocol) == 0 and silent(protocol.noise):
        yield Bound(
            curve=NOTHING,
            method="no noise",
            lines=("Without noise nothing hides a client's contribution.",),
        )
        return
    seen = f"The adversary sees {view.sees}."
    lines: tuple[str, ...] = (
        prices.reason + f"; the largest here is {rounded_up(float(prices.shifts.max()))}.",
        seen,
    )
    if removes_client(question):
        lines = (
            *lines,
            "A client is added or removed: an absent update is 0, and a present one half as far from it.",
        )
    if not isinstance(protocol.noise, Gaussian):
        yield from central_renyi(question, prices, counts, lines)
        return
    yield from visible_bounds(question, prices, counts, lines)
    if hidden(protocol) and float(prices.shifts.max()) <= STRONGEST * server_noise(
        protocol
    ) * denominator(protocol):
        rate = taking_part(protocol)
        how = (
            f"Each client is drawn with probability {rate:.3g}, which only the server knows; the noise and the denominator "
            f"{denominator(protocol):g} do not depend on it, so the draw amplifies (THEORY A10)."
        )
        yield Bound(
            curve=hidden_curve(question, prices, counts),
            method="hidden Poisson sampling",
            lines=(*lines, how),
        )


def removes_client(question: Question) -> bool:
    """Returns whether a whole client is added or removed: the mean then moves by one update, of norm s_t / 2, and not by two."""
    return question.protocol.adjacency == "add-or-remove" and question.unit == "client"


def mean_shifts(question: Question, shifts: np.ndarray) -> np.ndarray:
    """Returns by how much the sum of updates moves, for uploads that move by `shifts` when they are replaced."""
    return shifts / 2 if removes_client(question) else shifts


def server_noise(protocol: Protocol) -> float:
    """Standard deviation of the server's Gaussian noise on the mean."""
    if not isinstance(protocol.noise, Gaussian) or protocol.noise.where == "client":
        return 0.0
    return (
        protocol.noise.sigma
        if protocol.noise.where == "server"
        else protocol.noise.server_sigma or 0.0
    )


def client_noise(protocol: Protocol) -> float:
    """Standard deviation of each client's Gaussian noise on its upload."""
    return (
        protocol.noise.sigma
        if isinstance(protocol.noise, Gaussian) and protocol.noise.where != "server"
        else 0.0
    )


def central(question: Question) -> bool:
    """Whether the server's noise matters to what is asked: not for the server itself where clients add noise of their own.

    Nor where clients leave with their budgets: how many are left is then not known, and the uploads' own noise is what counts.
    """
    protocol = question.protocol
    return protocol.noise.where == "server" or (
        protocol.noise.where == "both" and question.view != View.SERVER and not protocol.client
    )


def fixed_denominator(protocol: Protocol) -> bool:
    """Whether the sum of updates is divided by a constant."""
    return isinstance(protocol.aggregation, Mean) and protocol.aggregation.denominator == "fixed"


def denominator(protocol: Protocol) -> float:
    """The constant that the sum of updates is divided by: the expected number of participants."""
    return protocol.participation.expected(clients=protocol.clients)


def hidden(protocol: Protocol) -> bool:
    """Whether who takes part is hidden: a Poisson draw, a constant denominator, noise from the server alone."""
    return (
        isinstance(protocol.participation, Poisson)
        and fixed_denominator(protocol)
        and protocol.noise.where == "server"
    )


def cohort_of(question: Question, numbers: Sequence[int] | None = None) -> Cohort:
    """How much noise there is in units of one upload's move: `counts` are squared, and the noise itself is taken as 1.

    Of n participants at least n - k honest ones (and the attacked one) add noise of their own.
    """
    protocol, colluding = question.protocol, question.colluders
    rule, clients = protocol.participation, protocol.clients
    if isinstance(rule, Poisson):
        drawn = Cohort.poisson(clients=clients, rate=rule.rate)
    elif isinstance(rule, FixedSize):
        drawn = Cohort.fixed(clients=clients, size=rule.size)
    else:
        drawn = Cohort.everyone(clients=clients)
    if numbers is not None:
        drawn = Cohort(probability=1.0, counts=tuple(numbers), masses=(1.0,) * len(numbers))
    shares = question.shares
    equal = shares is not None and bool(shares.max() == shares.min())
    if equal and numbers is None and colluding > 0 and client_noise(protocol) > 0:
        return mixed_with_colluders(question)

    def spread(n: float) -> float:
        by = denominator(protocol) if fixed_denominator(protocol) else float(n)
        honest = max(1.0, n - colluding)
        if (
            not equal
        ):  # how large its share of the mean is, is not known: at worst it is alone in it
            by, honest = 1.0, 1
            if shares is not None and isinstance(rule, Everyone) and numbers is None:
                largest = float(shares.max())
                by = 1 / (largest if question.attacked is None else question.attacked.share)
        return server_noise(protocol) ** 2 * by**2 + client_noise(protocol) ** 2 * honest

    return replace(drawn, counts=tuple(spread(n) for n in drawn.counts))


def mixed_with_colluders(question: Question) -> Cohort:
    """Returns the same where some participants collude: a mixture over how many of them are in the round, and how many honest ones.

    Who takes part is seen, so the law of both numbers is public; the colluders' noise hides nothing, and their places still divide
    the sum (THEORY A14).
    """
    protocol, colluding = question.protocol, question.colluders
    rule, clients = protocol.participation, protocol.clients
    if isinstance(rule, Poisson):
        honest = Cohort.poisson(clients=clients - colluding, rate=rule.rate)
        # Of k colluders a binomial number is there, as of the others of k + 1 clients.
        beside = Cohort.poisson(clients=colluding + 1, rate=rule.rate)
        pairs = [
            (count, count + extra - 1, mass * chance)
            for count, mass in zip(honest.counts, honest.masses, strict=True)
            for extra, chance in zip(beside.counts, beside.masses, strict=True)
        ]
    elif isinstance(rule, FixedSize):
        honest = Cohort.fixed(clients=clients, size=rule.size, colluding=colluding)
        pairs = [
            (count, rule.size, mass)
            for count, mass in zip(honest.counts, honest.masses, strict=True)
        ]
    else:
        honest = Cohort.everyone(clients=clients, colluding=colluding)
        pairs = [(clients - colluding, clients, 1.0)]
    spreads = []
    for count, number, _ in pairs:
        by = denominator(protocol) if fixed_denominator(protocol) else float(number)
        spreads.append(server_noise(protocol) ** 2 * by**2 + client_noise(protocol) ** 2 * count)
    return few_spreads(honest.probability, np.array(spreads), np.array([one[2] for one in pairs]))


def few_spreads(probability: float, spreads: np.ndarray, masses: np.ndarray) -> Cohort:
    """Returns a cohort with at most `SPREADS` of them, each rounded down; what is too improbable to count joins the smallest.

    Example:
        >>> few_spreads(0.5, np.array([4.0, 1.0]), np.array([0.75, 0.25]))
        Cohort(probability=0.5, counts=(1.0, 4.0), masses=(0.25, 0.75))
    """
    order = np.argsort(spreads)
    values, chances = spreads[order], masses[order] / masses.sum()
    if len(values) > SPREADS:
        edges = np.geomspace(values[0], values[-1], SPREADS + 1)[:-1]
        place = np.searchsorted(edges, values, side="right") - 1
    else:
        place = np.arange(len(values))
    kept = np.unique(place)
    counts = [float(values[place == one].min()) for one in kept]
    joined = [float(chances[place == one].sum()) for one in kept]
    return Cohort(probability=probability, counts=tuple(counts), masses=tuple(joined))


def visible_bounds(
    question: Question, prices: UploadPrices, counts: np.ndarray, lines: tuple[str, ...]
) -> Iterator[Bound]:
    """Who takes part may be seen: a mixture over how many do, and over the first use of the record."""
    cohort, shifts = cohort_of(question), mean_shifts(question, prices.shifts)
    what = (
        "the server's noise and the honest clients'"
        if client_noise(question.protocol) > 0
        else "the server's noise"
    )
    if cohort.probability == 1 and len(cohort.counts) == 1:
        mu = math.sqrt(float(np.dot(counts, shifts**2)) / cohort.counts[0])
        how = f"Gaussian composition over {counts.sum()} rounds under {what}: mu = sqrt(sum s_t^2) / {math.sqrt(cohort.counts[0]):.4g}."
        yield Bound(curve=GaussianCurve(mu=mu), method="composition", lines=(*lines, how))
    else:
        curve = rounds_curve(shifts[:, None], counts, sigma=1.0, cohort=cohort)
        how = f"Each round is a public mixture over how many take part, under {what} (A10)."
        yield Bound(curve=curve, method="participation mixture", lines=(*lines, how))
    yield from minibatch_bounds(
        question, prices, counts, sigma=1.0, cohort=cohort, lines=(*lines, f"Hidden by {what}.")
    )


def hidden_curve(question: Question, prices: UploadPrices, counts: np.ndarray) -> Curve:
    """The composition of rounds with a hidden Poisson draw."""
    protocol = question.protocol
    noise, rate = server_noise(protocol) * denominator(protocol), taking_part(protocol)
    removal = removes_client(question)
    curves = []
    for shift, count in levels(prices.shifts, counts):
        if removal:  # an update has norm s_t / 2, and an absent one is 0
            curves.append(sampled_step(2 * noise / shift, rate).repeat(count))
        else:
            # Both updates have norm s_t / 2 at most, and an absent one is 0.
            curves.append(two_sided(reach=shift / noise / 2, rate=rate, steps=count))
    return composed(curves)


@lru_cache(maxsize=64)
def sampled_step(multiplier: float, rate: float) -> Curve:
    """One sampled Gaussian step; made once, since a budget asks for many numbers of them."""
    return subsampled.poisson(multiplier=multiplier, rate=rate)


def levels(shifts: np.ndarray, counts: np.ndarray) -> list[tuple[float, int]]:
    """Shifts rounded up to a few levels, and how often each occurs.

    Example:
        >>> levels(np.array([1.0, 0.999, 0.5]), np.array([1, 2, 3]))  # doctest: +ELLIPSIS
        [(1.0, 3), (0.51..., 3)]
    """
    top = float(shifts.max())
    if top == 0:
        return []
    with np.errstate(divide="ignore"):
        steps = np.floor(np.minimum(np.log(shifts / top) / math.log(LEVELS), 1000)).astype(int)
    return [
        (top * LEVELS**step, int(counts[steps == step].sum())) for step in np.unique(steps).tolist()
    ]


def central_renyi(
    question: Question, prices: UploadPrices, counts: np.ndarray, lines: tuple[str, ...]
) -> Iterator[Bound]:
    """Laplace noise on the mean: Rényi divergences of the mean's move, with the draw of clients public or hidden (B6)."""
    protocol, norm, dimension = (
        question.protocol,
        clip_norm(question.protocol),
        dimension_of(question.protocol),
    )
    price = price_of(protocol.noise, norm, dimension)
    cohort = central_numbers(question)
    masses = cohort.probability * np.array(cohort.masses)
    moved = mean_shifts(question, prices.shifts)
    shifts = np.divide.outer(moved, np.array(cohort.counts, dtype=float))
    lines = (*lines, f"One release: {price.reason}.")
    curve = releases_curve(protocol.noise, norm, dimension, shifts, masses, counts)
    yield Bound(curve=curve, method="Rényi composition", lines=lines, vouched=price.vouched)
    if hidden(protocol) and removes_client(question):
        rate, by = taking_part(protocol), denominator(protocol)
        totals = np.zeros(len(INTEGER_ORDERS))
        for shift, count in levels(prices.shifts, counts):
            divergence = lambda order, move=shift / 2 / by: price.divergence(order, move)  # noqa: E731
            totals += count * np.array(
                [poisson_subsampled(order, rate, divergence) for order in INTEGER_ORDERS]
            )
        how = f"Each client is drawn with probability {rate:.3g}, hidden under noise that does not depend on it (THEORY B6, A10)."
        curve = RenyiCurve(
            orders=tuple(float(order) for order in INTEGER_ORDERS), values=tuple(totals.tolist())
        )
        yield Bound(
            curve=curve,
            method="hidden Poisson sampling",
            lines=(*lines, how),
            vouched=price.vouched,
        )


def central_numbers(question: Question, numbers: Sequence[int] | None = None) -> Cohort:
    """By what the sum is divided, and how probable that is."""
    gaussian = replace(question.protocol, noise=Gaussian(sigma=1.0, where="server"))
    cohort = cohort_of(replace(question, protocol=gaussian), numbers)
    return replace(cohort, counts=tuple(math.sqrt(count) for count in cohort.counts))


def realised_central(
    question: Question, history: tuple[tuple[int, int], ...], delta: float = 1e-5
) -> Bound:
    """The bound of a client that took part in these rounds, each with so many participants: the draw is known and amplifies nothing."""
    protocol = question.protocol
    rounds = np.array([t for t, _ in history], dtype=np.int64)
    if question.view == View.SERVER:
        return Bound(curve=NOTHING, method="trusted server", lines=(TRUSTED,))
    prices = upload_prices(protocol, rounds, question.unit, question.records)
    shifts = mean_shifts(question, prices.shifts)
    numbers = [n for _, n in history]
    if isinstance(protocol.noise, Gaussian):
        spreads = np.array([cohort_of(question, [n]).counts[0] for n in numbers])
        if (spreads == 0).any():
            return Bound(
                curve=NOTHING, method="no noise", lines=("Without noise nothing is hidden.",)
            )
        return realised_gaussian(question, prices, spreads, delta)
    norm, dimension = clip_norm(protocol), dimension_of(protocol)
    moves = [
        float(shift) / central_numbers(question, [n]).counts[0]
        for shift, n in zip(shifts, numbers, strict=True)
    ]
    once = np.ones(len(moves), dtype=np.int64)
    curve = releases_curve(
        protocol.noise, norm, dimension, np.array(moves)[:, None], np.ones(1), once
    )
    return Bound(curve=curve, method="composition", lines=(TAKEN_PART,))


def realised_gaussian(
    question: Question, prices: UploadPrices, spreads: np.ndarray, delta: float
) -> Bound:
    """The smaller of composition and what the draw of minibatches adds; `spreads` are the squared noises of the rounds."""
    shifts = mean_shifts(question, prices.shifts)
    mu = math.sqrt(float(np.sum(np.square(shifts) / spreads)))
    bounds = [Bound(curve=GaussianCurve(mu=mu), method="composition", lines=(TAKEN_PART,))]
    bounds += minibatch_bounds(
        question,
        prices,
        np.ones(len(spreads), dtype=np.int64),
        sigma=1.0,
        cohort=Cohort.everyone(clients=1),
        scale=1 / np.sqrt(spreads),
        lines=(TAKEN_PART,),
    )
    return min(bounds, key=lambda bound: bound.curve.epsilon(delta))
