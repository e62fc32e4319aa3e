"""What is true, and hidden from attackers: only the referee makes these types, and only scorers are given them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class TruthBatch:
    """The records that a client's steps drew in one round, as its model saw them, one after another."""

    inputs: Tensor
    labels: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class TruthRecords:
    """Clients' records, as their models saw them."""

    inputs: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class TruthAttribute:
    """The hidden attribute of some clients' records."""

    values: np.ndarray


@dataclass(frozen=True, kw_only=True, eq=False)
class TruthModel:
    """What a model really answers about test records that the attacker never saw, and what is right."""

    inputs: Tensor
    labels: Tensor
    answers: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class TruthMembers:
    """Whether each of the records that were asked about was a client's."""

    members: np.ndarray


@dataclass(frozen=True, kw_only=True, eq=False)
class TruthSenders:
    """At which place of a round each client in question sent its upload, and how many uploads there were."""

    places: np.ndarray
    uploads: int
