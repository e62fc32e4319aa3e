"""What a run has spent: the plan's bound after so many rounds, what a budget affords, and the bound given who really took part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sordino.privacy.caps import largest
from sordino.privacy.carried import carries
from sordino.privacy.central import TAKEN_PART
from sordino.privacy.certify import (
    Bound,
    Question,
    asked,
    certify,
    effective_view,
    guaranteed,
    harmonized,
)
from sordino.privacy.curves import GaussianCurve
from sordino.privacy.guarantee import Guarantee, notes_on, rounded_up
from sordino.privacy.harmonizer import own_protocol
from sordino.privacy.joined_steps import adds_up
from sordino.privacy.ledger import Event, Missed, Opened, RoundCharged
from sordino.privacy.minibatches import minibatch_bounds
from sordino.privacy.participation import Cohort
from sordino.privacy.uploads import upload_prices
from sordino.protocol import (
    Bezier,
    Budget,
    ClientBudget,
    Everyone,
    Gaussian,
    NoisySgd,
    Protocol,
    SordinoError,
    UserError,
    View,
)


class BudgetExceeded(SordinoError):
    """The next round would pass the budget; nothing past it was released.

    Example:
        >>> BudgetExceeded("the budget is spent").exit_code
        3
    """

    exit_code = 3


@dataclass(frozen=True, kw_only=True)
class Afforded:
    """How far a budget goes: `rounds` of the plan fit, at the cost of `spent`; one more would cost `next`."""

    budget: Budget
    rounds: int
    spent: float
    next: float | None

    @property
    def message(self) -> str:
        """What a person is told when the budget ends a run."""
        left = self.budget.epsilon - self.spent
        target = f"epsilon = {self.budget.epsilon:g} at delta = {self.budget.delta:g}, view {self.budget.view}, unit {self.budget.unit}"
        cost = (
            f"; after round {self.rounds + 1} it would be {rounded_up(self.next)}"
            if self.next is not None
            else ""
        )
        return (
            f"the budget ({target}) ends the run after {self.rounds} rounds: spent epsilon = {rounded_up(self.spent)}{cost}. "
            f"Left: {max(0.0, left):.3g}. Raise the budget, the noise (`sordino calibrate`) or the number of clients."
        )


def repeated_rounds(events: Sequence[Event], next_round: int) -> list[int]:
    """Rounds that were paid for in vain: charged before an interruption, and with fresh noise charged again.

    Args:
        events: the ledger.
        next_round: the round that the run goes on with; what was charged from there on will be run again.

    Example:
        >>> opened = Opened(protocol="9f2c", generator="chacha20", noise="fresh")
        >>> repeated_rounds([opened, RoundCharged(round=0, clients=(1,)), RoundCharged(round=1, clients=(1,))], next_round=1)
        [1]
    """
    again = any(isinstance(event, Opened) and not event.repeatable for event in events)
    charges = [event for event in events if isinstance(event, RoundCharged)]
    return [
        event.round
        for event in charges
        if event.attempt > 0 or (again and event.round >= next_round)
    ]


def afforded(
    protocol: Protocol,
    budget: Budget,
    *,
    repeated: Sequence[int] = (),
    sizes: Sequence[int] | None = None,
) -> Afforded:
    """How many rounds of the plan fit into the budget, on top of rounds that were charged twice.

    Example:
        >>> from sordino.protocol import Constant, FedAvg, Gaussian
        >>> local = FedAvg(steps=1, batch=1, clip=1.0, schedule=Constant(rate=0.5))
        >>> protocol = Protocol(clients=2, rounds=100, local=local, noise=Gaussian(sigma=1.0))
        >>> afforded(protocol, Budget(epsilon=8.0)).rounds
        2
    """

    def price(rounds: int) -> float:
        plan = [*range(rounds), *repeated]
        return certify(
            protocol, budget.view, budget.unit, delta=budget.delta, rounds=plan, sizes=sizes
        ).epsilon(budget.delta)

    rounds = largest(lambda count: price(count) <= budget.epsilon, protocol.rounds)
    further = price(rounds + 1) if rounds < protocol.rounds else None
    return Afforded(budget=budget, rounds=rounds, spent=price(rounds), next=further)


def realised(
    protocol: Protocol,
    events: Iterable[Event],
    view: str | View = View.SERVER,
    unit: str = "record",
    *,
    delta: float = 1e-5,
    sizes: Sequence[int] | None = None,
) -> dict[int, Guarantee]:
    """The bound of every client given who took part in which round, as the ledger says: no longer amplified by the draw of clients.

    Who fell silent hid nobody: a round counts with the number of those who contributed.

    Example:
        >>> realised(protocol, run.ledger)[0].epsilon(1e-5)  # doctest: +SKIP
        2.1
    """
    return dict(sorted(realised_one_by_one(protocol, events, view, unit, delta=delta, sizes=sizes)))


def realised_one_by_one(
    protocol: Protocol,
    events: Iterable[Event],
    view: str | View = View.SERVER,
    unit: str = "record",
    *,
    delta: float = 1e-5,
    sizes: Sequence[int] | None = None,
) -> Iterator[tuple[int, Guarantee]]:
    """The same, a client at a time, those first that took part most often: where many would take long, one may stop.

    Example:
        >>> next(realised_one_by_one(protocol, run.ledger))[1].epsilon(1e-5)  # doctest: +SKIP
        2.1
    """
    past = histories(protocol, events)
    order = sorted(past, key=lambda client: -len(past[client]))
    if harmonized(protocol):
        own = {budget.id: budget for budget in protocol.client}
        yield from (
            (
                client,
                realised_apart(
                    protocol, own[client], past[client], View.parse(view), unit, delta, sizes
                ),
            )
            for client in order
        )
        return
    certain = replace(protocol, client=())
    found: dict[History, Guarantee] = {}
    for client in order:
        key = priced_alike(protocol, past[client])
        if key not in found:
            found[key] = realised_bound(certain, past[client], view, unit, delta, sizes)
        yield client, found[key]


History = tuple[
    tuple[int, int], ...
]  # of a client: the rounds that it took part in, each with the number of those who contributed


def histories(protocol: Protocol, events: Iterable[Event]) -> dict[int, History]:
    """The history of every client, as the ledger says. Who fell silent hid nobody, and is charged all the same.

    Example:
        >>> from sordino.protocol import Constant, FedAvg, Gaussian
        >>> local = FedAvg(steps=1, batch=1, clip=1.0, schedule=Constant(rate=0.5))
        >>> protocol = Protocol(clients=2, rounds=9, local=local, noise=Gaussian(sigma=1.0))
        >>> histories(protocol, [RoundCharged(round=0, clients=(1,)), RoundCharged(round=4, clients=(0, 1))])
        {0: ((4, 2),), 1: ((0, 1), (4, 2))}
    """
    known = list(events)
    found: dict[int, list[tuple[int, int]]] = {client: [] for client in range(protocol.clients)}
    missing = missed_in(known)
    for event in known:
        if isinstance(event, RoundCharged):
            if max(event.clients, default=0) >= protocol.clients:
                raise UserError(
                    f"the ledger names client {max(event.clients)}, and the federation has {protocol.clients}."
                )
            present = max(1, len(set(event.clients) - missing.get(event.round, set())))
            for client in event.clients:
                found[client].append((event.round, present))
    return {client: tuple(history) for client, history in found.items()}


def missed_in(events: Iterable[Event]) -> dict[int, set[int]]:
    """The clients that contributed nothing to a round that they were charged for, by round.

    A round that was run again counts with all that were ever missing from it: the model of the first time may have been seen.

    Example:
        >>> missed_in([Missed(round=2, clients=(0, 4), reasons=("it is not connected",) * 2)])
        {2: {0, 4}}
    """
    found: dict[int, set[int]] = {}
    for event in events:
        if isinstance(event, Missed):
            found.setdefault(event.round, set()).update(event.clients)
    return found


def promised(
    protocol: Protocol,
    events: Sequence[Event],
    view: str | View = View.SERVER,
    unit: str = "record",
    *,
    delta: float = 1e-5,
    sizes: Sequence[int] | None = None,
) -> Guarantee:
    """What a run promises, by what its ledger says was paid for.

    It is the plan's bound, unless clients fell silent and the adversary sees means: those hid less than planned, and the worst client's
    realised bound counts. That a client fell silent is seen by all, and is covered by no bound.

    Example:
        >>> promised(protocol, run.ledger, "rounds").epsilon(1e-5)  # doctest: +SKIP
        2.1
    """
    paid = [event.round for event in events if isinstance(event, RoundCharged)]
    question = asked(protocol, view, unit, paid, sizes)
    alone = effective_view(question)[0].kind == "server" and protocol.channel == "direct"
    if (
        not missed_in(events)
        or alone
        or harmonized(protocol)
        or (isinstance(protocol.local, NoisySgd) and not adds_up(protocol))
    ):
        return certify(protocol, view, unit, delta=delta, rounds=paid, sizes=sizes)
    bounds = realised(protocol, events, view, unit, delta=delta, sizes=sizes).values()
    worst = max(bounds, key=lambda guarantee: guarantee.epsilon(delta))
    return replace(
        worst,
        derivation=(
            *worst.derivation,
            "Clients fell silent: every round counts with those who contributed to it.",
        ),
    )


def realised_apart(
    protocol: Protocol,
    budget: ClientBudget,
    history: History,
    view: View,
    unit: str,
    delta: float,
    sizes: Sequence[int] | None,
) -> Guarantee:
    """The same for a client with noise of its own: by its own, against who sees its uploads, which covers every view."""
    records = sizes[budget.id] if sizes is not None else None
    alone, known = (
        own_protocol(protocol, budget, records),
        None if records is None else [records] * protocol.clients,
    )
    found = realised_bound(alone, history, View.SERVER, unit, delta, known)
    return replace(found, view=view, notes=notes_on(protocol))


def priced_alike(protocol: Protocol, history: History) -> History:
    """Histories that cost the same have the same key."""
    from sordino.protocol import Constant, Cyclic

    if adds_up(protocol):
        return tuple(sorted((0, present) for _, present in history))
    if isinstance(protocol.local, NoisySgd):
        return ((0, 0),) * len(history)
    if isinstance(protocol.local.schedule, (Constant, Cyclic)) and not carries(protocol):
        return tuple(sorted((0, honest) for _, honest in history))
    return tuple(sorted(history))


def realised_bound(
    protocol: Protocol,
    history: History,
    view: str | View,
    unit: str,
    delta: float,
    sizes: Sequence[int] | None,
) -> Guarantee:
    """The bound of one client that took part in these rounds, each with so many participants in all."""
    question = asked(protocol, view, unit, [t for t, _ in history], sizes)
    if not history:
        return certify(protocol, view, unit, delta=delta, rounds=())
    if isinstance(protocol.participation, Everyone) and all(
        present == protocol.clients for _, present in history
    ):
        return certify(
            protocol, view, unit, delta=delta, rounds=[t for t, _ in history], sizes=sizes
        )  # nothing was drawn, nobody missing
    if isinstance(protocol.local, NoisySgd):
        return realised_steps(question, protocol.local, history, delta)
    if protocol.noise.where != "client":
        from sordino.privacy.central import central, realised_central

        if central(question):
            return guaranteed(question, realised_central(question, history, delta))
    if not isinstance(protocol.noise, Gaussian):
        taken = replace(protocol, participation=Everyone(), channel="direct")
        direct = certify(
            taken, view, unit, delta=delta, rounds=[t for t, _ in history], sizes=sizes
        )
        return better_shuffled(question, history, direct, delta)
    seen, _ = effective_view(question)
    if question.shares is not None and question.shares.max() > question.shares.min():
        seen = View.SERVER  # a number of participants says nothing about their shares
    kinds = Counter(history)
    rounds = np.array([t for t, _ in kinds], dtype=np.int64)
    counts = np.array(list(kinds.values()))
    # Of n participants k may collude; alone against all others, only its own noise protects a client.
    honest = np.array(
        [1 if seen.kind == "server" else max(1, n - seen.colluders) for _, n in kinds]
    )
    prices = upload_prices(protocol, rounds, unit, question.records)
    sigma, scale = protocol.noise.sigma, 1 / np.sqrt(honest)
    if sigma == 0:
        return certify(protocol, view, unit, delta=delta)
    mu = float(np.sqrt(np.dot(counts, (prices.shifts * scale) ** 2))) / sigma
    lines = (prices.reason, TAKEN_PART)
    bounds = [Bound(curve=GaussianCurve(mu=mu), method="composition", lines=lines)]
    alone = Cohort.everyone(clients=1)
    bounds += minibatch_bounds(
        question, prices, counts, sigma=sigma, cohort=alone, scale=scale, lines=lines
    )
    if isinstance(protocol.local, Bezier):
        from sordino.privacy.bezier import spread_over_curve
        from sordino.privacy.participation import rounds_curve

        rows, use = spread_over_curve((prices.shifts * scale)[:, None])
        curve = rounds_curve(rows, counts, sigma=sigma, cohort=alone, use=use)
        lines = (prices.reason, "A mixture over the point of the Bezier curve (A14).")
        bounds.append(Bound(curve=curve, method="Bezier mixture", lines=lines))
    return better_shuffled(
        question,
        history,
        guaranteed(question, min(bounds, key=lambda bound: bound.curve.epsilon(delta))),
        delta,
    )


def realised_steps(question: Question, rule: NoisySgd, history: History, delta: float) -> Guarantee:
    """Returns the bound of a client with noisy steps: by its own noise, or by that of all who took part where it adds up in the mean."""
    from sordino.privacy.joined_steps import realised_joined
    from sordino.privacy.noisy_steps import draw_of, step_price

    certain = replace(question.protocol, participation=Everyone())
    rounds = [t for t, _ in history]
    alone = certify(
        certain, View.SERVER, question.unit, delta=delta, rounds=rounds, sizes=question.sizes
    )
    found = [replace(alone, view=question.view)]
    shares, price = question.shares, step_price(question, rule)
    equal = shares is not None and bool(shares.max() == shares.min())
    if adds_up(question.protocol) and question.view != View.SERVER and equal and price.mu <= 5:
        draw = draw_of(question.protocol, rule)
        present = [number for _, number in history]
        curve = realised_joined(question, price.mu, price.rate, draw, present)
        lines = (price.reason, "The noise of all who took part adds up in the mean (A14).")
        found.append(guaranteed(question, Bound(curve=curve, method="joined noise", lines=lines)))
    return min(found, key=lambda guarantee: guarantee.epsilon(delta))


def better_shuffled(
    question: Question, history: History, direct: Guarantee, delta: float
) -> Guarantee:
    """The bound of a client whose uploads were shuffled among at least so many, where it is the smaller one."""
    if question.protocol.channel != "shuffler":
        return direct
    from sordino.privacy.shuffled import clones_bounds

    shuffled = [
        guaranteed(question, bound)
        for bound in clones_bounds(question, batch=min(n for _, n in history))
    ]
    return min([direct, *shuffled], key=lambda guarantee: guarantee.epsilon(delta))
