"""How the server joins the uploads of a round, and a ball for the model to stay in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from typing import Protocol as Interface

import numpy as np

from sordino.federation.setup import Setup
from sordino.mechanisms import mechanism_of
from sordino.protocol import Aggregation, UserError
from sordino.protocol.registry import Registry


class Joining(Interface):
    """Joins the uploads of a round, one by one. It holds what it needs of them."""

    def add(self, vector: np.ndarray) -> None:
        """Takes the next upload.

        Args:
            vector: An upload.
        """

    def finish(self) -> np.ndarray:
        """Returns the next global model."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Incoming:
    """The facts known of a round's uploads before the first has come.

    Attributes:
        setup: The federation.
        current: The present global model; or a table, with one training a row.
        weights: One positive number per upload; or for each upload one per row of a table, as a
            column, zero where the client did not take part in that training.
        round_index: Number of the round, from 0.
        trainings: The number of the training, or those of the rows.
    """

    setup: Setup
    current: np.ndarray
    weights: np.ndarray
    round_index: int
    trainings: range


JOININGS: Registry[Callable[[Any, Incoming], Joining]] = Registry(
    "way to join uploads", "aggregation", Aggregation
)


def start_joining(incoming: Incoming) -> Joining:
    """Returns what joins the uploads of a round by the protocol's aggregation.

    Args:
        incoming: The facts about them.

    Raises:
        UnknownKind: No joining is registered for this aggregation.
    """
    rule = incoming.setup.protocol.aggregation
    return JOININGS.of(rule)(rule, incoming)


def upload_weights(rule: Aggregation, sizes: np.ndarray) -> np.ndarray:
    """Returns the weight of each participant's upload.

    Args:
        rule: The protocol's aggregation.
        sizes: The participants' numbers of records.

    Example:
        >>> from sordino.protocol import Mean
        >>> upload_weights(Mean(weights="records"), np.array([10, 30]))
        array([10., 30.])
    """
    if rule.weighs_records:
        return sizes.astype(np.float64)
    return np.ones(len(sizes))


def weigh_clients(setup: Setup) -> np.ndarray:
    """Returns the weight of each client's upload, up to a common factor: public numbers.

    Args:
        setup: The federation.

    Raises:
        UserError: Uploads are weighed by their noise, and one has none.
    """
    rule = setup.protocol.aggregation
    if not rule.weighs_noise:
        return upload_weights(rule, setup.sizes)
    # A multiplier is not a size of noise yet.
    noises = [setup.release.find_released_noise(noise) for noise in setup.noises]
    variances = np.array([mechanism_of(noise).deviation for noise in noises]) ** 2
    if not variances.all():
        raise UserError(
            'aggregation weights = "noise": expected noise on every upload, and client '
            f"{int(variances.argmin())} has none. Name a mechanism for it, or weigh equally."
        )
    weights: np.ndarray = variances.min() / variances
    return weights


def project_model(weights: np.ndarray, centre: np.ndarray, diameter: float) -> np.ndarray:
    """Returns the nearest model in a ball, a hair inside so that rounding cannot leave it.

    Args:
        weights: A model, or one a row.
        centre: Centre of the ball.
        diameter: Diameter of the ball.

    Example:
        >>> inside = project_model(np.array([3.0, 4.0], np.float32), np.zeros(2, np.float32), 2.0)
        >>> inside.round(4).tolist()
        [0.6000000238418579, 0.800000011920929]
    """
    move = weights.astype(np.float64) - centre
    distance = np.linalg.norm(move, axis=-1, keepdims=True)
    radius = diameter / 2 * (1 - 1e-6)
    # Rounding moves every coordinate by half a unit in its last place; a ball that is smaller than
    # that holds only its centre.
    length = np.linalg.norm(centre.astype(np.float64), axis=-1, keepdims=True)
    rounding = np.finfo(weights.dtype).eps * (length + radius)
    inside = np.maximum(radius - rounding, 0.0)
    moved = centre + move * (inside / np.maximum(distance, radius))
    return np.where(distance <= radius, weights, moved.astype(weights.dtype))
