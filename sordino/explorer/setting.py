"""Holds the position of all controls of the page Explore, as a protocol and as an address."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from sordino.protocol import (
    UNITS,
    Assumptions,
    Budget,
    Constant,
    Continuous,
    Cyclic,
    Data,
    Dirichlet,
    DpSgd,
    Everyone,
    FedAvg,
    FedProx,
    FixedSize,
    Gaussian,
    InvalidValue,
    Laplace,
    LocalRule,
    Mean,
    Model,
    Noise,
    NoisySgd,
    Participation,
    Poisson,
    Privacy,
    Protocol,
    Schedule,
    StageWise,
    Staircase,
    View,
)
from sordino.protocol.entries import Value, checks_of, entry
from sordino.protocol.value_checks import Check, Choice, Flag, Integer, Number

SCHEDULES: dict[str, type[Schedule]] = {
    kind.tag: kind for kind in (Constant, Cyclic, StageWise, Continuous)
}
ADVERSARIES = ("server", "rounds", "participant", "coalition", "final")
DATA = ("digits", "mnist", "fashion-mnist", "cifar10", "adult", "breast-cancer")
MODELS = ("logistic", "mlp", "lenet5", "resnet18")
# The largest number of local steps of a client in all rounds: a page should not need gigabytes.
MOST_STEPS = 2_000_000
# The largest number of characters of a value in an address.
LONGEST_VALUE = 40
RULES: dict[str, type[LocalRule]] = {kind.tag: kind for kind in (FedAvg, FedProx, NoisySgd, DpSgd)}
# Rules whose normal noise is a multiple of how far a sum of clipped gradients can move.
MULTIPLIED = ("noisy-sgd", "dp-sgd")
# The key of the protocol's file for the size of each kind of noise.
SIZE_NAMES = {"gaussian": "sigma", "laplace": "scale", "staircase": "step"}


@dataclass(frozen=True, kw_only=True)
class Setting(Value):
    """Holds one position of all controls; by default, that of the built-in example.

    The declaration of every attribute says what it means and which values are allowed.

    Example:
        >>> Setting(rounds=100).protocol.rounds, Setting().view
        (100, View(kind='server', colluders=0))
    """

    clients: int = entry(Integer(1, 10_000), "Clients in the federation, m", 100)
    rounds: int = entry(Integer(1, 100_000), "Rounds of training, T", 600)
    participation: str = entry(
        Choice(("everyone", "poisson", "fixed")), "Who takes part in a round", "everyone"
    )
    share: float = entry(
        Number(above=0, at_most=1), "Probability that a client takes part in a round", 0.1
    )
    size: int = entry(Integer(1, 10_000), "Clients that take part in a round", 10)
    rule: str = entry(Choice(tuple(RULES)), "What a client does in a round", "fedavg")
    steps: int = entry(Integer(1, 200), "Local steps in a round, K", 1)
    batch: int = entry(Integer(1, 10_000), "Records that a step draws, B", 4)
    records: int = entry(Integer(1, 1_000_000), "Records of a client", 14)
    clip: float = entry(
        Number(at_least=1e-6, at_most=1e6), "Clip: largest norm of a gradient, V", 1.0
    )
    schedule: str = entry(Choice(tuple(SCHEDULES)), "How the learning rate falls", "constant")
    rate: float = entry(Number(at_least=1e-6, at_most=100), "Learning rate of the first step", 0.1)
    proximal: float = entry(
        Number(at_least=0, at_most=1000), "Proximal term: pull to the global model, alpha", 0.1
    )
    mechanism: str = entry(
        Choice(("gaussian", "laplace", "staircase")), "Kind of noise", "gaussian"
    )
    where: str = entry(Choice(("client", "server")), "Who adds the noise", "client")
    noise: float = entry(Number(at_least=0, at_most=1e6), "Size of the noise", 0.16)
    width: float = entry(Number(at_least=1e-6, at_most=1e6), "Width of a stair", 1.0)
    dimension: int = entry(Integer(1, 10**10), "Parameters of the model, d", 650)
    smoothness: float = entry(
        Number(at_least=0, at_most=1e6),
        "Smoothness of the losses that you vouch for, L; 0: none",
        0.0,
    )
    unit: str = entry(Choice(UNITS), "What is hidden", "record")
    delta: float = entry(Number(at_least=1e-12, at_most=0.5), "Delta: where epsilon is read", 1e-5)
    adversary: str = entry(Choice(ADVERSARIES), "Against whom", "server")
    target: float = entry(Number(at_least=1e-3, at_most=1e4), "Epsilon to find the noise for", 8.0)
    budget: bool = entry(
        Flag(), "Write that epsilon into the file as a budget, which training never passes", False
    )
    data: str = entry(Choice(DATA), "Data to train on", "digits")
    model: str = entry(Choice(MODELS), "Model to train", "logistic")

    def __post_init__(self) -> None:
        super().__post_init__()
        # Here, where the message can name the command that has no such limit.
        if self.steps * self.rounds > MOST_STEPS:
            raise InvalidValue(
                "rounds",
                self.rounds,
                f"rounds x steps of at most {MOST_STEPS:,} here; "
                "`sordino certify` has no such limit",
            )
        # An address may have such values. The price of another noise would not be what it asks for.
        if self.rule == "dp-sgd" and self.mechanism != "gaussian":
            raise InvalidValue(
                "mechanism", self.mechanism, "gaussian: DP-SGD has a price for no other noise"
            )

    @cached_property
    def protocol(self) -> Protocol:
        """The federation that the controls describe.

        Raises:
            UserError: Values that do not go together.
        """
        budget = None
        if self.budget:
            budget = Budget(
                epsilon=self.target, delta=self.delta, view=str(self.view), unit=self.unit
            )
        smoothness = None
        if self.smoothness > 0:
            smoothness = self.smoothness
        # Only the price of noise that is not normal depends on the dimension. Otherwise it is left
        # out, since training would refuse a wrong number.
        parameters = None
        if self.mechanism != "gaussian":
            parameters = self.dimension
        return Protocol(
            clients=self.clients,
            rounds=self.rounds,
            participation=self._participation,
            aggregation=self._aggregation,
            local=self._local,
            noise=self._noise,
            privacy=Privacy(budget=budget),
            assumptions=Assumptions(smoothness=smoothness),
            # Unequal labels are the usual case, and the price does not depend on them.
            data=Data(name=self.data, partition=Dirichlet(beta=0.5), records=self.records),
            model=Model(name=self.model, parameters=parameters),
        )

    @property
    def view(self) -> View:
        """The adversary that the headline is about."""
        if self.adversary not in ("participant", "coalition"):
            return View.parse(self.adversary)
        # A single client has no others that could collude.
        if self.clients == 1:
            return View.SERVER
        if self.adversary == "participant":
            return View.coalition(1)
        return View.coalition(self.clients - 1)

    @property
    def noise_name(self) -> str:
        """The key of the protocol's file for the size of the noise."""
        if self.rule in MULTIPLIED and self.mechanism == "gaussian":
            return "multiplier"
        return SIZE_NAMES[self.mechanism]

    @property
    def _participation(self) -> Participation:
        kinds: dict[str, Participation] = {
            "everyone": Everyone(),
            "poisson": Poisson(rate=self.share),
            "fixed": FixedSize(size=self.size),
        }
        return kinds[self.participation]

    @property
    def _aggregation(self) -> Mean:
        # The sum over a lot is divided by its expected size, whichever clients take part.
        if self.rule == "dp-sgd" and self.participation == "poisson":
            return Mean(denominator="fixed")
        return Mean()

    @property
    def _local(self) -> LocalRule:
        shared: dict[str, Any] = {
            "batch": self.batch,
            "clip": self.clip,
            "schedule": SCHEDULES[self.schedule](rate=self.rate),
        }
        if self.rule != "dp-sgd":
            shared["steps"] = self.steps
        if self.rule == "fedprox":
            shared["proximal"] = self.proximal
        return RULES[self.rule](**shared)

    @property
    def _noise(self) -> Noise:
        if self.rule == "dp-sgd":
            return Gaussian(multiplier=self.noise, where=self.where)
        normal = Gaussian(sigma=self.noise, where=self.where)
        where = self.where
        # Noise in steps is added where the steps are made.
        if self.rule == "noisy-sgd":
            normal = Gaussian(multiplier=self.noise)
            where = "client"
        kinds: dict[str, Noise] = {
            "gaussian": normal,
            "laplace": Laplace(scale=self.noise, where=where),
        }
        # A staircase is made only if it is chosen: it refuses a size of 0, which the others allow.
        if self.mechanism == "staircase":
            return Staircase(step=self.noise, width=self.width)
        return kinds[self.mechanism]

    @property
    def query(self) -> dict[str, str]:
        """The values that differ from the defaults, as texts for an address.

        Example:
            >>> Setting(rounds=100, schedule="stage-wise").query
            {'rounds': '100', 'schedule': 'stage-wise'}
        """
        query = {}
        # Only what differs, so that addresses stay short and follow new defaults.
        for field in fields(self):
            value = getattr(self, field.name)
            if value == field.default:
                continue
            query[field.name] = str(value)
            if isinstance(value, bool):
                # As in TOML, from which the value is read again.
                query[field.name] = str(value).lower()
        return query


