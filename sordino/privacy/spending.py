"""What a run has spent, what a budget affords, and the bounds given who really took part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from sordino.privacy.amplification.personal_state import carries_noiseless_state
from sordino.privacy.bounds.best_bound import choose_guarantee, epsilon_at
from sordino.privacy.bounds.joined_steps import adds_up
from sordino.privacy.bounds.priced_view import find_priced_view
from sordino.privacy.bounds.providers import find_bounds
from sordino.privacy.bounds.question import (
    AttackedClients,
    check_rounds,
    has_own_noise,
    pose_question,
)
from sordino.privacy.bounds.unequal_clients import count_equals_by_round, find_kind_of_each
from sordino.privacy.certify import certify
from sordino.privacy.guarantee import Guarantee, format_delta, notes_on, round_up
from sordino.privacy.ledger_lines import Event, Missed, Opened, RoundCharged
from sordino.privacy.own_noise import own_protocol
from sordino.privacy.participation_caps import find_largest
from sordino.protocol import (
    Budget,
    ClientBudget,
    Protocol,
    SordinoError,
    UserError,
    View,
)
from sordino.protocol.arithmetic import draw_alike


class BudgetExceeded(SordinoError):
    """The next round would pass the budget; nothing past it was released.

    Example:
        >>> BudgetExceeded("the budget is spent").exit_code
        3
    """

    exit_code = 3


@dataclass(frozen=True, kw_only=True)
class Afforded:
    """How far a budget goes.

    Attributes:
        budget: The budget.
        rounds: The number of rounds of the plan that fit the budget.
        spent: The epsilon of those rounds.
        next: The epsilon of one round more; None where the whole plan fits.
    """

    budget: Budget
    rounds: int
    spent: float
    next: float | None

    @property
    def message(self) -> str:
        """The message that is shown when the budget ends a run."""
        budget = self.budget
        left = max(0.0, budget.epsilon - self.spent)
        target = (
            f"epsilon = {budget.epsilon:g} at delta = {format_delta(budget.delta)}, "
            f"view {budget.view}, unit {budget.unit}"
        )
        cost = f"spent epsilon = {round_up(self.spent)}"
        if self.next is not None:
            cost += f"; after round {self.rounds + 1} it would be {round_up(self.next)}"
        return (
            f"the budget ({target}) ends the run after {self.rounds} rounds: {cost}. "
            f"Left: {left:.3g}. Raise the budget, the noise (`sordino calibrate`) or the number of "
            "clients."
        )


def find_repeated_rounds(events: Sequence[Event], next_round: int) -> list[int]:
    """Returns the rounds that were paid for in vain, and with fresh noise are charged again.

    Args:
        events: The entries of the ledger.
        next_round: The round that the run continues with. Rounds from there on that were charged
            before an interruption will be run again.

    Example:
        >>> opened = Opened(protocol="9f2c", generator="chacha20", noise="fresh")
        >>> charges = [RoundCharged(round=0, clients=(1,)), RoundCharged(round=1, clients=(1,))]
        >>> find_repeated_rounds([opened, *charges], next_round=1)
        [1]
    """
    # Fresh noise on the same data is a second release, and is paid for as one.
    charged_again = any(isinstance(event, Opened) and not event.repeatable for event in events)
    found = []
    for event in events:
        if not isinstance(event, RoundCharged):
            continue
        if event.attempt > 0 or (charged_again and event.round >= next_round):
            found.append(event.round)
    return found


def find_affordable_rounds(
    protocol: Protocol,
    budget: Budget,
    *,
    repeated: Sequence[int] = (),
    sizes: Sequence[int] | None = None,
) -> Afforded:
    """Returns how many rounds of the plan fit into a budget.

    Args:
        protocol: The plan.
        budget: The budget.
        repeated: Rounds that were charged twice, on top of the plan.
        sizes: The number of records of every client, where known.

    Example:
        >>> from sordino.protocol import Constant, FedAvg, Gaussian
        >>> local = FedAvg(steps=1, batch=1, clip=1.0, schedule=Constant(rate=0.5))
        >>> protocol = Protocol(clients=2, rounds=100, local=local, noise=Gaussian(sigma=1.0))
        >>> find_affordable_rounds(protocol, Budget(epsilon=8.0)).rounds
        2
    """

    def find_epsilon(rounds: int) -> float:
        """Returns the epsilon of the first rounds, and of those charged twice.

        Args:
            rounds: The number of first rounds.
        """
        plan = [*range(rounds), *repeated]
        guarantee = certify(
            protocol, budget.view, budget.unit, delta=budget.delta, rounds=plan, sizes=sizes
        )
        return guarantee.epsilon(budget.delta)

    # By halving, though in the view `final` more rounds may cost less: a number that fits is
    # found in any case, only not always the largest.
    rounds = find_largest(lambda count: find_epsilon(count) <= budget.epsilon, protocol.rounds)
    further = None
    if rounds < protocol.rounds:
        further = find_epsilon(rounds + 1)
    return Afforded(
        budget=budget,
        rounds=rounds,
        spent=find_epsilon(rounds),
        next=further,
    )


def certify_clients(
    protocol: Protocol,
    events: Iterable[Event],
    view: str | View = View.SERVER,
    unit: str = "record",
    *,
    delta: float = 1e-5,
    sizes: Sequence[int] | None = None,
) -> dict[int, Guarantee]:
    """Returns the bound of every client, given who took part in which round.

    The draw of clients is known then, and amplifies nothing. A client that fell silent hid nobody:
    a round counts with the number of those who contributed.

    Args:
        protocol: The protocol that was run.
        events: The entries of the ledger.
        view: The adversary.
        unit: The hidden unit, "record" or "client".
        delta: The delta at which bounds are compared by their epsilon.
        sizes: The number of records of every client, where known.

    Returns:
        A guarantee for each client, by its number.

    Example:
        >>> certify_clients(protocol, run.ledger)[0].epsilon(1e-5)  # doctest: +SKIP
        2.1
    """
    bounds = certify_clients_in_turn(protocol, events, view, unit, delta=delta, sizes=sizes)
    return dict(sorted(bounds))


# The name that the package exports (`sordino.realised`), which users' code relies on.
realised = certify_clients


def certify_clients_in_turn(
    protocol: Protocol,
    events: Iterable[Event],
    view: str | View = View.SERVER,
    unit: str = "record",
    *,
    delta: float = 1e-5,
    sizes: Sequence[int] | None = None,
) -> Iterator[tuple[int, Guarantee]]:
    """Yields the realised bounds one client at a time, beginning with the most frequent ones.

    The caller may stop early where pricing all clients would take long.

    Args:
        protocol: The protocol that was run.
        events: The entries of the ledger.
        view: The adversary.
        unit: The hidden unit, "record" or "client".
        delta: The delta at which bounds are compared by their epsilon.
        sizes: The number of records of every client, where known.

    Example:
        >>> next(certify_clients_in_turn(protocol, run.ledger))[1].epsilon(1e-5)  # doctest: +SKIP
        2.1
    """
    known = list(events)
    past = collect_histories(protocol, known)
    # The client with the largest bound is most likely among the first.
    order = sorted(past, key=lambda client: -len(past[client]))
    if has_own_noise(protocol):
        own = {budget.id: budget for budget in protocol.client}
        for client in order:
            guarantee = certify_own_noise(
                protocol, own[client], past[client], View.parse(view), unit, delta, sizes
            )
            yield client, guarantee
        return
    # Budgets have done their part: the ledger shows who took part after all.
    certain = draw_alike(replace(protocol, client=()), protocol)
    question = pose_question(certain, view, unit, (), sizes)
    kinds = find_kind_of_each(question)
    # Under a draw of clients it does not matter who was absent, and most are in most rounds.
    drawn = protocol.participation.draws
    absent = {} if drawn else find_absent_clients(known, protocol.clients)
    count_present = count_equals_by_round(question, absent)
    found: dict[tuple[AttackedClients | None, History], Guarantee] = {}
    for client in order:
        history = past[client]
        if not ran_as_planned(certain, history):
            history = tuple(
                (round_index, count_present(client, round_index, number))
                for round_index, number in history
            )
        key = (kinds[client], find_price_key(protocol, history))
        # Thousands of clients have few different histories, and a price may take seconds.
        if key not in found:
            planned = ran_as_planned(certain, past[client])
            one = replace(
                question,
                rounds=check_rounds([round_index for round_index, _ in history]),
                present=None if planned else tuple(number for _, number in history),
                attacked=kinds[client],
            )
            found[key] = choose_guarantee(one, find_bounds(one), epsilon_at(delta))
        yield client, found[key]


# Of a client: the rounds that it took part in, each with the number of those who contributed.
History = tuple[tuple[int, float], ...]


def collect_histories(protocol: Protocol, events: Iterable[Event]) -> dict[int, History]:
    """Returns the history of every client, as the ledger says.

    A client that fell silent hid nobody, and is charged all the same.

    Args:
        protocol: The protocol that was run.
        events: The entries of the ledger.

    Raises:
        UserError: The ledger names a client that the federation does not have.

    Example:
        >>> from sordino.protocol import Constant, FedAvg, Gaussian
        >>> local = FedAvg(steps=1, batch=1, clip=1.0, schedule=Constant(rate=0.5))
        >>> protocol = Protocol(clients=2, rounds=9, local=local, noise=Gaussian(sigma=1.0))
        >>> charges = [RoundCharged(round=0, clients=(1,)), RoundCharged(round=4, clients=(0, 1))]
        >>> collect_histories(protocol, charges)
        {0: ((4, 2),), 1: ((0, 1), (4, 2))}
    """
    known = list(events)
    found: dict[int, list[tuple[int, int]]] = {client: [] for client in range(protocol.clients)}
    missing = find_missing_clients(known)
    for event in known:
        if not isinstance(event, RoundCharged):
            continue
        if max(event.clients, default=0) >= protocol.clients:
            raise UserError(
                f"the ledger names client {max(event.clients)}, and the federation has "
                f"{protocol.clients}."
            )
        # Where all fell silent, every client counts as alone: nobody else hides it.
        present = max(1, len(set(event.clients) - missing.get(event.round, set())))
        for client in event.clients:
            found[client].append((event.round, present))
    return {client: tuple(history) for client, history in found.items()}


def find_missing_clients(events: Iterable[Event]) -> dict[int, set[int]]:
    """Returns the clients that contributed nothing to a round that they were charged for, by round.

    A round that was run again counts with all that were ever missing from it: the model of the
    first time may have been seen.

    Args:
        events: The entries of the ledger.

    Example:
        >>> missed = Missed(round=2, clients=(0, 4), reasons=("it is not connected",) * 2)
        >>> find_missing_clients([missed])
        {2: {0, 4}}
    """
    found: dict[int, set[int]] = {}
    for event in events:
        if isinstance(event, Missed):
            found.setdefault(event.round, set()).update(event.clients)
    return found


def find_absent_clients(events: Sequence[Event], clients: int) -> dict[int, set[int]]:
    """Returns the clients that contributed nothing to a round: not asked, or fallen silent.

    Args:
        events: The entries of the ledger.
        clients: The number of clients of the federation.

    Example:
        >>> charge = RoundCharged(round=2, clients=(0, 4))
        >>> missed = Missed(round=2, clients=(4,), reasons=("it is not connected",))
        >>> find_absent_clients([charge, missed], 5)
        {2: {1, 2, 3, 4}}
    """
    found = {index: set(silent) for index, silent in find_missing_clients(events).items()}
    for event in events:
        # A client whose budget is spent is not asked any more.
        if isinstance(event, RoundCharged) and len(event.clients) < clients:
            absent = set(range(clients)) - set(event.clients)
            found.setdefault(event.round, set()).update(absent)
    return found


def certify_run(
    protocol: Protocol,
    events: Sequence[Event],
    view: str | View = View.SERVER,
    unit: str = "record",
    *,
    delta: float = 1e-5,
    sizes: Sequence[int] | None = None,
) -> Guarantee:
    """Returns the guarantee of a run, for the rounds that its ledger says were paid for.

    It is the plan's bound, unless clients fell silent and the adversary sees means: those hid less
    than planned, and the worst client's realised bound counts. That a client fell silent is seen by
    all, and is covered by no bound.

    Args:
        protocol: The protocol that was run.
        events: The entries of the ledger.
        view: The adversary.
        unit: The hidden unit, "record" or "client".
        delta: The delta at which bounds are compared by their epsilon.
        sizes: The number of records of every client, where known.

    Example:
        >>> certify_run(protocol, run.ledger, "rounds").epsilon(1e-5)  # doctest: +SKIP
        2.1
    """
    paid = [event.round for event in events if isinstance(event, RoundCharged)]
    question = pose_question(protocol, view, unit, paid, sizes)
    release = protocol.release
    # Where a client's own noise by itself hides it, it does not matter who else contributed.
    alone = find_priced_view(question).view.is_server and not release.shuffled
    alone = alone or has_own_noise(protocol) or (release.in_steps and not adds_up(protocol))
    if alone or not find_missing_clients(events):
        return certify(protocol, view, unit, delta=delta, rounds=paid, sizes=sizes)
    bounds = certify_clients(protocol, events, view, unit, delta=delta, sizes=sizes).values()
    # A promise holds for every client, so the worst one counts.
    worst = max(bounds, key=lambda guarantee: guarantee.epsilon(delta))
    line = "Clients fell silent: each round is priced with the clients that contributed to it."
    return replace(worst, derivation=(*worst.derivation, line))


def certify_own_noise(
    protocol: Protocol,
    budget: ClientBudget,
    history: History,
    view: View,
    unit: str,
    delta: float,
    sizes: Sequence[int] | None,
) -> Guarantee:
    """Returns the realised bound of a client with its own noise.

    It holds against the server, and so against everybody.

    Args:
        protocol: The protocol that was run.
        budget: The budget of the client.
        history: The rounds that the client took part in.
        view: The adversary.
        unit: The hidden unit, "record" or "client".
        delta: The delta at which bounds are compared by their epsilon.
        sizes: The number of records of every client, where known.
    """
    records = None
    known = None
    if sizes is not None:
        # A federation of clients like this one, since bounds count the records of all.
        records = sizes[budget.id]
        known = [records] * protocol.clients
    alone = own_protocol(protocol, budget, records)
    found = certify_history(alone, history, View.SERVER, unit, delta, known)
    return replace(found, view=view, notes=notes_on(protocol))


def find_price_key(protocol: Protocol, history: History) -> History:
    """Returns a key of a history; histories that cost the same have the same key.

    Args:
        protocol: The protocol that was run.
        history: The history of a client.
    """
    if adds_up(protocol):
        # The rates of steps do not matter, the number of those whose noise adds up does
        # (docs/theory.md#a16).
        return tuple(sorted((0, present) for _, present in history))
    if protocol.release.in_steps:
        # Every round of noisy steps costs the same, with any other participants.
        return ((0, 0),) * len(history)
    if protocol.local.schedule.repeats and not carries_noiseless_state(protocol):
        return tuple(sorted((0, honest) for _, honest in history))
    return tuple(sorted(history))


def ran_as_planned(protocol: Protocol, history: History) -> bool:
    """Returns whether nothing was drawn and nobody was missing in the rounds of a client.

    Args:
        protocol: The protocol that was run.
        history: The rounds that the client took part in, each with the number of contributors.
    """
    if not history:
        return True
    secure_sum = protocol.release.secure_sum
    # Else more contributed than was counted on before the run.
    counted_on = secure_sum is None or secure_sum.threshold == protocol.clients
    everyone_came = all(number == protocol.clients for _, number in history)
    return everyone_came and counted_on and not protocol.participation.draws


def certify_history(
    protocol: Protocol,
    history: History,
    view: str | View,
    unit: str,
    delta: float,
    sizes: Sequence[int] | None,
) -> Guarantee:
    """Returns the bound of one client that took part in these rounds, among clients like itself.

    Args:
        protocol: The protocol that was run.
        history: The rounds that the client took part in, each with the number of contributors.
        view: The adversary.
        unit: The hidden unit, "record" or "client".
        delta: The delta at which bounds are compared by their epsilon.
        sizes: The number of records of every client, where known.
    """
    rounds = [round_index for round_index, _ in history]
    present = None
    if not ran_as_planned(protocol, history):
        present = [number for _, number in history]
    question = pose_question(protocol, view, unit, rounds, sizes, present)
    return choose_guarantee(question, find_bounds(question), epsilon_at(delta))
