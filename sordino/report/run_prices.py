"""Prices a run by what its ledger charged. Prices are cached, since a page asks for them often."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from sordino.privacy.bounds.joined_steps import adds_up
from sordino.privacy.guarantee import Guarantee
from sordino.privacy.ledger_lines import Event
from sordino.privacy.spending import (
    certify_clients,
    certify_clients_in_turn,
    certify_run,
    collect_histories,
)
from sordino.protocol import ClientBudget, Protocol, View, all_views

if TYPE_CHECKING:
    from sordino.federation.store.run import Run

T = TypeVar("T")

# Seconds of processor time for a part of a report that can do with fewer numbers: pricing some
# mixtures of unequal rounds takes minutes.
PATIENCE = 1.0
# Views whose epsilons differ by less than this factor share one curve in a picture.
SAME_CURVE = 1.02


class Headline(NamedTuple):
    """Names the question that a run is summed up by.

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
        # Without a budget, the adversary is the one that sees the most of every client.
        return Headline(View.SERVER, "record", 1e-5)
    return Headline(View.parse(budget.view), budget.unit, budget.delta)


def choose_run_headline(run: Run) -> Headline:
    """Returns what a run is summed up in.

    Args:
        run: What was trained.

    Returns:
        As for its protocol; but the last model of a diverged run counts as one of all models.
    """
    return choose_headline_after(run.protocol, run.status)


def choose_headline_after(protocol: Protocol, status: str) -> Headline:
    """Returns what a run is summed up in, by how it ended.

    Args:
        protocol: The run's protocol.
        status: The status of the run.
    """
    headline = choose_headline(protocol)
    # When a run diverges depends on its data, so nothing is promised about its last model alone.
    if headline.view == View.FINAL and status == "diverged":
        return headline._replace(view=View.ROUNDS)
    return headline


def list_views(run: Run) -> tuple[View, ...]:
    """Lists the views that a run is shown in.

    Args:
        run: What was trained.

    Returns:
        All views; without "final" if the run diverged.
    """
    views = all_views(run.protocol.clients, run.protocol.channel.colluders)
    if run.status != "diverged":
        return views
    # As in `choose_headline_after`.
    return tuple(view for view in views if view != View.FINAL)


def list_views_with(run: Run, main: View) -> tuple[View, ...]:
    """Lists the views that a run is shown in, with one that must be among them.

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
    return run.noted(price_events(run.protocol, headline, tuple(run.ledger), run.sizes))


# A page asks for the same price dozens of times, and some take seconds.
@lru_cache(maxsize=64)
def price_events(
    protocol: Protocol,
    headline: Headline,
    events: tuple[Event, ...],
    sizes: tuple[int, ...],
) -> Guarantee:
    """Returns the bound of rounds that a ledger charged.

    Args:
        protocol: The run's protocol.
        headline: View, unit and delta.
        events: Charges and absences.
        sizes: Number of records of every client.
    """
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
        return certify_clients(run.protocol, run.ledger, view, unit, delta=delta, sizes=run.sizes)

    if run.protocol.release.in_steps and not adds_up(run.protocol):
        # Everything that leaves a client is made of its noisy sums, so one bound serves all views.
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
        values: Values that each take some time to compute.
        seconds: The processor time, in seconds, after which no further value is taken.
    """
    # Processor time and not wall-clock time, so that a busy machine gets the same page.
    end = time.thread_time() + seconds
    taken = []
    for value in values:
        taken.append(value)
        if time.thread_time() > end:
            break
    return taken


@dataclass(frozen=True, kw_only=True)
class ClientSpending:
    """Holds what one client has spent, given which rounds it took part in.

    Attributes:
        client: The number of the client.
        records: The number of its records.
        rounds: The number of rounds that it took part in.
        unit: The unit of privacy, "record" or "client".
        delta: Where epsilon is shown.
        epsilon: The epsilon spent, at most; None where there was no time to price it.
        budget: The client's own budget; None where it has none.
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
        The server's view where clients have budgets of their own, which hold in that view;
        otherwise the headline's.
    """
    if run.protocol.client:
        return View.SERVER
    return headline.view


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
        asked[client] = headline._replace(view=view)
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
        A client and its epsilon; clients that took part most often come first.
    """
    view, unit, delta = headline
    priced = certify_clients_in_turn(
        run.protocol, run.ledger, view, unit, delta=delta, sizes=run.sizes
    )
    for client, guarantee in priced:
        if client in wanted:
            yield client, guarantee.epsilon(delta)
