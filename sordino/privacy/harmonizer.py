"""The Harmonizer of udp-fl (3.1, 3.3, Algorithm 3): every client names its own budget and mechanism, and gets the noise that it needs.

A client's noise is calibrated for as many rounds as it can expect to take part in, through Rényi divergences (or Gaussian curves where
the noise is Gaussian), in the model's dimension; once its budget is spent it is no longer asked (`caps`). The penalty pulls every
client k towards the last upload of the client with the largest epsilon, by lambda_k = (eps_max - eps_k)/eps_max in every step: that
upload is public then, and what it reveals is what it reveals to the server. Nothing here looks at data.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np

from sordino.privacy.calibrate import calibrate
from sordino.privacy.caps import depends_on_records, foreseen_cap
from sordino.privacy.certify import Bound, Question, certify, harmonized
from sordino.privacy.curves import Curve
from sordino.privacy.guarantee import Guarantee, notes_on, rounded_up
from sordino.privacy.losses import LossCurve
from sordino.privacy.mechanisms import amplitude, deviation, dimension_of, taking_part
from sordino.privacy.sizes import parameter
from sordino.privacy.uploads import largest_move
from sordino.protocol import (
    ClientBudget,
    Everyone,
    FedAvg,
    FedProx,
    Gaussian,
    Iid,
    Laplace,
    Noise,
    NoisySgd,
    Protocol,
    Staircase,
    UserError,
    View,
)  # fmt: skip

HAIR = 1 + 1e-9  # so that rounding cannot make a staircase narrower than a move
CERTAIN = (
    3.0  # standard deviations above the expected number of rounds that a client's noise is made for
)


@dataclass(frozen=True, kw_only=True, eq=False)
class WorstCurve(Curve):
    """The worst of several clients' curves, at every epsilon and delta."""

    rank: ClassVar[int] = 5
    curves: tuple[Curve, ...]

    def deltas(self, epsilons: np.ndarray) -> np.ndarray:
        """See `Curve.deltas`."""
        return np.max([curve.deltas(epsilons) for curve in self.curves], axis=0)

    def epsilon(self, delta: float) -> float:
        """See `Curve.epsilon`."""
        return max(curve.epsilon(delta) for curve in self.curves)

    def beta(self, alpha: float) -> float:
        """See `Curve.beta`."""
        return min(curve.beta(alpha) for curve in self.curves)

    def rdp(self, order: float) -> float:
        """See `Curve.rdp`."""
        return max(curve.rdp(order) for curve in self.curves)

    def repeat(self, times: int) -> WorstCurve:
        """See `Curve.repeat`."""
        return WorstCurve(curves=tuple(curve.repeat(times) for curve in self.curves))

    def losses(self, interval: float) -> LossCurve:
        """See `Curve.losses`: the largest of convex curves is convex."""
        return LossCurve.from_profile(self.deltas, interval=interval)

    def _absorb(self, other: Curve) -> WorstCurve:
        return WorstCurve(curves=tuple(curve.compose(other) for curve in self.curves))


def pull_of(protocol: Protocol, budget: ClientBudget) -> float:
    """lambda_k = (eps_max - eps_k)/eps_max, or 0 without the penalty.

    Example:
        >>> from sordino.protocol import Constant
        >>> local, clients = FedAvg(steps=1, batch=1, clip=1.0, schedule=Constant(rate=0.5)), (2.0, 8.0)
        >>> budgets = tuple(ClientBudget(id=k, epsilon=epsilon) for k, epsilon in enumerate(clients))
        >>> protocol = Protocol(clients=2, rounds=5, local=local, noise=Gaussian(sigma=1.0), client=budgets, penalty=True)
        >>> [pull_of(protocol, budget) for budget in budgets]
        [0.75, 0.0]
    """
    if not protocol.penalty:
        return 0.0
    largest = max(one.epsilon for one in protocol.client)
    return (largest - budget.epsilon) / largest


