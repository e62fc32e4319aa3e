"""Scores trainings by the likelihood ratio of what an adversary sees.

The adversary knows the protocol, both data sets and every draw except the noise. So it can repeat
each client's steps from a model that it has seen, and knows what an upload would be without noise
on either data set; only the noise hides which of the two was trained on.

Draws that the bound treats as hidden are hidden from it: participation if only the server knows it,
the minibatches of noisy steps (see `step_ratio`), and secret minibatches. With secret minibatches
the upload without noise is known on the data set, and on its neighbour it is away from that by a
share of a known move, which depends on the steps that drew the record. The likelihood ratio is a
mean over these shares.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
from scipy.stats import binom

from sordino.audit.observation import count_colluders, find_given_observation
from sordino.audit.repeated_work import WorkRepeater
from sordino.audit.round_table import RoundTable
from sordino.federation.aggregation.joining import weigh_clients
from sordino.federation.setup import Setup
from sordino.mechanisms import mechanism_of
from sordino.privacy.bounds.central_cohorts import find_denominator, server_noise
from sordino.privacy.bounds.question import Observation
from sordino.privacy.sensitivity import later_products
from sordino.protocol import Noise, Protocol, View
from sordino.protocol.aggregation_kinds import find_mixing

# With more steps, all patterns of steps that draw a record equally often count as one.
MANY_STEPS = 6

Shares = list[tuple[float, float]]  # shares of a move, each with the logarithm of its probability


class Adversary:
    """Scores trainings by uploads, by global models or by the last one.

    A high score speaks for the neighbour. It holds the scores so far and, if the attacked client
    keeps a model, that model on either data set: show it the rounds in order, then read `scores`.

    Args:
        setup: The federation, with either data set.
        attacked: The client whose unit differs.
        clients: The two repeaters of local work, on the data set and on its neighbour.
        view: The adversary.
        trainings: The numbers of the trainings that are scored.
        direction: The line along which the last model is read; None if more is seen.
        unseen: Whether minibatches are unknown; the second of `clients` then has the neighbour's
            record in every minibatch.

    Attributes:
        scores: One score per training.
    """

    def __init__(
        self,
        setup: Setup,
        attacked: int,
        clients: tuple[WorkRepeater, WorkRepeater],
        view: View,
        trainings: range,
        direction: np.ndarray | None = None,
        *,
        unseen: bool = False,
    ) -> None:
        protocol = setup.protocol
        self._protocol = protocol
        self._attacked = attacked
        self._clients = clients
        self._given = find_given_observation(protocol, view)
        self._first = trainings.start
        self._direction = direction
        self._records = len(setup.parts[attacked]) if unseen else None
        self._weights = weigh_clients(setup)
        self._noise = setup.noises[attacked]
        # The protocol's noise may be stated as a multiplier; the release has its size.
        self._common_noise = protocol.release.noise
        self._colluders = self._choose_colluders(count_colluders(protocol, view))
        start = setup.initial_weights()
        own = np.broadcast_to(start, (len(trainings), start.size))
        self._own = [own, own]
        self.scores = np.zeros(len(trainings))

    def _choose_colluders(self, number: int) -> set[int]:
        """Returns the clients with the largest weights, whose noise would hide the most."""
        ranked = np.argsort(-self._weights, kind="stable").tolist()
        others = [client for client in ranked if client != self._attacked]
        return set(others[:number])

    def see(self, seen: RoundTable) -> None:
        """Takes in one round.

        Args:
            seen: The round of all trainings.
        """
        self._mixing = find_mixing(self._protocol.aggregation, seen.round)
        if self._direction is not None:
            # Every round overwrites the scores, so that in the end only the last model counts.
            self.scores = seen.after.astype(np.float64) @ self._direction
            return
        hidden = self._given == Observation.MODELS and self._protocol.hides_participants
        if not hidden and not bool(seen.present[:, self._attacked].any()):
            return
        low = self._attacked_models(0, seen)
        high = self._attacked_models(1, seen)
        if hidden:
            self._see_hidden_participation(seen, low, high)
        elif self._given != Observation.UPLOADS:
            self._see_model(seen, high - low, (high + low) / 2)
        elif self._records is not None:
            self._see_upload_of_secret_batches(seen, low, high)
        elif self._protocol.release.shuffled:
            self._see_shuffled_uploads(seen, low, high)
        else:
            self._see_upload(seen, low, high)

    def _attacked_models(self, side: int, seen: RoundTable) -> np.ndarray:
        """Returns the attacked client's models without noise, on one of the data sets.

        If it keeps a model between rounds, that model is followed on either data set.
        """
        kept = dict(seen.kept.get(self._attacked, {}))
        if self._protocol.keeps_models:
            kept["model"] = self._own[side]
        work = self._clients[side].work(
            client=self._attacked,
            round_index=seen.round,
            weights=seen.broadcast,
            first=self._first,
            kept=kept,
        )
        vectors = work.models.numpy()
        if self._protocol.keeps_models:
            present = seen.present[:, [self._attacked]]
            self._own[side] = np.where(present, vectors, self._own[side])
        return vectors.astype(np.float64)

    def _known_models(self, client: int, seen: RoundTable) -> np.ndarray:
        """Returns the models without noise of a client whose data are the same on both sides."""
        work = self._clients[0].work(
            client=client,
            round_index=seen.round,
            weights=seen.broadcast,
            first=self._first,
            kept=seen.kept.get(client, {}),
        )
        return work.models.numpy()

    def _see_upload(self, seen: RoundTable, low: np.ndarray, high: np.ndarray) -> None:
        """Takes in the attacked client's upload."""
        upload = seen.uploads[self._attacked]
        ratio = log_density(self._noise, upload - high) - log_density(self._noise, upload - low)
        self.scores += seen.present[:, self._attacked] * ratio

    def _see_shuffled_uploads(self, seen: RoundTable, low: np.ndarray, high: np.ndarray) -> None:
        """Takes in all uploads: any of them may be the attacked client's."""
        groups = self._group_others(seen.present)
        usual = (high + low) / 2
        if len(groups) == 1:
            usual = self._known_models(next(iter(groups)), seen)
        # Each upload is compared with what the others would send.
        middle = [log_density(self._noise, upload - usual) for upload in seen.uploads]
        for sign, models in ((1.0, high), (-1.0, low)):
            ratios = []
            for upload, law in zip(seen.uploads, middle, strict=True):
                ratios.append(log_density(self._noise, upload - models) - law)
            table = np.where(seen.present, np.stack(ratios, axis=1), -np.inf)
            total = np.logaddexp.reduce(table, axis=1)
            self.scores += sign * np.where(seen.present[:, self._attacked], total, 0.0)

    def _see_upload_of_secret_batches(
        self, seen: RoundTable, low: np.ndarray, high: np.ndarray
    ) -> None:
        """Takes in the attacked client's upload without knowing its minibatches."""
        rest = seen.uploads[self._attacked] - low
        ratios = self._mix_shares(self._noise, seen.round, rest, high - low)
        self.scores += np.where(seen.present[:, self._attacked], ratios, 0.0)

    def _mix_shares(
        self,
        noise: Noise,
        round_index: int,
        rest: np.ndarray,
        move: np.ndarray,
    ) -> np.ndarray:
        """Returns the log-likelihood ratio of noise that a random share of a move may be added to.

        On the data set `rest` is the noise alone.
        """
        usual = log_density(noise, rest)
        ratios = []
        for share, log_mass in self._move_shares(round_index):
            ratios.append(log_mass + log_density(noise, rest - share * move) - usual)
        return np.asarray(np.logaddexp.reduce(ratios, axis=0))

    def _move_shares(self, round_index: int) -> Shares:
        return find_move_shares(self._protocol, self._records or 0, round_index)

    def _see_hidden_participation(
        self, seen: RoundTable, low: np.ndarray, high: np.ndarray
    ) -> None:
        """Takes in the global model's move if only the server knows the participants.

        The adversary knows which others participate, and not whether the attacked client does.
        """
        protocol = self._protocol
        rate = protocol.participation.find_chance(clients=protocol.clients)
        start = seen.before.astype(np.float64)
        share = self._mixing / find_denominator(protocol)
        rest = seen.joined - start
        for like, group in self._group_others(seen.present).items():
            models = self._known_models(like, seen)
            number = seen.present[:, group].sum(axis=1, keepdims=True)
            rest -= share * number * (models - start)
        # At a rate of 1 the client is never absent, and log 0 is meant.
        with np.errstate(divide="ignore"):
            absent = np.log1p(-rate) + log_density(self._common_noise, rest / self._mixing)
        for sign, models in ((1.0, high), (-1.0, low)):
            left = (rest - share * (models - start)) / self._mixing
            present = math.log(rate) + log_density(self._common_noise, left)
            self.scores += sign * np.logaddexp(absent, present)

    def _see_model(self, seen: RoundTable, difference: np.ndarray, middle: np.ndarray) -> None:
        """Takes in a global model: less its known parts, it is noise around one of two points."""
        shares = self._find_shares(seen)
        own = shares[:, [self._attacked]]
        rest = self._subtract_known(seen, shares, middle)
        # From the model on the data set to that on its neighbour.
        move = self._mixing * own * difference
        if not self._protocol.release.at_client:
            at_first = (rest + move / 2) / self._mixing
            self._see_server_noise(seen, at_first, move / self._mixing)
            return
        self._score_normal_rest(seen, rest, move, self._find_variance(shares))

    def _subtract_known(
        self, seen: RoundTable, shares: np.ndarray, middle: np.ndarray
    ) -> np.ndarray:
        """Returns a global model less all parts that the adversary knows.

        These are the model before, the others' work, the colluders' noise, and the attacked
        client's model, for which the middle between the two data sets is taken.
        """
        mixing = self._mixing
        own = shares[:, [self._attacked]]
        rest: np.ndarray = (
            seen.joined - (1 - mixing) * seen.before.astype(np.float64) - mixing * own * middle
        )
        for like, group in self._group_others(seen.present).items():
            models = self._known_models(like, seen)
            rest -= mixing * shares[:, group].sum(axis=1, keepdims=True) * models
            for colluder in set(group) & self._colluders:
                rest -= mixing * shares[:, [colluder]] * (seen.uploads[colluder] - models)
        if self._protocol.aggregation.fixed_denominator:
            # If fewer clients take part than expected, the model before fills the mean.
            rest -= mixing * (1 - shares.sum(axis=1, keepdims=True)) * seen.before
        return rest

    def _find_variance(self, shares: np.ndarray) -> np.ndarray:
        """Returns the variance of the noise in a global model that colluders do not know."""
        protocol = self._protocol
        honest = [c for c in range(shares.shape[1]) if c not in self._colluders]
        client_variance = mechanism_of(self._common_noise).deviation ** 2
        parts = shares
        if protocol.release.secure_sum is not None:
            # Clients weigh their updates, relative to the largest weight, but not their noise.
            parts = shares * (self._weights.max() / self._weights)
        variance = np.square(parts[:, honest]).sum(axis=1) * client_variance
        variance = self._mixing**2 * (variance + server_noise(protocol) ** 2)
        # Without noise any finite scale ranks trainings equally.
        return np.where(variance > 0, variance, 1.0)

    def _score_normal_rest(
        self, seen: RoundTable, rest: np.ndarray, move: np.ndarray, variance: np.ndarray
    ) -> None:
        """Adds the log-likelihood ratio of normal noise around the middle of both models."""
        ratios = np.einsum("nd,nd->n", rest, move) / variance
        if self._records is None:
            self.scores += ratios
            return
        # Shares of the move are counted from the model on the data set, not from the middle.
        energy = np.square(move).sum(axis=1) / variance
        mixed = []
        for share, log_mass in self._move_shares(seen.round):
            mixed.append(log_mass + share * (ratios + energy / 2) - share**2 * energy / 2)
        self.scores += np.logaddexp.reduce(mixed, axis=0)

    def _find_shares(self, seen: RoundTable) -> np.ndarray:
        """Returns every client's share in the mean, one training per row."""
        weights = seen.present * self._weights
        if self._protocol.aggregation.fixed_denominator:
            return np.asarray(weights / find_denominator(self._protocol))
        return np.asarray(weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-300))

    def _see_server_noise(self, seen: RoundTable, rest: np.ndarray, move: np.ndarray) -> None:
        """Takes in a mean under the server's noise.

        `rest` is the mean less its value on the data set; on the neighbour it is noise around
        `move`.
        """
        noise = self._common_noise
        if self._records is None:
            self.scores += log_density(noise, rest - move) - log_density(noise, rest)
        else:
            self.scores += self._mix_shares(noise, seen.round, rest, move)

    def _group_others(self, present: np.ndarray) -> dict[int, list[int]]:
        """Returns all participants except the attacked one, in groups with equal models."""
        groups: dict[int, list[int]] = {}
        for client in np.flatnonzero(present.any(axis=0)).tolist():
            if client != self._attacked:
                groups.setdefault(int(self._clients[0].like[client]), []).append(client)
        return groups


