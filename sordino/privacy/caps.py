"""Clients with budgets of their own: how often each may take part, fixed before any data are touched.

A round's price depends on the protocol alone, and rates never grow from round to round, so any c rounds cost at most what the first c
cost. The largest c that a client's budget allows is its cap. It is a constant of the protocol, and who takes part is drawn without
looking at data, so nothing here is chosen adaptively and plain composition applies; a privacy filter (Rogers, Roth, Ullman and Vadhan
2016; Whitehouse, Ramdas, Rogers and Wu 2023) is needed only where prices depend on what was released.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

from sordino.privacy.certify import certify
from sordino.privacy.guarantee import Guarantee, notes_on
from sordino.protocol import ClientBudget, Everyone, NoisySgd, Protocol, View


@lru_cache(maxsize=256)
def capped_rounds(
    protocol: Protocol,
    budget: ClientBudget,
    records: int | None = None,
    repeated: tuple[int, ...] = (),
) -> int:
    """In how many rounds a client may take part at most, against the server; `records` is its number of records, where known.

    Example:
        >>> from sordino.protocol import Constant, FedAvg, Gaussian
        >>> local = FedAvg(steps=1, batch=1, clip=1.0, schedule=Constant(rate=0.5))
        >>> protocol = Protocol(clients=2, rounds=100, local=local, noise=Gaussian(sigma=1.0))
        >>> capped_rounds(protocol, ClientBudget(id=0, epsilon=8.0))
        2
    """

    def allowed(rounds: int) -> bool:
        return (
            own_guarantee(protocol, budget, [*range(rounds), *repeated], records).epsilon(
                budget.delta
            )
            <= budget.epsilon
        )

    return largest(allowed, protocol.rounds) + len(repeated)


def depends_on_records(protocol: Protocol, unit: str) -> bool:
    """Returns whether a client's own price depends on how many records it has.

    A record hides in batches the better the more records there are. All records of a client move an upload
    by the same distance however many there are, except where a batch may hold all of them.

    Example:
        >>> from sordino.protocol import Constant, FedAvg, Gaussian
        >>> local = FedAvg(steps=1, batch=1, clip=1.0, schedule=Constant(rate=0.5))
        >>> protocol = Protocol(clients=2, rounds=100, local=local, noise=Gaussian(sigma=1.0))
        >>> depends_on_records(protocol, "record"), depends_on_records(protocol, "client")
        (True, False)
    """
    poisson_batches = isinstance(protocol.local, NoisySgd) and protocol.local.sampling == "poisson"
    return unit == "record" or poisson_batches


def foreseen_cap(protocol: Protocol, budget: ClientBudget, records: int | None) -> int:
    """Returns the most rounds in which any run lets a client take part.

    Without its number of records the price of a round is not known but for an upper limit. A run that knows the
    records finds a smaller price, and so a larger cap: all rounds must count then.

    Args:
        protocol: what is run.
        budget: the client's own.
        records: its number of records, where known.

    Example:
        >>> from sordino.protocol import Constant, FedAvg, Gaussian
        >>> local = FedAvg(steps=1, batch=1, clip=1.0, schedule=Constant(rate=0.5))
        >>> protocol = Protocol(clients=2, rounds=100, local=local, noise=Gaussian(sigma=1.0))
        >>> foreseen_cap(protocol, ClientBudget(id=0, epsilon=8.0), None)
        100
    """
    if records is None and depends_on_records(protocol, budget.unit):
        return protocol.rounds
    return capped_rounds(protocol, budget, records)


def own_guarantee(
    protocol: Protocol, budget: ClientBudget, rounds: Sequence[int], records: int | None = None
) -> Guarantee:
    """What a server learns at most about one client that takes part in these rounds for certain, by the client's own noise alone.

    Example:
        >>> from sordino.protocol import Constant, FedAvg, Gaussian
        >>> local = FedAvg(steps=1, batch=1, clip=1.0, schedule=Constant(rate=0.5))
        >>> protocol = Protocol(clients=2, rounds=100, local=local, noise=Gaussian(sigma=1.0))
        >>> round(own_guarantee(protocol, ClientBudget(id=0, epsilon=8.0), [0, 1]).epsilon(1e-5), 2)
        6.57
    """
    from sordino.privacy.harmonizer import own_protocol

    certain = replace(own_protocol(protocol, budget, records), participation=Everyone())
    sizes = None if records is None else (records,) * protocol.clients
    found = certify(
        certain, View.SERVER, budget.unit, delta=budget.delta, rounds=rounds, sizes=sizes
    )
    return replace(found, notes=notes_on(protocol))


def all_caps(protocol: Protocol, sizes: Sequence[int] | None = None) -> dict[int, int]:
    """The cap of every client with a budget of its own; `sizes` are all clients' records, where known.

    Example:
        >>> from sordino.protocol import Constant, FedAvg, Gaussian
        >>> local = FedAvg(steps=1, batch=1, clip=1.0, schedule=Constant(rate=0.5))
        >>> own = (ClientBudget(id=1, epsilon=8.0),)
        >>> all_caps(Protocol(clients=2, rounds=100, local=local, noise=Gaussian(sigma=1.0), client=own))
        {1: 2}
    """
    return {
        own.id: capped_rounds(protocol, own, sizes[own.id] if sizes is not None else None)
        for own in protocol.client
    }


def largest(allowed: Callable[[int], bool], limit: int) -> int:
    """The largest number up to `limit` that is allowed, where all smaller ones are too; 0 if none is.

    Example:
        >>> largest(lambda number: number**2 <= 50, 100)
        7
    """
    if allowed(limit):
        return limit
    low, high = 0, limit
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if allowed(middle) else (low, middle)
    return low
