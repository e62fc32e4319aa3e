"""Membership inference held against what is certified: one record is a member, or another stands in its place.

Many federations are trained on either data set, each with draws of its own. The attacker sees the last model of each and scores it as LiRA
does, by how confident it is of the record, less how confident it is of the other. Thresholds for some false positive rates are chosen on
one half of the trainings; on the other half it is counted how often the record is detected. Whatever the attack, no true positive rate
exceeds 1 - beta(false positive rate), beta being the certified trade-off curve for who sees the last model, about one record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from sordino.attacks.game import Tick
from sordino.attacks.lira import logit_confidences
from sordino.attacks.reading import answers_of
from sordino.attacks.shadows import FIRST_SEED
from sordino.audit.bounds import Limits, Scores, limits_at
from sordino.engines.many_trainings import train_many
from sordino.federation.data import Dataset
from sordino.federation.models.flat import FlatModel
from sordino.federation.run import Trained
from sordino.federation.setup import tensors
from sordino.privacy.certify import certify
from sordino.privacy.guarantee import Guarantee
from sordino.protocol import Protocol, UserError, View

RATES = (0.1, 0.01, 0.001)
CONFIDENCE = 0.999
TOGETHER = 1000  # trainings of a call, whose records are let go of when it ends
HALVES, SIDES = 2, 2


@dataclass(frozen=True, kw_only=True, eq=False)
class MembershipGame:
    """Trainings with a record and without. Everything follows from these values.

    Attributes:
        protocol: what is trained; clients hold all training records, so that the record is always somebody's.
        data: with the record.
        row: where the record stands among the training records.
        other: what stands in its place: a record as the data set stores it, and its label.
        module: the initial model.
        trainings: on each side, by which detection is counted; as many again choose thresholds.
    """

    protocol: Protocol
    data: Dataset
    row: int
    other: tuple[np.ndarray, int]
    module: nn.Module
    trainings: int

    def __post_init__(self) -> None:
        spec = self.protocol.data
        dealt = self.protocol.clients * (spec.records or 0) if spec is not None else 0
        if dealt != len(self.data.y_train):
            raise UserError(
                f"clients hold {dealt} records of {len(self.data.y_train)}: the record in question must be dealt to somebody."
            )

    def certified(self) -> Guarantee:
        """What is promised about one record against who sees the last model."""
        return certify(self.protocol, View.FINAL, "record")

    def neighbour(self) -> Dataset:
        """The data with the other record in place of the record in question."""
        x, y = self.data.x_train.copy(), self.data.y_train.copy()
        x[self.row], y[self.row] = self.other
        return replace(self.data, x_train=x, y_train=y)


def played(
    game: MembershipGame, *, protocol: Protocol | None = None, tick: Tick = lambda share: None
) -> Scores:
    """Train on both sides and score every last model; a high score speaks for the record.

    Args:
        game: what is played.
        protocol: what really runs, where that is not what is certified: to see whether the game would notice.
        tick: told the share that is done.
    """
    runs, scorer = protocol if protocol is not None else game.protocol, Scorer(game)
    sides = game.neighbour(), game.data
    total, scores = HALVES * SIDES * game.trainings, np.empty((HALVES, SIDES, game.trainings))
    flat = scores.reshape(-1)
    side_of = np.repeat(np.tile(np.arange(SIDES), HALVES), game.trainings)
    for start in range(0, total, TOGETHER):
        numbers = range(start, min(start + TOGETHER, total))

        def note(number: int, trained: Trained, first: int = start) -> None:
            flat[first + number] = scorer.score(trained)

        train_many(
            [replace(runs, seed=FIRST_SEED + number) for number in numbers],
            data=[sides[side_of[number]] for number in numbers],
            model=game.module,
            evaluate_every=0,
            on_end=note,
        )
        tick(numbers.stop / total)
    return Scores(choosing=(scores[0, 0], scores[0, 1]), judging=(scores[1, 0], scores[1, 1]))


class Scorer:
    """Scores trained models. It holds a model that every call overwrites."""

    def __init__(self, game: MembershipGame) -> None:
        self._flat = FlatModel(game.module)
        records, others = tensors(game.data, "train"), tensors(game.neighbour(), "train")
        rows = torch.tensor([game.row])
        self._inputs = torch.cat([records.inputs(rows), others.inputs(rows)])
        self._labels = torch.cat([records.y[rows], others.y[rows]])

    def score(self, trained: Trained) -> float:
        """How much more confident a model is of the record than of the other."""
        self._flat.from_state(trained.state or {})
        mine, theirs = logit_confidences(answers_of(self._flat, self._inputs), self._labels)
        return float(mine - theirs)


@dataclass(frozen=True, kw_only=True)
class Detection:
    """How often the record was detected at a false positive rate that was aimed at, beside what is certified.

    Attributes:
        aimed: the false positive rate.
        limits: of the errors that were really made, together at 99.9 %.
        allowed: the largest true positive rate that the certified curve allows there.
        refuted: whether the certified curve cannot be true.
    """

    aimed: float
    limits: Limits
    allowed: float
    refuted: bool

    @property
    def detected(self) -> float:
        """Lower limit of the true positive rate."""
        return 1 - self.limits.false_negative


def detections(
    scores: Scores, certified: Guarantee, rates: Sequence[float] = RATES
) -> list[Detection]:
    """Lower limits of the true positive rate at some false positive rates.

    Example:
        >>> from sordino import Constant, FedAvg, Gaussian, Protocol, certify
        >>> rule = FedAvg(steps=1, batch=1, clip=1.0, schedule=Constant(rate=0.1))
        >>> promise = certify(Protocol(clients=2, rounds=1, local=rule, noise=Gaussian(sigma=1.0)), "final")
        >>> draws = np.random.default_rng(1).standard_normal((4, 2000))
        >>> told_apart = Scores(choosing=(draws[0], draws[1] + 3), judging=(draws[2], draws[3] + 3))
        >>> [found.refuted for found in detections(told_apart, promise)]
        [True, True, True]
    """
    reached = np.quantile(scores.choosing[0], [1 - rate for rate in rates], method="higher")
    thresholds = np.nextafter(
        reached, np.inf
    )  # above it: without noise all scores of a side are the same
    false, missed = limits_at(scores.judging, thresholds, CONFIDENCE)
    found = []
    for rate, alarm, miss in zip(rates, false, missed, strict=True):
        limits = Limits(false_positive=float(alarm), false_negative=float(miss))
        allowed = 1 - certified.curve.beta(limits.false_positive)
        found.append(
            Detection(
                aimed=rate,
                limits=limits,
                allowed=float(allowed),
                refuted=limits.contradicts(certified.curve),
            )
        )
    return found
