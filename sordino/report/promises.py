"""What a run promises, by what its ledger says was paid for: each price is found once, whoever asks."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from sordino.privacy.certify import certify
from sordino.privacy.guarantee import Guarantee
from sordino.privacy.ledger import Event, Opened, RoundCharged, first_entry
from sordino.privacy.ledger import read as read_ledger
from sordino.privacy.spending import histories, missed_in, realised_one_by_one
from sordino.privacy.spending import promised as promised_by
from sordino.protocol import ClientBudget, Protocol, View, all_views

if TYPE_CHECKING:
    from sordino.federation.run import Run
    from sordino.federation.setup import Begun

T = TypeVar("T")

PATIENCE = 1.0  # seconds of work for a part of a report that can do with fewer numbers; some mixtures of unequal rounds take minutes
PRICED = 13  # rounds after which what was spent is worked out


Asked = tuple[View, str, float]  # a view, a unit and a delta


def headline(protocol: Protocol) -> Asked:
    """The view, unit and delta that a run is summed up in: the budget's, or else the server's, one record, 1e-5."""
    budget = protocol.privacy.budget
    return (
        (View.parse(budget.view), budget.unit, budget.delta)
        if budget is not None
        else (View.SERVER, "record", 1e-5)
    )


def headline_of(run: Run) -> Asked:
    """The same for a run: of one that diverged, the last model alone promises nothing."""
    view, unit, delta = headline(run.protocol)
    return (View.ROUNDS if view == View.FINAL and run.status == "diverged" else view), unit, delta


def views_of(run: Run) -> tuple[View, ...]:
    """The views that a run is shown in. When a diverged one stopped depends on the data, so its last model counts as one of all."""
    return tuple(
        view
        for view in all_views(run.protocol.clients)
        if run.status != "diverged" or view != View.FINAL
    )


def views_with(run: Run, main: View) -> tuple[View, ...]:
    """The same, and the main one if it is none of them, such as coalition:3."""
    views = views_of(run)
    return views if main in views else (main, *views)


def promised(run: Run, asked: Asked) -> Guarantee:
    """The bound of a run in one view.

    Example:
        >>> promised(run, (View.ROUNDS, "record", 1e-5)).epsilon(1e-5)  # doctest: +SKIP
        7.93
    """
    view, unit, delta = asked
    return run.noted(_priced(run.protocol, view, unit, delta, tuple(run.ledger), run.sizes))


@lru_cache(maxsize=64)
def _priced(
    protocol: Protocol,
    view: View,
    unit: str,
    delta: float,
    events: tuple[Event, ...],
    sizes: tuple[int, ...],
) -> Guarantee:
    return promised_by(protocol, events, view, unit, delta=delta, sizes=sizes)


def grouped(guarantees: Sequence[Guarantee], delta: float) -> dict[str, Guarantee]:
    """One curve for views that cannot be told apart in a picture, under a joint name; the largest of them is drawn."""
    found: list[list[Guarantee]] = []
    for guarantee in sorted(guarantees, key=lambda one: one.epsilon(delta)):
        if found and guarantee.epsilon(delta) <= 1.02 * found[-1][0].epsilon(delta):
            found[-1].append(guarantee)
        else:
            found.append([guarantee])
    return {", ".join(str(one.view) for one in group): group[-1] for group in found}


def in_time(values: Iterator[T], seconds: float = PATIENCE) -> list[T]:
    """What comes until the time is up, and at least one."""
    until, found = time.thread_time() + seconds, []
    for value in values:
        found.append(value)
        if (
            time.thread_time() > until
        ):  # not the clock on the wall: a busy machine gets the same page
            break
    return found


@dataclass(frozen=True, kw_only=True)
class Spent:
    """What had been spent after some of the rounds that were paid for, in order."""

    rounds: tuple[int, ...]
    epsilons: tuple[float, ...]


def spending(run: Run, asked: Asked) -> Spent:
    """Epsilon against the rounds paid for: at the end, and at as many rounds before as there is time for."""
    view, unit, delta = asked
    paid = len(run.rounds_paid)

    def priced() -> Iterator[tuple[int, float]]:
        for count in halved(paid):
            yield (
                count,
                _priced(
                    run.protocol, view, unit, delta, until(run.ledger, count), run.sizes
                ).epsilon(delta),
            )

    found = sorted(in_time(priced())) if paid > 0 else []
    return Spent(
        rounds=tuple(count for count, _ in found), epsilons=tuple(epsilon for _, epsilon in found)
    )


def until(events: Sequence[Event], rounds: int) -> tuple[Event, ...]:
    """The entries of a ledger until so many rounds had been paid for, and who was missing from them.

    Example:
        >>> until([RoundCharged(round=t, clients=(0, 1)) for t in range(3)], 1)
        (RoundCharged(round=0, clients=(0, 1), attempt=0),)
    """
    paid = accumulate(isinstance(event, RoundCharged) for event in events)
    return tuple(event for event, count in zip(events, paid, strict=True) if count <= rounds)


def running_price(begun: Begun, folder: Path) -> Callable[[int], float]:
    """What so many rounds of a run cost that begins or goes on now, in the headline's view: a function to be asked while it runs.

    Rounds that are to come cost what was planned, and rounds that were paid for more than once count as often. Where clients fell
    silent, rounds count with those who contributed.
    """
    from sordino.federation.folder import RunFolder

    protocol, sizes, path = begun.protocol, begun.sizes.tolist(), folder / "ledger.jsonl"
    view, unit, delta = headline(protocol)
    done, events = len(RunFolder(folder).metrics()), read_ledger(path).events
    fresh = not first_entry(events, path).repeatable
    # Rounds after the one that the run goes on with were paid for in vain; that one may have been paid for again by now.
    in_vain = Counter(
        {round: often for round, often in times_paid(events).items() if fresh and round > done}
    )

    def price(rounds: int) -> float:
        paid = [
            event
            for event in read_ledger(path).events
            if isinstance(event, Opened) or event.round < rounds
        ]
        often = times_paid(paid)
        plan = [
            *(
                Counter({round: max(often[round], in_vain[round] + 1) for round in range(rounds)})
                | in_vain
            ).elements()
        ]
        planned = certify(protocol, view, unit, delta=delta, rounds=plan, sizes=sizes).epsilon(
            delta
        )
        if not missed_in(paid):
            return planned
        return max(
            planned,
            promised_by(protocol, paid, view, unit, delta=delta, sizes=sizes).epsilon(delta),
        )

    return price


def times_paid(events: Sequence[Event]) -> Counter[int]:
    """How often every round was paid for.

    Example:
        >>> times_paid([RoundCharged(round=0, clients=(1,)), RoundCharged(round=0, clients=(1,), attempt=1)])
        Counter({0: 2})
    """
    return Counter(event.round for event in events if isinstance(event, RoundCharged))


def halved(rounds: int) -> list[int]:
    """Some numbers of rounds from 1 to all, the last first, then such as halve what is between.

    Example:
        >>> halved(5), halved(1000)[:5]
        ([5, 1, 3, 2, 4], [1000, 1, 500, 251, 750])
    """
    counts = np.unique(np.linspace(1, rounds, min(rounds, PRICED)).round().astype(int)).tolist()
    found = [counts[-1]] if len(counts) == 1 else [counts[-1], counts[0]]
    gaps = [(0, len(counts) - 1)]
    while gaps:
        low, high = gaps.pop(0)
        middle = (low + high) // 2
        if low < middle < high:
            found.append(counts[middle])
            gaps += [(low, middle), (middle, high)]
    return found


@dataclass(frozen=True, kw_only=True)
class ClientSpent:
    """What one client has spent, given who took part: `epsilon` at `delta` about `unit` in a view; None where there was no time for it."""

    client: int
    records: int
    rounds: int
    unit: str
    delta: float
    epsilon: float | None
    budget: ClientBudget | None


def client_view(run: Run, asked: Asked) -> View:
    """Who clients are priced against one by one: the server where they have budgets of their own, which hold against it."""
    return View.SERVER if run.protocol.client else asked[0]


def client_spending(run: Run, asked: Asked) -> list[ClientSpent]:
    """Every client and what it has spent, of its own budget where it has one; the most exposed first."""
    view, (_, unit, delta) = client_view(run, asked), asked
    own = {budget.id: budget for budget in run.protocol.client}
    kinds = {
        client: (own[client].unit, own[client].delta) if client in own else (unit, delta)
        for client in range(run.protocol.clients)
    }
    found: dict[int, float] = {}
    for kind in dict.fromkeys(kinds.values()):
        found |= dict(
            in_time(
                priced_clients(
                    run,
                    (view, *kind),
                    {client for client, wanted in kinds.items() if wanted == kind},
                )
            )
        )
    past = histories(run.protocol, run.ledger)
    rows = [
        ClientSpent(
            client=client,
            records=run.sizes[client],
            rounds=len(past[client]),
            unit=kinds[client][0],
            delta=kinds[client][1],
            epsilon=found.get(client),
            budget=own.get(client),
        )
        for client in range(run.protocol.clients)
    ]
    return sorted(
        rows,
        key=lambda row: (
            -(row.epsilon if row.epsilon is not None else -math.inf),
            -row.rounds,
            row.client,
        ),
    )


def priced_clients(run: Run, asked: Asked, wanted: set[int]) -> Iterator[tuple[int, float]]:
    """The epsilons of some clients, given who took part, those first that took part most often."""
    view, unit, delta = asked
    for client, guarantee in realised_one_by_one(
        run.protocol, run.ledger, view, unit, delta=delta, sizes=run.sizes
    ):
        if client in wanted:
            yield client, guarantee.epsilon(delta)