def find_move_shares(protocol: Protocol, records: int, round_index: int) -> Shares:
    """Returns the shares of the whole move that an upload may make, by the steps with the record.

    Moves of steps add up, each weighted by its rate and by how much of it later steps retain. A
    clipped update moves completely once a single step draws the record. Many steps of different
    weights count as equal ones: the ratio is then inexact, which makes the test weaker and leaves
    it valid.

    Args:
        protocol: The protocol that is audited.
        records: The number of records of the attacked client.
        round_index: The number of the round, from 0.

    Returns:
        Shares of the move, each with the logarithm of its probability.

    Example:
        >>> from sordino.protocol import Constant, FedAvg, Gaussian
        >>> rule = FedAvg(steps=2, batch=1, clip=1.0, schedule=Constant(rate=0.1))
        >>> plan = Protocol(clients=2, rounds=3, local=rule, noise=Gaussian(sigma=0.1))
        >>> [(share, round(math.exp(log), 3)) for share, log in find_move_shares(plan, 4, 0)]
        [(0.0, 0.562), (0.5, 0.375), (1.0, 0.062)]
    """
    rule = protocol.local
    rate = (rule.batch or records) / records
    if rate >= 1:
        return [(1.0, 0.0)]
    if protocol.release.clips_update:
        never = rule.steps * math.log1p(-rate)
        return [(0.0, never), (1.0, math.log(-math.expm1(never)))]
    rates = np.array(rule.schedule.rates(round=round_index, steps=rule.steps))
    weights = rates * later_products(1 - rates * rule.pull)
    if rule.steps > MANY_STEPS or np.ptp(weights) <= 1e-12 * np.abs(weights).max():
        law = binom(rule.steps, rate)
        return [(hits / rule.steps, float(law.logpmf(hits))) for hits in range(rule.steps + 1)]
    patterns = np.array(list(itertools.product((0, 1), repeat=rule.steps)))
    hits = patterns.sum(axis=1)
    logs = hits * math.log(rate) + (rule.steps - hits) * math.log1p(-rate)
    shares = patterns @ weights / weights.sum()
    return list(zip(shares.tolist(), logs.tolist(), strict=True))


def log_density(noise: Noise, values: np.ndarray) -> np.ndarray:
    """Returns the logarithm of the density of vectors of noise, up to a constant.

    Args:
        noise: The noise. Without noise any finite scale ranks trainings equally, and 1 is used.
        values: One vector per row.

    Example:
        >>> from sordino.protocol import Gaussian
        >>> log_density(Gaussian(sigma=2.0), np.array([[2.0, 2.0], [0.0, 4.0]])).tolist()
        [-1.0, -2.0]
    """
    mechanism = mechanism_of(noise)
    if mechanism.silent:
        return np.asarray(-np.square(values).sum(axis=-1))
    if noise.normal:
        squares = np.square(values).sum(axis=-1)
        return np.asarray(-squares / (2 * mechanism.deviation**2))
    return np.asarray(mechanism.log_density(values).sum(axis=-1))
