"""What a federation is: frozen values, priced, run, attacked and printed as one `Protocol`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

from sordino.protocol.aggregation_kinds import Aggregation, Mean
from sordino.protocol.channel_kinds import CHANNEL, Channel, Direct
from sordino.protocol.combinations import refuse_incompatible
from sordino.protocol.data_entries import Data, Model, require_dimension
from sordino.protocol.entries import Many, Named, Table, Tagged, Value, entry
from sordino.protocol.errors import InvalidValue, UserError
from sordino.protocol.grids import Grid, choose_grid
from sordino.protocol.noise_kinds import Mechanisms, Noise, OwnMechanism
from sordino.protocol.participation_kinds import Everyone, Participation
from sordino.protocol.personalization import NoPersonalization, Personalization
from sordino.protocol.release import Release, release_of
from sordino.protocol.rule_kinds import LocalRule
from sordino.protocol.server_kinds import PlainServer, ServerOptimizer
from sordino.protocol.value_checks import Choice, Flag, Integer, Maybe, Number
from sordino.protocol.views import UNITS, View, ViewName
from sordino.wiring import ask_above


@dataclass(frozen=True, kw_only=True)
class Budget(Value):
    """What may be spent at most, in which view, for which unit. Training never passes it.

    Example:
        >>> Budget(epsilon=4.0, delta=1e-5).view
        'server'
    """

    epsilon: float = entry(Number(above=0), "largest epsilon")
    delta: float = entry(Number(above=0, below=1), "at this delta", 1e-5)
    view: str = entry(ViewName(), "the adversary it holds against", "server")
    unit: str = entry(
        Choice(UNITS), "what is hidden: one record, or all records of a client", "record"
    )


# One record, or all of a client's, is replaced; or is added or removed.
ADJACENCIES = ("replace-one", "add-or-remove")


@dataclass(frozen=True, kw_only=True)
class Privacy(Value):
    """What the federation has set out to promise.

    Example:
        >>> Privacy(budget=Budget(epsilon=4.0)).adjacency is None
        True
    """

    adjacency: str | None = entry(
        Maybe(Choice(ADJACENCIES)), "neighbouring data sets; left out: what suits the rule", None
    )
    budget: Budget | None = entry(Maybe(Table(Budget)), "what may be spent at most", None)


@dataclass(frozen=True, kw_only=True)
class Assumptions(Value):
    """What the user vouches for, listed in every guarantee that uses it.

    The diameter is enforced instead.

    Example:
        >>> Assumptions(smoothness=1.0).diameter is None
        True
    """

    smoothness: float | None = entry(
        Maybe(Number(at_least=0)), "L: minibatch losses are L-smooth; it is not checked", None
    )
    diameter: float | None = entry(
        Maybe(Number(above=0)),
        "enforced: every released model is projected on the ball around w_0",
        None,
    )


@dataclass(frozen=True, kw_only=True)
class ClientBudget(Value):
    """One client's limit on what its uploads may reveal.

    The client takes no further part once the next round would pass it.

    Example:
        >>> ClientBudget(id=3, epsilon=2.0).delta
        1e-05
    """

    id: int = entry(Integer(at_least=0), "number of the client, from 0")
    epsilon: float = entry(Number(above=0), "largest epsilon of this client, against the server")
    delta: float = entry(Number(above=0, below=1), "at this delta", 1e-5)
    unit: str = entry(
        Choice(UNITS), "what is hidden: one record, or all records of the client", "record"
    )
    mechanism: str | None = entry(
        Maybe(Choice(get_args(OwnMechanism))),
        "noise of its own, made for its budget; left out: the protocol's",
        None,
    )
    noise: float | None = entry(
        Maybe(Number(above=0)),
        "sigma, scale or step of that noise; left out: found by the Harmonizer",
        None,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noise is not None and self.mechanism is None:
            raise InvalidValue(
                "noise", self.noise, "a mechanism with it: the protocol's own noise is in [noise]"
            )


@dataclass(frozen=True, kw_only=True)
class Protocol(Value):
    """One federation: participants, local rule, noise, data and model.

    Example:
        >>> from sordino import Protocol, FedAvg, StageWise, Gaussian
        >>> protocol = Protocol(
        ...     clients=50, rounds=600,
        ...     local=FedAvg(steps=5, batch=32, clip=1.0, schedule=StageWise(rate=0.1)),
        ...     noise=Gaussian(sigma=0.1),
        ... )
        >>> protocol.local.schedule.at(round=1, step=0, steps=5)
        0.05
    """

    seed: int | None = entry(
        Maybe(Integer(at_least=0)),
        "repeats a run exactly; left out: drawn afresh and kept with the run",
        None,
    )
    clients: int = entry(Integer(at_least=1), "m: clients in the federation")
    rounds: int = entry(Integer(at_least=1), "T: rounds of training")
    participation: Participation = entry(
        Named(get_args(Participation)), "who takes part in a round", Everyone()
    )
    channel: Channel = entry(
        CHANNEL,
        "how uploads reach the server: with their senders' names, shuffled, or only as a sum",
        Direct(),
    )
    aggregation: Aggregation = entry(
        Named(get_args(Aggregation)), "how the server joins the uploads", Mean()
    )
    server: ServerOptimizer = entry(
        Named(get_args(ServerOptimizer)),
        "what the server makes of the joined update; it costs no privacy",
        PlainServer(),
    )
    personalization: Personalization = entry(
        Named(get_args(Personalization)),
        "whether clients keep personal models, and what helps them",
        NoPersonalization(),
    )
    missing: str = entry(
        Choice(("go-on", "repeat")),
        "uploads that do not come: the round continues without them, or is repeated",
        "go-on",
    )
    penalty: bool = entry(
        Flag(), "pull every client to the client with the largest epsilon (udp-fl 3.3)", False
    )
    local: LocalRule = entry(
        Tagged(get_args(LocalRule), "rule"),
        "what a client does in a round",
    )
    noise: Noise = entry(
        Mechanisms(get_args(Noise)),
        "noise that hides a client's contribution",
    )
    privacy: Privacy = entry(Table(Privacy), "what may be spent", Privacy())
    assumptions: Assumptions = entry(Table(Assumptions), "what the user vouches for", Assumptions())
    data: Data | None = entry(Maybe(Table(Data)), "records and their partition", None)
    model: Model | None = entry(Maybe(Table(Model)), "the model that is trained", None)
    client: tuple[ClientBudget, ...] = entry(
        Many(ClientBudget), "clients with their own budgets", ()
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_numbers()
        self._check_clients()
        # After the single values, so that a message about a pair never hides a simpler mistake.
        refuse_incompatible(self)
        self.local.check_smoothness(self.assumptions.smoothness)

    @property
    def adjacency(self) -> str:
        """What neighbouring data sets are: as given, or as suits the rule.

        To add or remove a record suits only Poisson batches.
        """
        if self.privacy.adjacency is not None:
            return self.privacy.adjacency
        # In batches of a fixed size a record that leaves makes room for another: it is replaced.
        return ADJACENCIES[1] if self.local.varying_batches else ADJACENCIES[0]

    @cached_property
    def release(self) -> Release:
        """What leaves a client in a round, under which noise."""
        # Engines ask for it once for every client.
        return release_of(self)

    @cached_property
    def grid(self) -> Grid | None:
        """The grid of integers that uploads lie on; None where they are floating-point numbers.

        Raises:
            UserError: The number of the model's parameters is not stated, or no grid fits.
        """
        release = self.release
        if release.in_steps or not release.integers:
            return None
        return choose_grid(
            sigma=release.client_sigma,
            # Where uploads are not summed as residues, nothing can wrap around.
            reach=math.inf if release.secure_sum is None else release.reach,
            contributions=1 if release.secure_sum is None else self.clients,
            coordinates=require_dimension(self.model.parameters if self.model else None)
            + release.counts,
            bits=64 if release.secure_sum is None else release.secure_sum.bits,
            digits=self.noise.digits,
        )

    @property
    def hides_participants(self) -> bool:
        """Whether who takes part in a round stays hidden, so that the draw of clients amplifies.

        A Poisson draw does under noise and a denominator that do not depend on it
        (docs/theory.md#a10).
        """
        # A client's own noise, or a denominator that counts clients, changes with who takes part,
        # and so would show it (docs/theory.md#a10).
        mean_tells_nothing = self.aggregation.fixed_denominator and not self.release.at_client
        return self.participation.varies and mean_tells_nothing

    @property
    def draws_coins(self) -> bool:
        """Whether a lot holds each record of the federation with the same probability."""
        return self.local.joins_lot and self.local.varying_batches

    @property
    def plain_server(self) -> bool:
        """Whether the joined model is the next global model, as it is."""
        # With dp-sgd the server steps, by a rate of its schedule; a clip that follows scales steps.
        steps = self.local.joins_lot or self.local.adaptive is not None
        return self.server.plain and not steps

    def find_server_rate(self, round_index: int) -> float:
        """Returns what the server's step is multiplied by in a round.

        Args:
            round_index: Number of the round, from 0.
        """
        if not self.local.joins_lot:
            return 1.0
        return float(self.local.schedule.at(round=round_index, step=0, steps=1))

    @property
    def keeps_models(self) -> bool:
        """Whether clients keep models between rounds."""
        return self.personalization.keeps_models

    def _check_numbers(self) -> None:
        """Refuses more participants than clients, and batches that records cannot fill."""
        # Only a cohort of a fixed size can be larger than the federation.
        expected = self.participation.count_expected(clients=self.clients)
        if expected > self.clients:
            allowed = f"at most federation.clients = {self.clients}"
            raise InvalidValue("federation.participation.fixed", round(expected), allowed)
        self.channel.check_threshold(clients=self.clients, participants=expected)
        data = self.data
        if data is None:
            return
        if data.sizes is not None and len(data.sizes) != self.clients:
            allowed = f"one number for each of the {self.clients} clients of federation.clients"
            raise InvalidValue("data.sizes", list(data.sizes), allowed)
        batch = self.local.batch
        # Sizes that the file does not say are checked when the data are read.
        if batch is None or not data.distinct_sizes:
            return
        # A batch has to fit the smallest client: all clients share one rule. A lot of coins does
        # not: clients with few records draw few.
        smallest = data.distinct_sizes[0]
        if self.draws_coins:
            smallest = data.distinct_sizes[-1]
        if batch > smallest:
            raise InvalidValue(
                "local.batch",
                batch,
                f"at most {self._named_records(smallest)}, since a step draws distinct records",
            )
        for records in data.distinct_sizes:
            self.local.check_records(records, self._named_records(records))

    @property
    def stated_sizes(self) -> tuple[int, ...] | None:
        """Records of every client, where data.records or data.sizes says it."""
        if self.data is None:
            return None
        # One number applies to all clients, as most federations have it.
        if self.data.records is not None:
            return (self.data.records,) * self.clients
        return self.data.sizes

    def _named_records(self, records: int) -> str:
        """Names the entry that says how many records a client has."""
        stated = self.data is not None and self.data.records is not None
        return f"data.records = {records}" if stated else f"the {records} of data.sizes"

    def _check_clients(self) -> None:
        """Refuses budgets of clients that do not exist, and own noise without a budget for it."""
        seen: set[int] = set()
        for budget in self.client:
            # Two limits for one client would leave open which of them is kept.
            if budget.id >= self.clients or budget.id in seen:
                raise InvalidValue(
                    "client.id", budget.id, f"each of 0 to {self.clients - 1} at most once"
                )
            seen.add(budget.id)
        if self.privacy.budget is not None:
            view = View.parse(self.privacy.budget.view)
            # A coalition of everybody knows all records; there is nobody left to hide.
            if view.colluders >= self.clients:
                raise InvalidValue(
                    "privacy.budget.view",
                    str(view),
                    f"at most coalition:{self.clients - 1}, all clients but one",
                )
        named = [budget.id for budget in self.client if budget.mechanism is not None]
        # Noise is made for a budget, and the penalty compares epsilons: both need one of every
        # client.
        if (named or self.penalty) and len(seen) < self.clients:
            first = next(client for client in range(self.clients) if client not in seen)
            why = "federation.penalty = true"
            if not self.penalty:
                why = f"client {named[0]} names a mechanism"
            raise UserError(
                f"client {first} has no budget, and {why}: "
                "every client needs a [[client]] with an epsilon."
            )

    @staticmethod
    def load(path: str | Path) -> Protocol:
        """Returns the protocol of a file.

        Args:
            path: Path of the file.

        Raises:
            UserError: There is no such file, or a key has a value that is not allowed.

        Example:
            >>> Protocol.load("federation.toml")  # doctest: +SKIP
        """
        # The reader itself needs this class.
        protocol: Protocol = ask_above("read_protocol")(path)
        return protocol

    def to_dp_event(self, view: str | View = View.SERVER, unit: str = "record") -> Any:
        """Returns the protocol as an event of dp_accounting, for its accountants.

        Args:
            view: The adversary.
            unit: The hidden unit, "record" or "client".

        Raises:
            UserError: dp_accounting has no event for it.

        Example:
            >>> type(protocol.to_dp_event()).__name__  # doctest: +SKIP
            'ComposedDpEvent'
        """
        # This room knows nothing of the room of prices.
        return ask_above("dp_event")(self, View.parse(view), unit)
