"""What a protocol promises: all bounds that are valid for a view, and the smallest of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sordino.privacy.checks import proper_delta
from sordino.privacy.client_by_client import Attacked, joined, kinds_of_clients
from sordino.privacy.curves import Curve, GaussianCurve
from sordino.privacy.guarantee import Guarantee, notes_on, rounded_up
from sordino.privacy.sizes import size_of
from sordino.privacy.uploads import Dynamics, UploadPrices, distinct_rounds, upload_prices
from sordino.protocol import (
    UNITS,
    Attention,
    Bezier,
    Everyone,
    FedAvg,
    FixedSize,
    Gaussian,
    InvalidValue,
    Mean,
    Median,
    NoisySgd,
    Poisson,
    Protocol,
    Scaffold,
    View,
)  # fmt: skip
from sordino.protocol.entries import MOST

if TYPE_CHECKING:
    from sordino.privacy.participation import Cohort

UNKNOWN_SIZES = "How many records clients have is not said, so every step counts as if its batch held the record."


@dataclass(frozen=True, kw_only=True)
class Bound:
    """One valid bound: a curve, what it is called, how it comes about, and what was vouched for."""

    curve: Curve
    method: str
    lines: tuple[str, ...]
    vouched: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked: which rounds of which protocol, against whom, for what unit; `sizes` are the clients' records where known."""

    protocol: Protocol
    view: View
    unit: str
    rounds: np.ndarray
    sizes: tuple[int, ...] | None
    attacked: Attacked | None = (
        None  # the kind of client that is asked about; None: the worst of all
    )

    @property
    def colluders(self) -> int:
        """Clients on the adversary's side, whose noise hides nothing from it: one other client is weak, all others are strong."""
        return {View.WEAK: 1, View.STRONG: self.protocol.clients - 1}.get(
            self.view, self.view.colluders
        )

    @property
    def records(self) -> int | None:
        """Records of the attacked client, or of the smallest, where they are known: fewer records hide less."""
        if self.attacked is not None:
            return self.attacked.records
        if self.sizes is not None:
            return min(self.sizes)
        return self.protocol.data.records if self.protocol.data is not None else None

    @property
    def shares(self) -> np.ndarray | None:
        """Each client's share in a mean over everyone, where it is known."""
        rule, clients = self.protocol.aggregation, self.protocol.clients
        if isinstance(rule, Mean) and rule.weights == "records":
            if self.sizes is not None:
                return np.array(self.sizes) / sum(self.sizes)
            if self.protocol.data is None or self.protocol.data.records is None:
                return None
        return np.full(clients, 1 / clients)


def certify(
    protocol: Protocol,
    view: str | View = View.SERVER,
    unit: str = "record",
    *,
    delta: float = 1e-5,
    rounds: Sequence[int] | None = None,
    sizes: Sequence[int] | None = None,
) -> Guarantee:
    """The smallest valid bound on what an adversary learns from a run of the protocol.

    Args:
        protocol: what is run.
        view: the adversary: server, rounds, coalition:k, final, weak, strong.
        unit: what is hidden: "record" or "client".
        delta: where bounds are compared to find the smallest.
        rounds: which rounds are run, with repetitions; by default all of the protocol.
        sizes: number of records of every client, where they differ.

    Raises:
        UserError: a view that the protocol does not have, or a delta outside (0, 1).

    Example:
        >>> from sordino.protocol import Constant, FedAvg, Gaussian, Protocol
        >>> local = FedAvg(steps=5, batch=32, clip=1.0, schedule=Constant(rate=0.1))
        >>> guarantee = certify(Protocol(clients=50, rounds=600, local=local, noise=Gaussian(sigma=1.0)), "rounds")
        >>> round(guarantee.mu, 4), round(guarantee.epsilon(1e-5), 2)
        (3.4641, 20.13)
    """
    question = asked(protocol, view, unit, rounds, sizes)
    proper_delta(delta)
    bounds = list(valid_bounds(question))
    epsilons = [bound.curve.epsilon(delta) for bound in bounds]
    best = bounds[int(np.argmin(epsilons))]
    if not best.vouched:
        return guaranteed(question, best)
    free = [
        (epsilon, bound)
        for epsilon, bound in zip(epsilons, bounds, strict=True)
        if not bound.vouched
    ]
    return guaranteed(
        question, best, unconditional=guaranteed(question, min(free, key=lambda pair: pair[0])[1])
    )


