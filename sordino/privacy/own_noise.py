"""Noise of a single client, by the Harmonizer of udp-fl (3.1, 3.3, Algorithm 3).

Every client may name its own budget and mechanism, and gets the noise that it needs. The noise is
calibrated for as many rounds as the client can expect to take part in, through Rényi divergences
(or Gaussian curves where the noise is Gaussian), in the model's dimension. The penalty pulls
every client k towards the last upload of the client with the largest epsilon, by lambda_k =
(eps_max - eps_k)/eps_max in every step: that upload is public then, and what it reveals is what
it reveals to the server. Nothing here looks at data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from sordino.mechanisms import mechanism_of, mechanism_of_name
from sordino.privacy.bounds.question import has_own_noise
from sordino.privacy.guarantee import round_up
from sordino.privacy.noise_search import make_target, search_noise
from sordino.privacy.upload_sensitivity import largest_move
from sordino.protocol import (
    ClientBudget,
    Everyone,
    FedAvg,
    FedProx,
    Gaussian,
    Iid,
    Mean,
    Noise,
    NoisySgd,
    Protocol,
    Registry,
    UserError,
    View,
)
from sordino.protocol.arithmetic import draw_alike

# Standard deviations above the expected number of rounds that a client's noise is made for.
CERTAIN = 3.0


def depends_on_records(protocol: Protocol, unit: str) -> bool:
    """Returns whether a client's own price depends on how many records it has.

    A record hides in batches the better the more records there are. All records of a client move an
    upload by the same distance however many there are, except where a batch may hold all of them.

    Args:
        protocol: The federation that is priced.
        unit: The hidden unit, "record" or "client".

    Example:
        >>> from sordino.protocol import Constant, FedAvg, Gaussian
        >>> local = FedAvg(steps=1, batch=1, clip=1.0, schedule=Constant(rate=0.5))
        >>> protocol = Protocol(clients=2, rounds=100, local=local, noise=Gaussian(sigma=1.0))
        >>> depends_on_records(protocol, "record"), depends_on_records(protocol, "client")
        (True, False)
    """
    return unit == "record" or protocol.release.varying_batches


def pull_of(protocol: Protocol, budget: ClientBudget) -> float:
    """Returns lambda_k = (eps_max - eps_k)/eps_max, or 0 without the penalty.

    Args:
        protocol: The federation that is priced.
        budget: The budget of the client.

    Example:
        >>> from sordino.protocol import Constant, Gaussian
        >>> local = FedAvg(steps=1, batch=1, clip=1.0, schedule=Constant(rate=0.5))
        >>> budgets = (ClientBudget(id=0, epsilon=2.0), ClientBudget(id=1, epsilon=8.0))
        >>> noise = Gaussian(sigma=1.0)
        >>> protocol = Protocol(
        ...     clients=2, rounds=5, local=local, noise=noise, client=budgets, penalty=True
        ... )
        >>> [pull_of(protocol, budget) for budget in budgets]
        [0.75, 0.0]
    """
    if not protocol.penalty:
        return 0.0
    # The client with the least noise is the one that the others are pulled to (udp-fl 3.3).
    largest = max(one.epsilon for one in protocol.client)
    return (largest - budget.epsilon) / largest


def forget_clients(protocol: Protocol) -> Protocol:
    """Returns a federation whose clients are all alike: no budgets, no pull, no weights by noise.

    Args:
        protocol: The federation that is priced.
    """
    aggregation = protocol.aggregation
    if aggregation.weighs_noise:
        aggregation = Mean(mixing=aggregation.mixing)
    alike = replace(protocol, client=(), penalty=False, aggregation=aggregation)
    return draw_alike(alike, protocol)


def own_protocol(protocol: Protocol, budget: ClientBudget, records: int | None = None) -> Protocol:
    """Returns a federation of clients that are all like one client.

    It has the client's noise, pull and number of records, and no budgets. A pull of strength lambda
    to a public model counts as a proximal term, since two runs of one client are pulled alike.

    Args:
        protocol: The federation that is priced.
        budget: The budget of the client.
        records: The number of records of the client, where known.

    Raises:
        UserError: The client's noise is to be found from its number of records, which is not known.
    """
    # A client's price must not depend on caps that follow from that price.
    alone = forget_clients(protocol)
    # A coin for every record of the federation falls as often whatever this client has.
    if records is not None and alone.data is not None and not alone.draws_coins:
        alone = replace(
            alone, data=replace(alone.data, records=records, sizes=None, partition=Iid())
        )
    pull = pull_of(protocol, budget)
    if pull > 0:
        alone = replace(alone, local=PULLED.of(alone.local)(alone.local, pull))
    if budget.mechanism is None:
        return alone
    # Noise written out by an earlier run or the user is kept: searching again might change its last
    # digit.
    if budget.noise is not None:
        return replace(alone, noise=make_noise(budget.mechanism, budget.noise, alone))
    known = alone.data.records if alone.data is not None and records is None else records
    # A guess at the records would be a guess at the noise, and too few of them is too little noise.
    if known is None and depends_on_records(alone, budget.unit):
        raise UserError(
            f"client {budget.id}: its noise is found from its budget and from how many records it "
            "has, which the protocol does not say; a run with more records finds less noise. Add "
            "data.records or data.sizes, or the noise itself to its [[client]], or price a run, "
            "which knows its clients."
        )
    return replace(alone, noise=find_noise(alone, budget, known))


# A protocol with a penalty has one of these rules.
PULLED: Registry[Callable[[Any, float], FedProx | NoisySgd]] = Registry(
    "pull to other clients", "local rule", FedAvg | FedProx | NoisySgd
)


@PULLED.register(FedAvg, FedProx)
def add_pull(rule: FedAvg, strength: float) -> FedProx:
    """Returns the rule with another pull to a public model in addition to its own.

    Args:
        rule: The local rule of the client.
        strength: The strength of the further pull.
    """
    return FedProx(
        steps=rule.steps,
        batch=rule.batch,
        clip=rule.clip,
        schedule=rule.schedule,
        clip_norm=rule.clip_norm,
        clip_target=rule.clip_target,
        minibatches=rule.minibatches,
        proximal=rule.pull + strength,
    )


@PULLED.register(NoisySgd)
def leave_steps(rule: NoisySgd, strength: float) -> NoisySgd:
    """Returns the rule unchanged: a pull after the noise is not a release (docs/theory.md#b11).

    Args:
        rule: The local rule of the client.
        strength: The strength of the pull.
    """
    return rule


def make_noise(mechanism: str, size: float, protocol: Protocol) -> Noise:
    """Returns the noise of a mechanism given by name.

    Args:
        mechanism: The name of the mechanism in the file.
        size: The parameter of the noise; the multiplier for normal noise in steps.
        protocol: The protocol, which says how far uploads, or sums of steps, move.

    Raises:
        InvalidValue: There is no such mechanism.
    """
    if protocol.release.in_steps and mechanism == Gaussian.tag:
        return Gaussian(multiplier=size, secure=protocol.noise.secure)
    noise = mechanism_of_name(mechanism).of_parameter(
        size, reach=largest_move(protocol), secure=protocol.noise.secure
    )
    # One grid holds the noise of all clients, so noise of one client alone has none.
    return noise.set_arithmetic("floats") if noise.secure else noise


@lru_cache(maxsize=256)
def find_noise(alone: Protocol, budget: ClientBudget, records: int | None) -> Noise:
    """Returns the least noise of the client's mechanism that keeps its budget.

    It keeps the budget over the rounds that the client can expect to take part in.

    Args:
        alone: The federation as the client sees it.
        budget: The budget of the client.
        records: The number of records of the client, where its price depends on them.
    """
    part = alone.participation.find_chance(clients=alone.clients)
    deviation = math.sqrt(part * (1 - part) * alone.rounds)
    # Noise for every round would be more than most clients need; one that is drawn more often than
    # this is capped by its budget.
    rounds = min(alone.rounds, math.ceil(part * alone.rounds + CERTAIN * deviation))
    certain = replace(
        alone,
        participation=Everyone(),
        rounds=rounds,
        noise=make_noise(budget.mechanism or "gaussian", 1.0, alone),
    )
    target = make_target(epsilon=budget.epsilon, delta=budget.delta)
    sizes = None if records is None else (records,) * certain.clients
    return search_noise(certain, View.SERVER, budget.unit, target, sizes).noise


def with_found_noise(protocol: Protocol, sizes: Sequence[int]) -> Protocol:
    """Returns the protocol with every client's noise written out.

    A run of it has the noise that was priced.

    Args:
        protocol: The federation that is priced.
        sizes: The number of records of every client.
    """
    if not has_own_noise(protocol):
        return protocol
    resolved = []
    for budget in protocol.client:
        if budget.mechanism is not None and budget.noise is None:
            found = own_protocol(protocol, budget, sizes[budget.id]).noise
            budget = replace(budget, noise=mechanism_of(found).parameter)
        resolved.append(budget)
    return replace(protocol, client=tuple(resolved))


def describe_client_noise(protocol: Protocol, sizes: Sequence[int]) -> list[str]:
    """Returns a line about each client's mechanism and noise.

    Args:
        protocol: The federation that is priced.
        sizes: The number of records of every client.
    """
    lines = []
    for budget in protocol.client:
        noise = own_protocol(protocol, budget, sizes[budget.id]).noise
        mechanism = mechanism_of(noise)
        lines.append(
            f"Client {budget.id}: {noise.tag}, "
            f"{mechanism.size_entry} = {round_up(mechanism.parameter, 4)} "
            f"for epsilon = {budget.epsilon:g}."
        )
    return lines
