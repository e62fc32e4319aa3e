"""What an adversary makes of what it is given: a likelihood ratio, training by training.

The adversary knows the protocol, both data sets and every draw but the noise. So it can repeat each client's steps from a model that it
has seen, and knows what an upload would be without noise on either data set; only the noise keeps it from the answer. Draws that a bound
counts as hidden are hidden from it: who takes part where the server alone knows it, the batches of noisy-sgd (see `noisy_steps`), and
minibatches where they are secret. Then an upload is certain on the data set, and on its neighbour a share of a known move away from
that, by how many of the steps drew the record: the likelihood ratio is a mean over these shares.
"""

from __future__ import annotations

import itertools
import math
from typing import Protocol as Interface

import numpy as np
from scipy.stats import binom
from torch import Tensor

from sordino.audit.observation import Given, colluders_of, given_to
from sordino.federation.aggregation import upload_weights
from sordino.federation.many import ManyRound
from sordino.federation.mechanisms import log_density
from sordino.federation.personal import Kept
from sordino.federation.setup import Setup
from sordino.privacy.central import denominator, fixed_denominator, hidden, server_noise
from sordino.privacy.mechanisms import deviation, silent, taking_part
from sordino.privacy.sensitivity import later_products
from sordino.protocol import Gaussian, Mean, Noise, Protocol, View

MANY_STEPS = 6  # above which the patterns of steps that draw a record are not told apart


class LocalModels(Interface):
    """Who can say what a client's model is after its steps, without noise, in one training or in many at once."""

    like: np.ndarray  # for each client, the first one whose models are the same

    def trained(
        self, *, client: int, round: int, weights: np.ndarray, first: int, kept: Kept
    ) -> Tensor:
        """The client's models, one training a row; `first` is the number of the training in the first row."""