def asked(
    protocol: Protocol,
    view: str | View,
    unit: str,
    rounds: Sequence[int] | None,
    sizes: Sequence[int] | None,
) -> Question:
    """The question in its normal form."""
    parsed = View.parse(view)
    if unit not in UNITS:
        raise InvalidValue("unit", unit, '"record" or "client"')
    if parsed.colluders >= protocol.clients or (
        parsed in (View.WEAK, View.STRONG) and protocol.clients == 1
    ):
        allowed = f"at most coalition:{protocol.clients - 1}, all clients but the attacked one"
        raise InvalidValue(
            "view",
            str(parsed),
            allowed if protocol.clients > 1 else "another view: there is one client only",
        )
    chosen = np.arange(protocol.rounds) if rounds is None else numbers_of_rounds(rounds)
    known = None if sizes is None else checked_sizes(protocol, sizes)
    return Question(protocol=protocol, view=parsed, unit=unit, rounds=chosen, sizes=known)


def numbers_of_rounds(rounds: Sequence[int]) -> np.ndarray:
    """Rounds as an array, if they are rounds; one that was run twice stands there twice.

    Example:
        >>> numbers_of_rounds(range(2))
        array([0, 1])
    """
    found = np.asarray(rounds)
    if found.ndim != 1 or (
        found.size > 0 and (not np.issubdtype(found.dtype, np.integer) or int(found.min()) < 0)
    ):
        raise InvalidValue(
            "rounds",
            rounds,
            "the numbers of rounds, each a whole number of at least 0, such as range(10)",
        )
    return found.astype(np.int64)


def checked_sizes(protocol: Protocol, sizes: Sequence[int]) -> tuple[int, ...]:
    """Numbers of records, if there is one for every client."""
    found = tuple(sizes)
    whole = all(
        isinstance(size, (int, np.integer)) and not isinstance(size, bool) and 0 < size <= MOST
        for size in found
    )
    if not whole or len(found) != protocol.clients:
        raise InvalidValue(
            "sizes",
            sizes,
            f"the numbers of records of {protocol.clients} clients, each a whole number of at least 1",
        )
    return tuple(int(size) for size in found)


def guaranteed(
    question: Question, bound: Bound, unconditional: Guarantee | None = None
) -> Guarantee:
    """A bound with its labels."""
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
    )


def valid_bounds(question: Question) -> Iterator[Bound]:
    """Every bound that holds; the smallest of them may be promised."""
    yield from uncapped_bounds(question)
    if question.protocol.client and not harmonized(question.protocol):
        yield from capped_bounds(question)


def unequal_clients(question: Question) -> bool:
    """Returns whether clients differ in what their records hide among and in what their uploads weigh, so that no single one is the worst.

    Everyone must take part: the shares of random participants are not known.
    """
    protocol, shares = question.protocol, question.shares
    if question.attacked is not None or question.sizes is None or shares is None:
        return False
    if question.unit != "record" or shares.max() == shares.min() or protocol.client:
        return False
    if isinstance(protocol.local, NoisySgd) or not isinstance(protocol.participation, Everyone):
        return False
    return protocol.noise.where != "client" or effective_view(question)[0].kind != "server"


def client_by_client(question: Question) -> Iterator[Bound]:
    """Every bound of a federation of unequal clients: that of the worst of them, each priced by itself."""
    from dataclasses import replace

    if question.sizes is None or question.shares is None:
        raise TypeError("clients whose sizes are not known cannot be told apart")
    kinds = kinds_of_clients(question.sizes, question.shares, question.colluders)
    found = [list(uncapped_bounds(replace(question, attacked=kind))) for kind in kinds]
    yield from joined(found)


def harmonized(protocol: Protocol) -> bool:
    """Returns whether clients have noise or a pull of their own, so that each is priced by itself."""
    return protocol.penalty or any(budget.mechanism is not None for budget in protocol.client)


