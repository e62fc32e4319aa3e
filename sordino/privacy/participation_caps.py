"""How often a client with a budget may take part, fixed before any data are touched.

A round's price depends on the protocol alone, and rates never grow from round to round, so any c
rounds cost at most what the first c cost (docs/theory.md#a36). The largest c that a client's budget
allows is its cap. It is a constant of the protocol, and participants are drawn without looking at
data, so nothing here is chosen adaptively and plain composition applies. A privacy filter (Rogers,
Roth, Ullman and Vadhan 2016; Whitehouse, Ramdas, Rogers and Wu 2023) is needed only where prices
depend on what was released.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

from sordino.privacy.bounds.question import pose_question
from sordino.privacy.bounds.shared_noise import certify_shared
from sordino.privacy.guarantee import Guarantee, notes_on
from sordino.privacy.own_noise import depends_on_records, own_protocol
from sordino.protocol import ClientBudget, Everyone, Protocol, View


@lru_cache(maxsize=256)
def find_capped_rounds(
    protocol: Protocol,
    budget: ClientBudget,
    records: int | None = None,
    repeated: tuple[int, ...] = (),
) -> int:
    """Returns in how many rounds a client may take part at most, against the server.

    Args:
        protocol: The federation that is priced.
        budget: The budget of the client.
        records: The number of records of the client, where known.
        repeated: The rounds that were charged twice.

    Example:
        >>> from sordino.protocol import Constant, FedAvg, Gaussian
        >>> local = FedAvg(steps=1, batch=1, clip=1.0, schedule=Constant(rate=0.5))
        >>> protocol = Protocol(clients=2, rounds=100, local=local, noise=Gaussian(sigma=1.0))
        >>> find_capped_rounds(protocol, ClientBudget(id=0, epsilon=8.0))
        2
    """

    def keeps_budget(rounds: int) -> bool:
        """Returns whether the first rounds of the plan fit the budget.

        Args:
            rounds: The number of first rounds.
        """
        # Rates never grow, so the first rounds are the most expensive and bound any others.
        taken = [*range(rounds), *repeated]
        guarantee = own_guarantee(protocol, budget, taken, records)
        return guarantee.epsilon(budget.delta) <= budget.epsilon

    return find_largest(keeps_budget, protocol.rounds) + len(repeated)


def foreseen_cap(protocol: Protocol, budget: ClientBudget, records: int | None) -> int:
    """Returns the most rounds in which any run lets a client take part.

    Without its number of records the price of a round is not known but for an upper limit. A run
    that knows the records finds a smaller price, and so a larger cap: all rounds must count then.

    Args:
        protocol: The federation that is priced.
        budget: The budget of the client.
        records: The number of records of the client, where known.

    Example:
        >>> from sordino.protocol import Constant, FedAvg, Gaussian
        >>> local = FedAvg(steps=1, batch=1, clip=1.0, schedule=Constant(rate=0.5))
        >>> protocol = Protocol(clients=2, rounds=100, local=local, noise=Gaussian(sigma=1.0))
        >>> foreseen_cap(protocol, ClientBudget(id=0, epsilon=8.0), None)
        100
    """
    # A cap from the upper limit would be too small for a run that knows more.
    if records is None and depends_on_records(protocol, budget.unit):
        return protocol.rounds
    return find_capped_rounds(protocol, budget, records)


def find_own_view(protocol: Protocol) -> View:
    """Returns the adversary that a client counts on when it enforces its own budget.

    Where sums are secure, others' noise hides a client too; but not that of clients that help the
    server, of whom there may be as many as the protocol says.

    Args:
        protocol: The federation that is priced.
    """
    secure_sum = protocol.release.secure_sum
    if secure_sum is None:
        return View.SERVER
    return View("server", secure_sum.colluders)


def own_guarantee(
    protocol: Protocol,
    budget: ClientBudget,
    rounds: Sequence[int],
    records: int | None = None,
) -> Guarantee:
    """Returns what a server learns at most about one client, by the client's own noise alone.

    Where sums are secure, the noise of the fewest honest clients in a sum is counted.

    Args:
        protocol: The federation that is priced.
        budget: The budget of the client.
        rounds: The rounds in which the client takes part for certain.
        records: The number of records of the client, where known.

    Example:
        >>> from sordino.protocol import Constant, FedAvg, Gaussian
        >>> local = FedAvg(steps=1, batch=1, clip=1.0, schedule=Constant(rate=0.5))
        >>> protocol = Protocol(clients=2, rounds=100, local=local, noise=Gaussian(sigma=1.0))
        >>> guarantee = own_guarantee(protocol, ClientBudget(id=0, epsilon=8.0), [0, 1])
        >>> round(guarantee.epsilon(1e-5), 2)
        6.57
    """
    # The cap counts rounds in which the client takes part; a draw must not be counted twice.
    certain = replace(own_protocol(protocol, budget, records), participation=Everyone())
    sizes = None if records is None else (records,) * protocol.clients
    question = pose_question(certain, find_own_view(protocol), budget.unit, rounds, sizes)
    found = certify_shared(question, budget.delta)
    return replace(found, notes=notes_on(protocol))


def all_caps(protocol: Protocol, sizes: Sequence[int] | None = None) -> dict[int, int]:
    """Returns the cap of every client that has a budget.

    Args:
        protocol: The federation that is priced.
        sizes: The number of records of every client, where known.

    Example:
        >>> from sordino.protocol import Constant, FedAvg, Gaussian
        >>> local = FedAvg(steps=1, batch=1, clip=1.0, schedule=Constant(rate=0.5))
        >>> own = (ClientBudget(id=1, epsilon=8.0),)
        >>> noise = Gaussian(sigma=1.0)
        >>> all_caps(Protocol(clients=2, rounds=100, local=local, noise=noise, client=own))
        {1: 2}
    """
    caps = {}
    for budget in protocol.client:
        records = None if sizes is None else sizes[budget.id]
        caps[budget.id] = find_capped_rounds(protocol, budget, records)
    return caps


def find_largest(allowed: Callable[[int], bool], limit: int) -> int:
    """Returns the largest number that is allowed, or 0 if none is.

    Args:
        allowed: Tells whether a number is allowed; if it is, all smaller ones are, too.
        limit: The largest number that is tried.

    Example:
        >>> find_largest(lambda number: number**2 <= 50, 100)
        7
    """
    # Most budgets allow the whole plan, which one price shows.
    if allowed(limit):
        return limit
    low = 0
    high = limit
    while high - low > 1:
        middle = (low + high) // 2
        if allowed(middle):
            low = middle
        else:
            high = middle
    return low
