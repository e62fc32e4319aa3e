"""How much noise each mechanism needs for the same guarantee."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import get_args

from sordino.mechanisms import mechanism_of
from sordino.privacy.calibrate import calibrate
from sordino.privacy.noise_releases import dimension_of
from sordino.privacy.own_noise import forget_clients, make_noise
from sordino.protocol import Direct, OwnMechanism, Protocol, UserError, View, noisy_steps_of


@dataclass(frozen=True, kw_only=True)
class Needed:
    """What one mechanism needs for a guarantee.

    Attributes:
        mechanism: The name of the mechanism.
        parameter: The entry of [noise] that sets the size of the noise.
        value: The value of that entry.
        amplitude: The expected magnitude of the noise on a coordinate.
        deviation: The standard deviation of the noise on a coordinate.
        width: The width of a staircase, which is as far as an upload can move; None for others.
        best: Whether no other mechanism needs less noise.
    """

    mechanism: str
    parameter: str
    value: float
    amplitude: float
    deviation: float
    width: float | None = None
    best: bool = False


def mechanism_table(
    protocol: Protocol,
    unit: str = "record",
    *,
    epsilon: float,
    delta: float = 1e-5,
) -> list[Needed]:
    """Returns the noise that each mechanism needs for the same guarantee against the server.

    Args:
        protocol: A protocol that says how many parameters the model has.
        unit: The hidden unit, "record" or "client".
        epsilon: The epsilon of the guarantee.
        delta: The delta of the guarantee.

    Returns:
        A row for each mechanism; the one with the least noise is marked.

    Raises:
        UserError: There are no mechanisms to compare, or the dimension is not known.

    Example:
        >>> from sordino.protocol import Constant, FedAvg, Gaussian, Model
        >>> local = FedAvg(steps=1, batch=1, clip=0.5, schedule=Constant(rate=1.0))
        >>> model = Model(name="mlp", parameters=1000)
        >>> noise = Gaussian(sigma=1.0)
        >>> protocol = Protocol(clients=5, rounds=1, local=local, noise=noise, model=model)
        >>> rows = mechanism_table(protocol, epsilon=1.0)
        >>> [(row.mechanism, round(row.deviation, 2), row.best) for row in rows]
        [('gaussian', 3.73, True), ('laplace', 5.7, False), ('staircase', 32.83, False)]
    """
    # Prices of models that are kept without noise are proved only for normal noise.
    if protocol.keeps_models and not protocol.release.in_steps:
        raise UserError(
            "clients that keep models have only gaussian noise: there are no mechanisms to compare."
        )
    if dimension_of(protocol) is None:
        raise UserError(
            "model.parameters is missing: how much noise a mechanism needs depends on it. "
            "Add it to the file."
        )
    # One client against the server: budgets, pulls and a shuffler would be compared along with the
    # noise.
    plain = replace(forget_clients(protocol), channel=Direct())
    rows = []
    for mechanism in get_args(OwnMechanism):
        found = calibrate(
            replace(plain, noise=make_noise(mechanism, 1.0, plain)),
            View.SERVER,
            unit,
            epsilon=epsilon,
            delta=delta,
        )
        noise = found.protocol.noise
        released = mechanism_of(noise)
        if plain.release.in_steps:
            # A multiplier counts in units of the sum's move; noise is compared on the sum itself.
            released = mechanism_of(noisy_steps_of(found.protocol).sum_noise)
        row = Needed(
            mechanism=mechanism,
            parameter=found.parameter,
            value=found.value,
            amplitude=released.amplitude,
            deviation=released.deviation,
        )
        rows.append(replace(row, width=getattr(noise, "width", None)))
    # By standard deviation, which is what the noise does to a mean of many uploads.
    least = min(row.deviation for row in rows)
    return [replace(row, best=row.deviation == least) for row in rows]