def own_protocol(protocol: Protocol, budget: ClientBudget, records: int | None = None) -> Protocol:
    """The federation as one client sees it: with its own noise, its own pull, its own number of records, and no other budgets.

    A pull of strength lambda to a public model is a proximal term as far as two runs of one client can tell: both are pulled alike.

    Raises:
        UserError: the client's noise is to be found from its number of records, and that is not known.
    """
    alone = replace(protocol, client=(), penalty=False)
    if records is not None and alone.data is not None:
        alone = replace(alone, data=replace(alone.data, records=records, partition=Iid()))
    pull = pull_of(protocol, budget)
    if pull > 0 and isinstance(alone.local, FedAvg):
        rule = alone.local
        near = rule.proximal if isinstance(rule, FedProx) else 0.0
        alone = replace(alone, local=FedProx(
            steps=rule.steps, batch=rule.batch, clip=rule.clip, schedule=rule.schedule, clip_norm=rule.clip_norm,
            clip_target=rule.clip_target, minibatches=rule.minibatches, proximal=near + pull,
        ))  # fmt: skip
    if budget.mechanism is None:
        return alone
    if budget.noise is not None:
        return replace(alone, noise=sized(budget.mechanism, budget.noise, alone))
    known = alone.data.records if alone.data is not None and records is None else records
    if known is None and depends_on_records(alone, budget.unit):
        raise UserError(
            f"client {budget.id}: its noise is found from its budget and from how many records it has, "
            "which the protocol does not say; a run with more records finds less noise. Add data.records, "
            "or the noise itself to its [[client]], or price a run, which knows its clients."
        )
    return replace(alone, noise=found_noise(alone, budget, known))


def sized(mechanism: str, size: float, protocol: Protocol) -> Noise:
    """A mechanism by its name, with its parameter; a staircase is as wide as an upload can move."""
    secure = protocol.noise.secure
    if mechanism == "gaussian":
        return Gaussian(sigma=size, secure=secure)
    if mechanism == "laplace":
        return Laplace(scale=size, secure=secure)
    return Staircase(step=size, width=largest_move(protocol) * HAIR, secure=secure)


@lru_cache(maxsize=256)
def found_noise(alone: Protocol, budget: ClientBudget, records: int | None) -> Noise:
    """Returns the least noise of the client's mechanism that keeps its budget over the rounds it can expect.

    Args:
        alone: the federation as the client sees it.
        budget: the client's own.
        records: its number of records, where its price depends on them.
    """
    part = taking_part(alone)
    rounds = min(
        alone.rounds,
        math.ceil(part * alone.rounds + CERTAIN * math.sqrt(part * (1 - part) * alone.rounds)),
    )
    certain = replace(
        alone,
        participation=Everyone(),
        rounds=rounds,
        noise=sized(budget.mechanism or "gaussian", 1.0, alone),
    )
    return calibrate(
        certain,
        View.SERVER,
        budget.unit,
        epsilon=budget.epsilon,
        delta=budget.delta,
        sizes=None if records is None else (records,) * certain.clients,
    ).protocol.noise


def with_found_noise(protocol: Protocol, sizes: Sequence[int]) -> Protocol:
    """The protocol with every client's noise spelled out, so that what is priced is what is run."""
    if not harmonized(protocol):
        return protocol
    resolved = []
    for budget in protocol.client:
        if budget.mechanism is not None and budget.noise is None:
            found = own_protocol(protocol, budget, sizes[budget.id]).noise
            budget = replace(budget, noise=parameter(found)[1])
        resolved.append(budget)
    return replace(protocol, client=tuple(resolved))


def harmonized_bounds(question: Question) -> Iterator[Bound]:
    """Every client by its own noise, against who sees its uploads; the worst client counts. All views are post-processing of that."""
    found = list(
        {id(guarantee): guarantee for guarantee in own_guarantees(question).values()}.values()
    )
    worst = max(found, key=lambda guarantee: guarantee.epsilon(1e-5))
    lines = (
        f"Every client has noise of its own, found for its own budget ({len(found)} kinds of clients); the worst one counts.",
        f"The adversary sees {question.view.sees}, all of it computed from the uploads: the server's bound holds.",
        *worst.derivation,
    )
    vouched = tuple(dict.fromkeys(line for guarantee in found for line in guarantee.assumptions))
    curve = WorstCurve(curves=tuple(guarantee.curve for guarantee in found))
    yield Bound(curve=curve, method="harmonizer", lines=lines, vouched=vouched)


