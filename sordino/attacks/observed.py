"""What an attacker is given, and nothing else.

No type of this module holds anything of `truth`, and attackers get only these types. Everything
here is public, or is what the view shows. The protocol comes without its seed, which would give the
noise away.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from sordino.attacks.gradient_rules import gradient_steps_of
from sordino.mechanisms import mechanism_of
from sordino.protocol import Protocol
from sordino.protocol.release import release_of


@dataclass(frozen=True, kw_only=True, eq=False)
class ObservedRecords:
    """Records that an attacker has, or asks about, as a model sees them.

    Attributes:
        inputs: The records, one a row.
        labels: The classes of the records.
        attributes: The value of each attribute that the attacker knows, for each record.
    """

    inputs: Tensor
    labels: Tensor
    attributes: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, kw_only=True, eq=False)
class ObservedFederation:
    """Public knowledge about a federation, and the attacker's own records.

    Attributes:
        protocol: The protocol without its seed.
        module: The model's structure and initial weights.
        classes: The names of the classes.
        auxiliary: The attacker's own records, which no client holds.
    """

    protocol: Protocol
    module: nn.Module
    classes: tuple[str, ...]
    auxiliary: ObservedRecords

    def learning_rates(self, round_index: int) -> tuple[float, ...]:
        """Returns the learning rate of every step of a round.

        Args:
            round_index: The round, counted from 0.
        """
        rule = self.protocol.local
        return rule.schedule.rates(round=round_index, steps=rule.steps)

    def update_deviation(self, round_index: int) -> float:
        """Returns the standard deviation of the noise on a coordinate of an update.

        Args:
            round_index: The round, counted from 0.
        """
        release = release_of(self.protocol)
        if release.in_steps:
            # Every step adds independent noise, multiplied by its learning rate.
            deviation = mechanism_of(release.sum_noise).deviation / release.batch
            return deviation * math.hypot(*self.learning_rates(round_index))
        if not release.at_client:
            return 0.0
        return mechanism_of(self.protocol.release.noise).deviation


@dataclass(frozen=True, kw_only=True, eq=False)
class ObservedUpload:
    """One upload as the server receives it.

    The client's number is left out: no attack on an upload needs it, and behind a shuffler the
    server does not know it.

    Attributes:
        federation: Public knowledge.
        round: The round, counted from 0.
        model: The global model that the sender began from.
        upload: The model that was sent.
    """

    federation: ObservedFederation
    round: int
    model: np.ndarray
    upload: np.ndarray

    @property
    def gradient(self) -> Tensor:
        """The update per unit of learning rate: the mean of the clipped gradients, and noise.

        Values that are not finite count as zero.
        """
        model = self.model.astype(np.float64)
        # Divided by the sum of the rates, an upload of any number of steps has one gradient's size.
        total_rate = sum(self.federation.learning_rates(self.round))
        slope = (model - self.upload.astype(np.float64)) / total_rate
        steps = gradient_steps_of(self.federation.protocol)
        if steps is not None:
            # The decay is that of the first step; later steps begin nearby.
            slope -= steps.weight_decay * model
        # Training may have diverged. Zeros keep the attacker's arithmetic finite, and claim
        # nothing.
        return torch.from_numpy(np.nan_to_num(slope, posinf=0.0, neginf=0.0))

    @property
    def drawn(self) -> int:
        """The number of records that the steps drew, counted with repetition."""
        rule = self.federation.protocol.local
        return rule.steps * (rule.batch or 1)

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise on a coordinate of `gradient`."""
        total_rate = sum(self.federation.learning_rates(self.round))
        return self.federation.update_deviation(self.round) / total_rate


@dataclass(frozen=True, kw_only=True, eq=False)
class ObservedModel:
    """A global model, and what the attacker overheard of its work on clients' records.

    Attributes:
        federation: Public knowledge.
        round: The number of rounds that the model was trained for.
        model: The parameters of the model.
        answers: The model's logits for clients' records, one record a row.
        embeddings: The inputs of its last layer for the same records.
    """

    federation: ObservedFederation
    round: int
    model: np.ndarray
    answers: Tensor
    embeddings: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class ObservedAnswers:
    """Answers of a hidden model about the attacker's own records.

    Attributes:
        federation: Public knowledge, and the records.
        round: The number of rounds that the model was trained for.
        answers: The model's logits, in the order of the records.
        noise: The size of the noise on them, in their standard deviations.
    """

    federation: ObservedFederation
    round: int
    answers: Tensor
    noise: float


@dataclass(frozen=True, kw_only=True, eq=False)
class ObservedMembership:
    """A global model, and records of which some were trained on: the question is which.

    Attributes:
        federation: Public knowledge; none of the attacker's own records is a candidate.
        round: The number of rounds that the model was trained for.
        model: The parameters of the model.
        candidates: Every record that may have been trained on.
        asked: The rows of the candidates that the attacker is asked about.
        held: The number of records that the clients hold together.
        workshop: A folder for the attacker's models.
    """

    federation: ObservedFederation
    round: int
    model: np.ndarray
    candidates: ObservedRecords
    asked: np.ndarray
    held: int
    workshop: Path


@dataclass(frozen=True, kw_only=True, eq=False)
class ObservedRound:
    """All uploads of a round in a random order, and records of some clients that took part.

    The question is which client sent which upload.

    Attributes:
        federation: Public knowledge.
        round: The round, counted from 0.
        model: The global model that every client began from.
        uploads: The intercepted models, one a row.
        targets: Records of each of the clients in question, as far as the attacker knows them.
    """

    federation: ObservedFederation
    round: int
    model: np.ndarray
    uploads: np.ndarray
    targets: tuple[ObservedRecords, ...]
