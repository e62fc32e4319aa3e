"""What the controls of the page Explore say, as one value: it becomes a protocol, and it travels in an address."""

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
    Everyone,
    FedAvg,
    FedProx,
    FixedSize,
    Gaussian,
    InvalidValue,
    Laplace,
    LocalRule,
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
from sordino.protocol.entries import Check, Choice, Flag, Integer, Number, Value, checks_of, entry

SCHEDULES: dict[str, type[Schedule]] = {
    kind.tag: kind for kind in (Constant, Cyclic, StageWise, Continuous)
}
ADVERSARIES = ("server", "rounds", "participant", "coalition", "final")
DATA = ("digits", "mnist", "fashion-mnist", "cifar10", "adult", "breast-cancer")
MODELS = ("logistic", "mlp", "lenet5", "resnet18")
MOST_STEPS = 2_000_000  # local steps of a client in all; a page should not need gigabytes


@dataclass(frozen=True, kw_only=True)
class Setting(Value):
    """One position of all controls. At first that of the built-in example.

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
    rule: str = entry(
        Choice(("fedavg", "fedprox", "noisy-sgd")), "What a client does in a round", "fedavg"
    )
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
        if self.steps * self.rounds > MOST_STEPS:
            raise InvalidValue(
                "rounds",
                self.rounds,
                f"rounds x steps of at most {MOST_STEPS:,} here; `sordino certify` has no such limit",
            )

    @cached_property
    def protocol(self) -> Protocol:
        """The federation that the controls describe.

        Raises:
            UserError: values that do not go together.
        """
        told = (
            Budget(epsilon=self.target, delta=self.delta, view=str(self.view), unit=self.unit)
            if self.budget
            else None
        )
        counted = (
            self.mechanism != "gaussian" and self.rule != "noisy-sgd"
        )  # else the dimension does not matter, and may be wrong
        return Protocol(
            clients=self.clients,
            rounds=self.rounds,
            participation=self._participation,
            local=self._local,
            noise=self._noise,
            privacy=Privacy(budget=told),
            assumptions=Assumptions(smoothness=self.smoothness if self.smoothness > 0 else None),
            data=Data(name=self.data, partition=Dirichlet(beta=0.5), records=self.records),
            model=Model(name=self.model, parameters=self.dimension if counted else None),
        )

    @property
    def view(self) -> View:
        """The adversary that the first line speaks of; where there is one client there are no others."""
        alone = self.clients == 1 and self.adversary in ("participant", "coalition")
        named = {
            "participant": View.coalition(1),
            "coalition": View.coalition(max(1, self.clients - 1)),
        }
        return View.SERVER if alone else named.get(self.adversary) or View.parse(self.adversary)

    @property
    def noise_name(self) -> str:
        """What the size of the noise is called in the file."""
        return (
            "multiplier"
            if self.rule == "noisy-sgd"
            else {"laplace": "scale", "staircase": "step"}.get(self.mechanism, "sigma")
        )

    @property
    def _participation(self) -> Participation:
        kinds: dict[str, Participation] = {
            "poisson": Poisson(rate=self.share),
            "fixed": FixedSize(size=self.size),
        }
        return kinds.get(self.participation, Everyone())

    @property
    def _local(self) -> LocalRule:
        schedule = SCHEDULES[self.schedule](rate=self.rate)
        shared: dict[str, Any] = {
            "steps": self.steps,
            "batch": self.batch,
            "clip": self.clip,
            "schedule": schedule,
        }
        if self.rule == "fedprox":
            return FedProx(**shared, proximal=self.proximal)
        return NoisySgd(**shared) if self.rule == "noisy-sgd" else FedAvg(**shared)

    @property
    def _noise(self) -> Noise:
        if self.rule == "noisy-sgd":
            return Gaussian(multiplier=self.noise)
        if self.mechanism == "laplace":
            return Laplace(scale=self.noise, where=self.where)
        if self.mechanism == "staircase":
            return Staircase(step=self.noise, width=self.width)
        return Gaussian(sigma=self.noise, where=self.where)

    @property
    def query(self) -> dict[str, str]:
        """What is not as at first, for an address.

        Example:
            >>> Setting(rounds=100, schedule="stage-wise").query
            {'rounds': '100', 'schedule': 'stage-wise'}
        """
        changed = {
            f.name: getattr(self, f.name)
            for f in fields(self)
            if getattr(self, f.name) != f.default
        }
        return {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in changed.items()
        }


def from_query(query: Mapping[str, str]) -> tuple[Setting, list[str]]:
    """The setting of an address, and what in it was not taken. What was given is never repeated: anybody can write an address.

    Example:
        >>> setting, refused = from_query({"rounds": "-3", "clip": "2", "x": "<b>"})
        >>> setting.clip, refused
        (2.0, ['rounds: expected a whole number from 1 to 100,000.', '1 name in the address is not known here.'])
    """
    checks, taken, refused = checks_of(Setting), {}, []
    for name, check in checks.items():
        if name in query:
            try:
                taken[name] = check.accept(name, read(check, query[name]))
            except ValueError:
                refused.append(f"{name}: expected {check.allowed}.")
    unknown = sum(name not in checks and not name.startswith("embed") for name in query)
    if unknown > 0:
        refused.append(
            f"{unknown} name{'s' if unknown > 1 else ''} in the address {'are' if unknown > 1 else 'is'} not known here."
        )
    try:
        return Setting(**taken), refused
    except InvalidValue as error:
        return Setting(), [*refused, f"{error.key}: expected {error.allowed}."]


def read(check: Check, text: str) -> Any:
    """The value that a text of an address spells, to be checked."""
    if len(text) > 40:
        raise ValueError("too long")
    if isinstance(check, Integer):
        return int(text)
    if isinstance(check, Number):
        return float(text)
    return {"true": True, "false": False}.get(text, text) if isinstance(check, Flag) else text
