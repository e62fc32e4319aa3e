"""What an adversary makes of what it sees: the likelihood ratio that its view allows, training by training.

The adversary knows the protocol, both data sets and every draw but the noise. So it can repeat each client's steps from a model that it
has seen, and knows what an upload would be without noise on either data set; only the noise keeps it from the answer.
"""

from __future__ import annotations

from typing import Protocol as Interface

import numpy as np
from torch import Tensor

from sordino.federation.aggregation import upload_weights
from sordino.federation.many import ManyRound
from sordino.federation.setup import Setup
from sordino.protocol import Mean, View


class LocalModels(Interface):
    """Who can say what a client's model is after its steps, without noise, in one training or in many at once."""

    like: np.ndarray  # for each client, the first one whose models are the same

    def trained(self, *, client: int, round: int, weights: np.ndarray, first: int) -> Tensor:
        """The client's models, one training a row; `first` is the number of the training in the first row."""


class Adversary:
    """Scores trainings by what one view shows of them; a high score speaks for the neighbour.

    It holds the scores so far: let it see the rounds in order, then read `scores`.

    Args:
        setup: the federation, with either data set.
        attacked: the client whose unit differs.
        clients: local models on the data set and on its neighbour.
        view: what is seen.
        trainings: the numbers of the trainings that are scored.
        direction: along which the last model is read, for who sees nothing else.
    """

    def __init__(
        self,
        setup: Setup,
        attacked: int,
        clients: tuple[LocalModels, LocalModels],
        view: View,
        trainings: range,
        direction: np.ndarray | None = None,
    ) -> None:
        self._protocol, self._attacked, self._clients, self._view = setup.protocol, attacked, clients, view
        self._first, self._direction = trainings.start, direction
        self._shares = upload_weights(setup.protocol.aggregation, setup.sizes)
        self.scores = np.zeros(len(trainings))

    def see(self, seen: ManyRound) -> None:
        """Take in one round."""
        if self._direction is not None:
            self.scores = seen.after.astype(np.float64) @ self._direction  # of the last model, once all rounds were seen
            return
        low, high = (
            clients.trained(client=self._attacked, round=seen.round, weights=seen.before, first=self._first).numpy().astype(np.float64)
            for clients in self._clients
        )
        if self._view == View.SERVER:
            ratio = self._ratio(seen.uploads[self._attacked] - (high + low) / 2, high - low, 1.0)
            self.scores += seen.present[:, self._attacked] * ratio
        else:
            self._see_model(seen, high - low, (high + low) / 2)

    def _see_model(self, seen: ManyRound, difference: np.ndarray, middle: np.ndarray) -> None:
        """Every global model, minus what the colluders know of it: the noise that they added themselves."""
        rule, attacked = self._protocol.aggregation, self._attacked
        mixing = rule.mixing if isinstance(rule, Mean) else 1.0
        weights = seen.present * self._shares
        shares = weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-300)
        colluders = self._colluders()
        rest = seen.after - (1 - mixing) * seen.before.astype(np.float64) - mixing * shares[:, [attacked]] * middle
        for like, group in self._others(seen.present).items():
            models = self._clients[0].trained(client=like, round=seen.round, weights=seen.before, first=self._first).numpy()
            rest -= mixing * shares[:, group].sum(axis=1, keepdims=True) * models
            for colluder in set(group) & colluders:
                rest -= mixing * shares[:, [colluder]] * (seen.uploads[colluder] - models)
        honest = [c for c in range(shares.shape[1]) if c not in colluders]
        spread = mixing**2 * np.square(shares[:, honest]).sum(axis=1)
        self.scores += self._ratio(rest, mixing * shares[:, [attacked]] * difference, spread)

    def _others(self, present: np.ndarray) -> dict[int, list[int]]:
        """The clients that took part somewhere and are not attacked, in groups of equal models."""
        groups: dict[int, list[int]] = {}
        for client in np.flatnonzero(present.any(axis=0)).tolist():
            if client != self._attacked:
                groups.setdefault(int(self._clients[0].like[client]), []).append(client)
        return groups

    def _colluders(self) -> set[int]:
        """The attacked client's worst enemies: those with the largest shares."""
        others = [c for c in np.argsort(-self._shares, kind="stable").tolist() if c != self._attacked]
        return set(others[: self._view.colluders])

    def _ratio(self, rest: np.ndarray, difference: np.ndarray, spread: np.ndarray | float) -> np.ndarray:
        """The logarithm of the likelihood ratio of two normal laws with equal spread, whose means lie `difference` apart around 0."""
        variance = spread * self._protocol.noise.sigma**2
        ratio = np.einsum("nd,nd->n", rest, difference)
        return np.asarray(ratio / np.where(np.asarray(variance) > 0, variance, 1.0))


def residuals(clients: LocalModels, seen: ManyRound, count: int, first: int) -> np.ndarray:
    """What is left of the uploads of the first trainings when the known models are taken away: (trainings, clients, parameters)."""
    models = {
        int(kind): clients.trained(client=int(kind), round=seen.round, weights=seen.before[:count], first=first).numpy()
        for kind in np.unique(clients.like)
    }
    left = np.stack([seen.uploads[c, :count] - models[int(like)] for c, like in enumerate(clients.like)], axis=1)
    left[~seen.present[:count]] = np.nan
    return left
