"""What an attacker is given, and nothing else. No type of this module holds anything of `truth`, and attackers get these types alone.

Everything here is public, or is what the view shows. The protocol comes without its seed, which would give the noise away.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from sordino.privacy.mechanisms import deviation
from sordino.privacy.sizes import size_of
from sordino.protocol import NoisySgd, Protocol


@dataclass(frozen=True, kw_only=True, eq=False)
class ObservedRecords:
    """Records that an attacker has, as a model sees them: its own, which no client holds, or such as it asks about.

    Attributes:
        inputs: one record a row.
        labels: their classes.
        attributes: per name, a value for each record, where the attacker knows it.
    """

    inputs: Tensor
    labels: Tensor
    attributes: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, kw_only=True, eq=False)
class ObservedFederation:
    """What everybody knows: the protocol without its seed, the model's structure and initial weights, the classes; and own records."""

    protocol: Protocol
    module: nn.Module
    classes: tuple[str, ...]
    auxiliary: ObservedRecords

    def rates(self, round: int) -> tuple[float, ...]:
        """The learning rate of every step of a round."""
        return self.protocol.local.schedule.rates(round=round, steps=self.protocol.local.steps)

    def update_deviation(self, round: int) -> float:
        """Standard deviation of the noise on a coordinate of an update of this round, as the protocol states it."""
        rule, noise = self.protocol.local, self.protocol.noise
        if isinstance(
            rule, NoisySgd
        ):  # independent noise in every step, on a sum that is divided by the batch
            return size_of(noise) * rule.noise_unit / rule.batch * math.hypot(*self.rates(round))
        return deviation(noise) if noise.where != "server" else 0.0


@dataclass(frozen=True, kw_only=True, eq=False)
class ObservedUpload:
    """One upload as the server receives it, with the global model that its sender began from.

    The client's number is not told: no attack on an upload needs it, and behind a shuffler nobody knows it.
    """

    federation: ObservedFederation
    round: int
    model: np.ndarray
    upload: np.ndarray

    @property
    def gradient(self) -> Tensor:
        """The update per unit of learning rate: the mean of the steps' clipped gradients, and noise. Not finite counts as zero."""
        rule, model = self.federation.protocol.local, self.model.astype(np.float64)
        slope = (model - self.upload.astype(np.float64)) / sum(self.federation.rates(self.round))
        if isinstance(rule, NoisySgd):
            slope -= rule.weight_decay * model  # of the first step; later ones begin nearby
        return torch.from_numpy(np.nan_to_num(slope, posinf=0.0, neginf=0.0))

    @property
    def drawn(self) -> int:
        """Records that the steps drew, counted with repetition."""
        rule = self.federation.protocol.local
        return rule.steps * (rule.batch or 1)

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise on a coordinate of `gradient`."""
        return self.federation.update_deviation(self.round) / sum(self.federation.rates(self.round))


@dataclass(frozen=True, kw_only=True, eq=False)
class ObservedModel:
    """A global model, and what it made of some clients' records, where the attacker overheard that.

    Attributes:
        federation: what everybody knows.
        round: rounds that the model has behind it.
        model: its parameters.
        answers: its answers (logits) about clients' records, one a row.
        embeddings: what went into its last layer for the same records.
    """

    federation: ObservedFederation
    round: int
    model: np.ndarray
    answers: Tensor
    embeddings: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class ObservedAnswers:
    """Answers of a model that is not shown about the attacker's own records.

    Attributes:
        federation: what everybody knows, and the records.
        round: rounds that the model has behind it.
        answers: its logits, in the order of the records.
        noise: how much noise was put on them, in their standard deviations.
    """

    federation: ObservedFederation
    round: int
    answers: Tensor
    noise: float


@dataclass(frozen=True, kw_only=True, eq=False)
class ObservedMembership:
    """A global model, and records of which some were trained on: which ones is the question.

    Attributes:
        federation: what everybody knows; no client holds the attacker's own records, which are none of the candidates.
        round: rounds that the model has behind it.
        model: its parameters.
        candidates: every record that may have been trained on.
        asked: about which of them the attacker is asked, as rows.
        held: how many records the clients hold together.
        workshop: a folder for the attacker's own models.
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
    """All uploads of a round in an order that says nothing, and records of some clients that took part: who sent what is the question.

    Attributes:
        federation: what everybody knows.
        round: rounds before this one.
        model: the global model that everybody began from.
        uploads: what was intercepted, one a row.
        targets: records that each of the clients in question holds, as far as the attacker knows them.
    """

    federation: ObservedFederation
    round: int
    model: np.ndarray
    uploads: np.ndarray
    targets: tuple[ObservedRecords, ...]