def uncapped_bounds(question: Question) -> Iterator[Bound]:
    """Every bound that holds for a client that takes part as often as it is drawn; more noise makes each of them smaller."""
    protocol = question.protocol
    if unequal_clients(question):
        yield from client_by_client(question)
        return
    if len(question.rounds) == 0:
        yield Bound(
            curve=GaussianCurve(mu=0.0), method="nothing released", lines=("No round was run.",)
        )
        return
    if harmonized(protocol):
        from sordino.privacy.harmonizer import harmonized_bounds

        yield from harmonized_bounds(question)
        return
    if isinstance(protocol.local, NoisySgd):
        from sordino.privacy.noisy_steps import noisy_step_bounds

        yield from noisy_step_bounds(question)
        return
    found, counts = distinct_rounds(protocol, question.rounds)
    prices = upload_prices(protocol, found, question.unit, question.records)
    if protocol.noise.where != "client":
        from sordino.privacy.central import central, central_bounds

        if central(question):
            yield from central_bounds(question, prices, counts)
            if question.view == View.FINAL and isinstance(protocol.noise, Gaussian):
                yield from last_iterate_bounds(question, prices, counts)
            return
    if not isinstance(protocol.noise, Gaussian):
        from sordino.privacy.mechanisms import renyi_bounds

        yield from renyi_bounds(question, prices, counts)
        if protocol.channel == "shuffler":
            yield from shuffled_bounds(question)
        return
    if protocol.noise.sigma == 0 and prices.shifts.max() > 0:
        line = "Without noise (sigma = 0) nothing hides a client's contribution."
        yield Bound(curve=GaussianCurve(mu=math.inf), method="no noise", lines=(line,))
        return
    yield from composition_bounds(question, prices, counts)
    if protocol.channel == "shuffler":
        yield from shuffled_bounds(question)
    if question.view == View.FINAL and isinstance(protocol.aggregation, Mean):
        yield from last_iterate_bounds(question, prices, counts)


def composition_bounds(
    question: Question, prices: UploadPrices, counts: np.ndarray
) -> Iterator[Bound]:
    """Rounds composed: with everyone in every round Gaussian, else a mixture over who takes part; and what minibatches add to that."""
    from sordino.privacy.participation import rounds_curve

    protocol, sigma = question.protocol, size_of(question.protocol.noise)
    view, note = effective_view(question)
    lines: tuple[str, ...] = (
        prices.reason + f"; the largest here is {rounded_up(float(prices.shifts.max()))}.",
        note,
    )
    if (
        question.unit == "record"
        and question.records is None
        and isinstance(protocol.local, FedAvg)
    ):
        lines = (*lines, UNKNOWN_SIZES)
    if isinstance(protocol.participation, Everyone):
        factor = visible_share(question, view)
        mu = factor * math.sqrt(float(np.dot(counts, prices.shifts**2))) / sigma
        how = f"Gaussian composition over {counts.sum()} rounds: mu = sqrt(sum s_t^2) x {rounded_up(factor)} / sigma (THEORY A8)."
        yield Bound(curve=GaussianCurve(mu=mu), method="composition", lines=(*lines, how))
    else:
        how = "Each round is a public mixture: no part with probability 1 - q, else Gaussian with the random number of participants (A10)."
        cohort, scale = visible_cohort(question, view)
        curve = rounds_curve(prices.shifts[:, None] * scale, counts, sigma=sigma, cohort=cohort)
        yield Bound(curve=curve, method="participation mixture", lines=(*lines, how))
    from sordino.privacy.minibatches import minibatch_bounds

    cohort, scale = visible_cohort(question, view)
    yield from minibatch_bounds(
        question, prices, counts, sigma=sigma, cohort=cohort, scale=scale, lines=lines
    )
    if isinstance(protocol.local, Bezier):
        yield from bezier_bounds(question, view, prices, counts, lines)


