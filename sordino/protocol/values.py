"""What a federation is: frozen values that are priced, run, attacked and printed, always as one `Protocol`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from sordino.protocol.aggregation import Aggregation, Mean, Median, ModeConnectivity
from sordino.protocol.data import Data, Model
from sordino.protocol.entries import (
    Choice,
    Flag,
    Integer,
    Many,
    Maybe,
    Named,
    Number,
    Table,
    Tagged,
    Value,
    entry,
)
from sordino.protocol.errors import InvalidValue, UserError
from sordino.protocol.mechanisms import Custom, Gaussian, Laplace, Mechanisms, Noise, Staircase
from sordino.protocol.noisy_sgd import NoisySgd
from sordino.protocol.participation import Everyone, FixedSize, Participation, Poisson
from sordino.protocol.personalization import (
    Attention,
    Identity,
    Interpolate,
    Nobody,
    Personalization,
)
from sordino.protocol.rules import Bezier, ClippedGlm, FedAvg, FedProx, LocalRule, Scaffold
from sordino.protocol.schedules import Constant
from sordino.protocol.views import UNITS, View, ViewName


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


ADJACENCIES = (
    "replace-one",
    "add-or-remove",
)  # one record, or all of a client's, is replaced; or is added or removed


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
    """What the user vouches for, listed in every guarantee that uses it; the diameter is enforced instead.

    Example:
        >>> Assumptions(smoothness=1.0).diameter is None
        True
    """

    smoothness: float | None = entry(
        Maybe(Number(at_least=0)), "L: minibatch losses are L-smooth; nobody checks it", None
    )
    diameter: float | None = entry(
        Maybe(Number(above=0)),
        "enforced: every released model is projected on the ball around w_0",
        None,
    )


@dataclass(frozen=True, kw_only=True)
class ClientBudget(Value):
    """One client's own limit on what its uploads may reveal; it is no longer asked once the next round would pass it.

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
        Maybe(Choice(("gaussian", "laplace", "staircase"))),
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
    """One federation: who takes part, what each does, which noise protects it, on which data and model.

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
        Named((Everyone, Poisson, FixedSize)), "who takes part in a round", Everyone()
    )
    channel: str = entry(
        Choice(("direct", "shuffler")),
        "how uploads reach the server: with their senders' names, or shuffled",
        "direct",
    )
    aggregation: Aggregation = entry(
        Named((Mean, Median, ModeConnectivity)), "how the server joins the uploads", Mean()
    )
    personalization: Personalization = entry(
        Named((Nobody, Identity, Interpolate, Attention)),
        "whether clients keep models of their own, and what helps them",
        Nobody(),
    )
    missing: str = entry(
        Choice(("go-on", "repeat")),
        "uploads that do not come: the round goes on without them, or is repeated",
        "go-on",
    )
    penalty: bool = entry(
        Flag(), "pull every client to the client with the largest epsilon (udp-fl 3.3)", False
    )
    local: LocalRule = entry(
        Tagged((FedAvg, FedProx, Scaffold, Bezier, ClippedGlm, NoisySgd), "rule"),
        "what a client does in a round",
    )
    noise: Noise = entry(
        Mechanisms((Gaussian, Laplace, Staircase, Custom)),
        "noise that hides a client's contribution",
    )
    privacy: Privacy = entry(Table(Privacy), "what may be spent", Privacy())
    assumptions: Assumptions = entry(Table(Assumptions), "what the user vouches for", Assumptions())
    data: Data | None = entry(Maybe(Table(Data)), "records and their partition", None)
    model: Model | None = entry(Maybe(Table(Model)), "the model that is trained", None)
    client: tuple[ClientBudget, ...] = entry(
        Many(ClientBudget), "clients with budgets of their own", ()
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.participation, FixedSize) and self.participation.size > self.clients:
            allowed = f"at most federation.clients = {self.clients}"
            raise InvalidValue("federation.participation.fixed", self.participation.size, allowed)
        self._check_batch(self.data.records if self.data is not None else None)
        self._check_clients()
        self._check_channel()
        self._check_server_noise()
        self._check_adjacency()
        self._check_harmonizer()
        self._check_scaffold()
        self._check_bezier()
        self._check_multiplier()
        self._check_personalization()

    @property
    def adjacency(self) -> str:
        """What neighbouring data sets are: as given, or as suits the rule, which is to add or remove for Poisson batches alone."""
        if self.privacy.adjacency is not None:
            return self.privacy.adjacency
        return ADJACENCIES[1] if self._draws_poisson else ADJACENCIES[0]

    @property
    def keeps_models(self) -> bool:
        """Whether clients keep models of their own between rounds."""
        return not isinstance(self.personalization, Nobody)

    @property
    def _draws_poisson(self) -> bool:
        return isinstance(self.local, NoisySgd) and self.local.sampling == "poisson"

    @property
    def _fixed_denominator(self) -> bool:
        return isinstance(self.aggregation, Mean) and self.aggregation.denominator == "fixed"

    def _check_scaffold(self) -> None:
        """Control variates are free only if they come from noisy uploads whose senders the server knows."""
        if not isinstance(self.local, Scaffold):
            return
        refused = {
            "federation.channel": self.channel != "direct",
            "noise.where": self.noise.where != "client",
            "federation.penalty": self.penalty,
        }
        for key, given in refused.items():
            if given:
                raise UserError(
                    f'{key}: local.rule = "scaffold" needs noisy uploads with their senders\' names, and no penalty.'
                )

    def _check_bezier(self) -> None:
        """Equation 6 of udp-fl has steps of 1/L; the penalty is priced for plain steps."""
        if not isinstance(self.local, Bezier):
            return
        smoothness, schedule = self.assumptions.smoothness, self.local.schedule
        if smoothness is None or smoothness == 0:
            raise UserError(
                'local.rule = "bezier": its steps are 1/L. Expected an assumptions.smoothness = L above 0.'
            )
        if not isinstance(schedule, Constant) or not math.isclose(
            schedule.rate * smoothness, 1, rel_tol=1e-3
        ):
            given = f'{{ kind = "{schedule.tag}", rate = {schedule.rate:g} }}'
            allowed = f'{{ kind = "constant", rate = {1 / smoothness:g} }}, the step 1/L of the rule bezier'
            raise UserError(
                f"local.schedule = {given}: expected {allowed} with assumptions.smoothness = {smoothness:g}."
            )
        if self.penalty:
            raise InvalidValue(
                "federation.penalty",
                self.penalty,
                "false with the rule bezier: a pull along its curve is not priced",
            )

    def _check_harmonizer(self) -> None:
        """Clients with noise of their own, or pulled to one another, all need budgets: without one there is nothing to make noise for."""
        named = [budget.id for budget in self.client if budget.mechanism is not None]
        if not named and not self.penalty:
            return
        missing = sorted(set(range(self.clients)) - {budget.id for budget in self.client})
        why = (
            "federation.penalty = true" if self.penalty else f"client {named[0]} names a mechanism"
        )
        if missing:
            raise UserError(
                f"client {missing[0]} has no budget, and {why}: every client needs a [[client]] with an epsilon."
            )
        if self.noise.where != "client":
            raise InvalidValue("noise.where", self.noise.where, f'"client", since {why}')
        if self.penalty and isinstance(self.local, ClippedGlm):
            raise InvalidValue(
                "federation.penalty",
                self.penalty,
                "false with clipped-glm, whose dynamics it would change",
            )

    def _check_server_noise(self) -> None:
        """What noise at the server needs, and what needs noise at the server."""
        where = self.noise.where
        if where != "client" and not isinstance(self.aggregation, Mean):
            raise InvalidValue(
                "noise.where",
                where,
                '"client" unless the aggregation is a mean, whose move is known',
            )
        if where == "server" and self.client:
            raise InvalidValue(
                "noise.where",
                where,
                '"client" or "both" with [[client]]: their budgets hold against the server',
            )
        if self._fixed_denominator and isinstance(self.local, ClippedGlm):
            allowed = (
                '"participants" with clipped-glm, whose weight decay moves models without limit'
            )
            raise InvalidValue("federation.aggregation.mean.denominator", "fixed", allowed)

    def _check_adjacency(self) -> None:
        """Adding or removing is for who may come or go without changing anything public, least of all how much noise there is."""
        hidden = self.noise.where == "server" and self._fixed_denominator
        if self.privacy.adjacency == "add-or-remove" and not (hidden or self._draws_poisson):
            allowed = (
                '"replace-one", unless noise.where = "server" and the mean has a fixed denominator (else noise leaves with the client), '
                "or the rule is noisy-sgd with poisson sampling (else a record changes a public size)"
            )
            raise InvalidValue("privacy.adjacency", self.privacy.adjacency, allowed)

    def _check_channel(self) -> None:
        """A shuffler hides who sent what only among uploads of one kind, and a server that cannot tell them apart cannot weigh them."""
        if self.channel != "shuffler":
            return
        weighed = isinstance(self.aggregation, Mean) and self.aggregation.weights == "records"
        refused = {
            "no [[client]]: clients whose budgets or mechanisms differ are no cover for one another": bool(
                self.client
            ),
            'aggregation weights = "equal": behind it the server cannot tell whose upload has how many records': weighed,
            "noise at the client: noise at the server hides nothing from who receives the uploads": self.noise.where
            == "server",
            '"direct" with personalization: clients that go on from models of their own are no cover for one another': self.keeps_models,
            '"direct" with noisy-sgd, whose uploads have no noise of their own to be priced among others': isinstance(
                self.local, NoisySgd
            ),
        }
        for allowed, given in refused.items():
            if given:
                raise InvalidValue("federation.channel", self.channel, allowed)

    def _check_multiplier(self) -> None:
        """The rule noisy-sgd has its noise in every step, normal and at the client; nothing else has such noise."""
        multiplier, rule = getattr(self.noise, "multiplier", None), self.local.tag
        if not isinstance(self.local, NoisySgd):
            if multiplier is not None:
                raise InvalidValue(
                    "noise.multiplier", multiplier, f"a noise.sigma for the rule {rule}"
                )
            return
        if multiplier is None or self.noise.where != "client":
            raise UserError(
                'local.rule = "noisy-sgd": expected noise.mechanism = "gaussian" with a noise.multiplier, at the client.'
            )
        if self.penalty:
            raise InvalidValue(
                "federation.penalty",
                self.penalty,
                f"false with the rule {rule}; use personalization with a pull",
            )
        self._refuse_own_mechanisms(
            f"no such key with the rule {rule}, whose noise is in its steps"
        )

    def _refuse_own_mechanisms(self, allowed: str) -> None:
        for budget in self.client:
            if budget.mechanism is not None:
                raise InvalidValue("client.mechanism", budget.mechanism, allowed)

    def _check_personalization(self) -> None:
        """What own models carry from round to round is known for clipped steps under the clients' normal noise alone."""
        tag, rule = self.personalization.tag, self.local
        if not self.keeps_models:
            return
        if type(rule) not in (FedAvg, NoisySgd):
            raise InvalidValue(
                "federation.personalization",
                tag,
                f'"none" for the rule {rule.tag}; use fedavg or noisy-sgd',
            )
        known = (
            isinstance(self.noise, Gaussian)
            and self.noise.where == "client"
            and getattr(rule, "clip_target", "step") == "step"
        )
        if not known:
            raise InvalidValue(
                "federation.personalization",
                tag,
                '"none", or gaussian noise at the client and clipped steps',
            )
        if self._fixed_denominator:
            allowed = '"none" with a fixed denominator, for updates from the global model: own models are further from it than the clip'
            raise InvalidValue("federation.personalization", tag, allowed)
        if self.penalty:
            raise InvalidValue(
                "federation.personalization",
                tag,
                '"none" with federation.penalty = true: one pull at a time is priced',
            )
        self._refuse_own_mechanisms(
            f"no such key with personalization = {tag!r}: one noise for all is priced"
        )

    def _check_batch(self, records: int | None) -> None:
        batch = self.local.batch
        if batch is None or records is None:
            return
        if batch > records:
            raise InvalidValue(
                "local.batch",
                batch,
                f"at most data.records = {records}, since a step draws distinct records",
            )
        if isinstance(self.local, ClippedGlm) and (
            records % batch != 0 or self.local.steps % (records // batch) != 0
        ):
            allowed = f"a divisor of data.records = {records} whose number of batches divides local.steps = {self.local.steps}"
            raise InvalidValue("local.batch", batch, allowed)

    def _check_clients(self) -> None:
        seen: set[int] = set()
        for budget in self.client:
            if budget.id >= self.clients or budget.id in seen:
                raise InvalidValue(
                    "client.id", budget.id, f"each of 0 to {self.clients - 1} at most once"
                )
            seen.add(budget.id)
        view = (
            View.parse(self.privacy.budget.view) if self.privacy.budget is not None else View.SERVER
        )
        if view.colluders >= self.clients:
            raise InvalidValue(
                "privacy.budget.view",
                str(view),
                f"at most coalition:{self.clients - 1}, all clients but one",
            )

    def to_dp_event(self, view: str | View = View.SERVER, unit: str = "record") -> Any:
        """The protocol as an event of dp_accounting, for its accountants.

        Raises:
            UserError: dp_accounting has no event for it.

        Example:
            >>> type(protocol.to_dp_event()).__name__  # doctest: +SKIP
            'ComposedDpEvent'
        """
        from sordino.privacy.events import (
            dp_event,
        )  # upwards, at the user's request only: prices live there

        return dp_event(self, View.parse(view), unit)