class Adversary:
    """Scores trainings by uploads, by global models or by the last one; a high score speaks for the neighbour.

    It holds the scores so far, and the attacked client's own models on either data set where it keeps any: let it see the rounds in
    order, then read `scores`.

    Args:
        setup: the federation, with either data set.
        attacked: the client whose unit differs.
        clients: local models on the data set and on its neighbour.
        view: what is seen.
        trainings: the numbers of the trainings that are scored.
        direction: along which the last model is read, for who sees nothing else.
        unseen: whether minibatches are not known; the second of `clients` then has the neighbour's record in every batch.
    """

    def __init__(
        self,
        setup: Setup,
        attacked: int,
        clients: tuple[LocalModels, LocalModels],
        view: View,
        trainings: range,
        direction: np.ndarray | None = None,
        *,
        unseen: bool = False,
    ) -> None:
        self._protocol, self._attacked, self._clients = setup.protocol, attacked, clients
        self._given, self._conspiring = (
            given_to(setup.protocol, view),
            colluders_of(setup.protocol, view),
        )
        self._first, self._direction = trainings.start, direction
        self._records = len(setup.parts[attacked]) if unseen else None
        self._weights, self._noise = (
            upload_weights(setup.protocol.aggregation, setup.sizes),
            setup.noises[attacked],
        )
        own = np.broadcast_to(
            setup.initial_weights(), (len(trainings), setup.initial_weights().size)
        )
        self._own = [own, own]
        self.scores = np.zeros(len(trainings))

    def see(self, seen: ManyRound) -> None:
        """Take in one round."""
        if self._direction is not None:
            self.scores = (
                seen.after.astype(np.float64) @ self._direction
            )  # of the last model, once all rounds were seen
            return
        secret = self._given == Given.MODELS and hidden(self._protocol)
        if not secret and not bool(seen.present[:, self._attacked].any()):
            return
        low, high = (self._trained(side, seen) for side in (0, 1))
        if secret:
            self._see_hidden(seen, low, high)
        elif self._records is not None and self._given == Given.UPLOADS:
            self._see_mixed_uploads(seen, low, high)
        elif self._given == Given.UPLOADS:
            self._see_uploads(seen, low, high)
        else:
            self._see_model(seen, high - low, (high + low) / 2)

    def _trained(self, side: int, seen: ManyRound) -> np.ndarray:
        """The attacked client's models if this is the data set; its own model, where it keeps one, is then that of this data set too."""
        kept = dict(seen.kept.get(self._attacked, {}))
        if self._protocol.keeps_models:
            kept["model"] = self._own[side]
        models = (
            self._clients[side]
            .trained(
                client=self._attacked,
                round=seen.round,
                weights=seen.broadcast,
                first=self._first,
                kept=kept,
            )
            .numpy()
        )
        if self._protocol.keeps_models:
            present = seen.present[:, [self._attacked]]
            self._own[side] = np.where(present, models, self._own[side])
        return models.astype(np.float64)

    def _models_of(self, client: int, seen: ManyRound) -> np.ndarray:
        """The models of a client whose data are known."""
        kept = seen.kept.get(client, {})
        return (
            self._clients[0]
            .trained(
                client=client,
                round=seen.round,
                weights=seen.broadcast,
                first=self._first,
                kept=kept,
            )
            .numpy()
        )

    def _see_uploads(self, seen: ManyRound, low: np.ndarray, high: np.ndarray) -> None:
        """The attacked client's own upload; behind a shuffler nobody knows which it is, and each is held against those of the others."""
        here = seen.present[:, self._attacked]
        if self._protocol.channel != "shuffler":
            upload = seen.uploads[self._attacked]
            self.scores += here * (
                log_law(self._noise, upload - high) - log_law(self._noise, upload - low)
            )
            return
        groups = self._others(seen.present)
        usual = self._models_of(next(iter(groups)), seen) if len(groups) == 1 else (high + low) / 2
        middle = [log_law(self._noise, upload - usual) for upload in seen.uploads]
        for sign, models in ((1.0, high), (-1.0, low)):
            ratios = np.stack(
                [
                    log_law(self._noise, upload - models) - law
                    for upload, law in zip(seen.uploads, middle, strict=True)
                ],
                axis=1,
            )
            weighed = np.logaddexp.reduce(np.where(seen.present, ratios, -np.inf), axis=1)
            self.scores += sign * np.where(here, weighed, 0.0)

    def _uses(self, round: int) -> Uses:
        """How far the attacked client's upload may have moved, batches being unknown."""
        return use_shares(self._protocol, self._records or 0, round)

    def _see_mixed_uploads(self, seen: ManyRound, low: np.ndarray, high: np.ndarray) -> None:
        """The attacked client's upload, by who does not know its batches."""
        left = seen.uploads[self._attacked] - low
        usual = log_law(self._noise, left)
        ratios = [
            log_mass + log_law(self._noise, left - share * (high - low)) - usual
            for share, log_mass in self._uses(seen.round)
        ]
        here = seen.present[:, self._attacked]
        self.scores += np.where(here, np.logaddexp.reduce(ratios, axis=0), 0.0)

    def _see_hidden(self, seen: ManyRound, low: np.ndarray, high: np.ndarray) -> None:
        """The global model's move, by a server that alone knows whether the attacked client took part; the others are known."""
        protocol = self._protocol
        rate, start = taking_part(protocol), seen.before.astype(np.float64)
        share = self._mixing / denominator(protocol)
        rest = seen.after - start
        for like, group in self._others(seen.present).items():
            models = self._models_of(like, seen)
            rest -= share * seen.present[:, group].sum(axis=1, keepdims=True) * (models - start)
        with np.errstate(divide="ignore"):  # a rate of 1: it is never absent
            absent = np.log1p(-rate) + log_law(protocol.noise, rest / self._mixing)
        for sign, models in ((1.0, high), (-1.0, low)):
            there = math.log(rate) + log_law(
                protocol.noise, (rest - share * (models - start)) / self._mixing
            )
            self.scores += sign * np.logaddexp(absent, there)

    def _see_model(self, seen: ManyRound, difference: np.ndarray, middle: np.ndarray) -> None:
        """Every global model, minus what the colluders know of it: the noise that they added themselves."""
        protocol, attacked, mixing = self._protocol, self._attacked, self._mixing
        weights = seen.present * self._weights
        total = np.maximum(weights.sum(axis=1, keepdims=True), 1e-300)
        shares = weights / (denominator(protocol) if fixed_denominator(protocol) else total)
        colluders = self._colluders()
        rest = (
            seen.after
            - (1 - mixing) * seen.before.astype(np.float64)
            - mixing * shares[:, [attacked]] * middle
        )
        for like, group in self._others(seen.present).items():
            models = self._models_of(like, seen)
            rest -= mixing * shares[:, group].sum(axis=1, keepdims=True) * models
            for colluder in set(group) & colluders:
                rest -= mixing * shares[:, [colluder]] * (seen.uploads[colluder] - models)
        if fixed_denominator(protocol):
            rest -= mixing * (1 - shares.sum(axis=1, keepdims=True)) * seen.before
        apart = mixing * shares[:, [attacked]] * difference
        if protocol.noise.where == "server":
            self._see_server_noise(seen, (rest + apart / 2) / mixing, apart / mixing)
            return
        honest = [c for c in range(shares.shape[1]) if c not in colluders]
        clients = deviation(protocol.noise) ** 2
        variance = mixing**2 * (
            np.square(shares[:, honest]).sum(axis=1) * clients + server_noise(protocol) ** 2
        )
        variance = np.where(variance > 0, variance, 1.0)
        ratios = np.einsum("nd,nd->n", rest, apart) / variance
        if self._records is None:
            self.scores += ratios
            return
        # Held against where the model would be on the data set itself, and not against the middle of both.
        apart_by = np.square(apart).sum(axis=1) / variance
        mixed = [
            log_mass + share * (ratios + apart_by / 2) - share**2 * apart_by / 2
            for share, log_mass in self._uses(seen.round)
        ]
        self.scores += np.logaddexp.reduce(mixed, axis=0)

    def _see_server_noise(self, seen: ManyRound, left: np.ndarray, apart: np.ndarray) -> None:
        """What is left of a mean without what it would be on the data set, under the server's noise; on the neighbour it is `apart`."""
        noise = self._protocol.noise
        usual = log_law(noise, left)
        if self._records is None:
            self.scores += log_law(noise, left - apart) - usual
            return
        ratios = [
            log_mass + log_law(noise, left - share * apart) - usual
            for share, log_mass in self._uses(seen.round)
        ]
        self.scores += np.logaddexp.reduce(ratios, axis=0)

    @property
    def _mixing(self) -> float:
        return (
            self._protocol.aggregation.mixing
            if isinstance(self._protocol.aggregation, Mean)
            else 1.0
        )

    def _others(self, present: np.ndarray) -> dict[int, list[int]]:
        """The clients that took part somewhere and are not attacked, in groups of equal models."""
        groups: dict[int, list[int]] = {}
        for client in np.flatnonzero(present.any(axis=0)).tolist():
            if client != self._attacked:
                groups.setdefault(int(self._clients[0].like[client]), []).append(client)
        return groups

    def _colluders(self) -> set[int]:
        """The attacked client's worst enemies: those with the largest shares."""
        others = [
            c for c in np.argsort(-self._weights, kind="stable").tolist() if c != self._attacked
        ]
        return set(others[: self._conspiring])