def read_query(query: Mapping[str, str]) -> tuple[Setting, list[str]]:
    """Reads the setting of an address.

    Args:
        query: The names and values of the address.

    Returns:
        The setting, and a sentence for everything that was refused. What was given is not repeated,
        since anybody can write an address.

    Example:
        >>> setting, refused = read_query({"rounds": "-3", "clip": "2", "x": "<b>"})
        >>> setting.clip
        2.0
        >>> refused[0]
        'rounds: expected a whole number from 1 to 100,000.'
        >>> refused[1]
        '1 name in the address is not known here.'
    """
    checks = checks_of(Setting)
    taken = {}
    refused = []
    # Only a wrong value is refused: the rest of an old address is still of use.
    for name, check in checks.items():
        if name in query:
            try:
                taken[name] = check.accept_value(name, read_value(check, query[name]))
            except ValueError:
                refused.append(f"{name}: expected {check.values_allowed}.")
    # Streamlit's own names, such as embed, are not the explorer's to judge.
    unknown = sum(name not in checks and not name.startswith("embed") for name in query)
    if unknown == 1:
        refused.append("1 name in the address is not known here.")
    if unknown > 1:
        refused.append(f"{unknown} names in the address are not known here.")
    try:
        return Setting(**taken), refused
    except InvalidValue as error:
        return Setting(), [*refused, f"{error.key}: expected {error.allowed}."]


def read_value(check: Check, text: str) -> Any:
    """Reads the value that a text of an address spells, which is still to be checked.

    Args:
        check: Check of the control.
        text: Text from the address.

    Raises:
        ValueError: It spells no such value.
    """
    if len(text) > LONGEST_VALUE:
        raise ValueError("too long")
    if isinstance(check, Integer):
        return int(text)
    if isinstance(check, Number):
        return float(text)
    if isinstance(check, Flag):
        return {"true": True, "false": False}.get(text, text)
    return text
