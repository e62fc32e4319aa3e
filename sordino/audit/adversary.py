"""What an adversary makes of what it sees: the likelihood ratio that its view allows, training by training.

The adversary knows the protocol, both data sets and every draw but the noise. So it can repeat each client's steps from a model that it
has seen, and knows what an upload would be without noise on either data set; only the noise keeps it from the answer.
"""

from __future__ import annotations

import math

import numpy as np

from sordino.audit.worst_case import Pair
from sordino.federation.aggregation import upload_weights
from sordino.federation.many import ManyClients, ManyRound
from sordino.federation.mechanisms import log_density
from sordino.privacy.central import denominator, fixed_denominator, hidden, server_noise
from sordino.privacy.mechanisms import deviation
from sordino.protocol import Gaussian, Mean, View


class Adversary:
    """Scores many trainings by what one view shows of them; a high score speaks for the neighbour.

    It holds the scores so far: let it see the rounds in order, then read `scores`.
    """

    def __init__(self, pair: Pair, view: View, trainings: range) -> None:
        self._pair, self._view, self._first = pair, view, trainings.start
        self._clients = ManyClients(pair.zero), ManyClients(pair.one)
        self._shares = upload_weights(pair.zero.protocol.aggregation, pair.zero.sizes)
        self._sums = np.zeros(len(trainings))
        self._direction: np.ndarray | None = None
        self._last = np.zeros((len(trainings), 1))

    @property
    def scores(self) -> np.ndarray:
        """One number per training."""
        if self._view != View.FINAL or self._direction is None:
            return self._sums
        length = float(np.linalg.norm(self._direction))
        return self._last @ (self._direction / (length if length > 0 else 1.0))

    def see(self, seen: ManyRound) -> None:
        """Take in one round."""
        low, high = (clients.trained(client=self._pair.attacked, round=seen.round, weights=seen.before, first=self._first).numpy()
                     for clients in self._clients)  # fmt: skip
        difference, middle = high - low, (high + low) / 2
        if self._view == View.FINAL:
            # The last model is read along the direction in which the two data sets pull.
            pull = difference.sum(axis=0)
            self._direction = pull if self._direction is None else self._direction + pull
            self._last = seen.after.astype(np.float64)
        elif self._view == View.SERVER:
            self._see_uploads(seen, difference, middle)
        else:
            self._see_model(seen, difference, middle)

    def _see_uploads(self, seen: ManyRound, difference: np.ndarray, middle: np.ndarray) -> None:
        """The attacked client's own upload; behind a shuffler nobody knows which it is, so all are weighed alike."""
        if self._pair.zero.protocol.channel == "shuffler":
            ratios = np.stack([self._ratio(upload - middle, difference) for upload in seen.uploads], axis=1)
            self._sums += np.logaddexp.reduce(np.where(seen.present, ratios, -np.inf), axis=1, initial=-700.0)
            return
        upload = seen.uploads[self._pair.attacked]
        self._sums += seen.present[:, self._pair.attacked] * self._ratio(upload - middle, difference)

    def _see_model(self, seen: ManyRound, difference: np.ndarray, middle: np.ndarray) -> None:
        """Every global model, minus what the colluders know of it: the noise that they added themselves."""
        protocol, attacked = self._pair.zero.protocol, self._pair.attacked
        rule = protocol.aggregation
        if hidden(protocol):  # who took part is not seen: the model's move along the direction of the two updates is
            self._sums += np.einsum("nd,nd->n", seen.after - seen.before.astype(np.float64), difference)
            return
        mixing = rule.mixing if isinstance(rule, Mean) else 1.0
        weights = seen.present * self._shares
        total = np.maximum(weights.sum(axis=1, keepdims=True), 1e-300)
        shares = weights / (denominator(protocol) if fixed_denominator(protocol) else total)
        colluders = self._colluders()
        rest = seen.after - (1 - mixing) * seen.before.astype(np.float64) - mixing * shares[:, [attacked]] * middle
        for like, models in self.expected_models(seen).items():
            group = [c for c in range(shares.shape[1]) if self._clients[0].alike.like[c] == like and c != attacked]
            rest -= mixing * shares[:, group].sum(axis=1, keepdims=True) * models
            for colluder in set(group) & colluders:
                rest -= mixing * shares[:, [colluder]] * (seen.uploads[colluder] - models)
        honest = [c for c in range(shares.shape[1]) if c not in colluders]
        if fixed_denominator(protocol):
            rest -= mixing * (1 - shares.sum(axis=1, keepdims=True)) * seen.before
        clients = 0.0 if protocol.noise.where == "server" else deviation(protocol.noise) ** 2
        server = server_noise(protocol) if isinstance(protocol.noise, Gaussian) else deviation(protocol.noise) - math.sqrt(clients)
        variance = mixing**2 * (np.square(shares[:, honest]).sum(axis=1) * clients + server**2)
        self._sums += self._ratio(rest, mixing * shares[:, [attacked]] * difference, variance)

    def expected_models(self, seen: ManyRound) -> dict[int, np.ndarray]:
        """Models without noise of the clients that are not attacked, by the first client of each kind."""
        clients, attacked = self._clients[0], self._pair.attacked
        kinds = {int(clients.alike.like[c]) for c in range(len(clients.alike.like)) if c != attacked}
        return {
            like: clients.trained(client=like, round=seen.round, weights=seen.before, first=self._first).numpy() for like in sorted(kinds)
        }

    def _colluders(self) -> set[int]:
        """The attacked client's worst enemies: those with the largest shares."""
        others = [c for c in np.argsort(-self._shares, kind="stable").tolist() if c != self._pair.attacked]
        return set(others[: self._view.colluders])

    def _ratio(self, rest: np.ndarray, difference: np.ndarray, variance: np.ndarray | float | None = None) -> np.ndarray:
        """The logarithm of the likelihood ratio of two laws whose middles lie `difference` apart around 0.

        Of one upload's noise, or of normal noise with this variance.
        """
        noise = self._pair.zero.protocol.noise
        if not isinstance(noise, Gaussian) and variance is None:
            return (log_density(noise, rest - difference / 2) - log_density(noise, rest + difference / 2)).sum(axis=1)
        variance = deviation(noise) ** 2 if variance is None else variance
        ratio = np.einsum("nd,nd->n", rest, difference)
        return np.asarray(ratio / np.where(np.asarray(variance) > 0, variance, 1.0))


def residuals(setup_clients: ManyClients, seen: ManyRound, count: int, first: int) -> np.ndarray:
    """What is left of the uploads of the first trainings when the known models are taken away: (trainings, clients, parameters)."""
    like = setup_clients.alike.like
    models = {
        int(kind): setup_clients.trained(client=int(kind), round=seen.round, weights=seen.before[:count], first=first).numpy()
        for kind in np.unique(like)
    }
    left = np.stack([seen.uploads[c, :count] - models[int(like[c])] for c in range(len(like))], axis=1)
    left[~seen.present[:count]] = np.nan
    return left