def bezier_bounds(
    question: Question,
    view: View,
    prices: UploadPrices,
    counts: np.ndarray,
    lines: tuple[str, ...],
) -> Iterator[Bound]:
    """The rule bezier: a mixture over the public point of its curve, and over the first use of the record where batches hide it."""
    from sordino.privacy.bezier import spread_over_curve
    from sordino.privacy.participation import first_use, rounds_curve

    rule = question.protocol.local
    rows, use = spread_over_curve(prices.shifts[:, None])
    if prices.first_used is not None and question.records is not None:
        first = first_use(batch=rule.batch or 1, records=question.records, steps=rule.steps)
        rows, use = spread_over_curve(prices.first_used, first)
    how = "The point r of the curve is public and drawn afresh: a mixture over c(r) = (1 - r)(1 + 1.2 r) (A14, B9)."
    cohort, scale = visible_cohort(question, view)
    sigma = size_of(question.protocol.noise)
    curve = rounds_curve(rows * scale, counts, sigma=sigma, cohort=cohort, use=use)
    yield Bound(curve=curve, method="Bezier mixture", lines=(*lines, how))


def effective_view(question: Question) -> tuple[View, str]:
    """The view whose composition bound is taken: the view itself, or the server's where the rest is post-processing of the uploads."""
    protocol, view = question.protocol, question.view
    seen = f"The adversary sees {view.sees}."
    if view.kind == "server":
        return view, seen
    if not isinstance(protocol.aggregation, Mean):
        rule = "A median" if isinstance(protocol.aggregation, Median) else "Mode connectivity"
        return (
            View.SERVER,
            seen
            + f" {rule} is post-processing of the uploads: the server's bound holds, and no other is known.",
        )
    if isinstance(protocol.local, Scaffold):
        return (
            View.SERVER,
            seen
            + " Control variates carry single uploads from round to round: the server's bound is taken.",
        )
    if isinstance(protocol.personalization, Attention):
        return (
            View.SERVER,
            seen
            + " What a client is given is made of single uploads: the server's bound is taken.",
        )
    if view in (View.WEAK, View.STRONG):
        # Other clients are given global models, and know their own noise.
        view = View.coalition(question.colluders)
    if protocol.client:
        return (
            View.SERVER,
            seen
            + " Clients leave when their budgets are spent, and their noise with them: the server's bound is taken.",
        )
    if question.shares is None:
        return (
            View.SERVER,
            seen
            + " The clients' shares in the mean are not known here: the server's bound is taken.",
        )
    unequal = question.shares.max() > question.shares.min()
    if unequal and not isinstance(protocol.participation, Everyone):
        return (
            View.SERVER,
            seen + " Unequal shares among random participants: the server's bound is taken.",
        )
    if view.kind == "final":
        return View.ROUNDS, seen + " The last model is one of the rounds' models."
    return view, seen


def visible_share(question: Question, view: View) -> float:
    """The attacked client's share of what the view sees, over the norm of the honest noise in it; 1 for who sees the upload itself.

    The worst client is the one with the largest share, the worst coalition takes the largest other shares (THEORY A8, unequal weights).
    """
    shares = question.shares
    if view.kind == "server" or shares is None:
        return 1.0
    if question.attacked is not None:
        return question.attacked.visible
    ordered = np.sort(shares)[::-1]
    honest = np.concatenate([ordered[:1], ordered[1 + view.colluders :]])
    return float(ordered[0] / math.sqrt(float(np.square(honest).sum())))


def visible_cohort(question: Question, view: View) -> tuple[Cohort, float]:
    """Who hides the attacked client in a round, and the share of its upload that the view sees, as if all hid it alike."""
    from sordino.privacy.participation import Cohort

    clients, rule = question.protocol.clients, question.protocol.participation
    if isinstance(rule, Poisson):
        cohort = Cohort.poisson(clients=clients, rate=rule.rate, colluding=view.colluders)
    elif isinstance(rule, FixedSize):
        cohort = Cohort.fixed(clients=clients, size=rule.size, colluding=view.colluders)
    else:
        # Unequal shares: as if that many equal clients were honest. The number need not be whole, so it goes into the shift.
        alone = Cohort.everyone(clients=clients, colluding=view.colluders).alone()
        return alone, visible_share(question, view)
    return (cohort.alone() if view.kind == "server" else cohort), 1.0


def shuffled_bounds(question: Question) -> Iterator[Bound]:
    """What the clones of THEORY B7 add, behind a shuffler."""
    from sordino.privacy.shuffled import clones_bounds

    yield from clones_bounds(question)


