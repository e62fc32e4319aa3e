"""Mode connectivity (udp-fl, Algorithms 1 and 2; Garipov et al. 2018): two models are joined by the bend of a path of low loss.

The path from w_1 to w_2 is a polygonal chain or a quadratic Bezier curve with one free point theta, which starts in the middle and is
trained on public records so that the loss is low along the whole path; theta then stands for both. Algorithm 1 joins all pairs of
models until one is left, but n models have n (n - 1)/2 pairs, so 4 become 6, 15, 105: it never ends. Here neighbours are joined as
in a tournament: n models take n - 1 joins.

Clients that follow Eq. 6 (`rule = "bezier"`) draw such a curve between the model that they were given and the one that they trained.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import torch

from sordino.federation.models.flat import FlatModel
from sordino.federation.models.losses import Loss
from sordino.federation.randomness import Purpose, Stream, unit_interval
from sordino.federation.setup import Setup, Tensors
from sordino.protocol import Bezier, ModeConnectivity

Point = tuple[float, float, float]  # how much of w_1, theta and w_2 is in a point of the path


def on_chain(p: float) -> Point:
    """Eq. 3: 2 (p theta + (1/2 - p) w_1) up to the middle, 2 ((p - 1/2) w_2 + (1 - p) theta) after it.

    Example:
        >>> on_chain(0.0), on_chain(0.5), on_chain(0.75)
        ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.5, 0.5))
    """
    return (1 - 2 * p, 2 * p, 0.0) if p <= 0.5 else (0.0, 2 * (1 - p), 2 * (p - 0.5))


def on_bezier(p: float) -> Point:
    """(1 - p)^2 w_1 + 2 p (1 - p) theta + p^2 w_2.

    Example:
        >>> on_bezier(0.5)
        (0.25, 0.5, 0.25)
    """
    return (1 - p) ** 2, 2 * p * (1 - p), p**2


CURVES = {"chain": on_chain, "bezier": on_bezier}


class Connector:
    """Joins models on public records. It holds one model that every step overwrites."""

    def __init__(
        self, model: FlatModel, public: Tensors, loss: Loss, rule: ModeConnectivity
    ) -> None:
        self._model, self._public, self._loss, self._rule = model, public, loss, rule

    def bend(self, first: torch.Tensor, second: torch.Tensor, stream: Stream) -> torch.Tensor:
        """Algorithm 2: the trained theta between two models, in float64."""
        rule, theta = self._rule, (first + second) / 2
        places = unit_interval(stream.words(rule.steps))
        draws = stream.numpy().integers(0, len(self._public.y), size=(rule.steps, rule.batch))
        for place, rows in zip(places.tolist(), torch.from_numpy(draws), strict=True):
            start, middle, end = CURVES[rule.curve](place)
            self._model.load((start * first + middle * theta + end * second).float())
            self._model.loss_gradient(
                self._public.inputs(rows), self._public.y.index_select(0, rows), self._loss
            )
            gradient = self._model.gradients.double()
            if bool(torch.isfinite(gradient).all()):
                theta = theta - rule.rate * middle * gradient
        return theta

    def joined(self, models: Iterable[np.ndarray], streams: Iterable[Stream]) -> np.ndarray:
        """One model for all: neighbours are joined, and whoever has no partner waits, until one is left."""
        left = [torch.from_numpy(np.asarray(model, dtype=np.float64)) for model in models]
        source = iter(streams)
        while len(left) > 1:
            pairs = [
                self.bend(left[at], left[at + 1], next(source)) for at in range(0, len(left) - 1, 2)
            ]
            left = pairs + left[len(left) - len(left) % 2 :]
        return left[0].numpy()


def bezier_update(
    start: torch.Tensor, trained: torch.Tensor, place: torch.Tensor | float
) -> torch.Tensor:
    """Eq. 6: the point at r = `place` of the quadratic Bezier curve from the trained model v (r = 0) back to the start w (r = 1).

    Theorem 5 puts its control point at theta = 1.1 w - 0.1 v + 1.2/L, a number added to a vector. It means a step of size 1/L, which
    has a direction where the step from w to v is of that size itself: then theta = 1.1 w - 0.1 v + 1.2 (v - w) = 1.1 v - 0.1 w, and
    (1 - r)^2 v + 2 r (1 - r) theta + r^2 w = w + (1 - r)(1 + 1.2 r)(v - w). All in all the client's update gets a random size.

    Example:
        >>> bezier_update(torch.zeros(2), torch.ones(2), 0.5).tolist()
        [0.800000011920929, 0.800000011920929]
    """
    return start + (1 - place) * (1 + 1.2 * place) * (trained - start)


def sent_model(
    setup: Setup, start: torch.Tensor, trained: torch.Tensor, *, training: int, round: int
) -> torch.Tensor:
    """What a client sends, before its noise: the model after its steps, or with the rule bezier the round's point on the way to it.

    r is uniform on (0, 1), public, and the same for all clients of a round, as the mean that Eq. 6 is joined to has it. A table with
    one training a row has an r for each.
    """
    if not isinstance(setup.protocol.local, Bezier):
        return trained
    words = setup.draw_key.stream(Purpose.CURVE, training=training, round=round).words(
        1, math.prod(start.shape[:-1])
    )
    places = torch.from_numpy(unit_interval(words)).to(trained.device)
    return bezier_update(start.double(), trained, places.reshape(*start.shape[:-1], 1))
