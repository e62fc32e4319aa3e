"""What a run has spent after each of its rounds, as far as it can be priced in time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sordino.privacy.certify import certify
from sordino.privacy.ledger import first_entry, read_ledger
from sordino.privacy.ledger_lines import Event, Opened, RoundCharged
from sordino.privacy.spending import certify_run, find_missing_clients
from sordino.report.run_prices import Headline, choose_headline, price_events, take_in_time

if TYPE_CHECKING:
    from sordino.federation.setup import Begun
    from sordino.federation.store.run import Run

# The largest number of points of a curve of spending. Each needs a price.
PRICED_ROUNDS = 13


@dataclass(frozen=True, kw_only=True)
class SpendingCurve:
    """Holds what had been spent after some of the rounds that were charged.

    Attributes:
        rounds: Numbers of charged rounds, in ascending order.
        epsilons: The epsilon spent after each of these numbers of rounds, at most.
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
        # If time runs out, the curve still spans the whole run.
        for count in order_by_halving(charged):
            events = take_events(run.ledger, count)
            price = price_events(run.protocol, headline, events, run.sizes)
            yield count, price.epsilon(headline.delta)

    points = sorted(take_in_time(price_counts()))
    return SpendingCurve(
        rounds=tuple(count for count, _ in points),
        epsilons=tuple(epsilon for _, epsilon in points),
    )


def take_events(events: Sequence[Event], rounds: int) -> tuple[Event, ...]:
    """Returns the entries of a ledger before the next charge after a number of charges.

    Args:
        events: The entries of the ledger.
        rounds: The number of charges; absences after the last of them are included.

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
        # If no client was missing, the plan is the worst case already.
        if not find_missing_clients(paid):
            return epsilon
        realised_price = certify_run(protocol, paid, view, unit, delta=delta, sizes=sizes)
        # Without a client, a mean may have less noise than planned.
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
    """Returns some numbers of rounds: the largest, the smallest, then those that halve the gaps.

    A curve through the first few of them spans the whole run, however few there is time for.

    Args:
        rounds: The largest number of rounds.

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
