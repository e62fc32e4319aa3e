"""Scores trainings by the likelihood ratio of noisy steps on synthetic losses.

Ratios of steps add up. The adversary sees whether a client took part, as in the mixture of
docs/theory.md#c4, which is then attained (docs/theory.md#c3).
"""

from __future__ import annotations

import numpy as np

from sordino.audit.round_table import RoundTable
from sordino.audit.worst_cases.noisy_step_pair import StepPair
from sordino.mechanisms import mechanism_of
from sordino.protocol import Gaussian, Noise
from sordino.protocol.aggregation_kinds import find_mixing
from sordino.protocol.release import noisy_steps_of, noisy_upload_of


class StepAdversary:
    """Scores trainings by the attacked client's noisy steps, or by the sum over all clients.

    Args:
        pair: The two federations.
        trainings: The numbers of the trainings that are scored.
        colluders: How many clients tell the adversary their noise.

    Attributes:
        scores: One score per training; it grows as rounds are seen.
    """

    def __init__(self, pair: StepPair, trainings: range, colluders: int = 0) -> None:
        release = noisy_steps_of(pair.zero.protocol)
        self._pair = pair
        self._batch = release.batch
        self._noise: Noise = release.sum_noise
        if mechanism_of(self._noise).silent:
            # Without noise every ratio is infinite; a scale of 1 keeps it finite.
            self._noise = Gaussian(sigma=1.0)
        self._colluders = colluders
        self.scores = np.zeros(len(trainings))

    def see(self, seen: RoundTable) -> None:
        """Takes in one round.

        Args:
            seen: The round of all trainings.
        """
        sums = self._noisy_sums(seen, self._pair.attacked)
        direction = self._pair.direction
        if self._pair.joined:
            self._see_mean(seen, sums[:, 0] @ direction)
            return
        zero, one = self._pair.laws
        for step in range(sums.shape[1]):
            vectors = sums[:, step]
            ratio = one.log_density(vectors, direction, self._noise)
            ratio -= zero.log_density(vectors, direction, self._noise)
            self.scores += seen.present[:, self._pair.attacked] * ratio

    def _noisy_sums(self, seen: RoundTable, client: int) -> np.ndarray:
        """Returns a client's noisy sums, (trainings, steps, parameters)."""
        return seen.means[client].astype(np.float64) * self._batch

    def _sum_along_line(self, seen: RoundTable, client: int) -> np.ndarray:
        """Returns a client's noisy sum along the line, one for each training; it makes one step."""
        return np.asarray(self._noisy_sums(seen, client)[:, 0] @ self._pair.direction)

    def _see_mean(self, seen: RoundTable, own: np.ndarray) -> None:
        """Takes in the sum over all honest participants.

        The records of all clients but the attacked one pull nowhere, so the others add only noise.
        """
        present = seen.present.astype(bool)
        total = own.copy()
        honest = np.ones(len(own))
        left = np.full(len(own), self._colluders)
        for client in range(present.shape[1]):
            if client == self._pair.attacked:
                continue
            colludes = present[:, client] & (left > 0)
            left -= colludes
            hides = present[:, client] & ~colludes
            if hides.any():
                total += np.where(hides, self._sum_along_line(seen, client), 0.0)
                honest += hides
        zero, one = self._pair.laws
        # Sums of normal noise are normal again; other noise is not joined.
        deviation = (mechanism_of(self._noise).deviation * np.sqrt(honest))[:, None]
        ratio = one.log_density_on_line(total, deviation)
        ratio -= zero.log_density_on_line(total, deviation)
        self.scores += present[:, self._pair.attacked] * ratio


class LotAdversary:
    """Scores trainings by the attacked client's share of a lot, or by the sum over all clients.

    The records of all clients but the attacked one pull nowhere, so the others add only noise.

    Args:
        pair: The two federations.
        trainings: The numbers of the trainings that are scored.
        colluders: How many clients tell the adversary their noise.

    Attributes:
        scores: One score per training; it grows as rounds are seen.
    """

    def __init__(self, pair: StepPair, trainings: range, colluders: int = 0) -> None:
        protocol = pair.zero.protocol
        release = noisy_upload_of(protocol)
        if release.lot is None:
            raise TypeError("no lot is drawn")
        self._pair = pair
        self._lot = release.lot
        self._fixed = protocol.aggregation.fixed_denominator
        self._rule = protocol.aggregation
        # Noise on a client's sum, and the server's on the mean.
        self._client_deviation = release.client_sigma * self._lot.batch
        self._server_deviation = release.server_sigma * self._lot.batch
        self._colluders = colluders
        self.scores = np.zeros(len(trainings))

    def see(self, seen: RoundTable) -> None:
        """Takes in one round.

        Args:
            seen: The round of all trainings.
        """
        if self._pair.joined:
            sums, deviations = self._read_joined(seen)
        else:
            sums = self._read_sums(seen, seen.uploads[self._pair.attacked])
            deviations = np.full(len(sums), self._client_deviation)
        # Without noise every ratio is infinite; a scale of 1 keeps it finite.
        deviation = np.where(deviations > 0, deviations, 1.0)[:, None]
        zero, one = self._pair.laws
        ratio = one.log_density_on_line(sums, deviation)
        ratio -= zero.log_density_on_line(sums, deviation)
        self.scores += np.where(seen.present[:, self._pair.attacked], ratio, 0.0)

    def _read_sums(self, seen: RoundTable, models: np.ndarray) -> np.ndarray:
        """Returns the sums by which models were moved, along the line."""
        moves = seen.before.astype(np.float64) - models
        sums: np.ndarray = (moves @ self._pair.direction) * self._lot.batch
        return sums

    def _read_joined(self, seen: RoundTable) -> tuple[np.ndarray, np.ndarray]:
        """Returns the sums over all honest participants, and their noise's standard deviation."""
        present = seen.present.astype(bool)
        number = present.sum(axis=1)
        divisor = np.full(len(number), self._lot.clients) if self._fixed else number
        total = self._read_sums(seen, seen.joined) * divisor / find_mixing(self._rule, seen.round)
        left = np.full(len(number), self._colluders)
        honest = number.copy()
        for client in range(present.shape[1]):
            if client == self._pair.attacked:
                continue
            colludes = present[:, client] & (left > 0)
            left -= colludes
            honest -= colludes
            total -= np.where(colludes, self._read_sums(seen, seen.uploads[client]), 0.0)
        clients = self._client_deviation * np.sqrt(honest)
        return total, np.hypot(clients, self._server_deviation * divisor)
