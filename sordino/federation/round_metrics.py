"""Defines the metrics of a round, and decides when its model is scored."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sordino.federation.client import Score
from sordino.federation.own_models import OwnScores
from sordino.federation.round import RoundRecord
from sordino.federation.server_noise import mean_deviation
from sordino.federation.setup import Setup
from sordino.protocol import Protocol
from sordino.protocol.aggregation_kinds import find_mixing

# Metrics that only runs have whose clients keep models.
OWN_SCORES = ("own_accuracy", "own_worst", "own_spread")


@dataclass(frozen=True, kw_only=True)
class RoundMetrics:
    """The record of a round.

    `clip_fraction` and `nonfinite_steps` come from clients' private data, and the accuracies of own
    models are measured on records chosen by clients' labels: no guarantee covers them.

    Attributes:
        round: Its number, from 0.
        participants: How many clients contributed.
        loss: Loss on the test records (`Setup.tested_on`), None where not asked for.
        accuracy: Accuracy on the test records, None where not asked for.
        signal_to_noise: See `signal_to_noise`.
        bytes_up: All uploads together.
        bytes_down: All models that were sent to clients.
        clip_fraction: The share of gradients that were clipped.
        nonfinite_steps: Gradients that were not finite and counted as zero.
        seconds: How long the round took.
        status: "ok" or "diverged".
        own_accuracy: Mean accuracy of clients' personal models, None where there are none or they
            were not scored.
        own_worst: The lowest of them.
        own_spread: Their standard deviation over the clients.
    """

    round: int
    participants: int
    loss: float | None
    accuracy: float | None
    signal_to_noise: float | None
    bytes_up: int
    bytes_down: int
    clip_fraction: float | None
    nonfinite_steps: int
    seconds: float
    status: str
    own_accuracy: float | None = None
    own_worst: float | None = None
    own_spread: float | None = None

    def as_row(self) -> dict[str, Any]:
        """Returns the entries as a file keeps them: no scores of personal models that have none."""
        return {
            name: value
            for name, value in vars(self).items()
            if name not in OWN_SCORES or value is not None
        }

    @property
    def short(self) -> bool:
        """Whether someone who was asked contributed nothing: less came up than went down."""
        return self.bytes_up < self.bytes_down


def ignore_metrics(metrics: RoundMetrics) -> None:
    """Does nothing with the metrics of a round.

    Args:
        metrics: The metrics of a round.
    """


def measure_round(
    setup: Setup,
    record: RoundRecord,
    score: Callable[[np.ndarray], Score] | None,
    started: float,
) -> RoundMetrics:
    """Returns the record of a round.

    Args:
        setup: The federation.
        record: What happened in the round.
        score: Scores its model; None where it is not scored.
        started: When the round began, by `time.perf_counter`.
    """
    weights = record.after.weights
    loss = None
    accuracy = None
    ratio = None
    status = "diverged"
    if bool(np.isfinite(weights).all()):
        status = "ok"
        before = record.before.weights
        # The joined update: what the server makes of it brings in earlier moves and their noise.
        ratio = signal_to_noise(
            setup.protocol, before, record.joined, len(record.present), record.task.round_index
        )
        if score is not None:
            # Scores are exact: only on public records (setup.tested_on) do they tell nothing
            # about anybody.
            scored = score(weights)
            loss = finite(scored.loss / scored.count)
            if setup.classification:
                accuracy = scored.correct / scored.count
    clip_fraction = None
    if record.steps.clips > 0:
        clip_fraction = record.steps.clipped / record.steps.clips
    return RoundMetrics(
        round=record.task.round_index,
        participants=len(record.present),
        loss=loss,
        accuracy=accuracy,
        signal_to_noise=ratio,
        bytes_up=len(record.present) * weights.nbytes,
        bytes_down=len(record.task.participants) * weights.nbytes,
        clip_fraction=clip_fraction,
        nonfinite_steps=record.steps.nonfinite,
        seconds=time.perf_counter() - started,
        status=status,
    )


def with_own_scores(metrics: RoundMetrics, scores: OwnScores) -> RoundMetrics:
    """Returns the record of a round with the accuracies of clients' personal models.

    Args:
        metrics: The record.
        scores: How accurate they are.
    """
    return replace(
        metrics, own_accuracy=scores.mean, own_worst=scores.worst, own_spread=scores.spread
    )


def is_evaluated(round_index: int, rounds: int, every: int) -> bool:
    """Returns whether a round's model is scored.

    Args:
        round_index: Number of the round, from 0.
        rounds: How many there are; the last is always scored.
        every: Rounds between two scorings; 0 for none.
    """
    return every > 0 and ((round_index + 1) % every == 0 or round_index + 1 == rounds)


def finite(value: float) -> float | None:
    """Returns the value, or None where it overflowed.

    Args:
        value: Any number.
    """
    return value if math.isfinite(value) else None


def signal_to_noise(
    protocol: Protocol, before: np.ndarray, after: np.ndarray, uploads: int, round_index: int
) -> float | None:
    """Estimates the norm of the noiseless move of a model over that of the noise in it.

    Only released values are used. The squared norm of the move has the expectation
    signal^2 + d noise^2, so the signal is the rest after taking the noise out.

    Args:
        protocol: The federation whose rounds are played.
        before: The global model before the round.
        after: What the uploads were joined to.
        uploads: How many were joined.
        round_index: The round, on which the mixing may depend.

    Returns:
        The ratio; None where the noise of a move is not known.
    """
    rule = protocol.aggregation
    equal = rule.averages and not rule.weighs_records and not rule.weighs_noise
    known = equal and protocol.assumptions.diameter is None
    if not known or uploads == 0 or protocol.release.in_steps:
        return None
    mixing = find_mixing(rule, round_index)
    noise = mixing * mean_deviation(protocol, uploads) * math.sqrt(before.size)
    if noise == 0:
        return math.inf
    move = float(np.linalg.norm((after - before).astype(np.float64)))
    return math.sqrt(max(0.0, move**2 - noise**2)) / noise
