"""Prices a run by what its ledger charged; each price is computed once, however often shown."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from sordino.privacy.bounds.joined_steps import adds_up
from sordino.privacy.certify import certify
from sordino.privacy.guarantee import Guarantee
from sordino.privacy.ledger import first_entry, read_ledger
from sordino.privacy.ledger_lines import Event, Opened, RoundCharged
from sordino.privacy.spending import (
    certify_clients,
    certify_clients_in_turn,
    certify_run,
    collect_histories,
    find_missing_clients,
)
from sordino.protocol import ClientBudget, Protocol, View, all_views

if TYPE_CHECKING:
    from sordino.federation.setup import Begun
    from sordino.federation.store.run import Run

T = TypeVar("T")

# Seconds of work for a part of a report that can do with fewer numbers: pricing some mixtures of
# unequal rounds takes minutes.
PATIENCE = 1.0
# After how many rounds, at most, the privacy spent is priced for a curve.
PRICED_ROUNDS = 13
# Views whose epsilons differ by less than this factor share one curve in a picture.
SAME_CURVE = 1.02


class Headline(NamedTuple):
    """Names what a run is summed up in.

    Attributes:
        view: The adversary.
        unit: "record" or "client".
        delta: Where epsilon is shown.
    """

    view: View
    unit: str
    delta: float


def choose_headline(protocol: Protocol) -> Headline:
    """Returns what a protocol is summed up in.

    Args:
        protocol: The federation.

    Returns:
        The view, unit and delta of its budget; without one, the server, one record and 1e-5.
    """
    budget = protocol.privacy.budget
    if budget is None:
        # Without a budget the adversary counts that sees the most of every client.
        return Headline(View.SERVER, "record", 1e-5)
    return Headline(View.parse(budget.view), budget.unit, budget.delta)


def choose_run_headline(run: Run) -> Headline:
    """Returns what a run is summed up in.

    Args:
        run: What was trained.

    Returns:
        As for its protocol; but the last model of a diverged run counts as one of all models.
    """
    headline = choose_headline(run.protocol)
    # When a run diverges depends on its data, so nothing is promised about its last model alone.
    if headline.view == View.FINAL and run.status == "diverged":
        return headline._replace(view=View.ROUNDS)
    return headline


def list_views(run: Run) -> tuple[View, ...]:
    """Lists the views that a run is shown in.

    Args:
        run: What was trained.

    Returns:
        All of them; without the last model alone if the run diverged.
    """
    views = all_views(run.protocol.clients, run.protocol.channel.colluders)
    if run.status != "diverged":
        return views
    # When a diverging run stops depends on the data, so nothing is promised about its last model
    # alone.
    return tuple(view for view in views if view != View.FINAL)


def list_views_with(run: Run, main: View) -> tuple[View, ...]:
    """Lists the views that a run is shown in, one of them included in any case.

    Args:
        run: What was trained.
        main: The view that must not be missing, such as coalition:3.
    """
    views = list_views(run)
    # A budget may name a view that is not listed, such as a coalition of another size.
    if main in views:
        return views
    return (main, *views)


def price_run(run: Run, headline: Headline) -> Guarantee:
    """Returns the bound of a run in one view.

    Args:
        run: What was trained.
        headline: The view, the unit and the delta.

    Example:
        >>> price_run(run, Headline(View.ROUNDS, "record", 1e-5)).epsilon(1e-5)  # doctest: +SKIP
        7.93
    """
    # The run adds what it has noted about its own data: prices are cached without it.
    return run.noted(_price_events(run.protocol, headline, tuple(run.ledger), run.sizes))


# A page asks for the same price dozens of times, and some take seconds.
@lru_cache(maxsize=64)
def _price_events(
    protocol: Protocol,
    headline: Headline,
    events: tuple[Event, ...],
    sizes: tuple[int, ...],
) -> Guarantee:
    view, unit, delta = headline
    return certify_run(protocol, events, view, unit, delta=delta, sizes=sizes)


def price_clients_by_view(
    run: Run,
    views: Sequence[View],
    unit: str,
    delta: float,
) -> dict[View, dict[int, Guarantee]]:
    """Prices every client of a run in some views, given which rounds it took part in.

    Args:
        run: What was trained.
        views: What the adversaries see.
        unit: "record" or "client".
        delta: Where epsilon will be asked for.

    Returns:
        Per view and client, the bound.
    """

    def price_view(view: View) -> dict[int, Guarantee]:
        """Returns the guarantee of every client.

        Args:
            view: The adversary.
        """
        return certify_clients(run.protocol, run.ledger, view, unit, delta=delta, sizes=run.sizes)

    if run.protocol.release.in_steps and not adds_up(run.protocol):
        # All that leaves a client is made of its noisy sums: one bound serves all views.
        common = price_view(views[0])
        found = {
            view: {client: replace(bound, view=view) for client, bound in common.items()}
            for view in views
        }
    else:
        found = {view: price_view(view) for view in views}
    return {
        view: {client: run.noted(bound) for client, bound in bounds.items()}
        for view, bounds in found.items()
    }


def group_similar_views(guarantees: Sequence[Guarantee], delta: float) -> dict[str, Guarantee]:
    """Groups views that look the same in a picture.

    Args:
        guarantees: One for each view.
        delta: Where they are compared.

    Returns:
        Under the joint name of its views, the largest guarantee of each group.
    """
    groups: list[list[Guarantee]] = []
    # Sorted, so that the last of a group is its largest: a shared curve must hold for all its
    # views.
    for guarantee in sorted(guarantees, key=lambda one: one.epsilon(delta)):
        if groups and guarantee.epsilon(delta) <= SAME_CURVE * groups[-1][0].epsilon(delta):
            groups[-1].append(guarantee)
        else:
            groups.append([guarantee])
    return {", ".join(str(one.view) for one in group): group[-1] for group in groups}


def take_in_time(values: Iterable[T], seconds: float = PATIENCE) -> list[T]:
    """Takes values until the time is up, and at least one.

    Args:
        values: Each takes some time to compute.
        seconds: Seconds of processor time.
    """
    # Not the clock on the wall: a busy machine gets the same page.
    end = time.thread_time() + seconds
    taken = []
    for value in values:
        taken.append(value)
        if time.thread_time() > end:
            break
    return taken


@dataclass(frozen=True, kw_only=True)
class SpendingCurve:
    """Holds what had been spent after some of the rounds that were charged.

    Attributes:
        rounds: Numbers of charged rounds, in ascending order.
        epsilons: For each of them the epsilon spent until then, at most.
    """

    rounds: tuple[int, ...]
    epsilons: tuple[float, ...]


def trace_spending(run: Run, headline: Headline) -> SpendingCurve:
    """Traces epsilon against the rounds that were charged.

    Args:
        run: What was trained.
        headline: The view, the unit and the delta.

    Returns:
        Epsilon at the end, and after as many earlier rounds as there is time for.
    """
    charged = len(run.rounds_paid)
    if charged == 0:
        return SpendingCurve(rounds=(), epsilons=())

    def price_counts() -> Iterator[tuple[int, float]]:
        # The ends first: if time runs out, the curve still spans the whole run.
        for count in order_by_halving(charged):
            events = take_events(run.ledger, count)
            price = _price_events(run.protocol, headline, events, run.sizes)
            yield count, price.epsilon(headline.delta)

    points = sorted(take_in_time(price_counts()))
    return SpendingCurve(
        rounds=tuple(count for count, _ in points),
        epsilons=tuple(epsilon for _, epsilon in points),
    )


def take_events(events: Sequence[Event], rounds: int) -> tuple[Event, ...]:
    """Returns the entries of a ledger up to a number of charges, later absences included.

    Args:
        events: The entries of the ledger.
        rounds: The number of charges.

    Example:
        >>> take_events([RoundCharged(round=t, clients=(0, 1)) for t in range(3)], 1)
        (RoundCharged(round=0, clients=(0, 1), attempt=0),)
    """
    charges = accumulate(isinstance(event, RoundCharged) for event in events)
    return tuple(event for event, count in zip(events, charges, strict=True) if count <= rounds)


def price_while_running(begun: Begun, folder: Path) -> Callable[[int], float]:
    """Returns a function that prices a run, in its headline's view, while it is under way.

    Rounds to come cost what was planned. A round that was charged more than once counts as often.
    Where clients fell silent, rounds count with those who contributed.

    Args:
        begun: The run that begins or continues.
        folder: The run's folder.

    Returns:
        A function from a number of rounds to the epsilon that they cost.
    """
    from sordino.federation.store.run_folder import RunFolder

    protocol = begun.protocol
    sizes = begun.sizes.tolist()
    path = folder / "ledger.jsonl"
    # The same numbers as the report will show.
    view, unit, delta = choose_headline(protocol)
    done = len(RunFolder(folder).metrics())
    events = read_ledger(path).events
    # With fresh noise, rounds after the one that the run continues with were charged in vain; that
    # one may have been charged again by now.
    in_vain: Counter[int] = Counter()
    if not first_entry(events, path).repeatable:
        for round_index, charges in count_charges(events).items():
            if round_index > done:
                in_vain[round_index] = charges

    def price_rounds(rounds: int) -> float:
        """Returns the epsilon of the first rounds of the run.

        Args:
            rounds: How many rounds.
        """
        paid = [
            event
            for event in read_ledger(path).events
            if isinstance(event, Opened) or event.round < rounds
        ]
        charges = count_charges(paid)
        # Every round of the plan counts at least once, even if its charge is still to come.
        planned = Counter({t: max(charges[t], in_vain[t] + 1) for t in range(rounds)}) | in_vain
        counted = [*planned.elements()]
        price = certify(protocol, view, unit, delta=delta, rounds=counted, sizes=sizes)
        epsilon = price.epsilon(delta)
        # Unless a client was missing, the plan is the worst case already.
        if not find_missing_clients(paid):
            return epsilon
        realised_price = certify_run(protocol, paid, view, unit, delta=delta, sizes=sizes)
        # A missing client may change the noise of a mean, so the larger of both prices holds.
        return max(epsilon, realised_price.epsilon(delta))

    return price_rounds


def count_charges(events: Sequence[Event]) -> Counter[int]:
    """Counts how often every round was charged.

    Args:
        events: The entries of a ledger.

    Example:
        >>> twice = [RoundCharged(round=0, clients=(1,), attempt=attempt) for attempt in (0, 1)]
        >>> count_charges(twice)
        Counter({0: 2})
    """
    return Counter(event.round for event in events if isinstance(event, RoundCharged))


def order_by_halving(rounds: int) -> list[int]:
    """Returns some numbers of rounds, the last and the first first, then such as halve the gaps.

    So the curve through those that there is time for spans the whole run.

    Args:
        rounds: The largest number.

    Example:
        >>> order_by_halving(5), order_by_halving(1000)[:5]
        ([5, 1, 3, 2, 4], [1000, 1, 500, 251, 750])
    """
    spread = np.linspace(1, rounds, min(rounds, PRICED_ROUNDS))
    counts = np.unique(spread.round().astype(int)).tolist()
    ordered = list(dict.fromkeys([counts[-1], counts[0]]))
    gaps = [(0, len(counts) - 1)]
    # Breadth first: each pass halves all gaps before any is halved again.
    while gaps:
        low, high = gaps.pop(0)
        middle = (low + high) // 2
        if low < middle < high:
            ordered.append(counts[middle])
            gaps += [(low, middle), (middle, high)]
    return ordered


@dataclass(frozen=True, kw_only=True)
class ClientSpending:
    """Holds what one client has spent, given which rounds it took part in.

    Attributes:
        client: Its number.
        records: How many it has.
        rounds: How often it took part.
        unit: The unit of privacy, "record" or "client".
        delta: Where epsilon is shown.
        epsilon: What was spent at most; None where there was no time to price it.
        budget: Its own budget, where it has one.
    """

    client: int
    records: int
    rounds: int
    unit: str
    delta: float
    epsilon: float | None
    budget: ClientBudget | None


def choose_client_view(run: Run, headline: Headline) -> View:
    """Returns the view in which clients are priced one by one.

    Args:
        run: What was trained.
        headline: What it is summed up in.

    Returns:
        The server where clients have personal budgets, which hold against it.
    """
    if run.protocol.client:
        # Personal budgets hold against the server.
        return View.SERVER
    return headline[0]


def price_clients(run: Run, headline: Headline) -> list[ClientSpending]:
    """Prices every client, by its personal budget where it has one.

    Args:
        run: What was trained.
        headline: What it is summed up in.

    Returns:
        One row per client, the most exposed first.
    """
    view = choose_client_view(run, headline)
    budgets = {budget.id: budget for budget in run.protocol.client}
    asked: dict[int, Headline] = {}
    # Each client is priced as its own budget asks, or as the headline does.
    for client in range(run.protocol.clients):
        asked[client] = Headline(view, headline[1], headline[2])
        if client in budgets:
            asked[client] = Headline(view, budgets[client].unit, budgets[client].delta)
    epsilons: dict[int, float] = {}
    # Clients with the same question are priced together, since they share most of the work.
    for question in dict.fromkeys(asked.values()):
        wanted = {client for client in asked if asked[client] == question}
        epsilons |= dict(take_in_time(price_wanted_clients(run, question, wanted)))
    past = collect_histories(run.protocol, run.ledger)
    rows = [
        ClientSpending(
            client=client,
            records=run.sizes[client],
            rounds=len(past[client]),
            unit=question.unit,
            delta=question.delta,
            epsilon=epsilons.get(client),
            budget=budgets.get(client),
        )
        for client, question in asked.items()
    ]
    return sorted(rows, key=_rank_exposure)


def _rank_exposure(row: ClientSpending) -> tuple[float, int, int]:
    """Returns the key that sorts the most exposed clients first, those without a price last."""
    epsilon = -math.inf
    if row.epsilon is not None:
        epsilon = row.epsilon
    return -epsilon, -row.rounds, row.client


def price_wanted_clients(
    run: Run, headline: Headline, wanted: set[int]
) -> Iterator[tuple[int, float]]:
    """Yields the epsilons of some clients, given which rounds they took part in.

    Args:
        run: What was trained.
        headline: The view, the unit and the delta.
        wanted: The clients.

    Yields:
        A client and its epsilon; those first that took part most often.
    """
    view, unit, delta = headline
    priced = certify_clients_in_turn(
        run.protocol, run.ledger, view, unit, delta=delta, sizes=run.sizes
    )
    for client, guarantee in priced:
        if client in wanted:
            yield client, guarantee.epsilon(delta)
