"""Mode connectivity: models are joined by the bend of a path (udp-fl, Algorithms 1 and 2).

The path from w_1 to w_2 is a polygonal chain or a quadratic Bezier curve with one free point theta,
which starts in the middle and is trained on public records so that the loss is low along the whole
path; theta then represents both. Algorithm 1 joins all pairs of models until one is left, but n
models have n (n - 1)/2 pairs, so 4 become 6, 15, 105: it never ends. Here neighbours are joined as
in a tournament: n models take n - 1 joins.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from sordino.federation.aggregation.joining import JOININGS, Incoming
from sordino.federation.record_tensors import Tensors
from sordino.federation.setup import Setup
from sordino.models.flat import FlatModel
from sordino.models.task_losses import Loss, module_loss
from sordino.protocol import ModeConnectivity, UserError
from sordino.randomness import Purpose, Stream
from sordino.uniform_words import unit_interval

Point = tuple[float, float, float]  # how much of w_1, theta and w_2 is in a point of the path


def on_chain(p: float) -> Point:
    """Returns the point of a polygonal chain (udp-fl Eq. 3).

    It is 2 (p theta + (1/2 - p) w_1) up to the middle, 2 ((p - 1/2) w_2 + (1 - p) theta) after it.

    Args:
        p: The place on the curve, from 0 to 1.

    Returns:
        The shares of w_1, theta and w_2.

    Example:
        >>> on_chain(0.0), on_chain(0.5), on_chain(0.75)
        ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.5, 0.5))
    """
    if p <= 0.5:
        return (1 - 2 * p, 2 * p, 0.0)
    return (0.0, 2 * (1 - p), 2 * (p - 0.5))


def on_bezier(p: float) -> Point:
    """(1 - p)^2 w_1 + 2 p (1 - p) theta + p^2 w_2.

    Args:
        p: The place on the curve, from 0 to 1.

    Example:
        >>> on_bezier(0.5)
        (0.25, 0.5, 0.25)
    """
    return (1 - p) ** 2, 2 * p * (1 - p), p**2


CURVES = {"chain": on_chain, "bezier": on_bezier}


class Connector:
    """Joins models on public records. It holds one model that every step overwrites."""

    def __init__(
        self,
        model: FlatModel,
        public: Tensors,
        loss: Loss,
        rule: ModeConnectivity,
    ) -> None:
        self._model, self._public, self._loss, self._rule = model, public, loss, rule

    def bend(self, first: torch.Tensor, second: torch.Tensor, stream: Stream) -> torch.Tensor:
        """Algorithm 2: the trained theta between two models, in float64.

        Args:
            first: One end of the curve.
            second: The other end.
            stream: The source of the draws.
        """
        rule, theta = self._rule, (first + second) / 2
        places = unit_interval(stream.words(rule.steps))
        draws = stream.numpy_generator().integers(
            0, len(self._public.y), size=(rule.steps, rule.batch)
        )
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
        """Returns one model for all: neighbours are joined two by two, until one is left.

        A model without a partner waits for the next turn.

        Args:
            models: The uploads.
            streams: The source of draws of every bend.
        """
        left = [torch.from_numpy(np.asarray(model, dtype=np.float64)) for model in models]
        source = iter(streams)
        while len(left) > 1:
            joined = []
            for first in range(0, len(left) - 1, 2):
                joined.append(self.bend(left[first], left[first + 1], next(source)))
            unpaired = left[len(left) - len(left) % 2 :]
            left = joined + unpaired
        return left[0].numpy()


class ConnectivityJoining:
    """Collects uploads and joins them by mode connectivity. It holds all of them."""

    def __init__(self, rule: ModeConnectivity, incoming: Incoming) -> None:
        """Begins without uploads.

        Args:
            rule: How a bend is trained.
            incoming: The facts about the uploads.

        Raises:
            UserError: Many trainings side by side.
        """
        if incoming.current.ndim > 1:
            raise UserError(
                "trainings side by side know no mode connectivity, which trains on public records:"
                " train them one by one."
            )
        self._rule = rule
        self._incoming = incoming
        self._uploads: list[np.ndarray] = []

    def add(self, vector: np.ndarray) -> None:
        """Takes the next upload.

        Args:
            vector: An upload.
        """
        self._uploads.append(vector)

    def finish(self) -> np.ndarray:
        """Returns the next global model; without uploads it stays as it is."""
        setup = self._incoming.setup
        current = self._incoming.current
        if not self._uploads:
            return current
        streams = [self._join_stream(setup, join) for join in range(len(self._uploads))]
        # One thread, so that the result is the same on every machine.
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            connector = Connector(
                FlatModel(setup.module),
                server_records(setup),
                module_loss(setup.module, server_records(setup).y),
                self._rule,
            )
            return connector.joined(self._uploads, streams).astype(current.dtype)
        finally:
            torch.set_num_threads(threads)

    def _join_stream(self, setup: Setup, join: int) -> Stream:
        return setup.key.stream(
            Purpose.CONNECTIVITY,
            training=setup.training,
            round_index=self._incoming.round_index,
            step=join,
        )


def server_records(setup: Setup) -> Tensors:
    """Returns the public records of the server.

    Args:
        setup: The federation.

    Raises:
        RuntimeError: The setup was made without them.
    """
    if setup.public is None:
        raise RuntimeError("mode connectivity without public records")
    return setup.public


@JOININGS.register(ModeConnectivity)
def join_by_connectivity(rule: ModeConnectivity, incoming: Incoming) -> ConnectivityJoining:
    """Returns an empty collection for a round's uploads.

    Args:
        rule: The rule, with its settings.
        incoming: The facts about the uploads to come.
    """
    return ConnectivityJoining(rule, incoming)
