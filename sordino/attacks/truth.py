"""The truth that is hidden from attackers.

Only the referee makes these types, and only scorers are given them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor


# Arrays have no single truth value, so none of these types compares by value (`eq=False`).
@dataclass(frozen=True, kw_only=True, eq=False)
class TruthBatch:
    """The records that a client's steps drew in one round, one after another.

    Attributes:
        inputs: The records, as the client's model saw them.
        labels: Their classes.
    """

    inputs: Tensor
    labels: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class TruthRecords:
    """Clients' records.

    Attributes:
        inputs: The records, as the clients' models saw them.
    """

    inputs: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class TruthAttribute:
    """The hidden attribute of some clients' records.

    Attributes:
        values: One for each record.
    """

    values: np.ndarray


@dataclass(frozen=True, kw_only=True, eq=False)
class TruthModel:
    """A model's answers about test records that the attacker never saw.

    Attributes:
        inputs: The records.
        labels: Their classes.
        answers: The model's logits.
    """

    inputs: Tensor
    labels: Tensor
    answers: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class TruthMembers:
    """The records in question that were a client's.

    Attributes:
        members: One truth value for each record.
        label_shares: For each record, the share of members among all candidates of its label, from
            which members can be guessed without a model.
    """

    members: np.ndarray
    label_shares: np.ndarray


@dataclass(frozen=True, kw_only=True, eq=False)
class TruthSenders:
    """Who sent which upload of a round.

    Attributes:
        places: The place in the round of the upload of each client in question.
        uploads: The number of uploads of the round.
    """

    places: np.ndarray
    uploads: int
