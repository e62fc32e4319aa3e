"""Holds membership inference against the certified trade-off curve.

One record is a member, or another stands in its place. Many federations are trained on either data
set, each with fresh draws. The attacker sees the last model of each and scores it as LiRA does: by
how confident it is of the record, less how confident it is of the other. Thresholds for some false
positive rates are chosen on one half of the trainings; on the other half, detections are counted.
No attack has a true positive rate above 1 - beta(false positive rate), where beta is the certified
trade-off curve about one record for an adversary who sees the last model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from sordino.attacks.attack import Tick
from sordino.attacks.lira import logit_confidences
from sordino.attacks.reading import predict_answers
from sordino.attacks.shadows import FIRST_SEED
from sordino.audit.lower_bounds import ErrorLimits, Scores, limit_both_rates
from sordino.data import Dataset
from sordino.engines.many_trainings import train_many
from sordino.federation.record_tensors import tensors
from sordino.federation.store.run import Trained
from sordino.models.flat import FlatModel
from sordino.privacy.certify import certify
from sordino.privacy.guarantee import Guarantee
from sordino.protocol import Protocol, UserError, View

RATES = (0.1, 0.01, 0.001)
CONFIDENCE = 0.999
# How many trainings one call runs, which frees their records when it ends.
TRAININGS_PER_CALL = 1000
HALVES = 2
SIDES = 2


@dataclass(frozen=True, kw_only=True, eq=False)
class MembershipGame:
    """A game of trainings with a record and without it.

    Attributes:
        protocol: The federation; clients hold all training records, so that one of them always
            holds the record.
        data: The data with the record.
        row: The row of the record among the training records.
        other: The record in its place, as the data set stores it, and its label.
        module: The initial model.
        trainings: The trainings on each side that count detections; as many choose thresholds.
    """

    protocol: Protocol
    data: Dataset
    row: int
    other: tuple[np.ndarray, int]
    module: nn.Module
    trainings: int

    def __post_init__(self) -> None:
        """Refuses a federation whose clients do not hold all training records."""
        spec = self.protocol.data
        held = 0
        if spec is not None and spec.records is not None:
            held = self.protocol.clients * spec.records
        if held != len(self.data.y_train):
            raise UserError(
                f"clients hold {held} records of {len(self.data.y_train)}: "
                "a client must hold the record in question."
            )

    def certify_game(self) -> Guarantee:
        """Returns the guarantee about one record for an adversary who sees the last model."""
        return certify(self.protocol, View.FINAL, "record")

    def replace_record(self) -> Dataset:
        """Returns the data with the other record in place of the record in question."""
        inputs = self.data.x_train.copy()
        labels = self.data.y_train.copy()
        inputs[self.row], labels[self.row] = self.other
        return replace(self.data, x_train=inputs, y_train=labels)


def play_game(
    game: MembershipGame, *, protocol: Protocol | None = None, tick: Tick = lambda share: None
) -> Scores:
    """Trains on both sides and scores every last model; a high score speaks for the record.

    Args:
        game: The game.
        protocol: What really runs, where that is not what is certified: to see whether the game
            would notice.
        tick: Called with the share of the work that is done.

    Returns:
        The scores of both sides, one half to choose thresholds by, one half to judge by.
    """
    if protocol is None:
        protocol = game.protocol
    scorer = RecordScorer(game)
    datasets = (game.replace_record(), game.data)
    scores = np.empty((HALVES, SIDES, game.trainings))
    flat_scores = scores.reshape(-1)
    side_of = np.repeat(np.tile(np.arange(SIDES), HALVES), game.trainings)
    total = len(flat_scores)
    for start in range(0, total, TRAININGS_PER_CALL):
        numbers = range(start, min(start + TRAININGS_PER_CALL, total))

        def note_score(number: int, trained: Trained, first: int = start) -> None:
            flat_scores[first + number] = scorer.score_model(trained)

        train_many(
            [replace(protocol, seed=FIRST_SEED + number) for number in numbers],
            data=[datasets[side_of[number]] for number in numbers],
            model=game.module,
            evaluate_every=0,
            on_end=note_score,
        )
        tick(numbers.stop / total)
    return Scores(choosing=(scores[0, 0], scores[0, 1]), judging=(scores[1, 0], scores[1, 1]))


class RecordScorer:
    """Scores trained models by one network, whose weights every call overwrites."""

    def __init__(self, game: MembershipGame) -> None:
        """Loads the record and the one in its place.

        Args:
            game: The game.
        """
        self._flat = FlatModel(game.module)
        records = tensors(game.data, "train")
        others = tensors(game.replace_record(), "train")
        rows = torch.tensor([game.row])
        self._inputs = torch.cat([records.inputs(rows), others.inputs(rows)])
        self._labels = torch.cat([records.y[rows], others.y[rows]])

    def score_model(self, trained: Trained) -> float:
        """Returns how much more confident a model is of the record than of the other.

        Args:
            trained: The model.
        """
        self._flat.from_state(trained.state or {})
        answers = predict_answers(self._flat, self._inputs)
        record, other = logit_confidences(answers, self._labels)
        return float(record - other)


@dataclass(frozen=True, kw_only=True)
class Detection:
    """The rate of detections at one false positive rate, beside the certified one.

    Attributes:
        aimed: The false positive rate that was aimed at.
        limits: The limits of the errors that were really made, together at 99.9 %.
        allowed: The largest true positive rate that the certified curve allows there.
        refuted: Whether the certified curve cannot be true.
    """

    aimed: float
    limits: ErrorLimits
    allowed: float
    refuted: bool

    @property
    def detected(self) -> float:
        """The lower limit of the true positive rate."""
        return 1 - self.limits.false_negative


def find_detections(
    scores: Scores, certified: Guarantee, rates: Sequence[float] = RATES
) -> list[Detection]:
    """Returns lower limits of the true positive rate at some false positive rates.

    Args:
        scores: The result of `play_game`.
        certified: The guarantee that is held against them.
        rates: The false positive rates that are aimed at.

    Example:
        >>> from sordino import Constant, FedAvg, Gaussian, Protocol, certify
        >>> rule = FedAvg(steps=1, batch=1, clip=1.0, schedule=Constant(rate=0.1))
        >>> protocol = Protocol(clients=2, rounds=1, local=rule, noise=Gaussian(sigma=1.0))
        >>> draws = np.random.default_rng(1).standard_normal((4, 2000))
        >>> apart = Scores(choosing=(draws[0], draws[1] + 3), judging=(draws[2], draws[3] + 3))
        >>> [found.refuted for found in find_detections(apart, certify(protocol, "final"))]
        [True, True, True]
    """
    reached = np.quantile(scores.choosing[0], [1 - rate for rate in rates], method="higher")
    # Just above the quantile: without noise all scores of a side are equal.
    thresholds = np.nextafter(reached, np.inf)
    false_positives, false_negatives = limit_both_rates(scores.judging, thresholds, CONFIDENCE)
    detections = []
    for rate, alarm, miss in zip(rates, false_positives, false_negatives, strict=True):
        limits = ErrorLimits(false_positive=float(alarm), false_negative=float(miss))
        detection = Detection(
            aimed=rate,
            limits=limits,
            allowed=float(1 - certified.curve.beta(limits.false_positive)),
            refuted=limits.contradicts(certified.curve),
        )
        detections.append(detection)
    return detections
