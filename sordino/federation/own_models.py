"""Scores clients' personal models, each on test records with the labels of its client.

These scores are exact, and which records a model is scored on follows from the labels of its
client's records: no guarantee covers them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from sordino.data.partition import draw_client_tests
from sordino.federation.personal import OWN_MODEL
from sordino.federation.processors import single_threaded
from sordino.federation.setup import Setup
from sordino.federation.state import State
from sordino.models.flat import FlatModel


@dataclass(frozen=True, kw_only=True)
class OwnScores:
    """Holds how accurate clients' personal models are.

    Attributes:
        mean: The mean over the clients.
        worst: The accuracy of the client that has it worst.
        spread: The standard deviation over the clients.
    """

    mean: float
    worst: float
    spread: float


class OwnModelScorer:
    """Scores the personal models of all clients.

    It holds a model that every call overwrites, and the test records of every client.

    Example:
        >>> OwnModelScorer(setup).score(state).mean  # doctest: +SKIP
        0.86
    """

    def __init__(self, setup: Setup) -> None:
        """Draws every client's test records, as `sordino evaluate --clients` draws them.

        Args:
            setup: The federation.

        Raises:
            ValueError: Its clients have no models that could be scored; see `has_own_scores`.
        """
        if setup.shares is None:
            raise ValueError("it is not known which labels a client has")
        self._setup = setup
        self._model = FlatModel(setup.module)
        counts = np.array(setup.shares.counts)
        tests = draw_client_tests(counts, setup.test.y.numpy(), setup.key)
        # A client whose labels no test record has is left out.
        self._tests = {
            client: torch.from_numpy(rows) for client, rows in enumerate(tests) if len(rows) > 0
        }

    def score(self, state: State) -> OwnScores:
        """Returns how accurate the clients' personal models are.

        A client that has not taken part yet is given the global model.

        Args:
            state: The state after a round.
        """
        found = []
        # So few records at a time are passed faster by one thread.
        with single_threaded():
            for client, rows in self._tests.items():
                own = state.clients.get(client, {}).get(OWN_MODEL, state.weights)
                found.append(self._measure_accuracy(own, rows))
        return OwnScores(
            mean=float(np.mean(found)), worst=float(np.min(found)), spread=float(np.std(found))
        )

    def _measure_accuracy(self, weights: np.ndarray, rows: torch.Tensor) -> float:
        # Rounds may keep personal models in double precision; files have them in that of the model.
        self._model.load(torch.from_numpy(weights.astype(np.float32)))
        answers = self._model.predict(self._setup.test.inputs(rows)).argmax(dim=1)
        return float((answers == self._setup.test.y[rows]).double().mean())


def has_own_scores(setup: Setup) -> bool:
    """Returns whether clients keep models that can be scored here.

    Across machines they stay with their clients, and so do the labels of records.

    Args:
        setup: The federation.
    """
    known = setup.shares is not None and setup.classification and len(setup.test.y) > 0
    return setup.protocol.keeps_models and known