def own_guarantees(question: Question) -> dict[int, Guarantee]:
    """What every client is promised against who sees its uploads; clients of one kind share one guarantee."""
    found: dict[tuple[Protocol, int], Guarantee] = {}
    promised = {}
    for budget in question.protocol.client:
        records = question.sizes[budget.id] if question.sizes is not None else question.records
        alone, cap = (
            own_protocol(question.protocol, budget, records),
            cap_of(question, budget, records),
        )
        if (alone, cap) not in found:
            known = None if records is None else [records] * alone.clients
            certain = replace(alone, participation=Everyone())
            drawn = certify(
                alone, View.SERVER, question.unit, rounds=question.rounds.tolist(), sizes=known
            )
            capped = (
                certify(certain, View.SERVER, question.unit, rounds=range(cap), sizes=known)
                if cap < len(question.rounds)
                else drawn
            )
            least = min(drawn, capped, key=lambda guarantee: guarantee.epsilon(1e-5))
            # A client alone has no partition; what the federation's says of every promise stays.
            found[alone, cap] = replace(least, notes=notes_on(question.protocol))
        promised[budget.id] = found[alone, cap]
    return promised


def cap_of(question: Question, budget: ClientBudget, records: int | None) -> int:
    """How often a client takes part at most; a round that was paid for twice may cost more than those by which caps are found."""
    if len(np.unique(question.rounds)) < len(question.rounds):
        return len(question.rounds)
    return min(foreseen_cap(question.protocol, budget, records), len(question.rounds))


@dataclass(frozen=True, kw_only=True)
class Needed:
    """What one mechanism needs for a guarantee: its parameter, expected magnitude and standard deviation on a coordinate.

    `width` is a staircase's, which is as wide as an upload can move; None for others.
    """

    mechanism: str
    parameter: str
    value: float
    amplitude: float
    deviation: float
    width: float | None = None
    best: bool = False


def mechanism_table(
    protocol: Protocol, unit: str = "record", *, epsilon: float, delta: float = 1e-5
) -> list[Needed]:
    """The noise that each mechanism needs for the same guarantee against the server, in the model's dimension; the least is marked.

    Example:
        >>> from sordino.protocol import Constant, Model
        >>> local = FedAvg(steps=1, batch=1, clip=0.5, schedule=Constant(rate=1.0))
        >>> protocol = Protocol(clients=5, rounds=1, local=local, noise=Gaussian(sigma=1.0), model=Model(name="mlp", parameters=1000))
        >>> [(row.mechanism, round(row.deviation, 2), row.best) for row in mechanism_table(protocol, epsilon=1.0)]
        [('gaussian', 3.73, True), ('laplace', 5.7, False), ('staircase', 32.83, False)]
    """
    if isinstance(protocol.local, NoisySgd) or protocol.keeps_models:
        raise UserError(
            "noisy-sgd, and clients that keep models, have gaussian noise alone: there are no mechanisms to compare."
        )
    if dimension_of(protocol) is None:
        raise UserError(
            "model.parameters is missing: how much noise a mechanism needs depends on it. Add it to the file."
        )
    plain = replace(protocol, client=(), penalty=False, channel="direct")
    rows = []
    for mechanism in ("gaussian", "laplace", "staircase"):
        found = calibrate(
            replace(plain, noise=sized(mechanism, 1.0, plain)),
            View.SERVER,
            unit,
            epsilon=epsilon,
            delta=delta,
        )
        noise = found.protocol.noise
        row = Needed(
            mechanism=mechanism,
            parameter=found.parameter,
            value=found.value,
            amplitude=amplitude(noise),
            deviation=deviation(noise),
        )
        rows.append(replace(row, width=noise.width) if isinstance(noise, Staircase) else row)
    least = min(row.deviation for row in rows)
    return [replace(row, best=row.deviation == least) for row in rows]


def client_lines(protocol: Protocol, sizes: Sequence[int]) -> list[str]:
    """Every client's mechanism and noise, in words."""
    lines = []
    for budget in protocol.client:
        noise = own_protocol(protocol, budget, sizes[budget.id]).noise
        name, value = parameter(noise)
        lines.append(
            f"Client {budget.id}: {noise.tag}, {name} = {rounded_up(value, 4)} for epsilon = {budget.epsilon:g}."
        )
    return lines