Uses = list[tuple[float, float]]  # shares of a move, each with the logarithm of its probability


def use_shares(protocol: Protocol, records: int, round: int) -> Uses:
    """How much of the whole move an upload makes, by which of its steps draw the record.

    Steps add up, each with its rate and what later steps leave of it; a clipped update turns as soon as one step draws the record. Where
    steps are many and differ, all count as equal: the ratio is then a little off, which costs power and nothing else.

    Args:
        protocol: What runs.
        records: Of the attacked client.
        round: The round.

    Example:
        >>> from sordino.protocol import Constant, FedAvg
        >>> rule = FedAvg(steps=2, batch=1, clip=1.0, schedule=Constant(rate=0.1))
        >>> plan = Protocol(clients=2, rounds=3, local=rule, noise=Gaussian(sigma=0.1))
        >>> [(share, round(math.exp(log), 3)) for share, log in use_shares(plan, 4, 0)]
        [(0.0, 0.562), (0.5, 0.375), (1.0, 0.062)]
    """
    rule = protocol.local
    rate = (rule.batch or records) / records
    if rate >= 1:
        return [(1.0, 0.0)]
    if getattr(rule, "clip_target", "step") == "update":
        never = rule.steps * math.log1p(-rate)
        return [(0.0, never), (1.0, math.log(-math.expm1(never)))]
    rates = np.array(rule.schedule.rates(round=round, steps=rule.steps))
    weights = rates * later_products(1 - rates * getattr(rule, "proximal", 0.0))
    if rule.steps > MANY_STEPS or np.ptp(weights) <= 1e-12 * np.abs(weights).max():
        law = binom(rule.steps, rate)
        return [(hits / rule.steps, float(law.logpmf(hits))) for hits in range(rule.steps + 1)]
    patterns = np.array(list(itertools.product((0, 1), repeat=rule.steps)))
    logs = patterns.sum(axis=1) * math.log(rate)
    logs += (rule.steps - patterns.sum(axis=1)) * math.log1p(-rate)
    return list(zip((patterns @ weights / weights.sum()).tolist(), logs.tolist(), strict=True))


def log_law(noise: Noise, values: np.ndarray) -> np.ndarray:
    """The logarithm of the density of a vector's noise, one vector a row, up to a constant; without noise that of a narrow bell.

    Example:
        >>> log_law(Gaussian(sigma=2.0), np.array([[2.0, 2.0], [0.0, 4.0]])).tolist()
        [-1.0, -2.0]
    """
    if isinstance(noise, Gaussian) or silent(noise):
        return -np.square(values).sum(axis=-1) / (
            2 * deviation(noise) ** 2 if not silent(noise) else 1.0
        )
    return np.asarray(log_density(noise, values).sum(axis=-1))