def capped_bounds(question: Question) -> Iterator[Bound]:
    """Every client has a budget of its own, so none spends more than the largest of them (see `caps`)."""
    from sordino.privacy.caps import foreseen_cap

    protocol = question.protocol
    if len(protocol.client) < protocol.clients or len(np.unique(question.rounds)) < len(
        question.rounds
    ):
        return  # a round that was paid for twice may cost more than the first rounds, by which caps are found
    sizes = question.sizes or (question.records,) * protocol.clients
    most = max(foreseen_cap(protocol, budget, sizes[budget.id]) for budget in protocol.client)
    if most < len(question.rounds):
        reduced = certify_capped(question, most)
        line = f"No client takes part more than {most} times, by its own budget; earlier rounds cost the most."
        yield Bound(curve=reduced.curve, method="client budgets", lines=(*reduced.derivation, line))


def certify_capped(question: Question, rounds: int) -> Guarantee:
    """The bound of a client that takes part in each of the first `rounds` rounds, against the server."""
    from dataclasses import replace

    certain = replace(question.protocol, client=(), participation=Everyone())
    return certify(certain, View.SERVER, question.unit, rounds=range(rounds), sizes=question.sizes)


def last_iterate_bounds(
    question: Question, prices: UploadPrices, counts: np.ndarray
) -> Iterator[Bound]:
    """Who sees the last model only: the convex minorant of THEORY A7, for everyone or a fixed number of participants.

    With a mixing b the model moves by (1 - b) w + b mean: the stretch is (1 - b) + b rho, the shift b gamma, the noise b sigma.
    """
    protocol, shares = question.protocol, question.shares
    in_order = len(question.rounds) > 0 and np.array_equal(
        question.rounds, np.arange(len(question.rounds))
    )
    if (
        isinstance(protocol.participation, Poisson)
        or protocol.client
        or shares is None
        or not in_order
    ):
        return
    if isinstance(protocol.participation, FixedSize):
        if shares.max() > shares.min():
            return
        shares = np.full(protocol.participation.size, 1 / protocol.participation.size)
    mixing = protocol.aggregation.mixing if isinstance(protocol.aggregation, Mean) else 1.0
    noise = mixing * mean_noise(protocol, shares)
    if noise == 0:
        return
    share = float(shares.max()) if question.attacked is None else question.attacked.share
    for dynamics in prices.dynamics:
        yield from last_iterate_bound(question, dynamics, counts, mixing, share, noise)


def mean_noise(protocol: Protocol, shares: np.ndarray) -> float:
    """Standard deviation of the noise in a mean with these shares, the clients' and the server's."""
    from sordino.privacy.central import client_noise, server_noise

    return math.hypot(
        client_noise(protocol) * math.sqrt(float(np.square(shares).sum())), server_noise(protocol)
    )


def last_iterate_bound(
    question: Question,
    dynamics: Dynamics,
    counts: np.ndarray,
    mixing: float,
    share: float,
    noise: float,
) -> Iterator[Bound]:
    """The bound of one way to see the dynamics."""
    from sordino.privacy.bounded_domain import last_iterate_bounded
    from sordino.privacy.last_iterate import last_iterate

    repeats = counts if len(counts) < len(question.rounds) else np.ones(len(counts), dtype=np.int64)
    stretch = np.repeat((1 - mixing) + mixing * dynamics.stretch, repeats)
    shift = np.repeat(mixing * dynamics.shift * (share if dynamics.shared else 1.0), repeats)
    diameter = question.protocol.assumptions.diameter
    if diameter is None and not dynamics.shared:
        return  # every client's upload may shift then, and only a bounded domain forgets that
    if diameter is None:
        energy, tail = last_iterate(stretch, shift), ""
    else:
        energy, start = last_iterate_bounded(stretch, shift, diameter)
        tail = (
            f" Models stay in a ball of diameter {diameter:g} (enforced): all before round {start + 1} is forgotten."
            if start
            else ""
        )
    line = f"Last iterate: {dynamics.reason}; greatest convex minorant, mu = sqrt(H) / noise of the mean (THEORY A7).{tail}"
    vouched = (dynamics.vouched,) if dynamics.vouched else ()
    curve = GaussianCurve(mu=math.sqrt(energy) / noise)
    yield Bound(
        curve=curve,
        method="last iterate",
        lines=(f"The adversary sees {question.view.sees}.", line),
        vouched=vouched,
    )
